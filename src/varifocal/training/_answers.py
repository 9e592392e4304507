"""Let a target say every assistant turn of several conversations anew, greedily, in a batch."""

import logging
from collections.abc import Mapping, Sequence

import torch

from varifocal.batch import Batch
from varifocal.decode import Generation, Reading
from varifocal.drafters.plain import PlainDrafter
from varifocal.errors import VarifocalError
from varifocal.request import Message, Request
from varifocal.target import Prompt
from varifocal.targets._hf import HFTarget

logger = logging.getLogger(__name__)
Talk = tuple[Message, ...]


class Answers:
    """Says answers, `batch` of them at a time where that changes none: each is its single run's.

    Below float32 a forward over more rows may round otherwise, so that a near-tie goes another way.
    Without exact rows, which hold on a CPU, answers are then said one after the other.
    """

    def __init__(self, target: HFTarget, max_new_tokens: int, *, batch: int = 8) -> None:
        is_exact = target.exact_rows and target.device.type == "cpu"
        if batch > 1 and target.dtype != torch.float32 and not is_exact:
            logger.info("in %s without exact rows answers are said one by one", target.dtype)
            batch = 1
        self.target, self.max_new_tokens, self._batch = target, max_new_tokens, batch
        self._drafter = PlainDrafter(target, PlainDrafter.Config())

    def answer(
        self, talks: Mapping[str, Talk], known: Mapping[str, list[list[int]]] | None = None
    ) -> tuple[dict[str, Talk], dict[str, list[list[int]]], dict[str, str]]:
        """Conversations with their new answers, the answers' tokens, and ids that failed with why.

        A conversation that ends with the user gets one answer more. `known` are the tokens of
        leading answers that stay as they are.
        """
        said = {id: list((known or {}).get(id, [])) for id in talks}
        new: dict[str, Talk] = {}
        rest: dict[str, list[Message]] = {}
        for id, talk in talks.items():
            turns = [k + 1 for k, m in enumerate(talk) if m.role == "assistant"]
            kept = ([0, *turns])[len(said[id])]
            new[id], rest[id] = talk[:kept], list(talk[kept:])
        failed: dict[str, str] = {}
        while True:
            prompts: dict[str, Prompt] = {}
            for id, left in rest.items():
                asked = _until_answer(left)
                if not asked:
                    continue
                new[id] += tuple(asked)
                rest[id] = left[len(asked) + 1 :]
                try:
                    request = Request(messages=new[id], max_new_tokens=self.max_new_tokens)
                    prompts[id] = self.target.encode(request)
                except VarifocalError as error:
                    failed[id] = str(error)
                    rest[id] = []
            if not prompts:
                break
            for id, tokens in zip(prompts, self._say(list(prompts.values())), strict=True):
                said[id].append(tokens)
                new[id] += (Message("assistant", (self.target.decode(tokens),)),)
        whole = {id: talk for id, talk in new.items() if id not in failed}
        return whole, {id: said[id] for id in whole}, failed

    def _say(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        batch = Batch(self._begin, prompts, max_batch=self._batch)
        return [result.token_ids for result in batch.results()]

    def _begin(self, prompt: Prompt) -> Generation:
        request, drafter = prompt.request, self._drafter
        reading = Reading(self.target, drafter, request, prompt=prompt)
        return Generation(self.target, drafter, request, reading=reading)


def _until_answer(talk: Sequence[Message]) -> list[Message]:
    """The messages before the next answer; empty when nothing is asked."""
    end = next((k for k, m in enumerate(talk) if m.role == "assistant"), len(talk))
    return list(talk[:end]) if any(m.role == "user" for m in talk[:end]) else []
