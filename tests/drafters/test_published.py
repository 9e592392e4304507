"""Published checkpoints: what is drafted with them is what their authors' formulas say."""

import published_drafters as authors
import pytest
import tiny
import torch
from published_drafters import HEADS, SIZE, Formulas, deep_target

from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.plan import Budget
from varifocal.request import ask
from varifocal.target import Want

DEPTH, NODES = 3, 10


@pytest.fixture(scope="module")
def target():
    return deep_target()


class Asked:
    """A prompt with two pictures, the true states of it, and the root."""

    def __init__(self, target, want=None, pictures=2):
        shown = [tiny.picture(k, (96, 96)) for k in range(pictures)]
        self.target, self.prompt = target, target.encode(ask("what is it?", shown))
        every = Want(layers=tuple(range(1, target.num_layers)), final=True, embeddings=True)
        with torch.no_grad():
            _, self.seen = target.prefill(self.prompt, every)
            _, self.read = target.prefill(self.prompt, want or every)
        self.root = int(self.seen.logits.argmax())
        self.final, self.embedded = self.seen.final.double(), self.seen.embeddings.double()
        self.is_image = self.prompt.is_image.tolist()

    def embed(self, *tokens):
        return self.target.embed(torch.tensor(tokens)).double().detach()

    def head(self, state):
        """The law over what may be said."""
        logits = state @ self.target.model.lm_head.weight.detach().double().T
        logits[..., sorted(self.target.banned_ids)] = float("-inf")
        return logits.log_softmax(-1)


def agrees(drafter, asked, law):
    """Assert that a drafted tree has the probabilities of `law`: path below the root -> log p."""
    with torch.no_grad():
        state = drafter.start(asked.prompt, asked.read, asked.root)
        tree = drafter.propose(state, asked.root, Budget(depth=DEPTH, nodes=NODES))
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    paths, wanted = [()], [0.0]
    for node in range(1, len(tokens)):
        before = paths[parents[node]]
        paths.append((*before, tokens[node]))
        step = law(before)[tokens[node]]
        wanted.append(wanted[parents[node]] + float(step))
    assert len(tokens) == NODES + 1 and max(map(len, paths)) == DEPTH
    found = tree.scores.double().log()
    torch.testing.assert_close(found[1:], torch.tensor(wanted[1:]).double(), atol=2e-3, rtol=1e-3)
    best = law(()).topk(1).indices.item()
    assert (best,) in paths


def load(made, target, folder, **options):
    options = {"nodes": NODES, "depth": DEPTH, "check": False, **options}
    return load_drafter(str(made.write(folder)), target, **options)


# -- drafting on the last state ----------------------------------------------------------------


def chained(f, asked, enter, rows, positions, path):
    """The law after a path: each drafted row reads the last output and its token's embedding."""
    rows, positions, read = list(rows), list(positions), len(rows)
    for token in (*path, None):
        state = f.layers(torch.stack(rows), torch.tensor(positions))[-1]
        if token is None:
            return asked.head(state)
        rows.append(enter(asked.embed(token)[0], state))
        positions.append(len(asked.is_image) + len(positions) - read)


@pytest.mark.parametrize("layers", [1, 2])
def test_eagle_reads_every_slot_and_drafts_as_published(target, tmp_path, layers):
    made = authors.eagle(target, layers=layers)
    drafter = load(made, target, tmp_path / "EAGLE-tiny")
    assert drafter.name == "text_only" and drafter.config.prefix == "full"
    f, asked = Formulas(made), Asked(target, drafter.want)
    following = torch.cat([asked.embedded[1:], asked.embed(asked.root)])
    rows, places = f.fc(following, asked.final), range(len(following))
    agrees(drafter, asked, lambda path: chained(f, asked, f.fc, rows, places, path))


@pytest.mark.parametrize("variant", ["LLaVA", "Qwen2-VL"])
def test_msd_reads_pictures_as_embeddings_and_drafts_as_published(target, tmp_path, variant):
    made = authors.eagle(target) if variant == "LLaVA" else authors.msd_qwen(target)
    drafter = load(made, target, tmp_path / f"MSD-{variant}")
    assert drafter.name == "msd" and drafter.config.first_norm == (variant != "LLaVA")
    f, asked = Formulas(made), Asked(target, drafter.want)
    following = torch.cat([asked.embedded[1:], asked.embed(asked.root)])
    rows = f.fc(following, asked.final)
    shifted = [*asked.is_image[1:], False]
    rows[shifted] = following[shifted]
    places = range(len(following))
    agrees(drafter, asked, lambda path: chained(f, asked, f.fc, rows, places, path))


def adapted(f, picture):
    """imadpt: learned queries over the input embeddings of a picture, without positions."""
    k, v = (f.heads(f"imadpt.{y}_proj", picture) for y in "kv")
    sees = torch.ones(len(f.w["imadpt.q"]), len(picture), dtype=torch.bool)
    return f.linear("imadpt.o_proj", f.read(f.w["imadpt.q"], k, v, sees))


@pytest.mark.parametrize("qkv_bias", [False, True], ids=["LLaVA", "Qwen2.5-VL"])
def test_vispec_compresses_pictures_and_drafts_as_published(target, tmp_path, qkv_bias):
    made = authors.vispec(target, qkv_bias=qkv_bias)
    drafter = load(made, target, tmp_path / "v")
    assert drafter.name == "vispec" and drafter.config.num_queries == 3
    f, asked = Formulas(made), Asked(target, drafter.want)
    embedded = [*asked.embedded, asked.embed(asked.root)[0]]
    image_of = [*asked.prompt.image_of.tolist(), -1]
    g, rows, places, i = torch.zeros(authors.WIDTH).double(), [], [], 0

    def enter(embedding, state):
        return f.fc(embedding, f.linear("img_fc", torch.cat([state, g])))

    while i < len(asked.is_image):  # slot i is followed by token i + 1
        if image_of[i + 1] < 0:
            rows.append(enter(embedded[i + 1], asked.final[i]))
            places.append(i)
            i += 1
            continue
        span = [j for j in range(len(image_of)) if image_of[j] == image_of[i + 1]]
        *outputs, g = adapted(f, torch.stack([embedded[j] for j in span]))
        rows += outputs
        places += [span[-1] - 1 - n for n in reversed(range(len(outputs)))]
        i = span[-1]
    agrees(drafter, asked, lambda path: chained(f, asked, enter, rows, places, path))


# -- DREAM -------------------------------------------------------------------------------------


def test_dream_hears_the_states_before_and_drafts_as_published(target, tmp_path):
    made = authors.dream(target)
    drafter = load(made, target, tmp_path / "d")
    assert drafter.name == "dream" and not drafter.config.token_norm
    f, asked = Formulas(made), Asked(target, drafter.want)

    def law(path):
        stream = torch.cat([asked.embedded, asked.embed(asked.root)])
        states = asked.final
        for token in (*path, None):
            out = _dream(f, stream, states)[-1:]
            if token is None:
                return asked.head(out[0])
            stream, states = torch.cat([stream, asked.embed(token)]), torch.cat([states, out])

    agrees(drafter, asked, law)


def _dream(f, stream, states):
    positions = torch.arange(len(stream))
    x = f.layer("layers.0", stream, positions)
    name = "layers.1"
    inner = f"{name}.cross_attn"
    q = f.norm(f"{inner}.q_norm", f.heads(f"{inner}.q_proj", f.norm(f"{name}.input_layernorm", x)))
    k = f.norm(f"{inner}.k_norm", f.heads(f"{inner}.k_proj", states))
    sees = torch.ones(len(x), len(states), dtype=torch.bool).tril(-1)
    read = f.read(q, k, f.heads(f"{inner}.v_proj", states), sees)
    read[0] = 0  # before the first position there is no state
    x = x + f.w[f"{name}.cross_attn_attn_gate"].tanh() * f.linear(f"{inner}.o_proj", read)
    grown = f.mlp(f"{name}.mlp", f.norm(f"{name}.post_attention_layernorm", x))
    x = x + f.w[f"{name}.cross_attn_mlp_gate"].tanh() * grown
    return f.norm("norm", f.layer("layers.2", x, positions))


# -- EAGLE-3 -----------------------------------------------------------------------------------


def fused_law(f, asked, taps, first, path, flags=(), start=0):
    """EAGLE-3 over its own vocabulary, as a law over the target's ids."""
    layers = [asked.seen.hidden[:, tap - 1].double() for tap in taps]
    if "fc_norm" in flags:
        layers = [f.norm(f"fc_norm.{n}", x) for n, x in enumerate(layers)]
    wide = torch.cat(layers, -1)
    if "norm_before_fc" in flags:
        wide = f.norm("input_norm", wide)
    states = f.linear("fc", wide)
    tokens = [*asked.prompt.tokens[1:].tolist(), asked.root]
    for token in (*path, None):
        positions = start + torch.arange(len(states))
        e, h = (
            f.norm(f"{first}.input_layernorm", asked.embed(*tokens)),
            f.norm(f"{first}.hidden_norm", states),
        )
        read = f.self_attention(f"{first}.self_attn", torch.cat([e, h], -1), positions)
        beside = h if "norm_before_residual" in flags else states
        x = f.finish(first, beside + read)
        for n in range(1, flags.count("layer") + 1):
            x = f.layer(f"layers.{n}", x, positions)
        normed = f.norm("norm", x[-1:])
        if token is None:
            break
        states = torch.cat([states, normed if "norm_output" in flags else x[-1:]])
        tokens.append(token)
    logits = normed[0] @ f.w["lm_head.weight"].T
    made = torch.full((asked.target.vocab_size,), float("-inf")).double()
    offsets = f.made.tensors.get("d2t", torch.zeros(len(logits), dtype=torch.int64))
    made[torch.arange(len(logits)) + offsets] = logits
    made[sorted(asked.target.banned_ids)] = float("-inf")
    return made.log_softmax(-1)


@pytest.mark.parametrize("first", ["midlayer", "layers.0"])
@pytest.mark.parametrize("size", [authors.DRAFT_VOCAB, 0], ids=["reduced", "whole"])
def test_eagle3_drafts_as_published(target, tmp_path, first, size):
    made = authors.eagle3(target, first=first, size=size)
    drafter = load(made, target, tmp_path / "e")
    assert drafter.name == "eagle3" and drafter.want.layers == (2, 4, 5)
    f, asked = Formulas(made), Asked(target, drafter.want)
    agrees(drafter, asked, lambda path: fused_law(f, asked, (2, 4, 5), first, path))
    if size:
        allowed = set(authors.draft_ids(target).tolist()) - target.banned_ids
        assert set(drafter.vocabulary.tolist()) == allowed


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"norm_before_residual": True},
        {"norm_before_residual": True, "norm_before_fc": True},
        {"fc_norm": True, "norm_output": True},
    ],
    ids=lambda flags: "+".join(flags) or "plain",
)
def test_speculators_flags_are_those_of_the_formulas_from_whatever_position(
    target, tmp_path, flags
):
    made = authors.speculators(target, ids=[1, 3, 6], **flags)
    drafter = load(made, target, tmp_path / "s")
    f, asked = Formulas(made), Asked(target, drafter.want)
    law = lambda path: fused_law(  # noqa: E731
        f, asked, (1, 3, 6), "layers.0", path, flags=tuple(flags), start=1
    )
    agrees(drafter, asked, law)


def test_layers_behind_the_first_read_its_output(target, tmp_path):
    made = authors.speculators(target, layers=3)
    drafter = load(made, target, tmp_path / "s")
    assert drafter.config.blocks == 3 and drafter.want.layers == (2, 4, 5)
    f, asked = Formulas(made), Asked(target, drafter.want)
    law = lambda path: fused_law(  # noqa: E731
        f, asked, (2, 4, 5), "layers.0", path, flags=("layer", "layer")
    )
    agrees(drafter, asked, law)


def test_layers_are_counted_as_transformers_hidden_states(target):
    asked = Asked(target, pictures=0)
    out = target.model(input_ids=asked.prompt.tokens[None], output_hidden_states=True)
    assert len(out.hidden_states) == target.num_layers + 1
    for layer in range(1, target.num_layers):
        torch.testing.assert_close(asked.seen.hidden[:, layer - 1], out.hidden_states[layer][0])
    torch.testing.assert_close(asked.seen.final, out.hidden_states[-1][0])


@pytest.mark.parametrize(
    ("config", "taps"),
    [
        ({}, (2, 4, 5)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}, (1, 3, 6)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}}, (2, 4, 7)),
        ({"eagle_config": {"use_aux_hidden_state": True}}, (2, 4, 5)),
    ],
    ids=["none", "inputs", "outputs", "flag alone"],
)
def test_ids_of_layers_mean_what_their_engine_makes_of_them(target, tmp_path, config, taps):
    made = authors.eagle3(target)
    made.config |= config
    assert load(made, target, tmp_path / "e").want.layers == taps


# -- DFlash and DSpark -------------------------------------------------------------------------


def block_logits(f, asked, taps, size):
    """Of all rows of a block behind the prompt: [size, V]."""
    wide = torch.cat([asked.seen.hidden[:, tap - 1].double() for tap in taps], -1)
    context = f.norm("hidden_norm", f.linear("fc", wide))
    n = len(context)
    mask = f.made.config.get("dflash_config", f.made.config)["mask_token_id"]
    x = asked.embed(asked.root, *[mask] * (size - 1))
    every = torch.arange(n + size)
    for number in range(2):
        name = f"layers.{number}"
        attn, normed = f"{name}.self_attn", f.norm(f"{name}.input_layernorm", x)
        both = torch.cat([context, normed])
        q = f.norm(f"{attn}.q_norm", f.heads(f"{attn}.q_proj", normed))
        k = f.norm(f"{attn}.k_norm", f.heads(f"{attn}.k_proj", both))
        sees = torch.ones(size, n + size, dtype=torch.bool)
        q, k = f.turned(q, every[n:]), f.turned(k, every)
        read = f.read(q, k, f.heads(f"{attn}.v_proj", both), sees)
        x = f.finish(name, x + f.linear(f"{attn}.o_proj", read))
    return asked.head(f.norm("norm", x))


def test_dflash_predicts_the_masks_of_one_pass_as_published(target, tmp_path):
    made = authors.dflash(target)
    drafter = load(made, target, tmp_path / "f", candidates=target.vocab_size)
    assert drafter.name == "block" and drafter.want.layers == (1, 3, 5)
    assert (drafter.config.ahead, drafter.config.from_root) == (3, False)
    f, asked = Formulas(made), Asked(target, drafter.want)
    laws = block_logits(f, asked, (1, 3, 5), 4)
    agrees(drafter, asked, lambda path: laws[1 + len(path)])


def test_dspark_predicts_from_the_root_and_adds_what_the_token_before_says(target, tmp_path):
    made = authors.dflash(target, rank=6)
    drafter = load(made, target, tmp_path / "s", candidates=target.vocab_size)
    assert (drafter.config.ahead, drafter.config.from_root, drafter.config.rank) == (4, True, 6)
    f, asked = Formulas(made), Asked(target, drafter.want)
    laws = block_logits(f, asked, (1, 3, 5), 4)

    def law(path):
        before = (asked.root, *path)[-1]
        w1, w2 = (f.w[f"markov_head.markov_{x}.weight"] for x in ("w1", "w2"))
        return (laws[len(path)] + w2 @ w1[before]).log_softmax(-1)

    agrees(drafter, asked, law)
    assert "guesses how much of a block" in drafter.recipe["notes"]


# -- what is drafted becomes text --------------------------------------------------------------


@pytest.mark.parametrize("name", ["eagle", "vispec", "dream", "eagle3", "speculators", "dflash"])
def test_the_text_is_plain_decodings_with_published_weights(target, tmp_path, name):
    made = getattr(authors, name)(target)
    drafter = load(made, target, tmp_path / f"EAGLE-{name}")
    asked = ask("what is it?", [tiny.picture(0, (96, 96))], max_new_tokens=12)
    plain = generate(target, load_drafter("plain", target), asked)
    assert generate(target, drafter, asked).token_ids == plain.token_ids


def test_heads_are_those_that_the_tensors_and_the_config_imply(target, tmp_path):
    shape = load(authors.eagle3(target), target, tmp_path / "e").network.shape
    assert (shape.heads, shape.kv_heads, shape.head_width) == (HEADS, authors.GROUPS, SIZE)
    assert (shape.inner, shape.eps, shape.norms) == (authors.INNER, authors.EPS, "rms")
