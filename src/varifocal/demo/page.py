"""The demo's result as one self-contained HTML page."""

import base64
import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
from PIL import Image

from varifocal.demo.show import Act, Timing

LOOKS = 24  # regions shown for a token, the most looked at first


def render(acts: Sequence[Act], facts: dict[str, str]) -> str:
    """The page. `facts` are lines of its small print: what ran, where, with which versions."""
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=folder, autoescape=True)
    data = json.dumps([_act(act) for act in acts], ensure_ascii=False, allow_nan=False)
    return environment.get_template("page.html").render(
        acts=[_summary(act) for act in acts],
        facts=facts,
        drafter=acts[0].drafted.drafter,
        speedup=median(act.speedup() for act in acts),
        tau=sum(act.drafted.mean_acceptance_length for act in acts) / len(acts),
        all_good=all(act.is_good for act in acts),
        data=data.replace("<", "\\u003c"),  # or a text could end the script
    )


def _summary(act: Act) -> dict[str, Any]:
    """What the page shows without its script."""
    histogram = act.drafted.acceptance_histogram
    rounds = sum(histogram)
    return {
        "id": act.sample.id,
        "family": act.sample.family,
        "question": act.sample.turns[0].question,
        "answer": act.drafted.text,
        "picture": _data_address(act.sample.image),
        "width": act.sample.image.width,
        "height": act.sample.image.height,
        "tau": act.drafted.mean_acceptance_length,
        "tokens": len(act.drafted.token_ids),
        "rounds": rounds,
        "plain_rounds": act.plain.num_spec_steps,
        "has_looks": act.has_looks,
        "verdict": _verdict(act),
        "is_good": act.is_good,
        "speeds": [
            (name, act.speed(drafted=False, cpu=cpu), act.speed(drafted=True, cpu=cpu))
            for name, cpu in (("elapsed time", False), ("CPU time", True))
        ],
        "speedup": act.speedup(),
        "repeats": len(act.plain_timings),
        "bars": [
            {"accepted": n, "rounds": count, "share": count / max(histogram)}
            for n, count in enumerate(histogram)
        ]
        if rounds
        else [],
    }


def _verdict(act: Act) -> str:
    if act.mismatch is None:
        return "Both answers are identical, token by token."
    place = f"token {act.mismatch.position + 1}"
    if act.mismatch.near_tie:
        return (
            f"The answers differ from {place} on, at a near-tie: two tokens were equally likely "
            "up to rounding."
        )
    return f"The answers DIFFER from {place} on. This must not happen: please report it."


def _act(act: Act) -> dict[str, Any]:
    """What the page's script needs."""
    return {
        "id": act.sample.id,
        "boxes": [
            None if region.box is None else [round(edge, 4) for edge in region.box]
            for region in act.regions
        ],
        "tokens": [
            {
                "text": token.text,
                "drafted": token.is_drafted,
                "round": token.round,
                "look": [
                    [entry, round(weight, 4)]
                    for entry, weight in sorted(token.look, key=lambda pair: -pair[1])[:LOOKS]
                ],
            }
            for token in act.tokens
        ],
        "plain": _arrivals(act.plain_timings),
        "plain_texts": list(act.plain_texts),
        "drafted": _arrivals(act.drafted_timings),
    }


def _arrivals(timings: Sequence[Timing]) -> list[float]:
    """Milliseconds at which tokens came, in the run of middle speed."""
    middle = sorted(timings, key=lambda t: t.wall_seconds)[len(timings) // 2]
    return [round(1000 * seconds, 2) for seconds in middle.arrivals]


def _data_address(image: Image.Image) -> str:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
