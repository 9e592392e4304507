"""The speed-ups of a benchmark as a picture for a page or a talk."""

from io import BytesIO
from textwrap import wrap

from PIL import PngImagePlugin

from varifocal.evaluation.drawing import Drawing, Pen, Text
from varifocal.evaluation.figures import BenchResult
from varifocal.evaluation.page import speedups
from varifocal.evaluation.table import heading

WIDTH = 1200
_EDGE, _GAP = 24.0, 26.0


def png(result: BenchResult) -> bytes:
    """1200 pixels wide: a panel for the mean and one for each family."""
    count = len(speedups(result))
    across = -(-count // -(-count // 4))  # at most four, in rows as full as can be
    width = (WIDTH - 2 * _EDGE - _GAP * (across - 1)) / across
    panels = speedups(result, width)
    lines = wrap(heading(result), 140)
    top = 56.0 + 19 * len(lines)
    tall = panels[0].height + 14
    height = top + tall * -(-count // across) + 40
    pen = Pen(WIDTH, height)
    pen.paint([Text(x=_EDGE, y=40, text="Decode speed-up over plain decoding", size=21,
                    is_bold=True)])  # fmt: skip
    pen.paint([Text(x=_EDGE, y=62 + 19 * n, text=line, size=12.5, colour="soft")
               for n, line in enumerate(lines)])  # fmt: skip
    for number, panel in enumerate(panels):
        left = _EDGE + (width + _GAP) * (number % across)
        pen.paint(panel.parts, left, top + tall * (number // across) + 8)
    text = "Line at 1: plain decoding. Whiskers: 95 % intervals. No mark: all texts are the same."
    if any(row.near_tie for row in result.rows):
        text += " ≈n: n near-ties."
    if any(row.different for row in result.rows):
        text += " ≠n, crossed out: n texts differ, does not count."
    text += f" Commit {result.commit[:12]}, seed {result.seed}."
    pen.paint([Text(x=_EDGE, y=height - 16, text=text, size=12, colour="soft")])
    data, about = BytesIO(), PngImagePlugin.PngInfo()
    about.add_itxt("Description", described(panels))
    pen.finish(height).save(data, "PNG", pnginfo=about, optimize=True)
    return data.getvalue()


def described(panels: list[Drawing]) -> str:
    """What the first panel shows, in words."""
    return f"Bars: decode speed-up, {panels[0].alt} All numbers are in the tables."
