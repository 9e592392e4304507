"""An indexer for a model without one: its scores, its files, and whose state is where."""

import json
from copy import deepcopy

import pytest
import torch
from sparse_models import KEYWORD, PROMPT, SMALL, generated, random_indexer, sparse, tiny
from transformers import DynamicCache

from varifocal.errors import BadArtifact, BadOption, BadRequest, UnsupportedTarget
from varifocal.sparse.blocks import BlockCache, CacheShape
from varifocal.sparse.huggingface import SparseCache, use
from varifocal.sparse.indexer import ABOUT, WEIGHTS, IndexerConfig, Origin, load_indexer
from varifocal.sparse.interface import Entering, _hand_over
from varifocal.sparse.selection import Queries
from varifocal.sparse.selectors import LightningTokens


def entering(places: torch.Tensor, hidden: torch.Tensor | None = None) -> Entering:
    """At these places [1, T], as a model of head width 8 rotates."""
    speeds = 100 ** -(torch.arange(4, dtype=torch.float64) / 4)
    angles = (places[..., None] * speeds).repeat(1, 1, 2)
    if hidden is None:
        torch.manual_seed(int(places[0, 0]) % 7)
        hidden = torch.randn(*places.shape, 32, dtype=torch.float64)
    return Entering(hidden, angles.cos(), angles.sin())


def test_scores_in_training_are_those_of_the_selector():
    layer = random_indexer().double().layer(0)
    texts = entering(torch.arange(21)[None])
    keys = layer.keys(texts)[0]
    shape = CacheShape(num_rows=1, num_layers=1, kv_heads=1, head_dim=2, block_size=4, index_dim=6)
    cache = BlockCache(shape, dtype=torch.float64)
    cache.append(0, [21], *(torch.zeros(21, 1, 2, dtype=torch.float64),) * 2, keys)
    rows, places = torch.zeros(2, dtype=torch.int64), torch.tensor([7, 20])
    index, weights = layer.queries(texts.at(rows, places))
    queries = Queries(
        vectors=torch.zeros(2, 1, 1, 2, dtype=torch.float64),
        rows=rows,
        visible=places + 1,
        scale=1.0,
        index=index,
        index_weights=weights,
    )
    theirs = LightningTokens().scores(cache, 0, queries)[:, 0]
    torch.testing.assert_close(layer.scores(texts.at(rows, places), keys), theirs)


def test_scores_depend_on_distances_and_not_on_places():
    layer = random_indexer().double().layer(0)
    here = entering(torch.arange(9)[None])
    far = entering(torch.arange(50, 59)[None], here.hidden)
    uneven = entering(torch.arange(9)[None] * 3, here.hidden)
    row, last = torch.zeros(1, dtype=torch.int64), torch.tensor([8])
    one, same, other = (
        layer.scores(e.at(row, last), layer.keys(e)[0]) for e in (here, far, uneven)
    )
    torch.testing.assert_close(one, same)
    assert not torch.allclose(one, other)


def test_tokens_read_one_by_one_leave_the_index_keys_of_a_prefill():
    _, together = filled(PROMPT)
    model, one_by_one = sparse(selector="lightning")
    with torch.no_grad():
        for token in PROMPT[0]:
            model(token[None, None], **{KEYWORD: one_by_one})
    rows = torch.tensor([0])
    for layer in range(2):
        ours, theirs = (
            cache.attention.cache.index_keys(layer, rows, 2) for cache in (one_by_one, together)
        )
        # Up to 8 tokens everything fits, so that the layers below attended alike.
        torch.testing.assert_close(ours, theirs)
        assert ours[0, 1:].abs().min() > 0  # the first token is padding, whose embedding is 0


def filled(tokens: torch.Tensor):
    model, cache = sparse(selector="lightning")
    with torch.no_grad():
        model(tokens, **{KEYWORD: cache})
    return model, cache


def test_requests_of_one_model_do_not_see_each_other_and_other_caches_are_left_alone():
    model, cache = filled(PROMPT)
    SparseCache(model, SMALL, block_size=4, selector="lightning", indexer=random_indexer())
    hooks = [len(layer.self_attn._forward_pre_hooks) for layer in model.get_decoder().layers]
    assert hooks == [1, 1]  # stateless, whatever the number of caches
    assert not vars(model.get_decoder().layers[0].self_attn).keys() & {"cache", "indexer"}
    quest = SparseCache(model, SMALL, block_size=4)
    beside = generated(model, quest)
    assert torch.equal(beside.sequences, generated(*sparse()).sequences)
    stock = deepcopy(model)
    stock.set_attn_implementation("sdpa")
    theirs = stock(PROMPT, **{KEYWORD: DynamicCache()}).logits
    torch.testing.assert_close(theirs, tiny()(PROMPT).logits)
    after = model(PROMPT[:, :1], **{KEYWORD: cache}).logits
    again, other = filled(PROMPT)
    assert torch.equal(after, again(PROMPT[:, :1], **{KEYWORD: other}).logits)


def test_a_branch_goes_on_as_the_cache_would_have():
    model, cache = filled(PROMPT)
    twin = cache.branch(predictor="last")
    with torch.no_grad():
        ours, theirs = (model(PROMPT[:, 3:4], **{KEYWORD: c}).logits for c in (twin, cache))
    assert torch.equal(ours, theirs)


def test_what_was_saved_selects_as_before_and_draws_no_random_numbers(tmp_path):
    indexer = random_indexer()
    indexer.half().float()  # as it is written
    indexer.origin = Origin(target="a model", fingerprint="12", recipe={"seed": 1}, scores={"x": 1})
    indexer.save(tmp_path)
    state = torch.random.get_rng_state()
    loaded = load_indexer(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert loaded.config == indexer.config and loaded.origin == indexer.origin
    runs = [generated(*sparse(selector="lightning", indexer=i)) for i in (indexer, loaded)]
    assert torch.equal(*(torch.stack(run.logits) for run in runs))
    assert loaded.layer(0).key.weight.dtype == torch.float32  # the cache's copy is the model's
    loaded.check_origin("a model", "12")
    with pytest.raises(BadOption, match=r"trained for 'a model' \(fingerprint 12\).*'b'"):
        loaded.check_origin("b", "13")


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    with pytest.raises(BadArtifact, match="there is no indexer in"):
        load_indexer(tmp_path)
    random_indexer().save(tmp_path)
    whole = (tmp_path / ABOUT).read_text()
    about = json.loads(whole)
    for changed in (
        about | {"format": 2},
        about | {"config": about["config"] | {"heads": 4}},
        about | {"surprise": 1},
    ):
        (tmp_path / ABOUT).write_text(json.dumps(changed))
        with pytest.raises(BadArtifact, match="do not belong together, or are damaged"):
            load_indexer(tmp_path)
    (tmp_path / ABOUT).write_text(whole)
    (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:200])
    with pytest.raises(BadArtifact, match="do not belong together, or are damaged"):
        load_indexer(tmp_path)


def test_an_indexer_that_does_not_fit_is_refused():
    model = tiny()
    use(model)
    for selector, indexer, wrong in (
        ("lightning", None, "a model with an indexer, and none was given"),
        ("quest", random_indexer(), "quest reads no indexer"),
        ("lightning", random_indexer(num_layers=3), r"3 layers and reads.* of 32, the model has 2"),
        ("lightning", random_indexer(hidden_size=8), "hidden states of 8, the model has"),
    ):
        with pytest.raises(BadOption, match=wrong):
            SparseCache(model, SMALL, block_size=4, selector=selector, indexer=indexer)
    wide = random_indexer(width=16, rotary=16)  # of a model whose heads are 8 wide
    with pytest.raises(BadOption, match="wants as many from the model, whose rotation has 8"):
        generated(
            model, SparseCache(model, SMALL, block_size=4, selector="lightning", indexer=wide)
        )
    for sizes in ({"rotary": 3}, {"rotary": 8}, {"heads": 0}):
        with pytest.raises(BadOption):
            IndexerConfig(**{"num_layers": 2, "hidden_size": 32, "width": 6, "rotary": 4} | sizes)


def test_what_gives_no_hidden_states_or_several_places_a_token_is_refused():
    model, cache = filled(PROMPT)
    with pytest.raises(BadRequest, match="no index keys to take over"):
        cache.take(DynamicCache())
    other = tiny()
    use(other)
    with pytest.raises(BadRequest, match="the model that it was made for"):
        other(PROMPT, **{KEYWORD: cache})
    three = torch.zeros(3, 1, 5, 8)
    given = {"hidden_states": torch.zeros(1, 5, 32), "position_embeddings": (three, three)}
    with pytest.raises(UnsupportedTarget, match="one place a token; this model gives 3"):
        _hand_over(model.get_decoder().layers[0].self_attn, (), given | {"cache": cache})
