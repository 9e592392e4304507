"""Draft models: any with the target's ids of text; others are refused with what differs."""

import pytest
import tiny
import torch
from checkpoints import built
from relatives import ensemble, relative, request, target_of

import varifocal
from varifocal.decode import Generation, generate
from varifocal.drafters import load_drafter
from varifocal.drafters.ensemble import EnsembleDrafter
from varifocal.engine import parse_options
from varifocal.errors import BadOption, DrafterMismatch
from varifocal.request import ask
from varifocal.target import Want
from varifocal.targets import load_target
from varifocal.targets._single import single_row_name
from varifocal.tree import DraftTree

pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture(scope="module")
def target():
    return target_of("llava_next")


@pytest.fixture(scope="module")
def small():
    return relative()


@pytest.mark.parametrize(
    ("name", "draft", "views"),
    [
        ("llava", "text-llama", "TC"),
        ("llava", "llava_next", "MTPC"),
        ("llava_next", "llava", "MTPC"),
        ("qwen2_5_vl", "qwen2_vl", "MTC"),
    ],
)
def test_models_with_the_same_words_draft_for_each_other(name, draft, views):
    target, model = target_of(name), target_of(draft)
    shown = [tiny.picture(seed, (60, 40)) for seed in range(2)]
    asked = ask("what is it?", shown, max_new_tokens=16)
    drafter = load_drafter(
        "ensemble", target, model=str(built(draft)), views=views,
        policy="mtcp", captioner=str(built("llava")), caption_tokens=4,
    )  # fmt: skip
    assert drafter.memory_bytes >= sum(p.numel() * 4 for p in model.model.parameters())
    generation = Generation(target, drafter, asked)
    for _ in generation:
        pass
    assert generation.drafter_state.left_out == {}
    plain = generate(target, load_drafter("plain", target), asked)
    assert generation.result().token_ids == plain.token_ids


@pytest.mark.parametrize("draft", ["qwen2_5_vl", "text-qwen2"])
def test_another_tokenizer_is_refused_with_what_differs(draft):
    said = r"writes text with other ids: \d+ of \d+ words .* is \d+ for the target and .*own family"
    with pytest.raises(DrafterMismatch, match=said):
        load_drafter("ensemble", target_of("llava"), model=str(built(draft)))


class Other:
    """The tokenizer of `tiny` but for what a test makes different."""

    def __init__(self, **changed):
        self._changed = changed

    def __getattr__(self, name):
        return self._changed.get(name) or getattr(tiny.tokenizer(), name)

    def __call__(self, *args, **kwargs):
        return self._changed.get("call", tiny.tokenizer())(*args, **kwargs)


def test_equal_words_that_are_divided_differently_are_refused(monkeypatch):
    target, other = tiny.tiny_target(), tiny.tiny_target(seed=1)

    def letters(text, **settings):
        made = [tiny.tokenizer()(letter, **settings)["input_ids"] for letter in text]
        return {"input_ids": [i for ids in made for i in ids]}

    monkeypatch.setattr(other, "tokenizer", Other(call=letters))
    with pytest.raises(DrafterMismatch, match=r"words are the same, but they divide 'The picture"):
        ensemble(target, other)


def test_an_end_that_is_another_token_of_the_draft_model_is_refused(monkeypatch):
    target, other = tiny.tiny_target(), tiny.tiny_target(seed=1)
    ids = dict(tiny.tokenizer().get_vocab())
    ids["<|end|>"], ids["<|user|>"] = ids["<|user|>"], ids["<|end|>"]
    monkeypatch.setattr(other, "tokenizer", Other(get_vocab=lambda: ids))
    with pytest.raises(DrafterMismatch, match=r"ends an answer of the target .* is '<\|user\|>'"):
        ensemble(target, other)


def test_a_target_that_knows_ids_only_is_refused():
    from varifocal.huggingface._held import hold

    with pytest.raises(BadOption, match="without a tokenizer"):
        load_drafter("ensemble", hold(target_of("llava").model), model=str(built("llava")))


@pytest.mark.parametrize("place", [0, 1, 2, 5])
def test_tokens_that_the_draft_model_lacks_are_passed_over(place, target, small, monkeypatch):
    asked = request(tokens=20)
    plain = generate(target, load_drafter("plain", target), asked)
    strange = plain.token_ids[place]
    monkeypatch.setattr(EnsembleDrafter, "_reads", lambda self, token: token != strange)
    drafter = ensemble(target, small)
    drafter._banned[strange] = float("-inf")  # nor does it say what it lacks
    generation = Generation(target, drafter, asked)
    drafted, newest = [], -1
    for decided in generation:
        if not decided.is_prefill:
            drafted.append((newest, decided.num_drafted))
        newest = decided.tokens[-1]
    result, state = generation.result(), generation.drafter_state
    assert result.token_ids == plain.token_ids
    assert all((count == 0) == (root == strange) for root, count in drafted[:-1])
    assert sum(count for _, count in drafted) > 0
    # What the views have read is the text without the token.
    text = [token for token in result.token_ids if token != strange]
    (made, _) = state.views.read(small, [*state.unread, text[-1]])
    cache_, _ = small.prefill(small.encode(asked), Want())
    (out,) = small.forward([DraftTree.chain(text)], [cache_], Want())
    assert state.views.caches[0].length == cache_.length
    torch.testing.assert_close(made[-1], out.logits[-1], atol=1e-3, rtol=1e-3)


def test_the_model_that_was_given_stays_as_it_is(target):
    given = relative()
    modules = dict(given.model.named_modules())
    drafter = ensemble(target, given)
    drafter.prepare()
    generate(target, drafter, request(tokens=8))
    assert dict(given.model.named_modules()) == modules
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in given.model.modules())
    assert given._packed_decoder is None or drafter.model is given


def test_a_model_of_transformers_is_drafted_for_from_its_ids():
    target = target_of("llava")
    shown = [tiny.picture(0, (60, 40))]
    prompt = target.processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}],
        add_generation_prompt=True,
    )
    inputs = target.processor(text=prompt, images=shown, return_tensors="pt")
    wanted = target.model.generate(**inputs, max_new_tokens=12, do_sample=False)
    drafter = load_drafter("ensemble", target, model=str(built("text-llama")), views="T")
    made = varifocal.generate(target.model, **inputs, drafter=drafter, max_new_tokens=12)
    assert made.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "name it with model="),
        ({"model": "x", "views": "MX"}, "views must be some of"),
        ({"model": "x", "views": "MM"}, "each once"),
        ({"model": "x", "views": ""}, "views must be some of"),
        ({"model": "x", "width": 0}, "width"),
        ({"model": "x", "policy": "static", "weights": (1.0,)}, "1 weights for 2 members"),
        ({"model": "x", "policy": "mtcp", "steps": 5}, "no effect"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, said, target):
    with pytest.raises(BadOption, match=said):
        load_drafter("ensemble", target, **options)


def test_a_model_that_reads_no_pictures_has_no_captions_of_its_own():
    with pytest.raises(BadOption, match="no caption for the view C"):
        load_drafter("ensemble", target_of("llava"), model=str(built("text-llama")), views="TC")


def test_options_can_be_typed():
    typed = {"views": "MTC", "policy": "static", "weights": "[1, 2, 1]", "width": "2", "seed": "3"}
    assert parse_options("ensemble", typed) == {
        "views": "MTC",
        "policy": "static",
        "weights": (1.0, 2.0, 1.0),
        "width": 2,
        "seed": 3,
    }


def test_a_draft_model_in_half_precision_reads_single_rows_through_float32():
    target = load_target(str(built("llava_next")), dtype=torch.bfloat16, exact_rows=False)
    other = load_target(str(built("llava_next")), dtype=torch.bfloat16, exact_rows=False)
    drafter = EnsembleDrafter(target, EnsembleDrafter.Config(), model=other)
    drafter.prepare()
    used = [m.model.config.get_text_config()._attn_implementation for m in (drafter.model, other)]
    assert used == [single_row_name(), "sdpa"]
    prompts = [target.encode(request(pictures=n)) for n in (1, 2)]
    logits = []
    for model in (other, drafter.model):
        caches = [model.prefill(prompt, Want())[0] for prompt in prompts]
        (alone,) = model.forward([DraftTree.chain([60])], caches[:1], Want())
        both = model.forward([DraftTree.chain([61])] * 2, caches, Want())
        wide = model.forward([DraftTree.chain([62, 63, 64])], caches[:1], Want())
        logits.append(torch.cat([seen.logits for seen in (alone, *both, *wide)]).float())
    gap = (logits[0] - logits[1]).abs().mean() / logits[0].abs().mean()
    assert float(gap) < 0.05  # bfloat16 has three digits; a wrong row would differ by more than 1
    asked = request(tokens=12)
    plain = generate(target, load_drafter("plain", target), asked)
    made = generate(target, drafter, asked)
    assert len(made.token_ids) == len(plain.token_ids) and made.rounds[0].num_drafted == 5
