"""Diffusion language models from files and into files: shipped ones, folders, hub ids."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from varifocal.diffusion._tensors import read_tensors, write_tensors
from varifocal.diffusion.denoiser import Vocabulary
from varifocal.diffusion.layouts import LAYOUTS, Layout, Published, end_of
from varifocal.diffusion.masked import MaskedDenoiser
from varifocal.diffusion.model import MaskedTransformer
from varifocal.errors import BadArtifact, UnsupportedTarget
from varifocal.targets._fetched import place_of
from varifocal.targets._refuse import first_line

SHIPPED = ("llada-tiny", "dream-tiny")
CONFIG, GENERATION, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
_BPE = ("vocab.json", "merges.txt")  # Dream is published with these and no tokenizer.json
_WANTED = (
    CONFIG,
    GENERATION,
    "*.safetensors",
    f"{WEIGHTS}.index.json",
    "tokenizer*.json",
    "chat_template*",
    *_BPE,
)
_TURNS = ("<|eot_id|>", "<|im_end|>")  # what ends a turn of LLaDA's and Dream's chats

# Relatives by what their model_type, architecture or keys contain, with what sets them apart.
_RELATIVES = {
    "diffusiongemma": "is denoised by its own scheme: load it with varifocal.diffusion.gemma",
    "moe": "has a mixture of experts in its feed-forward layers",
    "llava": "reads pictures",
    "mmada": "reads and draws pictures",
    "fastdllm": "attends causally between blocks",
    "sdar": "attends causally between blocks",
    "dreamforcausallm": "attends causally between blocks",
}


def load_denoiser(
    place: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: str = "auto",
    exact_rows: bool | None = None,
) -> MaskedDenoiser:
    """A frozen masked diffusion model: "llada-tiny", "dream-tiny", a folder or a hub id.

    No code of the checkpoint is run. `dtype=None` keeps the precision of its file (float16 becomes
    float32 on a CPU); `device` "auto" takes CUDA if there is any; `exact_rows` is that of
    `MaskedDenoiser`. Raises UnsupportedTarget for other models, by name, and BadArtifact for files
    that are missing, damaged or do not belong together.
    """
    name = str(place)
    folder = _folder(name)
    layout, published = _understood(folder, name)
    config = layout.config(published)
    folder = folder or _fetched(name, _WANTED)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = _tokenizer(folder, name)
    vocabulary = _vocabulary(published, _generation(folder), tokenizer, config.vocab)
    with torch.device("meta"):
        model = MaskedTransformer(config)
    read_tensors(model, layout, folder, name, dtype, torch.device(device))
    return MaskedDenoiser(model, vocabulary, tokenizer, name, exact_rows=exact_rows)


def write_checkpoint(
    model: MaskedTransformer,
    folder: Path,
    kind: str,
    vocabulary: Vocabulary,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Config, weights and tokenizer in the published layout of `kind`: "llada" or "dream".

    `load_denoiser` makes the same model of the folder, bit for bit, with the same vocabulary.
    """
    (layout,) = [layout for layout in LAYOUTS.values() if layout.kind == kind]
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / CONFIG, layout.published(model.config, vocabulary))
    end = end_of(vocabulary)
    stops = [end, *sorted(vocabulary.stops - {end})]
    generation: dict[str, Any] = {"eos_token_id": stops, "pad_token_id": vocabulary.pad}
    implied = _unsaid(tokenizer, vocabulary.size) | {vocabulary.pad}
    if spoken := sorted(vocabulary.banned - implied):
        generation["suppress_tokens"] = spoken
    _write(folder / GENERATION, generation)
    tokenizer.save_pretrained(folder)
    write_tensors(model, layout, folder / WEIGHTS)


# -- which folder ------------------------------------------------------------------------------


def _folder(name: str) -> Path | None:
    """Where the files are; None for a hub id, of which nothing may be here yet."""
    if name in SHIPPED:
        folder = Path(__file__).parent / "weights" / name
        if not (folder / WEIGHTS).exists():
            raise BadArtifact(f"{name} is missing from {folder}; install varifocal again")
        return folder
    if Path(name).is_file():
        raise UnsupportedTarget(
            f"{name} is a file; give the folder with the checkpoint's {CONFIG} and {WEIGHTS}"
        )
    place = place_of(name, shipped=SHIPPED)
    return Path(place) if Path(place).is_dir() else None


def _fetched(name: str, patterns: tuple[str, ...]) -> Path:
    # Imported here: it takes time that `--help` should not.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except (OSError, ValueError) as error:  # what the hub answers is an OSError
        raise UnsupportedTarget(
            f"{name!r} is neither a folder nor a model that can be fetched here "
            f"({first_line(error)}). Give a folder, a hub id, or one of {', '.join(SHIPPED)}"
        ) from error


# -- what it holds -----------------------------------------------------------------------------


def _understood(folder: Path | None, name: str) -> tuple[Layout, Published]:
    """The layout of a checkpoint, before anything large is fetched or read."""
    folder = folder or _fetched(name, (CONFIG,))
    if not (folder / CONFIG).exists():
        raise UnsupportedTarget(f"{folder} is a folder without {CONFIG}: no checkpoint")
    keys = _read(folder / CONFIG)
    model_type = keys.get("model_type")
    layout = LAYOUTS.get(model_type) if isinstance(model_type, str) else None
    named = keys.get("architectures") or []
    architectures = [str(a) for a in (named if isinstance(named, list) else [named])]
    strange = layout is None or (architectures and layout.architecture not in architectures)
    if layout is None or strange or "num_experts" in keys:
        raise UnsupportedTarget(_refusal(name, model_type, architectures, keys))
    if "quantization_config" in keys:
        raise UnsupportedTarget(
            f"{name} is quantized; take the checkpoint that it was made of, in bfloat16, float16 "
            "or float32"
        )
    return layout, Published(keys, name)


def _refusal(
    name: str, model_type: object, architectures: list[str], keys: Mapping[str, Any]
) -> str:
    words = [str(model_type), *architectures, *(["moe"] if "num_experts" in keys else [])]
    squeezed = "".join(words).lower().replace("_", "").replace("-", "")
    reasons = [reason for part, reason in _RELATIVES.items() if part in squeezed]
    known = ", ".join(f"{one.model_type} ({one.example})" for one in LAYOUTS.values())
    made = f" ({', '.join(architectures)})" if architectures else ""
    return (
        f"{name} is a {model_type!r} model{made}"
        + (f" and {reasons[0]}" if reasons else ", none of the masked diffusion models known here")
        + f"; loaded are {known} and {', '.join(SHIPPED)}. A model that writes from left to right "
        "is decoded by `varifocal generate`"
    )


def _vocabulary(
    published: Published,
    generation: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    size: int,
) -> Vocabulary:
    keys, name = published.keys, published.name
    if len(tokenizer) > size:
        raise BadArtifact(
            f"the tokenizer of {name} has {len(tokenizer)} tokens and the model {size} ids: they "
            "do not belong together; copy both again from where the model was published"
        )

    def ids(key: str, source: Mapping[str, Any]) -> list[int]:
        value = source.get(key)
        found = value if isinstance(value, list) else [] if value is None else [value]
        if any(type(i) is not int or not 0 <= i < size for i in found):
            raise published.strange(key, f"ids from 0 to {size - 1}")
        return found

    masks = ids("mask_token_id", keys) or [i for i in [tokenizer.mask_token_id] if i is not None]
    ends = ids("eos_token_id", keys) + ids("eos_token_id", generation)
    if not masks or not ends:
        raise UnsupportedTarget(
            f"the {CONFIG} of {name} gives no {'eos' if masks else 'mask'}_token_id; copy the file "
            "again from where the model was published"
        )
    known = tokenizer.get_vocab()
    stops = frozenset([*ends, *(known[turn] for turn in _TURNS if turn in known)])
    pad = (ids("pad_token_id", keys) or ends)[0]
    suppressed = ids("suppress_tokens", generation)
    banned = _unsaid(tokenizer, size) | {pad, *suppressed}
    return Vocabulary(
        size=size,
        mask=masks[0],
        pad=pad,
        stops=stops,
        banned=frozenset(banned - stops - {masks[0]}),
    )


def _unsaid(tokenizer: PreTrainedTokenizerBase, size: int) -> set[int]:
    """Ids without a token: the embedding is padded to a round number."""
    return set(range(size)) - set(tokenizer.get_vocab().values())


def _tokenizer(folder: Path, name: str) -> PreTrainedTokenizerBase:
    has_bpe = all((folder / file).exists() for file in _BPE)
    if not (folder / "tokenizer.json").exists() and not has_bpe:
        raise BadArtifact(
            f"{name} has no tokenizer.json, nor {' and '.join(_BPE)}; copy them and "
            "tokenizer_config.json from where the model was published"
        )
    # Dream's own tokenizer is Qwen2's, under another name.
    reader = Qwen2Tokenizer if has_bpe else PreTrainedTokenizerFast
    try:
        made = reader.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library of tokenizers raises Exception itself
        raise BadArtifact(
            f"the tokenizer of {name} cannot be read ({first_line(error)}); copy its files again "
            "from where the model was published"
        ) from error
    settings = folder / "tokenizer_config.json"
    special = _read(settings).get("added_tokens_decoder", {}) if settings.exists() else {}
    for number, token in special.items():
        found = made.convert_tokens_to_ids(token["content"])
        if found != int(number):  # the library numbers them itself where words are missing
            raise BadArtifact(
                f"the tokenizer of {name} gives {token['content']} the id {found}, and its "
                f"{settings.name} says {number}; copy its files again from where the model was "
                "published"
            )
    return made


def _generation(folder: Path) -> dict[str, Any]:
    path = folder / GENERATION
    return _read(path) if path.exists() else {}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadArtifact(f"{path} cannot be read as JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise BadArtifact(f"{path} holds no JSON object; fetch it again")
    return content


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
