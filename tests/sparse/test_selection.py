"""What is kept, what is chosen, and that a query chooses in a batch what it chooses alone."""

import pytest
import torch
from sparse_examples import asking, filled, one

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.selection import Reach, best, listed, seen
from varifocal.sparse.selectors import SELECTORS, load_selector


def test_equal_scores_go_to_the_lower_number():
    scores = torch.tensor([1.0, 0.0, 0.0, 2.0, 0.0, -0.0])
    chosen = best(scores, torch.ones(6, dtype=torch.bool), 4)
    assert chosen.nonzero().flatten().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("units", [40, 4000])  # sorts of different lengths are different code
def test_a_plateau_of_zeros_is_always_cut_at_the_same_place(units):
    scores = torch.zeros(3, units)
    scores[:, -1] = 1
    chosen = best(scores, torch.ones(3, units, dtype=torch.bool), 10)
    assert listed(chosen).tolist() == [[*range(9), units - 1]] * 3


def test_scores_that_overflowed_neither_displace_free_units_nor_choose_taken_ones():
    scores = torch.tensor([-torch.inf, torch.nan, torch.inf, 0.0])
    is_free = torch.tensor([True, True, False, True])
    assert best(scores, is_free, 3).tolist() == [True, True, False, True]
    assert best(scores, is_free, 1).tolist() == [False, False, False, True]


def test_lists_are_ascending_and_padded_behind():
    chosen = torch.tensor([[True, False, True, True], [False, True, False, False]])
    assert listed(chosen).tolist() == [[0, 2, 3], [1, -1, -1]]


def test_first_and_recent_tokens_are_kept_however_they_lie_in_blocks():
    reach = Reach(budget=8, first=5, recent=3)
    for visible in range(1, 40):
        for unit in (1, 2, 4, 8):
            units = -(-visible // unit)
            kept = reach.kept(torch.tensor([visible]), unit, units)[0]
            tokens = kept.repeat_interleave(unit)[:visible]
            assert tokens[:5].all() and tokens[-3:].all()
            assert kept.sum() * unit + reach.count(unit) * unit <= reach.most_tokens(unit)


def test_a_block_counts_as_seen_with_its_first_token():
    assert seen(torch.tensor([4, 5]), 4, 3).tolist() == [[True, False, False], [True, True, False]]


@pytest.mark.parametrize(
    "wrong", [{"budget": 0}, {"first": 0}, {"recent": 0}, {"dense_layers": -1}]
)
def test_a_reach_without_any_of_its_parts_is_refused(wrong):
    with pytest.raises(BadOption, match=next(iter(wrong))):
        Reach(**wrong)


def test_a_budget_below_one_block_is_refused():
    with pytest.raises(BadOption, match="a budget of 8 tokens does not hold one block of 16"):
        Reach(budget=8).count(16)


@pytest.mark.parametrize("name", SELECTORS)
def test_scores_of_a_query_do_not_depend_on_the_batch(name):
    cache = filled([3, 20, 37])
    queries = asking(cache, rows=(0, 1, 2, 2), visible=(3, 20, 30, 37))
    selector = load_selector(name, cache)
    together = selector.scores(cache, 0, queries)
    for number in range(4):
        alone = selector.scores(cache, 0, one(queries, number))[0]
        whole = int(queries.visible[number]) // selector.unit(cache)
        assert torch.equal(alone[:, :whole], together[number, :, :whole])


@pytest.mark.parametrize("name", SELECTORS)
def test_tokens_drafted_behind_a_query_do_not_change_its_scores(name):
    """Blocks that it sees in part are kept, so only whole ones are compared."""
    short, long = filled([23]), filled([23])
    queries = asking(short)
    tokens = torch.full((6, 2, 8), 50.0).double()
    long.append(0, [6], tokens, tokens, torch.full((6, 3), 50.0).double())
    before = load_selector(name, short).scores(short, 0, queries)
    after = load_selector(name, long).scores(long, 0, queries)
    whole = 23 // load_selector(name, short).unit(short)
    assert torch.equal(before[..., :whole], after[..., :whole])


def test_quest_bounds_every_logit_of_a_block():
    cache = filled([23])
    queries = asking(cache)
    keys, _ = cache.tokens(0, 0)
    logits = torch.einsum("hgd,thd->hgt", queries.vectors[0], keys).amax(1)
    bounds = load_selector("quest", cache).scores(cache, 0, queries)[0]
    for block in range(6):
        assert (bounds[:, block] >= logits[:, 4 * block : 4 * block + 4].amax(-1)).all()


def test_infllm_is_the_published_formula():
    """By unfolding: mean of 4 keys every 2, softmax, sum over the group, pool to blocks of 4."""
    cache = filled([24], block_size=4, stride=2)
    queries = asking(cache)
    keys, _ = cache.tokens(0, 0)
    windows = keys.unfold(0, 4, 2).mean(-1)  # [W, H, D]
    logits = torch.einsum("hgd,whd->hgw", queries.vectors[0], windows) * queries.scale
    law = logits.softmax(-1).sum(1)
    pooled = torch.nn.functional.max_pool1d(law, 3, 2, padding=1)
    scores = load_selector("infllm", cache).scores(cache, 0, queries)[0]
    torch.testing.assert_close(scores[:, : pooled.shape[-1]], pooled, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["lightning", "lightning_tokens"])
def test_the_lightning_indexer_is_the_published_formula(name):
    cache = filled([22])
    queries = asking(cache)
    keys = cache.index_keys(0, queries.rows, 6)[0, :22]
    products = torch.einsum("ji,ti->jt", queries.index[0], keys).relu()
    wanted = (queries.index_weights[0] @ products) * (2 * 3) ** -0.5
    if name == "lightning":
        wanted = torch.stack([part.max() for part in wanted.split(4)])
    scores = load_selector(name, cache).scores(cache, 0, queries)[0]
    torch.testing.assert_close(scores, wanted.expand(2, -1), rtol=1e-12, atol=1e-15)


def test_selectors_refuse_caches_and_queries_that_lack_what_they_read():
    bare = filled([9], stride=0, index_dim=0)
    with pytest.raises(BadOption, match="infllm reads means"):
        load_selector("infllm", bare)
    with pytest.raises(BadOption, match="lightning reads the index keys of a model"):
        load_selector("lightning", bare)
    with pytest.raises(BadOption, match="no selector 'quast'; there are quest, infllm"):
        load_selector("quast", bare)
    with pytest.raises(BadRequest, match="needs the indexer's queries"):
        load_selector("lightning", filled([9])).scores(filled([9]), 0, asking(bare))


@pytest.mark.parametrize("unit,count", [(1, 30), (4, 7), (8, 3), (16, 1)])
def test_a_budget_that_is_no_multiple_of_the_block_is_rounded_down(unit, count):
    assert Reach(budget=30).count(unit) == count
