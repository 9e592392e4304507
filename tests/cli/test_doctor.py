"""`varifocal doctor`: exit codes, the table and the JSON."""

import json
import shutil

import pytest
from tiny import picture, save_tiny

SMALL = ("--drafter", "lookup", "--set", "nodes=4", "--dtype", "float32")


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """One short question about a picture."""
    folder = tmp_path_factory.mktemp("suite")
    picture().save(folder / "noise.png")
    parts = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    line = {"messages": [{"role": "user", "content": parts}], "images": ["noise.png"],
            "max_new_tokens": 6}  # fmt: skip
    (folder / "suite.jsonl").write_text(json.dumps(line) + "\n")
    return folder / "suite.jsonl"


def test_a_pair_without_fault_ends_with_0_and_a_table(run, tiny_folder, suite):
    result = run("doctor", "--target", tiny_folder, *SMALL, "--suite", suite)
    assert result.exit_code == 0, result.output
    for word in ("target.template", "positions.tree", "decoding.text", "not applicable"):
        assert word in result.stdout
    assert result.stdout.rstrip().endswith("no fault was found")


def test_json_alone_goes_to_standard_output(run, tiny_folder, suite):
    result = run("doctor", "--target", tiny_folder, *SMALL, "--suite", suite, "--json", "-")
    told = json.loads(result.stdout)
    assert (told["verdict"], told["drafter"], told["requests"]) == ("ok", "lookup", 1)
    verdicts = {check["check"]: check["verdict"] for check in told["checks"]}
    assert verdicts["drafter.weights"] == "not applicable"
    assert verdicts["decoding.tau"] == "ok"


def test_a_fault_ends_with_1_and_the_way_out(run, suite, tmp_path):
    folder = save_tiny(tmp_path / "tiny")
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'][-1]['text'] }}")
    result = run("doctor", "--target", folder, *SMALL, "--suite", suite)
    assert result.exit_code == 1, result.output
    assert "template cannot show the pictures" in " ".join(result.stdout.split())


def test_a_checkpoint_that_does_not_load_is_a_fault(run, tiny_folder, suite, tmp_path):
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_folder, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    result = run("doctor", "--target", folder, *SMALL, "--suite", suite, "--json", "-")
    assert result.exit_code == 1, result.output
    (check,) = json.loads(result.stdout)["checks"]
    assert (check["check"], check["verdict"]) == ("target.load", "fault")


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("--target", "/no/such/folder"), "there is no folder"),
        (("--drafter", "fovae"), "fovae"),
        (("--suite", "nowhere.jsonl"), "no suite nowhere.jsonl"),
        (("--limit", "0"), "limit must be at least 1"),
        (("--set", "grams=2", "--drafter", "lookup"), "grams"),
    ],
)
def test_bad_usage_ends_with_2(args, named, run, tiny_folder, suite):
    base = {"--target": tiny_folder, "--suite": suite}
    given = [word for pair in base.items() if pair[0] not in args for word in pair]
    result = run("doctor", *given, *args)
    assert result.exit_code == 2, result.output
    assert named in result.stderr
