"""Hub ids without a network: answered at once, from the copy fetched before if there is one."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import tiny
from huggingface_hub import constants

from varifocal.errors import UnsupportedTarget
from varifocal.targets import load_target
from varifocal.targets._fetched import place_of

NAME = "me/model"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that nobody answers for, with an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the port of `discard`

    def waited(seconds):
        raise AssertionError(f"waited for {seconds} s")

    monkeypatch.setattr(time, "sleep", waited)
    return tmp_path / "hub"


def fetch(hub):
    """Put a checkpoint where the hub's own library keeps what it fetched."""
    folder = hub / "models--me--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    return tiny.save_tiny(folder / "snapshots" / ("0" * 40))


def test_a_hub_id_without_network_and_copy_is_refused_at_once(hub):
    with pytest.raises(UnsupportedTarget) as refused:
        load_target(NAME)
    said = str(refused.value)
    assert "'me/model' is no folder here, was not fetched before" in said
    assert "the hub cannot be reached" in said and "go online once" in said


def test_a_hub_id_without_network_is_loaded_from_its_copy(hub):
    copy = fetch(hub)
    assert place_of(NAME) == str(copy)
    target = load_target(NAME)
    assert target.name == NAME and target.fingerprint == tiny.tiny_target().fingerprint


def test_a_copy_that_lacks_files_is_refused_at_once_by_their_names(hub):
    (fetch(hub) / "model.safetensors").unlink()
    with pytest.raises(UnsupportedTarget, match=r"'me/model' cannot be read.*model\.safetensors"):
        load_target(NAME)


def test_the_wish_to_stay_offline_is_respected(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UnsupportedTarget, match="HF_HUB_OFFLINE"):
        place_of(NAME)
    copy = fetch(hub)
    assert place_of(NAME) == str(copy)


@pytest.fixture
def answers(hub, monkeypatch):
    """What a hub that can be reached answers: status and body."""
    told = [200, json.dumps({"id": NAME, "sha": "0" * 40})]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(told[0])
            self.end_headers()
            self.wfile.write(told[1].encode())

        def log_message(self, *args):
            """Not on the tests' output."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield told
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, json.dumps({"id": NAME, "sha": "1" * 40})),
        (401, "{}"),
        (404, "{}"),
        (503, ""),
        (200, "<html>a mirror that only has files</html>"),
    ],
)
def test_a_hub_that_answers_is_asked_for_its_files_whatever_it_says(hub, answers, status, body):
    fetch(hub)  # an older copy: what is newer is seen by those who ask for files
    answers[:] = status, body
    assert place_of(NAME) == NAME


def test_folders_are_taken_as_they_are_and_paths_are_no_hub_ids(hub, tmp_path):
    assert place_of(str(tmp_path)) == str(tmp_path)
    for path in ("./none", "/none", "~/none"):
        with pytest.raises(UnsupportedTarget, match=f"no folder {path}"):
            place_of(path)


def test_what_can_be_no_hub_id_is_said_to_be_none(hub):
    for name in ("a b", "a/b/c"):
        with pytest.raises(UnsupportedTarget, match=rf"'{name}' is neither a folder.*Repo id"):
            load_target(name)
