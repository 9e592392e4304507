"""ViSpec: each picture as a few rows of the draft and one vector beside every state. [ViSpec]

Symbols: their imadpt is `Adaptor` with num_q = `num_queries`, g the last of its outputs, fc `join`.
img_fc([f; g]) is kept as its two halves, `img_fc_state` and `img_fc_global`, since g is a request's
and the second half a sum that it pays for once. The other outputs stand in place of the picture's
last slots as inputs of the first block. Rows keep the positions of the slots that they stand for.

Left out: noise on the features and the second pass with shifted features in training (mtp_steps);
the unroll meets the draft's own errors instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from varifocal.drafters._blocks import BlockShape, DraftCache, shared_heads
from varifocal.drafters._eagle import EagleConfig, EagleDrafter, JoinNetwork
from varifocal.drafters._recurrence import absorb, draft
from varifocal.drafters._unroll import Chain, Slots, collate, gather, nothing
from varifocal.errors import BadOption
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt, Want
from varifocal.training.artifacts import Artifact
from varifocal.training.losses import Losses
from varifocal.tree import DraftTree

_RANKED = 10  # likeliest tokens of the target whose order `ranking` teaches


@dataclass(frozen=True)
class Rows:
    """Which slots of a sequence are read: those of text, and the last few of each picture.

    A picture is an unbroken run of slots, as the paper's code has it: tiles of one picture between
    which text stands are read one by one, and text between them already knows the first ones.
    """

    slots: Int64[Tensor, " S"]  # slot i is followed by token i + 1
    is_visual: Bool[Tensor, " S"]  # the following token is a picture's
    before: Int64[Tensor, " S"]  # pictures that began before the following token, or with it
    outputs: Int64[Tensor, " m"]  # the adaptor's, picture by picture, at slots of pictures
    sizes: list[int]  # visual tokens of each picture


def rows_of(image_of: Int64[Tensor, " T"], num_queries: int) -> Rows:
    """Of T tokens, the first of which has no slot. A picture too small for its rows loses some."""
    size = len(image_of)
    edge = image_of.new_full((1,), -1)
    is_image = image_of >= 0
    begins = is_image & (image_of != torch.cat([edge, image_of[:-1]]))
    ends = is_image & (image_of != torch.cat([image_of[1:], edge]))
    before = begins.cumsum(0)
    starts, stops = begins.nonzero()[:, 0], ends.nonzero()[:, 0] + 1
    stop = torch.cat([stops, edge])[before - 1]  # of the picture that a picture's token is in
    output = num_queries - 1 - stop + torch.arange(size, device=image_of.device)
    kept = ~is_image | (output >= 0)
    kept[0] = False
    spliced = kept & is_image
    return Rows(
        slots=kept.nonzero()[:, 0] - 1,
        is_visual=is_image[kept],
        before=before[kept],
        outputs=(before - 1)[spliced] * num_queries + output[spliced],
        sizes=(stops - starts).tolist(),
    )


class Adaptor(nn.Module):
    """A picture as a few vectors: attention of learned queries over its embeddings.

    Queries are few and known, so they are multiplied with the weights of the keys, not these with
    every embedding, and values are made of what was read: the same sums in another order. A bias of
    the keys adds the same to all scores of a query and has no effect.
    """

    def __init__(self, shape: BlockShape, num_queries: int, *, bare: bool) -> None:
        super().__init__()
        self.shape = shape
        reach = shape.kv_heads * shape.head_width
        self.norm = nn.Identity() if bare else shape.norm()
        self.queries = nn.Parameter(
            torch.randn(num_queries, shape.heads, shape.head_width) * shape.head_width**-0.5
        )
        self.kv = nn.Linear(shape.hidden, 2 * reach, bias=shape.bias)
        self.out = nn.Linear(shape.heads * shape.head_width, shape.hidden, bias=False)

    def forward(
        self, visual: Float[Tensor, "P M D"], valid: Bool[Tensor, "P M"] | None
    ) -> Float[Tensor, "P Q D"]:
        """Of P pictures, padded to M embeddings where `valid` says so."""
        shape, x = self.shape, self.norm(visual)
        keys, values = shared_heads(self._by_head(self.kv.weight), shape.heads)  # [H, dh, D] each
        scaled = self.queries * shape.head_width**-0.5
        asked = torch.einsum("qhe,hed->qhd", scaled, keys).flatten(0, 1)
        scores = x @ asked.T
        if valid is not None:
            scores = scores.masked_fill(~valid[..., None], float("-inf"))
        weights = scores.float().softmax(1).to(x.dtype)
        read = (weights.transpose(1, 2) @ x).unflatten(1, scaled.shape[:2])
        made = torch.einsum("pqhd,hed->pqhe", read, values)
        if self.kv.bias is not None:
            bias = self._by_head(self.kv.bias[:, None])[1]
            made = made + shared_heads(bias, shape.heads)[..., 0]
        adapted: Tensor = self.out(made.flatten(2))
        return adapted

    def _by_head(self, rows: Float[Tensor, "E X"]) -> Float[Tensor, "2 G dh X"]:
        """Weights of keys, then of values."""
        parts: Tensor = rows.unflatten(0, (2, self.shape.kv_heads, self.shape.head_width))
        return parts


@dataclass(frozen=True)
class Look:
    """What a request's pictures became, in their order."""

    outputs: Float[Tensor, "P Q D"]
    shifts: Float[Tensor, "E D"]  # img_fc's part of g with 0, 1, ..., P pictures behind


class VispecNetwork(JoinNetwork):
    """Blocks on joined states and embeddings, the states seen beside a picture."""

    def __init__(self, hidden: int, settings: "VispecDrafter.Config") -> None:
        super().__init__(hidden, settings)
        self.adaptor = Adaptor(self.shape, settings.num_queries, bare=settings.bare)
        self.img_fc_state = nn.Linear(hidden, hidden, bias=False)
        self.img_fc_global = nn.Linear(hidden, hidden, bias=settings.join_bias)
        # The state alone to begin with.
        nn.init.eye_(self.img_fc_state.weight)
        nn.init.zeros_(self.img_fc_global.weight)
        if settings.join_bias:
            nn.init.zeros_(self.img_fc_global.bias)

    def look(self, pictures: list[Float[Tensor, "_ D"]]) -> Look:
        """Read the pictures of a request, or of a batch."""
        queries, hidden = self.adaptor.queries, self.shape.hidden
        outputs = queries.new_zeros(0, len(queries), hidden)
        if pictures:
            visual = pad_sequence(pictures, batch_first=True)
            sizes = torch.tensor([len(picture) for picture in pictures], device=visual.device)
            valid = torch.arange(visual.shape[1], device=visual.device) < sizes[:, None]
            is_even = len(visual) == 1 or len({len(picture) for picture in pictures}) == 1
            outputs = self.adaptor(visual, None if is_even else valid)
        none = outputs.new_zeros(1, hidden)
        return Look(outputs, self.img_fc_global(torch.cat([none, outputs[:, -1]])))

    def beside(
        self,
        feature: Float[Tensor, "*b D"],
        token: Float[Tensor, "*b D"],
        shift: Float[Tensor, "*s D"],
    ) -> Float[Tensor, "*b D"]:
        """`enter` with img_fc([state; g]), where `shift` is what g adds."""
        return self.enter(self.img_fc_state(feature) + shift, token)

    def splice(
        self,
        x: Float[Tensor, "*b D"],
        is_visual: Bool[Tensor, "*b"],
        look: Look,
        outputs: Int64[Tensor, " m"],
    ) -> Float[Tensor, "*b D"]:
        """x with the adaptor's outputs at the slots of pictures."""
        return x.index_put((is_visual,), look.outputs.flatten(0, 1)[outputs].to(x.dtype))


@dataclass(frozen=True)
class _Beside:
    """The network as draft steps use it: beside the picture that was last seen before the draft."""

    network: VispecNetwork
    shift: Float[Tensor, "*s D"]

    @property
    def shape(self) -> BlockShape:
        return self.network.shape

    @property
    def blocks(self) -> nn.ModuleList:
        return self.network.blocks

    @property
    def norm(self) -> nn.Module:
        return self.network.norm

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.network.parameters()

    def enter(self, feature: Float[Tensor, "*b D"], token: Float[Tensor, "*b D"]) -> Tensor:
        return self.network.beside(feature, token, self.shift)


@dataclass
class VispecState:
    """One request: what its last picture adds to states, the cache, and slots not read yet."""

    shift: Float[Tensor, " D"]
    features: Float[Tensor, "m D"]  # pending slots: target states ...
    tokens: Float[Tensor, "m D"]  # ... embeddings of the tokens after them ...
    positions: Int64[Tensor, " m"]  # ... and where they stand
    next_position: int
    cache: DraftCache = field(default_factory=DraftCache)
    top: Float[Tensor, "1 D"] | None = field(default=None, repr=False)  # the root's state


class VispecDrafter(EagleDrafter[VispecState]):
    """Draft blocks on text and on what an adaptor makes of each picture; the target's own head."""

    name: ClassVar[str] = "vispec"
    pictures: ClassVar[str] = "compresses each one to a few rows and a vector beside every state"
    needs: ClassVar[str] = "weights trained for the target"
    want = Want(final=True, embeddings=True)

    @dataclass(frozen=True, kw_only=True)
    class Config(EagleConfig):
        """Sizes, tree and objective.

        The paper's objective for text is classification=0.1, ranking=0.01, that for pictures
        regression=0, classification=0, distance=10, ranking=0.1.
        """

        ARCHITECTURE: ClassVar[frozenset[str]] = EagleConfig.ARCHITECTURE | {"num_queries"}

        num_queries: int = 2  # of the adaptor: one vector beside states, the others rows
        classification: float = 1.0  # weight of the cross entropy with the target's law
        ranking: float = 0.0  # weight of ListMLE: the order of the target's likeliest tokens
        distance: float = 0.0  # weight of the L1 distance of the laws

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.num_queries < 1:
                raise BadOption(f"num_queries must be at least 1, got {self.num_queries}")

    config: Config
    network: VispecNetwork

    def _made(self, hidden: int) -> VispecNetwork:
        """A network with fresh weights."""
        return VispecNetwork(hidden, self.config)

    # -- decoding ------------------------------------------------------------------------------

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> VispecState:
        """Look at the pictures and read the prompt."""
        assert prefill.final is not None and prefill.embeddings is not None
        network, after_root = self.network, prompt.image_of.new_full((1,), -1)
        kind = network.join.weight.dtype
        rows = rows_of(torch.cat([prompt.image_of, after_root]), self.config.num_queries)
        visual = prefill.embeddings[prompt.is_image].to(kind)
        look = network.look(list(visual.split(rows.sizes)))
        slots, shift = rows.slots, look.shifts[-1]
        features = prefill.final[slots].to(kind)
        following = self._following(prefill, root)[slots].to(kind)
        x = network.beside(features, following, look.shifts[rows.before])
        x = network.splice(x, rows.is_visual, look, rows.outputs)
        state = VispecState(shift, features, following, slots, len(prompt.tokens))
        absorb(network, state, x)
        return state

    def propose(self, state: VispecState, root: int, budget: Budget) -> DraftTree:
        """Grow a tree below the root."""
        network, width = _Beside(self.network, state.shift), self.config.width
        return draft(network, self.target, state, root, self._score, width, budget)

    # -- training ------------------------------------------------------------------------------

    def loss(self, batch: list[Artifact], progress: float) -> Losses:
        """EAGLE's objective over an unroll, and the paper's own terms where they have weight."""
        rows = [rows_of(item.image_of, self.config.num_queries) for item in batch]
        slots = collate(
            batch,
            self.target,
            lambda item: item.final,
            text_only=False,
            max_bases=self.config.max_bases,
            kept=[one.slots for one in rows],
        )
        if slots.bases.shape[1] == 0:
            return nothing(self.network)
        return self._objective(self._chain(batch, rows, slots), slots)

    def _chain(self, batch: list[Artifact], rows: list[Rows], slots: Slots) -> Chain:
        """The draft states of all bases, each beside the picture last seen before it."""
        network, device = self.network, self.target.device
        pictures: list[Tensor] = []
        before, outputs = [], []
        for item, one in zip(batch, rows, strict=True):
            seen = len(pictures)  # pictures of the samples before
            before.append(torch.where(one.before > 0, one.before + seen, 0))
            outputs.append(one.outputs + seen * self.config.num_queries)
            pictures += item.visual.float().to(device).split(one.sizes)
        look = network.look(pictures)
        behind = pad_sequence(before, batch_first=True).to(device)
        x = network.beside(slots.features, slots.embeddings, look.shifts[behind])
        x = network.splice(x, slots.is_visual, look, torch.cat(outputs).to(device))
        return Chain(_Beside(network, look.shifts[gather(behind, slots.bases)]), slots, x)

    def _further(
        self, p: Float[Tensor, "n V"], log_q: Float[Tensor, "n V"]
    ) -> dict[str, Float[Tensor, ""]]:
        """ListMLE of the target's likeliest tokens, and the L1 distance of the laws."""
        terms = {}
        if self.config.ranking:
            best = p.topk(min(_RANKED, p.shape[-1]), -1).indices
            scores = log_q.gather(-1, best)
            left = scores.flip(-1).logcumsumexp(-1).flip(-1)  # of each token and those behind it
            terms["ranking"] = (left - scores).sum()
        if self.config.distance:
            terms["distance"] = (p - log_q.exp()).abs().sum()
        return terms
