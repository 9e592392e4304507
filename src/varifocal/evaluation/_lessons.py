"""How often a drafter agrees with the target's own answer, drafting from true states.

A `Lesson` holds a prompt, the target's greedy answer and all states of both. A drafter is led along
the answer through its public contract, one true token a round, and drafts at each of them; the same
walk with changed states shows what it makes of them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from varifocal.drafter import Drafter
from varifocal.evaluation.ngram import NgramTable, Walk
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt, Want
from varifocal.targets._hf import HFTarget
from varifocal.tree import DraftTree
from varifocal.verify import Verification

POSITIONS = 64  # of each answer at which is drafted
OUTSIDE = "proposals outside the vocabulary"


@dataclass(frozen=True)
class States:
    """What a drafter may want to see of a prompt and its answer: R positions, a row for each."""

    logits: Tensor  # (n, V): of the prompt's last position and of the answer's
    final: Tensor  # (R, D)
    layers: dict[int, Tensor]  # states leaving these layers, (R, D) each
    embeddings: Tensor  # (R, D)

    def view(self, want: Want, first: int, last: int, logits: int) -> Forward:
        """Positions `first` to `last` as the target hands them over; `logits` counts from 0."""
        rows = slice(first, last)
        hidden = None
        if want.layers:
            hidden = torch.stack([self.layers[n][rows] for n in want.layers], 1)
        return Forward(
            self.logits[logits : logits + 1],
            hidden=hidden,
            final=self.final[rows] if want.final else None,
            embeddings=self.embeddings[rows] if want.embeddings else None,
        )


@dataclass(frozen=True)
class Lesson:
    """A prompt, the target's own greedy answer, and the states of both."""

    id: str
    family: str
    prompt: Prompt
    answer: list[int]
    states: States


@torch.inference_mode()
def record(
    target: HFTarget, want: Want, prompt: Prompt, answer: Sequence[int], id: str, family: str
) -> Lesson:
    """Read prompt and answer once, noting also the layers next to the wanted ones."""
    near = {n + step for n in want.layers for step in (-1, 0, 1)}
    if want.final:
        near |= {target.num_layers - 1, target.num_layers}
    layers = tuple(sorted(n for n in near if 1 <= n <= target.num_layers))
    seen_want = Want(final=True, embeddings=True, layers=layers)
    cache, read = target.prefill(prompt, seen_want)
    chain = DraftTree.chain(list(answer), target.device)
    (said,) = target.forward([chain], [cache], seen_want)

    def joined(a: Tensor | None, b: Tensor | None) -> Tensor:
        assert a is not None and b is not None
        return torch.cat([a, b])

    hidden = joined(read.hidden, said.hidden) if layers else None
    return Lesson(
        id,
        family,
        prompt,
        list(answer),
        States(
            torch.cat([read.logits, said.logits]),
            joined(read.final, said.final),
            {} if hidden is None else {n: hidden[:, k] for k, n in enumerate(layers)},
            joined(read.embeddings, said.embeddings),
        ),
    )


@dataclass
class Agreement:
    """Counts over drafts from true states; entry d - 1 of a list is of draft depth d."""

    depth: int
    tried_first: list[int] = field(init=False)  # positions whose likeliest path agreed until d - 1
    hit_first: list[int] = field(init=False)  # ... and agreed at d
    tried_any: list[int] = field(init=False)  # the same for any path of the tree
    hit_any: list[int] = field(init=False)
    hits: list[bool] = field(default_factory=list)  # per position: the likeliest first token
    walk: Walk = Walk(0, 0)  # rounds as decoding would make them
    broken: Counter[str] = field(default_factory=Counter)  # promises of the contract
    proposed: set[int] = field(default_factory=set)  # token ids

    def __post_init__(self) -> None:
        for name in ("tried_first", "hit_first", "tried_any", "hit_any"):
            setattr(self, name, [0] * self.depth)

    @property
    def top1(self) -> float:
        """Share of positions whose likeliest first token was right."""
        return sum(self.hits) / len(self.hits) if self.hits else 0.0

    def add(self, other: "Agreement") -> None:
        """Count another request too."""
        for name in ("tried_first", "hit_first", "tried_any", "hit_any"):
            both = zip(getattr(self, name), getattr(other, name), strict=True)
            setattr(self, name, [a + b for a, b in both])
        self.hits += other.hits
        self.walk += other.walk
        self.broken += other.broken
        self.proposed |= other.proposed

    def note(self, first: int, reached: int, room: int) -> None:
        """One position: tokens agreed on the likeliest path and on any, of `room` to come."""
        for tried, hit, agreed in (
            (self.tried_first, self.hit_first, first),
            (self.tried_any, self.hit_any, reached),
        ):
            for d in range(min(room, self.depth)):
                tried[d] += agreed >= d
                hit[d] += agreed > d
        self.hits.append(first > 0)


@torch.inference_mode()
def agreement(
    drafter: Drafter[Any],
    lesson: Lesson,
    states: States | None = None,
    positions: int = POSITIONS,
) -> Agreement:
    """Draft at every position of the answer, from these states or from the true ones."""
    states = lesson.states if states is None else states
    config, want, answer = drafter.config, drafter.want, lesson.answer
    nodes = config.max_nodes if config.nodes == "auto" else config.nodes
    made = Agreement(config.depth)
    length, reached = len(lesson.prompt.tokens), []
    limit = drafter.context_length
    state = drafter.start(lesson.prompt, states.view(want, 0, length, 0), answer[0])
    for k in range(min(len(answer) - 1, positions)):
        depth = config.depth if limit is None else min(config.depth, limit - 1 - length - k)
        if depth < 1:
            break
        following = answer[k + 1 :]
        budget = Budget(depth=depth, nodes=nodes)
        tree = drafter.propose(state, answer[k], budget)
        made.broken += _broken(drafter, tree, answer[k], budget)
        made.proposed.update(tree.tokens[1:].tolist())
        first, any_ = _agreed(tree, following)
        made.note(first, any_, len(following))
        reached.append(any_)
        at = length + k
        verdict = Verification([0], [answer[k + 1]])
        drafter.observe(state, verdict, states.view(want, at, at + 1, k + 1))
    made.walk = _walked(reached)
    return made


def _agreed(tree: DraftTree, following: Sequence[int]) -> tuple[int, int]:
    """How many tokens to come are on the tree's likeliest path, and on any path of it."""
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    scores = [0.0] * len(tokens) if tree.scores is None else tree.scores.tolist()
    children: dict[int, list[int]] = {}
    for node in range(1, len(tokens)):
        children.setdefault(parents[node], []).append(node)

    def length(only_best: bool) -> int:
        node = agreed = 0
        for wanted in following:
            below = sorted(children.get(node, []), key=lambda n: -scores[n])
            match = [n for n in (below[:1] if only_best else below) if tokens[n] == wanted]
            if not match:
                break
            node, agreed = match[0], agreed + 1
        return agreed

    return length(only_best=True), length(only_best=False)


def _walked(reached: Sequence[int]) -> Walk:
    """The rounds of decoding along an answer of which so many tokens were drafted at each place."""
    place = rounds = 0
    while place < len(reached):
        place += reached[place] + 1
        rounds += 1
    return Walk(len(reached), rounds)


def _broken(drafter: Drafter[Any], tree: DraftTree, root: int, budget: Budget) -> Counter[str]:
    """Which promises of the contract a draft breaks."""
    found: Counter[str] = Counter()
    drafted = tree.tokens[1:].tolist()
    target = drafter.target
    found["proposals of banned ids"] += sum(t in target.banned_ids for t in drafted)
    outside = sum(not 0 <= t < target.vocab_size for t in drafted)
    found[OUTSIDE] += outside
    found["drafts with another root"] += int(tree.tokens[0]) != root
    found["drafts beyond the budget"] += (
        len(drafted) > budget.nodes or int(tree.depth.max()) > budget.depth
    )
    try:
        tree.check()
    except ValueError:
        found["drafts that are no trees"] += 1
    return +found


# -- what a table knows ------------------------------------------------------------------------


def floor_hits(answers: Sequence[Sequence[int]], positions: int = POSITIONS) -> list[bool]:
    """Whether a table without a network guesses the next token, at the same places as a drafter.

    For each answer it is the better of two: an n-gram table of the other answers, and this
    answer's own commonest token.
    """
    table = NgramTable()
    for answer in answers:
        table.add(answer)
    found: list[bool] = []
    for answer in answers:
        table.add(answer, times=-1)
        asked = range(min(len(answer) - 1, positions))
        by_table = [table.guess(answer[: k + 1]) == answer[k + 1] for k in asked]
        commonest = Counter(answer[1:]).most_common(1)[0][0] if asked else -1
        by_count = [answer[k + 1] == commonest for k in asked]
        found += max(by_table, by_count, key=sum)
        table.add(answer)
    return found
