"""The texts that `sparse bench` and `sparse rates` read: documents, or tasks of the tiny model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer

from varifocal.cli._inputs import names
from varifocal.errors import BadOption, BadRequest

if TYPE_CHECKING:
    from varifocal.sparse.bench import Draw
    from varifocal.sparse.contest import Sample
    from varifocal.sparse.rates import Draw as DrawNested
    from varifocal.targets._hf import HFTarget


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """What is read."""

    text: Annotated[
        list[Path],
        typer.Option(
            "--text",
            metavar="FILE",
            help="A long text in UTF-8. Repeatable. Left out: Python's documentation; for the "
            "tiny model, texts of --tasks.",
        ),
    ] = field(default_factory=list)
    tasks: Annotated[
        str,
        typer.Option(
            "--tasks",
            metavar="A,B",
            help="Kinds of text that the tiny model was taught: copy, record, chain, mix.",
        ),
    ] = ""
    samples: Annotated[
        int, typer.Option("--samples", help="Places in each text, or texts of each task.")
    ] = 1


def draw_from(options: TextOptions, target: "HFTarget") -> "Draw":
    """What to read at each length."""
    from varifocal.sparse.texts import windows

    if kinds := _kinds(options, target):
        return lambda context, given: _tasks(target, kinds, context, given, options.samples)
    texts = _texts(options)
    return lambda context, given: windows(target, texts, context, given, options.samples)


def draw_nested_from(options: TextOptions, target: "HFTarget") -> "DrawNested":
    """The same for all lengths at once; documents are read once through all of them."""
    from varifocal.sparse.texts import nested

    if kinds := _kinds(options, target):
        return lambda contexts, given: [
            [sample]
            for context in contexts
            for sample in _tasks(target, kinds, context, given, options.samples)
        ]
    texts = _texts(options)
    return lambda contexts, given: nested(target, texts, contexts, given, options.samples)


def _kinds(options: TextOptions, target: "HFTarget") -> list[str]:
    """The tasks that are read, if any."""
    from varifocal.sparse.decoding import TINY

    if options.samples < 1:
        raise BadOption(f"--samples must be at least 1, got {options.samples}")
    if options.text and options.tasks:
        raise BadOption("give either --text or --tasks")
    if options.tasks or (target.name == TINY and not options.text):
        return names(options.tasks) or ["copy", "record", "chain", "mix"]
    return []


def _texts(options: TextOptions) -> list[tuple[str, str]]:
    from varifocal.sparse.texts import documentation, read_text

    found = [(path.name, read_text(path)) for path in options.text]
    return found or [("Python's documentation", documentation())]


def _tasks(
    target: "HFTarget", kinds: Sequence[str], context: int, given: int, count: int
) -> "list[Sample]":
    """Texts whose questions need far-away words, cut so that answers are among what follows."""
    from varifocal.demo.recall import KINDS, MARKS, WORDS, draw_long
    from varifocal.sparse.contest import Sample

    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise BadOption(f"no task {unknown[0]!r}; there are {', '.join(KINDS)}")
    vocabulary, samples = target.tokenizer.get_vocab(), []
    if missing := [word for word in (*MARKS, *WORDS) if word not in vocabulary]:
        raise BadRequest(
            f"{target.name} does not know {missing[0]!r} and {len(missing) - 1} other words of the "
            "tasks, which are for the tiny model: give --text FILE"
        )
    for kind in kinds:
        for index in range(count):
            words, is_said = list[str](), list[bool]()
            length = context + given
            while len(words) < context + given:  # a length is about met
                words, is_said = draw_long((kind,), length, index, "test").written()
                length += given
            ids = torch.tensor([vocabulary[word] for word in words], device=target.device)
            is_answer, end = torch.tensor(is_said, device=target.device), context + given
            samples.append(Sample(kind, ids[:context], ids[context:end], is_answer[context:end]))
    return samples
