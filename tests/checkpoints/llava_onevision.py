"""LLaVA-OneVision, as `llava-hf` publishes it: Qwen2 with a SigLIP tower."""

from pathlib import Path

from transformers import LlavaOnevisionForConditionalGeneration

from checkpoints import Family
from checkpoints._parts import language, write_json, write_model
from checkpoints.llava import NAMES, PATCH, tower, write_tokenizer

SIDE = 56
GRIDS = [[SIDE * rows, SIDE * columns] for rows in range(1, 5) for columns in range(1, 5)]


def build(
    folder: Path, *, side: int = SIDE, grids: list[list[int]] = GRIDS, limit: int = 4
) -> None:
    """A checkpoint whose tower reads `side` pixels; more than `limit` tiles are shrunk."""
    vocab_size, ids = write_tokenizer(folder, "qwen2")
    picture = ids.pop("image_token_index")
    config = {
        "architectures": ["LlavaOnevisionForConditionalGeneration"],
        "ignore_index": -100,
        "image_grid_pinpoints": grids,
        "image_token_index": picture,
        "model_type": "llava_onevision",
        "projector_hidden_act": "gelu",
        "text_config": language("qwen2", vocab_size, tie_word_embeddings=True),
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_image_newline_parameter": True,
        "video_token_index": picture + 1,
        "vision_aspect_ratio": f"anyres_max_{limit}",
        "vision_config": {**tower("siglip"), "image_size": side, "vision_use_head": False},
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        **ids,
    }
    write_model(folder, config, LlavaOnevisionForConditionalGeneration, NAMES)
    write_json(
        folder / "preprocessor_config.json",
        {
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_pad": True,
            "do_rescale": True,
            "do_resize": True,
            "image_grid_pinpoints": grids,
            "image_mean": [0.5] * 3,
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "image_std": [0.5] * 3,
            "processor_class": "LlavaOnevisionProcessor",
            "resample": 3,
            "rescale_factor": 1 / 255,
            "size": {"height": side, "width": side},
        },
    )
    write_json(
        folder / "processor_config.json",
        {
            "image_token": "<image>",
            "num_image_tokens": (side // PATCH) ** 2,
            "processor_class": "LlavaOnevisionProcessor",
            "video_token": "<video>",
            "vision_aspect_ratio": f"anyres_max_{limit}",
            "vision_feature_select_strategy": "full",
        },
    )


FAMILIES = {
    "llava_onevision": Family(
        build=build,
        target="llava_onevision",
        # The first is beyond the limit on tiles, the second elongated.
        sizes=((220, 220), (30, 170), (80, 60)),
        typed="<image> <video> <|im_end|>",
    )
}
