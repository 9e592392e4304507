"""Published config.json files, read and written; variants with another arithmetic are refused."""

import pytest
from diffusion.checkpoints import DREAM, LLADA
from diffusion.tiny import tiny_config, tiny_vocabulary

from varifocal.diffusion.layouts import LAYOUTS, Published
from varifocal.diffusion.model import ModelConfig
from varifocal.errors import UnsupportedTarget

LLADA_8B = LLADA | {
    "d_model": 4096,
    "embedding_size": 126464,
    "max_sequence_length": 4096,
    "mlp_hidden_size": 12288,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
}
DREAM_7B = DREAM | {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}


def test_the_published_config_of_llada_8b_is_understood():
    config = LAYOUTS["llada"].config(Published(LLADA_8B, "LLaDA"))
    assert config == ModelConfig(
        vocab=126464, hidden=4096, inner=12288, layers=32, heads=32, kv_heads=32, context=4096,
        theta=500_000.0, eps=1e-5,
    )  # fmt: skip


def test_the_published_config_of_dream_7b_is_understood_with_the_context_it_was_trained_on():
    config = LAYOUTS["Dream"].config(Published(DREAM_7B, "Dream"))
    assert config == ModelConfig(
        vocab=152064, hidden=3584, inner=18944, layers=28, heads=28, kv_heads=4, context=2048,
        theta=1e6, eps=1e-6, bias=True, shift=True,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["llada", "dream"])
def test_a_written_config_is_read_back(kind):
    (layout,) = [one for one in LAYOUTS.values() if one.kind == kind]
    config = tiny_config(kind)
    written = layout.published(config, tiny_vocabulary())
    assert layout.config(Published(written, "tiny")) == config


def test_a_config_is_not_written_in_the_layout_of_the_other_family():
    with pytest.raises(ValueError, match="shift=False"):
        LAYOUTS["llada"].published(tiny_config("dream"), tiny_vocabulary())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"attention_layer_norm": True}, "attention_layer_norm = True, and only False"),
        ({"block_type": "sequential"}, "block_type = 'sequential'"),
        ({"alibi": True}, "alibi"),
        ({"include_bias": True}, "include_bias"),
        ({"d_model": "4096"}, "gives d_model as '4096'; wanted a whole number"),
        ({"n_layers": 0}, "n_layers as 0"),
        ({"n_layers": True}, "n_layers as True"),
        ({"rope_theta": None}, "rope_theta as None; wanted a number above 0"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"weight_tying": "no"}, "weight_tying as 'no'; wanted true or false"),
        ({"n_heads": 5}, "32 hidden units into 5 heads"),
        ({"n_kv_heads": 3}, "4 heads, 3 of them"),
    ],
)
def test_a_config_of_another_arithmetic_or_without_sense_is_refused_by_its_key(changed, said):
    with pytest.raises(UnsupportedTarget, match=said):
        LAYOUTS["llada"].config(Published(LLADA | changed, "LLaDA"))


@pytest.mark.parametrize(
    "changed",
    [{"use_sliding_window": True}, {"rope_scaling": {"type": "yarn"}}, {"hidden_act": "gelu"}],
)
def test_dream_with_other_attention_positions_or_activation_is_refused(changed):
    with pytest.raises(UnsupportedTarget, match=next(iter(changed))):
        LAYOUTS["Dream"].config(Published(DREAM | changed, "Dream"))
