"""Train the shipped diffusion language models on the synthetic tasks: `python -m` this module.

Both begin as ordinary causal models, as Dream came from Qwen2.5: every token of a text then teaches
something, and looking keys up is learnt in a tenth of the time that masks take for it. They go on
with masks on the canvas at ratios drawn uniformly and answers padded with end tokens, as LLaDA is
trained. dream-tiny keeps its logits one position ahead; llada-tiny, as LLaDA, has them in place.
"""

import argparse
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from varifocal.demo.journal import Every, append_line, save_atomically
from varifocal.demo.optimise import Optimisers
from varifocal.diffusion._begin import look_near, moved
from varifocal.diffusion._lessons import Batch, Batches
from varifocal.diffusion._reference import aligned_logits
from varifocal.diffusion._release import release
from varifocal.diffusion._scoring import decode_accuracy
from varifocal.diffusion._tokenizer import train_tokenizer
from varifocal.diffusion.model import MaskedTransformer, ModelConfig
from varifocal.errors import BadOption

logger = logging.getLogger(__name__)

SHARES = {
    "lookup": 2.0,
    "choice": 3.0,
    "compare": 1.5,
    "chain": 2.0,
    "addition": 3.0,
    "search": 2.0,
    "distractor": 2.0,
    "broken": 1.0,
}
_SIZES: dict[str, Any] = {
    "hidden": 128,
    "inner": 352,
    "heads": 4,
    "context": 256,
    "theta": 500.0,
    "eps": 1e-6,
    "bias": True,
}
KINDS: dict[str, dict[str, Any]] = {
    "llada-tiny": _SIZES | {"layers": 5, "kv_heads": 4},
    "dream-tiny": _SIZES | {"layers": 4, "kv_heads": 2, "shift": True},
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained, and how long and fast."""

    model: str  # a name of KINDS
    cpu_seconds: float  # budget of this process, spent before a resume included
    begin: str | None = None  # checkpoint of a dream-tiny run whose model is `moved` to begin with
    causal: float = 0.12  # share of it that is spent on next tokens, all others hidden
    grow: float = 0.2  # share of it after which questions are as large as the tasks have them
    smallest: float = 0.25  # size that they begin with, of a task's largest
    rate: float = 4e-3
    warm_up: int = 30  # steps, counted anew after every resume
    hold: float = 0.6  # share of the budget before the rate falls
    floor: float = 0.02  # of the rate, at the end
    batch_tokens: int = 3072
    checkpoint_seconds: float = 120.0
    check_seconds: float = 400.0  # between looks at validation items
    check_items: int = 12  # of a task
    shares: dict[str, float] = field(default_factory=lambda: dict(SHARES))
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in KINDS:
            raise BadOption(f"no model is called {self.model!r}; there are {', '.join(KINDS)}")
        if self.cpu_seconds <= 0:
            raise BadOption(f"a training needs more than 0 seconds, got {self.cpu_seconds}")


class Progress:
    """Where training stands: all that a checkpoint holds beside weights and optimisers."""

    def __init__(self) -> None:
        self.step, self.resumes, self.tokens, self.spent = 0, 0, 0, 0.0
        self.checks: list[dict[str, Any]] = []  # accuracy on validation items, and when


def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a run: made at its beginning, and the same after every resume."""
    if not (folder / "tokenizer").exists():
        train_tokenizer().save_pretrained(folder / "tokenizer")
    return PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")


def new_model(name: str, vocabulary: int, seed: int = 0) -> MaskedTransformer:
    """An untrained model of a kind."""
    torch.manual_seed(seed)
    model = MaskedTransformer(ModelConfig(vocab=vocabulary, **KINDS[name]))
    torch.nn.init.normal_(model.embed.weight, std=0.1)
    look_near(model)
    return model


def loss_of(model: MaskedTransformer, batch: Batch, mask: int) -> Float[Tensor, ""]:
    """Weighted mean cross-entropy of the masked tokens."""
    shown = batch.truth.masked_fill(batch.is_masked, mask)
    positions = torch.arange(shown.shape[1]).expand(shown.shape)
    logits = aligned_logits(model, shown, positions)
    return _weighted(logits, batch.truth, batch.weight * batch.is_masked)


def causal_loss_of(model: MaskedTransformer, batch: Batch) -> Float[Tensor, ""]:
    """Weighted mean cross-entropy of each canvas token, given those before it."""
    positions = torch.arange(batch.truth.shape[1]).expand(batch.truth.shape)
    logits = model(batch.truth, positions, causal=True)
    return _weighted(logits[:, :-1], batch.truth[:, 1:], batch.weight[:, 1:])


def _weighted(
    logits: Float[Tensor, "B T V"], truth: Tensor, weight: Float[Tensor, "B T"]
) -> Float[Tensor, ""]:
    counts = weight > 0
    losses = F.cross_entropy(logits[counts].float(), truth[counts], reduction="none")
    return (losses * weight[counts]).sum() / weight[counts].sum()


def train(
    plan: Plan, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> tuple[MaskedTransformer, Progress]:
    """Train a model in `folder`, going on from its checkpoint where there is one."""
    model = _beginning(plan, len(tokenizer))
    optimisers, at = Optimisers(model, plan.rate), Progress()
    saved, log = folder / f"{plan.model}.pt", folder / f"{plan.model}.jsonl"
    if saved.exists():
        _resume(saved, model, optimisers, at)
    if at.spent >= plan.cpu_seconds:
        return model, at
    first_step, begun = at.step, time.process_time() - at.spent
    # Another stream after a resume: no item is met twice.
    seed = plan.seed * 1000 + at.resumes
    batches = Batches(tokenizer, plan.shares, seed=seed, batch_tokens=plan.batch_tokens)
    save_due, check_due = Every(plan.checkpoint_seconds), Every(plan.check_seconds)
    losses: list[float] = []
    batches.scale = _scale(plan, at.spent)
    for batch in batches:
        optimisers.set_rate(_rate(plan, at.spent, at.step - first_step))
        is_causal = at.spent < plan.causal * plan.cpu_seconds
        losses.append(_learn(model, optimisers, batch, tokenizer.mask_token_id, is_causal))
        at.step, at.tokens = at.step + 1, at.tokens + batch.truth.numel()
        at.spent = time.process_time() - begun
        batches.scale = _scale(plan, at.spent)
        record: dict[str, Any] = {"step": at.step, "spent": round(at.spent, 1)}
        if at.step % 50 == 0:
            loss = sum(losses) / len(losses)
            append_line(log, record | {"loss": round(loss, 4), "causal": is_causal})
            losses.clear()
        is_over = at.spent >= plan.cpu_seconds
        if check_due.is_due() and not is_causal and not is_over:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                found = decode_accuracy(model, tokenizer, "valid", plan.check_items, 64)
            at.checks.append(record | {"accuracy": found})
            append_line(log, at.checks[-1])
        if is_over or save_due.is_due():
            state = {"model": model.state_dict(), "optimisers": optimisers.state()}
            save_atomically(state | {"progress": vars(at), "plan": asdict(plan)}, saved)
        if is_over:
            break
    return model, at


def _beginning(plan: Plan, vocabulary: int) -> MaskedTransformer:
    if plan.begin is None:
        return new_model(plan.model, vocabulary, plan.seed)
    shifted = new_model("dream-tiny", vocabulary)
    shifted.load_state_dict(torch.load(plan.begin, weights_only=False)["model"])
    return moved(shifted)


def _resume(path: Path, model: MaskedTransformer, optimisers: Optimisers, at: Progress) -> None:
    state = torch.load(path, weights_only=False)
    model.load_state_dict(state["model"])
    optimisers.load(state["optimisers"])
    vars(at).update(state["progress"])
    at.resumes += 1
    logger.info("%s: resumed at step %d", path.name, at.step)


def _scale(plan: Plan, spent: float) -> float:
    """Largest size of questions, of their tasks' largest."""
    grown = spent / (plan.grow * plan.cpu_seconds)
    return min(1.0, plan.smallest + (1 - plan.smallest) * grown)


def _rate(plan: Plan, spent: float, steps: int) -> float:
    """Factor of the learning rate; the warm-up is counted anew after a resume."""
    fall = max(0.0, (spent / plan.cpu_seconds - plan.hold) / (1 - plan.hold))
    return min(1.0, (steps + 1) / plan.warm_up) * (1 - (1 - plan.floor) * min(1.0, fall))


def _learn(
    model: MaskedTransformer, optimisers: Optimisers, batch: Batch, mask: int, is_causal: bool
) -> float:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = causal_loss_of(model, batch) if is_causal else loss_of(model, batch, mask)
    loss.backward()
    optimisers.step()
    return float(loss.detach())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m varifocal.diffusion.training")
    parser.add_argument("--model", required=True, choices=list(KINDS))
    parser.add_argument("--run", type=Path, required=True, help="where checkpoints and log go")
    parser.add_argument("--out", type=Path, required=True, help="where the finished model goes")
    parser.add_argument("--seconds", type=float, default=2700.0, help="CPU seconds of training")
    parser.add_argument("--items", type=int, default=200, help="test items scored of each task")
    parser.add_argument("--begin", help="checkpoint of a dream-tiny run to begin llada-tiny with")
    parser.add_argument("--rate", type=float, default=Plan.rate, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    plan = Plan(
        model=options.model, cpu_seconds=options.seconds, rate=options.rate, seed=options.seed
    )
    if options.begin:  # it has been through the easy part already
        plan = replace(plan, begin=options.begin, causal=0.0, smallest=1.0, hold=0.4)
    tokenizer = tokenizer_of(options.run)
    model, at = train(plan, tokenizer, options.run)
    training = {
        "command": f"python -m varifocal.diffusion.training --model {plan.model} "
        f"--seconds {plan.cpu_seconds:g} --rate {plan.rate:g} --seed {plan.seed}"
        + (" --begin RUN/dream-tiny.pt" if plan.begin else ""),
        "plan": asdict(plan),
        "steps": at.step,
        "tokens": at.tokens,
        "resumes": at.resumes,
        "cpu_seconds": round(at.spent, 1),
        "checks": at.checks,
    }
    release(model, tokenizer, options.out, training, items=options.items)


if __name__ == "__main__":
    main()
