"""A model of transformers in its user's hands: the same ids, and the model stays as it was."""

import copy
import threading
from dataclasses import asdict

import pytest
import torch
from checkpoints import families
from drop_in import inputs_of, new_ids, padded, target_of, tiny, tiny_inputs
from guesses import Guesses
from tiny import tiny_target

import varifocal
from varifocal.drafters.fovea import FoveaDrafter
from varifocal.errors import BadOption, BadRequest, DrafterMismatch, UnsupportedTarget
from varifocal.huggingface._held import hold
from varifocal.huggingface._rows import GivenInputs, rows_of
from varifocal.request import Message, Request
from varifocal.target import Prompt, Want

NEW = 24


def names(*, pictures=False):
    """All families; variants in the long run only."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] if f.is_variant else [])
        for name, f in families().items()
        if f.max_pictures or not pictures
    ]


def right(model, inputs, **options):
    """What transformers says by itself."""
    return model.generate(**copy.deepcopy(inputs), **{"do_sample": False, **options})


@pytest.mark.parametrize("name", names())
def test_greedy_ids_equal_those_of_transformers(name):
    target, inputs = target_of(name), inputs_of(name)
    model = target.model
    wanted = right(model, inputs, max_new_tokens=NEW)
    assert torch.equal(
        varifocal.generate(model, **inputs, do_sample=False, max_new_tokens=NEW), wanted
    )
    guesses = Guesses(target, new_ids(wanted, inputs))
    out = model.generate(
        **inputs,
        do_sample=False,
        max_new_tokens=NEW,
        return_dict_in_generate=True,
        custom_generate=varifocal.Speculative(guesses),
    )
    assert torch.equal(out.sequences, wanted)
    counted = out.varifocal
    assert counted.token_ids == new_ids(wanted, inputs)
    assert counted.prompt_tokens == inputs["input_ids"].shape[1]
    if len(counted.token_ids) > 8:
        assert counted.num_spec_steps < len(counted.token_ids) - 1


@pytest.mark.parametrize("name", names())
@torch.no_grad()
def test_a_drafter_sees_the_prompt_as_it_does_without_transformers_generate(name):
    target, inputs = target_of(name), inputs_of(name)
    want = Want(final=True, embeddings=True, layers=(1, 3))
    arrived = {}

    def catch(model, input_ids, generation_config=None, **kwargs):
        arrived.update(ids=input_ids, kwargs=kwargs)
        return input_ids

    target.model.generate(**copy.deepcopy(inputs), custom_generate=catch, max_new_tokens=4)
    arrived["kwargs"].pop("logits_processor"), arrived["kwargs"].pop("stopping_criteria")
    (row,) = rows_of(target.model, arrived["ids"], arrived["kwargs"])
    request = Request(messages=(Message("user", ("given",)),))
    given = GivenInputs(target, row, want, request)
    cache, seen = given.take()
    pixels = {k: v for k, v in inputs.items() if k in PIXELS}
    prompt = Prompt(inputs["input_ids"][0], given.prompt.image_of, pixels, request)
    if "image_grid_thw" in pixels:  # runs of slots are what the family numbers as pictures
        assert int(prompt.image_of.max()) + 1 == len(pixels["image_grid_thw"])
    other_cache, other = target.prefill(prompt, want)
    assert cache.offset == other_cache.offset and cache.length == other_cache.length
    assert torch.equal(given.prompt.is_image, prompt.is_image)
    for field in ("logits", "hidden", "final", "embeddings"):
        torch.testing.assert_close(getattr(seen, field), getattr(other, field))


PIXELS = {"pixel_values", "image_sizes", "image_grid_thw", "batch_num_images"}


@pytest.mark.parametrize("name", names())
def test_rows_padded_on_the_left_equal_their_single_runs(name):
    model = target_of(name).model
    rows = [
        inputs_of(name, text, pictures=1) for text in ("what is it?", "and which colour has it")
    ]
    singles = [right(model, row, max_new_tokens=NEW) for row in rows]
    both = varifocal.generate(model, **padded(rows), do_sample=False, max_new_tokens=NEW)
    for got, single, row in zip(both, singles, rows, strict=True):
        length = row["input_ids"].shape[1]
        answer = single[0, length:]
        start = padded(rows)["input_ids"].shape[1]
        assert got[start : start + len(answer)].tolist() == answer.tolist()


def test_rows_that_end_early_end_in_padding():
    model = target_of("llava_next").model
    rows = [inputs_of("llava_next", text, 1) for text in ("what is it?", "another one, quite")]
    answers = [new_ids(right(model, row, max_new_tokens=12), row) for row in rows]
    end = next(t for t in answers[0] if t not in answers[1])
    out = varifocal.generate(
        model,
        **padded(rows),
        do_sample=False,
        max_new_tokens=12,
        eos_token_id=end,
        pad_token_id=3,
        return_dict_in_generate=True,
    )
    first, second = out.varifocal
    assert first.token_ids == answers[0][: answers[0].index(end) + 1]
    assert second.token_ids == answers[1]
    filled = 12 - len(first.token_ids)
    assert filled and out.sequences[0, -filled:].tolist() == [3] * filled


def test_a_learned_drafter_sees_what_it_needs():
    target = tiny()
    drafter = FoveaDrafter(
        target, FoveaDrafter.Config(nodes=8, depth=3, inner=32, memory_width=16, bottleneck=8)
    )
    drafter.prepare()
    inputs = tiny_inputs()
    out = varifocal.generate(
        target.model,
        **inputs,
        drafter=drafter,
        do_sample=False,
        max_new_tokens=NEW,
        return_dict_in_generate=True,
    )
    assert torch.equal(out.sequences, right(target.model, inputs, max_new_tokens=NEW))
    assert sum(r.num_drafted for r in out.varifocal.rounds) > 0


def test_text_of_results_needs_the_tokenizer_and_nothing_else_does():
    target, inputs = tiny(), tiny_inputs()
    texts = []
    for tokenizer in (None, target.tokenizer, target.processor):
        out = varifocal.generate(
            target.model,
            **inputs,
            tokenizer=tokenizer,
            max_new_tokens=8,
            do_sample=False,
            on_result=lambda r: texts.append((r.text, r.token_ids)),
        )
        assert out.shape[1] == inputs["input_ids"].shape[1] + 8
    assert texts[0][0] == "" and texts[1] == texts[2] and texts[0][1] == texts[1][1]
    assert texts[1][0] == target.decode(texts[1][1])


def state_of(model):
    hooks = {
        name: [len(getattr(m, kind)) for kind in ("_forward_hooks", "_forward_pre_hooks")]
        for name, m in model.named_modules()
    }
    return (
        model.config.to_dict(),
        model.config._attn_implementation,
        model.config.get_text_config()._attn_implementation,
        model.generation_config.to_dict(),
        {name: m.training for name, m in model.named_modules()},
        {name: sorted(vars(m)) for name, m in model.named_modules()},
        hooks,
        [p.requires_grad for p in model.parameters()],
    )


@pytest.mark.parametrize("name", ["llava_next", "qwen2_5_vl", "text-llama"])
def test_the_model_stays_as_it_was(name):
    target, inputs = target_of(name), inputs_of(name)
    right(target.model, inputs, max_new_tokens=2)  # what transformers itself leaves behind
    before = copy.deepcopy(state_of(target.model))
    varifocal.generate(target.model, **inputs, max_new_tokens=6, do_sample=False)
    varifocal.generate(
        target.model, **inputs, max_new_tokens=6, do_sample=True, return_dict_in_generate=True
    )
    with pytest.raises(BadOption):
        varifocal.generate(target.model, **inputs, max_new_tokens=6, num_beams=2)
    assert state_of(target.model) == before


def test_a_model_in_training_mode_is_refused_and_left_in_it():
    model = tiny_target(seed=3).model.train()
    with pytest.raises(BadOption, match=r"training mode.*model\.eval\(\)"):
        varifocal.generate(model, **tiny_inputs())
    assert all(module.training for module in model.modules())


def test_other_families_and_other_attention_are_refused_by_name():
    model = tiny_target(seed=3).model
    model.config.text_config._attn_implementation = "flash_attention_2"
    with pytest.raises(UnsupportedTarget, match="flash_attention_2"):
        varifocal.generate(model, **tiny_inputs())
    model.config.text_config._attn_implementation = "sdpa"
    model.config.model_type = "gpt_bigcode"
    with pytest.raises(UnsupportedTarget, match=r"'gpt_bigcode'.*model\.generate"):
        hold(model)


@pytest.mark.parametrize("wrong", [[[1, 2, 3]], ["a text"], torch.arange(4), None])
def test_inputs_that_are_no_batch_of_ids_are_refused_with_the_way_out(wrong):
    with pytest.raises(BadOption, match=r'return_tensors="pt"'):
        varifocal.generate(tiny().model, input_ids=wrong)


def test_padding_on_the_right_is_refused():
    inputs = tiny_inputs()
    inputs["attention_mask"][0, -2:] = 0
    with pytest.raises(BadRequest, match="pad on the left"):
        varifocal.generate(tiny().model, **inputs, max_new_tokens=4)


@pytest.mark.parametrize("change", [-1, 1])
def test_slots_and_features_that_differ_in_number_are_named(change):
    inputs, image = tiny_inputs(), tiny().model.config.image_token_id
    ids = inputs["input_ids"][0].tolist()
    at = ids.index(image)
    ids = ids[:at] + ids[at + 1 :] if change < 0 else [*ids[:at], image, *ids[at:]]
    inputs["input_ids"] = torch.tensor([ids])
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    with pytest.raises(BadRequest, match=rf"114 visual tokens, but input_ids has {114 + change}"):
        varifocal.generate(tiny().model, **inputs, max_new_tokens=4)


def test_one_object_serves_several_threads_and_models():
    speculative = varifocal.Speculative("lookup")
    jobs = [(name, inputs_of(name, text)) for name in ("llava_next", "qwen2_vl") for text in "abc"]
    wanted = [right(target_of(n).model, i, max_new_tokens=16) for n, i in jobs]
    got = [None] * len(jobs)
    # Qwen's position offsets are kept on the model by transformers, so calls start one by one.
    for number, (name, inputs) in enumerate(jobs):
        got[number] = target_of(name).model.generate(
            **inputs, do_sample=False, max_new_tokens=16, custom_generate=speculative
        )
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))

    model = target_of("llava_next").model
    mine = [(i, w) for (n, i), w in zip(jobs, wanted, strict=True) if n == "llava_next"]
    results: dict[int, torch.Tensor] = {}

    def work(number: int) -> None:
        inputs, _ = mine[number % len(mine)]
        results[number] = model.generate(
            **inputs, do_sample=False, max_new_tokens=16, custom_generate=speculative
        )

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert all(torch.equal(results[k], mine[k % len(mine)][1]) for k in results)


def test_a_drafter_of_another_model_is_refused():
    drafter = varifocal.load_drafter("lookup", tiny())
    other = tiny_target(seed=4).model
    with pytest.raises(DrafterMismatch, match=r"made for 'tiny'.*from_pretrained"):
        varifocal.generate(other, **tiny_inputs(), drafter=drafter, max_new_tokens=4)
    with pytest.raises(BadOption, match="drafter_options"):
        varifocal.Speculative(drafter, drafter_options={"depth": 2})


def test_options_of_a_named_drafter_reach_it():
    rounds = []
    for depth in (1, 4):
        varifocal.generate(
            tiny().model,
            **tiny_inputs(),
            max_new_tokens=NEW,
            do_sample=False,
            drafter_options={"depth": depth},
            on_result=lambda r: rounds.append(max(x.num_drafted for x in r.rounds)),
        )
    assert rounds == [1, 4]
    with pytest.raises(BadOption, match="lookup has no option dept"):
        varifocal.generate(
            tiny().model, **tiny_inputs(), max_new_tokens=4, drafter_options={"dept": 1}
        )


def test_the_cache_that_comes_back_can_be_gone_on_with():
    model, inputs = tiny().model, tiny_inputs()
    wanted = right(model, inputs, max_new_tokens=NEW)
    half = varifocal.generate(
        model, **inputs, do_sample=False, max_new_tokens=NEW // 2, return_dict_in_generate=True
    )
    name = "cache" if "cache" in half else "past_key_values"
    cache = half[name]
    assert cache.get_seq_length() == half.sequences.shape[1] - 1
    rest = model.generate(
        input_ids=half.sequences,
        attention_mask=torch.ones_like(half.sequences),
        do_sample=False,
        max_new_tokens=NEW - NEW // 2,
        **{name: cache},
    )
    assert torch.equal(rest, wanted)
    with pytest.raises(BadOption, match="whole conversation as input_ids"):
        varifocal.generate(model, **inputs, **{name: cache})
    with pytest.raises(BadOption, match="whole conversation as input_ids"):
        model.generate(
            half.sequences,
            custom_generate=varifocal.Speculative(),
            max_new_tokens=2,
            **{name: cache},
        )


def test_a_request_is_still_decoded_with_a_target():
    target = tiny()
    request = varifocal.ask("what is it?", max_new_tokens=5)
    result = varifocal.generate(target, varifocal.load_drafter("plain", target), request)
    assert asdict(result)["drafter"] == "plain" and len(result.token_ids) == 5
