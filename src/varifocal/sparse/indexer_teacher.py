"""What a model attends to, layer by layer, while it reads a text: shown to whoever studies it.

Letters: T tokens, Q queries, H KV heads, G query heads of one KV head, D head width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from varifocal.sparse.decoding import Decoder
from varifocal.sparse.interface import AttendingCache, Entering, Layer, Reading, listen
from varifocal.targets._hf import HFTarget


@dataclass(frozen=True)
class Attention:
    """One layer's attention over one text, rotated as the model does it."""

    layer: int
    queries: Float[Tensor, "T H G D"]
    keys: Float[Tensor, "T H D"]
    scale: float
    entering: Entering  # of the T tokens

    def asking(self, places: Int64[Tensor, " Q"]) -> Entering:
        """What entered at these places."""
        return self.entering.at(torch.zeros_like(places), places)

    def visible(self, places: Int64[Tensor, " Q"]) -> Bool[Tensor, "Q T"]:
        """The tokens up to each place."""
        return torch.arange(len(self.keys), device=places.device) <= places[:, None]

    def probabilities(self, places: Int64[Tensor, " Q"]) -> Float[Tensor, "Q H G T"]:
        """Where the queries at these places look, in float32."""
        query, keys = self.queries[places].float(), self.keys.float()
        logits = torch.einsum("qhgd,thd->qhgt", query, keys) * self.scale
        return logits.masked_fill(~self.visible(places)[:, None, None], -torch.inf).softmax(-1)


Study = Callable[[Attention], None]


class _Shown(AttendingCache):
    """Attends densely to one text, and shows each layer's attention."""

    def __init__(self, num_layers: int, study: Study) -> None:
        self._study, self._entered = study, dict[int, Entering]()
        super().__init__(layers=[Layer(self, number) for number in range(num_layers)])

    def enter(self, layer: int, entering: Entering) -> None:
        self._entered[layer] = entering

    def attend(
        self, layer: int, query: Tensor, reading: Reading, mask: Tensor | None, scale: float
    ) -> Tensor:
        """Of a whole text at once."""
        output = F.scaled_dot_product_attention(
            query, reading.keys, reading.values, is_causal=True, scale=scale, enable_gqa=True
        )
        kv_heads = reading.keys.shape[1]
        self._study(
            Attention(
                layer,
                query[0].unflatten(0, (kv_heads, -1)).movedim(2, 0),
                reading.keys[0].transpose(0, 1),
                scale,
                self._entered.pop(layer),
            )
        )
        return output.transpose(1, 2)


def show(target: HFTarget, tokens: Int64[Tensor, " T"], study: Study) -> None:
    """Let a target that attends sparsely read a text, densely and without gradients."""
    listen(target.model)
    Decoder(target, _Shown(target.num_layers, study)).read(tokens)
