"""What no target can do exactly is refused when it is loaded: by name, with the way out."""

from typing import Any

from varifocal.cache import check_cacheable
from varifocal.errors import UnsupportedTarget
from varifocal.targets._exact import exact_attention_name

ATTENTION = ("sdpa", "eager")  # what takes a tree's mask

# Their frequencies are the same at every length of text; those of "dynamic" change beyond
# max_position_embeddings only, where a request ends. Those of others ("longrope") change when a
# forward passes an earlier threshold, which a rejected draft may do.
_STEADY_ROPE = {"default", "dynamic", "linear", "llama3", "yarn", "mrope", "proportional"}

# Caches of transformers that hold what was computed, unchanged and in full.
_PLAIN_CACHES = {None, "dynamic", "dynamic_full", "static", "offloaded", "offloaded_static"}


_COPY_TOKENIZER = "copy tokenizer.json and tokenizer_config.json from where the model was published"


def check_attention(used: str | None, name: str) -> None:
    """Refuse attention that takes no mask of a tree, such as flash and flex attention."""
    if used not in (*ATTENTION, exact_attention_name()):
        raise UnsupportedTarget(
            f"{name} uses {used!r} attention, which takes no tree mask; load it with "
            'attention="sdpa" or "eager"'
        )


def check_decoder(text_config: Any, name: str) -> None:
    """Refuse layers and positions in which rejected drafts would leave a trace."""
    check_cacheable(text_config, name)
    rope = getattr(text_config, "rope_parameters", None) or {}
    strange = _rope_kinds(rope) - _STEADY_ROPE
    if strange:
        raise UnsupportedTarget(
            f"{name} has {min(strange)!r} rotary positions, which change with the length of the "
            "text, so drafts could change it; decode it with transformers' own generate, or "
            f"choose a checkpoint with one of {', '.join(sorted(_STEADY_ROPE))}"
        )


def _rope_kinds(rope: dict[str, Any]) -> set[str]:
    """Of all layers, which may have parameters of their own."""
    nested = [value for value in rope.values() if isinstance(value, dict)]
    return {str(one.get("rope_type") or "default") for one in (nested or [rope])}


def check_generation(generation_config: Any, name: str) -> None:
    """Refuse caches that round or forget what was computed."""
    wanted = getattr(generation_config, "cache_implementation", None)
    if wanted not in _PLAIN_CACHES:
        raise UnsupportedTarget(
            f"the generation_config.json of {name} asks for a {wanted!r} cache, whose texts differ "
            "from those of a full one; varifocal keeps a full cache. Remove cache_implementation "
            "from that file to have the texts of the full cache."
        )


def check_tokenizer(tokenizer: Any, name: str) -> None:
    """Refuse one without words, which transformers makes where the files of it are missing."""
    if getattr(tokenizer, "knows_ids_only", False):  # a caller who gives ids may leave it out
        return
    made = tokenizer("a", add_special_tokens=False)["input_ids"]
    words = set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)
    if not made or (set(made) == {tokenizer.unk_token_id} and not words):
        raise UnsupportedTarget(f"{name} has no tokenizer; {_COPY_TOKENIZER}")


def check_processor(processor: Any, image_token: str, name: str) -> None:
    """Refuse a model for pictures whose processor, tokenizer or placeholder is missing."""
    if not hasattr(processor, "image_processor"):
        raise UnsupportedTarget(
            f"{name} reads pictures, but its folder has no processor for them; copy "
            "preprocessor_config.json and processor_config.json from where the model was published"
        )
    tokenizer = processor.tokenizer
    number = tokenizer.convert_tokens_to_ids(image_token)
    if number is None or number == tokenizer.unk_token_id:
        raise UnsupportedTarget(
            f"the tokenizer of {name} has no token {image_token!r}, the placeholder of a picture; "
            f"{_COPY_TOKENIZER}"
        )


def weights_failed(error: Exception, config: Any, name: str) -> UnsupportedTarget:
    """Why weights could not be read, with their kind where they are quantised."""
    quantised = getattr(config, "quantization_config", None)
    if quantised:
        return UnsupportedTarget(
            f"the weights of {name!r} are stored in {_quantisation(quantised)}, and they cannot be "
            f"read here: {first_line(error)}. Install what reads them, or choose the checkpoint "
            "with unquantised weights."
        )
    return UnsupportedTarget(
        f"the checkpoint {name!r} cannot be read: {first_line(error)}. Its files may "
        "be incomplete; fetch or copy them again."
    )


def processor_failed(error: Exception, name: str) -> UnsupportedTarget:
    """Why tokenizer or processor could not be read."""
    return UnsupportedTarget(
        f"the checkpoint {name!r} cannot be read: it has no tokenizer or processor that can be "
        f"used here ({first_line(error)}); {_COPY_TOKENIZER}, and for pictures "
        "preprocessor_config.json, or install the library that is named"
    )


def first_line(error: Exception) -> str:
    """What an exception says first; the rest is for programmers."""
    return str(error).strip().split("\n")[0]


def _quantisation(config: Any) -> str:
    """The method, and the number of bits where it is said."""
    settings = config if isinstance(config, dict) else config.to_dict()
    bits = next(
        (
            f"{n} bits"
            for n in (4, 8)
            if settings.get(f"load_in_{n}bit") or settings.get("bits") == n
        ),
        "",
    )
    method = str(settings.get("quant_method", "an unnamed quantisation"))
    return f"{bits} ({method})" if bits else method
