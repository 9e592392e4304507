"""A lightning indexer for models that come without one: what its queries and keys are made of.

Beside each layer's attention: qI(t, j) and w(t, j) for J small heads, and one key kI(s) a token
that all of them share, from the hidden states that enter the attention. The keys are layer-normed;
a part of queries and keys is rotated as the model rotates its own. [DeepSeek-V3.2; there qI comes
from the compressed query of MLA, which Llama and Qwen do not have]

Letters: J index heads, I width of an index key, E hidden size, n tokens, Q queries, T keys.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from varifocal.errors import BadArtifact, BadOption
from varifocal.sparse.interface import Entering

WEIGHTS, ABOUT = "indexer.safetensors", "indexer.json"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class IndexerConfig:
    """Sizes of an indexer; they are checked here."""

    num_layers: int  # of the model
    hidden_size: int  # likewise
    heads: int = 8  # for queries; the keys have one
    width: int = 32  # of a query or key
    rotary: int = 32  # of the width, how much is rotated; the rest knows no place

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "heads", "width"):
            if (got := getattr(self, name)) < 1:
                raise BadOption(f"{name} of an indexer must be at least 1, got {got}")
        if self.rotary % 2 or not 0 <= self.rotary <= self.width:
            raise BadOption(
                f"rotary is an even part of the width {self.width}, at least 0; got {self.rotary}"
            )


class LayerIndexer(nn.Module):
    """The indexer of one layer."""

    def __init__(self, config: IndexerConfig) -> None:
        super().__init__()
        self.config = config
        self.query = nn.Linear(config.hidden_size, config.heads * config.width, bias=False)
        self.key = nn.Linear(config.hidden_size, config.width, bias=False)
        self.norm = nn.LayerNorm(config.width)
        self.weight = nn.Linear(config.hidden_size, config.heads, bias=False)

    def keys(self, entering: Entering) -> Float[Tensor, "*n I"]:
        """kI of each token."""
        keys = self.norm(self.key(entering.hidden))[..., None, :]
        return self._rotated(keys, entering)[..., 0, :]

    def queries(self, entering: Entering) -> tuple[Float[Tensor, "*n J I"], Float[Tensor, "*n J"]]:
        """qI of each token, and what its heads weigh."""
        query = self.query(entering.hidden).unflatten(-1, (self.config.heads, -1))
        return self._rotated(query, entering), self.weight(entering.hidden)

    def scores(self, asking: Entering, keys: Float[Tensor, "T I"]) -> Float[Tensor, "Q T"]:
        """I(t, s) by one product of matrices: the selector's, but for the order of its sums."""
        query, weights = self.queries(asking)
        clipped = (query @ keys.mT).relu()  # Q J T
        scale = (self.config.heads * self.config.width) ** -0.5
        summed: Tensor = (weights[:, None] * scale @ clipped)[:, 0]
        return summed

    def _rotated(self, vectors: Float[Tensor, "*n J I"], entering: Entering) -> Tensor:
        """Halves turned against each other, by evenly many of the model's frequencies."""
        half = self.config.rotary // 2
        cos, sin = (_spread(part, half)[..., None, :] for part in (entering.cos, entering.sin))
        first, second, rest = vectors.split([half, half, vectors.shape[-1] - 2 * half], -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def _spread(angles: Float[Tensor, "*n P"], half: int) -> Float[Tensor, "*n half"]:
    """So many of the distinct angles, from the fastest to the slowest."""
    distinct = angles.shape[-1] // 2  # the model's have each twice
    if half > distinct:
        raise BadOption(
            f"an indexer that rotates {2 * half} features wants as many from the model, whose "
            f"rotation has {2 * distinct}: lower rotary"
        )
    at = torch.linspace(0, distinct - 1, half, device=angles.device).round().long()
    return angles[..., at]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where an indexer comes from; what it was trained on is not checked, whose it is may be."""

    target: str = ""
    fingerprint: str = ""  # of the target's weights; empty: not known
    recipe: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)


class Indexer(nn.Module):
    """One `LayerIndexer` for every layer of a model. Nothing of a request is kept."""

    def __init__(self, config: IndexerConfig, origin: Origin | None = None) -> None:
        super().__init__()
        self.config, self.origin = config, origin or Origin()
        self.layers = nn.ModuleList(LayerIndexer(config) for _ in range(config.num_layers))

    def layer(self, number: int) -> LayerIndexer:
        """That of one layer."""
        found = self.layers[number]
        assert isinstance(found, LayerIndexer)
        return found

    def fitted(self, model: Any) -> Self:
        """In the model's precision and on its device; a copy, where it is not.

        Raises BadOption where it has other layers or reads another width.
        """
        config = model.config.get_text_config()
        wanted = (config.num_hidden_layers, config.hidden_size)
        got = (self.config.num_layers, self.config.hidden_size)
        if got != wanted:
            made_for = f" of {self.origin.target!r}" if self.origin.target else ""
            raise BadOption(
                f"the indexer{made_for} has {got[0]} layers and reads hidden states of {got[1]}, "
                f"the model has {wanted[0]} layers of {wanted[1]}: an indexer serves the model it "
                "was trained for; train one with `python -m varifocal.sparse.train_indexer`"
            )
        weight = self.layer(0).key.weight
        if (weight.dtype, weight.device) == (model.dtype, model.device):
            return self
        return deepcopy(self).to(model.device, model.dtype)

    def check_origin(self, name: str, fingerprint: str) -> None:
        """Refuse an indexer that was trained for other weights."""
        made = self.origin
        if made.fingerprint and made.fingerprint != fingerprint:
            raise BadOption(
                f"the indexer was trained for {made.target!r} (fingerprint {made.fingerprint}), "
                f"but the target is {name!r} (fingerprint {fingerprint}): the weights differ. "
                "Load it with its own target, or train one with "
                "`python -m varifocal.sparse.train_indexer`"
            )

    def save(self, folder: Path) -> None:
        """Write the two files, weights in float16."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {k: v.detach().cpu().half().contiguous() for k, v in self.state_dict().items()}
        save_file(weights, folder / WEIGHTS)
        (folder / WEIGHTS).chmod(0o644)  # safetensors makes its file private
        about = {"format": _FORMAT, "config": asdict(self.config), **asdict(self.origin)}
        (folder / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def has_indexer(folder: Path) -> bool:
    """Whether one was saved there."""
    return (folder / ABOUT).is_file()


def load_indexer(folder: Path | str) -> Indexer:
    """One that was saved, in float32 on the CPU and frozen; raises BadArtifact if damaged."""
    folder = Path(folder)
    if not has_indexer(folder):
        raise BadArtifact(
            f"there is no indexer in {folder}: {ABOUT} and {WEIGHTS} are wanted there; train one "
            "with `python -m varifocal.sparse.train_indexer`, or choose quest or infllm"
        )
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about.pop("format") != _FORMAT:
            raise ValueError("another version's format")
        config = IndexerConfig(**about.pop("config"))
        with torch.device("meta"):  # random weights would be drawn from the caller's generator
            indexer = Indexer(config, Origin(**about))
        indexer.load_state_dict(load_file(folder / WEIGHTS), assign=True)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise BadArtifact(
            f"the indexer in {folder} cannot be read ({str(error).splitlines()[0]}): {ABOUT} and "
            f"{WEIGHTS} do not belong together, or are damaged; copy or train it again"
        ) from error
    return indexer.float().eval().requires_grad_(requires_grad=False)
