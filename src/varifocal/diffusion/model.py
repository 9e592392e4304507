"""The bidirectional transformer of masked diffusion language models: LLaDA or Dream by settings.

Pre-norm, RMSNorm, rotary positions, SwiGLU; every position attends to every other. Letters: B rows,
T positions of prompt and canvas, W of them in a window, D hidden size, H heads, G heads of keys and
values, V vocabulary.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and kind. LLaDA and Dream differ in `kv_heads`, `bias`, `theta` and `shift`."""

    vocab: int
    hidden: int
    inner: int  # feed-forward width
    layers: int
    heads: int
    kv_heads: int
    context: int  # longest sequence, prompt and canvas together
    theta: float = 10_000.0  # base of the rotary positions
    eps: float = 1e-5
    bias: bool = False  # of queries, keys and values
    tied: bool = False  # the head is the embedding
    shift: bool = False  # logits of a position are about the next one, as in Dream

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


@dataclass
class LayerCache:
    """Keys and values of one layer for all T positions, entered in place by windows."""

    keys: Float[Tensor, "B G T d"]
    values: Float[Tensor, "B G T d"]


class MaskedTransformer(nn.Module):
    """Logits at every position from all positions; what to make of them is the loop's affair."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight

    def forward(
        self,
        tokens: Int64[Tensor, "B W"],
        positions: Int64[Tensor, "B W"],
        *,
        sees: Bool[Tensor, "B 1 1 T"] | None = None,
        caches: list[LayerCache] | None = None,
        start: int = 0,
        causal: bool = False,
    ) -> Float[Tensor, "B W V"]:
        """Unshifted logits of a window of the sequence: `head` of `states`."""
        logits: Tensor = self.head(
            self.states(tokens, positions, sees=sees, caches=caches, start=start, causal=causal)
        )
        return logits

    def states(
        self,
        tokens: Int64[Tensor, "B W"],
        positions: Int64[Tensor, "B W"],
        *,
        sees: Bool[Tensor, "B 1 1 T"] | None = None,
        caches: list[LayerCache] | None = None,
        start: int = 0,
        causal: bool = False,
    ) -> Float[Tensor, "B W D"]:
        """What the head reads, so that it need not read every position: it is V wide.

        `sees` is False at padding. With `caches` the window lies at `start` of T cached entries,
        takes their place and attends to all of them; without, it is the whole sequence. `causal`
        serves the training that Dream begins with.
        """
        x = self.embed(tokens)
        turn = rotation(positions, self.config, x.dtype)
        for number, layer in enumerate(self.layers):
            cache = None if caches is None else caches[number]
            x = layer(x, turn, sees, cache, start, causal)
        normed: Tensor = self.norm(x)
        return normed


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, reach = config.head_width, config.kv_heads * config.head_width
        self._width = width
        self.attention_norm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.query = nn.Linear(config.hidden, config.heads * width, bias=config.bias)
        self.key = nn.Linear(config.hidden, reach, bias=config.bias)
        self.value = nn.Linear(config.hidden, reach, bias=config.bias)
        self.out = nn.Linear(config.heads * width, config.hidden, bias=False)
        self.inner_norm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.gate = nn.Linear(config.hidden, config.inner, bias=False)
        self.up = nn.Linear(config.hidden, config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.hidden, bias=False)

    def forward(
        self,
        x: Float[Tensor, "B W D"],
        turn: tuple[Tensor, Tensor],
        sees: Bool[Tensor, "B 1 1 T"] | None,
        cache: LayerCache | None,
        start: int,
        causal: bool,
    ) -> Float[Tensor, "B W D"]:
        normed = self.attention_norm(x)
        q = rotate(self._heads(self.query(normed)), turn)
        k = rotate(self._heads(self.key(normed)), turn)
        v = self._heads(self.value(normed))
        if cache is not None:
            window = slice(start, start + x.shape[1])
            cache.keys[:, :, window], cache.values[:, :, window] = k, v
            k, v = cache.keys, cache.values
        attended = attend(q, k, v, sees, causal)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.inner_norm(x)
        grown: Tensor = x + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return grown

    def _heads(self, x: Float[Tensor, "B W E"]) -> Float[Tensor, "B n W d"]:
        heads: Tensor = x.unflatten(-1, (-1, self._width)).transpose(1, 2)
        return heads


def attend(
    q: Float[Tensor, "B H W d"],
    k: Float[Tensor, "B G T d"],
    v: Float[Tensor, "B G T d"],
    sees: Bool[Tensor, "B 1 1 T"] | None,
    causal: bool,
) -> Float[Tensor, "B H W d"]:
    """Attention; written out where a CPU trains: the fused kernel's backward takes 4 x as long."""
    if not (q.requires_grad and q.device.type == "cpu"):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=sees, is_causal=causal, enable_gqa=q.shape[1] > k.shape[1]
        )
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if sees is not None:
        scores = scores.masked_fill(~sees, -torch.inf)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    attended: Tensor = scores.softmax(-1).to(v.dtype) @ v
    return attended


def rotation(
    positions: Int64[Tensor, "B W"], config: ModelConfig, dtype: torch.dtype
) -> tuple[Float[Tensor, "B 1 W d"], Float[Tensor, "B 1 W d"]]:
    """Cosine and signed sine of the rotary positions, in float32 or better.

    LLaDA turns in full precision (`rope_full_precision`); so does Dream here, which costs little.
    """
    width = config.head_width
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64)
    angle = positions[:, None, :, None].double() * config.theta ** (-steps / width)
    cos, sin, dtype = angle.cos(), angle.sin(), torch.promote_types(dtype, torch.float32)
    return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)


def rotate(x: Float[Tensor, "B n W d"], turn: tuple[Tensor, Tensor]) -> Float[Tensor, "B n W d"]:
    """Turn pairs (i, i + d/2) by their position's angle."""
    cos, sin = turn
    made: Tensor = x * cos + x.roll(x.shape[-1] // 2, -1) * sin
    return made.to(x.dtype)
