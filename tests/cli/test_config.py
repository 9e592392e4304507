"""`--config FILE` and overrides: every option, by name, checked; unknown keys are errors."""

import json

import pytest

from varifocal.cli import app
from varifocal.cli._program import read_config
from varifocal.errors import BadOption

HINTS = {
    "sampling": {"temperature": float, "seed": int},
    "drafting": {"drafter": str, "set": list[str]},
    "output": {"stream": bool, "json": str | None},
}


def test_sections_and_bare_names_and_dashes_mean_the_same(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(
        "sampling: {seed: 3}\ndrafter: plain\nset: {n-gram: 2, deep: true}\nstream: no\n"
    )
    found = read_config(file, ["sampling.temperature=0.5"], HINTS)
    assert found.defaults == {
        "seed": "3",
        "drafter": "plain",
        "set": ["n-gram=2", "deep=true"],
        "stream": False,
        "temperature": "0.5",
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sampling: {sed: 3}", "sampling.sed; did you mean sampling.seed"),
        ("tempo: 3", "unknown key tempo"),
        ("sampling: 3", "section sampling"),
        ("seed: 1.5", "seed is 1.5"),
        ("seed: [1, 2]", "seed is"),
        ("drafter: 7", "drafter is 7"),
        ("seed: 3\nsampling: {seed: 4}", "gives seed twice"),
        ("seed: ${nothing}", "cannot be read"),
        ("a: [", "not YAML"),
        ("- a\n- b", "must map options"),
    ],
)
def test_bad_configuration_is_refused_by_name(tmp_path, text, named):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(BadOption, match=named.replace("$", r"\$")):
        read_config(file, [], HINTS)


def test_override_wins_over_the_file(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("sampling: {seed: 3}")
    assert read_config(file, ["sampling.seed=4"], HINTS).defaults == {"seed": "4"}


def test_missing_file_and_a_word_that_is_no_override_are_refused():
    with pytest.raises(BadOption, match="no configuration file"):
        read_config("/nowhere.yaml", [], HINTS)
    with pytest.raises(BadOption, match=r"section\.field=value"):
        read_config(None, ["seed"], HINTS)


def test_configured_run_equals_the_typed_one(ask, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(
        "ask: {prompt: 'What is it?'}\nsampling: {temperature: 1.0, seed: 7}\n"
        "drafting: {drafter: lookup, set: {nodes: 4}}\noutput: {stream: false, quiet: true}\n"
    )
    typed = ask("--prompt", "What is it?", "--temperature", "1", "--seed", "7", "--drafter",
                "lookup", "--set", "nodes=4", "--quiet")  # fmt: skip
    configured = ask("--config", file)
    assert configured.exit_code == 0, configured.stderr
    assert configured.stdout == typed.stdout
    changed = ask("--config", file, "sampling.seed=8", "--json", "-")
    assert json.loads(changed.stdout)["text"] + "\n" == ask("--config", file, "--seed", "8").stdout


def test_same_option_twice_is_refused(ask):
    result = ask("--prompt", "x", "--seed", "3", "sampling.seed=4")
    assert result.exit_code == 2
    assert "seed is given both" in result.stderr


def test_every_command_takes_a_configuration():
    import typer

    def commands(group):
        for command in group.commands.values():
            yield from commands(command) if hasattr(command, "commands") else [command]

    for command in commands(typer.main.get_command(app)):
        names = {parameter.name for parameter in command.params}
        assert {"config", "overrides", "json", "quiet", "debug"} <= names, command.name
        assert all(p.help for p in command.params), command.name
