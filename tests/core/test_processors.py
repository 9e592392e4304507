"""Settings that change logits: those of transformers, row by row, at every node of a tree."""

import math
import random

import pytest
import torch
from scripted import EOS, Scripted, saying
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from varifocal.errors import BadRequest
from varifocal.processors import Processor, process_by_hand, spelled
from varifocal.sampling import Sampling
from varifocal.tree import DraftTree

V = 30
WORDS = ((5,), (3, 4), (7, 3, 4), (4, 4, 4, 2))
ALL = Sampling(
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=-0.7,
    logit_bias={3: 2.5, 11: -100.0},
    bad_words=WORDS,
    min_new_tokens=9,
)


@pytest.fixture
def target():
    return Scripted(saying([], V), V)


def random_tree(rng: random.Random, root: int) -> DraftTree:
    parents, tokens, taken = [-1], [root], set()
    for _ in range(24):
        parent = rng.choice([len(tokens) - 1, rng.randrange(len(tokens))])
        left = [t for t in range(2, 9) if (parent, t) not in taken]
        if not left:
            continue
        tokens.append(rng.choice(left))
        parents.append(parent)
        taken.add((parent, tokens[-1]))
    return DraftTree(torch.tensor(tokens), torch.tensor(parents))


def logits_for(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 4


@pytest.mark.parametrize("seed", range(12))
def test_every_node_is_treated_as_if_its_path_had_come_token_by_token(seed, target):
    rng = random.Random(seed)
    prompt = [rng.randrange(2, 9) for _ in range(rng.randint(1, 6))]
    answer = [rng.randrange(2, 9) for _ in range(rng.randint(1, 10))]
    processor = Processor(ALL, target, torch.tensor(prompt))
    start = rng.randint(0, len(answer))
    processor.append(answer[:start])
    processor.append(answer[start:])
    tree = random_tree(rng, answer[-1])
    logits = logits_for(len(tree), seed)
    made = processor(logits, tree)
    for node in range(len(tree)):
        path = tree.tokens[tree.ancestry[node]].tolist()[1:]
        wanted = process_by_hand(ALL, target, prompt, answer + path, logits[node])
        torch.testing.assert_close(made[node], wanted)


def test_the_first_token_sees_the_prompt_alone(target):
    processor = Processor(ALL, target, torch.tensor([7, 3]))
    logits = logits_for(1, 0)
    made = processor(logits)
    torch.testing.assert_close(made[0], process_by_hand(ALL, target, [7, 3], [], logits[0]))
    assert made[0, 4] == -math.inf  # completes a word that began in the prompt


@pytest.mark.parametrize("seed", range(6))
def test_rows_equal_those_of_transformers_own_processors(seed, target):
    sampling = Sampling(
        repetition_penalty=1.3,
        logit_bias={3: 2.5, 11: -9.0},
        bad_words=WORDS,
        min_new_tokens=6,
    )
    rng = random.Random(seed)
    prompt = [rng.randrange(2, 9) for _ in range(5)]
    answer = [rng.randrange(2, 9) for _ in range(4)]
    theirs = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor([[[3], 2.5], [[11], -9.0]]),
            RepetitionPenaltyLogitsProcessor(1.3),
            NoBadWordsLogitsProcessor([list(w) for w in WORDS], eos_token_id=EOS),
            MinNewTokensLengthLogitsProcessor(len(prompt), 6, EOS),
        ]
    )
    processor = Processor(sampling, target, torch.tensor(prompt))
    processor.append(answer)
    tree = random_tree(rng, answer[-1])
    logits = logits_for(len(tree), seed)
    made = processor(logits, tree)
    for node in range(len(tree)):
        path = tree.tokens[tree.ancestry[node]].tolist()[1:]
        text = torch.tensor([prompt + answer + path])
        torch.testing.assert_close(made[node], theirs(text, logits[node : node + 1])[0])


def test_without_a_setting_the_logits_themselves_come_back(target):
    processor = Processor(Sampling(temperature=0.7, top_k=3), target, torch.tensor([1]))
    processor.append([4, 5])
    logits = logits_for(1, 0)
    assert processor(logits, DraftTree.chain([5])) is logits


def test_slots_with_an_id_beyond_the_head_are_no_fault(target):
    processor = Processor(Sampling(repetition_penalty=2.0), target, torch.tensor([V + 3, 4]))
    made = processor(torch.ones(1, V))[0]
    assert made[4] == 0.5 and made.sum() == V - 0.5


def test_a_bad_text_is_banned_with_and_without_a_space_before_it(target):
    assert set(spelled(Sampling(bad_words=["no", (3, 4)]), Scripted(saying([])))) == {
        (112, 113),
        (34, 112, 113),
        (3, 4),
    }


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"logit_bias": {V: 1.0}}, r"logit_bias names the token 30.* ids 0 to 29"),
        ({"bad_words": [(3, V + 1)]}, "bad_words names the token 31"),
        ({"bad_words": [(EOS,)]}, "end token 1"),
        ({"bad_words": [(t,) for t in range(V) if t != EOS], "min_new_tokens": 1}, "all 30 tokens"),
    ],
)
def test_what_only_the_target_knows_is_refused_by_name(settings, named, target):
    with pytest.raises(BadRequest, match=named):
        Processor(Sampling(**settings), target, torch.tensor([2]))
