"""What tensors say of a network's sizes, what the config says of the rest, and that they agree."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from varifocal.drafters._published.files import Checkpoint
from varifocal.errors import BadArtifact, DrafterMismatch
from varifocal.target import Target

# What a config leaves out where it is the default of transformers' LlamaConfig.
_DEFAULTS = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10_000.0}
PADDING = 256  # rows by which vocabularies of the same tokenizer are padded differently
_COMPARED = 256  # rows of an embedding or head that are compared
_CLOSE = 0.05  # relative distance; rounding to half precision gives 0.004, another model 1.4


class Facts:
    """Sizes of a checkpoint. Whatever its config says besides must agree, or BadArtifact."""

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any] | None = None) -> None:
        self.checkpoint = checkpoint
        found = checkpoint.config if config is None else config
        inner = found.get("text_config")
        if "hidden_size" not in found and isinstance(inner, Mapping):
            found = {**found, **inner}
        self.config = found

    def tensor(self, name: str) -> Tensor:
        """A tensor without which nothing can be told."""
        found = self.checkpoint.tensors.get(name)
        if found is None:
            raise BadArtifact(
                f"{self.checkpoint.name} lacks {name}; it is incomplete, or of another family "
                "(family=, --family)"
            )
        return found

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self.checkpoint.tensors

    def size(self, name: str, axis: int, setting: str = "") -> int:
        """A size of a tensor, which the config's setting must agree with."""
        tensor = self.tensor(name)
        if tensor.dim() <= axis:
            raise BadArtifact(
                f"{name} of {self.checkpoint.name} has the shape {tuple(tensor.shape)}, wanted at "
                f"least {axis + 1} axes"
            )
        made = int(tensor.shape[axis])
        if setting:
            self.agree(setting, made, f"{name} is {tuple(tensor.shape)}")
        return made

    def agree(self, setting: str, value: Any, why: str) -> None:
        """Refuse a config that contradicts the tensors."""
        said = self.config.get(setting)
        if said is not None and said != value:
            raise BadArtifact(
                f"{self.checkpoint.name} contradicts itself: its config says {setting}={said!r}, "
                f"but {why}. Take config and weights of one revision"
            )

    def count(self, prefix: str) -> int:
        """Layers `prefix`.0, .1, ..., which must have no gap."""
        found = {
            int(name.removeprefix(f"{prefix}.").split(".")[0])
            for name in self.checkpoint.tensors
            if name.startswith(f"{prefix}.") and name.split(".")[1].isdigit()
        }
        if found != set(range(len(found))):
            raise BadArtifact(
                f"{self.checkpoint.name} has the layers {sorted(found)}; fetch it again"
            )
        return len(found)

    def setting(self, name: str) -> Any:
        """Of the config, or its default."""
        found = self.config.get(name)
        if found is None:
            found = _DEFAULTS.get(name)
        if found is None:
            raise BadArtifact(
                f"the config of {self.checkpoint.name} lacks {name}, which its tensors do not "
                "tell; add it as it was in training"
            )
        return found

    def there(self, name: str, setting: str = "") -> bool:
        """Whether there is such a tensor, which the config's setting must agree with."""
        there = self.has(name)
        if setting:
            self.agree(setting, there, f"{name} is {'there' if there else 'missing'}")
        return there

    # -- blocks --------------------------------------------------------------------------------

    def block(self, attn: str, mlp: str, *, head_width: int = 0) -> dict[str, Any]:
        """Settings of a decoder block from its attention and feed-forward."""
        rows = self.size(f"{attn}.q_proj.weight", 0)
        shared = self.size(f"{attn}.k_proj.weight", 0)
        if head_width:
            why = f"its {rows} rows of queries are {rows // head_width} heads of {head_width}"
            self.agree("num_attention_heads", rows // head_width, why)
        else:
            heads = int(self.setting("num_attention_heads"))
            head_width = rows // heads if heads > 0 else 0
        if head_width < 1 or rows % head_width or shared % head_width:
            raise BadArtifact(
                f"{rows} rows of queries and {shared} of keys in {self.checkpoint.name} do not "
                f"divide into heads of {head_width}; its config and weights are of two models"
            )
        heads, groups = rows // head_width, shared // head_width
        self.agree("head_dim", head_width, f"{rows} rows of queries are {heads} heads")
        self.agree("num_key_value_heads", groups, f"{shared} rows of keys are {groups} heads")
        act = self.setting("hidden_act")
        if act != "silu":
            self.checkpoint.refuse(f"its feed-forward has {act!r}, and ours SwiGLU (silu) alone")
        return {
            "heads": heads,
            "kv_heads": groups,
            "head_width": head_width,
            "inner": self.size(f"{mlp}.gate_proj.weight", 0, "intermediate_size"),
            "norms": "rms",
            "eps": float(self.setting("rms_norm_eps")),
        }

    def theta(self, *, one_axis: bool) -> float:
        """Base of the rotary positions.

        `one_axis` says that the authors' code feeds equal positions on all axes, if it has several,
        which amounts to one.
        """
        scaling = self.config.get("rope_scaling") or self.config.get("rope_parameters") or {}
        kind = str(scaling.get("rope_type", scaling.get("type", "default")))
        if kind == "mrope" or "mrope_section" in scaling:
            if not one_axis:
                self.checkpoint.refuse(
                    "its positions have three axes (mrope), and the draft here counts slots on "
                    "one, so that what it makes of a picture would be another thing. Train one for "
                    "the target (`varifocal train --drafter eagle3`)"
                )
        elif kind != "default":
            self.checkpoint.refuse(
                f"its rotary positions are scaled ({kind}), and the draft's have a base alone"
            )
        for part in (scaling, self.config):
            if part.get("partial_rotary_factor", 1.0) != 1.0:
                self.checkpoint.refuse("it turns a part of each head alone, and ours turn whole")
        theta = scaling.get("rope_theta")
        return float(self.setting("rope_theta") if theta is None else theta)

    # -- the target ----------------------------------------------------------------------------

    def check_width(self, width: int, target: Target) -> None:
        """Refuse a target of another width."""
        self.agree("hidden_size", width, f"its tensors are {width} wide")
        if width != target.hidden_size:
            raise DrafterMismatch(
                f"{self.checkpoint.name} is for a target of width {width}, but {target.name!r} has "
                f"width {target.hidden_size}. Load it with the target that it was trained for"
            )

    def check_vocabulary(self, target: Target) -> None:
        """Refuse a target with another vocabulary, padding aside, or with other embeddings."""
        said = self.config.get("vocab_size")
        if self.has("embed_tokens.weight"):
            said = self.size("embed_tokens.weight", 0, "vocab_size")
        if said is not None and abs(int(said) - target.vocab_size) > PADDING:
            raise DrafterMismatch(
                f"{self.checkpoint.name} is for a target of {said} tokens, but {target.name!r} has "
                f"{target.vocab_size}. Load it with the target that it was trained for"
            )
        if self.has("embed_tokens.weight"):
            ids = torch.arange(target.vocab_size, device=target.device)
            self.check_same("embed_tokens.weight", lambda rows: target.embed(ids[rows]), target)

    def check_same(self, name: str, of_target: Any, target: Target) -> None:
        """Refuse a copy of the target's matrix that is none; `of_target` gives rows of that."""
        own = self.tensor(name)
        if own.dim() != 2 or own.shape[1] != target.hidden_size:
            raise DrafterMismatch(
                f"{name} of {self.checkpoint.name} is {tuple(own.shape)}, but {target.name!r} is "
                f"{target.hidden_size} wide. Load it with the target that it was trained for"
            )
        size = min(len(own), target.vocab_size)
        rows = torch.linspace(0, size - 1, min(size, _COMPARED)).long().unique()
        theirs = of_target(rows.to(target.device)).detach().float().cpu()
        apart = (own[rows].float() - theirs).norm() / theirs.norm().clamp(min=1e-12)
        if float(apart) > _CLOSE:
            raise DrafterMismatch(
                f"{name} of {self.checkpoint.name} is not that of {target.name!r} (they differ by "
                f"{float(apart):.0%} of its norm), and a draft here reads the target's own. It was "
                "trained for another target, or with weights of its own there, which is not "
                "supported"
            )
