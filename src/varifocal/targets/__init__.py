"""Families of target models: one file each; the checkpoint's `model_type` finds its file."""

import json
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch
from safetensors import SafetensorError

from varifocal.errors import UnsupportedTarget
from varifocal.targets._fetched import place_of
from varifocal.targets._hf import HFTarget
from varifocal.targets._refuse import (
    check_attention,
    check_decoder,
    first_line,
    processor_failed,
    weights_failed,
)


def target_classes() -> dict[str, type[HFTarget]]:
    """Every family by the name of its file."""
    found = {}
    for info in iter_modules(__path__):
        if not info.name.startswith("_"):
            module = import_module(f"{__name__}.{info.name}")
            classes = [c for c in vars(module).values() if isinstance(c, type)]
            (found[info.name],) = [c for c in classes if c.__module__ == module.__name__]
    return found


def load_target(
    name_or_path: str = "demo",
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    exact_rows: bool | None = None,
    attention: str = "sdpa",
) -> HFTarget:
    """A frozen target: "demo" (the embedded model), a local folder, or a hub id.

    `dtype=None` takes bfloat16 where the device computes it natively, else float32.
    `exact_rows=None` takes exact rows on a CPU below float32, where they make texts identical for
    a sixth more time; in float32 texts are identical without.
    """
    # Imported here: these take two seconds, which `--help` should not.
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    name = str(name_or_path)
    check_attention(attention, name)
    path = demo_folder() if name == "demo" else place_of(name)
    config = _read_config(path, name)
    family = _family(config.model_type, name)
    check_decoder(config.get_text_config(), name)
    family.check_config(config, name)
    has_pictures = hasattr(config, "vision_config")
    loader = AutoModelForImageTextToText if has_pictures else AutoModelForCausalLM
    failures = (OSError, ValueError, RuntimeError, ImportError, SafetensorError)
    try:
        processor = family.load_processor(path)
    except failures as error:
        raise processor_failed(error, name) from error
    try:
        model, info = loader.from_pretrained(
            path,
            dtype=dtype or native_dtype(device),
            attn_implementation=attention,
            output_loading_info=True,
        )
    except failures as error:
        raise weights_failed(error, config, name) from error
    if getattr(config, "quantization_config", None) and not getattr(model, "hf_quantizer", None):
        raise weights_failed(ValueError("transformers does not know it"), config, name)
    _check_weights(name, sorted(info["missing_keys"]), sorted(info["unexpected_keys"]))
    if exact_rows is None:
        exact_rows = torch.device(device).type == "cpu" and model.dtype != torch.float32
    return family(model.to(device), processor, name, exact_rows=exact_rows)


def native_dtype(device: str | torch.device = "cpu") -> torch.dtype:
    """bfloat16 where the device has instructions for it, else float32."""
    if torch.device(device).type == "cuda":
        return torch.bfloat16
    if torch.device(device).type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX512":
        flags = Path("/proc/cpuinfo")
        if flags.exists() and "avx512_bf16" in flags.read_text():
            return torch.bfloat16
    return torch.float32


def demo_folder() -> Path:
    """Where the embedded model's checkpoint lies in this package."""
    folder = Path(__file__).parent.parent / "demo" / "weights" / "target"
    if not (folder / "model.safetensors").exists():
        raise UnsupportedTarget(
            f"the embedded model is missing from {folder}; install varifocal again, or make it "
            "with `varifocal demo build`"
        )
    return folder


def _family(model_type: str, name: str) -> type[HFTarget]:
    families = target_classes()
    for family in families.values():
        if model_type in family.model_types:
            return family
    known = sorted(t for f in families.values() for t in f.model_types)
    raise UnsupportedTarget(
        f"{name} is a {model_type!r} model; varifocal knows {', '.join(known)}. "
        "See CONTRIBUTING.md for adding a family: it is one file."
    )


def _read_config(path: str | Path, name: str) -> Any:
    """The checkpoint's configuration, once its folder is known to hold a model of a known type."""
    from transformers import AutoConfig

    if Path(path).is_dir():
        _family(_model_type(Path(path)), name)
    try:
        return AutoConfig.from_pretrained(path)
    except Exception as error:  # a broken config.json raises whatever its checks happen to raise
        if Path(path).is_dir():
            lines = " ".join(str(error).split())
            raise UnsupportedTarget(
                f"the config.json of {name!r} cannot be used: {lines}"
            ) from error
        raise UnsupportedTarget(
            f"{name!r} is neither a folder with a checkpoint nor a model that can be "
            f'fetched here ({first_line(error)}). Give a folder, a hub id, or "demo".'
        ) from error


def _model_type(folder: Path) -> str:
    """As its config.json says, read without transformers, which knows fewer words for failures."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnsupportedTarget(
            f"{folder} is a folder without config.json: no checkpoint"
        ) from None
    except (OSError, ValueError) as error:
        raise UnsupportedTarget(f"{file} cannot be read as JSON ({error})") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UnsupportedTarget(f"{file} names no model_type: no checkpoint of transformers")
    return str(config["model_type"])


def _check_weights(name: str, missing: list[str], unexpected: list[str]) -> None:
    """Every layer of the configuration must have its weights, and every layer's weights a place."""
    if missing:
        raise UnsupportedTarget(
            f"the checkpoint {name!r} lacks {len(missing)} weights, {missing[0]} among them; "
            "transformers would fill them with random numbers. Fetch or copy it again."
        )
    layers = [key for key in unexpected if ".layers." in key and "rotary" not in key]
    if layers:
        raise UnsupportedTarget(
            f"the checkpoint {name!r} has weights of layers that its config.json does not list, "
            f"{layers[0]} among them: the two do not belong together. Fetch or copy it again."
        )
