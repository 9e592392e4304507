"""What every drafter must do: the text never depends on it."""

import pytest
import tiny
import torch

from varifocal.decode import Generation, generate
from varifocal.drafters import drafter_class, drafter_names, load_drafter
from varifocal.errors import BadOption
from varifocal.plan import Budget, CostModel
from varifocal.request import ask
from varifocal.sampling import Sampling

SAMPLINGS = [Sampling(), Sampling(temperature=1.0, top_k=40, top_p=0.95, seed=7)]
COST = CostModel(verify=tuple(1 + 0.02 * n for n in range(41)), step=0.05, start=0.1, other=0.05)


@pytest.fixture(scope="module")
def target():
    return tiny.tiny_target()


def drafter(name, target, **options):
    """With random weights where a drafter learns: the text must be right all the same."""
    torch.manual_seed(0)
    cls = drafter_class(name)
    return cls(target, cls.Config(**options))


def request(sampling, seed=0, tokens=40, **settings):
    return ask(
        "what is it? what is it? " * 2,
        [tiny.picture(seed)],
        max_new_tokens=tokens,
        sampling=sampling,
        **settings,
    )


@pytest.mark.parametrize("name", drafter_names())
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("cost", [None, COST], ids=["fixed", "auto"])
def test_text_does_not_depend_on_the_drafter(name, sampling, cost, target):
    plain = generate(target, drafter("plain", target), request(sampling))
    drafted = generate(target, drafter(name, target), request(sampling), cost=cost)
    assert drafted.token_ids == plain.token_ids
    assert (drafted.text, drafted.finish_reason) == (plain.text, plain.finish_reason)


@pytest.mark.parametrize("name", drafter_names())
def test_stop_texts_cut_at_the_same_point(name, target):
    whole = generate(target, drafter("plain", target), request(Sampling()))
    stop = whole.text[8:10]
    plain = generate(target, drafter("plain", target), request(Sampling(), stop=[stop]))
    drafted = generate(target, drafter(name, target), request(Sampling(), stop=[stop]))
    assert plain.finish_reason == "stop" and stop not in plain.text
    assert (drafted.text, drafted.token_ids) == (plain.text, plain.token_ids)


@pytest.mark.parametrize("name", drafter_names())
@pytest.mark.parametrize("tokens", [1, 2, 3, 7])
def test_the_budget_is_met_exactly(name, tokens, target):
    result = generate(target, drafter(name, target), request(Sampling(), tokens=tokens))
    assert len(result.token_ids) == tokens and result.finish_reason == "length"


@pytest.mark.parametrize("name", drafter_names())
def test_proposals_keep_to_the_budget_and_are_trees(name, target):
    one = drafter(name, target)
    generation = Generation(target, one, request(Sampling(), tokens=20))
    trees = []
    propose = one.propose

    def recorded(state, root, budget):
        trees.append((propose(state, root, budget), budget))
        return trees[-1][0]

    one.propose = recorded  # type: ignore[method-assign]
    for _ in generation:
        pass
    for tree, budget in trees:
        tree.check()
        assert len(tree) - 1 <= budget.nodes
        assert int(tree.depth.max()) <= budget.depth
        assert not set(tree.tokens[1:].tolist()) & target.banned_ids


@pytest.mark.parametrize("name", drafter_names())
def test_interleaved_requests_do_not_disturb_each_other(name, target):
    one = drafter(name, target)
    asked = [request(s, seed=i) for i, s in enumerate(SAMPLINGS)]
    alone = [generate(target, one, r) for r in asked]
    live = [Generation(target, one, r) for r in asked]
    running = [iter(g) for g in live]
    while running:
        running = [r for r in running if next(r, None) is not None]
    for generation, wanted in zip(live, alone, strict=True):
        got = generation.result()
        assert got.token_ids == wanted.token_ids
        assert got.acceptance_histogram == wanted.acceptance_histogram


def test_unknown_names_and_options_are_refused_by_name(target):
    with pytest.raises(BadOption, match="nosuch"):
        load_drafter("nosuch", target)
    with pytest.raises(BadOption, match="ngrams"):
        load_drafter("lookup", target, ngrams=2)
    with pytest.raises(BadOption, match="ngram"):
        load_drafter("lookup", target, ngram=0)
    with pytest.raises(BadOption, match="cannot be imported"):
        load_drafter("no.such.module", target)


def test_lookup_copies_what_followed_and_never_special_tokens(target):
    one = drafter("lookup", target)
    prompt = target.encode(ask("abcdefg abcdefg", [tiny.picture()]))
    _, seen = target.prefill(prompt, one.want)
    state = one.start(prompt, seen, 70)
    for token in target.tokenizer("abc")["input_ids"]:
        state.append(token)
    drafted = one.propose(state, state.tokens[-1], Budget(depth=10, nodes=10)).tokens[1:].tolist()
    assert target.tokenizer.decode(drafted).startswith("defg")
    assert not set(drafted) & (target.banned_ids | target.eos_ids)


def test_lookup_reads_on_into_its_own_copy_of_a_loop(target):
    one = drafter("lookup", target)
    prompt = target.encode(ask("x", [tiny.picture()]))
    _, seen = target.prefill(prompt, one.want)
    state = one.start(prompt, seen, 70)
    for token in (71, 70, 71):
        state.append(token)
    assert one.propose(state, 71, Budget(depth=5, nodes=5)).tokens.tolist() == [
        71,
        70,
        71,
        70,
        71,
        70,
    ]


def test_a_generation_that_was_left_goes_on_where_it_was(target):
    plain = generate(target, drafter("plain", target), request(Sampling()))
    generation = Generation(target, drafter("lookup", target), request(Sampling()))
    next(iter(generation))
    for _ in generation:
        pass
    assert generation.result().token_ids == plain.token_ids
    assert list(generation) == []
