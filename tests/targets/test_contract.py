"""What every target must do, on tiny checkpoints with random weights."""

import pytest
import tiny
import torch

from varifocal.errors import BadRequest, UnsupportedTarget
from varifocal.request import Message, Request, ask
from varifocal.target import Want
from varifocal.tree import DraftTree

WANT = Want(final=True, embeddings=True, layers=(1, 3))


@pytest.fixture(scope="module")
def target():
    return tiny.tiny_target()


@pytest.fixture
def read(target):
    prompt = target.encode(ask("what is it?", [tiny.picture()]))
    return prompt, *target.prefill(prompt, WANT)


TREE = DraftTree(
    torch.tensor([10, 11, 12, 13, 14, 15, 16, 17, 18]),
    torch.tensor([-1, 0, 0, 1, 1, 2, 3, 5, 6]),
)


def path_to(node: int) -> list[int]:
    return TREE.ancestry[node].nonzero()[:, 0].tolist()


def test_prefill_equals_the_models_own_forward(target, read):
    prompt, cache, seen = read
    out = target.model(input_ids=prompt.tokens[None], **prompt.pixels, output_hidden_states=True)
    torch.testing.assert_close(seen.logits[0], out.logits[0, -1], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(seen.final, out.hidden_states[-1][0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen.hidden[:, 0], out.hidden_states[1][0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen.embeddings, out.hidden_states[0][0], atol=1e-5, rtol=1e-5)
    visual = torch.cat(list(out.image_outputs.pooler_output))
    torch.testing.assert_close(seen.embeddings[prompt.is_image], visual)
    assert cache.length == len(prompt.tokens)


def test_a_tree_forward_equals_decoding_each_path_alone(target, read):
    prompt, cache, _ = read
    (seen,) = target.forward([TREE], [cache], WANT)
    for node in range(len(TREE)):
        path = path_to(node)
        own, _ = target.prefill(prompt, WANT)
        for token in TREE.tokens[path].tolist():
            (step,) = target.forward([DraftTree.chain([token])], [own], WANT)
        torch.testing.assert_close(seen.logits[node], step.logits[0], atol=2e-4, rtol=1e-5)
        torch.testing.assert_close(seen.final[node], step.final[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(seen.hidden[node], step.hidden[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("node", [0, 2, 5, 7, 8])
def test_keeping_a_path_equals_never_having_seen_the_rest(target, read, node):
    prompt, cache, _ = read
    target.forward([TREE], [cache], Want())
    path = path_to(node)
    cache.keep(path, len(TREE))
    own, _ = target.prefill(prompt, Want())
    target.forward([DraftTree.chain(TREE.tokens[path].tolist())], [own], Want())
    assert cache.length == own.length
    after = DraftTree.chain([20, 21])
    (seen,), (wanted,) = (target.forward([after], [c], Want()) for c in (cache, own))
    torch.testing.assert_close(seen.logits, wanted.logits, atol=2e-4, rtol=1e-5)


def test_two_interleaved_requests_do_not_touch_each_other(target):
    prompts = [target.encode(ask("what?", [tiny.picture(s)])) for s in (1, 2)]
    alone = []
    for prompt in prompts:
        cache, _ = target.prefill(prompt, Want())
        alone.append([target.forward([TREE], [cache], Want())[0].logits for _ in range(2)])
    caches = [target.prefill(p, Want())[0] for p in prompts]
    for turn in range(2):
        seen = target.forward([TREE, TREE], caches, Want())
        for number in range(2):
            assert torch.equal(seen[number].logits, alone[number][turn])


def test_pictures_are_bound_to_their_own_slots(target):
    a, b = tiny.picture(1), tiny.picture(2, (96, 192))
    prompt = target.encode(ask("compare", [a, b]))
    _, seen = target.prefill(prompt, Want(embeddings=True))
    for number, image in enumerate((a, b)):
        _, own = target.prefill(target.encode(ask("x", [image])), Want(embeddings=True))
        alone = own.embeddings[target.encode(ask("x", [image])).is_image]
        torch.testing.assert_close(seen.embeddings[prompt.image_of == number], alone)


@pytest.mark.parametrize("size", [(1, 1), (50, 50), (97, 31), (192, 96), (640, 480), (31, 900)])
def test_slots_equal_features_and_the_processors_own_count(target, size):
    image = tiny.picture(0, size)
    prompt = target.encode(ask("x", [image]))
    made = target.processor(images=image, text="<image>", return_tensors="pt")
    slots = int((made["input_ids"] == target.processor.image_token_id).sum())
    assert int(prompt.is_image.sum()) == slots
    assert len(target.regions(prompt)) == slots
    target.prefill(prompt, Want())  # raises if features and slots differ


def test_typed_special_tokens_are_plain_text(target):
    typed = "is <image> or <|end|> or <|assistant|> here?"
    prompt = target.encode(ask(typed, [tiny.picture()]))
    assert int(prompt.is_image.sum()) == 114
    kept = prompt.tokens[~prompt.is_image].tolist()
    assert kept.count(target.tokenizer.eos_token_id) == 1  # the template's own
    assert kept.count(target.tokenizer.convert_tokens_to_ids("<|assistant|>")) == 1
    assert typed in target.tokenizer.decode(kept)


def test_plain_text_is_tokenised_as_the_template_would(target):
    request = ask("what is it?", [tiny.picture()])
    text = target.processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}],
        add_generation_prompt=True,
        tokenize=False,
    )
    made = target.processor(images=request.images[0], text=text, return_tensors="pt")
    assert target.encode(request).tokens.tolist() == made["input_ids"][0].tolist()


def test_text_turns_follow_picture_turns(target):
    request = Request(
        messages=(
            Message("user", (tiny.picture(), "what is it?")),
            Message("assistant", ("a circle",)),
            Message("user", ("and its colour?",)),
        )
    )
    prompt = target.encode(request)
    assert int(prompt.is_image.sum()) == 114
    assert target.tokenizer.decode(prompt.tokens).count("<|assistant|>") == 2


def test_asking_for_more_than_the_context_holds_says_what_would_fit(target):
    with pytest.raises(BadRequest, match=r"ask for at most \d+"):
        target.encode(ask("x", max_new_tokens=5000))


def test_sliding_windows_are_refused_by_name(target):
    from varifocal.cache import check_cacheable

    class Config:
        layer_types = ("sliding_attention", "full_attention")

    with pytest.raises(UnsupportedTarget, match="sliding_attention"):
        check_cacheable(Config(), "some model")


@pytest.mark.parametrize("context", [300, 3000])
def test_exact_rows_make_scattered_paths_bit_equal_in_bfloat16(context):
    target = tiny.tiny_target(dtype=torch.bfloat16, exact_rows=True)
    prompt = target.encode(ask("x" * (context - 120), [tiny.picture()]))
    assert abs(len(prompt.tokens) - context) < 20
    rng = torch.Generator().manual_seed(0)
    drafted, _ = target.prefill(prompt, Want())
    plain, _ = target.prefill(prompt, Want())
    for _ in range(12):
        tokens = torch.randint(10, 250, (9,), generator=rng)
        tree = DraftTree(tokens, TREE.parents)
        (seen,) = target.forward([tree], [drafted], Want())
        path = path_to(int(torch.randint(0, 9, (1,), generator=rng)))
        drafted.keep(path, len(tree))
        for node in path:
            (step,) = target.forward([DraftTree.chain([int(tokens[node])])], [plain], Want())
            plain.keep([0], 1)
            assert torch.equal(seen.logits[node], step.logits[0])


def test_the_fingerprint_knows_the_weights_but_not_their_precision():
    prints = {tiny.tiny_target(dtype=d).fingerprint for d in (torch.float32, torch.bfloat16)}
    assert len(prints) == 1
    assert tiny.tiny_target(seed=1).fingerprint not in prints
