"""Qwen3-VL: nested configuration, transformers' own tensor names, features of inner layers."""

from functools import partial
from pathlib import Path

from transformers import Qwen3VLForConditionalGeneration

from checkpoints import Family
from checkpoints._parts import language, write_json, write_model
from checkpoints.qwen2_vl import TYPED, chat_template, write_tokenizer

PATCH, MERGE = 16, 2
SQUARE = PATCH * MERGE
MIN_PIXELS, MAX_PIXELS = 4 * SQUARE**2, 16 * SQUARE**2


def build(folder: Path, *, is_tied: bool = False) -> None:
    """A checkpoint whose head has its own weights, or shares those of the embeddings."""
    vocab_size, ids = write_tokenizer(folder)
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": language(
            "qwen3_vl_text",
            vocab_size,
            attention_bias=False,
            dtype="float32",
            head_dim=16,
            rope_scaling={
                "mrope_interleaved": True,
                "mrope_section": [4, 2, 2],
                "rope_type": "default",
            },
            rope_theta=10000.0,
        ),
        "tie_word_embeddings": is_tied,
        "vision_config": {
            "deepstack_visual_indexes": [0, 1],
            "depth": 3,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 32,
            "in_channels": 3,
            "intermediate_size": 48,
            "model_type": "qwen3_vl",
            "num_heads": 2,
            "num_position_embeddings": 36,
            "out_hidden_size": 64,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
        },
        **ids,
    }
    write_model(folder, config, Qwen3VLForConditionalGeneration, [])
    for kind, edges in (("image", (MIN_PIXELS, MAX_PIXELS)), ("video", (4096, 25165824))):
        pictures = {
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
            "merge_size": MERGE,
            "patch_size": PATCH,
            "processor_class": "Qwen3VLProcessor",
            "size": {"longest_edge": edges[1], "shortest_edge": edges[0]},
            "temporal_patch_size": 2,
        }
        if kind == "image":
            pictures["image_processor_type"] = "Qwen2VLImageProcessorFast"
            write_json(folder / "preprocessor_config.json", pictures)
        else:
            pictures["video_processor_type"] = "Qwen3VLVideoProcessor"
            write_json(folder / "video_preprocessor_config.json", pictures)
    write_json(folder / "chat_template.json", {"chat_template": chat_template()})


FAMILIES = {
    "qwen3_vl": Family(build=build, target="qwen3_vl", typed=TYPED),
    "qwen3_vl-tied": Family(
        build=partial(build, is_tied=True),
        target="qwen3_vl",
        typed=TYPED,
        is_variant=True,
    ),
}
