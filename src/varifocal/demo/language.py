"""Train the language model on what the frozen tower sees, with the projector between them."""

import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor
from transformers import LlavaNextForConditionalGeneration, PreTrainedTokenizerFast

from varifocal.demo.feed import Feed
from varifocal.demo.journal import Every, append_line, save_atomically
from varifocal.demo.labels import SIDE, TILE
from varifocal.demo.lessons import (
    BLIND,
    Lesson,
    LessonBatch,
    LessonBatches,
    Mix,
    Writer,
    batch_of,
    held_out,
)
from varifocal.demo.model import encode_views, to_pixels
from varifocal.demo.optimise import Optimisers
from varifocal.demo.world import FAMILIES

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LanguagePlan:
    """How long and how fast the language model is trained."""

    cpu_seconds: float  # budget of this process, spent before a resume included
    rate: float = 2e-3
    warm_up: int = 50  # steps, counted anew after every resume
    hold: float = 0.75  # share of the budget before the rate falls
    floor: float = 0.05  # of the rate, at the end
    checkpoint_seconds: float = 240.0
    check_seconds: float = 600.0  # between looks at held-out pictures
    check_items: int = 16  # pictures a family
    mix: Mix = Mix()
    seed: int = 0


def embed(model: LlavaNextForConditionalGeneration, batch: LessonBatch) -> Float[Tensor, "B T D"]:
    """What enters the first decoder layer: embedded tokens, with the picture in place.

    The order is LLaVA-NeXT's: the whole picture, then its rows of patches, each with a line break.
    """
    core = model.model
    words: Tensor = core.language_model.embed_tokens(torch.from_numpy(batch.ids))
    if batch.grid == BLIND:
        return words
    rows, columns = batch.grid
    size, num_views = batch.views.shape[:2]
    with torch.no_grad():
        pixels = to_pixels(torch.from_numpy(batch.views).flatten(0, 1))
        seen = encode_views(core.vision_tower, pixels)
    seen = core.multi_modal_projector(seen).unflatten(0, (size, num_views))
    tiles = seen[:, 1:].reshape(size, rows, columns, SIDE, SIDE, -1).transpose(2, 3)
    tiles = tiles.reshape(size, rows * SIDE, columns * SIDE, -1)
    breaks = core.image_newline.to(tiles.dtype).expand(size, rows * SIDE, 1, -1)
    picture = torch.cat([seen[:, 0], torch.cat([tiles, breaks], 2).flatten(1, 2)], 1)
    after = 1 + picture.shape[1]  # the picture follows the token that opens the first turn
    # In float32 under autocast too: the sum that runs through the layers needs its precision.
    return torch.cat([words[:, :1], picture.to(words.dtype), words[:, after:]], 1)


def answer_logits(
    model: LlavaNextForConditionalGeneration, batch: LessonBatch
) -> tuple[Float[Tensor, "N V"], Int64[Tensor, " N"]]:
    """Logits where an answer token comes next, and those tokens."""
    embedded = embed(model, batch)
    decoder = model.model.language_model
    hidden = decoder(inputs_embeds=embedded, use_cache=False).last_hidden_state
    comes_next = torch.from_numpy(batch.is_answer[:, 1:])
    wanted = torch.from_numpy(batch.ids[:, 1:])[comes_next]
    return model.lm_head(hidden[:, :-1][comes_next]), wanted


def agrees_with_transformers(model: LlavaNextForConditionalGeneration, batch: LessonBatch) -> float:
    """The largest difference to the logits of the model's own forward, in float32."""
    rows, columns = batch.grid
    two = LessonBatch(batch.grid, batch.views[:2], batch.ids[:2], batch.is_answer[:2])
    views = torch.from_numpy(two.views)
    given = {}
    if batch.grid != BLIND:
        given["pixel_values"] = to_pixels(views.flatten(0, 1)).unflatten(0, views.shape[:2])
        given["image_sizes"] = torch.tensor([[rows * TILE, columns * TILE]] * len(views))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        ours, _ = answer_logits(model, two)
        theirs = model(input_ids=torch.from_numpy(two.ids), **given).logits
    theirs = theirs[:, :-1][torch.from_numpy(two.is_answer[:, 1:])]
    return float((ours - theirs).abs().max())


def token_accuracy(
    model: LlavaNextForConditionalGeneration, lessons: list[Lesson], pad: int, *, size: int = 16
) -> float:
    """Share of answer tokens that come first in the logits, given the true ones before them."""
    right = total = 0
    groups: dict[tuple[int, int], list[Lesson]] = {}
    for lesson in sorted(lessons, key=lambda lesson: len(lesson.ids)):
        groups.setdefault(lesson.grid, []).append(lesson)
    for group in groups.values():
        for start in range(0, len(group), size):
            part = group[start : start + size]
            batch = batch_of(part, max(len(lesson.ids) for lesson in part), pad)
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                logits, wanted = answer_logits(model, batch)
            right += int((logits.argmax(-1) == wanted).sum())
            total += len(wanted)
    return right / total


def look(
    model: LlavaNextForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, items: int
) -> dict[str, dict[str, float]]:
    """Token accuracy per family on held-out pictures, with the right and with another picture."""
    writer, found = Writer(tokenizer), {}
    # Shapes here are many and each is met once: compiling for them would take minutes.
    with torch.compiler.set_stance("force_eager"):
        for family in FAMILIES:
            pairs = held_out(writer, family, items)
            right, other = ([pair[i] for pair in pairs] for i in (0, 1))
            pad = tokenizer.pad_token_id
            found[family] = {
                "right": round(token_accuracy(model, right, pad), 4),
                "other": round(token_accuracy(model, other, pad), 4),
            }
    return found


class Progress:
    """Where training stands: all that a checkpoint holds beside weights and optimisers."""

    def __init__(self, index: int = 0) -> None:
        self.index = index  # of the next picture to draw
        self.step, self.pictures, self.spent = 0, 0, 0.0
        self.checks: list[dict[str, Any]] = []  # what `look` found, and when


def train_language(
    model: LlavaNextForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    plan: LanguagePlan,
    folder: Path,
    name: str,
    *,
    start_index: int = 0,
) -> Progress:
    """Train all but the tower in place, resuming from `folder/name.pt` where there is one."""
    torch.manual_seed(plan.seed)
    saved, log = folder / f"{name}.pt", folder / f"{name}.jsonl"
    model.model.vision_tower.requires_grad_(False)
    model.train()
    optimisers, at = Optimisers(model, plan.rate), Progress(start_index)
    if saved.exists():
        _resume(saved, model, optimisers, at)
    first_step, begun = at.step, time.process_time() - at.spent
    if at.spent >= plan.cpu_seconds:
        return at
    torch._dynamo.config.recompile_limit = 64  # shapes of a batch
    for layer in model.model.language_model.layers:
        layer.compile(dynamic=False)  # one graph of a shape serves all layers
    feed = Feed(LessonBatches(folder / "tokenizer", plan.mix), at.index)
    save_due, check_due = Every(plan.checkpoint_seconds), Every(plan.check_seconds)
    losses: list[float] = []
    for batch in feed:
        if at.step == first_step:
            gap = agrees_with_transformers(model, batch)
            assert gap < 1e-3, f"our forward differs from the model's own by {gap}"
        optimisers.set_rate(_rate(plan, at.spent, at.step - first_step))
        losses.append(_learn(model, optimisers, batch))
        at.step, at.pictures = at.step + 1, at.pictures + len(batch.ids)
        at.index, at.spent = feed.index, time.process_time() - begun
        record = {"step": at.step, "spent": round(at.spent, 1), "pictures": at.pictures}
        if at.step % 50 == 0:
            append_line(log, record | {"loss": float(np.mean(losses)), "time": time.time()})
            losses.clear()
        if check_due.is_due():
            at.checks.append(record | {"families": look(model, tokenizer, plan.check_items)})
            append_line(log, at.checks[-1])
        is_over = at.spent >= plan.cpu_seconds
        if is_over or save_due.is_due():
            _save(saved, model, optimisers, at, plan)
        if is_over:
            break
    feed.close()
    return at


def _save(
    path: Path,
    model: LlavaNextForConditionalGeneration,
    optimisers: Optimisers,
    at: Progress,
    plan: LanguagePlan,
) -> None:
    state = {"model": model.state_dict(), "optimisers": optimisers.state()}
    state |= {"rng": torch.get_rng_state(), "progress": vars(at), "plan": asdict(plan)}
    save_atomically(state, path)


def _resume(
    path: Path, model: LlavaNextForConditionalGeneration, optimisers: Optimisers, at: Progress
) -> None:
    state = torch.load(path, weights_only=False)
    model.load_state_dict(state["model"])
    optimisers.load(state["optimisers"])
    torch.set_rng_state(state["rng"])
    vars(at).update(state["progress"])
    logger.info("%s: resumed at step %d", path.name, at.step)


def _rate(plan: LanguagePlan, spent: float, steps: int) -> float:
    """Factor of the learning rate; the warm-up is counted anew after a resume."""
    done = spent / plan.cpu_seconds
    fall = max(0.0, (done - plan.hold) / (1 - plan.hold)) if plan.hold < 1 else 0.0
    return min(1.0, (steps + 1) / plan.warm_up) * (1 - (1 - plan.floor) * min(1.0, fall))


def _learn(
    model: LlavaNextForConditionalGeneration, optimisers: Optimisers, batch: LessonBatch
) -> float:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, wanted = answer_logits(model, batch)
        loss = F.cross_entropy(logits.float(), wanted)
    loss.backward()
    optimisers.step()
    return float(loss.detach())
