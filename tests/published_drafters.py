"""Checkpoints of drafters as their authors publish them, tiny and with random weights.

And what their formulas make of them: naive twins in float64 that read the published names.
"""

import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import save_file

from varifocal.demo.model import new_model, new_processor
from varifocal.drafters import load_drafter
from varifocal.targets.llava_next import LlavaNextTarget

WIDTH, HEADS, GROUPS, SIZE, INNER, EPS, THETA = 64, 4, 2, 16, 40, 1e-5, 1e4
LAYERS, DRAFT_VOCAB = 8, 50


@cache
def deep_target(seed: int = 0) -> LlavaNextTarget:
    """As `tiny.tiny_target`, with layers enough for the ids that authors write."""
    model = new_model(replace(tiny.SHAPE, layers=LAYERS), tiny.tokenizer(), seed)
    with torch.no_grad():
        model.lm_head.weight.mul_(80)
    model.generation_config.eos_token_id = tiny.tokenizer().eos_token_id
    model.config.text_config._attn_implementation = "sdpa"
    return LlavaNextTarget(model, new_processor(tiny.tokenizer()), "deep")


@cache
def forgetful_target() -> LlavaNextTarget:
    """One that says what its last token alone suggests: its layers add nothing."""
    target = deep_target(5)
    with torch.no_grad():
        for layer in target.model.model.language_model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return target


def save(target: LlavaNextTarget, folder: Path) -> Path:
    """The target as a checkpoint folder."""
    target.model.save_pretrained(folder)
    target.processor.save_pretrained(folder)
    return folder


@dataclass
class Published:
    """What the files of a checkpoint hold."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, name: str, *shape: int) -> None:
        """Random; scales of norms around 1, so that none can be left out unseen."""
        made = torch.Generator().manual_seed(len(self.tensors) + 1)
        drawn = torch.randn(shape, generator=made)
        if len(shape) == 2:
            drawn = drawn / shape[1] ** 0.5
        elif name.endswith("norm.weight") or ".norm." in name or "fc_norm" in name:
            drawn = 1 + 0.3 * drawn
        elif len(shape) == 1:
            drawn = 0.3 * drawn
        self.tensors[name] = drawn

    def attention(self, name: str, *, read: int = WIDTH, groups: int = HEADS) -> None:
        for kind, heads in (("q", HEADS), ("k", groups), ("v", groups)):
            self.add(f"{name}.{kind}_proj.weight", heads * SIZE, read)
        self.add(f"{name}.o_proj.weight", WIDTH, HEADS * SIZE)

    def bias(self, name: str, *, groups: int) -> None:
        for kind, heads in (("q", HEADS), ("k", groups), ("v", groups)):
            self.add(f"{name}.{kind}_proj.bias", heads * SIZE)

    def feed_forward(self, name: str) -> None:
        self.add(f"{name}.mlp.gate_proj.weight", INNER, WIDTH)
        self.add(f"{name}.mlp.up_proj.weight", INNER, WIDTH)
        self.add(f"{name}.mlp.down_proj.weight", WIDTH, INNER)
        self.add(f"{name}.post_attention_layernorm.weight", WIDTH)

    def layer(self, n: int, *, first_norm: bool, groups: int = HEADS, bias: bool = False) -> None:
        name = f"layers.{n}"
        if first_norm:
            self.add(f"{name}.input_layernorm.weight", WIDTH)
        self.attention(f"{name}.self_attn", groups=groups)
        if bias:
            self.bias(f"{name}.self_attn", groups=groups)
        self.feed_forward(name)

    def write(self, folder: Path, container: str = "safetensors", dtype: Any = None) -> Path:
        """As files of that container: safetensors, bin, or both in shards."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        whole = {
            name: (t.to(dtype) if dtype and t.is_floating_point() else t).contiguous()
            for name, t in self.tensors.items()
        }
        kind = container.removesuffix("-shards")
        name = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}[kind]
        store = save_file if kind == "safetensors" else torch.save
        if kind == container:
            store(whole, folder / name)
            return folder
        stem, suffix = name.split(".")
        shards = [f"{stem}-0000{n}-of-00002.{suffix}" for n in (1, 2)]
        names = sorted(whole)
        listed = {key: shards[2 * n >= len(names)] for n, key in enumerate(names)}
        for shard in shards:
            part = {key: whole[key] for key, place in listed.items() if place == shard}
            store(part, folder / shard)
        (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": listed}))
        return folder


def llama(**more: Any) -> dict[str, Any]:
    """The config of a layer, as most authors write it."""
    return {
        "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER,
        "num_attention_heads": HEADS, "num_hidden_layers": 1, "rms_norm_eps": EPS,
        "hidden_act": "silu", "rope_scaling": None, **more,
    }  # fmt: skip


def embeddings(target: Any) -> torch.Tensor:
    return target.model.get_input_embeddings().weight.detach().clone()


def eagle(target: Any, *, layers: int = 1) -> Published:
    made = Published(llama(num_hidden_layers=layers, bias=True, vocab_size=target.vocab_size))
    made.tensors["embed_tokens.weight"] = embeddings(target)
    for n in range(layers):
        made.layer(n, first_norm=n > 0)
    made.add("fc.weight", WIDTH, 2 * WIDTH)
    made.add("fc.bias", WIDTH)
    made.tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(SIZE // 2)
    return made


def obvious(target: Any, *, state: float = 0.0, embedding: float = 1.0) -> Published:
    """EAGLE that hands on what it reads, of [embedding; state]: right on a forgetful target."""
    made = eagle(target)
    made.tensors["fc.bias"].zero_()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        made.tensors[f"layers.0.{name}.weight"].zero_()
    eye = torch.eye(WIDTH)
    made.tensors["fc.weight"] = torch.cat([embedding * eye, state * eye], 1)
    return made


def msd_qwen(target: Any) -> Published:
    scaling = {"type": "mrope", "mrope_section": [2, 3, 3]}
    made = Published(llama(rope_theta=1e6, rope_scaling=scaling, num_key_value_heads=GROUPS))
    made.layer(0, first_norm=True, groups=GROUPS, bias=True)
    made.add("fc.weight", WIDTH, 2 * WIDTH)
    made.add("fc.bias", WIDTH)
    return made


def vispec(target: Any, *, num_q: int = 3, qkv_bias: bool = True) -> Published:
    made = Published(llama(qkv_bias=qkv_bias, vocab_size=target.vocab_size))
    made.layer(0, first_norm=False, bias=qkv_bias)
    made.add("fc.weight", WIDTH, 2 * WIDTH)
    made.add("fc.bias", WIDTH)
    made.add("img_fc.weight", WIDTH, 2 * WIDTH)
    made.add("img_fc.bias", WIDTH)
    made.add("imadpt.q", num_q, HEADS, SIZE)
    for kind in "kvo":
        made.add(f"imadpt.{kind}_proj.weight", WIDTH, WIDTH)
    if qkv_bias:
        made.add("imadpt.k_proj.bias", WIDTH)
        made.add("imadpt.v_proj.bias", WIDTH)
    return made


def dream(target: Any) -> Published:
    made = Published(llama(vocab_size=target.vocab_size))  # which says one layer, of three
    made.layer(0, first_norm=False)
    made.attention("layers.1.cross_attn")
    made.add("layers.1.cross_attn.q_norm.weight", SIZE)
    made.add("layers.1.cross_attn.k_norm.weight", SIZE)
    made.add("layers.1.input_layernorm.weight", WIDTH)
    made.feed_forward("layers.1")
    made.tensors["layers.1.cross_attn_attn_gate"] = torch.tensor([0.7])
    made.tensors["layers.1.cross_attn_mlp_gate"] = torch.tensor([-0.4])
    made.layer(2, first_norm=True)
    made.add("norm.weight", WIDTH)
    return made


def draft_ids(target: Any, size: int = DRAFT_VOCAB) -> torch.Tensor:
    """Ascending ids, special ones among them as in published maps."""
    step = target.vocab_size // size
    ids = {n * step for n in range(size)} | {min(target.banned_ids)}
    return torch.tensor(sorted(ids))


def eagle3(target: Any, *, first: str = "midlayer", size: int = DRAFT_VOCAB,
           layers: int = 1) -> Published:  # fmt: skip
    ids = draft_ids(target, size) if size else torch.arange(target.vocab_size)
    made = Published(llama(num_key_value_heads=GROUPS, draft_vocab_size=len(ids),
                           vocab_size=target.vocab_size, num_hidden_layers=layers))  # fmt: skip
    made.attention(f"{first}.self_attn", read=2 * WIDTH, groups=GROUPS)
    for norm in ("input_layernorm", "hidden_norm"):
        made.add(f"{first}.{norm}.weight", WIDTH)
    made.feed_forward(first)
    for n in range(1, layers):
        made.layer(n, first_norm=True, groups=GROUPS)
    made.add("fc.weight", WIDTH, 3 * WIDTH)
    made.add("norm.weight", WIDTH)
    made.add("lm_head.weight", len(ids), WIDTH)
    made.tensors["lm_head.weight"] *= 4
    if size:
        made.tensors["d2t"] = ids - torch.arange(len(ids))
        made.tensors["t2d"] = torch.zeros(target.vocab_size, dtype=torch.bool)
        made.tensors["t2d"][ids] = True
    return made


def speculators(target: Any, *, layers: int = 1, ids: Any = None, **flags: bool) -> Published:
    """EAGLE-3 with a nested config, which leaves out what is a default."""
    made = eagle3(target, first="layers.0", layers=layers)
    inner = made.config
    del inner["rope_scaling"], inner["hidden_act"]
    made.config = {
        "speculators_model_type": "eagle3", "speculators_version": "0.3.0",
        "architectures": ["Eagle3Speculator"], "draft_vocab_size": inner.pop("draft_vocab_size"),
        "eagle_aux_hidden_state_layer_ids": ids, "transformer_layer_config": inner, **flags,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "x/y"}},
    }  # fmt: skip
    if flags.get("norm_before_fc"):
        made.add("input_norm.weight", 3 * WIDTH)
    if flags.get("fc_norm"):
        for n in range(3):
            made.add(f"fc_norm.{n}.weight", WIDTH)
    return made


def dflash(target: Any, *, rank: int = 0, block: int = 4, layers: int = 2) -> Published:
    inner = {"mask_token_id": 7, "target_layer_ids": [0, 2, 4]}
    made = Published(llama(model_type="qwen3", num_hidden_layers=layers, block_size=block,
                           num_key_value_heads=GROUPS, num_target_layers=LAYERS,
                           rope_theta=1e6))  # fmt: skip
    if rank:
        made.config |= {"architectures": ["Qwen3DSparkModel"], "markov_rank": rank,
                        "markov_head_type": "vanilla", **inner}  # fmt: skip
        made.add("markov_head.markov_w1.weight", target.vocab_size, rank)
        made.add("markov_head.markov_w2.weight", target.vocab_size, rank)
        made.add("confidence_head.proj.weight", 1, WIDTH + rank)
        made.add("confidence_head.proj.bias", 1)
        made.tensors["embed_tokens.weight"] = embeddings(target)
        made.tensors["lm_head.weight"] = target.model.lm_head.weight.detach().clone()
    else:
        made.config |= {"architectures": ["DFlashDraftModel"], "dflash_config": inner}
    made.add("fc.weight", WIDTH, 3 * WIDTH)
    made.add("hidden_norm.weight", WIDTH)
    made.add("norm.weight", WIDTH)
    for n in range(layers):
        made.layer(n, first_norm=True, groups=GROUPS)
        for kind in "qk":
            made.add(f"layers.{n}.self_attn.{kind}_norm.weight", SIZE)
    return made


# What writes a checkpoint, and the family that it is of.
FAMILY = {"eagle": "eagle", "msd_qwen": "msd", "vispec": "vispec", "dream": "dream",
          "eagle3": "eagle3", "speculators": "speculators", "dflash": "dflash"}  # fmt: skip


def load_untried(folder: Path, target: Any, **options: Any) -> Any:
    """A drafter from a folder, without the gate unless it is asked for."""
    return load_drafter(str(folder), target, **{"check": False, **options})


def refused(made: Published, target: Any, folder: Path, kind: Any, named: str, **options: Any):
    """Assert that a checkpoint is refused with these words."""
    with pytest.raises(kind, match=named):
        load_untried(made.write(folder / "EAGLE"), target, **options)


# -- the published formulas --------------------------------------------------------------------


class Formulas:
    """Of one checkpoint: rows are [n, D] in float64, positions one number each."""

    def __init__(self, made: Published) -> None:
        self.made = made
        config = made.config.get("transformer_layer_config", made.config)
        self.w = {name: t.double() for name, t in made.tensors.items()}
        self.eps, self.theta = config["rms_norm_eps"], config.get("rope_theta", THETA)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        made = x @ self.w[f"{name}.weight"].T
        return made + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else made

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return x * scale * self.w[f"{name}.weight"]

    def turned(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x cos + rotate_half(x) sin, of [n, heads, dh]."""
        half = x.shape[-1] // 2
        rate = self.theta ** (-torch.arange(half).double() / half)
        angle = (positions.double()[:, None] * rate).repeat(1, 2)[:, None]
        rotated = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * angle.cos() + rotated * angle.sin()

    def heads(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self.linear(name, x).unflatten(-1, (-1, SIZE))

    def read(self, q, k, v, sees) -> torch.Tensor:
        """[n, H, dh] of what each row sees among m; repeat_kv makes heads of keys as many."""
        k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], 1) for y in (k, v))
        scores = torch.einsum("nhd,mhd->hnm", q, k) / SIZE**0.5
        law = scores.masked_fill(~sees, float("-inf")).softmax(-1)
        return torch.einsum("hnm,mhd->nhd", law, v).flatten(1)

    def self_attention(self, name: str, x: torch.Tensor, positions) -> torch.Tensor:
        q, k = (self.turned(self.heads(f"{name}.{y}_proj", x), positions) for y in "qk")
        sees = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        return self.linear(f"{name}.o_proj", self.read(q, k, self.heads(f"{name}.v_proj", x), sees))

    def mlp(self, name: str, x: torch.Tensor) -> torch.Tensor:
        gate, up = (self.linear(f"{name}.{y}_proj", x) for y in ("gate", "up"))
        return self.linear(f"{name}.down_proj", gate * gate.sigmoid() * up)

    def finish(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(f"{name}.mlp", self.norm(f"{name}.post_attention_layernorm", x))

    def layer(self, name: str, x: torch.Tensor, positions) -> torch.Tensor:
        has_norm = f"{name}.input_layernorm.weight" in self.w
        normed = self.norm(f"{name}.input_layernorm", x) if has_norm else x
        return self.finish(name, x + self.self_attention(f"{name}.self_attn", normed, positions))

    def layers(self, x: torch.Tensor, positions) -> torch.Tensor:
        for n in range(len({name.split(".")[1] for name in self.w if name.startswith("layers.")})):
            x = self.layer(f"layers.{n}", x, positions)
        return x

    def fc(self, embedding: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return self.linear("fc", torch.cat([embedding, state], -1))
