"""Whether a drafter guesses what its target says, before anyone relies on it.

The target answers a built-in question, once without and once with a grey picture, drawing its
tokens so that it does not end in a loop; at each of them the drafter's first guess, made from the
target's true states, is compared with the target's likeliest token. Guessing the commonest token
of an English text is right in some 5 % of the places, and a drafter with weights in the wrong
place in 1 of V. Published drafters are right in 40 % and more of them. `LEAST` is three standard
errors of 64 places above the first and further than that below the last.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from PIL import Image

from varifocal.decode import generate
from varifocal.drafter import Drafter
from varifocal.drafters import load_drafter
from varifocal.errors import BadOption, BadRequest, DrafterMismatch, VarifocalError
from varifocal.plan import Budget
from varifocal.request import Request, ask
from varifocal.sampling import Sampling
from varifocal.target import Forward, Target
from varifocal.tree import DraftTree
from varifocal.verify import Verification

LEAST = 0.15  # share of first guesses that must be right
_PLACES = 32  # in each of the two answers
_QUESTION = "Describe in a few sentences what you see, or a street on a rainy day if you see none."
_GREY = (128, 128, 128)
_SIDE = 224  # of the picture, in pixels


@dataclass(frozen=True)
class Agreement:
    """Places at which the drafter guessed, and how often it was right."""

    hits: int
    places: int

    @property
    def share(self) -> float:
        """Of first guesses that are the target's likeliest token."""
        return self.hits / self.places

    def __str__(self) -> str:
        return f"{self.hits} of {self.places} first guesses are the target's own choice"


def check_agreement(drafter: Drafter[Any], name: str) -> Agreement:
    """Try a drafter that is ready to draft. Raises DrafterMismatch for one that guesses in vain.

    Costs the target 66 tokens, and two prompts.
    """
    try:
        found = agreement(drafter)
    except VarifocalError as error:
        raise BadOption(
            f"{name} could not be tried on {drafter.target.name!r}: {error} To load it untried, "
            "give check=False (--no-check, or --set check=false)"
        ) from error
    if found.share < LEAST:
        raise DrafterMismatch(
            f"{name} does not draft for {drafter.target.name!r}: of its first guesses "
            f"{found.hits} in {found.places} are what the target says, and at least {LEAST:.0%} "
            "must be. It was trained for other weights of the target (a base model, another "
            "version), or it reads other layers or other norms than its config tells. Load it with "
            "its own target; to load it all the same, which costs time but never changes the text, "
            "give check=False (--no-check, or --set check=false)"
        )
    return found


@torch.inference_mode()
def agreement(drafter: Drafter[Any]) -> Agreement:
    """Over both answers; over one where the target reads no pictures."""
    target, plain = drafter.target, load_drafter("plain", drafter.target)
    hits = places = 0
    for pictures in ([], [Image.new("RGB", (_SIDE, _SIDE), _GREY)]):
        request = _request(pictures)
        try:
            answer = generate(target, plain, request).token_ids
        except BadRequest:
            if not pictures:
                raise
            continue  # a target of text alone
        found = _along(drafter, target, request, answer)
        hits, places = hits + sum(found), places + len(found)
    return Agreement(hits, places)


def _request(pictures: list[Image.Image]) -> Request:
    num = _PLACES + 1
    sampling = Sampling(temperature=1.0, seed=0, min_new_tokens=num)
    return ask(_QUESTION, pictures, max_new_tokens=num, sampling=sampling)


def _along(
    drafter: Drafter[Any], target: Target, request: Request, answer: list[int]
) -> list[bool]:
    """Lead the drafter along an answer, one true token a round."""
    prompt = target.encode(request)
    cache, read = target.prefill(prompt, drafter.want)
    chain = DraftTree.chain(answer, target.device)
    (said,) = target.forward([chain], [cache], drafter.want)
    choices = _allowed(said, target).argmax(-1).tolist()
    state = drafter.start(prompt, read, answer[0])
    found = []
    for k, (root, following) in enumerate(pairwise(answer)):
        tree = drafter.propose(state, root, Budget(depth=1, nodes=1))
        found.append(choices[k] in tree.tokens[1:].tolist())
        drafter.observe(state, Verification([0], [following]), said.rows([k]))
    return found


def _allowed(said: Forward, target: Target) -> torch.Tensor:
    """Logits of what may be said: a drafter proposes nothing else."""
    logits = said.logits.float().clone()
    logits[:, sorted(target.banned_ids)] = float("-inf")
    return logits
