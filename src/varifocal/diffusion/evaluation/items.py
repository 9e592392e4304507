"""Questions of a task whose answers fit a canvas: what a benchmark asks."""

from dataclasses import dataclass
from itertools import count

from transformers import PreTrainedTokenizerBase

from varifocal.diffusion import tasks
from varifocal.diffusion.tasks import Item, Split, Task
from varifocal.errors import BadOption

_LOOKED_AT = 100  # questions at least, before a canvas is called too small
_MOST = 1_000_000  # questions of a task: drawing more takes minutes, decoding them weeks


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Distinct questions of one task, in the order of their numbers."""

    task: Task
    split: Split
    canvas: int
    items: tuple[Item, ...]
    skipped: int  # questions before the first of these
    fitting: float  # of the questions looked at, the share whose answer and its end fit


def draw(
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    number: int,
    canvas: int,
    split: Split = "test",
    *,
    skip: int = 0,
) -> Drawn:
    """The first so many questions with an answer shorter than the canvas, or those after `skip`.

    Raises BadOption if there are next to none, or not so many different ones.
    """
    task = tasks.find(name)
    if number < 1 or skip < 0:
        raise BadOption(
            f"a task needs one question at least, and skips 0 or more; got {number} and {skip}"
        )
    wanted = skip + number
    if wanted > _MOST:
        raise BadOption(
            f"questions up to number {_MOST} of a task can be asked for, got {wanted}: ask for "
            "fewer, or skip fewer"
        )
    found: dict[str, Item] = {}
    num_fitting = newest = 0
    for index in count():
        if len(found) == wanted:
            break
        is_hopeless = index >= _LOOKED_AT and not found
        is_spent = index - newest >= max(1000, 20 * len(found))  # only old ones for so long
        if is_hopeless or is_spent or index >= max(_LOOKED_AT, 100 * wanted):
            is_small = 100 * num_fitting < index
            raise BadOption(_too_few(task, wanted, canvas, split, len(found), is_small=is_small))
        item = task.draw(index, split)
        if len(tokenizer.encode(item.answer, add_special_tokens=False)) < canvas:
            num_fitting += 1
            if item.prompt not in found:
                found[item.prompt], newest = item, index
    return Drawn(
        task=task,
        split=split,
        canvas=canvas,
        items=tuple(found.values())[skip:],
        skipped=skip,
        fitting=num_fitting / index,
    )


def _too_few(
    task: Task, number: int, canvas: int, split: Split, num_found: int, *, is_small: bool
) -> str:
    if is_small:
        return (
            f"the answers of {task.name} do not fit a canvas of {canvas}: give a longer one; "
            f"canvas={task.canvas} is what the task is meant for"
        )
    return (
        f"the {split} questions of {task.name} are fewer than {number}: {num_found} different ones "
        "were found; ask for less"
    )
