"""Make the language model twice as deep without changing what it says."""

import copy

import torch
from torch import nn
from transformers import LlavaNextForConditionalGeneration


def doubled(model: LlavaNextForConditionalGeneration) -> LlavaNextForConditionalGeneration:
    """A model with a copy after each decoder layer that adds nothing yet.

    A layer adds the outputs of `o_proj` and `down_proj` to what passes by. With both zero it is
    the identity, bit for bit, and its gradients are not zero, so it learns from the first step.
    """
    config = copy.deepcopy(model.config)
    config.text_config.num_hidden_layers *= 2
    if getattr(config.text_config, "layer_types", None):
        config.text_config.layer_types = [
            kind for kind in config.text_config.layer_types for _ in range(2)
        ]
    deep = LlavaNextForConditionalGeneration(config).to(next(model.parameters()).dtype)
    old_layers, new_layers = model.model.language_model.layers, deep.model.language_model.layers
    state = {k: v for k, v in model.state_dict().items() if "language_model.layers." not in k}
    missing, unexpected = deep.load_state_dict(state, strict=False)
    assert not unexpected and all("language_model.layers." in name for name in missing)
    for number, old in enumerate(old_layers):
        kept, added = new_layers[2 * number], new_layers[2 * number + 1]
        kept.load_state_dict(old.state_dict())
        added.load_state_dict(old.state_dict())
        for linear in (added.self_attn.o_proj, added.mlp.down_proj):
            torch.nn.init.zeros_(linear.weight)
            assert isinstance(linear, nn.Linear) and linear.bias is None
    return deep.train(model.training)
