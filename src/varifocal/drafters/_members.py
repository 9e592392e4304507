"""Drafters that are members of another: loaded by one text, and how each does in a request."""

import re
from dataclasses import dataclass, replace
from typing import Any

from varifocal.drafter import Drafter
from varifocal.drafters import load_drafter
from varifocal.drafters._branches import Branches
from varifocal.errors import BadOption
from varifocal.plan import Budget, CostModel
from varifocal.target import Target
from varifocal.tree import DraftTree
from varifocal.verify import Verification

_KEEP = 0.85  # of an arm's running figures after each of its rounds
_RETURN = 0.02  # how fast an arm that was left is given the benefit of the doubt again
_ADAPT = 0.3  # weight of the newest round in what a free guess, or a draft beside another, brings
_ANSWER = 64  # tokens of an answer
_BESIDE = 8  # nodes beside the longest path, in a round that was not seen yet
_PAUSE = 12  # rounds without an arm whose draft added too little; twice as many after each vain try

_OPTION = re.compile(r"@(?=[A-Za-z_]\w*=)")


@dataclass
class Arm:
    """A member that drafts at a price: its state, once it was needed, and how it did."""

    number: int  # among the members
    drafter: Drafter[Any]
    tokens: float  # running mean of its rounds
    seconds: float = 0.0  # the same by the cost model; 0: not known yet
    state: Any = None
    added: float = 0.0  # where drafts are mixed: running mean of the tokens that only it brought
    fee: float = 0.0  # what it had to add in the round under way
    is_trusted: bool = False  # it did so when it drafted last
    rest: int = 0  # rounds until it is tried beside others again
    pause: int = _PAUSE

    @classmethod
    def of(cls, number: int, drafter: Drafter[Any]) -> "Arm":
        """One that was not asked yet."""
        return cls(number, drafter, tokens=promise(drafter), added=_addition(drafter))

    @property
    def may_pay_beside(self) -> bool:
        """Whether its draft is to be had beside another one, for the fee that is set."""
        hope = self.added if self.is_trusted else _addition(self.drafter)
        return not self.rest and hope >= self.fee

    def reaches(self, length: int) -> bool:
        """Whether its context holds a draft behind so many tokens."""
        limit = self.drafter.context_length
        return limit is None or length + self.drafter.config.depth < limit

    def drafting(self, cost: CostModel, levels: int | None = None) -> float:
        """Seconds of a draft by the cost model; of its deepest one where no depth is given."""
        own = cost.members[self.number]
        levels = self.drafter.config.depth if levels is None else levels
        return own.start + max(levels - 1, 0) * own.step

    def rate(self, cost: CostModel) -> float:
        """Tokens a second that it promises."""
        if not self.seconds:
            size = min(self.drafter.config.depth + _BESIDE, len(cost.verify) - 1)
            self.seconds = self.drafting(cost) + cost.verify[size] + cost.other
        # On the mean the answer ends in the middle of a draft, and the rest of it was for nothing:
        # the longer the drafts, the more.
        return self.tokens / self.seconds / (1 + self.tokens / (2 * _ANSWER))

    def note(self, tokens: int, seconds: float) -> None:
        """Of a round that it drafted in: what it brought, and what that takes."""
        self.tokens += (1 - _KEEP) * (tokens - self.tokens)
        self.seconds += (1 - _KEEP) * (seconds - self.seconds)

    def recover(self) -> None:
        """After a round without it."""
        self.tokens += _RETURN * (promise(self.drafter) - self.tokens)
        self.rest = max(self.rest - 1, 0)

    def note_added(self, tokens: int) -> None:
        """Of a round in which it drafted beside others; it rests if that did not pay."""
        self.added += _ADAPT * (tokens - self.added)
        self.is_trusted = self.added >= self.fee
        if self.is_trusted:
            self.pause = max(self.pause // 2, _PAUSE)
        else:
            self.rest, self.pause, self.added = self.pause, 2 * self.pause, self.fee


@dataclass
class Free:
    """A member that guesses for nothing, and its running acceptance."""

    number: int
    drafter: Drafter[Any]
    state: Any
    confidence: float = 0.5
    guess: DraftTree | None = None

    def propose(self, root: int, budget: Budget) -> DraftTree | None:
        """Its guess, with scores; None where it has none."""
        depth = min(budget.depth, self.drafter.config.depth)
        own = replace(budget, cost=None, depth=depth, confidence=self.confidence)
        guess = self.drafter.propose(self.state, root, own)
        self.guess = scored(guess, self.confidence) if len(guess) > 1 else None
        return self.guess

    def judge(self, verdict: Verification) -> None:
        """Compare the guess with what became text, whether it was used or not."""
        guess, self.guess = self.guess, None
        if guess is None:
            return
        branches = Branches.of(guess)
        path = branches.walk(verdict.tokens)
        hits = len(path)
        is_cut = hits == len(verdict.tokens) or not branches.below[path[-1] if path else 0]
        tried = hits if is_cut else hits + 1
        if tried:
            self.confidence += _ADAPT * (hits / tried - self.confidence)


def promise(drafter: Drafter[Any]) -> float:
    """Tokens a round: what its recipe says, else what a fair drafter brings."""
    scores = (drafter.recipe or {}).get("scores", {})
    return float(scores.get("tau", 1 + min(drafter.config.depth, 6) / 2))


def _addition(drafter: Drafter[Any]) -> float:
    """Tokens a round beside another draft, before any was seen: half of them are that one's too."""
    return (promise(drafter) - 1) / 2


def scored(tree: DraftTree, confidence: float) -> DraftTree:
    """With the probability that each node is reached, if the drafter gave none."""
    if tree.scores is not None:
        return tree
    return replace(tree, scores=confidence ** tree.depth.float())


# -- loading -----------------------------------------------------------------------------------


def load_members(text: str, target: Target, limits: dict[str, Any]) -> tuple[Drafter[Any], ...]:
    """Drafters of "fovea+ensemble@views=MT@depth=3+lookup": names or folders with their options.

    "+" joins members and "@" begins an option: neither a shell, YAML, nor the list of a benchmark,
    whose own options follow ":" or ",", gives them a meaning. `limits` are options that all get
    unless they are given.
    """
    pieces = [piece.strip() for piece in text.split("+") if piece.strip()]
    if repeated := sorted({p for p in pieces if pieces.count(p) > 1}):
        raise BadOption(f"members names {repeated[0]} twice; once is enough")
    return tuple(_loaded(piece, target, limits) for piece in pieces)


def _loaded(piece: str, target: Target, limits: dict[str, Any]) -> Drafter[Any]:
    # Imported here: the engine, which reads typed options, builds on the drafters.
    from varifocal.engine import parse_options

    name, *pairs = _OPTION.split(piece)
    if name in ("auto", "plain"):
        raise BadOption(
            f"{name} cannot be a member of auto, which decodes plainly by itself where that "
            "is faster; name others, such as members=fovea+lookup"
        )
    given = [pair.partition("=")[::2] for pair in pairs]
    options = dict(given)
    if len(options) < len(given) or not name:
        raise BadOption(f"{piece!r} is not name@option=value, with each option once")
    return load_drafter(name, target, **{**limits, **parse_options(name, options)})
