"""What every target must do, on a tiny checkpoint of every family in its published layout.

The measure is transformers: its processors' tokens, its models' forwards and its `generate`.
"""

from dataclasses import replace
from functools import cache

import pytest
import tiny
import torch
from checkpoints import built, families
from guesses import Guesses

from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.request import Message, Request
from varifocal.target import Want
from varifocal.targets import load_target
from varifocal.tree import DraftTree

WANT = Want(final=True, embeddings=True, layers=(1, 3))
TREE = DraftTree(
    torch.tensor([10, 11, 12, 13, 14, 15, 16, 17, 18]),
    torch.tensor([-1, 0, 0, 1, 1, 2, 3, 5, 6]),
)
QUESTIONS = ("what is it?", "and its colour? <3", "compare them, please.")


def path_to(node):
    return TREE.ancestry[node].nonzero()[:, 0].tolist()


def walk(*, pictures=False):
    """Names of all families as parameters; of those that read pictures, if so asked."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] if f.is_variant else [])
        for name, f in families().items()
        if f.max_pictures or not pictures
    ]


def walk_with(name_of_values, values, kept):
    """Every family with every value; variants with one of them, and the others in the long run."""
    made = []
    for name, family in families().items():
        for value in values:
            is_slow = family.is_variant and value != kept
            made.append(pytest.param(name, value, marks=[pytest.mark.slow] if is_slow else []))
    return pytest.mark.parametrize(("name", name_of_values), made)


CONVERSATIONS = [(0, 1), (1, 1), (3, 2)]  # pictures, turns
every_family = pytest.mark.parametrize("name", walk())
every_family_with_pictures = pytest.mark.parametrize("name", walk(pictures=True))


@cache
def target_of(name, attention="sdpa", dtype=torch.float32, exact_rows=False):
    path = str(built(name))
    return load_target(path, attention=attention, dtype=dtype, exact_rows=exact_rows)


@cache
def reference_of(name):
    return families()[name].reference(built(name))


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def pictures_of(name, count):
    """That many pictures, each of another size; fewer where the family takes fewer."""
    sizes = families()[name].sizes[: min(count, families()[name].max_pictures)]
    return [tiny.picture(seed, size) for seed, size in enumerate(sizes)]


def asked(name, pictures=1, turns=1, question=QUESTIONS[0], **settings):
    """A conversation; the pictures stand before the first question, the last text turn has none."""
    messages = [Message("user", (*pictures_of(name, pictures), question))]
    for later in range(1, turns):
        messages.append(Message("assistant", ("it is a chart.",)))
        messages.append(Message("user", (QUESTIONS[later],)))
    return Request(messages=tuple(messages), **settings)


def reference_inputs(name, request):
    """What the family's own processor makes of the request, as keywords of the model."""
    reads_pictures = families()[name].max_pictures
    messages = [
        {
            "role": m.role,
            "content": [
                {"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p}
                for p in m.parts
            ]
            if reads_pictures
            else "".join(m.parts),
        }
        for m in request.messages
    ]
    made = reference_of(name).apply_chat_template(
        messages,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    made.pop("token_type_ids", None)
    return dict(made)


def read(name, request=None, target=None):
    target = target or target_of(name)
    prompt = target.encode(request or asked(name))
    return prompt, *target.prefill(prompt, WANT)


# -- reading -----------------------------------------------------------------------------------


@walk_with("conversation", CONVERSATIONS, (3, 2))
def test_tokens_are_those_of_the_familys_own_processor(name, conversation):
    request = asked(name, *conversation)
    made = reference_inputs(name, request)
    assert target_of(name).encode(request).tokens.tolist() == made["input_ids"][0].tolist()


@walk_with("attention", ["sdpa", "eager"], "sdpa")
def test_prefill_equals_the_models_own_forward(name, attention):
    target, request = target_of(name, attention), asked(name, pictures=3)
    prompt, cache, seen = read(name, request, target)
    out = target.model(**reference_inputs(name, request), output_hidden_states=True)
    assert cache.length == len(prompt.tokens)
    torch.testing.assert_close(seen.logits[0], out.logits[0, -1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(seen.final, out.hidden_states[-1][0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(seen.hidden[:, 0], out.hidden_states[1][0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(seen.embeddings, out.hidden_states[0][0], atol=1e-5, rtol=1e-4)
    if prompt.request.images and "image_outputs" in out:  # the oldest releases have none
        visual = torch.cat(list(out.image_outputs.pooler_output))
        torch.testing.assert_close(seen.embeddings[prompt.is_image], visual, atol=1e-5, rtol=1e-4)


@every_family_with_pictures
def test_each_picture_is_bound_to_its_own_slots(name):
    pictures = pictures_of(name, 3)
    if len(pictures) < 2:
        pytest.skip("takes one picture only")
    there, back = (
        Request(messages=(Message("user", (*order, "compare")),))
        for order in (pictures, pictures[::-1])
    )
    (prompt, _, seen), (turned, _, mirrored) = read(name, there), read(name, back)
    features = []
    for number in range(len(pictures)):
        own = seen.embeddings[prompt.image_of == number]
        same = mirrored.embeddings[turned.image_of == len(pictures) - 1 - number]
        torch.testing.assert_close(own, same, atol=1e-5, rtol=1e-4)
        features.append(own)
    for other in features[1:]:
        assert other.shape != features[0].shape or not torch.allclose(other, features[0], atol=0.1)


@every_family_with_pictures
def test_regions_lie_inside_the_picture_of_their_slot(name):
    target = target_of(name)
    for count in (1, 3):
        prompt = target.encode(asked(name, count))
        regions = target.regions(prompt)
        assert [r.image for r in regions] == prompt.image_of[prompt.is_image].tolist()
        for region in regions:
            if region.box is not None:
                left, top, right, bottom = region.box
                assert -1e-9 <= left < right <= 1 + 1e-9 and -1e-9 <= top < bottom <= 1 + 1e-9
        assert any(region.box for region in regions)


@every_family_with_pictures
def test_every_turn_of_a_conversation_has_the_slots_of_its_pictures(name):
    target, pictures = target_of(name), pictures_of(name, 2)
    turns = [
        Message("user", (pictures[0], QUESTIONS[0])),
        Message("assistant", ("it is a chart.",)),
        Message("user", (QUESTIONS[1],)),
        Message("assistant", ("red.",)),
        Message("user", (*pictures[1:], QUESTIONS[2])),
    ]
    for end, shown in ((1, 1), (3, 1), (5, len(pictures))):
        request = Request(messages=tuple(turns[:end]))
        prompt = target.encode(request)
        made = reference_inputs(name, request)
        assert prompt.tokens.tolist() == made["input_ids"][0].tolist()
        assert prompt.image_of.max() == shown - 1
        target.prefill(prompt, Want())  # raises if features and slots differ


@every_family
def test_typed_names_of_special_tokens_are_plain_text(name):
    target, typed = target_of(name), f"is {families()[name].typed} or {{x}}here?"
    prompt = target.encode(asked(name, 1, question=typed))
    usual = target.encode(asked(name, 1, question="is it here?"))
    assert typed in target.tokenizer.decode(prompt.tokens[~prompt.is_image])
    assert torch.equal(prompt.image_of[prompt.is_image], usual.image_of[usual.is_image])
    special = torch.tensor(sorted(target.banned_ids | target.eos_ids))
    counts = [torch.isin(p.tokens[~p.is_image], special).sum().item() for p in (prompt, usual)]
    assert counts[0] == counts[1]


# -- trees and caches --------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_tree_forward_equals_decoding_each_path_alone(name, attention):
    target = target_of(name, attention)
    _, cache, _ = read(name, target=target)
    start = cache.copy()
    (seen,) = target.forward([TREE], [cache], WANT)
    for node in range(len(TREE)):
        own = start.copy()
        for token in TREE.tokens[path_to(node)].tolist():
            (step,) = target.forward([DraftTree.chain([token])], [own], WANT)
        torch.testing.assert_close(seen.logits[node], step.logits[0], atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(seen.final[node], step.final[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(seen.hidden[node], step.hidden[0], atol=1e-4, rtol=1e-4)


@every_family
@pytest.mark.parametrize("node", [0, 2, 8])
def test_keeping_a_path_equals_never_having_seen_the_rest(name, node):
    target = target_of(name)
    _, cache, _ = read(name)
    own, path = cache.copy(), path_to(node)
    target.forward([TREE], [cache], Want())
    cache.keep(path, len(TREE))
    target.forward([DraftTree.chain(TREE.tokens[path].tolist())], [own], Want())
    assert cache.length == own.length
    after = DraftTree.chain([20, 21])
    (seen,), (wanted,) = (target.forward([after], [c], Want()) for c in (cache, own))
    torch.testing.assert_close(seen.logits, wanted.logits, atol=2e-4, rtol=1e-4)


@every_family
def test_a_text_continued_from_the_cache_equals_reading_it_at_once(name):
    target = target_of(name)
    prompt, cache, _ = read(name)
    tokens = torch.tensor([30, 31, 32, 33, 34])
    (seen,) = target.forward([DraftTree.chain(tokens.tolist())], [cache], WANT)
    whole = replace(
        prompt,
        tokens=torch.cat([prompt.tokens, tokens]),
        image_of=torch.cat([prompt.image_of, torch.full_like(tokens, -1)]),
    )
    _, wanted = target.prefill(whole, WANT)
    torch.testing.assert_close(seen.logits[-1], wanted.logits[0], atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(seen.final, wanted.final[-5:], atol=1e-4, rtol=1e-4)


@every_family
def test_two_interleaved_requests_do_not_touch_each_other(name):
    target = target_of(name)
    prompts = [target.encode(asked(name, count)) for count in (1, 0)]
    alone = []
    for prompt in prompts:
        cache, _ = target.prefill(prompt, Want())
        alone.append([target.forward([TREE], [cache], Want())[0].logits for _ in range(2)])
    caches = [target.prefill(p, Want())[0] for p in prompts]
    for turn in range(2):
        seen = target.forward([TREE, TREE], caches, Want())
        for number in range(2):
            assert torch.equal(seen[number].logits, alone[number][turn])


# -- texts -------------------------------------------------------------------------------------


@walk_with("conversation", CONVERSATIONS, (3, 2))
def test_greedy_text_is_that_of_transformers_own_generate(name, conversation):
    target = target_of(name)
    request = asked(name, *conversation, max_new_tokens=24)
    inputs = reference_inputs(name, request)
    made = target.model.generate(**inputs, max_new_tokens=24, do_sample=False)
    answer = made[0, inputs["input_ids"].shape[1] :].tolist()
    for drafter in (load_drafter("plain", target), Guesses(target, answer)):
        result = generate(target, drafter, request)
        assert result.token_ids == answer
        assert result.text == target.decode(answer)
    if len(answer) > 12:
        assert len(result.rounds) < len(answer) - 4  # drafts were accepted, and some rejected
        assert sum(r.num_accepted for r in result.rounds) < sum(
            r.num_drafted for r in result.rounds
        )


@every_family
def test_exact_rows_make_scattered_paths_bit_equal_in_bfloat16(name):
    target = target_of(name, dtype=torch.bfloat16, exact_rows=True)
    _, drafted, _ = read(name, target=target)
    plain = drafted.copy()
    rng = torch.Generator().manual_seed(0)
    for _ in range(4):
        tokens = torch.randint(10, 250, (9,), generator=rng)
        (seen,) = target.forward([DraftTree(tokens, TREE.parents)], [drafted], Want())
        path = path_to(int(torch.randint(0, 9, (1,), generator=rng)))
        drafted.keep(path, len(TREE))
        for node in path:
            (step,) = target.forward([DraftTree.chain([int(tokens[node])])], [plain], Want())
            plain.keep([0], 1)
            assert torch.equal(seen.logits[node], step.logits[0])
