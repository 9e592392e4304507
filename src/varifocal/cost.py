"""What the parts of a round cost on this machine, measured once and remembered."""

import hashlib
import json
import logging
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol, runtime_checkable

import torch
from PIL import Image
from torch import nn

from varifocal.commit import Commit
from varifocal.decode import Clock, synchronised
from varifocal.drafter import Drafter
from varifocal.fast import is_packed
from varifocal.plan import Budget, CostModel
from varifocal.request import ask
from varifocal.target import Forward, Prompt
from varifocal.targets._hf import HFTarget
from varifocal.tree import DraftTree
from varifocal.verify import Verification, follow

logger = logging.getLogger(__name__)

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 41)  # rows of a forward that are measured, root included
CONTEXT = 300  # tokens of text and picture before them
_VERSION = 3
_PATIENCE = 0.7  # seconds on the clock for the forwards, and again for the drafts
_ROUNDS = (3, 9)  # repeats of everything: at least, at most
_BUSY = 2.0  # a median that many times the fastest repeat: others had the processor


@runtime_checkable
class Measured(Protocol):
    """A drafter that knows better how to measure itself."""

    def measure(self, target: HFTarget) -> tuple[float, float]:
        """Seconds of (the round's first draft forward, each further one)."""


@runtime_checkable
class Composed(Protocol):
    """A drafter made of others, one of which drafts in a round."""

    @property
    def members(self) -> tuple[Drafter[Any], ...]:
        """Of which each is measured by itself."""


def cost_model(
    target: HFTarget,
    drafter: Drafter[Any],
    *,
    refresh: bool = False,
    cache_dir: Path | None = None,
) -> CostModel:
    """The cost of a round with this target and drafter on this machine.

    Taken from the user's cache folder if it was measured before, else measured (some seconds on a
    small model) and stored. Times are process CPU time on one CPU thread, wall time otherwise.
    """
    if isinstance(drafter, Composed):
        return _composed(
            [cost_model(target, m, refresh=refresh, cache_dir=cache_dir) for m in drafter.members]
        )
    key = _key(target, drafter)
    file = (cache_dir or cache_folder()) / "cost" / f"{_digest(key)}.json"
    if not refresh and (known := _read(file, key)) is not None:
        return known
    logger.info("measuring the cost of %s on %s", drafter.name, target.name)
    cost = measure(target, drafter)
    if cost.is_calm:
        _write(file, key, cost)
    else:  # kept, it would decide about drafting for good
        logger.warning(
            "the machine was busy while %s was measured: the times are used now and not stored",
            drafter.name,
        )
    return cost


def _composed(members: Sequence[CostModel]) -> CostModel:
    """Of a round in which one of them drafts: at best, the cheapest."""
    return CostModel(
        verify=max((m.verify for m in members), key=len),
        step=min(m.step for m in members),
        start=min(m.start for m in members),
        other=max(m.other for m in members),
        members=tuple(members),
    )


def cache_folder() -> Path:
    """Where this platform keeps what can be made again, in a folder of our own."""
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root) / "varifocal"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or tempfile.gettempdir()) / "varifocal" / "cache"
    home = Path(os.path.expanduser("~"))
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "varifocal"


# -- measuring -------------------------------------------------------------------------------


@torch.inference_mode()
def measure(target: HFTarget, drafter: Drafter[Any], clock: Clock | None = None) -> CostModel:
    """Measure anew. The cache of a synthetic request is grown and cut back, nothing else."""
    trial = _Trial(target, drafter, clock or natural_clock(target.device))
    rows = [n for n in SIZES if n <= drafter.config.max_nodes]
    curve = trial.forwards([*rows, drafter.config.max_nodes + 1])
    start, step, other = trial.drafts()
    if isinstance(drafter, Measured):
        start, step = drafter.measure(target)
    verify = interpolate(curve, drafter.config.max_nodes + 1)
    if start + step * max(drafter.config.depth - 1, 0) < 0.01 * verify[0]:
        start = step = 0.0  # below what can be measured
    calm = not trial.is_disturbed
    return CostModel(verify=verify, step=step, start=start, other=other, is_calm=calm)


def natural_clock(device: torch.device) -> Clock:
    """CPU time of this process where one thread does all the work, else wall time."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    is_fine = time.get_clock_info("process_time").resolution < 1e-4  # it is 16 ms on Windows
    return time.process_time if alone and is_fine else time.perf_counter


def interpolate(curve: dict[int, float], upto: int) -> tuple[float, ...]:
    """Seconds for 1, 2, ... `upto` rows from measured ones: never falling, linear in between."""
    rows = sorted(curve)
    seconds = never_falling([curve[n] for n in rows])
    filled = []
    for n in range(1, upto + 1):
        right = next((i for i, known in enumerate(rows) if known >= n), len(rows) - 1)
        left = right if rows[right] == n or right == 0 else right - 1
        span = rows[right] - rows[left]
        share = (n - rows[left]) / span if span else 0.0
        filled.append(seconds[left] + share * (seconds[right] - seconds[left]))
    return tuple(filled)


def never_falling(values: Sequence[float]) -> list[float]:
    """The nearest sequence (least squares) that never falls: neighbours that do are averaged."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, m), (b, n) = blocks[-2:]
            blocks[-2:] = [((a * m + b * n) / (m + n), m + n)]
    return [mean for mean, count in blocks for _ in range(count)]


@dataclass(frozen=True)
class _Step:
    """What one synthetic round took."""

    depth: int
    draft: float
    other: float


class _Trial:
    """A request that nobody asked: a plain picture and random words."""

    def __init__(self, target: HFTarget, drafter: Drafter[Any], clock: Clock) -> None:
        self.target, self.drafter = target, drafter
        self.clock = synchronised(clock, target.device)
        self.is_disturbed = False  # repeats differed by more than a quiet machine makes them
        self._dice = torch.Generator().manual_seed(0)
        hidden = target.banned_ids | target.eos_ids
        self._words = torch.tensor([i for i in range(target.vocab_size) if i not in hidden])
        self.prompt = self._make_prompt()
        self.cache, self._prefill = target.prefill(self.prompt, drafter.want)

    def forwards(self, sizes: Sequence[int]) -> dict[int, float]:
        """Seconds of one target forward over trees of these sizes."""
        trees = {n: self._bush(n) for n in sizes}
        for tree in trees.values():
            self._forward(tree)  # warm-up
        taken: dict[int, list[float]] = {n: [] for n in sizes}
        until = self.clock() + _PATIENCE
        for turn in range(_ROUNDS[1]):
            for n, tree in trees.items():
                begin = self.clock()
                self._forward(tree)
                taken[n].append(self.clock() - begin)
            if turn + 1 >= _ROUNDS[0] and self.clock() > until:
                break
        self.is_disturbed |= any(median(times) > _BUSY * min(times) for times in taken.values())
        # Others can only make a forward slower, so the fastest is the truest.
        return {n: min(times) for n, times in taken.items()}

    def drafts(self) -> tuple[float, float, float]:
        """Seconds of the first draft forward, of each further one, and of the rest of a round."""
        config = self.drafter.config
        depths = [1, max(config.depth, 2)] if config.depth > 0 else [0]
        state = self.drafter.start(self.prompt, self._prefill, self._word())
        taken: list[_Step] = []
        until = self.clock() + _PATIENCE
        for turn in range(_ROUNDS[1] + 1):
            steps = [self._round(state, depth) for depth in depths]
            taken += steps if turn else []  # the first is the warm-up
            if turn >= _ROUNDS[0] and self.clock() > until:
                break
        drafts = [[s.draft for s in taken if s.depth == d] for d in depths]
        by_depth = [min(times) for times in drafts]
        if depths[0]:  # without drafts there is nothing but the noise of the clock
            self.is_disturbed |= any(median(times) > _BUSY * min(times) for times in drafts)
        other = median(s.other for s in taken)
        if len(depths) == 1:
            return 0.0, 0.0, other
        step = max(by_depth[1] - by_depth[0], 0.0) / (depths[1] - 1)
        return by_depth[0], step, other

    def _round(self, state: Any, depth: int) -> _Step:
        """One round whose draft is half accepted, whatever the target says."""
        nodes, root = self.drafter.config.max_nodes, self._word()
        begin = self.clock()
        tree = self._propose(state, root, Budget(depth=depth, nodes=nodes))
        drafted = self.clock()
        (seen,) = self.target.forward([tree], [self.cache], self.drafter.want)
        verified = self.clock()
        follow(tree, seen.logits, self.prompt.request.sampling, 1)
        followed = self.clock()
        verdict = self._pretended(tree)
        commit = Commit(self.target.decode, self.target.eos_ids, 1000)
        accepted = self.clock()
        self.cache.keep(verdict.path, len(tree))
        self.drafter.observe(state, verdict, seen.rows(verdict.path))
        commit.push(verdict.tokens)
        done = self.clock()
        return _Step(depth, drafted - begin, followed - verified + done - accepted)

    def _propose(self, state: Any, root: int, budget: Budget) -> DraftTree:
        if budget.depth == 0:
            return DraftTree.chain([root], self.target.device)
        return self.drafter.propose(state, root, budget)

    def _pretended(self, tree: DraftTree) -> Verification:
        """Half the way down to the deepest node, then a token that nobody drafted."""
        node = int(tree.depth.argmax())
        path = tree.ancestry[node].nonzero()[:, 0].tolist()
        path = path[: 1 + len(path) // 2]
        tokens = tree.tokens.tolist()
        return Verification(path, [tokens[n] for n in path[1:]] + [self._word()])

    def _forward(self, tree: DraftTree) -> Forward:
        fresh = replace(tree)  # its mask is part of the cost
        (seen,) = self.target.forward([fresh], [self.cache], self.drafter.want)
        self.cache.keep([], len(tree))
        return seen

    def _bush(self, n: int) -> DraftTree:
        """A binary tree of n nodes with the root."""
        parents = (torch.arange(n) - 1).div(2, rounding_mode="floor")
        parents[0] = -1
        device = self.target.device
        return DraftTree(self._random(n).to(device), parents.to(device))

    def _word(self) -> int:
        return int(self._random(1))

    def _random(self, count: int) -> torch.Tensor:
        index = torch.randint(len(self._words), (count,), generator=self._dice)
        return self._words[index]

    def _make_prompt(self) -> Prompt:
        """A grey picture, if the target reads any, then random tokens up to CONTEXT."""
        images = [Image.new("RGB", (192, 96), "grey")] if self.target.image_token else []
        prompt = self.target.encode(ask("Hello", images, max_new_tokens=1))
        room = self.target.context_length - len(prompt.tokens) - 2 * max(SIZES) - 200
        more = max(min(CONTEXT - len(prompt.tokens), room), 0)
        device = self.target.device
        return replace(
            prompt,
            tokens=torch.cat([prompt.tokens, self._random(more).to(device)]),
            image_of=torch.cat([prompt.image_of, torch.full((more,), -1, device=device)]),
        )


# -- remembering -----------------------------------------------------------------------------


def _key(target: HFTarget, drafter: Drafter[Any]) -> dict[str, Any]:
    """Everything that the times depend on."""
    networks = [v for v in vars(drafter).values() if isinstance(v, nn.Module)]
    shapes = [
        f"{name}{tuple(p.shape)}{p.dtype}" for net in networks for name, p in net.named_parameters()
    ]
    return {
        "version": _VERSION,
        "target": target.fingerprint,
        "dtype": str(target.dtype),
        "device": _device_name(target.device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "exact_rows": target.exact_rows,
        "packed": is_packed(target.model),
        "drafter": f"{type(drafter).__module__}.{type(drafter).__qualname__}",
        "config": repr(drafter.config),
        "want": repr(drafter.want),
        "networks": hashlib.sha256("".join(shapes).encode()).hexdigest()[:16],
        "drafter_packed": any(is_packed(net) for net in networks),
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _digest(key: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]


def _read(file: Path, key: dict[str, Any]) -> CostModel | None:
    """What an earlier run stored, unless there is nothing or it cannot be trusted."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["key"] != key:
            raise ValueError("it belongs to something else")
        cost = CostModel(
            verify=tuple(float(s) for s in stored["verify"]),
            step=float(stored["step"]),
            start=float(stored["start"]),
            other=float(stored["other"]),
        )
        _check(cost)
    except OSError:  # none there, or no access: then it cannot be written either, and that is said
        return None
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be used (%s); measuring again", file, error)
        return None
    return cost


def _check(cost: CostModel) -> None:
    numbers = (*cost.verify, cost.step, cost.start, cost.other)
    if not cost.verify or not all(math.isfinite(n) and n >= 0 for n in numbers):
        raise ValueError("its numbers are no times")
    if cost.verify[0] <= 0:
        raise ValueError("a forward that takes no time")


def _write(file: Path, key: dict[str, Any], cost: CostModel) -> None:
    """Store it whole or not at all; a folder that cannot be written only costs a warning."""
    fresh: str | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=file.parent, suffix=".new", delete=False, encoding="utf-8"
        ) as out:
            fresh = out.name
            json.dump({"key": key, **asdict(cost)}, out, indent=1)
        os.replace(fresh, file)
    except OSError as error:
        logger.warning(
            "the measured costs are not stored, and will be measured again: %s. Set XDG_CACHE_HOME "
            "to a folder that can be written",
            error,
        )
        if fresh is not None:
            Path(fresh).unlink(missing_ok=True)
