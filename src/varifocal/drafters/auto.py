"""Chooses each round among other drafters by what they cost here and what was accepted of them.

A member that runs a model is an *arm*: it drafts a tree, at a price. Members that only copy text
(lookup, lookahead) are *free*: they guess in every round, what they guess is compared with the text
whether it was used or not, and their branches are grafted into the arm's tree under one budget of
nodes, or go alone where that is faster. With `mix`, other arms draft beside the best one while that
pays, and all trees become one by weights [TABED]. Where nothing pays, the planner decodes plainly
for a while.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

from varifocal.drafter import Drafter
from varifocal.drafters._arbitration import Policy
from varifocal.drafters._graft import grafted, trimmed
from varifocal.drafters._members import Arm, Free, load_members, scored
from varifocal.drafters._mixing import Mixing
from varifocal.drafters._weights import shipped_names
from varifocal.errors import BadOption
from varifocal.plan import Budget, CostModel
from varifocal.target import Forward, Prompt, Target, Want
from varifocal.tree import DraftTree
from varifocal.verify import Verification

_STAY = 1.05  # another way must promise so much more than the one in use
_LITTLE = 0.05  # tokens a round that a draft beside another must add even if it costs nothing


@dataclass
class AutoState:
    """What belongs to one request."""

    prompt: Prompt
    prefill: Forward
    root: int  # the first token of the answer
    length: int  # decided tokens, the prompt's included
    arms: list[Arm]
    free: list[Free]
    mixing: Mixing | None
    history: list[tuple[Verification, Forward]] = field(
        default_factory=list
    )  # for those who catch up
    used: Arm | None = None  # who drafted in the round under way, or the best of those who did
    # What that round would take by the cost model with one arm's draft alone, by its number.
    planned: dict[int, float] = field(default_factory=dict)

    @property
    def weights(self) -> list[dict[str, float]]:
        """What each member weighed, round by round, where drafts are mixed. [TABED, Fig. 3]"""
        return [] if self.mixing is None else self.mixing.arbitration.blocks


class AutoDrafter(Drafter[AutoState]):
    """The fastest of its members, round by round, with what costs nothing grafted in."""

    name: ClassVar[str] = "auto"
    pictures: ClassVar[str] = "as the member that drafts in a round"
    needs: ClassVar[str] = "nothing; takes the drafters that are shipped for the target"

    @dataclass(frozen=True, kw_only=True)
    class Config(Drafter.Config):
        """Whom it chooses among."""

        depth: int = 32  # members keep their own where it is less
        # Names or folders joined by "+", each with options of its own: fovea+lookup@ngram=2.
        members: str = ""  # "": all shipped ones, and lookup
        graft: bool = True  # branches of free members into the trees of the others
        # How weights are chosen by which the drafts of several members become one (see
        # _arbitration.Rule); none: one member drafts.
        mix: Policy | Literal["none"] = "none"

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.mix != "none" and self.mix not in get_args(Policy):
                known = ", ".join(("none", *get_args(Policy)))
                raise BadOption(f"mix must be one of {known}, got {self.mix!r}")
            if self.mix != "none" and not self.graft:
                raise BadOption("graft=false has no effect with mix, which takes every guess")

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

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> AutoState:
        """Free members read the prompt; an arm does when it is first chosen."""
        arms, free = [], []
        for number, member in enumerate(self.members):
            if member.is_free:
                seen = prefill.narrowed(self.want, member.want)
                free.append(Free(number, member, member.start(prompt, seen, root)))
            else:
                arms.append(Arm.of(number, member))
        mixing = None
        if self.config.mix != "none":
            mixing = Mixing.of(self.config.mix, [m.name for m in self.members], prompt)
        return AutoState(prompt, prefill, root, len(prompt.tokens), arms, free, mixing)

    def propose(self, state: AutoState, root: int, budget: Budget) -> DraftTree:
        """The draft of the arm that promises the highest rate, or the free guess alone."""
        guess = self._guess(state, root, budget)
        arm = state.used = self._choose(state, guess, budget)
        bare = DraftTree.chain([root], self.target.device)
        if state.mixing is not None:
            tree, spent = self._mixed(state, state.mixing, bare, budget)
        elif arm is None:
            tree, spent = bare if guess is None else trimmed(guess, budget), 0.0
        else:
            tree, spent = self._drafted(state, arm, root, budget)
            if guess is not None and self.config.graft and tree.scores is not None:
                tree = grafted(tree, guess, budget, spent)
            self._plan(state, arm, tree, spent, budget)
        return tree if budget.cost is None else replace(tree, seconds=spent)

    def observe(self, state: AutoState, verdict: Verification, seen: Forward) -> None:
        """Tell every member, and take note of how its guess did."""
        state.length += len(verdict.tokens)
        for free in state.free:
            free.judge(verdict)
            free.drafter.observe(free.state, verdict, seen.narrowed(self.want, free.drafter.want))
        if any(arm.state is None for arm in state.arms):
            # Without the logits: on a large vocabulary they are most of it.
            state.history.append(
                (verdict, replace(seen, logits=seen.logits.new_empty(len(seen.logits), 0)))
            )
        for arm in state.arms:
            if arm.state is not None:
                own = seen.narrowed(self.want, arm.drafter.want)
                arm.drafter.observe(arm.state, verdict, own)
        for arm in state.arms:
            if arm.number not in state.planned:
                arm.recover()
                continue
            mixing = state.mixing
            brought = mixing.brought(arm.number, verdict) if mixing else len(verdict.tokens)
            arm.note(brought, state.planned[arm.number])
        if state.mixing is not None:
            self._learn(state, state.mixing, verdict)
        state.planned = {}  # rounds that are decoded plainly come without a proposal

    # -- choosing ------------------------------------------------------------------------------

    def _guess(self, state: AutoState, root: int, budget: Budget) -> DraftTree | None:
        """What free members guess, as one tree with scores; None where none of them does."""
        whole: DraftTree | None = None
        for free in state.free:
            guess = free.propose(root, budget)
            if guess is not None:
                plain = replace(budget, cost=None)
                whole = guess if whole is None else grafted(whole, guess, plain, 0.0)
        return whole

    def _choose(self, state: AutoState, guess: DraftTree | None, budget: Budget) -> Arm | None:
        """The arm that promises the most tokens a second; None: draft at no price."""
        able = [arm for arm in state.arms if arm.reaches(state.length)]
        if not able:
            return None
        cost = budget.cost
        if cost is None:
            return able[0]
        rates = {arm.number: arm.rate(cost) for arm in able}
        if state.used is not None and state.used.number in rates:
            rates[state.used.number] *= _STAY
        best = max(able, key=lambda arm: rates[arm.number])
        alone = 1 / cost.plain
        if guess is not None and guess.scores is not None:
            alone = float(cost.rates(guess.scores[1:].double().cpu().numpy(), 0.0).max())
        return None if alone > _STAY * rates[best.number] else best

    def _beside(
        self, state: AutoState, mixing: Mixing, best: Arm, cost: CostModel | None
    ) -> list[Arm]:
        """Other arms whose drafts add more than the time for them would bring otherwise.

        Those that are to show it are tried one at a time, behind a round that paid.
        """
        trusted: list[Arm] = []
        tried: list[Arm] = []
        for arm in state.arms:
            if arm is best or not arm.reaches(state.length):
                continue
            fee = 0.0 if cost is None else arm.drafting(cost) * best.tokens / best.seconds
            arm.fee = max(fee, _LITTLE)
            if arm.may_pay_beside:
                (trusted if arm.is_trusted else tried).append(arm)
        return [*trusted, *tried[: mixing.has_paid]]

    # -- drafting ------------------------------------------------------------------------------

    def _mixed(
        self, state: AutoState, mixing: Mixing, bare: DraftTree, budget: Budget
    ) -> tuple[DraftTree, float]:
        """One tree of all guesses, and the seconds of drafting them."""
        guesses = {free.number: free.guess for free in state.free if free.guess is not None}
        drafting, whole = [], 0.0
        if state.used is not None:
            drafting = [state.used, *self._beside(state, mixing, state.used, budget.cost)]
        for arm in drafting:
            tree, spent = self._drafted(state, arm, int(bare.tokens[0]), budget)
            self._plan(state, arm, tree, spent, budget)
            guesses[arm.number] = scored(tree, budget.confidence)
            whole += spent
        if drafting and budget.cost is not None:
            mixing.due = state.planned[drafting[0].number] / budget.cost.plain
        return (mixing.mix(guesses, budget, whole) if guesses else bare), whole

    def _drafted(
        self, state: AutoState, arm: Arm, root: int, budget: Budget
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
        if budget.cost is None:
            return tree, 0.0
        if tree.seconds is not None:
            return tree, tree.seconds
        return tree, arm.drafting(budget.cost, int(tree.depth.max()))

    def _plan(
        self, state: AutoState, arm: Arm, tree: DraftTree, spent: float, budget: Budget
    ) -> None:
        """Note what a round with this tree takes by the cost model."""
        if budget.cost is not None:
            size = min(len(tree), len(budget.cost.verify)) - 1
            state.planned[arm.number] = spent + budget.cost.verify[size] + budget.cost.other

    def _learn(self, state: AutoState, mixing: Mixing, verdict: Verification) -> None:
        """Take note of what arms added to the best one's draft, and of who was right."""
        best = state.used
        for arm in state.arms:
            if arm is not best and arm.number in mixing.guesses:
                arm.note_added(mixing.added(arm.number, verdict))
        mixing.has_paid = (
            best is not None
            and best.number in mixing.guesses
            and mixing.brought(best.number, verdict) > mixing.due
        )
        mixing.learn(verdict)


def _loaded(target: Target, config: AutoDrafter.Config) -> tuple[Drafter[Any], ...]:
    """The members that the settings name, or all that are shipped: the machine decides; lookup."""
    limits: dict[str, Any] = {"nodes": config.nodes, "max_nodes": config.max_nodes}
    suited = "+".join([*shipped_names(target), "lookup"])
    return load_members(config.members.strip("+ ") or suited, target, limits)
