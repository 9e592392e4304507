"""A masked diffusion language model behind the denoiser's contract: windows, caches, the shift.

Letters: B rows, T = P + G positions of prompt and canvas, W of them in a window, D hidden size,
V vocabulary.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from varifocal.diffusion.denoiser import Canvas, Denoiser, Vocabulary
from varifocal.diffusion.model import LayerCache, MaskedTransformer


class MaskedDenoiser(Denoiser):
    """LLaDA, Dream or another model of `MaskedTransformer`.

    With `exact_rows` the rows of a batch are computed one after another, each without its padding:
    so each is bit for bit what it is alone. By default that is so on a CPU, where one row fills the
    cores already (windows of a few positions would gain). Otherwise they are computed together,
    padding is hidden by a mask, and sums may round differently with the batch.
    """

    def __init__(
        self,
        model: MaskedTransformer,
        vocabulary: Vocabulary,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        *,
        block: int | None = None,
        exact_rows: bool | None = None,
    ) -> None:
        weight = model.embed.weight
        self.model = model
        self.vocabulary, self.tokenizer, self.name, self.block = vocabulary, tokenizer, name, block
        self.context_length = model.config.context
        self.device, self.dtype = weight.device, weight.dtype
        self.exact_rows = weight.device.type == "cpu" if exact_rows is None else exact_rows

    @torch.no_grad()
    def forward(
        self, canvas: Canvas, window: slice, *, caching: bool = False
    ) -> Float[Tensor, "B W V"]:
        """Logits in the model's own precision; rows at padding are zero or of no meaning."""
        width = canvas.tokens.shape[1]
        begin, end, _ = window.indices(width)
        if caching and canvas.cache is None:
            if (begin, end) != (0, width):
                raise ValueError(f"a cache is filled by a window over all {width}, got {window}")
            canvas.cache = self._new_cache(canvas)
        caches = canvas.cache if caching else None
        if self.exact_rows:
            rows = range(len(canvas.tokens))
            logits = torch.cat([self._row(canvas, row, begin, end, caches) for row in rows])
        else:
            logits = self._together(canvas, begin, end, caches)
        canvas.fresh = torch.zeros_like(canvas.is_real)
        canvas.fresh[:, begin:end] = canvas.is_real[:, begin:end]
        return logits

    def select(self, canvas: Canvas, rows: Sequence[int]) -> Canvas:
        """Copies; the given canvas stays as it is."""
        keep = torch.tensor(list(rows), dtype=torch.long, device=canvas.tokens.device)
        cache = canvas.cache and [
            LayerCache(layer.keys[keep], layer.values[keep]) for layer in canvas.cache
        ]
        fresh = None if canvas.fresh is None else canvas.fresh[keep]
        return Canvas(canvas.tokens[keep], canvas.is_real[keep], canvas.length, cache, fresh)

    # -- joinery -------------------------------------------------------------------------------

    def _new_cache(self, canvas: Canvas) -> list[LayerCache]:
        config, (rows, width) = self.model.config, canvas.tokens.shape
        shape = (rows, config.kv_heads, width, config.head_width)

        def empty() -> Tensor:
            return torch.zeros(shape, dtype=self.dtype, device=self.device)

        return [LayerCache(empty(), empty()) for _ in range(config.layers)]

    def _row(
        self, canvas: Canvas, row: int, begin: int, end: int, caches: list[LayerCache] | None
    ) -> Float[Tensor, "1 W V"]:
        """One row as if it were alone: without padding and without a mask."""
        padding, only = canvas.padding[row], slice(row, row + 1)
        tokens = canvas.tokens[only, padding:]
        own = caches and [
            LayerCache(layer.keys[only, :, padding:], layer.values[only, :, padding:])
            for layer in caches
        ]
        first, last = max(begin - padding, 0), max(end - padding, 0)
        positions = torch.arange(tokens.shape[1], device=self.device)[None]
        logits = self._window(tokens, positions, first, last, None, own, [0])
        gap = (end - begin) - (last - first)  # rows of the window that are padding
        return logits if not gap else torch.nn.functional.pad(logits, (0, 0, gap, 0))

    def _together(
        self, canvas: Canvas, begin: int, end: int, caches: list[LayerCache] | None
    ) -> Float[Tensor, "B W V"]:
        sees = canvas.is_real[:, None, None] if any(canvas.padding) else None
        positions = (canvas.is_real.cumsum(1) - 1).clamp(min=0)
        return self._window(canvas.tokens, positions, begin, end, sees, caches, canvas.padding)

    def _window(
        self,
        tokens: Int64[Tensor, "B T"],
        positions: Int64[Tensor, "B T"],
        begin: int,
        end: int,
        sees: Bool[Tensor, "B 1 1 T"] | None,
        caches: list[LayerCache] | None,
        padding: list[int],
    ) -> Float[Tensor, "B W V"]:
        """Logits about tokens `begin` to `end`; without caches all positions are computed."""
        first, last = 0, tokens.shape[1]
        if caches is not None:  # shifted logits about the first token stand one further left
            first, last = max(begin - int(self.model.config.shift), 0), end
        states = self.model.states(
            tokens[:, first:last],
            positions[:, first:last],
            sees=sees,
            caches=caches,
            start=first,
        )
        if not self.model.config.shift:
            return self._read(states[:, begin - first : end - first])
        if max(padding) < begin:
            return self._read(states[:, begin - 1 - first : end - 1 - first])
        # Nothing stands left of a row's first token: its own logits count as those about it.
        begins = torch.tensor(padding, device=self.device)[:, None]
        source = (torch.arange(begin, end, device=self.device) - 1).maximum(begins) - first
        source = source.clamp(max=states.shape[1] - 1)
        return self._read(states.take_along_dim(source[..., None], 1))

    def _read(self, states: Float[Tensor, "B W D"]) -> Float[Tensor, "B W V"]:
        logits: Tensor = self.model.head(states)
        return logits
