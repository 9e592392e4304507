"""Recorded full runs of a task in a folder of their own, and gates replayed on them."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from varifocal.diffusion import formats, tasks
from varifocal.diffusion.denoiser import Vocabulary
from varifocal.diffusion.evaluation.frozen import find_gate
from varifocal.diffusion.evaluation.items import Drawn
from varifocal.diffusion.evaluation.measure import Setup
from varifocal.diffusion.evaluation.measure import record as record_runs
from varifocal.diffusion.evaluation.outcome import Agreement, Outcome, accuracy, mean_nfe
from varifocal.diffusion.recording import Recording, load_recordings, save_recordings
from varifocal.diffusion.replay import replay
from varifocal.diffusion.sampler import Sampler
from varifocal.diffusion.tasks import Item
from varifocal.errors import BadArtifact, BadOption
from varifocal.training.artifacts import write_atomically

RUNS, ITEMS = "runs.npz", "items.json"
Step = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Reel:
    """What a folder holds."""

    model: str
    task: str
    items: tuple[Item, ...]
    recordings: tuple[Recording, ...]
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A gate on all runs."""

    gate: str  # as given
    setting: str
    accuracy: float
    agreement: float
    helped: int
    hurt: int
    changed: int
    exits: float
    premature: float  # of exits
    nfe: float
    nfe_full: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def check_folder(folder: Path) -> None:
    """Make it; raise BadOption if anything is in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(
            f"{folder} cannot be a folder ({error.strerror or error}); name another with --out"
        ) from error
    if names := sorted(path.name for path in folder.iterdir()):
        raise BadOption(f"--out wants a new or empty folder; {folder} holds {', '.join(names[:3])}")


def record_reel(
    setup: Setup, drawn: Drawn, sampler: Sampler[Any], folder: Path, step: Step = lambda: None
) -> int:
    """Full runs of all questions, into a folder; how many bytes that took."""
    recordings = []
    for _, _, recording in record_runs(setup, drawn.items, sampler):
        recordings.append(recording)
        step()
    save_recordings(folder / RUNS, recordings)
    setup.denoiser.tokenizer.save_pretrained(folder)
    about = {
        "model": setup.denoiser.name,
        "task": drawn.task.name,
        "split": drawn.split,
        "items": [asdict(item) for item in drawn.items],
    }
    write_atomically(folder / ITEMS, json.dumps(about, ensure_ascii=False).encode())
    return sum(path.stat().st_size for path in folder.iterdir())


def load_reel(folder: Path) -> Reel:
    """What `record_reel` wrote."""
    try:
        recordings = load_recordings(folder / RUNS)
        about = json.loads((folder / ITEMS).read_text(encoding="utf-8"))
        items = tuple(Item(**item) for item in about["items"])
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        task = tasks.find(about["task"])
        if len(items) != len(recordings):
            raise ValueError(f"{len(items)} questions, {len(recordings)} runs")
        if not items:
            raise ValueError("it holds no runs")
        for item, recording in zip(items, recordings, strict=True):
            _check(recording, item, str(about["model"]), tokenizer)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BadArtifact(
            f"{folder} is not what `varifocal diffusion record` wrote ({error}); record again"
        ) from error
    return Reel(
        model=str(about["model"]),
        task=task.name,
        items=items,
        recordings=tuple(recordings),
        tokenizer=tokenizer,
    )


def _check(
    recording: Recording, item: Item, model: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raises ValueError where a run is not this question's, or not one that a decoding leaves."""
    facts, steps = recording.facts, recording.num_steps
    if facts.model != model:
        raise ValueError(f"the runs are of {facts.model}, the questions of {model}")
    if list(facts.prompt) != tokenizer.encode(item.prompt, add_special_tokens=False):
        raise ValueError("a run's prompt is not its question: they do not belong together")
    per_step = (steps, facts.plan.canvas)
    shapes = {
        **dict.fromkeys(("argmax", "confidence", "gap", "entropy", "fresh"), per_step),
        **dict.fromkeys(("tokens", "token_confidence", "token_step"), per_step[1:]),
        "num_computed": (steps,),
        "seconds": (steps, 3),
    }
    for name, shape in shapes.items():
        if (got := getattr(recording, name).shape) != shape:
            raise ValueError(f"{name} has the shape {got} where {shape} is wanted")
    size = max(len(tokenizer), facts.mask + 1)
    for name in ("argmax", "tokens"):
        ids = getattr(recording, name)
        if not ((ids >= 0) & (ids < size)).all():
            raise ValueError(f"{name} has ids beyond the {size} of the tokenizer")
    is_fresh, committed = recording.fresh, recording.token_step
    for name in ("confidence", "gap", "entropy"):
        if np.isnan(getattr(recording, name)[is_fresh]).any():
            raise ValueError(f"{name} holds NaN")
    if not is_fresh.any(1).all() or not ((committed >= 0) & (committed <= steps)).all():
        raise ValueError("it has a step that computed nothing, or tokens of steps that it lacks")


def replay_reel(reel: Reel, gates: str, step: Step = lambda: None) -> list[Replayed]:
    """A row for each gate, separated by commas; raises BadOption for one that must run live."""
    labels = [label.strip() for label in gates.split(",") if label.strip()]
    if not labels:
        raise BadOption("no gate was named")
    rules = {label: find_gate(label) for label in labels}
    format = formats.find(tasks.find(reel.task).format)
    full: list[Outcome] = []
    made: dict[str, list[Outcome]] = {label: [] for label in rules}
    for item, recording in zip(reel.items, reel.recordings, strict=True):
        vocabulary = _vocabulary(recording)
        for runs, gate in [(full, find_gate("full")), *((made[n], r) for n, r in rules.items())]:
            result = replay(recording, gate, reel.tokenizer, format=format)
            runs.append(Outcome.of(result, item, format, vocabulary))
        step()
    return [_row(label, rules[label].text, runs, full) for label, runs in made.items()]


def _vocabulary(recording: Recording) -> Vocabulary:
    facts = recording.facts
    return Vocabulary(
        size=0,
        mask=facts.mask,
        pad=min(facts.stops, default=facts.mask),
        stops=frozenset(facts.stops),
    )


def _row(label: str, setting: str, runs: list[Outcome], full: list[Outcome]) -> Replayed:
    agreement, count = Agreement.of(runs, full), len(runs)
    return Replayed(
        gate=label,
        setting=setting,
        accuracy=accuracy(runs),
        agreement=agreement.agreeing / count,
        helped=agreement.helped,
        hurt=agreement.hurt,
        changed=agreement.changed,
        exits=agreement.exits / count,
        premature=agreement.premature_share,
        nfe=mean_nfe(runs),
        nfe_full=mean_nfe(full),
    )
