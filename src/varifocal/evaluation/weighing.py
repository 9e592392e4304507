"""What each view of `ensemble` weighed along one answer, and which weights would have been right.

The picture is the paper's: weights over tokens, and behind them a shade of the weights whose
likeliest token is the text's, in which a line is accepted. [TABED, Fig. 3]
"""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from varifocal.decode import Generation
from varifocal.drafter import Drafter
from varifocal.drafters.ensemble import EnsembleDrafter, EnsembleState
from varifocal.errors import BadOption
from varifocal.evaluation.charts import series_colour
from varifocal.evaluation.drawing import (
    COLOURS,
    Box,
    Drawing,
    Line,
    Part,
    Pen,
    Real,
    Text,
    svg,
    text_width,
)
from varifocal.training.artifacts import write_atomically

LEVELS = 21  # weights that are tried from 0 to 1, where there are two views
_LEFT, _TOP, _HIGH, _ROW = 66.0, 58.0, 170.0, 13.0
_WIDE, _LEAST, _MOST = 1120.0, 3.0, 14.0  # of the panel; of a token
_DRAFTED = {True: ("s2", "drafted and accepted"), False: ("base", "the target's own")}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A round: the places of its tokens in the answer, and what the views weighed in it."""

    begin: int
    end: int
    num_accepted: int
    weights: dict[str, float] | None  # None: it was decoded without a draft


@dataclass(frozen=True, kw_only=True)
class Weighing:
    """One answer."""

    views: list[str]
    blocks: list[Block]  # without the prefill
    tokens: list[str]
    # Of two views: whether a mixture's likeliest token is the text's, by the first view's weight
    # from 0 to 1. Else of each view alone. Row 0 is the second token.
    right: Bool[Tensor, "P k"]


def check_drafter(drafter: Drafter[Any]) -> None:
    """Raises BadOption for one that has no views."""
    if not isinstance(drafter, EnsembleDrafter):
        raise BadOption(
            f"--weights-plot draws the weights of the views of ensemble, and {drafter.name} has "
            "none; give --drafter ensemble"
        )


def weighing_of(generation: Generation) -> Weighing:
    """Of a generation that `ensemble` drafted, past its prefill; reads the answer once more."""
    drafter, state = generation.drafter, generation.drafter_state
    assert isinstance(drafter, EnsembleDrafter) and isinstance(state, EnsembleState)
    ids = generation.result().token_ids
    views, laws = drafter.laws_along(generation.prompt, ids)
    return Weighing(
        views=views,
        blocks=list(_blocks(generation, dict(zip(state.begins, state.weights, strict=True)))),
        tokens=[generation.target.decode([token]) for token in ids],
        right=right_weights(laws, torch.tensor(ids[1 : 1 + len(laws)], device=laws.device)),
    )


def right_weights(laws: Float[Tensor, "P m V"], tokens: Int64[Tensor, " P"]) -> Bool[Tensor, "P k"]:
    """Which mixtures have the text's token as their likeliest: see `Weighing.right`."""
    count = laws.shape[1]
    if count == 2:
        first = torch.linspace(0, 1, LEVELS, device=laws.device)
        mixtures = torch.stack([first, 1 - first], 1)
    else:
        mixtures = torch.eye(count, device=laws.device)
    rows = [(weights @ laws).argmax(-1) == tokens for weights in mixtures]
    return torch.stack(rows, 1).cpu()


def _blocks(generation: Generation, weights: dict[int, dict[str, float]]) -> Iterator[Block]:
    ends = accumulate(len(decided.tokens) for decided in generation.rounds)
    for decided, (begin, end) in zip(generation.rounds[1:], pairwise(ends), strict=True):
        yield Block(
            begin=begin,
            end=end,
            num_accepted=decided.num_accepted,
            weights=weights.get(begin),
        )


# -- drawn -------------------------------------------------------------------------------------


def drawing(weighing: Weighing) -> Drawing:
    """Weights as steps over the tokens; the shade, or of more than two views a strip for each."""
    is_pair = len(weighing.views) == 2
    count = len(weighing.tokens) - 1
    unit = min(max(_WIDE / max(count, 1), _LEAST), _MOST)
    strips = [] if is_pair else weighing.views
    bottom = _TOP + _HIGH
    width = max(_LEFT + unit * count + 16, 860.0)
    parts: list[Part] = []
    if is_pair:
        parts += _shade(weighing, unit)
    parts += _axes(weighing, unit, count)
    for number, view in enumerate(weighing.views[:1] if is_pair else weighing.views):
        parts += _steps(weighing, view, series_colour(1 if is_pair else number), unit)
    parts += _strip(weighing, unit, bottom + 10)
    for number, view in enumerate(strips):
        parts += _alone(weighing, number, view, unit, bottom + 10 + _ROW * (number + 1))
    base = bottom + 10 + _ROW * (1 + len(strips))
    parts += _numbers(count, unit, base + 12)
    parts += _heading(weighing)
    return Drawing(width=width, height=base + 30, alt=_told(weighing), parts=parts)


def _x(place: int, unit: Real) -> float:
    """Left edge of a token by its place in the answer; the second one is the first drawn."""
    return _LEFT + unit * (place - 1)


def _y(weight: Real) -> float:
    return _TOP + _HIGH * (1 - weight)


def _shade(weighing: Weighing, unit: Real) -> Iterator[Part]:
    """Where the mixture has the text's token: a box for each run of weights."""
    half = 0.5 / (LEVELS - 1)
    for place, row in enumerate(weighing.right.tolist(), start=1):
        edges = [level for level in range(LEVELS + 1)
                 if (level > 0 and row[level - 1]) != (level < LEVELS and row[level])]  # fmt: skip
        for low, high in zip(edges[::2], edges[1::2], strict=True):
            top = _y(min((high - 1) / (LEVELS - 1) + half, 1))
            foot = _y(max(low / (LEVELS - 1) - half, 0))
            yield Box(x=_x(place, unit), y=top, width=unit, height=foot - top, fill="p0",
                      title=f"token {place + 1}: {weighing.tokens[place]!r}")  # fmt: skip


def _axes(weighing: Weighing, unit: Real, count: int) -> Iterator[Part]:
    right = _x(count + 1, unit)
    names = {1.0: "1", 0.5: "0.5", 0.0: "0"}
    if len(weighing.views) == 2:
        first, second = weighing.views
        names = {1.0: f"{first} alone", 0.5: "equal", 0.0: f"{second} alone"}
    for weight, name in names.items():
        line = [(_LEFT, _y(weight)), (right, _y(weight))]
        yield Line(points=line, colour="soft" if weight == 0.5 else "rule")
        yield Text(x=_LEFT - 6, y=_y(weight) + 3.5, text=name, anchor="end", size=10, colour="soft")
    for block in weighing.blocks:
        x = _x(block.begin, unit)
        yield Line(points=[(x, _y(1)), (x, _y(0) + 4)], colour="rule", width=0.6)


def _steps(weighing: Weighing, view: str, colour: str, unit: Real) -> Iterator[Part]:
    """A line through the blocks that were drafted; broken where one was not."""
    points: list[tuple[float, float]] = []
    for block in [*weighing.blocks, None]:
        if block is not None and block.weights is not None:
            y = _y(block.weights.get(view, 0.0))
            points += [(_x(block.begin, unit), y), (_x(block.end, unit), y)]
        elif points:
            yield Line(points=points, colour=colour, width=2.2, title=f"weight of {view}")
            points = []


def _strip(weighing: Weighing, unit: Real, top: Real) -> Iterator[Part]:
    """Which tokens were drafted and which are the target's own."""
    yield _named("drafted", top)
    for block in weighing.blocks:
        for place in range(block.begin, block.end):
            colour, name = _DRAFTED[place - block.begin < block.num_accepted]
            told = f"token {place + 1}: {weighing.tokens[place]!r}, {name}"
            yield _cell(place, unit, top, colour, told)


def _alone(weighing: Weighing, number: int, view: str, unit: Real, top: Real) -> Iterator[Part]:
    """Where a view has the text's token by itself."""
    yield _named(f"{view} alone", top)
    for place, row in enumerate(weighing.right.tolist(), start=1):
        if row[number]:
            told = f"token {place + 1}: {weighing.tokens[place]!r}, {view} alone has it"
            yield _cell(place, unit, top, series_colour(number), told)


def _named(name: str, top: Real) -> Text:
    return Text(x=_LEFT - 6, y=top + 8.5, text=name, anchor="end", size=10, colour="soft")


def _cell(place: int, unit: Real, top: Real, colour: str, told: str) -> Box:
    return Box(x=_x(place, unit) + 0.5, y=top, width=unit - 1, height=_ROW - 3, fill=colour,
               title=told)  # fmt: skip


def _numbers(count: int, unit: Real, y: Real) -> Iterator[Part]:
    """Every so many tokens, counted from 1."""
    every = next(n for n in (5, 10, 20, 50, 100, 200, 500, 1000) if n * unit >= 40)
    for number in range(every, count + 2, every):
        x = _x(number - 1, unit) + unit / 2
        yield Text(x=x, y=y, text=f"{number}", anchor="middle", size=9, colour="soft")
    yield Text(x=_LEFT - 6, y=y, text="token", anchor="end", size=9, colour="soft")


def _heading(weighing: Weighing) -> Iterator[Part]:
    views = weighing.views
    title = f"Weights of the views {', '.join(views)} along one answer"
    yield Text(x=10, y=20, text=title, size=14, is_bold=True)
    if len(views) == 2:
        said = (
            f"Line: weight of {views[0]} in each block. Shaded: weights whose likeliest token is "
            "the text's."
        )
        yield Text(x=10, y=38, text=said, size=10.5, colour="soft")
        yield from _key(10 + text_width(said, 10.5) + 14)
        return
    x = 10.0
    for number, view in enumerate(views):
        yield Line(points=[(x, 34), (x + 18, 34)], colour=series_colour(number), width=2.2)
        yield Text(x=x + 23, y=38, text=view, size=10.5)
        x += 52
    said = "Strips: tokens that a view alone would have named."
    yield Text(x=x + 6, y=38, text=said, size=10.5, colour="soft")
    yield from _key(x + 6 + text_width(said, 10.5) + 14)


def _key(x: Real) -> Iterator[Part]:
    """What the colours of the first strip mean."""
    for colour, name in _DRAFTED.values():
        yield Box(x=x, y=29, width=10, height=10, fill=colour)
        yield Text(x=x + 15, y=38, text=name, size=10.5, colour="soft")
        x += text_width(name, 10.5) + 30


def _told(weighing: Weighing) -> str:
    said = [
        f"tokens {b.begin + 1} to {b.end}: "
        + ", ".join(f"{view} {weight:.2f}" for view, weight in (b.weights or {}).items())
        + f", {b.num_accepted} accepted"
        for b in weighing.blocks
    ]
    return f"Weights of the views by block. {'; '.join(said)}."


# -- files -------------------------------------------------------------------------------------


def check_place(path: Path) -> None:
    """Raises BadOption where no picture can be written, before any work."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise BadOption(f"--weights-plot writes .png or .svg, got {path}")
    if not path.parent.is_dir():
        raise BadOption(f"--weights-plot {path}: there is no folder {path.parent}")


def write_picture(drawn: Drawing, path: Path) -> None:
    """As PNG, or as SVG that follows the reader's light or dark page."""
    data = _svg(drawn) if path.suffix.lower() == ".svg" else _png(drawn)
    write_atomically(path, data)


def _png(drawn: Drawing) -> bytes:
    pen, data = Pen(drawn.width, drawn.height), BytesIO()
    pen.paint(drawn.parts)
    pen.finish(drawn.height).save(data, "PNG", optimize=True)
    return data.getvalue()


def _svg(drawn: Drawing) -> bytes:
    """With the colours that a page would define, and its own ground."""

    def rule(shade: int) -> str:
        return "".join(f"--{name}:{both[shade]};" for name, both in COLOURS.items())

    style = (
        f"<style>svg{{{rule(0)}background:var(--card);font-family:'DejaVu Sans',sans-serif}}"
        f"@media(prefers-color-scheme:dark){{svg{{{rule(1)}}}}}</style>"
    )
    size = (
        f'xmlns="http://www.w3.org/2000/svg" width="{drawn.width:.0f}" height="{drawn.height:.0f}"'
    )
    text = str(svg(drawn)).replace("<svg ", f"<svg {size} ", 1)
    head, rest = text.split(">", 1)
    return f"{head}>{style}{rest}".encode()
