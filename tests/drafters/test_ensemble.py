"""Drafting with the views of a small model: right trees, right caches, weights that follow."""

import pytest
import torch
from relatives import GREEDY, SAMPLED, begun, captioner, ensemble, relative, request, target_of

from varifocal.cost import cost_model
from varifocal.decode import Generation, generate
from varifocal.drafters import load_drafter
from varifocal.plan import AutoPlanner, Budget, CostModel
from varifocal.sampling import Sampling
from varifocal.target import Want
from varifocal.tree import DraftTree
from varifocal.verify import follow

pytestmark = pytest.mark.usefixtures("without_gradients")

CURVE = tuple(1 + 0.02 * n for n in range(41))
CHEAP = CostModel(verify=CURVE, step=0.02, start=0.05, other=0.05)
DEAR = CostModel(verify=CURVE, step=2.0, start=0.3, other=0.05)


@pytest.fixture(scope="module")
def target():
    return target_of("llava_next")


@pytest.fixture(scope="module")
def small():
    return relative()


def prompts_of(small, asked, names):
    count = len(asked.images)
    texts = {
        "T": ["\n"] * count,
        "C": [f"image: {captioner(p)}" for p in asked.images],
    }
    return [
        small.encode(asked) if n == "M" else small.encode_instead(asked, texts[n]) for n in names
    ]


def mixture_by_hand(small, drafter, prompts, weights, text):
    """Every view by itself, from its first token on."""
    laws = []
    for prompt in prompts:
        kv, _ = small.prefill(prompt, Want())
        (out,) = small.forward([DraftTree.chain(text)], [kv], Want())
        scores = out.logits[-1].float()
        scores[sorted(drafter.target.banned_ids)] = float("-inf")
        laws.append(scores.softmax(-1))
    return sum(w * law for w, law in zip(weights, laws, strict=True))


# -- what is drafted ---------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["M", "T", "MT", "TC", "MTC"])
def test_a_chain_is_the_mixtures_likeliest_token_after_token(names, target, small):
    asked = request(pictures=2, turns=2)
    weights = tuple(float(n) for n in range(1, len(names) + 1))
    drafter = ensemble(target, small, views=names, policy="static", weights=weights, depth=4)
    state, root = begun(drafter, target, asked)
    tree = drafter.propose(state, root, Budget(depth=4, nodes=40))
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3]
    prompts, shares = prompts_of(small, asked, names), [w / sum(weights) for w in weights]
    joint = 1.0
    for node in range(1, 5):
        law = mixture_by_hand(small, drafter, prompts, shares, tree.tokens[:node].tolist())
        assert int(tree.tokens[node]) == int(law.argmax())
        joint *= float(law.max())
        assert float(tree.scores[node]) == pytest.approx(joint, rel=1e-3)


@pytest.mark.parametrize("width", [2, 3])
def test_nodes_of_a_tree_have_the_mixtures_probability(width, target, small):
    asked = request()
    drafter = ensemble(target, small, width=width, policy="static", depth=3)
    state, root = begun(drafter, target, asked)
    tree = drafter.propose(state, root, Budget(depth=3, nodes=12))
    tree.check()
    assert len(tree) > 4 and int(tree.depth.max()) > 1
    assert max(tree.parents.tolist().count(p) for p in range(len(tree))) > 1
    prompts = prompts_of(small, asked, "MT")
    for node in range(1, len(tree)):
        path = tree.ancestry[node].nonzero()[:, 0].tolist()
        joint = 1.0
        for k in range(1, len(path)):
            text = tree.tokens[path[:k]].tolist()
            law = mixture_by_hand(small, drafter, prompts, (0.5, 0.5), text)
            assert int(tree.tokens[path[k]]) in law.topk(width).indices.tolist()
            joint *= float(law[tree.tokens[path[k]]])
        assert float(tree.scores[node]) == pytest.approx(joint, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("cost", [None, CHEAP], ids=["fixed", "rests"])
def test_caches_hold_the_text_and_nothing_of_rejected_drafts(width, cost, target, small):
    asked = request(tokens=25)
    drafter = ensemble(target, small, width=width, views="MTC")
    generation = Generation(target, drafter, asked, cost=cost)
    for _ in generation:
        pass
    result = generation.result()
    state = generation.drafter_state
    taken = [r.num_accepted for r in result.rounds]
    assert max(taken) > 0 and min(taken) < 5
    text = result.token_ids
    made = state.views.read(small, [*state.unread, state.root])
    for logits, prompt in zip(made, prompts_of(small, asked, "MTC"), strict=True):
        kv, _ = small.prefill(prompt, Want())
        (out,) = small.forward([DraftTree.chain(text)], [kv], Want())
        torch.testing.assert_close(logits[-1], out.logits[-1], atol=1e-3, rtol=1e-3)


def test_laws_of_every_decided_token_are_judged_once(target, small, monkeypatch):
    """Also of tokens that were decoded plainly, and of the one behind a draft taken whole."""
    judged = []
    drafter = ensemble(target, target, labels="kl")  # the target drafts for itself
    generation = Generation(target, drafter, request(tokens=24))
    rests = AutoPlanner(CHEAP, 5, 5)
    rests._rest = 3
    generation._planner = rests
    rounds = iter(generation)
    next(rounds)
    state = generation.drafter_state
    learn = state.arbitration.learn

    def noted(laws, law, tokens):
        judged.extend(zip(laws.tolist(), law.tolist(), tokens.tolist(), strict=True))
        learn(laws, law, tokens)

    monkeypatch.setattr(state.arbitration, "learn", noted)
    for _ in rounds:
        pass
    text = generation.result().token_ids
    waiting = len(state.judged) + len(state.awaited)
    assert [token for *_, token in judged] == text[1 : len(judged) + 1]
    assert len(judged) + waiting == len(text) - 1 and len(judged) > 10
    for laws, law, _ in judged:  # the multimodal view of the target is the target
        allowed = torch.tensor(law)
        allowed[sorted(target.banned_ids)] = 0
        torch.testing.assert_close(
            torch.tensor(laws[0]), allowed / allowed.sum(), atol=1e-4, rtol=0
        )


# -- weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", ["hard", "kl", "tvd"])
def test_the_view_that_is_the_target_soon_has_the_weight(labels, target):
    drafter = ensemble(target, target, labels=labels)
    generation = Generation(target, drafter, request(tokens=40))
    for _ in generation:
        pass
    weights = generation.drafter_state.weights
    assert weights[0] == {"M": 0.5, "T": 0.5}
    assert weights[-1]["M"] > 0.5 and (labels == "hard" or weights[-1] == {"M": 1.0, "T": 0.0})
    taken = [r.num_accepted for r in generation.result().rounds]
    assert sum(taken[len(taken) // 2 :]) >= 4 * (len(taken) - len(taken) // 2 - 1)


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "mt", "window": 4},
        {"policy": "mtcp", "labels": "kl", "views": "MTPC"},
        {"policy": "adaboost"},
        {"policy": "random"},
        {"policy": "static", "weights": (0.2, 0.8)},
    ],
    ids=lambda o: o["policy"],
)
def test_each_block_of_a_request_has_weights_to_be_plotted(options, target, small):
    generation = Generation(target, ensemble(target, small, **options), request())
    for _ in generation:
        pass
    weights = generation.drafter_state.weights
    assert len(weights) == len([r for r in generation.result().rounds if r.num_drafted])
    for block in weights:
        assert list(block) == list(options.get("views", "MT"))
        assert min(block.values()) >= 0 and sum(block.values()) == pytest.approx(1)
    if options["policy"] in ("mt", "mtcp"):
        assert len({tuple(block.values()) for block in weights}) > 1


def test_random_weights_are_the_requests_own(target, small):
    drafter = ensemble(target, small, policy="random")
    seen = []
    for seed in (0, 0, 1):
        generation = Generation(target, drafter, request(seed=seed))
        for _ in generation:
            pass
        seen.append(generation.drafter_state.weights)
    assert seen[0] == seen[1] != seen[2]


# -- the text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "options",
    [
        {"depth": 3},
        {"depth": 7, "policy": "mtcp", "labels": "tvd"},
        {"width": 2, "views": "MTPC", "policy": "mtcp", "labels": "kl"},
        {"width": 3, "policy": "random"},
    ],
    ids=["chain", "long", "tree", "wide"],
)
@pytest.mark.parametrize("shape", [(0, 1), (1, 1), (3, 1), (2, 3)], ids=str)
def test_the_text_is_the_targets_own(sampling, options, shape, target, small):
    pictures, turns = shape
    asked = request(sampling, tokens=24, pictures=pictures, turns=turns)
    plain = generate(target, load_drafter("plain", target), asked)
    drafted = generate(target, ensemble(target, small, **options), asked)
    assert drafted.token_ids == plain.token_ids
    assert sum(r.num_drafted for r in drafted.rounds) > 0


def test_tokens_drawn_behind_a_draft_follow_the_targets_law(target, small):
    """[Leviathan23, Thm. 1] with noise that belongs to a position: 20,000 draws, chi-square."""
    drafter = ensemble(target, small, width=2, depth=2)
    asked = request()
    state, root = begun(drafter, target, asked)
    tree = drafter.propose(state, root, Budget(depth=2, nodes=6))
    kv, _ = target.prefill(target.encode(asked), Want())
    (seen,) = target.forward([tree], [kv], Want())
    # A vocabulary of eight tokens: those of the tree and some that nobody drafted.
    drafted = tree.tokens[1:].unique()
    few = torch.cat([drafted, torch.tensor([i for i in range(20, 28) if i not in drafted])])[:8]
    place = {int(token): n for n, token in enumerate(few)}
    small_tree = DraftTree(torch.tensor([place.get(int(t), 0) for t in tree.tokens]), tree.parents)
    logits = seen.logits[:, few]
    logits = (logits - logits.mean(-1, keepdim=True)) / logits.std(-1, keepdim=True)
    law = logits.softmax(-1)
    children = (tree.parents == 0).nonzero()[:, 0]
    child = int(children[law[0, small_tree.tokens[children]].argmax()])
    first, second, draws = torch.zeros(8), torch.zeros(8), 20_000
    for seed in range(draws):
        verdict = follow(small_tree, logits, Sampling(temperature=1.0, seed=seed), 1)
        first[verdict.tokens[0]] += 1
        if verdict.path[1:2] == [child]:
            second[verdict.tokens[1]] += 1
    for counts, node in ((first, 0), (second, child)):
        expected = law[node] * counts.sum()
        assert float(counts.sum()) > 1000 and float(expected.min()) > 5
        assert float(((counts - expected) ** 2 / expected).sum()) < 29.9  # 7 degrees: p = 1e-4
    assert 0.1 < float(first[small_tree.tokens[children]].sum()) / draws < 0.95


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_interleaved_requests_keep_weights_and_drafts_of_their_own(sampling, target, small):
    drafter = ensemble(target, small, views="MTC")
    asked = [request(sampling, seed=s, pictures=s) for s in (1, 2)]

    def finished(generation):
        rounds = [(r.tokens, r.num_drafted, r.num_accepted) for r in generation.result().rounds]
        return rounds, generation.drafter_state.weights

    alone = []
    for one in asked:
        generation = Generation(target, drafter, one)
        for _ in generation:
            pass
        alone.append(finished(generation))
    live = [Generation(target, drafter, one) for one in asked]
    running = [iter(g) for g in live]
    while running:
        running = [r for r in running if next(r, None) is not None]
    assert [finished(g) for g in live] == alone


# -- budgets -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize(("depth", "nodes"), [(1, 40), (3, 2), (5, 4), (7, 40)])
def test_the_budget_bounds_depth_and_nodes(width, depth, nodes, target, small):
    drafter = ensemble(target, small, width=width, depth=7)
    state, root = begun(drafter, target, request())
    tree = drafter.propose(state, root, Budget(depth=depth, nodes=nodes))
    tree.check()
    assert 0 < len(tree) - 1 <= nodes and int(tree.depth.max()) <= min(depth, nodes)
    if width == 1:
        assert len(tree) - 1 == min(depth, nodes)


def test_drafting_stops_where_a_level_costs_more_than_it_brings(target, small):
    drafter = ensemble(target, small, depth=7)
    state, root = begun(drafter, target, request())
    tree = drafter.propose(state, root, Budget(depth=7, nodes=40, cost=DEAR))
    assert len(tree) <= 2 and len(state.levels) == 1


def test_rounds_cost_what_the_machine_measured(target, small, tmp_path):
    drafter = ensemble(target, small, views="MTC", max_nodes=8)
    cost = cost_model(target, drafter, cache_dir=tmp_path)
    assert cost.start > 0 and cost.step > 0
    assert "relative" in drafter.config.model and small.fingerprint in drafter.config.model


def test_a_view_that_fills_the_draft_models_context_is_left_out(target, small, monkeypatch, caplog):
    asked = request(tokens=30)
    longest, shortest = (len(p.tokens) for p in prompts_of(small, asked, "MT"))
    monkeypatch.setattr(small, "context_length", longest + 15)
    plain = generate(target, load_drafter("plain", target), asked)
    generation = Generation(target, ensemble(target, small), asked)
    for _ in generation:
        pass
    assert generation.result().token_ids == plain.token_ids
    state = generation.drafter_state
    assert state.views.names == ["T"] and "holds" in state.left_out["M"]
    assert "the view M of the draft model is left out" in caplog.text
    assert list(state.weights[0]) == ["M", "T"] and state.weights[-1] == {"T": 1.0}
    monkeypatch.setattr(small, "context_length", shortest + 15)
    generation = Generation(target, ensemble(target, small, views="T"), asked)
    for _ in generation:
        pass
    assert generation.result().token_ids == plain.token_ids
    assert generation.drafter_state.views.names == []
    assert generation.result().rounds[-1].num_drafted == 0
