"""A saved tiny target, a picture, and the program run in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import picture, save_tiny
from typer.testing import CliRunner, Result

from varifocal.cli import app

Run = Callable[..., Result]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that loads in a moment. Not to be changed."""
    return save_tiny(tmp_path_factory.mktemp("targets") / "tiny")


@pytest.fixture(scope="session")
def picture_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small PNG."""
    path = tmp_path_factory.mktemp("pictures") / "noise.png"
    picture().save(path)
    return path


@pytest.fixture
def run() -> Run:
    """`varifocal ...`, with the exit code, standard output and standard error."""

    def invoke(*args: object, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(app, [str(a) for a in args], input=stdin)

    return invoke


@pytest.fixture
def ask(run: Run, tiny_folder: Path, picture_file: Path) -> Run:
    """`varifocal generate` on the tiny target, in 8 tokens unless told otherwise."""

    def invoke(*args: object, stdin: bytes | None = None, image: bool = True) -> Result:
        given = ["--image", picture_file] if image else []
        common = ["--target", tiny_folder, "--max-new-tokens", 8, "--dtype", "float32"]
        return run("generate", *common, *given, *args, stdin=stdin)

    return invoke
