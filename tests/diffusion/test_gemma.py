"""DiffusionGemma of transformers under our gates, on a tiny random member of its class."""

from collections.abc import Sequence

import pytest
import torch
from diffusion.tiny import byte_tokenizer
from torch import Tensor, nn
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
)

from varifocal.diffusion.gemma import GemmaDiffusion, load_gemma
from varifocal.errors import BadOption, BadRequest, UnsupportedTarget

CANVAS, STEPS, VOCAB = 16, 8, 300
PROMPTS = [[5, 6, 7], [40, 41]]
SURE, UNSURE = 25.0, 1.0  # logits of what is said, before the model's soft cap


def tiny_gemma() -> DiffusionGemmaForBlockDiffusion:
    text = DiffusionGemmaTextConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, global_head_dim=8,
        max_position_embeddings=64, sliding_window=64, num_experts=4, top_k_experts=2,
        moe_intermediate_size=16, layer_types=["sliding_attention", "full_attention"],
        pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    pictures = {
        "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16, "head_dim": 8,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "position_embedding_size": 16,
    }  # fmt: skip
    config = DiffusionGemmaConfig(
        text_config=text, vision_config=pictures, canvas_length=CANVAS,
        image_token_id=299, boi_token_id=298, eoi_token_id=297,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DiffusionGemmaForBlockDiffusion(config)


class Says(nn.Module):
    """A head that says one text after the other, each position as sure as it is told to be."""

    def __init__(self, texts: Sequence[str], sure: Sequence[float] = (SURE,) * CANVAS) -> None:
        super().__init__()
        self.canvases = [ids_of(text) for text in texts]
        self.sure, self.step = torch.tensor(sure), 0

    def forward(self, states: Tensor) -> Tensor:
        said = self.canvases[min(self.step, len(self.canvases) - 1)]
        self.step += 1
        logits = torch.zeros(1, CANVAS, VOCAB)
        logits[0, torch.arange(CANVAS), said] = self.sure
        return logits


def ids_of(text: str) -> list[int]:
    """A text and end tokens behind it."""
    ids = byte_tokenizer().encode(text, add_special_tokens=False)
    return [*ids, *[1] * (CANVAS - len(ids))]


def saying(texts: Sequence[str], *sure: float) -> GemmaDiffusion:
    model = tiny_gemma()
    model.lm_head = Says(texts, sure or (SURE,) * CANVAS)
    return GemmaDiffusion(model, byte_tokenizer(), "tiny-gemma")


@pytest.fixture(scope="module")
def gemma() -> GemmaDiffusion:
    return GemmaDiffusion(tiny_gemma(), byte_tokenizer(), "tiny-gemma")


@pytest.mark.parametrize("gate", ["native", "full"])
def test_a_run_that_nothing_stops_is_transformers_own_for_each_prompt_and_seed(gate, gemma):
    results = gemma.generate(PROMPTS, format=None, gate=gate, steps=STEPS, seed=3)
    for prompt, result in zip(PROMPTS, results, strict=True):
        torch.manual_seed(3)
        own = gemma.model.generate(
            torch.tensor([prompt]), max_new_tokens=CANVAS, max_denoising_steps=STEPS
        )
        assert result.token_ids == own.sequences[0, len(prompt) :].tolist()
        assert (result.finish, result.nfe, result.exit_step) == ("filled", STEPS, None)


def test_neither_model_nor_global_noise_keeps_anything_of_a_run(gemma):
    before, noise = set(vars(gemma.model)), torch.random.get_rng_state()
    gemma.generate(PROMPTS[:1], format="free", gate="cvc:tau=0", steps=3)
    assert set(vars(gemma.model)) == before
    assert torch.equal(torch.random.get_rng_state(), noise)


def test_transformers_own_stop_waits_for_the_whole_canvas_and_cvc_only_for_the_answer():
    texts = ["#### 7\nb", *(f"#### 42\n{letter}" for letter in "abcdefg")]
    native = saying(texts).generate([[5]], format="number_hash", gate="native", steps=STEPS)[0]
    assert (native.finish, native.nfe) == ("filled", STEPS)  # the text behind it never rests
    stopped = saying(texts).generate([[5]], format="number_hash", gate="cvc:w=3", steps=STEPS)[0]
    assert (stopped.finish, stopped.nfe, stopped.exit_step) == ("exit", 4, 4)
    assert (stopped.value, stopped.text) == ("42", "#### 42\nc")
    assert stopped.token_ids == ids_of("#### 42\nc")
    assert byte_tokenizer().decode(stopped.token_ids[: len(stopped.verified_span)]) == "#### 42\n"
    assert [step.is_done for step in stopped.steps] == [False, False, False, True]


def test_transformers_own_stop_is_told_as_an_exit():
    (result,) = saying(["it rests"]).generate([[5]], format=None, gate="native", steps=STEPS)
    assert (result.finish, result.nfe, result.exit_step) == ("exit", 2, 2)
    assert (result.text, result.gate) == ("it rests", "native")


def test_what_the_last_step_left_as_noise_counts_as_undecided_context():
    text, before = "abcdef\n#### 42\n", byte_tokenizer().encode("abcdef")
    assert ids_of(text)[: len(before)] == before and len(before) > 4
    doubtful = [UNSURE if place < len(before) else SURE for place in range(CANVAS)]
    waits, stops = (
        saying([text], *doubtful).generate([[5]], format="number_hash", gate=gate, steps=STEPS)[0]
        for gate in ("cvc:w=2", "cvc:w=2:context=none")
    )
    assert (waits.finish, waits.nfe) == ("filled", STEPS)
    assert "in its context" in waits.reason
    assert (stops.finish, stops.nfe) == ("exit", 2)


def test_a_cut_ends_behind_the_answer_and_finishing_the_block_is_running_to_the_end():
    texts = [f"#### 42\n{letter}" for letter in "abcdefgh"]
    cut, whole = (
        saying(texts).generate([[5]], format="number_hash", gate=gate, steps=STEPS)[0]
        for gate in ("cvc:w=2:fill=cut", "cvc:w=2:fill=finish_block")
    )
    assert (cut.text, cut.nfe, cut.finish) == ("#### 42\n", 2, "exit")
    assert (whole.text, whole.nfe, whole.finish) == ("#### 42\nh", STEPS, "filled")
    assert (whole.exit_step, whole.value) == (2, "42")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gate": "eos_stop"}, "eos_stop waits for committed tokens"),
        ({"gate": "oracle"}, "oracle knows the end of the run"),
        ({"gate": "prophet:suffix=1"}, "prophet pins tokens"),
        ({"gate": "cvc", "format": None}, "cvc looks for an answer"),
        ({"steps": CANVAS + 1}, "17 steps on a canvas of 16"),
    ],
)
def test_gates_and_steps_that_do_not_fit_the_scheme_are_refused(asked, said, gemma):
    with pytest.raises(BadOption, match=said):
        gemma.generate(PROMPTS, **{"format": "free", "gate": "full"} | asked)


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ("text", "wanted a list of prompts"),
        ([[]], "prompt 0 is empty"),
        ([[5], [VOCAB]], "prompt 1 has token ids outside"),
        ([[5] * 49], "49 tokens and the canvas 16, but tiny-gemma reads 64"),
    ],
)
def test_prompts_that_cannot_be_answered_are_refused(prompts, said, gemma):
    with pytest.raises(BadRequest, match=said):
        gemma.generate(prompts, format="free", gate="full", steps=2)


def test_a_saved_checkpoint_is_loaded_and_another_model_is_refused(tmp_path, gemma):
    gemma.model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    loaded = load_gemma(tmp_path, device="cpu")
    asked = {"format": "free", "gate": "full", "steps": 2}
    assert (
        loaded.generate(PROMPTS[:1], **asked)[0].token_ids
        == gemma.generate(PROMPTS[:1], **asked)[0].token_ids
    )
    (tmp_path / "config.json").write_text('{"model_type": "gemma"}')
    with pytest.raises(UnsupportedTarget, match="'gemma' model, no DiffusionGemma"):
        load_gemma(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llada"}')
    with pytest.raises(UnsupportedTarget, match="cannot be read as a DiffusionGemma"):
        load_gemma(tmp_path)
