"""Checks of positions and cache: however a text was read, the target says the same after it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from varifocal.cache import KVCache
from varifocal.evaluation._findings import Finding, attempt
from varifocal.evaluation.compare import slack
from varifocal.request import ask
from varifocal.target import Prompt, Want
from varifocal.targets._hf import HFTarget
from varifocal.tree import DraftTree

# Largest difference of two logits as a share of the row's largest: what rounding may do. In
# float32 1e-5 is usual; a position that is off by one moves logits by a tenth and more.
_FLOAT32, _LOWER = 1e-3, 0.1
POSITION_CHECKS = ("positions.tree", "positions.keep", "positions.prompt", "positions.request")
_PARENTS = (-1, 0, 0, 1, 1, 2, 3, 3)  # two nodes at every depth, one of them on the text's path
_SPINE = (0, 1, 3, 6)  # nodes on that path


@dataclass(frozen=True)
class _Gap:
    """How far two computations of the same rows are apart."""

    share: float  # largest difference as a share of the largest logit
    flips: int  # rows whose likeliest token differs
    near_ties: int  # flips that rounding in the target's dtype explains
    rows: int

    def is_rounding(self, dtype: torch.dtype) -> bool:
        """Whether nothing but the order of sums differs."""
        if dtype == torch.float32:
            return self.share <= _FLOAT32
        return self.flips == self.near_ties and self.share <= _LOWER


def check_positions(target: HFTarget, prompt: Prompt, answer: Sequence[int]) -> list[Finding]:
    """Checks on a real prompt; `answer` are tokens that the target said after it."""
    tokens = _four(target, prompt, answer)
    checks = (
        _tree_equals_sequence,
        _keep_equals_never_seen,
        _decoding_equals_one_pass,
        _belongs_to_the_request,
    )
    return [
        attempt(name, partial(check, name, target, prompt, tokens))
        for name, check in zip(POSITION_CHECKS, checks, strict=True)
    ]


@torch.inference_mode()
def _tree_equals_sequence(
    check: str, target: HFTarget, prompt: Prompt, tokens: list[int]
) -> Finding:
    """Each node of a tree forward against its path, read token by token."""
    tree = _tree(target, tokens)
    before, _ = target.prefill(prompt, Want())
    (seen,) = target.forward([tree], [before.copy()], Want())
    rows = []
    for path in tree.ancestry:
        cache = before.copy()
        for token in tree.tokens[path].tolist():
            logits = _read(target, cache, [token])
        rows.append(logits[-1])
    return _judged(
        check,
        target,
        _gap(seen.logits, torch.stack(rows), target.dtype),
        "a tree forward and reading each path token by token",
        "the attention mask of a tree or the positions of its nodes are wrong for this model: "
        "decode it with transformers' own generate, and report it",
    )


@torch.inference_mode()
def _keep_equals_never_seen(
    check: str, target: HFTarget, prompt: Prompt, tokens: list[int]
) -> Finding:
    """After a rejected part of a tree, against a cache that never held it."""
    tree = _tree(target, tokens)
    kept, _ = target.prefill(prompt, Want())
    fresh = kept.copy()
    target.forward([tree], [kept], Want())
    kept.keep(_SPINE, len(tree))
    _read(target, fresh, tokens)
    after = [_other(target, tokens[0]), tokens[-1]]
    gap = _gap(_read(target, kept, after), _read(target, fresh, after), target.dtype)
    return _judged(
        check,
        target,
        gap,
        "a cache after rejected drafts and one that never saw them",
        "rejected drafts leave a trace in this model's cache: decode it with transformers' own "
        "generate, and report it",
    )


@torch.inference_mode()
def _decoding_equals_one_pass(
    check: str, target: HFTarget, prompt: Prompt, tokens: list[int]
) -> Finding:
    """Text decoded after the prompt, against a prompt that already holds it."""
    cache, _ = target.prefill(prompt, Want())
    decoded = torch.cat([_read(target, cache, [token]) for token in tokens])
    more = torch.tensor(tokens, device=target.device)
    whole = replace(
        prompt,
        tokens=torch.cat([prompt.tokens, more]),
        image_of=torch.cat([prompt.image_of, torch.full_like(more, -1)]),
    )
    read, seen = target.prefill(whole, Want(final=True))
    assert seen.final is not None
    gap = _gap(decoded, target.head(seen.final[-len(tokens) :]), target.dtype)
    return _judged(
        check,
        target,
        gap,
        "decoding after a prompt and reading prompt and answer in one pass",
        "the text after a picture gets other positions when decoded than when read: the family's "
        "`positions` and the cache's offset disagree; report it",
        offset=cache.offset,
        offset_in_one_pass=read.offset,
    )


@torch.inference_mode()
def _belongs_to_the_request(
    check: str, target: HFTarget, prompt: Prompt, tokens: list[int]
) -> Finding:
    """The same forward before and after another request was read."""
    tree = _tree(target, tokens)
    cache, _ = target.prefill(prompt, Want())
    (alone,) = target.forward([tree], [cache.copy()], Want())
    other, _ = target.prefill(target.encode(ask("Hello?", max_new_tokens=1)), Want())
    (unlike,) = target.forward([tree], [other], Want())
    (after,) = target.forward([tree], [cache], Want())
    assert unlike.logits.shape == after.logits.shape
    return _judged(
        check,
        target,
        _gap(after.logits, alone.logits, target.dtype),
        "a forward before and after another request",
        "something of a request is kept on the model, so requests disturb each other: report it",
        offset=cache.offset,
        offset_of_the_other=other.offset,
    )


def _judged(
    check: str, target: HFTarget, gap: _Gap, what: str, way_out: str, **numbers: Any
) -> Finding:
    is_fine = gap.is_rounding(target.dtype)
    ties = f", {gap.near_ties} of them near-ties" if gap.flips else ""
    apart = f"differ by at most {gap.share:.1e} of the largest logit" if gap.share else "are equal"
    measured = (
        f"{what} {apart}; the likeliest token differs in {gap.flips} of {gap.rows} rows{ties}"
    )
    return Finding(
        check=check,
        verdict="ok" if is_fine else "fault",
        measured=measured,
        way_out="" if is_fine else way_out,
        numbers={
            "largest_difference": gap.share,
            "rows": gap.rows,
            "flips": gap.flips,
            "near_ties": gap.near_ties,
            **numbers,
        },
    )


def _gap(seen: Float[Tensor, "n V"], wanted: Float[Tensor, "n V"], dtype: torch.dtype) -> _Gap:
    ours, theirs = seen.double(), wanted.double()
    # A tensor's maximum keeps NaN, which no tolerance then forgives.
    share = float(((ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)).max())
    flips = near = 0
    for row, (a, b) in enumerate(zip(ours.argmax(-1), theirs.argmax(-1), strict=True)):
        if a != b:
            flips += 1
            near += float(theirs[row, b] - theirs[row, a]) <= 2 * slack(theirs[row], dtype)
    return _Gap(share, flips, near, len(seen))


def _read(target: HFTarget, cache: KVCache, tokens: Sequence[int]) -> Float[Tensor, "n V"]:
    (seen,) = target.forward([DraftTree.chain(tokens, target.device)], [cache], Want())
    return seen.logits


def _tree(target: HFTarget, tokens: Sequence[int]) -> DraftTree:
    """The text's tokens down one side, another token beside each of them."""
    a, b, c, d = tokens
    others = [_other(target, t) for t in (b, c, d)]
    nodes = [a, b, others[0], c, others[1], c, d, others[2]]
    return DraftTree(
        torch.tensor(nodes, device=target.device), torch.tensor(_PARENTS, device=target.device)
    )


def _four(target: HFTarget, prompt: Prompt, answer: Sequence[int]) -> list[int]:
    """The first four tokens of the answer; a shorter one is filled up with words of the prompt."""
    special = target.banned_ids | target.eos_ids
    words = [t for t in prompt.tokens[~prompt.is_image].tolist() if t not in special]
    return [*[t for t in answer if t not in special], *words, 0, 0, 0, 0][:4]


def _other(target: HFTarget, token: int) -> int:
    """Another token of text."""
    special = target.banned_ids | target.eos_ids
    known = (i % target.vocab_size for i in range(token + 1, token + target.vocab_size))
    return next(i for i in known if i not in special)
