"""The report holds every figure, strikes out what does not count and needs nothing else."""

import csv
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from varifocal.errors import VarifocalError
from varifocal.evaluation.figures import BenchResult, Row, by_position, mean_of
from varifocal.evaluation.report import SPEEDUP, bar_chart, write_report

FAMILIES = ("chart", "clock", "document", "map", "scene")
ENTRIES = ("plain", "fovea", "lookup:ngram=2", "bad", "hf-generate")
VOID = {"meta", "line", "rect", "path", "circle", "polyline", "br"}


def row(place, entry):
    """Figures that follow from the entry's and the family's place."""
    number = ENTRIES.index(entry)
    gain = {"plain": 1.0, "fovea": 2.5, "lookup:ngram=2": 1.25, "bad": 3.0, "hf-generate": 0.75}
    drafts = entry not in ("plain", "hf-generate")
    histogram = [50 - 5 * number, 30, 20 + place, 10, 5][: 5 if drafts else 1]
    seconds = 8 / (gain[entry] + place / 8)
    different = 2 if entry == "bad" and place == 1 else 0
    return Row(
        drafter=entry, family=FAMILIES[place], baseline="plain", requests=20, tokens=400 + place,
        rounds=sum(histogram), tau=1 + drafts * (gain[entry] - 0.5 + place / 16),
        decode_speedup=gain[entry] + place / 8 * drafts,
        decode_speedup_ci95=(gain[entry] * 0.875, gain[entry] * 1.125 + place / 8 * drafts),
        end_to_end_speedup=1 + (gain[entry] - 1) / 2,
        identical=20 - place % 2 - different, near_tie=place % 2, different=different,
        is_compared=True, share={"draft": number / 16, "verify": 0.5, "other": 0.5 - number / 16},
        acceptance_histogram=histogram, acceptance_by_position=by_position(histogram),
        prefill_share=(2 + place + number) / 32, seconds={"decode": seconds, "total": seconds + 2},
        ngram_tau=1.5 + place / 8, draft_memory_mib=number * 3.5, repeats=3,
    )  # fmt: skip


def bench(families=5, entries=ENTRIES):
    rows = {e: [row(place, e) for place in range(families)] for e in entries}
    ends = {e: [np.array(r.decode_speedup_ci95) for r in own] for e, own in rows.items()}
    return BenchResult(
        machine={"cpu": "EPYC <9575F>", "threads": 1, "torch": "2.9", "load": 0.375},
        commit="0123456789abcdef", seed=7, clock="cpu", dtype="bfloat16", target="demo",
        suite="demo", sampling={"temperature": 0.0, "top_k": 0}, repeats=3,
        rows=tuple(r for own in rows.values() for r in own), ngram_tau=1.75,
        means={e: mean_of(own, ends[e]) for e, own in rows.items()},
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "new" / "report"
    write_report(bench(), folder)
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "index.html").read_text()


def numbers(value):
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def test_folder_holds_five_files_and_no_leftover(folder):
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["bench.csv", "bench.json", "bench.md", "bench.png", "index.html"]


def test_csv_has_a_line_per_entry_and_family_and_per_mean(folder):
    lines = list(csv.DictReader((folder / "bench.csv").read_text().splitlines()))
    assert [line["kind"] for line in lines] == ["family"] * 25 + ["mean"] * 5
    assert (lines[5]["drafter"], lines[5]["family"]) == ("fovea", "chart")
    assert lines[5]["decode_speedup_ci95"] == f"{2.5 * 0.875} {2.5 * 1.125}"


def test_every_number_of_the_json_is_in_the_csv(folder):
    content = json.loads((folder / "bench.json").read_text())
    assert content == json.loads(json.dumps(bench().to_dict()))
    cells = set((folder / "bench.csv").read_text().replace(",", " ").split())
    assert {str(n) for n in numbers(content)} <= cells


def test_row_with_different_texts_is_struck_out(folder, page):
    struck = re.findall(r"<s>(.*?)</s>", page)
    assert "3.12×" in struck and "3.00×" not in struck  # clock; chart is right
    text = (folder / "bench.md").read_text()
    assert "~~3.12×~~ (17/20 same, 1 near-tie, 2 DIFFER)" in text and "~~3.00×~~" not in text
    crossed = [bar.label for bar in bar_chart(bench(), SPEEDUP).bars if bar.is_struck]
    assert [label.split(":")[0] for label in crossed] == ["bad, mean", "bad, clock"]


def test_faulty_entry_is_never_called_the_best(page):
    assert '<b class="bad">Texts differ</b>' in page
    assert "plain decoding after the first token: fovea" in page
    best = [cell for cell in re.findall(r"<td class=\"[^\"]*best.*?</td>", page)]
    assert len(best) == 6 and not any("<s>" in cell for cell in best)


class Checker(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.heads, self.charts = [], 0, 0

    def handle_starttag(self, tag, pairs):
        attributes = dict(pairs)
        assert not {"src", "href", "srcset", "data"} & set(attributes)
        assert tag != "th" or attributes.get("scope") in ("col", "row")
        assert tag != "svg" or attributes["aria-label"]
        self.heads += tag == "th"
        self.charts += tag == "svg"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, pairs):
        assert tag in VOID

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_parses_and_needs_nothing_from_outside(page):
    assert not re.search(r"https?://|@import|url\(|<script", page)
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert not checker.open and checker.heads > 30
    assert checker.charts == 3 + 1 + len(FAMILIES)
    assert "EPYC &lt;9575F&gt;" in page and "0123456789abcdef" in page


def test_bars_stand_where_their_numbers_say():
    chart = bar_chart(bench(), SPEEDUP)
    height = {label: y for y, label in chart.ticks}
    assert chart.one == height["1"] and height["0"] == chart.bottom
    by_label = {bar.label.split(":")[0]: bar for bar in chart.bars}
    assert by_label["hf-generate, chart"].top > chart.one > by_label["fovea, chart"].top
    half = (height["2"] + height["3"]) / 2
    assert by_label["fovea, chart"].top == pytest.approx(half, abs=0.11)
    assert all(a.x + a.width < b.x for a, b in zip(chart.bars, chart.bars[1:], strict=False))


def test_picture_is_readable_at_1200_pixels(folder):
    with Image.open(folder / "bench.png") as picture:
        assert picture.width == 1200 and 380 < picture.height < 700
        assert "fovea, mean" in picture.text["Description"]
        assert len(picture.convert("RGB").resize((300, 120)).getcolors(36000)) > 20


@pytest.mark.parametrize(("families", "entries"), [(1, ("plain",)), (1, ENTRIES), (2, ("plain",))])
def test_small_benchmarks_have_a_report_too(tmp_path, families, entries):
    write_report(bench(families, entries), tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert ("mean of the families" in page) == (families > 1 and len(entries) > 1)


def test_second_report_replaces_the_first(tmp_path):
    write_report(bench(), tmp_path)
    write_report(bench(1), tmp_path)
    assert len(json.loads((tmp_path / "bench.json").read_text())["rows"]) == len(ENTRIES)


def test_folder_that_cannot_be_written_is_a_named_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(VarifocalError, match=r"needs a folder.*--report"):
        write_report(bench(1), tmp_path / "file" / "report")
    (tmp_path / "bench.json").mkdir()
    with pytest.raises(VarifocalError, match=r"bench\.json could not be written"):
        write_report(bench(1), tmp_path)
