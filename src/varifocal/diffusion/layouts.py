"""Published layouts of masked diffusion models: config keys and tensor names, both ways."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from varifocal.diffusion.denoiser import Vocabulary
from varifocal.diffusion.model import ModelConfig
from varifocal.errors import UnsupportedTarget

_MOST = 1 << 30  # of any size: what is larger is no number of layers, ids or positions


@dataclass(frozen=True)
class Published:
    """A config.json, and the name of its checkpoint for people."""

    keys: Mapping[str, Any]
    name: str

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1; null and absence are the default."""
        value = self.keys.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 1 <= value < _MOST:
            raise self.strange(key, "a whole number of at least 1")
        return value

    def number(self, key: str) -> float:
        """A number above 0."""
        value = self.keys.get(key)
        if (type(value) is int or type(value) is float) and 0 < value < float("inf"):
            return float(value)
        raise self.strange(key, "a number above 0")

    def flag(self, key: str, default: bool) -> bool:
        """True or false; null and absence are the default."""
        value = self.keys.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.strange(key, "true or false")
        return value

    def strange(self, key: str, wanted: str) -> UnsupportedTarget:
        """A value that says nothing sensible."""
        return UnsupportedTarget(
            f"the config.json of {self.name} gives {key} as {self.keys.get(key)!r}; wanted "
            f"{wanted}. Copy the file again from where the model was published"
        )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one family writes its models down."""

    kind: str  # "llada" or "dream"
    model_type: str
    architecture: str
    example: str  # a checkpoint on the hub that is loaded
    keys: Mapping[str, str]  # a field of ModelConfig to the key that gives it
    defaults: Mapping[str, bool]  # of flags whose key may be absent
    fixed: Mapping[str, Any]  # keys that change the arithmetic, with what is computed here
    modules: Mapping[str, str]  # ours to theirs; {} is the number of a layer
    shift: bool
    also: Mapping[str, str]  # keys that repeat a field
    longest: int  # context that the family was trained on, whatever its configs say

    def config(self, published: Published) -> ModelConfig:
        """Sizes and kind. Raises UnsupportedTarget for variants with another arithmetic."""
        for key, computed in self.fixed.items():
            if published.keys.get(key) not in (None, computed):
                raise UnsupportedTarget(
                    f"{published.name} has {key} = {published.keys[key]!r}, and only {computed!r} "
                    f"is computed here; choose a checkpoint like {self.example}"
                )
        made = {field: self._field(published, field) for field in self.keys}
        made["context"] = min(made["context"], self.longest)
        config = ModelConfig(**made, shift=self.shift)
        if config.hidden % config.heads or config.heads % config.kv_heads or config.head_width % 2:
            raise UnsupportedTarget(
                f"the config.json of {published.name} divides {config.hidden} hidden units into "
                f"{config.heads} heads, {config.kv_heads} of them with keys and values, which does "
                "not come out even; copy the file again from where the model was published"
            )
        return config

    def published(self, config: ModelConfig, vocabulary: Vocabulary) -> dict[str, Any]:
        """The content of a config.json: every published key that the arithmetic depends on."""
        if config.shift != self.shift:
            raise ValueError(f"a {self.kind} model has shift={self.shift}, got {config}")
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **self.fixed,
            **{key: getattr(config, field) for field, key in self.keys.items()},
            **{key: getattr(config, field) for key, field in self.also.items()},
            "mask_token_id": vocabulary.mask,
            "pad_token_id": vocabulary.pad,
            "eos_token_id": end_of(vocabulary),
        }

    def named(self, ours: str) -> str:
        """The published name of a parameter of `MaskedTransformer`."""
        module, _, leaf = ours.rpartition(".")
        parts = module.split(".")
        if parts[0] != "layers":
            return f"{self.modules[module]}.{leaf}"
        return f"{self.modules['layers.{}.' + parts[2]].format(parts[1])}.{leaf}"

    def _field(self, published: Published, field: str) -> Any:
        key = self.keys[field]
        if field in self.defaults:
            return published.flag(key, self.defaults[field])
        if field in ("theta", "eps"):
            return published.number(key)
        heads = published.count(self.keys["heads"]) if field == "kv_heads" else None
        return published.count(key, heads)


# LLaDA-8B and LLaDA-1.5. Names and keys are those of OLMo, from which the code comes.
LLADA = Layout(
    kind="llada",
    model_type="llada",
    architecture="LLaDAModelLM",
    example="GSAI-ML/LLaDA-8B-Instruct",
    keys={
        "vocab": "embedding_size",
        "hidden": "d_model",
        "inner": "mlp_hidden_size",
        "layers": "n_layers",
        "heads": "n_heads",
        "kv_heads": "n_kv_heads",
        "context": "max_sequence_length",
        "theta": "rope_theta",
        "eps": "rms_norm_eps",
        "bias": "include_qkv_bias",
        "tied": "weight_tying",
    },
    defaults={"bias": False, "tied": True},
    fixed={
        "block_type": "llama",
        "activation_type": "silu",
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "bias_for_layer_norm": False,
        "attention_layer_norm": False,
        "multi_query_attention": False,
        "input_emb_norm": False,
        "include_bias": False,
        "scale_logits": False,
        "alibi": False,
        "rope": True,
    },
    modules={
        "embed": "model.transformer.wte",
        "norm": "model.transformer.ln_f",
        "head": "model.transformer.ff_out",
        "layers.{}.attention_norm": "model.transformer.blocks.{}.attn_norm",
        "layers.{}.query": "model.transformer.blocks.{}.q_proj",
        "layers.{}.key": "model.transformer.blocks.{}.k_proj",
        "layers.{}.value": "model.transformer.blocks.{}.v_proj",
        "layers.{}.out": "model.transformer.blocks.{}.attn_out",
        "layers.{}.inner_norm": "model.transformer.blocks.{}.ff_norm",
        "layers.{}.gate": "model.transformer.blocks.{}.ff_proj",
        "layers.{}.up": "model.transformer.blocks.{}.up_proj",
        "layers.{}.down": "model.transformer.blocks.{}.ff_out",
    },
    shift=False,
    also={"vocab_size": "vocab"},
    longest=_MOST,
)

# Dream-7B and what was trained from it. Names and keys are those of Qwen2. The config.json keeps
# the 131,072 positions of the Qwen2.5 that it began as; its authors state a context of 2,048.
DREAM = Layout(
    kind="dream",
    model_type="Dream",
    architecture="DreamModel",
    example="Dream-org/Dream-v0-Instruct-7B",
    keys={
        "vocab": "vocab_size",
        "hidden": "hidden_size",
        "inner": "intermediate_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "context": "max_position_embeddings",
        "theta": "rope_theta",
        "eps": "rms_norm_eps",
        "bias": "attention_bias",
        "tied": "tie_word_embeddings",
    },
    defaults={"bias": True, "tied": False},
    fixed={
        "hidden_act": "silu",
        "rope_scaling": None,
        "use_mrope": False,
        "use_sliding_window": False,
    },
    modules={
        "embed": "model.embed_tokens",
        "norm": "model.norm",
        "head": "lm_head",
        "layers.{}.attention_norm": "model.layers.{}.input_layernorm",
        "layers.{}.query": "model.layers.{}.self_attn.q_proj",
        "layers.{}.key": "model.layers.{}.self_attn.k_proj",
        "layers.{}.value": "model.layers.{}.self_attn.v_proj",
        "layers.{}.out": "model.layers.{}.self_attn.o_proj",
        "layers.{}.inner_norm": "model.layers.{}.post_attention_layernorm",
        "layers.{}.gate": "model.layers.{}.mlp.gate_proj",
        "layers.{}.up": "model.layers.{}.mlp.up_proj",
        "layers.{}.down": "model.layers.{}.mlp.down_proj",
    },
    shift=True,
    also={},
    longest=2048,
)

LAYOUTS: Mapping[str, Layout] = {layout.model_type: layout for layout in (LLADA, DREAM)}


def end_of(vocabulary: Vocabulary) -> int:
    """The first stop: padding where that ends a text, as in both families."""
    return vocabulary.pad if vocabulary.pad in vocabulary.stops else min(vocabulary.stops)
