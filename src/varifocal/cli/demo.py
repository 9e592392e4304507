"""`varifocal demo`: the show; and `demo build`, `demo score` for the model that it runs on."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from varifocal.cli._inputs import engine_from, names, quiet_transformers, versions
from varifocal.cli._options import DraftingOptions, OutputOptions, TargetOptions, Threads
from varifocal.cli._output import Output, write_whole
from varifocal.engine import Engine, set_threads
from varifocal.errors import BadOption
from varifocal.result import Round
from varifocal.targets import demo_folder

if TYPE_CHECKING:
    from varifocal.demo.show import Act


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """What is shown."""

    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where pictures and page are written.")
    ] = Path("varifocal-demo")
    families: Annotated[
        str, typer.Option("--families", metavar="A,B", help="Kinds of pictures.")
    ] = "chart,document,text"
    number: Annotated[int, typer.Option("--number", help="Which test picture of each family.")] = 0
    repeats: Annotated[
        int, typer.Option("--repeats", help="Timed runs of each question; the median counts.")
    ] = 3


def show(
    show: ShowOptions, model: TargetOptions, drafting: DraftingOptions, output: OutputOptions
) -> None:
    """Draw pictures, ask about them plainly and with the drafter, compare texts and speeds.

    This is what `varifocal demo` does. It writes a page in which you can watch the race and see
    where the drafter looked. Exit code 1 if a text differs.
    """
    from varifocal.demo.page import render
    from varifocal.demo.show import perform
    from varifocal.demo.world import FAMILIES
    from varifocal.evaluation.suites import demo_samples

    out = Output(output)
    families = names(show.families)
    if not families or (unknown := [f for f in families if f not in FAMILIES]):
        raise BadOption(
            f"the demo has no family {', '.join(unknown) if families else ''!r}; "
            f"it has {', '.join(FAMILIES)}"
        )
    if show.repeats < 1 or show.number < 0:
        raise BadOption(
            f"repeats must be at least 1 and number at least 0, got {show.repeats}, {show.number}"
        )
    show.out.mkdir(parents=True, exist_ok=True)
    engine = engine_from(model, drafting, out)
    acts = []
    for family in families:
        (sample,) = demo_samples(family, 1, start=show.number)
        path = show.out / f"{sample.id}.png"
        sample.image.save(path)
        out.line(f"{family}: {path}")
        out.line(f"  question  {sample.turns[0].question}")
        stage = _Stage(out, engine.drafter.name)
        with stage.open():
            act = perform(
                engine,
                sample,
                repeats=show.repeats,
                plain_round=stage.plain_round,
                drafted_round=stage.drafted_round,
                timing=stage.end,
            )
        _report(act, out)
        acts.append(act)
    page = show.out / "index.html"
    write_whole(page, render(acts, _facts(engine, model)))
    out.line(f"Open {page} to see where the drafter looked and to watch both run.")
    out.write(_result(acts, engine, page))
    if not all(act.is_good for act in acts):
        raise typer.Exit(1)


class _Stage:
    """The two answers as they come: moving on a terminal, else line by line."""

    def __init__(self, out: Output, drafter: str) -> None:
        self._out, self._names = out, ("plain", drafter)
        self._texts = (Text(), Text())
        self._live = Live(self._view(), refresh_per_second=20) if out.is_live else None
        self._row = -1

    @contextmanager
    def open(self) -> Iterator[None]:
        """While answers may come."""
        if self._live is None:
            yield
            return
        with self._live:
            yield

    def plain_round(self, decided: Round) -> None:
        """A token of the plain answer."""
        self._add(0, decided)

    def drafted_round(self, decided: Round) -> None:
        """Tokens of the drafted answer."""
        self._add(1, decided)

    def end(self) -> None:
        """Both answers are there; what follows is only timed."""
        if self._live is not None:
            self._live.update(self._view(), refresh=True)
        else:
            self._out.line()

    def _add(self, row: int, decided: Round) -> None:
        if self._live is not None:
            self._texts[row].append(decided.text, style="green" if decided.num_accepted else "")
            self._live.update(self._view())
            return
        if row != self._row:
            self._out.piece(("\n" if row else "") + f"  {self._names[row]:<9} ")
            self._row = row
        self._out.piece(decided.text)

    def _view(self) -> Table:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, text in zip(self._names, self._texts, strict=True):
            grid.add_row(f"  {name:<9}", text)
        return grid


def _report(act: "Act", out: Output) -> None:
    """Verdict and speeds."""
    if act.mismatch is None:
        verdict, style = "identical", "green"
    elif act.mismatch.near_tie:
        verdict, style = f"the same up to a near-tie at token {act.mismatch.position}", "yellow"
    else:
        verdict, style = f"DIFFERENT from token {act.mismatch.position} on", "bold red"
    out.line(f"  verdict   {verdict}", style=style)
    drafted = act.drafted
    out.line(
        f"  tau       {drafted.mean_acceptance_length:.2f} tokens a target forward "
        f"({len(drafted.token_ids)} tokens, {drafted.num_spec_steps} forwards after the prefill)"
    )
    for cpu, name in ((False, "elapsed"), (True, "CPU")):
        plain, fast = (act.speed(drafted=d, cpu=cpu) for d in (False, True))
        out.line(
            f"  {name:<9} plain {plain:.0f} tokens/s, {drafted.drafter} {fast:.0f} tokens/s: "
            f"{act.speedup(cpu=cpu):.2f} times as fast"
        )
    if drafted.fallback:
        out.line(f"  note      {drafted.fallback}")
    out.line()


def _facts(engine: Engine, model: TargetOptions) -> dict[str, str]:
    """The page's small print."""
    return {
        "Target": f"{engine.target.name}, {_dtype(engine)}",
        "Drafter": engine.drafter.name,
        "Device": f"{engine.target.device}, {torch.get_num_threads()} threads",
        "Versions": versions().replace("\n", ", "),
    }


def _dtype(engine: Engine) -> str:
    return str(engine.target.dtype).removeprefix("torch.")


def _result(acts: "Sequence[Act]", engine: Engine, page: Path) -> dict[str, Any]:
    """The JSON of the show."""
    return {
        "target": engine.target.name,
        "drafter": engine.drafter.name,
        "dtype": _dtype(engine),
        "page": str(page),
        "examples": [
            {
                "id": act.sample.id,
                "family": act.sample.family,
                "question": act.sample.turns[0].question,
                "answer": act.drafted.text,
                "identical": act.mismatch is None,
                "near_tie": act.mismatch is not None and act.mismatch.near_tie,
                "tau": act.drafted.mean_acceptance_length,
                "plain_tokens_per_second": act.speed(drafted=False),
                "drafted_tokens_per_second": act.speed(drafted=True),
                "wall_speedup": act.speedup(),
                "cpu_speedup": act.speedup(cpu=True),
            }
            for act in acts
        ],
    }


_Run = Annotated[
    Path, typer.Option("--run", metavar="DIR", help="Checkpoints and logs; resumes there.")
]
_Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the finished model.")]
_TrainingThreads = Annotated[int, typer.Option("--threads", help="CPU threads.")]
_ScoreItems = Annotated[
    int, typer.Option("--score-items", help="Test pictures a family to score on.")
]
_Seed = Annotated[int, typer.Option("--seed", help="Of weights and pictures.")]


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What is trained."""

    run: _Run = Path("runs/demo")
    out: _Out = Path("runs/demo/target")
    start: Annotated[
        Path | None,
        typer.Option("--start", metavar="DIR", help="Train on from this exported model."),
    ] = None
    tower_seconds: Annotated[
        float, typer.Option("--tower-seconds", help="CPU seconds for the vision tower.")
    ] = 1500.0
    shallow_seconds: Annotated[
        float, typer.Option("--shallow-seconds", help="CPU seconds with half of the layers.")
    ] = 4500.0
    deep_seconds: Annotated[
        float, typer.Option("--deep-seconds", help="CPU seconds with all layers.")
    ] = 5000.0
    deep_rate: Annotated[
        float,
        typer.Option("--deep-rate", help="Highest learning rate of that; less from --start on."),
    ] = 2e-3
    again: Annotated[
        str, typer.Option("--again", metavar="A,B", help="Families drawn twice as often in that.")
    ] = "yesno,spatial,diagram,sums"
    threads: _TrainingThreads = 2
    score_items: _ScoreItems = 64
    seed: _Seed = 0


def build(build: BuildOptions, output: OutputOptions) -> None:
    """Train the embedded model from nothing: hours on two CPU cores.

    It is written to --out; nothing that is installed changes. Ctrl-C is fine: the same command
    goes on where it was.
    """
    from varifocal.demo.build import BuildPlan
    from varifocal.demo.build import build as train
    from varifocal.demo.world import FAMILIES

    out = Output(output)
    plan = asdict(build)
    run, folder, start = plan.pop("run"), plan.pop("out"), plan.pop("start")
    again = tuple(names(plan.pop("again")))
    if unknown := [family for family in again if family not in FAMILIES]:
        raise BadOption(f"again: no family {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    for name, value in plan.items():
        if name != "seed" and not value > 0:
            raise BadOption(f"{name} must be positive, got {value}")
    _begin(build.threads, output)
    recipe = train(run, folder, BuildPlan(**plan, again=again), start=start)
    _end(recipe, folder, out)


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """What is trained."""

    run: _Run = Path("runs/draft-model")
    out: _Out = Path("runs/draft-model/model")
    target: Annotated[
        str, typer.Option("--target", metavar="PATH|demo", help="The model it will draft for.")
    ] = "demo"
    seconds: Annotated[float, typer.Option("--seconds", help="CPU seconds of training.")] = 2200.0
    rate: Annotated[float, typer.Option("--rate", help="Highest learning rate.")] = 3e-3
    blind: Annotated[
        float, typer.Option("--blind", help="Share of lessons without their picture.")
    ] = 0.3
    threads: _TrainingThreads = 1
    score_items: _ScoreItems = 64
    seed: _Seed = 0


def build_draft(build: DraftOptions, output: OutputOptions) -> None:
    """Train the small model with which `ensemble` drafts for the embedded one: about 40 minutes.

    It is written to --out; nothing that is installed changes. Ctrl-C is fine: the same command
    goes on where it was.
    """
    from varifocal.demo.draft_model import DraftPlan, build_draft_model

    out = Output(output)
    plan = asdict(build)
    run, folder, name = plan.pop("run"), plan.pop("out"), plan.pop("target")
    for option in ("seconds", "rate", "threads", "score_items"):
        if not plan[option] > 0:
            raise BadOption(f"{option} must be positive, got {plan[option]}")
    if not 0 <= build.blind < 1:
        raise BadOption(f"blind must be from 0 to below 1, got {build.blind}")
    target = demo_folder() if name == "demo" else Path(name)
    if not (target / "RECIPE.json").is_file():
        raise BadOption(f"{target} is no folder that `varifocal demo build` wrote: no RECIPE.json")
    _begin(build.threads, output)
    run.mkdir(parents=True, exist_ok=True)
    recipe = build_draft_model(run, target, folder, DraftPlan(**plan))
    _end(recipe, folder, out)


def _begin(threads: int, output: OutputOptions) -> None:
    """Threads of the training, and its log unless all is quiet."""
    set_threads(threads)
    if not output.quiet:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")


def _end(recipe: dict[str, Any], folder: Path, out: Output) -> None:
    """Where the trained model is, and how it scores."""
    out.line(f"the model is in {folder}: mean exact {recipe['scores']['mean_exact']:.3f}")
    out.write(recipe)


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """What is scored."""

    target: Annotated[
        str, typer.Option("--target", metavar="PATH|demo", help="The model's folder.")
    ] = "demo"
    limit: Annotated[int, typer.Option("--limit", help="Test pictures a family.")] = 32
    threads: Threads = None


def score(score: ScoreOptions, output: OutputOptions) -> None:
    """Score the embedded model on pictures it never saw.

    exact: the share of facts read correctly; shuffled: with another picture, what guessing gets.
    """
    from varifocal.demo.score import score as score_model

    out = Output(output)
    if score.limit < 2:
        raise BadOption(f"limit must be at least 2 pictures a family, got {score.limit}")
    if score.threads is not None:
        set_threads(score.threads)
    quiet_transformers()
    folder = demo_folder() if score.target == "demo" else Path(score.target)
    if not (folder / "config.json").is_file():
        raise BadOption(f"{folder} is no folder with a model: it has no config.json")
    with out.busy("scoring"):
        found = score_model(folder, limit=score.limit)
    out.write(found.to_json())
    table = Table("family", "exact", "shuffled", "token accuracy", "pictures")
    for row in found.families:
        shares = (f"{v:.3f}" for v in (row.exact, row.exact_shuffled, row.token_accuracy))
        table.add_row(row.family, *shares, str(row.items))
    table.add_row("mean", f"{found.mean_exact:.3f}", f"{found.mean_exact_shuffled:.3f}")
    out.table(table)
