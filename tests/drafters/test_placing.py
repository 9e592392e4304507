"""Wherever pictures stand in a prompt, drafters on the last state train on what they decode."""

from dataclasses import replace

import pytest
import tiny
import torch
from taught import Recorded, decoded_states, unrolled_states

from varifocal.drafters import drafter_class
from varifocal.drafters._fovea_loss import _collate
from varifocal.drafters._unroll import Chain, collate
from varifocal.plan import Budget
from varifocal.request import ask
from varifocal.target import Want
from varifocal.training.artifacts import Artifact

SAID = range(100, 108)
KINDS = [("msd", {}), ("text_only", {"prefix": "full"}), ("text_only", {}),
         ("fovea", {"prefix": "full"}), ("fovea", {})]  # fmt: skip


def placed(target, where: str) -> Recorded:
    """A prompt with pictures at some place, and any text behind it."""
    count = {"none": 0, "two": 2}.get(where, 1)
    prompt = target.encode(ask("what is it?", [tiny.picture(k) for k in range(count)]))
    slots = prompt.is_image.nonzero()[:, 0].tolist()
    start = slots[0] if where in ("first", "alone") else 0
    end = slots[-1] + 1 if where in ("last", "alone") else len(prompt.tokens)
    prompt = replace(prompt, tokens=prompt.tokens[start:end], image_of=prompt.image_of[start:end])
    ids = torch.cat([prompt.tokens, torch.tensor(SAID)])
    image_of = torch.cat([prompt.image_of, torch.full((len(SAID),), -1)])
    whole = replace(prompt, tokens=ids, image_of=image_of)
    with torch.no_grad():
        _, seen = target.prefill(whole, Want(layers=(1, 2, 3), final=True, embeddings=True))
    artifact = Artifact(
        id=where,
        family="x",
        tokens=ids,
        image_of=image_of,
        supervised=torch.arange(len(ids)) >= len(prompt.tokens),
        final=seen.final,
        visual=seen.embeddings[whole.is_image],
        taps=seen.hidden,
        tap_layers=(1, 2, 3),
    )
    return Recorded(prompt, list(SAID), seen, artifact)


@pytest.mark.parametrize("where", ["first", "last", "alone", "two", "none"])
@pytest.mark.parametrize(("name", "options"), KINDS, ids=[f"{n}-{o}" for n, o in KINDS])
def test_training_meets_the_states_of_decoding(target, name, options, where):
    torch.manual_seed(0)
    cls = drafter_class(name)
    drafter = cls(target, cls.Config(inner=48, nodes=8, max_bases=0, **options))
    one = placed(target, where)
    batch = [placed(target, "two" if where == "none" else "none").artifact, one.artifact]
    network, x = drafter.network, None
    if name == "fovea":
        slots = _collate(batch, target, drafter.config, drafter.want.layers)
    else:
        text_only = name == "text_only" and drafter.config.prefix == "text_only"
        slots = collate(batch, target, lambda item: item.final, text_only=text_only, max_bases=0,
                        visual=True)  # fmt: skip
    if name == "msd":
        x = network.decouple(slots.features, slots.embeddings, slots.is_visual)
    met = unrolled_states(Chain(network, slots, x), slots, 1, 4)
    for trained, decoded in zip(met, decoded_states(drafter, one, 4), strict=True):
        torch.testing.assert_close(trained, decoded, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        assert bool(drafter.loss(batch, 1.0).total.isfinite())
        state = drafter.start(one.prompt, one.prefill, SAID[0])
        tree = drafter.propose(state, SAID[0], Budget(depth=3, nodes=8))
    tree.check()
    assert len(tree) == 9 and not set(tree.tokens.tolist()) & target.banned_ids
