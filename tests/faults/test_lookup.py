"""Drafts that are copied: from the shortest and dullest prompts, beside pictures, text only."""

import copy
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from checkpoints import families
from drop_in import inputs_of, padded, target_of, tiny_inputs
from scripted import Scripted, ids_of, saying
from tiny import picture, tiny_target, tokenizer

import varifocal
from varifocal.decode import generate
from varifocal.drafter import Drafter
from varifocal.drafters import drafter_class, load_drafter
from varifocal.huggingface._held import hold
from varifocal.plan import Budget
from varifocal.request import Message, Request, ask
from varifocal.target import Forward, Prompt
from varifocal.tree import DraftTree
from varifocal.verify import Verification

METHODS = ["lookup", "lookahead"]
SHORT = [[70], [70, 70], [70, 71], [70, 71, 70]]
DULL = [[70] * 40, [70, 71] * 20, [70, 71, 72, 70] * 10]
NOTHING = Forward(torch.zeros(1, 1))  # what these drafters see of the target's forwards


def watched(monkeypatch: pytest.MonkeyPatch, method: str) -> list[DraftTree]:
    """Every tree that drafters of a class propose from now on."""
    cls, trees = drafter_class(method), []
    propose = cls.propose

    def noted(*args):
        trees.append(propose(*args))
        return trees[-1]

    monkeypatch.setattr(cls, "propose", noted)
    return trees


def proposed(trees: Sequence[DraftTree]) -> set[int]:
    return {token for tree in trees for token in tree.tokens[1:].tolist()}


# -- without an end token, from little or dull text --------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_a_loop_is_drafted_without_an_end_token_after_1_to_3_tokens(method, length):
    target = Scripted(saying(ids_of("abc" * 20)), prompt=length)
    target.eos_ids = frozenset()
    request = ask("x", max_new_tokens=12)
    drafted = generate(target, load_drafter(method, target), request)
    assert drafted.token_ids == generate(target, load_drafter("plain", target), request).token_ids
    assert drafted.token_ids == ids_of("abc" * 4)  # 12 tokens, no more and no fewer
    assert drafted.num_spec_steps < 8 and drafted.finish_reason == "length"


@cache
def endless():
    """A model of transformers that has no end token, in the hands of its user."""
    model = tiny_target(seed=2).model
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = model.config.text_config.eos_token_id = None
    return model


@pytest.mark.parametrize("ids", SHORT + DULL, ids=lambda ids: f"{len(ids)} of {len(set(ids))}")
@pytest.mark.parametrize("method", METHODS)
def test_the_drop_in_needs_no_end_token_on_short_and_repetitive_ids(method, ids, monkeypatch):
    trees = watched(monkeypatch, method)
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).long()}
    # Two tokens by turns, so that what is copied is right.
    wish = {
        "prefix_allowed_tokens_fn": lambda _, ids: [80 + len(ids) % 2],
        "max_new_tokens": 12,
        "do_sample": False,
    }
    wanted = endless().generate(**copy.deepcopy(inputs), **wish)
    rounds = []
    got = varifocal.generate(
        endless(), **inputs, **wish, drafter=method, on_result=lambda r: rounds.extend(r.rounds)
    )
    assert torch.equal(got, wanted) and got.shape[1] == len(ids) + 12
    assert sum(r.num_accepted for r in rounds) >= 5
    assert proposed(trees) <= {*ids, 80, 81}


@pytest.mark.parametrize("ids", DULL, ids=lambda ids: f"{len(ids)} of {len(set(ids))}")
@pytest.mark.parametrize("method", METHODS)
def test_a_repetitive_text_is_drafted_as_it_repeats(method, ids):
    target = Scripted(saying([]))
    drafter = load_drafter(method, target)
    prompt = Prompt(torch.tensor(ids), torch.full((len(ids),), -1), {}, ask("x"))
    state = drafter.start(prompt, NOTHING, ids[0])
    tree = drafter.propose(state, ids[0], Budget(depth=4, nodes=4))
    assert len(tree) == 5 and set(tree.tokens.tolist()) <= set(ids)
    follow = ids[1:] + ids  # one of the branches goes on as the text did
    paths = [tree.tokens[up].tolist() for up in tree.ancestry]
    assert any(path[1:] == follow[: len(path) - 1] for path in paths if len(path) > 2)


# -- text only ---------------------------------------------------------------------------------


def continued(drafter: Drafter, prompt: Prompt, said: list[int]) -> DraftTree:
    """The draft after an answer that began with these tokens."""
    state = drafter.start(prompt, NOTHING, said[0])
    if said[1:]:
        drafter.observe(state, Verification([*range(len(said) - 1)], said[1:]), NOTHING)
    return drafter.propose(state, said[-1], Budget(depth=8, nodes=16))


def all_drafts(drafter: Drafter, prompt: Prompt, special: set[int]) -> list[DraftTree]:
    """What is drafted where the answer repeats one or three tokens close before what is no text."""
    ids = prompt.tokens.tolist()
    ends = [end for end in range(1, len(ids)) if special & set(ids[end : end + 3])]
    said = {tuple(ids[max(0, end - n) : end]) for end in ends for n in (1, 3)}
    return [continued(drafter, prompt, list(s)) for s in sorted(said) if not special & set(s)]


def conversation(pictures: int) -> Request:
    """Pictures between like texts, an earlier answer, and a placeholder that was typed."""
    shown = [picture(seed, (60, 40)) for seed in range(pictures)]
    return Request(
        messages=(
            Message("user", (*shown[:1], "what is it? what is it? <image>")),
            Message("assistant", ("a red circle, a red circle",)),
            Message("user", (*shown[1:], "what is it? a red circle?")),
        ),
        max_new_tokens=4,
    )


def names():
    """All families; variants in the long run only."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] if family.is_variant else [])
        for name, family in families().items()
    ]


def specials_of(target) -> set[int]:
    """Every id that is no text, by the words of the tokenizer's own files."""
    added = target.tokenizer.added_tokens_decoder.items()
    return {number for number, token in added if token.special} | set(
        target.tokenizer.all_special_ids
    )


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("method", METHODS)
def test_no_special_placeholder_or_padding_id_is_ever_copied(method, name):
    target = target_of(name)
    prompt = target.encode(conversation(min(2, families()[name].max_pictures)))
    special = specials_of(target)
    assert special & set(prompt.tokens.tolist())  # there is what must not be copied
    trees = all_drafts(load_drafter(method, target), prompt, special)
    assert len(proposed(trees)) > 2 and not proposed(trees) & special


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("method", METHODS)
def test_the_drop_in_copies_none_either(method, name):
    ids = inputs_of(name, "what is it? what is it?")["input_ids"][0]
    own = target_of(name)
    model, every = own.model, specials_of(own)
    without = hold(model)  # a tokenizer: it knows the ids that the configuration names
    named = without.banned_ids | without.eos_ids
    assert named >= own.eos_ids and (own._image_id in named or not own.image_token)
    for target, special in ((hold(model, own.processor), every), (without, set(named))):
        prompt = Prompt(ids, torch.where(ids == own._image_id, 0, -1), {}, ask("x"))
        trees = all_drafts(load_drafter(method, target), prompt, every)
        assert proposed(trees) and not proposed(trees) & special


@pytest.mark.parametrize("method", METHODS)
def test_gaps_of_every_kind_end_a_copy_and_the_text_behind_them_is_found_again(method):
    target = tiny_target()
    a, b, c = (token for (token,) in map(target.tokenize, "abc"))
    pad, end = tokenizer().pad_token_id, tokenizer().eos_token_id
    slot = tokenizer().convert_tokens_to_ids(tokenizer().image_token)
    drafter = load_drafter(method, target)
    for gap in (pad, end, slot):
        ids = torch.tensor([a, b, gap, gap, c, a, gap])
        image_of = torch.where(ids == slot, 0, -1)
        prompt = Prompt(ids, image_of, {}, ask("x"))
        assert proposed([continued(drafter, prompt, [b])]) == set()
        assert proposed([continued(drafter, prompt, [c])]) == {a}
        assert proposed([continued(drafter, prompt, [a])]) == {b}


@pytest.mark.parametrize("method", METHODS)
def test_padding_of_rows_is_neither_read_nor_proposed(method, monkeypatch):
    trees = watched(monkeypatch, method)
    model, pad = tiny_target().model, tokenizer().pad_token_id
    rows = [tiny_inputs("a b a b a b a b", pictures=0), tiny_inputs("a b a b", pictures=0)]
    wish = {"do_sample": False, "max_new_tokens": 8, "drafter": method, "pad_token_id": pad}
    both = varifocal.generate(model, **padded(rows), **wish)
    assert bool((padded(rows)["input_ids"] == pad).any())  # there is padding
    together = [tree.tokens.tolist() for tree in trees]
    trees.clear()
    for row, got in zip(rows, both, strict=True):
        alone = varifocal.generate(model, **row, **wish)[0]
        assert got[-len(alone) :].tolist() == alone.tolist()
    assert together == [tree.tokens.tolist() for tree in trees] and proposed(trees)
    assert not proposed(trees) & specials_of(tiny_target())
