"""`varifocal record`: what a target says and thinks, kept on disk to train drafters on."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from varifocal.cli._inputs import load_target_from, names
from varifocal.cli._options import OutputOptions, TargetOptions
from varifocal.cli._output import Output
from varifocal.errors import BadArtifact, BadOption

if TYPE_CHECKING:
    from varifocal.training.artifacts import ArtifactStore


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What is recorded."""

    data: Annotated[
        str,
        typer.Option(
            "--data", metavar="FILE.jsonl|demo", help="Conversations; demo draws pictures."
        ),
    ] = "demo"
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where it is kept; resumes there.")
    ] = Path("runs/artifacts")
    count: Annotated[int, typer.Option("--count", help="Pictures to draw for demo.")] = 1000
    families: Annotated[
        str, typer.Option("--families", metavar="A,B", help="Only these families of demo.")
    ] = ""
    start: Annotated[int, typer.Option("--start", help="Number of the first picture of demo.")] = 0
    answers: Annotated[
        str,
        typer.Option(
            "--answers",
            metavar="target|reference",
            help="Record what the target says, or the given answers.",
        ),
    ] = "target"
    batch: Annotated[
        int,
        typer.Option(
            "--batch",
            help="Conversations answered at a time; below float32 without exact rows always one, "
            "so that no answer depends on the others.",
        ),
    ] = 16
    shard_size: Annotated[int, typer.Option("--shard-size", help="Samples a file.")] = 256
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", help="Most tokens of an answer.")
    ] = 256
    stored: Annotated[
        str,
        typer.Option("--stored", metavar="float16|bfloat16|float32", help="Number type on disk."),
    ] = "float16"
    taps: Annotated[
        str,
        typer.Option(
            "--taps",
            metavar="A,B,C|auto|none",
            help="Also keep the states leaving these layers, counted from 1, which fovea, eagle3 "
            "and block read; auto: a low, a middle and a high one; none: much less disk.",
        ),
    ] = "auto"


def record(record: RecordOptions, model: TargetOptions, output: OutputOptions) -> None:
    """Record a target's answers and states to train drafters on.

    Sizes are estimated and the disk is checked before the start. The same command goes on where it
    was cut off, and does nothing where all is done.
    """
    from varifocal.training._files import check_folder
    from varifocal.training.artifacts import DTYPES
    from varifocal.training.examples import demo_examples, read_examples
    from varifocal.training.recorder import record as record_samples

    out = Output(output)
    for name, value, known in (
        ("answers", record.answers, ("target", "reference")),
        ("stored", record.stored, tuple(DTYPES)),
    ):
        if value not in known:
            raise BadOption(f"{name} must be one of {', '.join(known)}, got {value!r}")
    check_folder(record.out)
    if record.data == "demo":
        examples = demo_examples("train", record.start, record.count, names(record.families))
    elif record.families:
        raise BadOption("families is for --data demo; leave the other lines out of the file")
    else:
        examples = read_examples(Path(record.data))
    target = load_target_from(model, out)
    taps = _taps(record.taps, target.num_layers)
    try:
        with out.progress("recording", len(examples)) as bar:
            store = record_samples(
                target,
                examples,
                record.out,
                answers=record.answers,  # type: ignore[arg-type]  # checked above
                batch=record.batch,
                shard_size=record.shard_size,
                max_new_tokens=record.max_new_tokens,
                dtype=record.stored,  # type: ignore[arg-type]  # checked above
                taps=taps,
                progress=bar.at,
            )
    except KeyboardInterrupt:
        out.note(_kept(record.out))
        raise typer.Exit(130) from None
    _report(store, record.out, out)


def _taps(text: str, num_layers: int) -> tuple[int, ...]:
    """The layers that were typed."""
    from varifocal.training._taps import three_taps

    if text == "auto":
        return three_taps(num_layers)
    if text == "none":
        return ()
    try:
        return tuple(int(part) for part in names(text))
    except ValueError:
        raise BadOption(
            f"taps must be numbers of layers such as 2,8,13, auto or none; got {text!r}"
        ) from None


def _kept(folder: Path) -> str:
    """What Ctrl-C left."""
    from varifocal.training.artifacts import Manifest

    try:
        count = len(Manifest.read(folder).rows)
    except BadArtifact:  # interrupted before it began
        count = 0
    return f"interrupted; {count} samples are kept in {folder}, and the same command goes on there"


def _report(store: "ArtifactStore", folder: Path, out: Output) -> None:
    manifest = store.manifest
    for name, reason in list(manifest.skipped.items())[:20]:
        out.note(f"{name} was left out: {reason}")
    out.line(
        f"{len(store)} samples with {manifest.num_supervised} answer tokens, "
        f"{manifest.num_bytes / 2**20:.1f} MiB in {folder}; {len(manifest.skipped)} left out"
    )
    out.write(
        {
            "out": str(folder),
            "target": manifest.origin.target,
            "samples": len(store),
            "answer_tokens": manifest.num_supervised,
            "bytes": manifest.num_bytes,
            "skipped": dict(manifest.skipped),
        }
    )
