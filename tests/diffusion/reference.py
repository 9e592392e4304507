"""A masked diffusion model written out from its definition: loops, float64, published names."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# What the parts of a layer are called: norm, query, key, value, out, norm, gate, up, down.
_LLADA = "attn_norm q_proj k_proj v_proj attn_out ff_norm ff_proj up_proj ff_out".split()
_DREAM = [
    "input_layernorm",
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    "post_attention_layernorm",
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
]


class Reference:
    """Keys and values of every position, and the rows computed last; nothing is shared with src.

    `run` computes the positions `first` to `last` anew, from tokens and from the keys and values
    of all others as they were computed before: the definition of a cached window.
    """

    def __init__(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
        self.tensors = {name: tensor.double() for name, tensor in tensors.items()}
        self.is_dream = config["model_type"] == "Dream"
        self.names = _DREAM if self.is_dream else _LLADA
        self.heads = config["num_attention_heads" if self.is_dream else "n_heads"]
        self.groups = config["num_key_value_heads" if self.is_dream else "n_kv_heads"]
        self.layers = config["num_hidden_layers" if self.is_dream else "n_layers"]
        self.theta, self.eps = config["rope_theta"], config["rms_norm_eps"]
        self.known: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in range(self.layers)]

    def about(self, tokens: Sequence[int], first: int, last: int) -> Tensor:
        """Logits about the tokens `first` to `last`, of which a cached window is made."""
        if not self.is_dream:
            return self.run(tokens, first, last)
        begin = max(first - 1, 0)
        rows = self.run(tokens, begin, last)
        return torch.stack([rows[max(i - 1, 0) - begin] for i in range(first, last)])

    def run(self, tokens: Sequence[int], first: int, last: int) -> Tensor:
        """Unshifted logits."""
        places = range(first, last)
        embed = "model.embed_tokens" if self.is_dream else "model.transformer.wte"
        x = {i: self.tensors[f"{embed}.weight"][tokens[i]] for i in places}
        for number, known in enumerate(self.known):
            layer = (
                f"model.layers.{number}" if self.is_dream else f"model.transformer.blocks.{number}"
            )
            n1, q, k, v, out, n2, gate, up, down = (f"{layer}.{name}" for name in self.names)
            normed = {i: self.norm(x[i], n1) for i in places}
            for i in places:
                keys = self.turned(self.linear(normed[i], k).view(self.groups, -1), i)
                known[i] = (keys, self.linear(normed[i], v).view(self.groups, -1))
            for i in places:
                queries = self.turned(self.linear(normed[i], q).view(self.heads, -1), i)
                heard = [self.attend(queries[h], h * self.groups // self.heads, known)
                         for h in range(self.heads)]  # fmt: skip
                x[i] = x[i] + self.linear(torch.cat(heard), out)
            for i in places:
                y = self.norm(x[i], n2)
                g = self.linear(y, gate)
                x[i] = x[i] + self.linear(g / (1 + (-g).exp()) * self.linear(y, up), down)
        norm = "model.norm" if self.is_dream else "model.transformer.ln_f"
        head = "lm_head" if self.is_dream else "model.transformer.ff_out"
        return torch.stack([self.linear(self.norm(x[i], norm), head) for i in places])

    def attend(self, query: Tensor, group: int, known: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
        """Every known position is attended to, later ones too."""
        scores = {j: query @ keys[group] / len(query) ** 0.5 for j, (keys, _) in known.items()}
        weights = {j: score.exp() for j, score in scores.items()}
        total = sum(weights.values())
        return sum(weights[j] / total * values[group] for j, (_, values) in known.items())

    def linear(self, x: Tensor, name: str) -> Tensor:
        made = self.tensors[f"{name}.weight"] @ x
        return made + self.tensors.get(f"{name}.bias", 0)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean() + self.eps) ** 0.5 * self.tensors[f"{name}.weight"]

    def turned(self, heads: Tensor, position: int) -> Tensor:
        """Pairs (i, i + d/2) turned by position * theta^(-2i/d)."""
        made = heads.clone()
        half = heads.shape[1] // 2
        for i in range(half):
            angle = torch.tensor(position * self.theta ** (-i / half), dtype=torch.float64)
            a, b = heads[:, i], heads[:, i + half]
            made[:, i] = a * angle.cos() - b * angle.sin()
            made[:, i + half] = b * angle.cos() + a * angle.sin()
        return made
