"""What takes part in a benchmark, loaded: decodes a request and says what its runs depend on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from torch import Tensor, nn

from varifocal.decode import Clock, synchronised
from varifocal.drafters import load_drafter
from varifocal.engine import Engine, measure
from varifocal.errors import BadOption
from varifocal.evaluation.entries import Entry
from varifocal.evaluation.figures import Timed
from varifocal.evaluation.identity import Facts, drafter_facts, drafters_in, weights_digest
from varifocal.evaluation.memory import state_bytes, weights_of
from varifocal.evaluation.peers import Peer
from varifocal.fast import fast_drafter, fast_target, is_packed
from varifocal.plan import CostModel
from varifocal.request import Request
from varifocal.targets._hf import HFTarget


@dataclass(frozen=True)
class Contestant:
    """An entry, loaded."""

    entry: Entry
    target: HFTarget
    runner: Engine | Peer
    clock: Clock

    def run(self, request: Request) -> Timed:
        """Decode a request, from its pictures to its last token."""
        now = synchronised(self.clock, self.target.device)
        begin = now()
        if isinstance(self.runner, Peer):
            result = self.runner.run(request, self.clock)
            return Timed(result=result, total=now() - begin)
        generation = self.runner.stream(request, clock=self.clock)
        for _ in generation:
            pass
        result = generation.result()
        total = now() - begin
        held = state_bytes(generation.drafter_state, self._weights())
        return Timed(result=result, total=total, state_bytes=held)

    def _weights(self) -> Iterator[Tensor]:
        """What all requests share: of the target and of everything that drafts."""
        yield from weights_of(self.target.model)
        if not isinstance(self.runner, Peer):
            for drafter in drafters_in(self.runner.drafter):
                values = vars(drafter).values()
                yield from (value for value in values if isinstance(value, Tensor))
                yield from weights_of(*(v for v in values if isinstance(v, nn.Module)))

    @property
    def weights_bytes(self) -> int:
        """Memory of the drafter's own weights, or of the assistant's."""
        runner = self.runner
        return (runner if isinstance(runner, Peer) else runner.drafter).memory_bytes

    def facts(self) -> Facts:
        """What its runs depend on besides the target."""
        made: Facts = {"entry": self.entry.text, "is_fast": self.entry.is_fast}
        if not isinstance(self.runner, Peer):
            return made | drafter_facts(self.runner.drafter)
        assistant = self.runner.assistant
        weights = None if assistant is None else weights_digest(assistant)
        return made | {"settings": dict(self.entry.options), "weights": weights}

    def measured(self, known: Mapping[str, Facts | None] | None) -> "Contestant":
        """With the cost model that it plans with: a `known` one, or measured now."""
        if isinstance(self.runner, Peer):
            return self
        if known is None:
            cost = measure(self.target, self.runner.drafter)
        else:
            cost = _cost_model(known.get(self.entry.text))
        return replace(self, runner=replace(self.runner, cost=cost))

    @property
    def cost(self) -> Facts | None:
        """The cost model as plain data."""
        cost = None if isinstance(self.runner, Peer) else self.runner.cost
        return None if cost is None else asdict(cost)


def load_contestants(
    entries: Sequence[Entry], target: HFTarget, clock: Clock, assistant: str = ""
) -> list[Contestant]:
    """Everything loaded; the packed target is made once, if an entry asks for it."""
    packed = fast_target(target) if any(e.is_fast for e in entries) else target
    if any(e.is_fast for e in entries) and not is_packed(packed.model):
        raise BadOption(
            "fast=true has no effect: none of the target's layers can be packed here, or would "
            "gain from it (the log says why); leave it out"
        )
    made = []
    for entry in entries:
        model = packed if entry.is_fast else target
        runner: Engine | Peer
        if entry.is_outside:
            runner = Peer(model, entry.name, entry.options, assistant)
        else:
            drafter = load_drafter(entry.name, model, **entry.options)
            if entry.is_fast:
                fast_drafter(drafter)
            runner = Engine(model, drafter)
        made.append(Contestant(entry, model, runner, clock))
    return made


def _cost_model(data: Facts | None) -> CostModel | None:
    if data is None:
        return None
    members = tuple(_cost_model(member) for member in data["members"])
    return CostModel(**data | {"verify": tuple(data["verify"]), "members": members})
