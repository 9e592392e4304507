"""The pages of docs: their commands and code run, and what they name exists."""

import re
import shlex
from itertools import chain
from pathlib import Path

import published
import pytest
from checkpoints import built
from pupil import Pupil
from tiny import picture
from typer.testing import CliRunner

from varifocal.cli import app
from varifocal.diffusion import gates, samplers
from varifocal.evaluation.importers import find_layout, layout_names
from varifocal.evaluation.presets import GENERAL, presets
from varifocal.evaluation.scenarios import GROUPS
from varifocal.sampling import Sampling
from varifocal.targets import target_classes

DOCS = Path(__file__).parent.parent / "docs"
FAMILIES = {"text": "text-llama"}  # tiny checkpoints whose name is not that of the page
# What the pages ask for, in sizes that a test has time for.
TINY = {
    r"--max-new-tokens \d+": "--max-new-tokens 8",
    r"--limit \d+": "--limit 1",
    r"--epochs \d+": "--steps 2 --set inner=32",
    r"--repeats \d+": "--repeats 1 --warm-up 0 --threads 1 --clock cpu",
    r"--drafters (\S+)": r"--drafters \1 --dtype float32",
    r"my-drafter --suite": "my-drafter --set nodes=4 --suite",
}


def short(command: str) -> str:
    """Of the page on diffusion: short answers on short canvases, few gates."""
    command = re.sub(r"\b(lookup,chain|lookup|chain)\b(?!-)", "compare", command)
    if "--canvas" in command:
        command = re.sub(r"--canvas \d+", "--canvas 8", command)
    elif " replay " not in command:
        command += " --canvas 8"
    more = {" bench ": " --timed-items 1 --gates cvc --samplers own", " verify ": " --sample 1"}
    return command + "".join(text for word, text in more.items() if word in command)


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the pictures that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("varifocal.engine.measure", lambda target, drafter: None)  # seconds
    picture(1, (60, 40)).save("receipt.png")
    picture(2, (40, 60)).save("chart.png")
    return tmp_path


def run(command: str, model: Path) -> None:
    # shlex does not know how bash quotes a line break
    command = re.sub(r"\$'(.*?)\\n'", lambda m: shlex.quote(f"{m[1]}\n"), command)
    words = shlex.split(command.replace("MODEL", str(model)))
    assert words[0] == "varifocal"
    ran = CliRunner().invoke(app, words[1:])
    assert ran.exit_code == 0, f"{command}\n{ran.output}\n{ran.exception!r}"


def commands(page: Path) -> list[str]:
    lines = "".join(blocks(page, "sh")).splitlines()
    for pattern, small in TINY.items():
        lines = [re.sub(pattern, small, line) for line in lines]
    return lines


def test_the_code_of_the_page_on_batches_runs(workplace):
    code = blocks(DOCS / "batches.md", "python")
    assert code
    for block in code:
        exec(block, {})


def test_the_commands_of_the_page_run_in_order(workplace):
    page = DOCS / "your-checkpoint.md"
    names = re.findall(r"`(\S+\.jsonl)`:\n\n```json", page.read_text("utf-8"))
    assert names == ["mine.jsonl", "held-out.jsonl"]
    for name, content in zip(names, blocks(page, "json"), strict=True):
        Path(name).write_text(content)
    typed = commands(page)
    assert [line.split()[1] for line in typed] == (
        "doctor generate verify record train doctor bench".split()
    )
    for command in typed:
        if command.startswith("varifocal doctor"):
            continue  # below: an untrained drafter is a fault
        run(command, built("llava_next"))
    first, second = (c for c in typed if c.startswith("varifocal doctor"))
    run(first, built("llava_next"))
    told = CliRunner().invoke(
        app, shlex.split(second.replace("MODEL", str(built("llava_next"))))[1:]
    )
    assert told.exit_code in (0, 1) and "drafter.weights" in told.output, told.output
    for command in commands(DOCS / "drafters.md"):  # which goes on with the same drafter
        run(command, built("llava_next"))


def test_code_and_commands_of_the_settings_run(workplace):
    page = DOCS / "settings.md"
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), {})
    for command in commands(page):
        run(command, built("llava_next"))


def test_code_and_commands_of_the_page_on_suites_run(workplace):
    page = DOCS / "suites.md"
    (lines,) = blocks(page, "json")
    assert lines.count("\n") == 5
    Path("mine.jsonl").write_text(lines)
    published.mmspec(Path("MMSpec"), 4)
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), {})
    for command in [*commands(page), "varifocal suite check pictures.jsonl"]:
        run(command, built("llava_next"))


def test_the_commands_of_the_page_on_tabed_run(workplace):
    small = built("llava_next")
    for command in commands(DOCS / "tabed.md"):
        if "--preset tabed" in command:
            command += " --max-new-tokens 8 --warm-up 0 --dtype float32"
            if "--draft-model" not in command:
                command += " --draft-model SMALL --families chart,second-related"
        if "--drafter ensemble" in command:
            command += " --set model=SMALL --set nodes=4"
        if "--target" not in command and "--preset list" not in command:
            command += " --target MODEL"
        run(command.replace("SMALL", str(small)), small)
    assert Path("weights.png").stat().st_size > 1000


def test_every_family_of_the_scenarios_and_every_preset_has_its_place_on_the_page_on_tabed():
    said = (DOCS / "tabed.md").read_text("utf-8")
    for group, families in GROUPS.items():
        assert f"\n| {group} | " in said
        for family in families:
            assert f"`{family}`" in said
    for name in presets():
        assert f"`{name}`" in said or name in GENERAL


def test_code_and_commands_of_the_page_on_diffusion_run(workplace, monkeypatch):
    monkeypatch.setattr(
        "varifocal.diffusion.loading.load_denoiser", lambda place, **options: Pupil(str(place))
    )
    few = {"cvc": ["cvc"], "sched": ["sched"]}
    monkeypatch.setattr("varifocal.diffusion.evaluation.tune.grids", lambda: few)
    page = DOCS / "diffusion.md"
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), {})
    for command in commands(page):
        run(short(command), DOCS)


def test_every_gate_and_sampler_has_a_row_on_the_page_on_diffusion():
    named = re.findall(r"^\| (`.+?) \|", (DOCS / "diffusion.md").read_text("utf-8"), re.MULTILINE)
    listed = set(re.findall(r"`(\w+)`", " ".join(named)))
    assert {*gates.names(), *samplers.names()} <= listed


def test_every_layout_has_a_row_on_the_page_on_suites():
    said = (DOCS / "suites.md").read_text("utf-8")
    for name in layout_names():
        assert f"\n| `{name}` | " in said
        assert find_layout(name).title in said


@pytest.mark.parametrize("family", target_classes())
def test_a_family_has_a_page_whose_command_runs(family, workplace):
    page = DOCS / "targets" / f"{family}.md"
    said = page.read_text("utf-8")
    for model_type in target_classes()[family].model_types:
        assert f"`{model_type}`" in said
    assert "No published weights were run" in said
    (command,) = commands(page)
    run(command, built(FAMILIES.get(family, family)))


def test_every_setting_has_a_row():
    said = (DOCS / "settings.md").read_text("utf-8")
    for name in Sampling.__dataclass_fields__:
        assert f"\n| `{name}` |" in said
    for name in ("max_new_tokens", "stop", "logprobs", "n"):
        assert f"\n| `{name}` |" in said


def test_every_test_that_the_page_of_faults_names_exists():
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "faults.md").read_text("utf-8")))
    files = Path(__file__).parent.rglob("test_*.py")
    written = (re.findall(r"^def (test_\w+)\(", f.read_text("utf-8"), re.MULTILINE) for f in files)
    assert len(named) > 100
    assert named - set(chain.from_iterable(written)) == set()


def test_every_kind_of_fault_has_a_test_or_a_reason():
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", (DOCS / "faults.md").read_text("utf-8"),
                      re.MULTILINE)  # fmt: skip
    rows = [row for row in rows if not row[0].startswith(("kind", "---"))]
    assert len(rows) >= 39
    for kind, _, held in rows:
        assert "`test_" in held or "not apply, because" in held, kind


def test_links_and_the_list_of_pages_are_complete():
    listed = (DOCS / "README.md").read_text("utf-8")
    for page in DOCS.rglob("*.md"):
        if page.name != "README.md":
            assert f"]({page.relative_to(DOCS)})" in listed, page
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            assert (page.parent / link).exists() or "://" in link, (page, link)
