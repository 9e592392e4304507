"""Lookahead: what the trie holds, what it drafts from it, and what it never does."""

import pytest
import tiny
import torch
from taught import backwards

from varifocal.decode import Generation, generate
from varifocal.drafters import load_drafter
from varifocal.drafters.lookahead import _Trie
from varifocal.errors import BadOption
from varifocal.plan import Budget, CostModel
from varifocal.request import ask
from varifocal.sampling import Sampling

BUDGET = Budget(depth=4, nodes=12)


@pytest.fixture(scope="module")
def target():
    return tiny.tiny_target()


def lookahead(target, **options):
    return load_drafter("lookahead", target, **options)


def read(target, text, *, output="", picture=True, **options):
    """A drafter, the state of a request that reads `text`, and its newest token."""
    drafter = lookahead(target, **options)
    prompt = target.encode(ask(text, [tiny.picture()] if picture else []))
    _, seen = target.prefill(prompt, drafter.want)
    first, *rest = target.tokenize(output or "q")
    state = drafter.start(prompt, seen, first)
    drafter._read(state, rest)
    return drafter, state, state.tail[-1]


def branches(target, tree):
    """The text of every path that ends in a leaf."""
    parents = tree.parents.tolist()
    found = []
    for leaf in sorted(set(range(len(tree))) - set(parents)):
        path = []
        while leaf > 0:
            path.append(int(tree.tokens[leaf]))
            leaf = parents[leaf]
        found.append(target.tokenizer.decode(path[::-1]))
    return found


def test_all_continuations_are_drafted_as_branches(target):
    drafter, state, root = read(target, "xy12 xy34 xy56", output="xy")
    tree = drafter.propose(state, root, Budget(depth=2, nodes=12))
    tree.check()
    assert sorted(branches(target, tree)) == ["12", "34", "56"]


def test_a_branch_that_came_more_often_is_kept_first(target):
    drafter, state, root = read(target, "xy12 xy34 xy34 xy56", output="xy")
    tree = drafter.propose(state, root, Budget(depth=2, nodes=2))
    assert branches(target, tree) == ["34"]


def test_half_of_the_nodes_go_to_what_the_output_said(target):
    drafter, state, root = read(target, "xy12 xy12 xy34 xy34", output="xy56 xy")
    tree = drafter.propose(state, root, Budget(depth=2, nodes=6))
    assert "56" in branches(target, tree)
    for other in ("12", "34"):
        assert other in branches(target, tree)


def test_the_longest_tail_decides(target):
    drafter, state, root = read(target, "ay12 by34 by56", output="ay")
    assert branches(target, drafter.propose(state, root, Budget(depth=2, nodes=2))) == ["12"]
    drafter, state, root = read(target, "ay12 by34 by34", output="ay", query=1)
    assert branches(target, drafter.propose(state, root, Budget(depth=2, nodes=2))) == ["34"]


def test_a_lone_full_stop_is_no_query(target):
    drafter, state, root = read(target, "1.ab 2.ab", output="q.")
    assert len(drafter.propose(state, root, BUDGET)) == 1
    drafter, state, root = read(target, "1.ab 2.ab", output="2.")
    assert len(drafter.propose(state, root, BUDGET)) > 1


def test_nothing_matches_across_a_gap(target):
    drafter = lookahead(target)
    state = drafter._new_trie()
    special = min(target.banned_ids)
    drafter._read(state, [50, special, 51, 50], given=True)
    assert len(drafter.propose(state, 50, BUDGET)) == 1
    drafter._read(state, [51, 50])
    assert drafter.propose(state, 50, BUDGET).tokens.tolist()[:3] == [50, 51, 50]
    drafter._read(state, [special])
    assert state.tail == []


def test_picture_slots_and_special_tokens_are_never_drafted(target):
    drafter = lookahead(target)
    never = target.banned_ids | target.eos_ids
    asked = ask("what is it? " * 3, [tiny.picture()], max_new_tokens=60)
    generation = Generation(target, drafter, asked)
    trees, propose = [], drafter.propose
    drafter.propose = lambda *a: trees.append(propose(*a)) or trees[-1]  # type: ignore[method-assign]
    for _ in generation:
        pass
    assert max(len(tree) for tree in trees) > 1
    for tree in trees:
        tree.check()
        assert not set(tree.tokens[1:].tolist()) & never


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
def test_the_text_is_plain_decodings_for_any_order_of_siblings(target, sampling):
    asked = ask("say it: red blue red blue red", [tiny.picture()], max_new_tokens=40,
                sampling=sampling)  # fmt: skip
    plain = generate(target, load_drafter("plain", target), asked)
    drafter = lookahead(target)
    assert generate(target, drafter, asked).token_ids == plain.token_ids
    drafter.propose = backwards(drafter.propose)
    assert generate(target, drafter, asked).token_ids == plain.token_ids


def test_counts_are_those_of_a_naive_reference():
    tokens = torch.randint(0, 3, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    tokens[20] = -1
    trie = _Trie(5, 10**6)
    trie.read(tokens[:30], is_output=False)
    trie.read(tokens[30:], is_output=True)
    for n in range(1, 6):
        grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
        for gram in set(grams):
            if -1 in gram:
                continue
            ends = [i + n - 1 for i, g in enumerate(grams) if g == gram]
            node = trie.top
            for token in gram:
                node = node.children[token]
            assert (node.given, node.output) == (
                sum(end < 30 for end in ends),
                sum(end >= 30 for end in ends),
            )
    assert trie.find([0] * 6) is None


def test_a_full_trie_forgets_rare_output_and_keeps_the_prompt():
    rng = torch.Generator().manual_seed(1)
    trie = _Trie(4, 200)
    trie.read([900, 901, 902, 903], is_output=False)
    for _ in range(40):
        noise = torch.randint(0, 500, (5,), generator=rng).tolist()
        trie.read([-1, 700, 701, -1, *noise], is_output=True)
        assert trie.num_output <= 200
    assert trie.find([900, 901, 902]) is not None
    assert trie.top.children[700].children[701].output > 1
    held, order = 0, [trie.top]
    for node in order:
        order += node.children.values()
        held += sum(not child.given for child in node.children.values())
    assert held == trie.num_output


@pytest.mark.parametrize("text", ["a", "aaaaaaaaaaaaaaaa"])
def test_short_and_repetitive_prompts_without_an_end_token_are_drafted(text):
    endless = tiny.tiny_target(seed=1)
    endless.eos_ids = frozenset()
    asked = ask(text, [tiny.picture()], max_new_tokens=20)
    plain = generate(endless, load_drafter("plain", endless), asked)
    assert generate(endless, lookahead(endless), asked).token_ids == plain.token_ids


def test_shared_text_is_drafted_from_and_never_written_to(target, tmp_path):
    path = tmp_path / "shared.txt"
    path.write_text("hello world", encoding="utf-8")
    drafter, state, root = read(target, "q", output="hello", shared=str(path), nodes=5)
    tree = drafter.propose(state, root, Budget(depth=6, nodes=6))
    assert branches(target, tree) == [" world"]
    before = drafter._shared.top.children.keys() | set()
    generate(target, drafter, ask("hello there", [tiny.picture()], max_new_tokens=30))
    assert drafter._shared.top.children.keys() == before and not drafter._shared.num_output
    other = read(target, "q", output="hello")
    assert len(other[0].propose(other[1], other[2], BUDGET)) == 1


def cost(node):
    verify = tuple(1.0 + node * n for n in range(13))
    return CostModel(verify=verify, step=0.0, start=0.0, other=0.0)


def test_what_costs_more_than_it_brings_is_not_drafted(target):
    drafter, state, root = read(target, "xy12 xy34 xy56", output="xy")
    dear, cheap = cost(5.0), cost(1e-6)
    assert len(drafter.propose(state, root, Budget(depth=2, nodes=12, cost=dear))) == 1
    tree = drafter.propose(state, root, Budget(depth=2, nodes=12, cost=cheap))
    tree.check()
    assert len(tree) == 7
    assert all(b <= a for a, b in zip(tree.scores.tolist(), tree.scores.tolist()[1:], strict=False))


@pytest.mark.parametrize("options", [{"query": 0}, {"capacity": 0}, {"output_weight": 2.0}])
def test_bad_settings_are_refused(target, options):
    with pytest.raises(BadOption, match=next(iter(options))):
        lookahead(target, **options)


def test_a_shared_file_that_is_no_text_is_refused_before_the_first_request(target, tmp_path):
    (tmp_path / "x.png").write_bytes(b"\x89PNG\xff")
    for name in ("x.png", "nosuch.txt"):
        with pytest.raises(BadOption, match=name):
            lookahead(target, shared=str(tmp_path / name))
