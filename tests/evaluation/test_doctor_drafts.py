"""What the doctor says of drafters that break a promise, or are fed wrongly."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from examined import case, faults, found
from tiny import tiny_target
from torch import nn

from varifocal.drafter import Drafter
from varifocal.drafters import load_drafter
from varifocal.evaluation._lessons import agreement, record
from varifocal.evaluation.doctor import diagnose, examine
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt, Want
from varifocal.tree import DraftTree
from varifocal.verify import Verification


@pytest.fixture(scope="module")
def target():
    return tiny_target()


# -- drafters that are told what to do -----------------------------------------------------------


class Scripted(Drafter[list[int]]):
    """Knows the target's answers, and what to do with them; `network` makes it a learned one."""

    name: ClassVar[str] = "scripted"
    pictures: ClassVar[str] = "does not see them"

    @dataclass(frozen=True, kw_only=True)
    class Config(Drafter.Config):
        depth: int = 3

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> list[int]:
        return [root]

    def propose(self, state: list[int], root: int, budget: Budget) -> DraftTree:
        return DraftTree.chain([root, *self.guesses(state)[: min(budget.depth, budget.nodes)]])

    def guesses(self, state: list[int]) -> list[int]:
        raise NotImplementedError

    def observe(self, state: list[int], verdict: Verification, seen: Forward) -> None:
        state += verdict.tokens


class Banned(Scripted):
    """Proposes a picture slot."""

    def guesses(self, state):
        return sorted(self.target.banned_ids)[:1]


class Outside(Scripted):
    """Proposes an id that no target has."""

    def guesses(self, state):
        return [self.target.vocab_size]


class Endless(Scripted):
    """Heeds no budget."""

    def propose(self, state, root, budget):
        return DraftTree.chain([root] * (budget.depth + 2))


class Broken(Scripted):
    """Raises."""

    def guesses(self, state):
        raise IndexError("no such row")


class Reducing(Scripted):
    """Has a vocabulary of its own, as given."""

    ids: ClassVar[list[int]] = [10, 11, 12]

    @property
    def vocabulary(self):
        return torch.tensor(self.ids)

    def guesses(self, state):
        return self.ids[:1]


class Learned(Scripted):
    """Has weights, which do nothing."""

    def __init__(self, target: Any, config: Drafter.Config) -> None:
        super().__init__(target, config)
        self.network = nn.Linear(2, 2)


class Ahead(Learned):
    """Reads the head off the feature of its newest position: right if that is one ahead."""

    want = Want(final=True)

    def start(self, prompt, prefill, root):
        return self._states(prefill)

    def guesses(self, state):
        return self.target.head(state[-1][None]).argmax(-1).tolist()

    def observe(self, state, verdict, seen):
        state += self._states(seen)

    @staticmethod
    def _states(seen):
        return list(seen.final)


class Stumbling(Scripted):
    """Right after one token a round, silent after an accepted path."""

    script: ClassVar[list[int]] = []

    def guesses(self, state):
        is_lost = state[-1] == -1
        told = [t for t in state if t >= 0]
        return [] if is_lost else self.script[len(told) :]

    def observe(self, state, verdict, seen):
        if state[-1] == -1:
            state.pop()
        state += verdict.tokens
        if verdict.num_accepted:
            state.append(-1)


def told(cls: type[Drafter[Any]], target: Any) -> Drafter[Any]:
    return cls(target, cls.Config())


def test_a_drafter_trained_with_another_shift_is_told_so():
    varied = tiny_target(seed=2)  # one that does not say the same token for long
    diagnosis = examine(varied, told(Ahead, varied), [case(1, 40)])
    inputs = found(diagnosis, "acceptance.inputs")
    assert inputs.verdict == "fault"
    assert inputs.numbers["changes"]["features one position ahead"]["top1"] == 1.0
    assert "the drafter was trained with another shift" in diagnosis.conclusion


# -- broken promises -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "named"),
    [
        (Banned, "proposals of banned ids"),
        (Outside, "proposals outside the vocabulary"),
        (Endless, "drafts beyond the budget"),
        (Broken, "IndexError: no such row"),
    ],
)
def test_a_broken_promise_is_named(cls, named, target):
    diagnosis = examine(target, told(cls, target), [case(tokens=6)])
    assert "acceptance.promises" in faults(diagnosis)
    assert named in diagnosis.conclusion


def test_ids_outside_the_vocabulary_never_reach_the_target(target):
    diagnosis = examine(target, told(Outside, target), [case(tokens=6)])
    assert found(diagnosis, "decoding.text").verdict == "not applicable"


@pytest.mark.parametrize(
    ("ids", "named"),
    [([10, 10], "1 are repeated"), ([5, 9999], "1 lie outside"), ([0, 10], "1 are banned")],
)
def test_a_wrong_map_of_the_vocabulary_is_named(ids, named, target, monkeypatch):
    assert 0 in target.banned_ids
    monkeypatch.setattr(Reducing, "ids", ids)
    diagnosis = examine(target, told(Reducing, target), [case(tokens=3)])
    assert named in found(diagnosis, "drafter.vocabulary").measured
    assert found(diagnosis, "drafter.vocabulary").verdict == "fault"


def test_a_right_map_of_the_vocabulary_is_well(target):
    diagnosis = examine(target, told(Reducing, target), [case(tokens=3)])
    assert found(diagnosis, "drafter.vocabulary").verdict == "ok"


def test_a_table_of_its_own_that_differs_from_the_targets_is_a_warning(target):
    drafter = told(Learned, target)
    drafter.network = nn.Embedding(target.vocab_size, target.hidden_size)
    drafter.guesses = lambda state: [10]
    finding = found(examine(target, drafter, [case(tokens=3)]), "drafter.tables")
    assert finding.verdict == "warning" and "embeddings of its own" in finding.measured
    drafter.network.weight.data.copy_(target.embed(torch.arange(target.vocab_size)))
    assert found(examine(target, drafter, [case(tokens=3)]), "drafter.tables").verdict == "ok"


def test_layers_that_the_target_does_not_have_are_a_fault(target):
    drafter = told(Ahead, target)
    drafter.want = Want(final=True, layers=(target.num_layers + 1,))
    diagnosis = examine(target, drafter, [case(tokens=3)])
    assert "layers are counted from 1" in found(diagnosis, "drafter.features").way_out


def test_a_drafter_that_loses_its_way_after_an_accepted_path_is_told_so(target, monkeypatch):
    lessons = [case(tokens=60)]
    plain = load_drafter("plain", target)
    answer = examine_answer(target, plain, lessons[0])
    monkeypatch.setattr(Stumbling, "script", answer)
    diagnosis = examine(target, told(Stumbling, target), lessons)
    assert faults(diagnosis) == ["decoding.tau"]
    assert "`observe` mistakes the path" in found(diagnosis, "decoding.tau").way_out


def examine_answer(target, plain, one):
    from varifocal.decode import generate

    return generate(target, plain, one.request).token_ids


# -- drafts from true states ---------------------------------------------------------------------


def test_tokens_a_round_from_true_states_are_those_of_decoding(target):
    diagnosis = diagnose(target, "lookup", {}, [case(n, 60) for n in range(3)])
    numbers = found(diagnosis, "decoding.tau").numbers
    assert numbers["tau"] == pytest.approx(numbers["tau_from_true_states"])
    assert numbers["rounds"] < numbers["tokens"]  # some drafts were accepted


def test_agreement_counts_a_depth_only_where_the_depth_above_agreed(target):
    class Half(Scripted):
        """The right token, then a wrong one."""

        def guesses(self, state):
            coming = answer[len(state) :]
            return [coming[0], coming[1] ^ 1] if len(coming) > 1 else []

    answer = [20, 30, 40, 50, 60]
    lesson = record(target, Want(), target.encode(case().request), answer, "a", "b")
    made = agreement(told(Half, target), lesson)
    assert made.hits == [True, True, True, False]  # nothing is said before the last
    assert (made.tried_any, made.hit_any) == ([4, 3, 0], [3, 0, 0])
    assert made.walk.tau == 4 / 2
