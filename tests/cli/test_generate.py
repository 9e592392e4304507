"""`varifocal generate`: what comes out, and that bad input ends in one message and exit code 2."""

import base64
import io
import json
from pathlib import Path

import pytest

from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output
from varifocal.plan import CostModel

COST = CostModel(verify=(0.1, 0.1), step=0.01, start=0.01, other=0.01)
PLAIN = ("--drafter", "plain")
LOOKUP = ("--drafter", "lookup", "--set", "nodes=4")


def test_json_on_standard_output_is_alone_and_complete(ask):
    result = ask("--prompt", "What is it?", *LOOKUP, "--json", "-")
    assert result.exit_code == 0
    made = json.loads(result.stdout)
    assert set(made) == {
        "text", "token_ids", "finish_reason", "usage", "drafter", "target", "spec", "seconds"
    }  # fmt: skip
    assert made["usage"]["completion_tokens"] == len(made["token_ids"])
    assert made["usage"]["image_tokens"] > 0
    assert made["drafter"] == "lookup"
    assert made["finish_reason"] in ("eos", "length", "stop")


def test_json_without_a_value_means_standard_output(ask):
    assert json.loads(ask("--prompt", "x", *PLAIN, "--json").stdout)["drafter"] == "plain"
    result = ask("--prompt", "x", *PLAIN, "--json", "sampling.seed=3")
    assert json.loads(result.stdout)["drafter"] == "plain"


@pytest.mark.parametrize(
    ("encoding", "written"), [("ascii", rb"\u20ac"), ("utf8", "€".encode()), ("cp1252", rb"\u20ac")]
)
def test_json_keeps_every_letter_on_any_standard_output(monkeypatch, encoding, written):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    monkeypatch.setattr("sys.stdout", stdout)
    Output(OutputOptions(json="-")).write({"text": "5 €, 日本"})
    raw = stdout.buffer.getvalue()
    assert written in raw
    assert json.loads(raw.decode(encoding)) == {"text": "5 €, 日本"}


def test_quiet_hides_the_warning_that_costs_are_not_stored(ask, monkeypatch, tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr("varifocal.cost.measure", lambda target, drafter: COST)
    given = ("--prompt", "x", "--drafter", "lookup")
    ask(*given, "--quiet")
    assert caplog.records == []
    ask(*given)
    (record,) = caplog.records
    assert "not stored" in record.getMessage()
    assert "XDG_CACHE_HOME" in record.getMessage()


def test_text_is_the_same_streamed_or_not_and_in_the_file(ask, tmp_path):
    file = tmp_path / "out.json"
    streamed = ask("--prompt", "x", *PLAIN, "--json", file)
    whole = ask("--prompt", "x", *PLAIN, "--no-stream", "--quiet")
    assert streamed.stdout == whole.stdout == json.loads(file.read_text())["text"] + "\n"
    assert whole.stderr == ""


@pytest.mark.parametrize("temperature", ["0", "1.0"])
def test_drafter_does_not_change_the_text(ask, temperature):
    options = ("--prompt", "x", "--temperature", temperature, "--seed", "5", "--quiet")
    assert ask(*options, *LOOKUP).stdout == ask(*options, *PLAIN).stdout


def test_picture_can_come_from_standard_input(ask, picture_file):
    piped = ask(
        "--image", "-", *PLAIN, "--prompt", "x", image=False, stdin=picture_file.read_bytes()
    )
    assert piped.exit_code == 0, piped.stderr
    assert piped.stdout == ask(*PLAIN, "--prompt", "x").stdout


def test_order_of_pictures_is_kept_and_typed_placeholders_stay_text(ask, picture_file):
    result = ask("--image", picture_file, *PLAIN, "--prompt", "see <image> there", "--json", "-")
    alone = ask(*PLAIN, "--prompt", "see <image> there", "--json", "-")
    two, one = (json.loads(r.stdout)["usage"]["image_tokens"] for r in (result, alone))
    assert two == 2 * one


def _messages(folder: Path, content: object) -> Path:
    path = folder / "chat.json"
    path.write_text(json.dumps([{"role": "user", "content": content}]))
    return path


def test_messages_say_the_same_as_prompt_and_image(ask, tmp_path, picture_file):
    url = f"data:image/png;base64,{base64.b64encode(picture_file.read_bytes()).decode()}"
    text = {"type": "text", "text": "What is it?"}
    typed = ask("--prompt", "What is it?", *PLAIN).stdout
    for source in (url, str(picture_file), f"file://{picture_file}"):
        picture = {"type": "image_url", "image_url": {"url": source}}
        file = _messages(tmp_path, [picture, text])
        result = ask("--messages", file, *PLAIN, image=False)
        assert result.stdout == typed, result.stderr


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([{"type": "video"}], "messages[0].content[0].type"),
        ([{"type": "text"}], "messages[0].content[0] lacks text"),
        ([{"type": "text", "text": "x", "size": 3}], "unknown field size"),
        ([{"type": "image_url", "image_url": {"url": "http://a/b.png"}}], "Nothing is fetched"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,@@"}}], "base64"),
        ([{"type": "image_url", "image_url": {"url": "x", "detail": "high"}}], "detail"),
        ([{"type": "image"}], "without a path"),
        (7, "messages[0].content must be"),
        ("\ud800", "UTF-8"),
        ("", "prompt is empty"),
    ],
)
def test_bad_field_of_messages_is_named(ask, tmp_path, content, named):
    result = ask("--messages", _messages(tmp_path, content), *PLAIN, image=False)
    assert result.exit_code == 2
    assert named in result.stderr


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--prompt", ""], "prompt is empty"),
        (["--prompt", "   "], "prompt is empty"),
        ([], "--prompt"),
        (["--prompt", "x", "--messages", "y.json"], "--messages holds the whole conversation"),
        (["--prompt", "x", "--drafter", "nope"], "no drafter is called 'nope'"),
        (["--prompt", "x", "--drafter", "lookup", "--set", "bogus=1"], "no option bogus"),
        (["--prompt", "x", "--drafter", "lookup", "--set", "nodes=many"], "nodes"),
        (["--prompt", "x", "--drafter", "lookup", "--set", "nodes"], "KEY=VALUE"),
        (["--prompt", "x", "--drafter", "lookup", "--set", "ngram=0"], "ngram"),
        (["--prompt", "x", "--temperature", "-1"], "temperature"),
        (["--prompt", "x", "--temperature", "nan"], "temperature"),
        (["--prompt", "x", "--temperature", "warm"], "--temperature"),
        (["--prompt", "x", "--top-p", "0"], "top_p"),
        (["--prompt", "x", "--top-k", "-2"], "top_k"),
        (["--prompt", "x", "--seed", "-1"], "seed"),
        (["--prompt", "x", "--min-p", "1.5"], "min_p"),
        (["--prompt", "x", "--min-p", "nan"], "min_p"),
        (["--prompt", "x", "--repetition-penalty", "0"], "repetition_penalty"),
        (["--prompt", "x", "--presence-penalty", "3"], "presence_penalty"),
        (["--prompt", "x", "--frequency-penalty", "-3"], "frequency_penalty"),
        (["--prompt", "x", "--logit-bias", "5"], "42=-5"),
        (["--prompt", "x", "--logit-bias", "the=5"], "42=-5"),
        (["--prompt", "x", "--logit-bias", "5=nan"], "logit_bias"),
        (["--prompt", "x", "--logit-bias", "5=1", "--logit-bias", "5=2"], "token 5 twice"),
        (["--prompt", "x", "--logit-bias", "99999=1", *PLAIN], "names the token 99999"),
        (["--prompt", "x", "--bad-word", " "], "bad_words"),
        (["--prompt", "x", "--min-new-tokens", "9"], "min_new_tokens is 9"),
        (["--prompt", "x", "--logprobs", "-1"], "logprobs"),
        (["--prompt", "x", "--logprobs", "99999", *PLAIN], "99999 best"),
        (["--prompt", "x", "--n", "0"], "n must be a count"),
        (["--prompt", "x", "--stop", ""], "stop text"),
        (["--prompt", "x", "--max-new-tokens", "0"], "max_new_tokens"),
        (["--prompt", "x", "--max-new-tokens", "99999", *PLAIN], "ask for at most"),
        (["--prompt", "x", "--dtype", "int8"], "--dtype"),
        (["--prompt", "x", "--device", "toaster"], "toaster"),
        (["--prompt", "x", "--device", "meta"], "meta"),
        (["--prompt", "x", "--threads", "0"], "threads"),
        (["--prompt", "x", "--threads", "99999999999"], "threads"),
        (["--prompt", "x", "--frobnicate"], "--frobnicate"),
        (["--prompt", "x", "--json", "/nowhere/at/all.json"], "/nowhere/at"),
        (["--prompt", "x", "--json", "/"], "folder"),
        (["--prompt", "x", "--image", "missing.png"], "missing.png: wanted a picture"),
        (["--prompt", "x", "--image", "/"], "got a folder"),
        (["--prompt", "x", "--image", __file__], "plain text"),
        (["--prompt", "x", "--image", "-", "--image", "-"], "only once"),
        (["--prompt", "x", "--image", "-"], "zero bytes"),
        (["--prompt", "x", "--image", "https://a.b/c.png"], "got an address"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(ask, args, named):
    result = ask(*args)
    assert result.exit_code == 2
    assert named in result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    assert "fault of varifocal" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("config.json", None, "without config.json"),
        ("config.json", b"{", "cannot be read as JSON"),
        ("config.json", b'{"model_type": "bert"}', "varifocal knows"),
        ("model.safetensors", b"12345678901", "damaged"),
        ("model.safetensors", None, "cannot be read"),
        ("tokenizer.json", b"{", "cannot be read"),
    ],
)
def test_damaged_checkpoint_is_named(run, tiny_folder, tmp_path, name, content, named):
    folder = tmp_path / "target"
    folder.mkdir()
    for file in tiny_folder.iterdir():
        if file.name != name:
            (folder / file.name).symlink_to(file)
    if content is not None:
        (folder / name).write_bytes(content)
    result = run("generate", "--target", folder, "--prompt", "x", *PLAIN)
    assert result.exit_code == 2
    assert named in result.stderr
    assert "fault of varifocal" not in result.stderr


def test_unknown_target_is_named(run):
    result = run("generate", "--target", "/nowhere/model", "--prompt", "x")
    assert result.exit_code == 2
    assert "/nowhere/model" in result.stderr
    assert "fault of varifocal" not in result.stderr


def test_debug_shows_where_an_error_comes_from(ask):
    assert "Traceback" in ask("--prompt", "", "--debug").stderr


def test_default_drafter_says_that_none_is_shipped(ask, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = ask("--prompt", "x", "--set", "nodes=4")
    assert "drafting by lookup" in result.stderr


ALL_SETTINGS = (
    *("--min-p", "0.01", "--repetition-penalty", "1.3", "--presence-penalty", "0.5"),
    *("--frequency-penalty", "0.5", "--logit-bias", "70=2", "--logit-bias", "71=-3"),
    *("--bad-word", "the", "--min-new-tokens", "3"),
)


@pytest.mark.parametrize("temperature", ["0", "1.0"])
def test_the_answer_with_all_settings_does_not_depend_on_the_drafter(ask, temperature):
    options = ("--prompt", "x", "--temperature", temperature, *ALL_SETTINGS, "--logprobs", "2")
    plain, drafted = (
        json.loads(ask(*options, *drafter, "--json", "-").stdout) for drafter in (PLAIN, LOOKUP)
    )
    assert plain["token_ids"] == drafted["token_ids"]
    assert plain.keys() == drafted.keys()
    assert [e["token_id"] for e in plain["logprobs"]] == plain["token_ids"]
    assert all(len(e["best"]) == 2 for e in drafted["logprobs"])


def test_settings_come_from_a_configuration_file_too(ask, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(
        "sampling:\n  min_p: 0.01\n  repetition_penalty: 1.3\n  presence-penalty: 0.5\n"
        "  frequency_penalty: 0.5\n  logit_bias: {70: 2, 71: -3}\n  bad_word: [the]\n"
        "  min_new_tokens: 3\nanswers:\n  n: 1\n  logprobs: 0\n"
    )
    options = ("--prompt", "x", *PLAIN, "--json", "-")
    typed = json.loads(ask(*options, *ALL_SETTINGS, "--n", 1, "--logprobs", 0).stdout)
    read = json.loads(ask(*options, "--config", file).stdout)
    assert read["token_ids"] == typed["token_ids"]
    assert read["logprobs"] == typed["logprobs"]
    assert len(read["answers"]) == 1


def test_settings_come_from_overrides_too(ask):
    options = ("--prompt", "x", *PLAIN, "--json", "-")
    typed = json.loads(ask(*options, *ALL_SETTINGS).stdout)
    given = (
        *("sampling.min_p=0.01", "sampling.repetition_penalty=1.3"),
        *("sampling.presence-penalty=0.5", "sampling.frequency_penalty=0.5"),
        *("sampling.logit_bias={70: 2, 71: -3}", "sampling.bad_word=[the]"),
        "sampling.min_new_tokens=3",
    )
    read = ask(*options, *given)
    assert read.exit_code == 0, read.stderr
    assert json.loads(read.stdout)["token_ids"] == typed["token_ids"]


@pytest.mark.parametrize(
    "text", ["answers: {n: true}", "answers: {logprobs: yes}", "limits: {max_new_tokens: true}"]
)
def test_a_yes_or_no_in_a_numbers_place_is_refused_by_name(run, tmp_path, text):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    result = run("generate", "--prompt", "x", "--config", file)
    assert result.exit_code == 2
    assert f"{text.split('{')[1].split(':')[0]} is true, a yes or no" in result.stderr


def test_several_answers_are_those_of_the_following_seeds(ask):
    options = ("--prompt", "x", "--temperature", "1.0", *PLAIN, "--json", "-")
    made = json.loads(ask(*options, "--seed", 4, "--n", 3).stdout)
    assert made["token_ids"] == made["answers"][0]["token_ids"]
    assert "answers" not in json.loads(ask(*options).stdout)
    for number, answer in enumerate(made["answers"]):
        assert (
            answer["token_ids"]
            == json.loads(ask(*options, "--seed", 4 + number).stdout)["token_ids"]
        )


def test_several_answers_are_numbered_and_log_probs_follow_the_text(ask):
    result = ask("--prompt", "x", *PLAIN, "--n", 2, "--logprobs", 1, "--max-new-tokens", 2)
    assert result.stdout.startswith("[1]\n") and "\n[2]\n" in result.stdout
    assert sum(line.startswith("-") and " | " in line for line in result.stdout.splitlines()) == 4
    assert "all 2 answers are the same" in result.stderr


def test_settings_without_effect_at_temperature_0_are_named(ask):
    result = ask("--prompt", "x", *PLAIN, "--top-k", 5, "--min-p", 0.1, "--top-p", 0.5)
    assert "top-k, top-p and min-p change nothing" in result.stderr
    assert "changes nothing" in ask("--prompt", "x", *PLAIN, "--min-p", 0.1).stderr
    assert "nothing" not in ask("--prompt", "x", *PLAIN, "--repetition-penalty", 1.2).stderr


def test_verify_compares_greedy_texts_with_the_penalties(run, tiny_folder, picture_file):
    common = ("--target", tiny_folder, "--dtype", "float32", "--max-new-tokens", 8, *LOOKUP)
    typed = ("--prompt", "x", "--image", picture_file, *ALL_SETTINGS)
    result = run("verify", *common, *typed, "--json", "-")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["identical"] == 2
