"""Chooses each round among other drafters by what they cost here and what was accepted of them.

A member with weights is an *arm*: it drafts a tree, at a price. Members without (lookup, lookahead)
are *free*: they guess in every round, what they guess is compared with the text whether it was used
or not, and their branches are grafted into the arm's tree under one budget of nodes, or go alone
where that is faster. Where nothing pays, the planner decodes plainly for a while.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from varifocal.drafter import Drafter
from varifocal.drafters import load_drafter
from varifocal.drafters._graft import grafted
from varifocal.drafters._weights import network_of, shipped_names
from varifocal.errors import BadOption
from varifocal.plan import Budget, CostModel
from varifocal.target import Forward, Prompt, Target, Want
from varifocal.tree import DraftTree
from varifocal.verify import Verification

_KEEP = 0.85  # of an arm's running figures after each of its rounds
_RETURN = 0.02  # how fast an arm that was left is given the benefit of the doubt again
_ADAPT = 0.3  # weight of the newest round in the running acceptance of a free member
_STAY = 1.05  # another way must promise so much more than the one in use
_ANSWER = 64  # tokens of an answer
_BESIDE = 8  # nodes beside the longest path, in a round that was not seen yet


@dataclass
class _Arm:
    """A member that drafts at a price: its state, once it was needed, and how it did."""

    number: int  # among the members
    drafter: Drafter[Any]
    tokens: float  # running mean of its rounds
    seconds: float = 0.0  # the same by the cost model; 0: not known yet
    state: Any = None


@dataclass
class _Free:
    """A member that guesses for nothing, and its running acceptance."""

    drafter: Drafter[Any]
    state: Any
    confidence: float = 0.5
    guess: DraftTree | None = None


@dataclass
class _Request:
    """What belongs to one request."""

    prompt: Prompt
    prefill: Forward
    root: int  # the first token of the answer
    length: int  # decided tokens, the prompt's included
    arms: list[_Arm]
    free: list[_Free]
    history: list[tuple[Verification, Forward]] = field(
        default_factory=list
    )  # for those who catch up
    used: _Arm | None = None  # who drafted in the round under way
    planned: float = 0.0  # what that round takes by the cost model


class AutoDrafter(Drafter[_Request]):
    """The fastest of its members, round by round, with what costs nothing grafted in."""

    name: ClassVar[str] = "auto"
    pictures: ClassVar[str] = "as the member that drafts in a round"
    needs: ClassVar[str] = "nothing; takes the drafters that are shipped for the target"

    @dataclass(frozen=True, kw_only=True)
    class Config(Drafter.Config):
        """Whom it chooses among."""

        depth: int = 32  # members keep their own where it is less
        members: str = ""  # names or folders joined by "+"; "": all shipped ones, and lookup
        graft: bool = True  # branches of free members into the trees of the others

    config: Config

    def __init__(
        self, target: Target, config: Config, members: tuple[Drafter[Any], ...] = ()
    ) -> None:
        super().__init__(target, config)
        self.members = members or _loaded(target, config)
        self.want = Want.union([m.want for m in self.members])

    @property
    def memory_bytes(self) -> int:
        """Weights of all members."""
        return sum(m.memory_bytes for m in self.members)

    # -- decoding ------------------------------------------------------------------------------

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> _Request:
        """Free members read the prompt; an arm does when it is first chosen."""
        arms, free = [], []
        for number, member in enumerate(self.members):
            if network_of(member) is None:
                seen = prefill.narrowed(self.want, member.want)
                free.append(_Free(member, member.start(prompt, seen, root)))
            else:
                arms.append(_Arm(number, member, _promise(member)))
        return _Request(prompt, prefill, root, len(prompt.tokens), arms, free)

    def propose(self, state: _Request, root: int, budget: Budget) -> DraftTree:
        """The draft of the arm that promises the highest rate, or the free guess alone."""
        guess = self._guess(state, root, budget)
        arm = state.used = self._choose(state, guess, budget)
        if arm is None:
            bare = DraftTree.chain([root], self.target.device)
            tree = bare if guess is None else _trimmed(guess, budget)
            spent = 0.0
        else:
            tree, spent = self._drafted(state, arm, root, budget)
            if guess is not None and self.config.graft and tree.scores is not None:
                tree = grafted(tree, guess, budget, spent)
        if budget.cost is None:
            return tree
        size = min(len(tree), len(budget.cost.verify)) - 1
        state.planned = spent + budget.cost.verify[size] + budget.cost.other
        return replace(tree, seconds=spent)

    def observe(self, state: _Request, verdict: Verification, seen: Forward) -> None:
        """Tell every member, and take note of how its guess did."""
        state.length += len(verdict.tokens)
        for free in state.free:
            _judge(free, verdict)
            free.drafter.observe(free.state, verdict, seen.narrowed(self.want, free.drafter.want))
        if any(arm.state is None for arm in state.arms):
            # Without the logits, which no arm reads: on a large vocabulary they are most of it.
            state.history.append(
                (verdict, replace(seen, logits=seen.logits.new_empty(len(seen.logits), 0)))
            )
        for arm in state.arms:
            if arm.state is not None:
                own = seen.narrowed(self.want, arm.drafter.want)
                arm.drafter.observe(arm.state, verdict, own)
            if arm is state.used and state.planned:
                arm.tokens += (1 - _KEEP) * (len(verdict.tokens) - arm.tokens)
                arm.seconds += (1 - _KEEP) * (state.planned - arm.seconds)
            else:
                arm.tokens += _RETURN * (_promise(arm.drafter) - arm.tokens)
        state.planned = 0.0  # rounds that are decoded plainly come without a proposal

    def _guess(self, state: _Request, root: int, budget: Budget) -> DraftTree | None:
        """What free members guess, as one tree with scores; None where none of them does."""
        whole: DraftTree | None = None
        for free in state.free:
            own = replace(
                budget,
                cost=None,
                depth=min(budget.depth, free.drafter.config.depth),
                confidence=free.confidence,
            )
            guess = free.drafter.propose(free.state, root, own)
            free.guess = guess if len(guess) > 1 else None
            if free.guess is not None:
                scored = _scored(free.guess, free.confidence)
                plain = replace(budget, cost=None)
                whole = scored if whole is None else grafted(whole, scored, plain, 0.0)
        return whole

    def _choose(self, state: _Request, guess: DraftTree | None, budget: Budget) -> _Arm | None:
        """The arm that promises the most tokens a second; None: draft at no price."""
        able = [arm for arm in state.arms if self._reaches(arm, state.length)]
        if not able:
            return None
        cost = budget.cost
        if cost is None:
            return able[0]
        rates = {arm.number: self._rate(arm, cost) for arm in able}
        if state.used is not None and state.used.number in rates:
            rates[state.used.number] *= _STAY
        best = max(able, key=lambda arm: rates[arm.number])
        alone = 1 / cost.plain
        if guess is not None and guess.scores is not None:
            alone = float(cost.rates(guess.scores[1:].double().cpu().numpy(), 0.0).max())
        return None if alone > _STAY * rates[best.number] else best

    def _rate(self, arm: _Arm, cost: CostModel) -> float:
        if not arm.seconds:
            own = cost.members[arm.number]
            steps = max(arm.drafter.config.depth - 1, 0)
            size = min(arm.drafter.config.depth + _BESIDE, len(cost.verify) - 1)
            arm.seconds = own.start + steps * own.step + cost.verify[size] + cost.other
        # On the mean the answer ends in the middle of a draft, and the rest of it was for nothing:
        # the longer the drafts, the more.
        return arm.tokens / arm.seconds / (1 + arm.tokens / (2 * _ANSWER))

    def _reaches(self, arm: _Arm, length: int) -> bool:
        limit = arm.drafter.context_length
        return limit is None or length + arm.drafter.config.depth < limit

    def _drafted(
        self, state: _Request, arm: _Arm, root: int, budget: Budget
    ) -> tuple[DraftTree, float]:
        """An arm's tree, and the seconds that it takes by the cost model."""
        if arm.state is None:  # it was not needed before: it catches up
            seen = state.prefill.narrowed(self.want, arm.drafter.want)
            arm.state = arm.drafter.start(state.prompt, seen, state.root)
            for verdict, seen in state.history:
                own = seen.narrowed(self.want, arm.drafter.want)
                arm.drafter.observe(arm.state, verdict, own)
        cost = None if budget.cost is None else budget.cost.members[arm.number]
        depth = min(budget.depth, arm.drafter.config.depth)
        tree = arm.drafter.propose(arm.state, root, replace(budget, cost=cost, depth=depth))
        if cost is None:
            return tree, 0.0
        if tree.seconds is not None:
            return tree, tree.seconds
        levels = int(tree.depth.max())
        return tree, cost.start + max(levels - 1, 0) * cost.step


def _loaded(target: Target, config: AutoDrafter.Config) -> tuple[Drafter[Any], ...]:
    """The members that the settings name, or those that suit the target."""
    names = [name.strip() for name in config.members.split("+") if name.strip()]
    if repeated := sorted({n for n in names if names.count(n) > 1}):
        raise BadOption(f"members names {repeated[0]} twice; once is enough")
    if strange := sorted({"auto", "plain"} & set(names)):
        raise BadOption(
            f"{strange[0]} cannot be a member of auto, which decodes plainly by itself where that "
            "is faster; name others, such as members=fovea+lookup"
        )
    limits: dict[str, Any] = {"nodes": config.nodes, "max_nodes": config.max_nodes}
    return tuple(load_drafter(name, target, **limits) for name in names or _suited(target))


def _suited(target: Target) -> list[str]:
    """All that are shipped for the target, since which is fastest this machine decides; lookup."""
    return [*shipped_names(target), "lookup"]


def _promise(drafter: Drafter[Any]) -> float:
    """Tokens a round: what its recipe says, else what a fair drafter brings."""
    scores = (drafter.recipe or {}).get("scores", {})
    return float(scores.get("tau", 1 + min(drafter.config.depth, 6) / 2))


def _scored(tree: DraftTree, confidence: float) -> DraftTree:
    """With the probability that each node is reached, if the drafter gave none."""
    if tree.scores is not None:
        return tree
    return replace(tree, scores=confidence ** tree.depth.float())


def _trimmed(tree: DraftTree, budget: Budget) -> DraftTree:
    """As many nodes as are allowed, or pay."""
    assert tree.scores is not None
    bare = DraftTree(tree.tokens[:1], tree.parents[:1], tree.scores[:1])
    return grafted(bare, tree, budget, 0.0)


def _judge(free: _Free, verdict: Verification) -> None:
    """Compare the guess with what became text, whether it was used or not."""
    guess, free.guess = free.guess, None
    if guess is None:
        return
    tokens, parents = guess.tokens.tolist(), guess.parents.tolist()
    child = {edge: node for node, edge in enumerate(zip(parents, tokens, strict=True))}
    node, hits = 0, 0
    for token in verdict.tokens:
        below = child.get((node, token))
        if below is None:
            break
        node, hits = below, hits + 1
    is_cut = hits == len(verdict.tokens) or node not in parents
    tried = hits if is_cut else hits + 1
    if tried:
        free.confidence += _ADAPT * (hits / tried - free.confidence)
