"""Train a lightning indexer for a frozen model, by the model's own attention.

    python -m varifocal.sparse.train_indexer --target MODEL --text BOOK.txt --out DIR

The model reads a text; in each layer, the softmax of the indexer's scores learns where the heads
look: KL(p || softmax(I)), p the attention probabilities summed over heads and normalised, for some
queries of the text. [DeepSeek-V3.2, dense warm-up] Resumes where it was cut off.

Letters: Q queries, T tokens.
"""

import argparse
import logging
import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from jaxtyping import Float
from torch import Tensor

from varifocal.errors import BadOption, VarifocalError
from varifocal.sparse.decoding import open_model
from varifocal.sparse.indexer import Indexer, IndexerConfig, LayerIndexer, Origin
from varifocal.sparse.indexer_recall import RecallConfig, mass_kept
from varifocal.sparse.indexer_teacher import Attention, show
from varifocal.sparse.indexer_texts import Texts, texts_for
from varifocal.sparse.selection import Reach
from varifocal.targets._hf import HFTarget
from varifocal.training._checkpoint import STATE, Log, load_state, save_state
from varifocal.training._files import locked, make_folder

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class IndexerPlan:
    """What is trained and what is spent; seconds are CPU seconds of the training process."""

    seconds: float = 250.0
    heads: int = 8
    width: int = 32
    rotary: int = 32
    rate: float = 4e-3
    rise: float = 0.03  # share of the seconds until the rate is reached; then it falls to a tenth
    queries: int = 128  # of a text and layer
    clip: float = 1.0  # greatest norm of a layer's gradient
    budget: int = 256  # tokens that selectors may choose when they are compared
    threads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("seconds", "rate", "queries", "budget", "threads"):
            if (got := getattr(self, name)) <= 0:
                raise BadOption(f"{name} must be more than 0, got {got}")

    def factor(self, done: float) -> float:
        """Of the rate, at a share of the seconds."""
        falling = 0.55 + 0.45 * math.cos(math.pi * min(done, 1.0))
        return min(1.0, (done + 1e-3) / self.rise) * falling


def divergence(layer: LayerIndexer, attention: Attention, places: Tensor) -> Float[Tensor, ""]:
    """Mean KL(p || softmax(I)) over queries: gradients go to the indexer alone."""
    truth = attention.probabilities(places).mean((1, 2))
    scores = layer.scores(attention.asking(places), layer.keys(attention.entering)[0]).float()
    is_seen = attention.visible(places)
    said = scores.masked_fill(~is_seen, -torch.inf).log_softmax(-1).masked_fill(~is_seen, 0)
    return (torch.xlogy(truth, truth) - truth * said).sum(-1).mean()


@dataclass
class _Run:
    """A training under way."""

    target: HFTarget
    indexer: Indexer
    texts: Texts
    plan: IndexerPlan
    step: int = 0
    spent: float = 0.0
    losses: list[Mapping[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan, betas = self.plan, (0.9, 0.98)
        self.optimiser = torch.optim.AdamW(
            self.indexer.parameters(), lr=plan.rate, betas=betas, weight_decay=0.0
        )

    def update(self) -> None:
        """One text: every layer learns while the model reads it."""
        plan, losses = self.plan, dict[int, float]()
        random = torch.Generator().manual_seed(plan.seed * 1_000_003 + self.step)
        tokens = self.texts.train(self.step).to(self.target.device)
        places = torch.randperm(len(tokens), generator=random)[: plan.queries].sort().values
        for group in self.optimiser.param_groups:
            group["lr"] = plan.rate * plan.factor(self.spent / plan.seconds)

        def study(attention: Attention) -> None:
            layer = self.indexer.layer(attention.layer)
            with torch.enable_grad():
                loss = divergence(layer, attention, places.to(tokens.device))
                loss.backward()
            torch.nn.utils.clip_grad_norm_(layer.parameters(), plan.clip)
            losses[attention.layer] = float(loss.detach())

        show(self.target, tokens, study)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.losses.append(losses)
        self.step += 1

    def report(self) -> dict[str, float]:
        """The mean losses since the last report."""
        layers = range(self.target.num_layers)
        means = [sum(losses[n] for losses in self.losses) / len(self.losses) for n in layers]
        self.losses.clear()
        report = {f"kl {n}": round(mean, 4) for n, mean in enumerate(means)}
        return {"spent": round(self.spent, 1), "kl": round(sum(means) / len(means), 4)} | report

    def save(self, folder: Path) -> None:
        """All that the next step depends on."""
        state = {"indexer": self.indexer.state_dict(), "optimiser": self.optimiser.state_dict()}
        save_state(folder / STATE, state | {"step": self.step, "spent": self.spent})

    def resume(self, folder: Path) -> None:
        """Where a run in this folder stopped, if there was one."""
        if not (folder / STATE).exists():
            return
        state = load_state(folder / STATE)
        self.indexer.load_state_dict(state["indexer"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.spent = state["step"], state["spent"]


def train_indexer(target: HFTarget, texts: Texts, run: Path, plan: IndexerPlan) -> _Run:
    """Train in the folder `run`, which keeps the state and a log, until the seconds are spent."""
    config = IndexerConfig(
        num_layers=target.num_layers,
        hidden_size=target.hidden_size,
        heads=plan.heads,
        width=plan.width,
        rotary=plan.rotary,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        indexer = Indexer(config).to(target.device)
    going = _Run(target, indexer, texts, plan)
    going.resume(run)
    log, saved = Log(run, going.step), time.monotonic()
    begun = time.process_time() - going.spent
    try:
        while going.spent < plan.seconds:
            going.update()
            going.spent = time.process_time() - begun
            is_over = going.spent >= plan.seconds
            if going.step % 50 == 0 or is_over:
                log.write(going.step, "train", going.report())
            if is_over or time.monotonic() - saved > 60:
                going.save(run)
                saved = time.monotonic()
    finally:
        log.close()
    return going


def build_indexer(
    target: HFTarget, texts: Texts, run: Path, out: Path, plan: IndexerPlan
) -> dict[str, Any]:
    """Train, score on held-out texts, write to `out`; returns the scores."""
    make_folder(run)
    with locked(run):
        trained = train_indexer(target, texts, run, plan)
    indexer = trained.indexer.eval().requires_grad_(requires_grad=False)
    config = RecallConfig(reach=Reach(budget=plan.budget))
    scores = {
        name: mass_kept(target, indexer, [t.to(target.device) for t in held_out], config)
        for name, held_out in texts.held_out().items()
    }
    recipe = {
        "command": f"python -m varifocal.sparse.train_indexer --target {target.name} --out OUT",
        "plan": asdict(plan),
        "texts": texts.name,
        "lengths": [*texts.lengths],
        "steps": trained.step,
        "cpu_seconds": round(trained.spent, 1),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "machine": platform.machine(),
    }
    indexer.origin = Origin(
        target=target.name, fingerprint=target.fingerprint, recipe=recipe, scores=scores
    )
    indexer.save(out)
    return scores


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m varifocal.sparse.train_indexer`: the settings as flags."""
    default = IndexerPlan()
    parser = argparse.ArgumentParser(description="Train a lightning indexer for a frozen model.")
    parser.add_argument("--target", required=True, help="folder or hub id of a model, or tiny")
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished indexer")
    parser.add_argument("--run", type=Path, help="folder of state and log; left out: OUT/run")
    parser.add_argument(
        "--text",
        type=Path,
        action="append",
        default=[],
        help="a long text in UTF-8; repeatable. Left out: for tiny its tasks, else Python's "
        "documentation",
    )
    parser.add_argument(
        "--lengths", default="1024,2048,4096", help="tokens of a text, a length a step in turn"
    )
    for name, value in asdict(default).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    given = vars(parser.parse_args(arguments))
    target, out, run = given.pop("target"), given.pop("out"), given.pop("run")
    files, lengths = given.pop("text"), given.pop("lengths")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        plan = replace(default, **given)
        torch.set_num_threads(plan.threads)
        model = open_model(target, dtype=torch.float32)
        texts = texts_for(model, files, lengths, plan.seed)
        scores = build_indexer(model, texts, run or out / "run", out, plan)
    except VarifocalError as error:
        parser.error(str(error))
    for name, kept in scores.items():
        logger.info("%s: %s", name, kept)


if __name__ == "__main__":
    main(sys.argv[1:])
