"""The methods of a benchmark: gates as they are typed, and how each can be measured."""

from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from varifocal.diffusion.evaluation.frozen import find_gate
from varifocal.diffusion.gate import Gate
from varifocal.diffusion.gates.reduced import Reduced
from varifocal.diffusion.sampler import Sampler
from varifocal.diffusion.schedule import Plan
from varifocal.diffusion.statistics import Want
from varifocal.errors import BadOption

FULL, REDUCED, LATCH, ORACLE = "full", "reduced", "latch", "oracle"
_WITH_THE_TEXT = (FULL, "cvc", "eos_stop", ORACLE)  # no rest of a run is needed for these
DEFAULT = (
    "full,reduced,eos_stop,prophet@tuned,sched@tuned,stable_and_confident@tuned,cvc,bwec,latch,"
    "oracle"
)
ALL = (
    "full,reduced,eos_stop,prophet,prophet@tuned,sched,sched@tuned,stable_and_confident,"
    "stable_and_confident@tuned,cvc,bwec,latch,oracle"
)
_RECORDED = Want(gap=True, entropy=True)

# Replayed on a recorded full run; run itself; nothing, with the reason beside it.
How = Literal["replayed", "live"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A row of the table."""

    label: str  # as typed
    # None: reduced steps, of which there are as many as it takes to reach the NFE of latch.
    gate: Gate[Any] | None

    @property
    def is_main(self) -> bool:
        """Whether it runs on all items: what is to be shown, or costs little beside it."""
        name = self.label.partition(":")[0]
        return name in (LATCH, *_WITH_THE_TEXT)


def parse_methods(text: str) -> tuple[Method, ...]:
    """Gates separated by commas; "all" and "" name lists. `full` and `latch` are always there."""
    text = {"": DEFAULT, "all": ALL}.get(text.strip(), text)
    labels = [label.strip() for label in text.split(",") if label.strip()]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise BadOption(f"the gate {twice[0]} is given twice; give it once")
    if FULL not in labels:
        labels.insert(0, FULL)
    if LATCH not in labels:
        labels.append(LATCH)
    return tuple(
        Method(label=label, gate=None if label == REDUCED else find_gate(label)) for label in labels
    )


def how_to_run(gate: Gate[Any], plan: Plan, tokenizer: PreTrainedTokenizerBase) -> How:
    """Replayed if the gate does nothing but stop, and reads what recordings hold."""
    is_same = gate.changes_path is None and gate.plan(plan, tokenizer) == plan
    return "replayed" if is_same and gate.want | _RECORDED == _RECORDED else "live"


def why_not(
    method: Method, sampler: Sampler[Any], plan: Plan, tokenizer: PreTrainedTokenizerBase
) -> str | None:
    """Why a method cannot run with a sampler and a plan; None if it can."""
    gate = method.gate
    if not sampler.plans and (gate is None or isinstance(gate, Reduced)):
        return f"{sampler.name} decides itself how many steps it takes: there are none to reduce"
    if gate is None:
        return None
    try:
        gate.plan(plan, tokenizer)
    except BadOption as error:
        return str(error)
    return None


def reduced_to(steps: int, plan: Plan) -> Gate[Any]:
    """Reduced steps: so many, but one a block at least and no more than are planned."""
    least = max(steps, len(plan.blocks))
    return Reduced(Reduced.Config(steps=min(least, plan.total)))
