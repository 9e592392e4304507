"""LLaVA-NeXT with the language models it is published with."""

from functools import partial
from pathlib import Path

from transformers import LlavaNextForConditionalGeneration

from checkpoints import Family
from checkpoints._parts import language, write_json, write_model
from checkpoints.llava import NAMES, PATCH, SIDE, no_window, tower, unsaid, write_tokenizer

# (height, width): shapes like the published ones.
GRIDS = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE], [3 * SIDE, SIDE]]
GRIDS.append([SIDE, 3 * SIDE])


def build(
    folder: Path,
    *,
    decoder: str = "mistral",
    eyes: str = "clip",
    side: int = SIDE,
    grids: list[list[int]] = GRIDS,
) -> None:
    """A checkpoint with this language model and this tower, which reads `side` pixels."""
    vocab_size, ids = write_tokenizer(folder, decoder)
    strategy = "default" if eyes == "clip" else "full"
    config = {
        "architectures": ["LlavaNextForConditionalGeneration"],
        "ignore_index": -100,
        "image_grid_pinpoints": grids,
        "model_type": "llava_next",
        "projector_hidden_act": "gelu",
        "text_config": language(decoder, vocab_size, **no_window(decoder)),
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_image_newline_parameter": True,
        "vision_config": {**tower(eyes), "image_size": side},
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": strategy,
        "vocab_size": vocab_size,
        **ids,
    }
    write_model(folder, config, LlavaNextForConditionalGeneration, NAMES, unsaid(decoder))
    write_json(
        folder / "preprocessor_config.json",
        {
            "aspect_ratio_setting": "anyres",
            "crop_size": {"height": side, "width": side},
            "do_center_crop": True,
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_pad": True,
            "do_rescale": True,
            "do_resize": True,
            "image_grid_pinpoints": grids,
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_processor_type": "LlavaNextImageProcessor",
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "processor_class": "LlavaNextProcessor",
            "resample": 3,
            "rescale_factor": 1 / 255,
            "size": {"shortest_edge": side},
        },
    )
    write_json(
        folder / "processor_config.json",
        {
            "image_token": "<image>",
            "num_additional_image_tokens": int(eyes == "clip"),
            "patch_size": PATCH,
            "processor_class": "LlavaNextProcessor",
            "vision_feature_select_strategy": strategy,
        },
    )


FAMILIES = {
    "llava_next": Family(build=build, target="llava_next"),
    **{
        f"llava_next-{decoder}": Family(
            build=partial(build, decoder=decoder), target="llava_next", is_variant=True
        )
        for decoder in ("llama", "qwen2")
    },
    "llava_next-siglip": Family(
        build=partial(build, decoder="qwen3", eyes="siglip"), target="llava_next", is_variant=True
    ),
}
