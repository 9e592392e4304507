"""Later turns of conversations as requests: the answers before them are the target's own.

A published turn follows on what another model said. Here the target is asked turn by turn, greedily
and without a drafter, so that every drafter meets the conversation that the target would have had.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from varifocal.drafters import load_drafter
from varifocal.engine import Engine
from varifocal.evaluation.identity import request_digest
from varifocal.evaluation.suites import Case
from varifocal.request import Message, Request
from varifocal.sampling import Sampling
from varifocal.targets._hf import HFTarget

Answer = Callable[[Request], str]


def answered(
    cases: Sequence[Case],
    target: HFTarget,
    max_new_tokens: int = 0,
    done: Callable[[], None] = lambda: None,
) -> list[Case]:
    """The same cases without `later`: their requests hold the whole conversation.

    Each answer is decoded once, in the target's precision and of at most `max_new_tokens`, or as
    many as the case says. It takes what plain decoding takes; nothing of it is timed. `done` is
    called after each case.
    """
    engine = Engine(target, load_drafter("plain", target))
    known: dict[str, str] = {}

    def answer(request: Request) -> str:
        limit = max_new_tokens or request.max_new_tokens
        plain = replace(
            request, sampling=Sampling(), stop=(), logprobs=None, max_new_tokens=limit, id=""
        )
        digest = request_digest(plain)
        if digest not in known:
            known[digest] = engine.generate(plain).text
        return known[digest]

    made = []
    for case in cases:
        made.append(followed(case, answer))
        done()
    return made


def followed(case: Case, answer: Answer) -> Case:
    """A case with what `answer` says before each of its later turns."""
    request = case.request
    for turn in case.later:
        said = Message("assistant", (answer(request),))
        request = replace(request, messages=(*request.messages, said, turn))
    return replace(case, request=request, later=())
