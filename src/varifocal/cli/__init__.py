"""The command line, `varifocal COMMAND`: one file a command; files with _ are what they share."""

from typing import Annotated

import typer

from varifocal.cli import (
    demo,
    diffusion,
    diffusion_bench,
    diffusion_replay,
    diffusion_verify,
    sparse,
    sparse_bench,
    sparse_rates,
    sparse_simulate,
    suite,
)
from varifocal.cli._inputs import versions
from varifocal.cli._program import Command, DefaultGroup, Program, sectioned
from varifocal.cli.bench import bench
from varifocal.cli.convert import convert
from varifocal.cli.doctor import doctor
from varifocal.cli.drafters import drafters
from varifocal.cli.generate import generate
from varifocal.cli.record import record
from varifocal.cli.targets import targets
from varifocal.cli.train import train
from varifocal.cli.verify import verify

app = typer.Typer(
    name="varifocal",
    cls=Program,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)
for _command in (generate, verify, doctor, bench, record, train, convert, drafters, targets):
    app.command(cls=Command)(sectioned(_command))
demo_app = typer.Typer(
    cls=DefaultGroup,
    help="The show (no sub-command: `demo show`), and the embedded model that it runs on.",
)
for _part in (demo.show, demo.build, demo.build_draft, demo.score):
    demo_app.command(cls=Command)(sectioned(_part))
app.add_typer(demo_app, name="demo")
suite_app = typer.Typer(cls=Program, help="Suites of requests for bench and verify.")
suite_app.command("import", cls=Command)(sectioned(suite.import_layout))
suite_app.command("list", cls=Command)(sectioned(suite.list_layouts))
suite_app.command("check", cls=Command)(sectioned(suite.check))
app.add_typer(suite_app, name="suite")

sparse_app = typer.Typer(cls=Program, help="Dynamic sparse attention with PRR.")
for _act in (
    sparse.generate,
    sparse.verify,
    sparse_bench.bench,
    sparse_rates.rates,
    sparse_simulate.simulate,
):
    sparse_app.command(cls=Command)(sectioned(_act))
app.add_typer(sparse_app, name="sparse")

diffusion_app = typer.Typer(cls=Program, help="Diffusion language models: early exit by LATCH.")
for _deed in (
    diffusion.generate,
    diffusion_bench.bench,
    diffusion_verify.verify,
    diffusion_replay.record,
    diffusion_replay.replay,
    diffusion_bench.tune,
    diffusion.tasks,
    diffusion.formats,
):
    diffusion_app.command(cls=Command)(sectioned(_deed))
app.add_typer(diffusion_app, name="diffusion")


def _show_versions(is_asked: bool) -> bool:
    if is_asked:
        typer.echo(versions())
        raise typer.Exit
    return is_asked


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the versions of varifocal and what it uses.",
            callback=_show_versions,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Faster answers from vision-language models, with the text unchanged."""


def main() -> None:
    """Run the program; `varifocal.__main__` does so with an eye on Ctrl-C from the start."""
    app()
