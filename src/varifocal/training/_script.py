"""A recorded conversation as token ids, with the spans that the target has to say."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from varifocal.errors import BadArtifact
from varifocal.request import Message, Request
from varifocal.target import Prompt, Target


@dataclass(frozen=True)
class Script:
    """A conversation as the target reads it, with the tokens that it has to say."""

    prompt: Prompt
    spans: tuple[tuple[int, int], ...]  # of each answer; empty where it does not count

    @property
    def supervised(self) -> Bool[Tensor, " T"]:
        """The tokens of all answers."""
        marks = torch.zeros(len(self.prompt.tokens), dtype=torch.bool)
        for start, stop in self.spans:
            marks[start:stop] = True
        return marks


def script_of(target: Target, talk: tuple[Message, ...], said: list[list[int]] | None) -> Script:
    """Tokens of a conversation and which of them are answers.

    `said` are the tokens of regenerated answers. An earlier answer counts only as far as the chat
    template writes the very tokens that were said; the last one is what was said.
    """
    turns = turns_of(talk)
    if not turns:
        raise BadArtifact("no supervised tokens: there is no assistant message")
    if said is None:  # a question after the last answer shows how the template ends an answer
        whole = target.encode(asked((*talk[: turns[-1] + 1], Message("user", (".",)))))
    else:
        whole = _continued(target.encode(asked(talk[: turns[-1]])), said[-1])
    spans: list[tuple[int, int]] = []
    for k, turn in enumerate(turns):
        prompt = target.encode(asked(talk[:turn]))
        start, length = len(prompt.tokens), 0
        if torch.equal(whole.tokens[:start], prompt.tokens):
            rest = whole.tokens[start:].tolist()
            length = _answer_length(rest, said[k] if said else None, target.eos_ids)
        spans.append((start, start + length))
    end = max((stop for start, stop in spans if stop > start), default=0)
    prompt = replace(whole, tokens=whole.tokens[:end], image_of=whole.image_of[:end])
    if int(prompt.is_image.sum()) < int(whole.is_image.sum()):
        raise BadArtifact("no supervised tokens: no answer was found after the pictures")
    if not end:
        raise BadArtifact("no supervised tokens: no answer was found in it")
    return Script(prompt, tuple(spans))


def turns_of(talk: Sequence[Message]) -> list[int]:
    """Where the assistant speaks."""
    return [k for k, m in enumerate(talk) if m.role == "assistant"]


def asked(talk: Sequence[Message]) -> Request:
    """The conversation so far, put to the target."""
    return Request(messages=tuple(talk), max_new_tokens=1)


def _answer_length(rest: list[int], said: list[int] | None, ends: frozenset[int]) -> int:
    """How many of the tokens after a prompt are its answer, the end token included."""
    if said is None:
        return next((i + 1 for i, token in enumerate(rest) if token in ends), 0)
    return len(said) if rest[: len(said)] == said else 0


def _continued(prompt: Prompt, tokens: Sequence[int]) -> Prompt:
    more = torch.tensor(tokens, dtype=torch.int64, device=prompt.tokens.device)
    return replace(
        prompt,
        tokens=torch.cat([prompt.tokens, more]),
        image_of=torch.cat([prompt.image_of, torch.full_like(more, -1)]),
    )
