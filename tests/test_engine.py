"""Loading by name: what is chosen where nothing is said, and what is refused."""

from inspect import unwrap

import pytest
import torch
from tiny import picture, save_tiny

from varifocal.drafters import drafter_names
from varifocal.engine import Engine, find_device, find_dtype, load, parse_options
from varifocal.errors import BadOption, BadRequest, UnsupportedTarget
from varifocal.request import ask


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("target"))


def test_engine_streams_what_it_generates_and_what_plain_decoding_says(folder):
    engine = load(folder, "lookup", dtype="float32", device="cpu", drafter_options={"nodes": 4})
    request = ask("What is it?", [picture()], max_new_tokens=12)
    stream = engine.stream(request)
    pieces = [decided.text for decided in stream]
    assert "".join(pieces) == stream.result().text == engine.generate(request).text
    assert engine.plain().generate(request).token_ids == stream.result().token_ids
    assert engine.cost is None  # a fixed number of nodes needs no measurement


def test_cost_is_measured_only_where_it_is_used(folder, monkeypatch):
    asked = []
    monkeypatch.setattr("varifocal.cost.cost_model", lambda t, d: asked.append(d.name))
    load(folder, "lookup", device="cpu")
    load(folder, "plain", device="cpu")
    load(folder, "lookup", device="cpu", calibrate=False)
    assert asked == ["lookup"]


def test_lookup_drafts_where_no_trained_drafter_is_shipped(folder):
    assert load(folder, calibrate=False).drafter.name == "lookup"


def test_typed_options_become_what_the_drafter_wants():
    found = parse_options("lookup", {"nodes": "12", "ngram": "2"})
    assert found == {"nodes": 12, "ngram": 2}
    assert parse_options("lookup", {"nodes": "auto"}) == {"nodes": "auto"}
    for pairs in ({"nodes": "many"}, {"ngram": "2.5"}, {"bogus": "1"}):
        with pytest.raises(BadOption, match=next(iter(pairs))):
            parse_options("lookup", pairs)


def test_a_yes_or_no_is_no_number_of_a_drafter(folder):
    assert parse_options("plain", {"fast": "true"}) == {"fast": True}
    for pairs in ({"nodes": "true"}, {"ngram": "false"}):
        with pytest.raises(BadOption, match=next(iter(pairs))):
            parse_options("lookup", pairs)
    for options in ({"nodes": True}, {"depth": False}):  # as from JSON or Python
        with pytest.raises(BadOption, match=f"{next(iter(options))} is no yes or no"):
            load(folder, "lookup", drafter_options=options, calibrate=False)


@pytest.mark.parametrize("wrong", ["a text", b"bytes", {"prompt": "a text"}])
def test_what_is_no_request_is_refused_by_name_and_not_taken_apart(folder, monkeypatch, wrong):
    engine = load(folder, "plain", calibrate=False)
    for name in ("generate", "batch", "answers"):  # as users have them: their types unchecked
        monkeypatch.setattr(Engine, name, unwrap(getattr(Engine, name)))
    for given in (engine.generate, engine.batch):
        with pytest.raises(BadRequest, match=r"wanted a Request or a list of them, got .*ask"):
            given(wrong)
    with pytest.raises(BadRequest, match=r"wanted a Request, as varifocal\.ask makes it"):
        engine.answers(wrong, 2)


@pytest.mark.parametrize("name", drafter_names())
def test_settings_that_all_drafters_have_can_be_typed(name):
    assert parse_options(name, {"depth": "3", "max_nodes": "8"}) == {"depth": 3, "max_nodes": 8}


def test_dtypes_and_devices_are_found_by_name():
    assert find_dtype("auto") is find_dtype(None) is None
    assert find_dtype("bfloat16") == find_dtype(torch.bfloat16) == torch.bfloat16
    assert find_device("cpu") == torch.device("cpu")
    for find, name in ((find_dtype, "int8"), (find_device, "toaster"), (find_device, "meta")):
        with pytest.raises(BadOption, match=name):
            find(name)


def test_damaged_weights_and_impossible_threads_are_refused(folder, tmp_path):
    for file in folder.iterdir():
        if file.name != "model.safetensors":
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(UnsupportedTarget, match="copy them again"):
        load(tmp_path, "plain")
    for threads in (0, 99999999999):
        with pytest.raises(BadOption, match="threads"):
            load(folder, "plain", threads=threads)
