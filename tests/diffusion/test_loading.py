"""Checkpoints in published layouts: loaded as they are meant, or refused by name."""

import json
from typing import get_args

import pytest
import torch
from diffusion.checkpoints import (
    published_config,
    published_ids,
    published_tensors,
    write_published,
)
from diffusion.reference import Reference
from diffusion.tiny import Kind, tiny_denoiser
from transformers import Qwen2Config, Qwen2ForCausalLM

from varifocal.diffusion.loading import load_denoiser, write_checkpoint
from varifocal.errors import BadArtifact, UnsupportedTarget

KINDS = get_args(Kind)


@pytest.fixture
def folder(tmp_path):
    """A sound checkpoint in LLaDA's layout, to be spoilt."""
    return write_published(
        tmp_path / "tiny-llada", published_config("llada"), published_tensors("llada")
    )


def spoil(folder, **changed):
    """Write other keys into config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.mark.parametrize("kind", KINDS)
def test_a_published_checkpoint_in_shards_gives_the_logits_of_its_definition(kind, tmp_path):
    config, tensors = published_config(kind), published_tensors(kind)
    denoiser = load_denoiser(write_published(tmp_path / "it", config, tensors, shards=3))
    canvas = denoiser.lay([[5, 6, 7]], 4)
    made = denoiser.forward(canvas, slice(None))[0]
    wanted = Reference(tensors, config).about(canvas.tokens[0].tolist(), 0, 7)
    torch.testing.assert_close(made.double(), wanted, atol=2e-5, rtol=0)


def test_dream_is_a_qwen2_of_transformers_that_sees_both_ways(tmp_path):
    config, tensors = published_config("dream"), published_tensors("dream")
    sizes = {key: value for key, value in config.items() if key.startswith(("hidden", "num", "in"))}
    qwen = Qwen2ForCausalLM(
        Qwen2Config(**sizes, vocab_size=config["vocab_size"], rms_norm_eps=1e-6,
                    rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    )  # fmt: skip
    qwen.load_state_dict(tensors)
    denoiser = load_denoiser(write_published(tmp_path / "it", config, tensors))
    canvas = denoiser.lay([[5, 6, 7]], 4)
    with torch.no_grad():
        unshifted = qwen(canvas.tokens, attention_mask=torch.zeros(1, 1, 7, 7)).logits
    made = denoiser.forward(canvas, slice(1, 7))
    torch.testing.assert_close(made, unshifted[:, :6], atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_mean_what_config_and_tokenizer_say(kind, tmp_path):
    denoiser = load_denoiser(
        write_published(tmp_path / "it", published_config(kind), published_tensors(kind))
    )
    end, turn, mask = published_ids(kind).values()
    assert (denoiser.vocabulary.mask, denoiser.vocabulary.pad) == (mask, end)
    assert denoiser.vocabulary.stops == {end, turn}
    assert denoiser.vocabulary.never == [mask, *range(296, 304)]  # no token has these
    said = "sum 12 + 7 = 19 é #### 19<|eot_id|>"
    ids = denoiser.tokenizer(said)["input_ids"]
    assert ids[-1] == turn
    assert denoiser.tokenizer.decode(ids) == said


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_checkpoint_is_loaded_bit_for_bit_with_its_vocabulary(kind, tmp_path):
    own = tiny_denoiser(kind, vocab=304)
    write_checkpoint(own.model, tmp_path, kind, own.vocabulary, own.tokenizer)
    loaded = load_denoiser(tmp_path)
    assert (loaded.vocabulary, loaded.model.config) == (own.vocabulary, own.model.config)
    canvas = own.lay([[5, 6], [7]], 5)
    assert torch.equal(own.forward(canvas, slice(2, 7)), loaded.forward(canvas, slice(2, 7)))


def test_a_tied_head_is_read_from_the_embedding_whether_the_file_repeats_it_or_not(folder):
    tensors = published_tensors("llada")
    head = tensors.pop("model.transformer.ff_out.weight")
    config = published_config("llada") | {"weight_tying": True}
    denoiser = load_denoiser(write_published(folder, config, tensors))
    assert denoiser.model.head.weight is denoiser.model.embed.weight
    same = {"model.transformer.ff_out.weight": tensors["model.transformer.wte.weight"].clone()}
    load_denoiser(write_published(folder, config, tensors | same))
    with pytest.raises(BadArtifact, match=r"ff_out\.weight differs from model\.transformer\.wte"):
        other = {"model.transformer.ff_out.weight": head}
        load_denoiser(write_published(folder, config, tensors | other))


@pytest.mark.parametrize(
    ("stored", "loaded"), [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)]
)
def test_the_precision_is_that_of_the_file_but_for_float16_on_a_cpu(stored, loaded, folder):
    half = {n: t.to(stored) for n, t in published_tensors("llada").items()}
    write_published(folder, published_config("llada"), half)
    assert load_denoiser(folder, device="cpu").dtype == loaded
    assert load_denoiser(folder, device="cpu", dtype=torch.float32).dtype == torch.float32


def _without(tensors, name):
    return {n: t for n, t in tensors.items() if n != name}


GATE = "model.transformer.blocks.1.ff_proj.weight"
NEXT = "model.transformer.blocks.2.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: _without(t, GATE), f"lacks 1 of the 21 tensors .* {GATE} among them"),
        (lambda t: t | {NEXT: t[GATE].clone()}, f"holds 1 tensors .* no place for, {NEXT} among"),
        (lambda t: t | {GATE: t[GATE][:40].clone()}, rf"{GATE} .* \[40, 32\], .* \[48, 32\]"),
        (lambda t: t | {GATE: t[GATE] * float("nan")}, f"{GATE} of .* holds NaN"),
        (lambda t: t | {GATE: t[GATE].to(torch.int8)}, f"{GATE} of .* is stored as I8"),
    ],
    ids=["missing", "extra", "mis-shaped", "not a number", "integers"],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(change, said, folder):
    write_published(folder, published_config("llada"), change(published_tensors("llada")))
    with pytest.raises(BadArtifact, match=said):
        load_denoiser(folder)


@pytest.mark.parametrize("size", [0, 5, 2000, -1])
def test_a_file_that_was_cut_short_is_named(size, folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(BadArtifact, match=r"model\.safetensors is cut short or damaged"):
        load_denoiser(folder)


def test_a_missing_shard_and_an_index_that_leaves_the_folder_are_named(tmp_path):
    config, tensors = published_config("llada"), published_tensors("llada")
    folder = write_published(tmp_path / "it", config, tensors, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(BadArtifact, match=r"1 of the 3 files .* model-00002-of-00003"):
        load_denoiser(folder)
    index = {"weight_map": {"model.transformer.wte.weight": "../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadArtifact, match="outside its folder"):
        load_denoiser(folder)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
         "'llama' model .* none of the masked diffusion models .* `varifocal generate`"),
        ({"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}, "pictures"),
        ({"architectures": ["LLaDAMoEModelLM"]}, "LLaDAMoEModelLM.* mixture of experts"),
        ({"num_experts": 64}, "mixture of experts"),
        ({"model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"]}, "mixture of experts"),
        ({"model_type": "llava_llada", "architectures": ["LlavaLLaDAModelLM"]}, "reads pictures"),
        ({"model_type": "Dream", "architectures": ["DreamForCausalLM"]}, "causally between blocks"),
        ({"model_type": "Fast_dLLM_Qwen"}, "causally between blocks"),
        ({"model_type": "diffusion_gemma", "architectures": ["DiffusionGemmaForBlockDiffusion"]},
         r"varifocal\.diffusion\.gemma"),
        ({"model_type": None}, "None model"),
        ({"quantization_config": {"bits": 4}}, "is quantized"),
        ({"mask_token_id": 304}, "mask_token_id as 304; wanted ids from 0 to 303"),
        ({"eos_token_id": None}, "gives no eos_token_id"),
    ],
)  # fmt: skip
def test_a_model_that_is_no_such_diffusion_model_is_refused_by_name(keys, said, folder):
    spoil(folder, **keys)
    (folder / "generation_config.json").unlink(missing_ok=True)
    with pytest.raises(UnsupportedTarget, match=said):
        load_denoiser(folder)


def test_what_holds_no_checkpoint_is_refused_by_name(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnsupportedTarget, match=r"empty is a folder without config\.json"):
        load_denoiser(tmp_path / "empty")
    with pytest.raises(UnsupportedTarget, match="is a file; give the folder"):
        load_denoiser(folder / "model.safetensors")
    with pytest.raises(UnsupportedTarget, match="there is no folder"):
        load_denoiser(tmp_path / "nowhere")
    with pytest.raises(UnsupportedTarget, match='"llada-tiny" or "dream-tiny"'):
        load_denoiser("someone/no-such-model")


def test_a_hub_id_is_refused_by_its_config_before_its_weights_are_fetched(folder, monkeypatch):
    fetched: list[list[str]] = []

    def snapshot(name, *, allow_patterns):
        fetched.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: None)
    assert load_denoiser("someone/tiny-llada").name == "someone/tiny-llada"
    assert fetched[0] == ["config.json"] and "*.safetensors" in fetched[1]
    spoil(folder, model_type="llama", architectures=["LlamaForCausalLM"])
    fetched.clear()
    with pytest.raises(UnsupportedTarget, match="someone/tiny-llada is a 'llama' model"):
        load_denoiser("someone/tiny-llada")
    assert fetched == [["config.json"]]


def test_files_that_are_missing_or_no_json_are_named(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(BadArtifact, match=r"neither model\.safetensors nor"):
        load_denoiser(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(BadArtifact, match=r"tokenizer of .* cannot be read"):
        load_denoiser(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadArtifact, match=r"has no tokenizer\.json"):
        load_denoiser(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(BadArtifact, match="holds no JSON object"):
        load_denoiser(folder)


def test_a_tokenizer_of_another_model_is_refused(folder):
    small = {n: t[:200].clone() if t.shape[0] == 304 else t
             for n, t in published_tensors("llada").items()}  # fmt: skip
    config = published_config("llada") | {"embedding_size": 200}
    with pytest.raises(BadArtifact, match="296 tokens and the model 200 ids"):
        load_denoiser(write_published(folder, config, small))


def test_special_tokens_that_get_other_ids_than_published_are_refused(tmp_path):
    folder = write_published(tmp_path / "it", published_config("dream"), published_tensors("dream"))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    words = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(dict(list(words.items())[:-1])))
    merges = (folder / "merges.txt").read_text().splitlines()[:-1]
    (folder / "merges.txt").write_text("\n".join(merges))
    path.write_text(json.dumps(settings))
    with pytest.raises(BadArtifact, match=r"<\|endoftext\|> the id 29\d, and .* says 293"):
        load_denoiser(folder)
