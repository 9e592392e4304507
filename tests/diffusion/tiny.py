"""Tiny random denoisers of both published kinds, with a byte-level tokenizer."""

from functools import cache
from typing import Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from varifocal.diffusion.denoiser import Vocabulary
from varifocal.diffusion.masked import MaskedDenoiser
from varifocal.diffusion.model import MaskedTransformer, ModelConfig

Kind = Literal["llada", "dream"]
END, TURN, MASK = "<|endoftext|>", "<|eot_id|>", "<|mask|>"
SPECIAL = (END, TURN, MASK)
_LINES = ["sum 12 + 7 = 19 #### 19", "the answer is (B).", '\\boxed{42} {"key": "yes"}'] * 2


@cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte and a few merges: any text can be written, most answers take several tokens."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_LINES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=END,
        eos_token=END,
        mask_token=MASK,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def tiny_config(kind: Kind, vocab: int | None = None) -> ModelConfig:
    """Dream's has what LLaDA's lacks: grouped heads, biases, shifted logits."""
    is_dream = kind == "dream"
    return ModelConfig(
        vocab=vocab or len(byte_tokenizer()),
        hidden=32,
        inner=48,
        layers=2,
        heads=4,
        kv_heads=2 if is_dream else 4,
        context=256,
        theta=1e6 if is_dream else 500_000.0,
        eps=1e-6 if is_dream else 1e-5,
        bias=is_dream,
        shift=is_dream,
    )


def tiny_vocabulary(vocab: int | None = None) -> Vocabulary:
    """Both END and TURN end a text; ids beyond the tokenizer are never said."""
    end, turn, mask = byte_tokenizer().convert_tokens_to_ids(list(SPECIAL))
    size = vocab or len(byte_tokenizer())
    unused = frozenset(range(len(byte_tokenizer()), size))
    return Vocabulary(size=size, mask=mask, pad=end, stops=frozenset({end, turn}), banned=unused)


def tiny_model(kind: Kind, seed: int = 0, vocab: int | None = None) -> MaskedTransformer:
    """Random weights, large enough that context matters and no choice is a near-tie."""
    model = MaskedTransformer(tiny_config(kind, vocab))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5, generator=generator)
            else:
                width = weight.shape[-1] if weight.dim() > 1 else 4
                weight.normal_(0.0, 2 * width**-0.5, generator=generator)
    return model


def tiny_denoiser(kind: Kind = "llada", seed: int = 0, vocab: int | None = None) -> MaskedDenoiser:
    """`vocab` of 300 or more (the tokenizer's length is the default) adds ids without a token."""
    return MaskedDenoiser(
        tiny_model(kind, seed, vocab), tiny_vocabulary(vocab), byte_tokenizer(), f"tiny-{kind}"
    )
