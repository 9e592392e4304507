"""Several requests in one forward: each gets what it would get alone, and nothing else changes."""

from functools import cache

import pytest
import tiny
import torch
from checkpoints import built, families

from varifocal.errors import BadRequest
from varifocal.fast import fast_target
from varifocal.request import ask
from varifocal.target import Want
from varifocal.targets import load_target
from varifocal.targets._packed import packed_decoder
from varifocal.tree import DraftTree

WANT = Want(final=True, embeddings=True, layers=(1, 3))
BUSH = DraftTree(
    torch.tensor([10, 11, 12, 13, 14, 15, 16, 17, 18]),
    torch.tensor([-1, 0, 0, 1, 1, 2, 3, 5, 6]),
)
TREES = [BUSH, DraftTree.chain([20]), DraftTree.chain([30, 31, 32])]
PATHS = [[0, 1, 3, 6], [0], [0, 1]]

every_family = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if family.is_variant else [])
        for name, family in families().items()
    ],
)


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


@cache
def target_of(name, attention="sdpa", dtype=torch.float32, exact_rows=False):
    path = str(built(name))
    return load_target(path, attention=attention, dtype=dtype, exact_rows=exact_rows)


def prompts(target, name):
    """Of unlike lengths, with one, no and all pictures."""
    family = families()[name]
    for words, count in ((0, 1), (30, 0), (3, 3)):
        sizes = family.sizes[: min(count, family.max_pictures)]
        pictures = [tiny.picture(seed, size) for seed, size in enumerate(sizes)]
        yield target.encode(ask("what is it?" + " then" * words, pictures))


def caches_of(target, name):
    return [target.prefill(prompt, Want())[0] for prompt in prompts(target, name)]


def compare(target, name, trees, check, turns=2):
    """Trees together and each alone, again after a path of each was kept."""
    alone, together = caches_of(target, name), caches_of(target, name)
    for _ in range(turns):
        single = [target.forward([t], [c], WANT)[0] for t, c in zip(trees, alone, strict=True)]
        packed = target.forward(trees, together, WANT)
        for one, other in zip(single, packed, strict=True):
            for part in ("logits", "hidden", "final", "embeddings"):
                assert getattr(one, part).shape == getattr(other, part).shape
                check(getattr(one, part), getattr(other, part))
        for number, tree in enumerate(trees):
            assert alone[number].length == together[number].length
            path = PATHS[number][: len(tree)]
            alone[number].keep(path, len(tree))
            together[number].keep(path, len(tree))


@every_family
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_each_tree_of_a_batch_gets_what_it_gets_alone(name, attention):
    def close(one, other):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-4)

    compare(target_of(name, attention), name, TREES, close)


@every_family
@pytest.mark.parametrize("trees", [TREES, [DraftTree.chain([20])] * 3], ids=["wide", "few rows"])
def test_exact_rows_make_a_batch_bit_equal_in_bfloat16(name, trees):
    def equal(one, other):
        assert torch.equal(one, other)

    compare(target_of(name, dtype=torch.bfloat16, exact_rows=True), name, trees, equal)


@pytest.mark.parametrize("count", [2, 7, 8, 20])
def test_exact_rows_do_not_depend_on_the_number_of_requests(count):
    target = target_of("llava_next", dtype=torch.bfloat16, exact_rows=True)
    one = caches_of(target, "llava_next")[0]
    (alone,) = target.forward([TREES[1]], [one.copy()], WANT)
    for seen in target.forward([TREES[1]] * count, [one.copy() for _ in range(count)], WANT):
        assert torch.equal(seen.logits, alone.logits)


def test_the_weights_are_read_once_for_all_requests():
    target, rows = target_of("llava_next"), []
    caches = caches_of(target, "llava_next")
    head = target.readout
    handle = head.register_forward_hook(lambda _, args, out: rows.append(len(args[0])))
    try:
        target.forward(TREES, caches, Want())
    finally:
        handle.remove()
    assert rows == [sum(map(len, TREES))]  # and no padding


def test_no_tree_gives_nothing():
    assert target_of("llava_next").forward([], [], Want()) == []


def test_a_packed_decoder_shares_every_weight_and_leaves_the_first_as_it_was():
    target = tiny.tiny_target()
    decoder = target.text_parts()[0]
    twin = packed_decoder(decoder)
    assert [p.data_ptr() for p in twin.parameters()] == [p.data_ptr() for p in decoder.parameters()]
    assert all(a is b for a, b in zip(twin.buffers(), decoder.buffers(), strict=True))
    assert decoder.config._attn_implementation == "sdpa"
    assert twin.config is not decoder.config
    assert twin.layers[0].self_attn.config is twin.config


def test_prepacked_weights_serve_batches_too():
    target, fast = tiny.tiny_target(), fast_target(tiny.tiny_target())
    made = []
    for one in (target, fast):
        prompt = one.encode(ask("what is it?", [tiny.picture()]))
        caches = [one.prefill(prompt, Want())[0] for _ in range(3)]
        made.append([seen.logits for seen in one.forward(TREES, caches, Want())])
    torch.testing.assert_close(made[0], made[1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("trees", [TREES, TREES[:1]], ids=["several", "one"])
def test_a_forward_that_fails_leaves_every_cache_as_it_was(trees):
    target = target_of("llava_next")
    caches = caches_of(target, "llava_next")[: len(trees)]
    wanted = target.forward(trees, [cache.copy() for cache in caches], Want())
    lengths = [cache.length for cache in caches]

    def full(*_, **__):
        raise BadRequest("no memory")

    caches[-1].layers[1].update = full
    with pytest.raises(BadRequest, match="no memory"):
        target.forward(trees, caches, Want())
    del caches[-1].layers[1].update
    assert [layer.length for c in caches for layer in c.layers] == [
        length for length in lengths for _ in range(target.num_layers)
    ]
    for seen, one in zip(target.forward(trees, caches, Want()), wanted, strict=True):
        torch.testing.assert_close(seen.logits, one.logits)
