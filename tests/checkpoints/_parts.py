"""What builders of checkpoints share: tokenizers, weights that matter, published tensor names."""

import json
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from torch import nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoProcessor,
    AutoTokenizer,
    GenerationConfig,
    ProcessorMixin,
)

CORPUS = ["the picture shows a red circle and a blue square", "what is it? it is a chart."] * 2


def write_json(path: Path, content: Any) -> None:
    """As files on the hub look."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


# Ids of SentencePiece's single bytes. Greedy texts of models that say them are no UTF-8, and then
# byte fallback takes back characters that a streamed text has already shown.
BYTES = range(3, 259)


def write_model(
    folder: Path,
    config: dict[str, Any],
    model_class: Any,
    names: Sequence[tuple[str, str]],
    unsaid: range = range(0),
) -> nn.Module:
    """`config.json` as given, and the weights of a random model of it under published names.

    `names` are (pattern, replacement) pairs, of which the first that matches the start of a name
    in transformers' own state dict gives the name in the file. The head gives `unsaid` ids no
    weight, so that greedy decoding does not choose them.
    """
    write_json(folder / "config.json", config)
    model = model_class(AutoConfig.from_pretrained(folder))
    randomise(model)
    with torch.no_grad():
        model.get_output_embeddings().weight[unsaid.start : unsaid.stop] = 0
    tied = {name for name in getattr(model, "all_tied_weights_keys", None) or {}}
    state = {
        _published(name, names): weight.contiguous()
        for name, weight in model.state_dict().items()
        if name not in tied
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return model


def _published(name: str, names: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in names:
        if re.match(pattern, name):
            return re.sub(pattern, replacement, name, count=1)
    return name


@torch.no_grad()
def randomise(model: nn.Module, seed: int = 0) -> None:
    """Weights so large that context, position and pictures move every logit.

    Norms and biases are no identities either, so that one left out shows.
    """
    rng = torch.Generator().manual_seed(seed)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=rng)
        if id(weight) in embeddings or weight.dim() == 0:
            weight.copy_(noise)
        elif weight.dim() == 1:
            is_scale = bool((weight == 1).all())
            weight.copy_(float(is_scale) + 0.2 * noise)
        else:
            weight.copy_(noise * 1.5 * weight[0].numel() ** -0.5)


def write_generation(folder: Path, **settings: Any) -> None:
    """`generation_config.json`."""
    GenerationConfig(**settings).save_pretrained(folder)


# -- tokenizers --------------------------------------------------------------------------------


def write_llama_tokenizer(folder: Path, added: Sequence[str], **settings: Any) -> int:
    """SentencePiece-like BPE with byte fallback; `added` follow <unk>, <s>, </s> and the words.

    The size of the vocabulary.
    """
    special = ["<unk>", "<s>", "</s>"]
    core = Tokenizer.from_str(_llama_core())
    core.add_special_tokens(special)
    core.add_special_tokens(list(added))
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))]
    )
    core.save(str(folder / "tokenizer.json"))
    settings = {
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "legacy": False,
        "pad_token": "<pad>" if "<pad>" in added else "</s>",
        "tokenizer_class": "LlamaTokenizer",
        "unk_token": "<unk>",
        **settings,
    }
    _write_settings(folder, core, [*special, *added], settings)
    return core.get_vocab_size()


def write_byte_tokenizer(folder: Path, added: Sequence[str], **settings: Any) -> int:
    """Byte-level BPE, as of Qwen and Llama 3; `added` are special tokens behind the words.

    The size of the vocabulary. `settings` are of `tokenizer_config.json`.
    """
    core = Tokenizer.from_str(_byte_core())
    core.add_special_tokens(list(added))
    core.save(str(folder / "tokenizer.json"))
    vocabulary = json.loads(core.to_str())["model"]
    write_json(folder / "vocab.json", vocabulary["vocab"])
    merges = [m if isinstance(m, str) else " ".join(m) for m in vocabulary["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", "utf-8")
    settings = {
        "add_prefix_space": False,
        "bos_token": None,
        "errors": "replace",
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
        **settings,
    }
    _write_settings(folder, core, added, settings)
    return core.get_vocab_size()


def _write_settings(
    folder: Path, core: Tokenizer, special: Sequence[str], settings: dict[str, Any]
) -> None:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    decoder = {
        str(core.token_to_id(token)): {"content": token, **flags, "special": True}
        for token in special
    }
    settings = {"clean_up_tokenization_spaces": False, "model_max_length": 4096, **settings}
    write_json(folder / "tokenizer_config.json", {"added_tokens_decoder": decoder, **settings})
    kinds = ("bos_token", "eos_token", "pad_token", "unk_token")
    names = {kind: settings[kind] for kind in kinds if settings.get(kind)}
    write_json(folder / "special_tokens_map.json", names)


@cache
def _llama_core() -> str:
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    core = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=special,
        initial_alphabet=[chr(c) for c in range(33, 127)] + ["▁"],
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    raw = json.loads(core.to_str())
    raw["added_tokens"] = []  # the bytes were only reserved
    core = Tokenizer.from_str(json.dumps(raw))
    core.pre_tokenizer = None
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return core.to_str()


@cache
def _byte_core() -> str:
    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    return core.to_str()


def language(kind: str, vocab_size: int, **settings: Any) -> dict[str, Any]:
    """Keys of a small decoder's configuration."""
    return {
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 4096,
        "model_type": kind,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "vocab_size": vocab_size,
        **settings,
    }


# -- processors --------------------------------------------------------------------------------


class _NoVideos(ProcessorMixin):
    """Stands between a processor class and its base: what the class makes of videos is dropped."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        video_processor: Any = None,
        chat_template: str | None = None,
        **settings: Any,
    ) -> None:
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]


def own_processor(folder: Path) -> Any:
    """transformers' own processor of a folder; its video part is left out where it needs more."""
    try:
        return AutoProcessor.from_pretrained(folder)
    except ImportError:
        pass
    settings, _ = ProcessorMixin.get_processor_dict(folder)
    images = AutoImageProcessor.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    stored = json.loads((folder / "preprocessor_config.json").read_text("utf-8"))
    name = settings.pop("processor_class", None) or stored["processor_class"]
    template = settings.pop("chat_template", None) or tokenizer.chat_template
    for part in ("auto_map", "image_processor", "video_processor"):
        settings.pop(part, None)
    kind = type(name, (getattr(transformers, name), _NoVideos), {})
    parts = {"image_processor": images, "tokenizer": tokenizer, "video_processor": None}
    with ExitStack() as stack:
        module = sys.modules[getattr(transformers, name).__module__]
        if getattr(module, "num2words", True) is None:  # for videos, but asked for at once
            stack.enter_context(patch.object(module, "num2words", str))
        return kind(**parts, chat_template=template, **settings)
