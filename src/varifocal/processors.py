"""Settings that change logits, at every node of a tree as if tokens had come one at a time."""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from varifocal.errors import BadRequest
from varifocal.sampling import Sampling
from varifocal.target import Target
from varifocal.tree import DraftTree

Words = list[tuple[int, ...]]


class Processor:
    """What one request's settings make of the target's logits. Grows with the answer.

    The row of a node is changed as if prompt, answer and the node's own path had been produced one
    token at a time: in greedy decoding too, and before the drafter's guesses are compared. The
    order is that of transformers' `generate`, with the penalties that it lacks next to the one that
    it has: `logit_bias`, `repetition_penalty`, `presence_penalty` and `frequency_penalty`,
    `bad_words`, `min_new_tokens`. A bad word may begin in the prompt. `process_by_hand` is the
    readable twin.

    Raises BadRequest for token ids that the target does not have, and where nothing could be said.
    """

    def __init__(self, sampling: Sampling, target: Target, prompt: Int64[Tensor, " T"]) -> None:
        self.is_idle = not sampling.changes_logits
        if self.is_idle:
            return
        self._sampling, size = sampling, target.vocab_size
        words = spelled(sampling, target)
        check_tokens(sampling, target, words)
        zeros = torch.zeros(size, device=target.device)
        self._bias = _vector(sampling.logit_bias, zeros)
        self._ends = torch.tensor(sorted(target.eos_ids), dtype=torch.int64, device=target.device)
        self._words = _Words(words, target.device)
        self._num_new = 0
        self._counts = zeros  # of the answer
        self._is_used = torch.zeros_like(zeros, dtype=torch.bool)  # in the prompt or the answer
        self._known = prompt[prompt < size].unique()  # slots may have an id beyond the head's
        self._is_used[self._known] = True
        reach = self._words.reach
        self._tail = torch.cat([prompt.new_full((reach,), -1), prompt])[-max(reach, 1) :]

    def append(self, tokens: Sequence[int]) -> None:
        """These tokens now belong to the answer; the last one is the next tree's root."""
        if self.is_idle:
            return
        new = torch.tensor(tokens, dtype=torch.int64, device=self._tail.device)
        self._num_new += len(tokens)
        self._counts.index_add_(0, new, torch.ones_like(new, dtype=self._counts.dtype))
        self._is_used[new] = True
        self._known = torch.cat([self._known, new])
        self._tail = torch.cat([self._tail, new])[-len(self._tail) :]

    def __call__(
        self, logits: Float[Tensor, "N V"], tree: DraftTree | None = None
    ) -> Float[Tensor, "N V"]:
        """The logits to choose from, as float32; unchanged where no setting changes them.

        Row k follows node k of the tree, whose root is the newest token of the text. Without a tree
        there is the one row that follows the text.
        """
        if self.is_idle:
            return logits
        if tree is None:  # the text ends in its newest token, as a tree of a root alone does
            tree = DraftTree(self._tail[-1:], torch.full_like(self._tail[-1:], -1))
        scores = logits.float() + self._bias
        self._penalise(scores, tree)
        self._words.ban(scores, _recent(tree, self._tail, self._words.reach))
        if self._num_new < self._sampling.min_new_tokens:
            is_early = self._num_new + tree.depth < self._sampling.min_new_tokens
            _exclude(scores, self._ends, is_early[:, None].expand(-1, len(self._ends)))
        return scores

    def _penalise(self, scores: Float[Tensor, "N V"], tree: DraftTree) -> None:
        """Changes the columns of tokens that stand in the text or the tree, in place."""
        s = self._sampling
        if s.repetition_penalty == 1 and not s.presence_penalty and not s.frequency_penalty:
            return
        columns = torch.cat([self._known, tree.tokens])
        below = tree.ancestry.to(scores.dtype)
        below[:, 0] = 0  # the root is counted with the text
        own = below @ (tree.tokens[:, None] == columns).to(scores.dtype)
        new = scores[:, columns]
        if s.repetition_penalty != 1:
            changed = torch.where(new < 0, new * s.repetition_penalty, new / s.repetition_penalty)
            new = torch.where(self._is_used[columns] | (own > 0), changed, new)
        counts = self._counts[columns] + own
        new = new - s.frequency_penalty * counts - s.presence_penalty * (counts > 0)
        # A token that stands in several columns has the same value in each.
        scores.scatter_(1, columns.expand(len(tree), -1), new)


class _Words:
    """Bad words, those of one length together."""

    def __init__(self, words: Words, device: torch.device) -> None:
        self.reach = max((len(word) - 1 for word in words), default=0)  # tokens to look back
        self._groups = []
        for size in sorted({len(word) for word in words}):
            group = torch.tensor([w for w in words if len(w) == size], device=device)
            self._groups.append((group[:, :-1].flip(-1), group[:, -1]))

    def ban(self, scores: Float[Tensor, "N V"], recent: Int64[Tensor, "N R"]) -> None:
        """Exclude what would complete a word after these tokens, newest first, in place."""
        for beginnings, last in self._groups:
            begun = recent[:, None, : beginnings.shape[-1]] == beginnings
            _exclude(scores, last, begun.all(-1))


def _exclude(
    scores: Float[Tensor, "N V"], tokens: Int64[Tensor, " W"], where: Bool[Tensor, "N W"]
) -> None:
    """No chance for these tokens in these rows; a token may be listed several times."""
    scores.index_add_(1, tokens, torch.where(where, -math.inf, 0.0).to(scores.dtype))


def _recent(tree: DraftTree, tail: Int64[Tensor, " R"], reach: int) -> Int64[Tensor, "N reach"]:
    """The last tokens up to each node, newest first: its path, then the text before the root."""
    recent = tree.tokens.new_empty(len(tree), reach)
    at = torch.arange(len(tree), device=tree.tokens.device)
    for step in range(reach):
        beyond = step - tree.depth  # tokens before the root, which ends the tail
        text = tail[(len(tail) - 1 - beyond).clamp(max=len(tail) - 1)]
        recent[:, step] = torch.where(beyond > 0, text, tree.tokens[at])
        at = tree.parents[at].clamp(min=0)
    return recent


def _vector(values: Mapping[int, float], zeros: Float[Tensor, " V"]) -> Float[Tensor, " V"]:
    """Zero but for these tokens."""
    made = zeros.clone()
    if values:
        index = torch.tensor(list(values), device=zeros.device)
        made[index] = torch.tensor(list(values.values()), device=zeros.device)
    return made


def spelled(sampling: Sampling, target: Target) -> Words:
    """The bad words as ids, each once: a text in every way in which the tokenizer writes it."""
    words: dict[tuple[int, ...], None] = {}
    for word in sampling.bad_words:
        ways = _spellings(word, target) if isinstance(word, str) else [tuple(word)]
        words |= dict.fromkeys(ways)
    return list(words)


def _spellings(text: str, target: Target) -> Words:
    """The text on its own, after a line break, and after a space.

    Some tokenizers put a space before whatever they read, so a break of line goes first and is
    taken off again.
    """
    spaced = text if text[0].isspace() else f" {text}"
    ways = [target.tokenize(text)]
    opening = target.tokenize("\n")
    for written in (text, spaced):
        ids = target.tokenize(f"\n{written}")
        is_apart = ids[: len(opening)] == opening
        ways.append(ids[len(opening) :] if is_apart else target.tokenize(written))
    found = list(dict.fromkeys(tuple(way) for way in ways if way))
    if not found:
        raise BadRequest(f"the tokenizer of {target.name} has no tokens for the bad word {text!r}")
    return found


def check_tokens(sampling: Sampling, target: Target, words: Words) -> None:
    """Refuse ids that the target lacks, and settings that leave it nothing to say."""
    named = {"logit_bias": [*sampling.logit_bias], "bad_words": [t for w in words for t in w]}
    for name, tokens in named.items():
        if unknown := sorted({token for token in tokens if token >= target.vocab_size}):
            raise BadRequest(
                f"{name} names the token {unknown[0]}, but {target.name} has the ids 0 to "
                f"{target.vocab_size - 1}; take ids of its own tokenizer"
            )
    ends = [word[0] for word in words if len(word) == 1 and word[0] in target.eos_ids]
    if ends:
        raise BadRequest(
            f"bad_words holds the end token {ends[0]}, without which no answer ends by itself; "
            "use min_new_tokens, or logit_bias with a negative number"
        )
    early = target.eos_ids if sampling.min_new_tokens else frozenset()
    if len({word[-1] for word in words} | early) >= target.vocab_size:
        raise BadRequest(
            f"bad_words and min_new_tokens exclude all {target.vocab_size} tokens; leave some"
        )


def process_by_hand(
    sampling: Sampling,
    target: Target,
    prompt: Sequence[int],
    answer: Sequence[int],
    logits: Float[Tensor, " V"],
) -> Float[Tensor, " V"]:
    """The reference for `Processor`: the row that follows one text, setting by setting."""
    scores = logits.float().tolist()
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    penalty = sampling.repetition_penalty
    for token in {*prompt, *answer}:
        if token < len(scores):
            scores[token] *= penalty if scores[token] < 0 else 1 / penalty
    for token in set(answer):
        scores[token] -= sampling.frequency_penalty * answer.count(token)
        scores[token] -= sampling.presence_penalty
    text = [*prompt, *answer]
    for *beginning, last in spelled(sampling, target):
        if not beginning or text[-len(beginning) :] == beginning:
            scores[last] = -math.inf
    if len(answer) < sampling.min_new_tokens:
        for token in target.eos_ids:
            scores[token] = -math.inf
    return torch.tensor(scores)
