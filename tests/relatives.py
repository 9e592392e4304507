"""Targets with weights that matter, draft models that resemble them, and what they are asked."""

from functools import cache

import tiny
import torch
from checkpoints import built

from varifocal.drafters.ensemble import EnsembleDrafter
from varifocal.request import Message, Request
from varifocal.sampling import Sampling
from varifocal.target import Want
from varifocal.targets import load_target

SIZES = ((60, 40), (30, 90), (80, 80))
GREEDY, SAMPLED = Sampling(), Sampling(temperature=1.0, top_k=40, seed=7)


@cache
def target_of(name):
    return load_target(str(built(name)), dtype=torch.float32)


def relative(name="llava_next", noise=0.02, seed=0):
    """A draft model that often says what the target says: the target with noise on its weights."""
    model = load_target(str(built(name)), dtype=torch.float32)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.model.model.language_model.parameters():
            weight += noise * weight.std() * torch.randn(weight.shape, generator=rng)
    model.name = "relative"
    return model


def captioner(picture):
    return f"a picture of {picture.width} pixels"


def ensemble(target, small, **options):
    config = EnsembleDrafter.Config(**options)
    return EnsembleDrafter(target, config, model=small, captioner=captioner)


def request(sampling=GREEDY, tokens=30, pictures=1, seed=0, turns=1):
    shown = [tiny.picture(seed + n, SIZES[n]) for n in range(pictures)]
    messages = [Message("user", (*shown, "what is it? what is it? "))]
    for turn in range(1, turns):
        messages.append(Message("assistant", ("a red circle",)))
        messages.append(Message("user", (tiny.picture(seed + 9, SIZES[0]), f"and {turn}?")))
    return Request(messages=tuple(messages), max_new_tokens=tokens, sampling=sampling)


def begun(drafter, target, asked):
    """A state, and the first token of the answer."""
    prompt = target.encode(asked)
    _, seen = target.prefill(prompt, Want())
    root = int(seen.logits.argmax())
    return drafter.start(prompt, seen, root), root
