"""One run as a picture: the canvas from left to right, the steps from top to bottom."""

import os
from collections.abc import Iterator
from pathlib import Path

from varifocal.diffusion.result import DiffusionResult, StepRecord
from varifocal.errors import BadOption
from varifocal.evaluation.drawing import Box, Drawing, Line, Part, Text, text_width

_LEFT, _TOP, _ROW = 54.0, 74.0, 11.0
_WIDE, _MOST, _LEAST = 1010.0, 16.0, 6.0  # of the panel; of a position
_NOTE = 210.0  # room on the right
_MASK, _MOVED, _OLD, _NEW, _EARLY, _FILLED = "p0", "s5", "p1", "s0", "s2", "s7"
_LEGEND = (
    (_MASK, "masked"),
    (_MOVED, "masked, provisional token just changed"),
    (_NEW, "committed in this step"),
    (_EARLY, "committed as a whole block"),
    (_FILLED, "filled by the exit"),
    (_OLD, "committed before"),
)


def film(result: DiffusionResult) -> Drawing:
    """Of every step: what it decided, what only moved, the candidate, and where it was verified.

    The run's gate must have been `watched`.
    """
    unit = min(max(_WIDE / result.canvas, _LEAST), _MOST)
    right, bottom = _LEFT + unit * result.canvas, _TOP + _ROW * len(result.steps)
    parts: list[Part] = list(_heading(result))
    parts += _cells(result, unit)
    parts += _spans(result, unit)
    for start in range(0, result.canvas + 1, result.block):
        x = _LEFT + unit * min(start, result.canvas)
        parts.append(Line(points=[(x, _TOP - 4), (x, bottom + 4)], colour="ink", width=0.9))
    parts += _numbers(result, unit, bottom)
    parts += _notes(result, right)
    parts += _exit(result, right)
    parts += _texts(result, bottom + 26, right)
    height = bottom + 26 + 15 * len(_wrapped(result, right)) + 8
    return Drawing(width=right + _NOTE, height=height, alt=_alt(result), parts=parts)


def check_place(path: Path) -> None:
    """Raises BadOption where no picture can be written, before any work."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise BadOption(f"--picture writes .png or .svg, got {path}")
    if not path.parent.is_dir():
        raise BadOption(f"--picture {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise BadOption(f"--picture wants a file, but {path} is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadOption(f"--picture {path}: it cannot be written there")


def _cells(result: DiffusionResult, unit: float) -> Iterator[Part]:
    committed: set[int] = set()
    before: tuple[int, ...] = ()
    for row, step in enumerate(result.steps):
        news, filled, says = set(step.positions), set(step.filled), step.told["says"]
        for position in range(result.canvas):
            if position in news:
                colour = _FILLED if position in filled else _EARLY if step.is_early else _NEW
            elif position in committed:
                colour = _OLD
            else:
                is_moved = bool(before) and before[position] != says[position]
                colour = _MOVED if is_moved else _MASK
            yield Box(x=_LEFT + unit * position, y=_TOP + _ROW * row, width=unit - 0.8,
                      height=_ROW - 1.2, fill=colour)  # fmt: skip
        committed |= news
        before = says


def _spans(result: DiffusionResult, unit: float) -> Iterator[Part]:
    """The candidate's edges, closed where it was another one before; a frame if it is verified."""
    for row, step in enumerate(result.steps):
        is_verified = step.is_done and result.verified_span is not None
        span = result.verified_span if is_verified else step.told.get("span")
        if not span:
            continue
        left, right = _LEFT + unit * span[0] - 0.8, _LEFT + unit * (span[-1] + 1)
        top, low = _TOP + _ROW * row - 0.8, _TOP + _ROW * (row + 1) - 0.8
        if is_verified:
            frame = [(left, top), (right, top), (right, low), (left, low), (left, top)]
            yield Line(points=frame, colour="s6", width=2.6)
            continue
        for x in (left, right):
            yield Line(points=[(x, top), (x, low)], colour="s6", width=1.4)
        if step.told["streak"] <= 1:
            yield Line(points=[(left, top), (right, top)], colour="s6", width=1.4)


def _numbers(result: DiffusionResult, unit: float, bottom: float) -> Iterator[Part]:
    yield Text(x=_LEFT - 7, y=_TOP - 8, text="step", anchor="end", size=9, colour="soft")
    every = 1 if len(result.steps) <= 24 else 5
    for row, step in enumerate(result.steps):
        if step.step % every == 0 or step.is_done or row == 0:
            y = _TOP + _ROW * (row + 0.82)
            yield Text(x=_LEFT - 7, y=y, text=f"{step.step}", anchor="end", size=9, colour="soft")
    wide = 8 if unit >= 10 else 16
    for position in range(0, result.canvas, wide):
        x = _LEFT + unit * (position + 0.5)
        yield Text(x=x, y=bottom + 14, text=f"{position}", anchor="middle", size=9, colour="soft")


def _notes(result: DiffusionResult, right: float) -> Iterator[Part]:
    """What the gate made of each step, where it says so."""
    last = ""
    for row, step in enumerate(result.steps):
        said = _said(step)
        if said and said != last and not step.is_done:
            y = _TOP + _ROW * (row + 0.82)
            yield Text(x=right + 8, y=y, text=said, size=9, colour="soft")
        last = said


def _said(step: StepRecord) -> str:
    if step.is_early:
        return f"block {step.block} committed as a whole"
    candidate = step.told.get("candidate")
    if candidate is None:
        return ""
    return f"{candidate!r:.14}  streak {step.told['streak']}  {step.told['confidence']:.3f}"


def _exit(result: DiffusionResult, right: float) -> Iterator[Part]:
    y = _TOP + _ROW * len(result.steps)
    if result.exit_step is None:
        return
    yield Line(points=[(_LEFT, y), (right + _NOTE - 14, y)], colour="s1", width=2.2)
    yield Text(x=right + 8, y=y - 2.5, text=f"exit in step {result.exit_step}", size=9.5,
               colour="s1", is_bold=True)  # fmt: skip


def _heading(result: DiffusionResult) -> Iterator[Part]:
    title = (
        f"{result.gate} on {result.model}: {result.nfe} of {result.planned_steps} forwards, "
        f"canvas {result.canvas}, blocks of {result.block}, {result.sampler}"
    )
    yield Text(x=10, y=20, text=title, size=13.5, is_bold=True)
    x = 10.0
    for colour, name in _LEGEND:
        yield Box(x=x, y=33, width=10, height=10, fill=colour)
        yield Text(x=x + 14, y=42, text=name, size=10, colour="soft")
        x += text_width(name, 10) + 30
    yield Line(points=[(x, 33), (x + 14, 33), (x + 14, 43), (x, 43), (x, 33)], colour="s6")
    yield Text(x=x + 19, y=42, text="candidate; strong: verified", size=10, colour="soft")


def _texts(result: DiffusionResult, top: float, right: float) -> Iterator[Part]:
    for number, (text, is_bold) in enumerate(_wrapped(result, right)):
        yield Text(x=10, y=top + 15 * number + 10, text=text, size=10.5, is_bold=is_bold)


def _wrapped(result: DiffusionResult, right: float) -> list[tuple[str, bool]]:
    """The text and how it ended, in lines that fit."""
    if result.finish == "filled":
        ended = f"ran to its end: {result.reason}" if result.reason else "ran to its end"
    else:
        ended = result.reason or result.finish
    answer = "no answer" if result.value is None else f"answer {result.value!r}"
    most = max(int(right / 6.2), 40)
    shown = result.text.encode("unicode_escape").decode()
    lines = [shown[at : at + most] for at in range(0, len(shown), most)] or [""]
    return [(f"{answer}; {ended}"[: most + 20], True), *((line, False) for line in lines[:6])]


def _alt(result: DiffusionResult) -> str:
    steps = (f"step {s.step} decides {list(s.positions)}" for s in result.steps)
    return f"Canvas over steps. {'; '.join(steps)}. {result.reason}."
