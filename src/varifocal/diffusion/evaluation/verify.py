"""Hold a gate to full decoding on the same questions, and the loop to what it promises."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from varifocal.diffusion.evaluation.items import Drawn
from varifocal.diffusion.evaluation.measure import Setup, finished, live, record
from varifocal.diffusion.evaluation.methods import how_to_run
from varifocal.diffusion.evaluation.outcome import Agreement, accuracy, mean_nfe
from varifocal.diffusion.gate import Gate
from varifocal.diffusion.gates._cvc import CVCConfig
from varifocal.diffusion.gates.cvc import CVC
from varifocal.diffusion.gates.eos_stop import EosStop
from varifocal.diffusion.replay import replay
from varifocal.diffusion.result import DiffusionResult
from varifocal.diffusion.sampler import Sampler
from varifocal.errors import BadOption

Done = Callable[[], None]  # a task is one step further


@dataclass(frozen=True, kw_only=True)
class Check:
    """A gate on the questions of one task."""

    task: str
    canvas: int
    items: int
    accuracy: float
    accuracy_full: float
    agreement: float
    helped: int
    hurt: int
    changed: int
    exits: float
    premature: float  # of exits
    nfe: float
    nfe_full: float
    never: int  # questions that ran to their end
    broken_rows: int  # with an undecided position, a mask or another id that must not be said
    batch_checked: int  # rows that were decoded again alone
    batch_equal: int
    replay_checked: int  # recorded runs that `replay_gate` was replayed on and run live
    replay_equal: int
    replay_gate: str
    is_within: bool  # no more answers differ than the tolerance allows

    @property
    def is_good(self) -> bool:
        """Whether everything holds."""
        return (
            self.is_within
            and not self.broken_rows
            and self.batch_equal == self.batch_checked
            and self.replay_equal == self.replay_checked
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """All tasks."""

    model: str
    gate: str
    sampler: str
    tolerance: float  # points of the answers that may differ from full decoding's
    checks: tuple[Check, ...]

    @property
    def is_good(self) -> bool:
        """Whether everything holds on every task."""
        return all(check.is_good for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `varifocal diffusion verify --json`."""
        return {**asdict(self), "is_good": self.is_good}


def check(
    setup: Setup,
    drawn: Drawn,
    sampler: Sampler[Any],
    gate: Gate[Any],
    *,
    tolerance: float,
    sample: int,
    done: Done = lambda: None,
) -> Check:
    """Full decoding and the gate; `sample` questions again alone, recorded and replayed."""
    if gate.needs_future:
        raise BadOption(f"{gate.name} can only be replayed; there is no live run to verify")
    full = live(setup, drawn.items, sampler, setup.full)
    done()
    runs = live(setup, drawn.items, sampler, gate)
    done()
    some = drawn.items[:sample]
    alone = [setup.outcome(_alone(setup, item, sampler, gate), item) for item in some]
    stops = _stop_rule(gate, setup)
    replays = []
    for item, _, recording in record(setup, some, sampler):
        replayed = replay(recording, stops, setup.denoiser.tokenizer, format=setup.format)
        replays.append(_facts(replayed) == _facts(_alone(setup, item, sampler, stops)))
    done()
    agreement, count = Agreement.of(runs, full), len(runs)
    differing = count - agreement.agreeing
    return Check(
        task=drawn.task.name,
        canvas=setup.plan.canvas,
        items=count,
        accuracy=accuracy(runs),
        accuracy_full=accuracy(full),
        agreement=agreement.agreeing / count,
        helped=agreement.helped,
        hurt=agreement.hurt,
        changed=agreement.changed,
        exits=agreement.exits / count,
        premature=agreement.premature_share,
        nfe=mean_nfe(runs),
        nfe_full=mean_nfe(full),
        never=count - agreement.exits,
        broken_rows=sum(not run.is_whole for run in [*runs, *full]),
        batch_checked=len(alone),
        batch_equal=sum(a == b for a, b in zip(alone, runs, strict=False)),
        replay_checked=len(replays),
        replay_equal=sum(replays),
        replay_gate=stops.text,
        is_within=100 * differing / count <= tolerance,
    )


def _alone(setup: Setup, item: Any, sampler: Sampler[Any], gate: Gate[Any]) -> DiffusionResult:
    (result,) = finished(setup.decoding([item], sampler, gate))
    return result


def _stop_rule(gate: Gate[Any], setup: Setup) -> Gate[Any]:
    """What of a gate can be replayed: the gate, or else its stop rule alone."""
    if how_to_run(gate, setup.plan, setup.denoiser.tokenizer) == "replayed":
        return gate
    if isinstance(gate.config, CVCConfig):
        shared = {f.name: getattr(gate.config, f.name) for f in fields(CVCConfig)}
        return CVC(CVCConfig(**shared))
    return EosStop()


def _facts(result: DiffusionResult) -> tuple[Any, ...]:
    """All of a result but its times."""
    steps = [(step.positions, step.tokens, step.exit) for step in result.steps]
    return (
        *(result.token_ids, result.text, result.finish, result.reason, result.exit_step),
        *(result.num_filled, result.candidate, result.verified_span, result.confidence, steps),
    )
