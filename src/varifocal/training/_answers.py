"""Let a target say every assistant turn of several conversations anew, greedily, in a batch."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from varifocal.decode import generate
from varifocal.drafters.plain import PlainDrafter
from varifocal.errors import VarifocalError
from varifocal.request import Message, Request
from varifocal.target import Prompt, Want
from varifocal.targets._hf import HFTarget

logger = logging.getLogger(__name__)
Talk = tuple[Message, ...]

_COMPARED = 4  # answers of the first batch that are said again one by one
_TIE = {torch.float32: 1e-3}  # logits nearer than this may change places with the batch
_COARSE_TIE = 0.25  # in half precision


class Answers:
    """Says answers; keeps whether batches of this target agree with single runs."""

    def __init__(self, target: HFTarget, max_new_tokens: int, *, batched: bool = True) -> None:
        self.target, self.max_new_tokens = target, max_new_tokens
        # The exact attention reads masks as numbers, and generate's are booleans.
        self.batched = batched and not target.exact_rows
        self._compared = False

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
        if not self.batched:
            return [self._say_alone(prompt) for prompt in prompts]
        said = self._say_together(prompts)
        if not self._compared:
            self._compared = True
            for prompt, tokens in list(zip(prompts, said, strict=True))[:_COMPARED]:
                if not self._agrees(prompt, tokens, self._say_alone(prompt)):
                    logger.warning(
                        "%s answers otherwise in a batch than alone; continuing one by one",
                        self.target.name,
                    )
                    self.batched = False
                    return self._say(prompts)
        return said

    def _say_alone(self, prompt: Prompt) -> list[int]:
        drafter = PlainDrafter(self.target, PlainDrafter.Config())
        return generate(self.target, drafter, prompt.request).token_ids

    @torch.no_grad()
    def _say_together(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """transformers' own generate on embeddings padded at the left."""
        rows = [self._embedded(prompt) for prompt in prompts]
        longest = max(map(len, rows))
        padded = rows[0].new_zeros(len(rows), longest, rows[0].shape[-1])
        mask = torch.zeros(len(rows), longest, dtype=torch.int64, device=padded.device)
        for k, row in enumerate(rows):
            padded[k, longest - len(row) :] = row
            mask[k, longest - len(row) :] = 1
        ends = sorted(self.target.eos_ids)
        plan = GenerationConfig(
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,
            max_new_tokens=self.max_new_tokens,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,
        )
        model: Any = self.target.model
        out = model.generate(inputs_embeds=padded, attention_mask=mask, generation_config=plan)
        return [_cut(row, self.target.eos_ids) for row in out.tolist()]

    def _embedded(self, prompt: Prompt) -> torch.Tensor:
        rows = self.target.embed(prompt.tokens)
        if prompt.pixels:
            rows = rows.clone()
            rows[prompt.is_image] = self.target.see(prompt).features.to(rows.dtype)
        return rows

    @torch.no_grad()
    def _agrees(self, prompt: Prompt, together: list[int], alone: list[int]) -> bool:
        """Whether two answers are the same up to a choice between nearly equal logits."""
        if together == alone:
            return True
        same = 0
        while same < min(len(together), len(alone)) and together[same] == alone[same]:
            same += 1
        if same == min(len(together), len(alone)):
            return False
        more = torch.tensor(alone[:same], dtype=torch.int64, device=prompt.tokens.device)
        longer = Prompt(
            torch.cat([prompt.tokens, more]),
            torch.cat([prompt.image_of, torch.full_like(more, -1)]),
            prompt.pixels,
            prompt.request,
        )
        _, seen = self.target.prefill(longer, Want())
        logits = seen.logits[-1].float()
        margin = float((logits[alone[same]] - logits[together[same]]).abs())
        return margin < _TIE.get(self.target.dtype, _COARSE_TIE)


def _until_answer(talk: Sequence[Message]) -> list[Message]:
    """The messages before the next answer; empty when nothing is asked."""
    end = next((k for k, m in enumerate(talk) if m.role == "assistant"), len(talk))
    return list(talk[:end]) if any(m.role == "user" for m in talk[:end]) else []


def _cut(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """Up to the first end token, which counts; padding behind it goes."""
    stop = next((k + 1 for k, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[:stop]
