"""The report holds every figure, strikes out what does not count and needs nothing else."""

import csv
import json
import re
from html.parser import HTMLParser

import pytest
from made_up import ENTRIES, FAMILIES, bench, large, without_verdicts
from PIL import Image

from varifocal.errors import BadOption, VarifocalError
from varifocal.evaluation.kinds import KINDS, SOURCES, STAGES
from varifocal.evaluation.page import speedups
from varifocal.evaluation.report import JOURNAL, claim, write_report

VOID = {"meta", "br"}


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


def test_folder_holds_six_files_and_no_leftover(folder):
    names = sorted(file.name for file in folder.iterdir())
    assert names == [
        "bench.csv", "bench.json", "bench.md", "bench.png", "bench.tex", "index.html",
    ]  # fmt: skip


def test_csv_has_a_line_per_entry_and_family_and_per_mean(folder):
    lines = list(csv.DictReader((folder / "bench.csv").read_text().splitlines()))
    assert [line["kind"] for line in lines] == ["family"] * 25 + ["mean"] * 5
    assert (lines[5]["drafter"], lines[5]["family"]) == ("fovea", "chart")
    assert lines[5]["decode_speedup_ci95"] == f"{2.5 * 0.875} {2.5 * 1.125}"
    assert lines[5]["acceptance_by_kind.copied.drafted"] == "89"


def test_every_number_of_the_json_is_in_the_csv(folder):
    content = json.loads((folder / "bench.json").read_text())
    assert content == json.loads(json.dumps(bench().to_dict()))
    cells = set((folder / "bench.csv").read_text().replace(",", " ").split())
    assert {str(n) for n in numbers(content)} <= cells


def test_row_with_different_texts_is_struck_out(folder, page):
    struck = re.findall(r"<s>(.*?)</s>", page)
    assert "3.12" in struck and "3.00" not in struck  # clock; chart is right
    text = (folder / "bench.md").read_text()
    assert "~~3.12×~~≠2" in text and "~~3.00×~~" not in text
    assert "17/20 same, 1 near-tie, 2 DIFFER" in text
    assert "[3.12]$^{\\neq 2}$" in (folder / "bench.tex").read_text()
    mean, chart, clock = speedups(bench())[:3]
    crossed = [sum(getattr(p, "fill", None) == "" for p in d.parts) for d in (mean, chart, clock)]
    assert crossed == [1, 0, 1]
    assert "does not count" in page


def test_faulty_entry_is_never_called_the_best(page, folder):
    assert '<b class="bad">Texts differ</b>' in page
    assert "plain decoding after the first token: fovea" in page
    cells = re.findall(r"<td class=\"gain[^>]*>.*?</td>", page)
    assert len(cells) == 6 * len(ENTRIES)
    best = [cell for cell in cells if "<b>" in cell]
    assert len(best) == 6 and not any("<s>" in cell for cell in best)
    assert all('title="fovea,' in cell for cell in best)
    assert not re.search(r"textbf\{\[", (folder / "bench.tex").read_text())


def test_no_speedup_stands_without_what_became_of_the_texts(page, folder):
    table = re.search(r'<table class="paper">.*?</table>', page, re.DOTALL)[0]
    for line in re.findall(r"<tr><th scope=\"row\".*?</tr>", table, re.DOTALL):
        assert " same" in line or "other draws" in line
    story = re.search(r'id="lead".*?</section>', page, re.DOTALL)[0]
    for sentence in re.findall(r"<p>(.*?)</p>", story):
        assert "×" not in sentence or " same" in sentence
    made = without_verdicts(bench(), "hf-generate")
    write_report(made, folder.parent / "sampled")
    sampled = (folder.parent / "sampled" / "index.html").read_text()
    assert "other draws" in sampled and "<sup>°</sup>" in sampled
    assert "$^\\circ$" in (folder.parent / "sampled" / "bench.tex").read_text()


class Checker(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.heads, self.charts = [], 0, 0

    def handle_starttag(self, tag, pairs):
        attributes = dict(pairs)
        assert not {"src", "href", "srcset", "data"} & set(attributes)
        assert tag != "th" or attributes.get("scope") in ("col", "row", "colgroup")
        self.heads += tag == "th"
        self.charts += tag == "figure"
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
    by_column = 3 * (1 + len(FAMILIES))  # speed-ups, tau, acceptance by position
    by_label = len(KINDS) + len(SOURCES) + len(STAGES)
    drafting = 3  # entries with a histogram
    assert checker.charts == by_column + by_label + drafting + 2 + 1
    assert "EPYC &lt;9575F&gt;" in page and "0123456789abcdef" in page


def test_what_each_kind_and_stage_is_stands_in_page_and_markdown(page, folder):
    markdown = (folder / "bench.md").read_text()
    for text in bench().definitions.values():
        assert text in markdown
        assert text.replace("'", "&#39;") in page


def test_picture_is_readable_at_1200_pixels(folder):
    with Image.open(folder / "bench.png") as picture:
        assert picture.width == 1200 and 300 < picture.height < 700
        assert "fovea 2.75" in picture.text["Description"]
        assert len(picture.convert("RGB").resize((300, 120)).getcolors(36000)) > 20


@pytest.mark.parametrize(("families", "entries"), [(1, ("plain",)), (1, ENTRIES), (2, ("plain",))])
def test_small_benchmarks_have_a_report_too(tmp_path, families, entries):
    write_report(bench(families, entries), tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert ("mean of the families" in page) == (families > 1 and len(entries) > 1)
    assert ("none leads" in page) == (len(entries) == 1)


def test_ten_entries_on_nine_families_are_one_table_of_each_kind(tmp_path):
    write_report(large(), tmp_path)
    tex = (tmp_path / "bench.tex").read_text()
    assert tex.count(r"\\") == 2 + 11 + 1
    rows = [x for x in tex.splitlines() if x.endswith(r"\\") and "multicolumn" not in x]
    assert len(rows) == 13 and all(line.count("&") == 20 for line in rows)
    with Image.open(tmp_path / "bench.png") as picture:
        assert picture.width == 1200 and picture.height < 900


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


def test_a_folder_that_holds_something_else_is_refused_before_the_work(tmp_path):
    claim(tmp_path / "new")
    assert (tmp_path / "new").is_dir()
    (tmp_path / "new" / ".DS_Store").touch()
    claim(tmp_path / "new")  # hidden files are nothing
    (tmp_path / "new" / "thesis.tex").touch()
    with pytest.raises(BadOption, match=r"thesis\.tex and no journal\.jsonl.*--fresh"):
        claim(tmp_path / "new")
    claim(tmp_path / "new", is_fresh=True)
    (tmp_path / "new" / JOURNAL).touch()
    claim(tmp_path / "new")
