"""A target and a drafter, loaded and measured, ready to answer requests."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints, overload

import torch
from safetensors import SafetensorError

from varifocal.batch import Batch
from varifocal.decode import Clock, Generation, answers
from varifocal.drafter import Drafter
from varifocal.drafters import check_options, drafter_class, load_drafter
from varifocal.drafters.plain import PlainDrafter
from varifocal.errors import BadOption, BadRequest, UnsupportedTarget
from varifocal.options import literal, typed_value
from varifocal.plan import CostModel
from varifocal.request import Request
from varifocal.result import GenerationResult
from varifocal.targets import load_target
from varifocal.targets._hf import HFTarget

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAX_THREADS = 1024  # more than CPUs have cores; torch tries to start any number


@dataclass(frozen=True)
class Engine:
    """Answers any number of requests; all that belongs to one lives in its generation."""

    target: HFTarget
    drafter: Drafter[Any]
    cost: CostModel | None = None  # measured; only drafters with nodes="auto" use it

    @overload
    def generate(self, request: Request) -> GenerationResult: ...

    @overload
    def generate(
        self, request: Iterable[Request], *, max_batch: int = 8
    ) -> list[GenerationResult]: ...

    def generate(
        self, request: Request | Iterable[Request], *, max_batch: int = 8
    ) -> GenerationResult | list[GenerationResult]:
        """Decode a request to its end, or several of them, `max_batch` at a time together.

        Each of several gets the text of its single run. Those that fail do so alone: BatchFailed
        is raised when all are done, and has the results of the others.
        """
        if not isinstance(request, Request):
            return self.batch(request, max_batch=max_batch).results()
        generation = self.stream(request)
        for _ in generation:
            pass
        return generation.result()

    def stream(
        self, request: Request, *, clock: Clock = time.perf_counter, with_looks: bool = False
    ) -> Generation:
        """The request being decoded: iterate over its rounds, each with the text to show."""
        return Generation(
            self.target, self.drafter, request, cost=self.cost, clock=clock, with_looks=with_looks
        )

    def batch(
        self,
        asked: Iterable[Request | Generation] = (),
        *,
        max_batch: int = 8,
        clock: Clock = time.perf_counter,
        with_looks: bool = False,
    ) -> Batch[Request]:
        """Requests to decode together: iterate over (number, round), or see `Batch` for a server.

        Generations of this engine may stand for requests, such as the `answers` to a prompt.
        """

        def begin(request: Request) -> Generation:
            return self.stream(request, clock=clock, with_looks=with_looks)

        if isinstance(asked, str | bytes | Mapping) or not isinstance(asked, Iterable):
            raise BadRequest(
                f"wanted a Request or a list of them, got {asked!r:.80}; varifocal.ask makes one "
                "of a text and pictures"
            )
        return Batch(begin, asked, max_batch=max_batch)

    def answers(
        self, request: Request, n: int, *, clock: Clock = time.perf_counter
    ) -> list[Generation]:
        """n answers to one prompt, which is read once: each to be iterated over as in `stream`.

        Answer i is exactly that of the same request with the seed `sampling.seed + i`. `batch`
        decodes them together.
        """
        if not isinstance(request, Request):
            raise BadRequest(f"wanted a Request, as varifocal.ask makes it, got {request!r:.80}")
        return answers(self.target, self.drafter, request, n, cost=self.cost, clock=clock)

    def plain(self) -> "Engine":
        """The same target without a drafter: what every speed-up and text is compared with."""
        return Engine(self.target, load_drafter("plain", self.target))


def load(
    target: str | Path = "demo",
    drafter: str | None = None,
    *,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "auto",
    threads: int | None = None,
    exact_rows: bool | None = None,
    drafter_options: Mapping[str, Any] | None = None,
    calibrate: bool = True,
) -> Engine:
    """Load a target and a drafter by name.

    `drafter` is a name, a dotted module or a folder that `train` wrote; by default "fovea" where
    weights are shipped for the target, else "lookup". `dtype` "auto" or None takes bfloat16 where
    the device computes it natively. `device` "auto" takes CUDA if there is any. `threads` sets
    torch's threads for the whole process. `calibrate=False` skips measuring what a round costs on
    this machine, which takes seconds; a drafter with nodes="auto" then uses `max_nodes` always.
    """
    if threads is not None:
        set_threads(threads)
    model = open_target(target, dtype=dtype, device=device, exact_rows=exact_rows)
    name = default_drafter(model) if drafter is None else str(drafter)
    made = load_drafter(name, model, **dict(drafter_options or {}))
    if isinstance(made, PlainDrafter) and made.config.fast:  # type: ignore[attr-defined]
        from varifocal.fast import fast_target

        model = fast_target(model)
        made = load_drafter(name, model, **dict(drafter_options or {}))
    return Engine(model, made, measure(model, made) if calibrate else None)


def open_target(
    target: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "auto",
    exact_rows: bool | None = None,
) -> HFTarget:
    """The target alone, with dtype and device as in `load`."""
    place = find_device(device)
    try:
        return load_target(
            str(target), dtype=find_dtype(dtype), device=place, exact_rows=exact_rows
        )
    except SafetensorError as error:
        raise UnsupportedTarget(
            f"the weights of {str(target)!r} are damaged or cut short ({error}); fetch or copy "
            "them again"
        ) from error


def measure(target: HFTarget, drafter: Drafter[Any]) -> CostModel | None:
    """What rounds cost on this machine, if the drafter's settings depend on it."""
    if drafter.config.nodes != "auto" or drafter.config.depth == 0:
        return None
    from varifocal.cost import cost_model

    return cost_model(target, drafter)


def default_drafter(target: HFTarget) -> str:
    """ "fovea" where weights for this target are shipped, else "lookup"."""
    from varifocal.drafters._weights import shipped_weights

    return "fovea" if shipped_weights("fovea", target) is not None else "lookup"


def set_threads(threads: int) -> None:
    """Torch's threads for the whole process."""
    if not 1 <= threads <= MAX_THREADS:
        raise BadOption(
            f"threads must be from 1 to {MAX_THREADS}, got {threads}; the CPU's cores are enough"
        )
    torch.set_num_threads(threads)


def find_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A dtype by its name; None is what suits the device."""
    if dtype is None or dtype == "auto" or isinstance(dtype, torch.dtype):
        return None if dtype == "auto" else dtype  # type: ignore[return-value]  # no str is left
    if dtype not in DTYPES:
        raise BadOption(f"dtype must be auto, {', '.join(DTYPES)}, got {dtype!r}")
    return DTYPES[dtype]


def find_device(device: str | torch.device) -> torch.device:
    """The device, if it is here."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().split("\n")[0]
        raise BadOption(f"the device {str(device)!r} cannot be used here: {reason}") from error
    if found.type == "meta":
        raise BadOption("the device 'meta' knows shapes but no numbers; use auto, cpu or cuda")
    return found


def parse_options(drafter: str | None, pairs: Mapping[str, str]) -> dict[str, Any]:
    """Drafter options that were typed, such as {"nodes": "40"}, as the drafter's Config wants them.

    Options of a trained folder or hub id, whose class only its files know, are read as JSON.
    """
    if drafter is None or "/" in drafter or Path(drafter).is_dir():
        return {key: literal(text) for key, text in pairs.items()}
    cls = drafter_class(drafter)
    check_options(drafter, cls, dict(pairs))
    hints = get_type_hints(cls.Config)
    return {key: typed_value(drafter, key, text, hints[key]) for key, text in pairs.items()}
