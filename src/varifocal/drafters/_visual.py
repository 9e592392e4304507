"""FOVEA's per-image memory, its state-dependent read-out, and the correction of a scoring state."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from varifocal.fast import packed_matrix
from varifocal.tree import Evidence

NEVER = float("-inf")
MANY = 512  # entries from which packing the keys, once a request, pays within a few rounds


@dataclass(frozen=True)
class Memory:
    """k_i = W_K x_i / sqrt(d_k) and u_i = W_U x_i of all visual tokens x_i, picture by picture."""

    keys: Float[Tensor, "*b M K"]  # the query's scale is already in them
    values: Float[Tensor, "*b M U"]
    depths: Float[Tensor, "E K"]  # W_Q E_dep[l]: what a depth adds to a query
    valid: Bool[Tensor, "*b M"] | None = None  # m_i: False for padding
    match: nn.Module | None = None  # q -> q k_i^T on packed keys, where they are many

    @property
    def size(self) -> int:
        """Entries, padding included."""
        return self.keys.shape[-2]


class VisualCorrection(nn.Module):
    """h + g * f([LN(h); r]), where r is read from the memory by a query made of h and its depth.

    [FOVEA, Eq. 5-9]. `settings` is the drafter's config: correction, select, top_k, rho, k_min,
    k_max, depth_embedding, gate, memory_width, bottleneck, unroll, evidence.

    Two products that would follow one another are one matrix each: LN(h) meets W_Q and the first
    layers of f and g in `look`, and u_i is W_U x_i as these layers see it (a mixture and a linear
    map commute), so that a draft step pays for two small products.
    """

    def __init__(self, hidden: int, settings: Any) -> None:
        super().__init__()
        self.settings = settings
        width = settings.memory_width
        self.inner = settings.bottleneck + (hidden if settings.gate else 0)
        reads = 3 * hidden if settings.evidence == "contextual" else hidden
        shape = settings.shape(hidden)
        self.state_norm = shape.norm()
        self.look = nn.Linear(hidden, width + self.inner)
        self.depth = nn.Embedding(settings.unroll, hidden)
        self.memory_norm = shape.norm(reads)
        self.memory_keys = nn.Linear(reads, width, bias=False)
        self.memory_values = nn.Linear(reads, self.inner, bias=False)
        self.second = nn.Linear(settings.bottleneck, hidden)
        nn.init.zeros_(self.depth.weight)
        nn.init.zeros_(self.second.weight)  # no correction to begin with
        nn.init.zeros_(self.second.bias)
        if settings.select == "query_agnostic":
            self.fixed_query = nn.Parameter(torch.randn(width) * width**-0.5)

    def remember(
        self, visual: Float[Tensor, "*b M E"], valid: Bool[Tensor, "*b M"] | None = None
    ) -> Memory:
        """Build the memory, once per request. [FOVEA, Eq. 4]"""
        x = self.memory_norm(visual)
        keys = self.memory_keys(x) * self.settings.memory_width**-0.5
        values, depths = self.memory_values(x), self._query_of(self.depth.weight)
        if keys.dim() > 2:
            return Memory(keys, values, depths, valid)
        # Of one request: few rows meet it at a time, and on a CPU small products are fastest in
        # float32, large ones packed.
        match = packed_matrix(keys) if len(keys) >= MANY and not keys.requires_grad else None
        keys = keys if match else keys.float()
        return Memory(keys, values.float(), depths, valid, match)

    def forward(
        self, h: Float[Tensor, "*b n D"], depth: int, memory: Memory
    ) -> tuple[Float[Tensor, "*b n D"], Evidence | None]:
        """The corrected scoring state; `h` itself is left as it is."""
        settings = self.settings
        query, own = self.look(self.state_norm(h)).split([settings.memory_width, self.inner], -1)
        read, evidence = self._read(query, depth, memory)
        made = own + read
        change: Tensor = self.second(F.silu(made[..., : settings.bottleneck]))
        if settings.gate:
            change = made[..., settings.bottleneck :].sigmoid() * change
        return h + change, evidence

    def _query_of(self, x: Tensor) -> Tensor:
        """W_Q x, without bias."""
        # As a product with the layer, whose weight may be packed: a depth's part of a query.
        made: Tensor = self.look(x) - self.look(torch.zeros_like(x[:1]))
        return made[..., : self.settings.memory_width]

    def _read(
        self, query: Float[Tensor, "*b n K"], depth: int, memory: Memory
    ) -> tuple[Tensor, Evidence | None]:
        """r_n, the renormalised mixture of the selected values. [FOVEA, Eq. 6-8]"""
        blind = self.settings.correction == "blind"
        if blind or memory.size == 0:
            return query.new_zeros(*query.shape[:-1], self.inner), None
        scores = self._scores(query, depth, memory)
        chosen, entries = self._select(scores, memory)
        weights = chosen.softmax(-1)
        if entries is None:
            mixed = weights.to(memory.values.dtype) @ memory.values
            return _shown(mixed, memory).to(query.dtype), None
        if query.dim() == 2:
            # Gathers and mixes in one kernel.
            read = F.embedding_bag(
                entries, memory.values, per_sample_weights=weights.float(), mode="sum"
            )
            return read.to(query.dtype), Evidence(entries, weights)
        # In training a sparse row of weights over all entries is faster than a gather.
        full = torch.zeros_like(scores).scatter(-1, entries, weights.to(scores.dtype))
        return _shown(full.to(memory.values.dtype) @ memory.values, memory), None

    def _scores(
        self, query: Float[Tensor, "*b n K"], depth: int, memory: Memory
    ) -> Float[Tensor, "*b n M"]:
        """s_{n,i} = q_n . k_i / sqrt(d_k); -inf where there is no entry. [FOVEA, Eq. 5]"""
        settings = self.settings
        if settings.select == "query_agnostic":
            query = self.fixed_query.to(query.dtype).expand_as(query)
        elif settings.depth_embedding:
            query = query + memory.depths[min(depth, len(memory.depths) - 1)]
        keys, match = memory.keys, memory.match
        scores: Tensor = match(query) if match else query.to(keys.dtype) @ keys.transpose(-1, -2)
        if memory.valid is not None:
            # Of a sample without pictures nothing is masked, lest its softmax be NaN: see `_shown`.
            padding = ~memory.valid & memory.valid.any(-1, keepdim=True)
            scores = scores.masked_fill(padding[..., None, :], NEVER)
        return scores

    def _select(
        self, scores: Tensor, memory: Memory
    ) -> tuple[Tensor, Int64[Tensor, "*b n K"] | None]:
        """Scores and indices of the entries that are read; indices None means all of them."""
        settings = self.settings
        size = min(settings.top_k, memory.size)
        if settings.select == "dense":
            return scores, None
        if settings.select == "random":
            order = torch.rand_like(scores, dtype=torch.float32).masked_fill(scores == NEVER, -1)
            entries = order.topk(size, -1).indices
            return scores.gather(-1, entries), entries
        if settings.select == "static":
            entries = self._central(memory, size).expand(*scores.shape[:-1], size)
            return scores.gather(-1, entries), entries
        if settings.select == "mass":
            return self._by_mass(scores)
        chosen, entries = scores.topk(size, -1)
        return chosen, entries

    def _by_mass(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The fewest entries with mass rho, between k_min and k_max. [FOVEA, Sec. 3, selection]"""
        settings = self.settings
        most = min(settings.k_max, scores.shape[-1])
        chosen, entries = scores.topk(most, -1)
        mass = (chosen.float() - scores.float().logsumexp(-1, keepdim=True)).exp().cumsum(-1)
        needed = (mass < settings.rho).sum(-1, keepdim=True) + 1
        needed = needed.clamp(min=min(settings.k_min, most), max=most)
        beyond = torch.arange(most, device=scores.device) >= needed
        return chosen.masked_fill(beyond, NEVER), entries

    @staticmethod
    def _central(memory: Memory, size: int) -> Int64[Tensor, "*b 1 K"]:
        """The entries most like the picture's mean key: one set for all states of a picture."""
        keys = memory.keys.detach()
        if memory.valid is not None:
            keys = keys * memory.valid[..., None]
        central = keys @ keys.sum(-2)[..., None]
        central = central[..., 0]
        if memory.valid is not None:
            central = central.masked_fill(~memory.valid, NEVER)
        return central.topk(size, -1).indices[..., None, :]


def _shown(read: Float[Tensor, "*b n U"], memory: Memory) -> Float[Tensor, "*b n U"]:
    """Zeros for samples without pictures, which read nothing in decoding either."""
    if memory.valid is None:
        return read
    return read.masked_fill(~memory.valid.any(-1)[..., None, None], 0.0)
