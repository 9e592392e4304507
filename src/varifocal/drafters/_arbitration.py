"""Weights of several guessers, chosen block by block from how each did on the text. [TABED, Sec. 5]

It knows nothing of views or drafters: members give laws (`learn`) or single tokens
(`learn_guesses`, `learn_trees`) for positions whose token is decided, and `choose` says what each
weighs now. All of it belongs to one request.
"""

import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from varifocal.drafters._branches import Branches
from varifocal.errors import BadOption
from varifocal.tree import DraftTree
from varifocal.verify import Verification

Policy = Literal["mt", "mtcp", "adaboost", "static", "random"]
Labels = Literal["hard", "kl", "tvd"]
Floats = NDArray[np.float64]

MISSED = -1  # as a guess: asked, and said nothing; counts as wrong
ABSENT = -2  # as a guess: not asked; does not count

_MOST = 286  # points of the grid: four members at steps of a tenth
_FLOOR = 1e-10  # a probability below it counts as this in a logarithm
_LEAST = 1e-6  # a sum of errors below it counts as this where it divides
_ELEMENTS = 2**24  # of a mixture's laws that are made at once


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How weights are chosen."""

    # mt: the best of a grid; mtcp: softmax of inverse errors; adaboost: votes of a boosted
    # committee; static: `fixed`; random: drawn anew for each block.
    policy: Policy = "mt"
    # What an error is. hard: the text's token is not the likeliest (mt breaks ties by the least
    # KL); kl: KL(p || q); tvd: the total variation distance of p and q.
    labels: Labels = "tvd"
    window: int = 0  # newest decided positions that count; 0: all
    steps: int = 10  # of the grid along one weight
    temperature: float = 1.0  # of mtcp's softmax
    fixed: tuple[float, ...] = ()  # static weights, in any unit; (): equal
    seed: int = 0  # of random weights

    def __post_init__(self) -> None:
        for name, kind in (("policy", Policy), ("labels", Labels)):
            if getattr(self, name) not in get_args(kind):
                known = ", ".join(get_args(kind))
                raise BadOption(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        if self.window < 0 or self.steps < 1:
            raise BadOption(
                f"window must be 0 (all) or a count and steps a count from 1, got {self.window} "
                f"and {self.steps}"
            )
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise BadOption(f"temperature must be a positive number, got {self.temperature}")
        if any(not math.isfinite(w) or w < 0 for w in self.fixed):
            raise BadOption(f"weights must be finite and not negative, got {list(self.fixed)}")
        if self.fixed and sum(self.fixed) == 0:
            raise BadOption("weights must not all be 0")
        self._check_effect("weights", bool(self.fixed), "static")
        self._check_effect("steps", self.steps != 10, "mt")
        self._check_effect("temperature", self.temperature != 1, "mtcp")
        self._check_effect("labels", self.labels != "tvd", "mt", "mtcp")
        self._check_effect("window", self.window != 0, "mt", "mtcp", "adaboost")

    def _check_effect(self, name: str, is_given: bool, *policies: Policy) -> None:
        if is_given and self.policy not in policies:
            raise BadOption(
                f"{name} has no effect with policy={self.policy!r}; it belongs to "
                f"{' and '.join(map(repr, policies))}"
            )


class Arbitration:
    """What the members of one request weigh, and why."""

    def __init__(self, rule: Rule, members: Sequence[str], request: str = "") -> None:
        """`request` tells requests apart where weights are random: the same one, the same weights.

        Raises BadOption where the rule's fixed weights are not one for each member.
        """
        if rule.fixed and len(rule.fixed) != len(members):
            raise BadOption(
                f"there are {len(rule.fixed)} weights for {len(members)} members "
                f"({', '.join(members)}); give one for each"
            )
        self.rule, self.members = rule, tuple(members)
        self.blocks: list[dict[str, float]] = []  # what was chosen for each block so far
        self._request = request
        is_grid = rule.policy == "mt"
        count = len(members)
        self._candidates = grid(count, rule.steps) if is_grid else np.eye(count)
        keeps = rule.policy == "adaboost"
        self._hits, self._errors = _Tally(rule.window, keeps), _Tally(rule.window, keeps)

    @property
    def num_candidates(self) -> int:
        """Weightings that are compared: points of the grid, or the members alone."""
        return len(self._candidates)

    @property
    def is_learning(self) -> bool:
        """Whether anything that is learnt can change a weight."""
        return len(self.members) > 1 and self.rule.policy in ("mt", "mtcp", "adaboost")

    # -- learning ------------------------------------------------------------------------------

    def learn(
        self,
        laws: Float[Tensor, "P m V"],
        target: Float[Tensor, "P V"],
        tokens: Int64[Tensor, " P"],
    ) -> None:
        """Take note of P decided positions: what members held likely, the target, and the text.

        Laws and `target` are probabilities; nothing of them is kept but figures of each candidate.
        """
        if not self.is_learning or not len(tokens):
            return
        candidates = torch.tensor(self._candidates, dtype=laws.dtype, device=laws.device)
        laws = laws.clamp(min=_FLOOR)  # and so every mixture of them
        made = []
        for part in _parts(laws, len(candidates)):
            mixed = candidates[part] @ laws
            said = mixed.gather(2, tokens[:, None, None].expand(-1, mixed.shape[1], 1))
            right = (said[..., 0] >= mixed.amax(-1)).to(mixed.dtype)
            made.append(torch.stack([right, self._error(mixed, target, right)]))
        hits, errors = torch.cat(made, 2).double().cpu().numpy()
        self._hits.extend(hits)
        self._errors.extend(errors)

    def learn_guesses(self, guesses: Sequence[Sequence[int]], tokens: Sequence[int]) -> None:
        """The same where a member only names a token for each position, or MISSED, or ABSENT.

        A weighting is right where its heaviest token is; ties for it are misses. Every label is
        hard here.
        """
        if not self.is_learning or not tokens:
            return
        if self.rule.policy == "mt":
            pairs = zip(guesses, tokens, strict=True)
            right = np.stack([self._outvotes(row, token) for row, token in pairs])
        else:  # candidates are the members alone
            named = np.array(guesses)
            right = np.where(named == ABSENT, np.nan, named == np.array(tokens)[:, None])
        self._hits.extend(right)
        self._errors.extend(1 - right)

    def learn_trees(
        self,
        guesses: Sequence[DraftTree | None],
        verdict: Verification,
        *,
        ends_are_misses: bool = True,
    ) -> None:
        """The same of whole drafts for one round: a tree of each member, None if not asked.

        Where a tree ends before the text does, it missed the token after its last, or was not asked
        for it.
        """
        named = [[] if guess is None else tokens_guessed(guess, verdict) for guess in guesses]
        if not ends_are_misses:
            named = [[token for token in own if token != MISSED] for own in named]
        reach = max(map(len, named))
        rows = [[own[k] if k < len(own) else ABSENT for own in named] for k in range(reach)]
        self.learn_guesses(rows, verdict.tokens[:reach])

    def _outvotes(self, row: Sequence[int], token: int) -> Floats:
        """For each weighting [C], 1 where what the members name for a position gives the token."""
        named = sorted({guess for guess in row if guess >= 0})
        if token not in named:
            return np.zeros(len(self._candidates))
        votes = np.stack([self._candidates @ np.array([g == name for g in row]) for name in named])
        mine = votes[named.index(token)]
        others = np.delete(votes, named.index(token), axis=0)
        right: Floats = (mine > others.max(0, initial=0.0)).astype(float)
        return right

    def without(self, member: str) -> "Arbitration":
        """The same for the other members, with all that was learnt of them."""
        at = self.members.index(member)
        others = tuple(m for m in self.members if m != member)
        fixed = tuple(w for n, w in enumerate(self.rule.fixed) if n != at)
        rule = replace(self.rule, fixed=fixed if sum(fixed) else ())
        twin = Arbitration(rule, others, self._request)
        twin.blocks = self.blocks
        # Candidates that give the member nothing are those of the others.
        free = self._candidates[:, at] == 0
        twin._candidates = np.delete(self._candidates[free], at, axis=1)
        twin._hits, twin._errors = self._hits.columns(free), self._errors.columns(free)
        return twin

    def _error(
        self,
        mixed: Float[Tensor, "P C V"],
        target: Float[Tensor, "P V"],
        right: Float[Tensor, "P C"],
    ) -> Float[Tensor, "P C"]:
        """By the labels; of a grid with hard ones, what breaks ties. Overwrites `mixed`."""
        labels, policy = self.rule.labels, self.rule.policy
        if labels == "hard" and policy != "mt":
            return 1 - right
        if labels == "tvd":
            return mixed.sub_(target[:, None]).abs_().sum(-1) / 2
        entropy = torch.special.entr(target).sum(-1)
        crossed = mixed.log_().mul_(target[:, None]).sum(-1)  # as a product of matrices it is slow
        divergence: Tensor = -crossed - entropy[:, None]
        return divergence

    # -- choosing ------------------------------------------------------------------------------

    def choose(self) -> tuple[float, ...]:
        """Weights of the members for the next block, which sum to 1; noted in `blocks`.

        All are equal before anything is learnt, but for static and random ones.
        """
        weights = self._chosen()
        total = weights.sum()
        weights = weights / total if total > 0 else np.full(len(weights), 1 / len(weights))
        self.blocks.append(dict(zip(self.members, weights.tolist(), strict=True)))
        return tuple(weights.tolist())

    def _chosen(self) -> Floats:
        policy, equal = self.rule.policy, np.ones(len(self.members))
        if policy == "static":
            return np.array(self.rule.fixed) if self.rule.fixed else equal
        if policy == "random":
            dice = random.Random(f"{self.rule.seed} {self._request} {len(self.blocks)}")
            return np.array([dice.expovariate(1.0) for _ in self.members])  # even on the simplex
        if not self._hits:
            return equal
        if policy == "mt":
            return self._best_point()
        if policy == "mtcp":
            return inverse_errors(self._errors.totals(), self.rule.temperature)
        return boosted(self._hits.rows())

    def _best_point(self) -> Floats:
        errors = self._errors.totals()
        if self.rule.labels == "hard":
            hits = self._hits.totals()
            errors = np.where(hits == hits.max(), errors, np.inf)
        best: Floats = self._candidates[int(errors.argmin())]  # of equals, the most even
        return best


def inverse_errors(errors: Floats, temperature: float) -> Floats:
    """Softmax of 1 / error, in any unit; NaN, of one that was never asked, is as the others' mean.

    [TABED, App. B.2]
    """
    known = np.where(np.isnan(errors), np.nanmean(errors), errors)
    inverse = 1 / np.maximum(known, _LEAST) / temperature
    weights: Floats = np.exp(inverse - inverse.max())
    return weights


def boosted(hits: Floats) -> Floats:
    """Votes of the members, in any unit, by discrete AdaBoost over the positions. [Freund97]

    `hits` [P, m] are 1 where a member was right, NaN where it was not asked (half right). Each
    member joins once, the one with the least weighted error first; one that is wrong more often
    than not has no vote, and if none has, the caller makes them equal.
    """
    wrong = 1 - np.nan_to_num(hits, nan=0.5)
    importance = np.full(len(hits), 1 / len(hits))
    votes, left = np.zeros(hits.shape[1]), list(range(hits.shape[1]))
    slack = 1 / (2 * len(hits))  # keeps the vote of one without an error finite
    while left:
        error = importance @ wrong[:, left]
        member = left.pop(int(error.argmin()))
        rate = float(np.clip(importance @ wrong[:, member], slack, 1 - slack))
        vote = 0.5 * math.log((1 - rate) / rate)
        if vote <= 0:
            break
        votes[member] = vote
        importance = importance * np.exp(vote * (2 * wrong[:, member] - 1))
        importance /= importance.sum()
    return votes


def grid(members: int, steps: int) -> Floats:
    """Points of the simplex [C, members] at even steps, no more than 286, the most even first.

    C = (steps + members - 1 choose members - 1): 11 for two members at steps of a tenth, 66 for
    three, 286 for four. Where there would be more, the steps are made wider.
    """
    while steps > 1 and math.comb(steps + members - 1, members - 1) > _MOST:
        steps -= 1
    points = np.array(list(_points(members, steps))) / steps
    order = np.argsort(np.square(points - 1 / members).sum(1).round(9), kind="stable")
    made: Floats = points[order]
    return made


def _points(members: int, steps: int) -> Iterator[list[int]]:
    """Whole numbers that sum to `steps`: the gaps between bars among as many places."""
    places = steps + members - 1
    for bars in combinations(range(places), members - 1):
        edges = (-1, *bars, places)
        yield [right - left - 1 for left, right in pairwise(edges)]


def tokens_guessed(guess: DraftTree, verdict: Verification) -> list[int]:
    """What a tree names for each position of the verdict that it reaches.

    Of several children the likeliest counts, or the first where the tree has no scores. Behind its
    first miss a guess is for another text and says nothing; one that ends has MISSED there.
    """
    branches = Branches.of(guess)
    scores = branches.scores
    named: list[int] = []
    node = 0
    for token in verdict.tokens:
        children = branches.below[node]
        if not children:
            return [*named, MISSED]
        # A drafter lists siblings in its own order, so the first of equals stays.
        likeliest = max(children, key=lambda t: scores[children[t]] if scores else 0.0)
        named.append(likeliest)
        if token not in children:
            break
        node = children[token]
    return named


def _parts(laws: Tensor, candidates: int) -> Iterator[slice]:
    """Candidates whose mixtures of these laws fit into memory together."""
    size = max(_ELEMENTS // (laws.shape[0] * laws.shape[2]), 1)
    for begin in range(0, candidates, size):
        yield slice(begin, begin + size)


class _Tally:
    """Sums over positions of one figure of each candidate: over the newest ones, or over all."""

    def __init__(self, window: int, keeps: bool) -> None:
        """With a window the newest rows are kept, else sums; and all rows where it `keeps`."""
        self._window, self._keeps = window, keeps
        self._rows: deque[Floats] = deque(maxlen=window or None)
        self._sums: Floats = np.zeros(0)
        self._asked: Floats = np.zeros(0)  # positions of each candidate
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def extend(self, rows: Floats) -> None:
        """One row [C] for each position; NaN where a candidate was not asked."""
        if self._window or self._keeps:
            self._rows.extend(rows)
        if not self._window:
            asked = ~np.isnan(rows)
            self._sums = np.where(asked, rows, 0.0).sum(0) + (self._sums if self else 0.0)
            self._asked = asked.sum(0) + (self._asked if self else 0.0)
        self._count += len(rows)

    def rows(self) -> Floats:
        """Of each position."""
        return np.stack(self._rows)

    def totals(self) -> Floats:
        """Of each candidate [C]: positions at which it was not asked count as its mean.

        NaN for one that was never asked.
        """
        sums, asked, count = self._sums, self._asked, self._count
        if self._window:
            rows = self.rows()
            present = ~np.isnan(rows)
            sums, asked = np.where(present, rows, 0.0).sum(0), present.sum(0)
            count = len(rows)
        unknown = np.full(sums.shape, np.nan)
        totals: Floats = np.divide(sums * count, asked, out=unknown, where=asked > 0)
        return totals

    def columns(self, kept: NDArray[np.bool_]) -> "_Tally":
        """The same for some candidates."""
        twin = _Tally(self._window, self._keeps)
        twin._rows.extend(row[kept] for row in self._rows)
        twin._count = self._count
        if self and not self._window:
            twin._sums, twin._asked = self._sums[kept], self._asked[kept]
        return twin
