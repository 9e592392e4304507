"""All coming tokens in one pass over tapped layers of the target, drafted as a tree. [DFlash]

Symbols: their fc is `fuse`, hidden_norm `context_norm`, the anchor is the root, block_size - 1 is
`ahead`, target_layer_ids + 1 are `taps`. A block has a row for each position: the root's embedding,
then the mask's. Queries come from the block alone; keys and values from the context (the tapped
layers at every decided position, fused) and from the block, by the same maps. A row gives the law
of its position whatever comes before it; what a token says about the next one is a low-rank term
W2 W1[token] on top [DSpark], and through it the tree has branches of its own. Pictures: nothing is
read of them but the tapped states, at their slots and behind. Left out: DSpark's confidence head
and the gated and recurrent forms of its term; positions with three axes, slots are counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from varifocal.drafters._blocks import (
    Block,
    BlockShape,
    DraftCache,
    Rotation,
    attend,
    rotate,
    rotation,
    shared_heads,
)
from varifocal.drafters._learned import LearnedDrafter, TargetHeadDrafter
from varifocal.drafters._tapped import find_layers, layers_of, recorded, side_by_side
from varifocal.drafters._trellis import Trellis, likeliest
from varifocal.drafters._unroll import Slots, Teacher, collate, gather, nothing
from varifocal.errors import BadOption
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt, Target, Want
from varifocal.training.artifacts import Artifact, Subset
from varifocal.training.losses import Losses, depth_weight
from varifocal.tree import DraftTree
from varifocal.verify import Verification


class ContextBlock(Block):
    """Rows that attend to a context, which every block reads anew, and to one another."""

    def __init__(self, shape: BlockShape, *, head_norms: bool) -> None:
        super().__init__(shape)
        self.query_norm = shape.norm(shape.head_width) if head_norms else None
        self.key_norm = shape.norm(shape.head_width) if head_norms else None

    def remember(
        self, context: Float[Tensor, "*b m D"], turn: Rotation
    ) -> tuple[Float[Tensor, "*b G m dh"], Float[Tensor, "*b G m dh"]]:
        """Keys and values of a context alone."""
        groups = self.shape.kv_heads
        first = self.shape.heads * self.shape.head_width
        bias = None if self.qkv.bias is None else self.qkv.bias[first:]
        made = self._heads(F.linear(context, self.qkv.weight[first:], bias))
        keys, values = made.split([groups, groups], dim=-3)
        keys = keys if self.key_norm is None else self.key_norm(keys)
        return rotate(keys, turn), values

    def read(
        self, context: Float[Tensor, "m D"], x: Float[Tensor, "n D"], turn: Rotation
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [H, n, dh] of the rows, keys and values [G, m + n, dh] of context and rows."""
        q, k, v = self._split(torch.cat([context, self.attention_norm(x)]), turn)
        return q[:, len(context) :], k, v

    def project(self, x: Float[Tensor, "*b n D"], turn: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [*b, H, n, dh], keys and values [*b, G, n, dh] of the rows."""
        return self._split(self.attention_norm(x), turn)

    def _split(self, rows: Tensor, turn: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        heads, groups = self.shape.heads, self.shape.kv_heads
        made, v = self._heads(self.qkv(rows)).split([heads + groups, groups], dim=-3)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = made.split([heads, groups], dim=-3)
            made = torch.cat([self.query_norm(q), self.key_norm(k)], -3)
        q, k = rotate(made, turn).split([heads, groups], dim=-3)
        return q, k, v

    def _heads(self, made: Float[Tensor, "*b n E"]) -> Float[Tensor, "*b h n dh"]:
        heads: Tensor = made.unflatten(-1, (-1, self.shape.head_width)).transpose(-2, -3)
        return heads


class BlockNetwork(nn.Module):
    """Everything that is trained; the target's embeddings and head stay frozen outside."""

    blocks: Sequence[ContextBlock]

    def __init__(self, target: Target, settings: "BlockDrafter.Config", num_taps: int) -> None:
        super().__init__()
        hidden = target.hidden_size
        self.shape = shape = settings.shape(hidden)
        self.ahead, self.num_masks = settings.ahead, settings.ahead - settings.from_root
        self.fuse = nn.Linear(num_taps * hidden, hidden, bias=False)
        self.context_norm = shape.norm()
        self.mask = nn.Parameter(torch.randn(hidden) * 0.02)
        made = [ContextBlock(shape, head_norms=settings.head_norms) for _ in range(settings.blocks)]
        self.blocks = cast(Sequence[ContextBlock], nn.ModuleList(made))
        # The states that it imitates need not have zero mean.
        self.norm = shape.norm(bias=True)
        self.rank = settings.rank
        if self.rank:
            self.markov_embed = nn.Embedding(target.vocab_size, self.rank)
            self.markov_head = nn.Embedding(target.vocab_size, self.rank)
            nn.init.zeros_(self.markov_head.weight)  # at first a token says nothing of the next

    def context(self, features: Float[Tensor, "*b F"]) -> Float[Tensor, "*b D"]:
        """What all blocks read of the target."""
        fused = self.fuse(features)
        normed: Tensor = self.context_norm(fused)
        return normed.to(fused.dtype)

    def enter(self, root: Float[Tensor, "*b D"]) -> Float[Tensor, "*b n D"]:
        """The first block's input: the root's embedding, then masks."""
        masks = self.mask.expand(*root.shape[:-1], self.num_masks, -1)
        return torch.cat([root[..., None, :].to(self.mask.dtype), masks], -2)

    def leave(self, x: Float[Tensor, "*b n D"]) -> Float[Tensor, "*b d D"]:
        """States of the coming positions, as the head reads them."""
        states: Tensor = self.norm(x[..., -self.ahead :, :])
        return states

    def markov(
        self, before: Int64[Tensor, "*b m"], after: Int64[Tensor, "*b n"] | None = None
    ) -> Float[Tensor, "*b m n"]:
        """What tokens add to the logits of those after them, by default of all. [DSpark]"""
        heads = self.markov_head.weight if after is None else self.markov_head(after)
        made: Tensor = self.markov_embed(before) @ heads.mT
        return made.float()


@dataclass
class BlockState:
    """One request: keys and values of its context, and the tapped layers not read yet."""

    position: int  # where the root stands
    pending: list[Float[Tensor, "m F"]]
    cache: DraftCache = field(default_factory=DraftCache)


class BlockDrafter(TargetHeadDrafter[BlockState]):
    """A block of masks on tapped layers, the target's own head, and a tree from one pass."""

    name: ClassVar[str] = "block"
    pictures: ClassVar[str] = "sees them in tapped layers of the target's states; embeds none"
    needs: ClassVar[str] = "weights trained for the target, on artifacts with taps"

    @dataclass(frozen=True, kw_only=True)
    class Config(LearnedDrafter.Config):
        """Sizes, tree and objective. Here `width` only limits the children of a node."""

        ARCHITECTURE: ClassVar[frozenset[str]] = LearnedDrafter.Config.ARCHITECTURE | {
            "blocks", "taps", "ahead", "from_root", "causal", "head_norms", "rank"
        }  # fmt: skip

        depth: int = 8  # longest path below the root, at most `ahead`
        blocks: int = 2  # decoder blocks
        taps: tuple[int, ...] = ()  # layers, counted from 1; () is low, middle and high
        ahead: int = 8  # coming tokens that a pass predicts
        from_root: bool = False  # the root's row predicts too; else it is one row more
        causal: bool = False  # a row sees no later row of its block
        head_norms: bool = True  # norms of each head's queries and keys
        rank: int = 64  # of what a token adds to the logits of the next one; 0: nothing
        candidates: int = 64  # likeliest tokens of each position that a tree is made of
        max_bases: int = 64  # positions of a sample from which blocks are drafted; 0 is all
        gamma: float = 4.0  # decay of the weight over positions: exp(-(k - 1) / gamma)

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("blocks", "ahead", "candidates"):
                if getattr(self, name) < 1:
                    raise BadOption(f"{name} must be at least 1, got {getattr(self, name)}")
            for name in ("rank", "max_bases"):
                if getattr(self, name) < 0:
                    raise BadOption(f"{name} must be at least 0, got {getattr(self, name)}")
            if self.gamma <= 0:
                raise BadOption(f"gamma must be positive, got {self.gamma}")
            if self.depth > self.ahead:
                raise BadOption(
                    f"depth={self.depth}, but a pass predicts no more than ahead={self.ahead} "
                    "tokens; take a smaller depth, or train with a larger ahead"
                )

    config: Config
    network: BlockNetwork

    def __init__(self, target: Target, config: Config) -> None:
        super().__init__(target, config)
        self.want = Want(layers=layers_of(target, config.taps))
        self.network = BlockNetwork(target, config, len(self.want.layers)).to(target.device)

    # -- decoding ------------------------------------------------------------------------------

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> BlockState:
        """Read the prompt."""
        state = BlockState(len(prompt.tokens), [])
        context = self._context([side_by_side(prefill)])
        turn = self._turn(0, len(context), context.dtype)
        for number, block in enumerate(self.network.blocks):
            state.cache.append(number, *block.remember(context, turn))
        state.cache.advance(len(context), stable=True)
        return state

    def propose(self, state: BlockState, root: int, budget: Budget) -> DraftTree:
        """The likeliest tree of the tokens that one pass predicts."""
        states = self._states(state, root)[: budget.depth]
        trellis = self._trellis(root, self._log_probs(states))
        return likeliest(root, trellis, budget)

    def observe(self, state: BlockState, verdict: Verification, seen: Forward) -> None:
        """Keep the true features of the accepted path for the next draft; no computation yet."""
        state.pending.append(side_by_side(seen))
        state.position += len(verdict.path)

    def _states(self, state: BlockState, root: int) -> Float[Tensor, "d D"]:
        """Of all coming positions, whatever the budget: so many were seen in training.

        What is pending enters the cache in the same pass, each block's rows behind it; they are
        overwritten by the next.
        """
        network = self.network
        context = self._context(state.pending)
        num_new = len(context)
        x = network.enter(self._embed([root]))[0]
        turn = self._turn(state.position - num_new, num_new + len(x), context.dtype)
        sees = None
        if self.config.causal:
            sees = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).tril()
        for number, block in enumerate(network.blocks):
            q, k, v = block.read(context, x, turn)
            keys, values = state.cache.append(number, k, v)
            x = block.finish(x, attend(q, keys, values, sees))
        state.cache.advance(num_new, stable=True)
        state.pending.clear()
        return network.leave(x)

    def _context(self, pending: list[Tensor]) -> Float[Tensor, "m D"]:
        """Of features that were not read yet, if there are any."""
        weight = self.network.fuse.weight
        if not pending:
            return weight.new_empty(0, len(weight))
        return self.network.context(torch.cat(pending).to(weight.dtype))

    def _turn(self, start: int, count: int, dtype: torch.dtype) -> Rotation:
        positions = torch.arange(start, start + count, device=self.target.device)
        return rotation(positions, self.network.shape, dtype)

    def _trellis(self, root: int, log_probs: Float[Tensor, "d V"]) -> Trellis:
        """The likeliest steps between the candidates of each position and the next.

        A step's law is over the candidates of its position; the mass of all others is taken to be
        what the pass gives them, whatever the token before.
        """
        config, network = self.config, self.network
        size = min(config.candidates, log_probs.shape[1])
        likely, tokens = log_probs.topk(size)
        laws = likely[:, None].expand(-1, size, -1)
        if network.rank:
            before = torch.cat([torch.full_like(tokens[:1], root), tokens[:-1]])
            mass = likely.logsumexp(-1)[:, None, None]
            laws = (laws + network.markov(before, tokens)).log_softmax(-1) + mass
        gains, steps = laws.topk(min(config.width, size))
        return Trellis(tokens, steps, gains)

    # -- training ------------------------------------------------------------------------------

    def survey(self, data: Subset) -> None:
        """Refuse a recording without the layers that it reads, before the first update."""
        known = data.store.manifest.origin.taps
        find_layers(self.want.layers, known, self.name, str(data.store.folder))

    def loss(self, batch: list[Artifact], progress: float) -> Losses:
        """Cross entropy with the target's law at every position of the drawn blocks.

        The token before each position is the recorded one. Positions behind the answer's end do
        not count; the k-th of a block weighs exp(-(k - 1) / gamma). [DFlash]
        """
        target, network, ahead = self.target, self.network, self.config.ahead
        slots = collate(
            batch, target, self._taps_of, text_only=False, max_bases=self.config.max_bases
        )
        if slots.bases.shape[1] == 0:
            return nothing(network)
        teacher = Teacher(target, slots.final, slots.answer)
        step = torch.arange(ahead, device=slots.bases.device)
        place = slots.bases[..., None] + 1 + step  # [B, A, d]
        alive = _alive(slots, place)
        row = gather(teacher.place, place.flatten(1)).view(place.shape)[alive]
        states = network.leave(self._trained(slots))[alive]
        logits = target.head(states.to(target.dtype)).float()
        if network.rank:
            before = gather(slots.tokens, place.flatten(1) - 1).view(place.shape)[alive]
            logits = logits + network.markov(before)
        ce = logits.logsumexp(-1) - (teacher.p[row] * logits).sum(-1)
        which = step.expand(place.shape)[alive]
        weight = logits.new_tensor([depth_weight(k + 1, self.config.gamma) for k in range(ahead)])
        total = (weight[which] * ce).sum() / weight[which].sum()
        hits = (logits.argmax(-1) == teacher.labels[row]).float()
        return Losses(total, {"ce": total.detach(), **_agreement(hits, which, ahead)})

    def _trained(self, slots: Slots) -> Float[Tensor, "B A n D"]:
        """All blocks of a batch behind the last one: each sees the context up to its own root."""
        network = self.network
        context = network.context(slots.features)
        x = network.enter(gather(slots.embeddings, slots.bases))
        num_bases, size = x.shape[1:3]
        index = torch.arange(size, device=x.device)
        place = gather(slots.positions, slots.bases)[..., None] + 1 + index
        past = rotation(slots.positions, network.shape, context.dtype)
        turn = rotation(place.flatten(1), network.shape, context.dtype)
        seen = torch.arange(context.shape[1], device=x.device) <= slots.bases[..., None]
        sees = index <= index[:, None] if self.config.causal else None
        x = x.flatten(1, 2)
        for block in network.blocks:
            far, near = block.remember(context, past), block.project(x, turn)
            x = block.finish(x, _attended(near, far, seen, sees))
        rows: Tensor = x.unflatten(1, (num_bases, size))
        return rows

    def _taps_of(self, item: Artifact) -> Float[Tensor, "T F"]:
        """The tapped layers side by side."""
        return recorded(item, self.want.layers, self.name)


def _attended(
    near: tuple[Tensor, Tensor, Tensor],
    far: tuple[Tensor, Tensor],
    seen: Bool[Tensor, "B A S"],
    sees: Bool[Tensor, "n n"] | None,
) -> Float[Tensor, "B H r dh"]:
    """What the rows of A blocks read, r = A n: of the context what is `seen`, and their own block.

    `near` are the rows' queries, keys and values, `far` the context's keys and values.
    """
    heads, num_bases = near[0].shape[1], seen.shape[1]
    q, k, v = (shared_heads(y, heads).unflatten(2, (num_bases, -1)) for y in near)
    keys, values = (shared_heads(y, heads) for y in far)
    q = q * q.shape[-1] ** -0.5
    past = (q.flatten(2, 3) @ keys.mT).unflatten(2, (num_bases, -1))
    own = q @ k.mT
    if sees is not None:
        own = own.masked_fill(~sees, float("-inf"))
    scores = torch.cat([past.masked_fill(~seen[:, None, :, None], float("-inf")), own], -1)
    law = scores.float().softmax(-1).to(v.dtype)
    size = keys.shape[-2]
    read: Tensor = law[..., :size].flatten(2, 3) @ values + (law[..., size:] @ v).flatten(2, 3)
    return read


def _alive(slots: Slots, place: Int64[Tensor, "B A d"]) -> Bool[Tensor, "B A d"]:
    """Which positions of the blocks the answer reaches without a gap."""
    inside = place < slots.answer.shape[1]
    said = gather(slots.answer, place.flatten(1)).view(place.shape)
    return (inside & said & slots.bases_valid[..., None]).long().cumprod(-1).bool()


def _agreement(
    hits: Float[Tensor, " r"], which: Int64[Tensor, " r"], ahead: int
) -> dict[str, Tensor]:
    """agree_k: the share of the k-th drafted tokens that are the target's choice, for the log."""
    found = hits.new_zeros(ahead).index_add(0, which, hits)
    counts = torch.bincount(which, minlength=ahead)
    reached = int((counts > 0).sum())
    return {f"agree_{k + 1}": found[k] / counts[k] for k in range(reached)}
