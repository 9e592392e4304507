"""A paper's table as a preset: its entries, what follows from fixed runs, and how it is shown."""

import io
import json
from dataclasses import replace

import pytest
from made_up import bench
from rich.console import Console
from tiny import save_tiny

from varifocal.errors import BadOption
from varifocal.evaluation import sheet
from varifocal.evaluation.entries import parse_drafters, with_model
from varifocal.evaluation.experiment import ALL, Claim, Experiment
from varifocal.evaluation.outcome import expected_speedup, outcome_of
from varifocal.evaluation.page import page
from varifocal.evaluation.presets import GENERAL, find_preset, presets
from varifocal.evaluation.report import write_report
from varifocal.evaluation.scenarios import names

PAPERS = [name for name in presets() if name not in GENERAL]
EXPERIMENT = Experiment(
    name="made-up-1",
    source="Made up, Table 1",
    depth=5,
    blocks=(("fovea", "lookup:ngram=2", "bad"),),
    claims=(Claim(method="lookup:ngram=2", near=("fovea", "bad")),),
    groups={"drawn": ("chart", "map"), "nothing": ("film",)},
)


@pytest.fixture(scope="module")
def outcome():
    """Of runs in which fovea leads, lookup is second and the texts of bad differ on clock."""
    return outcome_of(bench(), EXPERIMENT)


# -- presets -----------------------------------------------------------------------------------


def test_the_eight_tables_of_tabed_are_there():
    assert [name for name in PAPERS if name.startswith("tabed-")] == [
        f"tabed-{number}" for number in range(1, 9)
    ]


@pytest.mark.parametrize("name", PAPERS)
def test_a_preset_names_entries_that_exist_and_draft_what_its_formula_says(name):
    preset = presets()[name]
    experiment = preset.experiment
    plain, *entries = parse_drafters(with_model(preset.drafters, "some/folder"))
    assert plain.is_baseline
    labels = [label for block in experiment.blocks for label in block]
    assert [entry.text for entry in entries] == labels
    for entry in entries:
        assert entry.options["model"] == "some/folder"
        assert entry.options["depth"] == experiment.depth
        assert entry.options["nodes"] == experiment.depth * entry.options.get("width", 1)
        assert entry.given.endswith(f"label={entry.text}")
    for claim in experiment.claims:
        (block,) = (block for block in experiment.blocks if claim.method in block)
        assert set(claim.near) < set(block) and claim.method not in claim.near
    assert set(preset.families) <= set(names())
    assert parse_drafters(with_model(preset.drafters, ""))[1].options.get("model") is None


def test_an_unknown_preset_is_refused_with_those_that_there_are():
    with pytest.raises(
        BadOption, match=r"'tabed-9'; there are quick, full, tabed-1.*--preset list"
    ):
        find_preset("tabed-9")


def test_a_draft_model_that_no_entry_asks_for_is_refused():
    with pytest.raises(BadOption, match="--draft-model has no effect"):
        with_model("plain,lookup", "some/folder")


def test_a_label_names_the_rows_of_an_entry():
    (_, entry) = parse_drafters("lookup:ngram=2:label=my copy:nodes=4")
    assert (entry.text, entry.name, entry.options) == (
        "my copy",
        "lookup",
        {"ngram": 2, "nodes": 4},
    )
    assert entry.given == "lookup:ngram=2:label=my copy:nodes=4"


@pytest.mark.parametrize(
    "text", ["lookup:label= ", "lookup:label=plain", "lookup:label=hf-x", "plain:label=x"]
)
def test_a_label_that_would_pass_for_a_baseline_is_refused(text):
    with pytest.raises(BadOption, match="a label must be"):
        parse_drafters(text)


def test_two_rows_of_one_name_are_refused():
    with pytest.raises(BadOption, match="same is named twice"):
        parse_drafters("lookup:label=same,lookahead:label=same")


# -- what follows from the runs ----------------------------------------------------------------


def test_the_formula_is_that_of_the_paper():
    assert expected_speedup(2.29, 5, 0.063) == pytest.approx(1.74, abs=0.005)  # [TABED, G.1]


def test_the_latency_ratio_is_a_draft_step_by_a_plain_token(outcome):
    figure = outcome.at("fovea", "chart")
    # 113 rounds in 3.2 s, a 32nd of it drafting, and 1/64 s of that reading prompts; plain has 50
    # rounds in 8 s.
    assert figure.latency_ratio == pytest.approx((0.1 - 1 / 64) / (113 * 5) / (8 / 50))
    assert figure.verify_ratio == pytest.approx(1.6 / 113 / (8 / 50))
    assert figure.expected_speedup == pytest.approx(3.0 / (5 * figure.latency_ratio + 1))
    assert figure.decode_speedup == 2.5 and figure.decode_speedup_ci95 == (2.5 * 0.875, 2.5 * 1.125)


def test_averages_are_over_families_and_the_expectation_follows_from_them(outcome):
    parts = [outcome.at("fovea", family) for family in ("chart", "map")]
    group = outcome.at("fovea", "drawn")
    assert group.block_efficiency == sum(p.block_efficiency for p in parts) / 2
    ratio = sum(p.latency_ratio for p in parts) / 2
    assert group.latency_ratio == pytest.approx(ratio)
    assert group.expected_speedup == pytest.approx(group.block_efficiency / (5 * ratio + 1))
    assert (
        outcome.at("fovea", ALL).decode_speedup_ci95 == bench().means["fovea"].decode_speedup_ci95
    )
    assert [name for name, _ in outcome.groups()] == ["drawn", ""]


def test_ranks_leave_out_whose_texts_differ(outcome):
    ranks = {e: outcome.at(e, "chart").rank for e in outcome.drafters}
    assert ranks == {"fovea": 1, "lookup:ngram=2": 2, "bad": None}


def test_a_claim_is_told_with_its_worst_family(outcome):
    (standing,) = outcome.standings
    assert set(standing.ranks.values()) == {2} and standing.beyond == ()
    # bad has the highest block efficiency, 3.5 and a 16th more from family to family.
    assert standing.ratios["chart"] == pytest.approx(1.75 / 3.5)
    assert standing.worst_family == "chart"
    (said,) = sheet.told(outcome)
    assert said == (
        "lookup:ngram=2 is best in 0 and second best in 5 of 5 families; at worst its block "
        "efficiency is 0.500 of that of the best single view (chart)."
    )


def test_who_is_behind_two_others_is_named():
    experiment = replace(
        EXPERIMENT,
        blocks=(("plain", "fovea", "lookup:ngram=2"),),
        claims=(Claim(method="plain", near=("bad",)),),
    )
    outcome = outcome_of(bench(), experiment)
    (said,) = sheet.told(outcome)
    assert said == (
        "plain is best in 0 and second best in 0 of 5 families, and neither in chart, clock, "
        "document, map, scene."
    )


def test_an_entry_that_was_not_measured_is_no_part_of_it():
    outcome = outcome_of(bench(entries=("plain", "fovea")), EXPERIMENT)
    assert outcome.drafters == ["fovea"] and outcome.standings == ()


# -- how it is shown ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(outcome):
    return replace(bench(), outcome=outcome, entries={"fovea": "fovea:nodes=9:label=fovea"})


def test_best_and_second_best_are_set_off_in_every_form(result, tmp_path):
    write_report(result, tmp_path)
    markdown = (tmp_path / "bench.md").read_text()
    assert "## Made up, Table 1, measured here" in markdown
    assert "| chart | **3.00** | <ins>1.75</ins> | 3.50 |" in markdown
    assert "| clock | **3.06** | <ins>1.81</ins> | ~~3.56~~ |" in markdown
    tex = (tmp_path / "bench.tex").read_text()
    assert r"chart & \textbf{3.00} & \underline{1.75} & 3.50 \\" in tex
    assert tex.count(r"\toprule") == tex.count(r"\bottomrule") == 2
    html = (tmp_path / "index.html").read_text()
    assert "<td><b>3.00</b></td><td><u>1.75</u></td><td>3.50</td>" in html
    assert "<td><s>3.56</s></td>" in html


def test_a_measured_speedup_stands_beside_the_expected_one_and_its_texts(result, outcome):
    expected = f"{outcome.at('bad', ALL).expected_speedup:.2f}"
    lines = [line for line in sheet.markdown(outcome) if line.startswith("| bad |")]
    assert expected in lines[0] and "~~3.25~~" in lines[0] and "2 DIFFER" in lines[0]
    console = Console(file=io.StringIO(), width=160)
    console.print(sheet.terminal(outcome, "title", ["a note"]))
    shown = console.file.getvalue()
    assert "expected ×" in shown and "measured ×" in shown and "2 DIFFER" in shown
    assert "a note" in shown
    assert page(result).count("2 DIFFER") > page(bench()).count("2 DIFFER")


def test_json_and_csv_have_the_expected_figures(result, tmp_path):
    write_report(result, tmp_path)
    content = json.loads((tmp_path / "bench.json").read_text())["outcome"]
    assert content["experiment"]["name"] == "made-up-1"
    assert content["standings"][0]["worst_ratio"] == pytest.approx(0.5)
    csv = (tmp_path / "bench.csv").read_text()
    assert str(result.outcome.at("fovea", "chart").expected_speedup) in csv
    assert "fovea:nodes=9:label=fovea" in csv


# -- on the command line -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return save_tiny(folder / "target"), save_tiny(folder / "draft", seed=1)


@pytest.fixture
def run():
    from typer.testing import CliRunner

    from varifocal.cli import app

    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])


def test_a_preset_runs_with_what_is_typed_in_its_place_and_goes_on(run, models, tmp_path):
    target, draft = models
    command = (
        *("bench", "--preset", "tabed-8", "--target", target, "--draft-model", draft),
        *("--families", "second-related", "--limit", 1, "--max-new-tokens", 6),
        *("--dtype", "float32", "--warm-up", 0, "--report", tmp_path / "report"),
    )
    done = run(*command)
    assert done.exit_code == 0, done.stderr
    assert "MT* is best in" in done.stdout and "expected ×" in done.stdout
    content = json.loads((tmp_path / "report" / "bench.json").read_text())
    assert list(content["means"]) == ["plain", "MT AdaBoost", "MT hard", "MT kl", "MT*"]
    assert content["means"]["MT*"]["identical"] == 1
    assert content["suite"] == "scenarios"
    assert content["entries"]["MT*"] == f"ensemble:model={draft}:views=MT:depth=5:nodes=5:label=MT*"
    assert [f["family"] for f in content["outcome"]["figures"][:3]] == [
        "second-related", "second turn", ALL,
    ]  # fmt: skip
    again = run(*command)  # the answer before the second turn must be the same one
    assert again.exit_code == 0 and "nothing is measured anew" in again.stderr
    other = run(*command, "--drafters", "lookup:nodes=4", "--fresh")
    assert other.exit_code == 2 and "--draft-model has no effect" in other.stderr


def test_the_list_says_what_each_preset_measures(run):
    shown = run("bench", "--preset", "list", "--json", "-")
    known = json.loads(shown.stdout)["presets"]
    assert [preset["name"] for preset in known] == list(presets())
    assert all(preset["title"] for preset in known)
    assert "AdaBoost" in run("bench", "--preset", "list").stdout
