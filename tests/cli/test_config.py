"""`--config FILE` and overrides: every option, by name, checked; unknown keys are errors."""

import json

import pytest

from varifocal.cli import app
from varifocal.cli._config import read_config
from varifocal.errors import BadOption

HINTS = {
    "sampling": {"temperature": float, "seed": int},
    "drafting": {"drafter": str, "set": list[str]},
    "output": {"stream": bool, "json": str | None},
    "limits": {"stop": list[str], "max_new_tokens": int | None, "bias": list[str] | None},
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


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("limits.stop=is", ["is"]),
        ("limits.stop=[is]", ["is"]),
        ("limits.stop=[is, 'a, b', 7, yes, 007]", ["is", "a, b", "7", "yes", "007"]),
        ("limits.stop='[is]'", ["[is]"]),
        ("limits.stop=7", ["7"]),
        ("limits.stop=Question: ", ["Question: "]),
        ("limits.bias={42: -5, 7: 1.5}", ["42=-5", "7=1.5"]),
        ("limits.bias.42=-5", ["42=-5"]),
        ("bias=[42=-5]", ["42=-5"]),
        ("set={nodes: 4, sizes: [1, 2]}", ["nodes=4", "sizes=[1, 2]"]),
        ("set.sizes=[1, 2]", ["sizes=[1, 2]"]),
        ("drafting.drafter=7", "7"),
        ("drafting.drafter=yes", "yes"),
        ("drafting.drafter=0x10", "0x10"),
        ("drafting.drafter='plain'", "plain"),
        ('drafting.drafter="What?" he asked', '"What?" he asked'),
        ("drafting.drafter=[INST] what", "[INST] what"),
        ("drafting.drafter=what is # this: yes", "what is # this: yes"),
        ("seed=7", "7"),
        ("stream=no", False),
    ],
)
def test_an_override_is_read_as_the_options_own_type_reads_it(override, read):
    (found,) = read_config(None, [override], HINTS).defaults.values()
    assert found == read


def test_an_override_says_what_the_same_yaml_says(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("limits: {stop: [is, was], bias: {42: -5}}\nset: {nodes: 4, deep: true}\n")
    typed = ["limits.stop=[is, was]", "limits.bias={42: -5}", "set={nodes: 4, deep: true}"]
    assert read_config(None, typed, HINTS).defaults == read_config(file, [], HINTS).defaults
    other = ["limits.stop=[on]", "limits.bias=[7=1]", "set=[nodes=9]"]
    found = read_config(file, other, HINTS).defaults
    assert found == {"stop": ["on"], "bias": ["7=1"], "set": ["nodes=9"]}
    assert "stop" not in read_config(file, ["limits.stop=null"], HINTS).defaults


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("limits.stop=[is", "limits.stop=.* is not YAML"),
        ("seed=[1]", "seed is"),
        ("seed=", "seed is ''"),
        ("seed.low=1", "seed is"),
    ],
)
def test_an_override_that_cannot_be_read_is_refused_by_name(override, named):
    with pytest.raises(BadOption, match=named):
        read_config(None, [override], HINTS)


@pytest.mark.parametrize("text", ["seed: true", "max_new_tokens: yes", "temperature: false"])
def test_a_yes_or_no_is_no_number(tmp_path, text):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(BadOption, match=rf"{text.split(':')[0]} is (true|false).*wants a number"):
        read_config(file, [], HINTS)


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
