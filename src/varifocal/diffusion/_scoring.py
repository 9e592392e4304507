"""Score a model on items of the tasks by full decoding."""

from collections.abc import Sequence
from itertools import count

from transformers import PreTrainedTokenizerFast

from varifocal.diffusion import formats, tasks
from varifocal.diffusion._lessons import encode
from varifocal.diffusion._reference import decode
from varifocal.diffusion.model import MaskedTransformer
from varifocal.diffusion.tasks import Item, Split

_ROWS = 32  # decoded together


def decode_accuracy(
    model: MaskedTransformer,
    tokenizer: PreTrainedTokenizerFast,
    split: Split,
    num_items: int,
    canvas: int,
    *,
    names: Sequence[str] | None = None,
) -> dict[str, dict[str, float]]:
    """Per task, the share of items whose answer is right, and whose text is as it should be.

    Of tasks that are not scored only the text is judged. Items too long for the canvas are passed
    over.
    """
    found = {}
    for name in names or tasks.names():
        task = tasks.find(name)
        items = fitting(tokenizer, name, split, num_items, canvas)
        items.sort(key=lambda item: len(item.answer))  # rows decoded together end together
        texts: list[str] = []
        for begin in range(0, num_items, _ROWS):
            texts += decoded(model, tokenizer, items[begin : begin + _ROWS], canvas)
        pairs = list(zip(texts, items, strict=True))
        right = {"text": sum(text == item.answer for text, item in pairs)}
        if task.is_scored:
            score = formats.find(task.format).score
            right["answer"] = sum(score(text, item.reference) for text, item in pairs)
        found[name] = {what: round(number / num_items, 4) for what, number in right.items()}
    return found


def fitting(
    tokenizer: PreTrainedTokenizerFast, name: str, split: Split, num_items: int, canvas: int
) -> list[Item]:
    """The first items of a task whose answer leaves room for an end token on the canvas."""
    drawn = (tasks.find(name).draw(index, split) for index in count())
    fit = (item for item in drawn if len(encode(tokenizer, item)[1]) < canvas)
    return [next(fit) for _ in range(num_items)]


def decoded(
    model: MaskedTransformer,
    tokenizer: PreTrainedTokenizerFast,
    items: Sequence[Item],
    canvas: int,
) -> list[str]:
    """The text that a model writes for each item."""
    mask, end = tokenizer.mask_token_id, tokenizer.eos_token_id
    prompts = [encode(tokenizer, item)[0] for item in items]
    rows = decode(model, prompts, canvas, mask=mask, end=end, only_text=True).tolist()
    told = (row[: row.index(end)] if end in row else row for row in rows)
    return [tokenizer.decode(ids) for ids in told]
