"""Weights along an answer: the line stands at the weights, the shade where they would be right."""

import xml.etree.ElementTree as ElementTree

import pytest
import torch
from PIL import Image
from relatives import ensemble, relative, request, target_of

from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output
from varifocal.cli.generate import check_plot, write_plot
from varifocal.decode import Generation
from varifocal.drafters import load_drafter
from varifocal.errors import BadOption
from varifocal.evaluation.drawing import Box, Line, Text
from varifocal.evaluation.weighing import (
    LEVELS,
    Block,
    Weighing,
    check_drafter,
    check_place,
    drawing,
    right_weights,
    weighing_of,
    write_picture,
)


@pytest.fixture(scope="module")
def generation():
    """Two views of a model that often says what the target says."""
    target = target_of("llava_next")
    drafter = ensemble(target, relative(noise=0.05), views="MT", nodes=4, depth=4)
    made = Generation(target, drafter, request(tokens=24))
    for _ in made:
        pass
    return made


@pytest.fixture(scope="module")
def weighing(generation):
    return weighing_of(generation)


def pair(weights, right):
    """Two views, one block of two tokens, then one that was decoded plainly."""
    blocks = [
        Block(begin=1, end=3, num_accepted=1, weights=weights),
        Block(begin=3, end=4, num_accepted=0, weights=None),
    ]
    return Weighing(views=["M", "T"], blocks=blocks, tokens=["a", "b", "c", "d"], right=right)


def test_the_right_weights_are_those_whose_likeliest_token_is_the_texts():
    laws = torch.tensor([[[0.62, 0.38, 0.0], [0.0, 0.1, 0.9]], [[0.9, 0.1, 0.0], [0.8, 0.0, 0.2]]])
    right = right_weights(laws, torch.tensor([0, 1]))
    # Token 0 of the first position: 0.62 w > 0.9 (1 - w), so from w = 0.592 on.
    assert right[0].tolist() == [level / (LEVELS - 1) > 0.592 for level in range(LEVELS)]
    assert not right[1].any()
    alone = right_weights(torch.cat([laws, laws[:, :1]], 1), torch.tensor([0, 1]))
    assert alone.tolist() == [[True, False, True], [False, False, False]]


def test_blocks_are_the_rounds_with_the_weights_that_they_began_with(generation, weighing):
    rounds = generation.rounds[1:]
    assert [block.end - block.begin for block in weighing.blocks] == [len(r.tokens) for r in rounds]
    assert weighing.blocks[0].begin == 1
    assert weighing.blocks[-1].end == len(generation.result().token_ids)
    drafted = [block.weights for block in weighing.blocks if block.weights is not None]
    assert drafted == generation.drafter_state.weights and len(drafted) > 2
    for block, decided in zip(weighing.blocks, rounds, strict=True):
        assert (block.weights is not None) == (decided.num_drafted > 0)


def test_a_line_in_the_shade_was_accepted_and_one_beside_it_was_not(weighing):
    """Weights between two levels are left out: the shade knows no more than its levels."""
    steps, seen = LEVELS - 1, set()
    for block in weighing.blocks:
        level = block.weights["M"] * steps
        if abs(level - round(level)) > 1e-6:
            continue
        for place in range(block.begin, block.begin + block.num_accepted):
            assert weighing.right[place - 1, round(level)]
            seen.add(True)
        if block.num_accepted < 4 and block.end < len(weighing.tokens):
            assert not weighing.right[block.end - 2, round(level)]
            seen.add(False)
    assert seen == {True, False}


def test_the_line_stands_at_the_weight_and_breaks_where_nothing_was_drafted():
    right = torch.zeros(3, LEVELS, dtype=torch.bool)
    right[0, 5:] = True
    made = drawing(pair({"M": 0.25, "T": 0.75}, right))
    marks = {p.text: p.y for p in made.parts if isinstance(p, Text)}
    top, bottom = marks["M alone"], marks["T alone"]
    (line,) = (p for p in made.parts if isinstance(p, Line) and p.title)
    assert [y for _, y in line.points] == pytest.approx([bottom - 3.5 + (top - bottom) / 4] * 2)
    shade = [p for p in made.parts if isinstance(p, Box) and p.fill == "p0"]
    assert len(shade) == 1 and shade[0].title == "token 2: 'b'"
    low = shade[0].y + shade[0].height
    level = (bottom - 3.5 - low) / (bottom - top)
    assert level == pytest.approx(5 / 20 - 1 / 40) and shade[0].y == pytest.approx(top - 3.5)
    # The line ends where the block does: two tokens wide, as the shade is one.
    (x0, _), (x1, _) = line.points
    assert x1 - x0 == pytest.approx(2 * shade[0].width)
    drafted = [p for p in made.parts if isinstance(p, Box) and p.title.endswith("accepted")]
    assert [p.title for p in drafted] == ["token 2: 'b', drafted and accepted"]


def test_of_several_views_each_has_a_line_and_a_strip():
    weights = {"M": 0.5, "T": 0.25, "C": 0.25}
    right = torch.tensor([[True, False, True], [True, False, False], [False, False, False]])
    one = Weighing(views=list(weights), blocks=pair(weights, right).blocks,
                   tokens=["a", "b", "c", "d"], right=right)  # fmt: skip
    made = drawing(one)
    titles = [p.title for p in made.parts if isinstance(p, Line) and p.title]
    assert titles == ["weight of M", "weight of T", "weight of C"]
    alone = [p.title for p in made.parts if isinstance(p, Box) and "alone has it" in p.title]
    assert [title.split(", ")[-1][0] for title in alone] == ["M", "M", "C"]


def test_the_picture_is_written_as_png_and_as_svg_that_stands_alone(weighing, tmp_path):
    made = drawing(weighing)
    write_picture(made, tmp_path / "weights.png")
    with Image.open(tmp_path / "weights.png") as image:
        assert image.size == (int(made.width), int(made.height))
        assert len(image.convert("RGB").getcolors(100_000)) > 20
    write_picture(made, tmp_path / "weights.svg")
    root = ElementTree.parse(tmp_path / "weights.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    style = root[0].text
    used = {v for e in root.iter() for v in e.attrib.values() if v.startswith("var(")}
    assert used and all(f"{name[4:-1]}:#" in style for name in used)


def test_what_cannot_be_drawn_is_refused_before_the_work(tmp_path):
    for path, said in (
        (tmp_path / "weights.pdf", r"writes \.png or \.svg"),
        (tmp_path / "nowhere" / "weights.png", "there is no folder"),
    ):
        with pytest.raises(BadOption, match=said):
            check_place(path)
    with pytest.raises(BadOption, match="lookup has none; give --drafter ensemble"):
        check_drafter(load_drafter("lookup", target_of("llava_next")))


def test_the_command_line_draws_it(generation, tmp_path, capsys):
    place = tmp_path / "weights.svg"
    write_plot(generation, place, Output(OutputOptions()))
    assert place.exists() and "the weights are drawn in" in capsys.readouterr().err
    with pytest.raises(BadOption, match="--n asks for 2"):
        check_plot(place, 2)
