"""Semi-autoregressive low-confidence decoding at its plainest, to score trainings and check loops.

LLaDA's rule at temperature 0, a token a step: of the masked positions of the leftmost unfinished
block, the one whose likeliest token is the most likely gets that token. No caches, no gates.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from varifocal.diffusion.model import MaskedTransformer


@torch.inference_mode()
def decode(
    model: MaskedTransformer,
    prompts: Sequence[Sequence[int]],
    length: int,
    *,
    mask: int,
    end: int,
    block: int = 32,
    only_text: bool = False,
) -> Int64[Tensor, "B G"]:
    """Fill canvases of `length`, which needs as many forwards.

    With `only_text` a row is left as soon as everything before its first `end` is decided, and the
    rest of it becomes `end`: the text is the same, for less.
    """
    tokens, positions, is_real = laid(prompts, length, mask, end)
    start = tokens.shape[1] - length
    is_open = torch.ones(len(prompts), dtype=torch.bool)
    for step in range(length):
        rows = is_open.nonzero().flatten()
        if not len(rows):
            break
        begin = start + step // block * block
        window = slice(begin, min(begin + block, tokens.shape[1]))
        logits = aligned_logits(model, tokens[rows], positions[rows], is_real[rows])[:, window]
        logits[..., mask] = -torch.inf
        confidence, says = logits.float().softmax(-1).max(-1)
        chosen = confidence.masked_fill(tokens[rows][:, window] != mask, -1.0).argmax(-1)
        tokens[rows, begin + chosen] = says[torch.arange(len(rows)), chosen]
        if only_text:
            canvas = tokens[rows, start:]
            undecided = torch.cumsum(canvas == mask, 1)
            is_told = ((canvas == end) & (undecided == 0)).any(1)
            canvas[is_told] = canvas[is_told].masked_fill(canvas[is_told] == mask, end)
            tokens[rows, start:] = canvas
            is_open[rows] = ~is_told
    return tokens[:, start:]


def laid(
    prompts: Sequence[Sequence[int]], length: int, mask: int, pad: int
) -> tuple[Int64[Tensor, "B T"], Int64[Tensor, "B T"], Tensor]:
    """Tokens, positions and where something real stands: prompts padded on the left, then masks."""
    width = max(map(len, prompts)) + length
    tokens = torch.full((len(prompts), width), pad)
    for row, prompt in enumerate(prompts):
        tokens[row, width - length - len(prompt) : width - length] = torch.tensor(list(prompt))
    tokens[:, width - length :] = mask
    lengths = torch.tensor([[len(prompt) + length] for prompt in prompts])
    positions = torch.arange(width) - (width - lengths)
    return tokens, positions.clamp(min=0), positions >= 0


def aligned_logits(
    model: MaskedTransformer,
    tokens: Int64[Tensor, "B T"],
    positions: Int64[Tensor, "B T"],
    is_real: Tensor | None = None,
) -> Float[Tensor, "B T V"]:
    """Logits whose row i is about token i, in a model with shifted logits too."""
    sees = None if is_real is None or bool(is_real.all()) else is_real[:, None, None]
    logits = model(tokens, positions, sees=sees)
    if not model.config.shift:
        return logits  # type: ignore[no-any-return]  # a module's call has no type
    return torch.cat([logits[:, :1], logits[:, :-1]], 1)
