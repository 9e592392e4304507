"""Charts stand where their numbers say, and ten entries can be told apart, in print as well."""

import re
from itertools import combinations, pairwise

import pytest
from made_up import bench, large
from PIL import Image, ImageDraw

from varifocal.evaluation.charts import (
    Curve,
    Item,
    Scale,
    Stack,
    bars,
    columns,
    lines,
    short_names,
    stacks,
)
from varifocal.evaluation.drawing import (
    COLOURS,
    DASHES,
    SERIES,
    Box,
    Drawing,
    Line,
    Pen,
    Shape,
    Text,
    marker,
    svg,
)
from varifocal.evaluation.page import positions, speedups, taus


def boxes(drawing):
    return [part for part in drawing.parts if isinstance(part, Box)]


def texts(drawing):
    return [part.text for part in drawing.parts if isinstance(part, Text)]


def test_bars_end_where_their_values_are_on_the_scale():
    items = [Item(name="a", value=1.0, text="1.00"), Item(name="b", value=2.5, text="2.50")]
    made = bars("title", items, Scale.upto(2.6), one=True)
    marks = {p.text: p.x for p in made.parts if isinstance(p, Text) and p.text in "0123"}
    one, other = boxes(made)
    assert one.x == other.x == marks["0"]
    assert one.x + one.width == pytest.approx(marks["1"])
    assert other.x + other.width == pytest.approx((marks["2"] + marks["3"]) / 2)
    line = next(p for p in made.parts if isinstance(p, Line) and p.colour == "ink")
    assert line.points[0][0] == pytest.approx(marks["1"])


def test_every_bar_is_named_and_carries_its_value():
    for drawing in (*speedups(large()), *taus(large())):
        shown = texts(drawing)
        for entry in large().means:
            assert entry == "plain" or entry in shown
    assert "3.52 ≈4" in texts(speedups(large())[0])


def test_nothing_of_a_chart_lies_outside_of_it():
    for drawing in (*speedups(large()), *taus(large()), *positions(large())):
        for part in drawing.parts:
            ends = getattr(part, "points", None) or [(part.x, part.y)]
            for x, y in ends:
                assert -1 <= x <= drawing.width + 1 and -1 <= y <= drawing.height + 1
        for box in boxes(drawing):
            assert box.x + box.width <= drawing.width


def test_a_bar_that_does_not_count_is_open_and_crossed():
    items = [Item(name="a", value=2.0, text="2.00", colour="s1", is_struck=True)]
    made = bars("t", items, Scale.upto(2.0))
    (box,) = boxes(made)
    assert box.fill == "" and box.edge == "s1"
    assert sum(isinstance(p, Line) and p.colour == "s1" for p in made.parts) == 2


def test_stacked_parts_lie_side_by_side_in_their_order():
    rows = [Stack(name="a", values=[1.0, 0.0, 3.0], text="4.0")]
    made = stacks("ms", rows, ("x", "y", "z"), ("p0", "p1", "p2"), Scale.upto(4.0))
    first, last = boxes(made)
    assert (first.fill, last.fill) == ("p0", "p2")
    assert first.x + first.width == pytest.approx(last.x)
    assert last.width == pytest.approx(3 * first.width)
    assert "x 1" in made.alt and "y 0" in made.alt


def test_columns_are_as_tall_as_their_share_of_the_tallest():
    low, high = boxes(columns("a", "1.0 a round", [0.25, 0.5], "s0", 0.5))
    assert high.height == pytest.approx(2 * low.height)
    assert low.y + low.height == high.y + high.height


def test_names_at_the_ends_of_curves_do_not_cover_each_other():
    curves = [Curve(name=f"entry {n}", number=n, shares=[0.9, 0.5]) for n in range(12)]
    made = lines("t", curves, width=640, height=300, is_named=True)
    heights = sorted(p.y for p in made.parts if isinstance(p, Text) and p.text.startswith("entry"))
    assert len(heights) == 12
    assert min(b - a for a, b in pairwise(heights)) >= 12
    assert heights[-1] <= 300


@pytest.mark.parametrize("most", [0.03, 1.05, 2.0, 3.7, 12.0, 450.0])
def test_scales_have_few_round_steps_up_to_the_most(most):
    scale = Scale.upto(most)
    assert scale.steps[0] == 0 and most <= scale.most <= 2 * most + 1e-9
    assert 2 <= len(scale.steps) <= 7


def test_long_names_keep_what_tells_them_apart():
    names = ["runs/eagle3-seed1/drafter:nodes=40", "runs/eagle3-seed2/drafter:nodes=40", "plain"]
    short = short_names(names)
    assert len(set(short)) == 3 and short[2] == "plain" and max(map(len, short)) <= 24


def channels(colour):
    """Linear light."""
    values = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def luminance(colour):
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), channels(colour), strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(colour):
    r, g, b = channels(colour)
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("page", [0, 1], ids=["light", "dark"])
def test_colours_of_ten_entries_differ_and_stand_out_from_the_page(page):
    own = [COLOURS[f"s{n}"][page] for n in range(SERIES)]
    assert SERIES == 10
    assert all(contrast(colour, COLOURS["card"][page]) >= 3 for colour in own)
    for one, other in combinations(own, 2):
        apart = sum((a - b) ** 2 for a, b in zip(lab(one), lab(other), strict=True)) ** 0.5
        assert apart > 30, (one, other)
    for name in ("ink", "soft"):
        assert contrast(COLOURS[name][page], COLOURS["card"][page]) >= 4.5


@pytest.mark.parametrize("page", [0, 1], ids=["light", "dark"])
def test_parts_of_a_round_differ_in_lightness_alone(page):
    grey = sorted(lab(COLOURS[f"p{n}"][page])[0] for n in range(4))
    assert min(b - a for a, b in pairwise(grey)) > 15


def test_marks_and_dashes_tell_ten_entries_apart_without_colour():
    drawn = set()
    for number in range(10):
        picture = Image.new("1", (40, 40))
        ImageDraw.Draw(picture).polygon(marker(number, 20, 20, 14), fill=1)
        drawn.add(picture.tobytes())
    assert len(drawn) == 10 and len(set(DASHES)) == len(DASHES)


def test_text_of_an_entry_cannot_become_part_of_the_page():
    nasty = '</svg><script>alert("1")</script>'
    part = Text(x=0, y=0, text=nasty)
    box = Box(x=0, y=0, width=1, height=1, fill="ink", title=nasty)
    made = svg(Drawing(width=10, height=10, alt=nasty, parts=[part, box]))
    assert "<script" not in made and made.count("</svg>") == 1
    assert made.count("&lt;script") == 3


def test_page_and_picture_show_the_same_parts():
    (first, *_) = speedups(bench())
    made = svg(first)
    assert made.count("<rect") == len(boxes(first))
    assert len(re.findall(r"<polyline", made)) == sum(isinstance(p, Line) for p in first.parts)
    pen = Pen(first.width, first.height)
    pen.paint(first.parts)
    colours = {c for _, c in pen.finish(first.height).getcolors(100_000)}
    wanted = COLOURS[boxes(first)[0].fill][0]
    assert tuple(int(wanted[n : n + 2], 16) for n in (1, 3, 5)) in colours
    pen.paint([Shape(points=marker(1, 9, 9), colour="s3")])
