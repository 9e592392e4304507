"""`varifocal sparse generate` and `verify`: decode with sparse attention, and hold PRR to it."""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.table import Table

from varifocal.chat import check_text
from varifocal.cli._interrupt import interruptible
from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output
from varifocal.cli._sparse_options import (
    IndexerOptions,
    ModelOptions,
    ReachOptions,
    model_from,
    queues_from,
)
from varifocal.errors import BadOption, BadRequest

if TYPE_CHECKING:
    from varifocal.sparse.huggingface import SparseCache
    from varifocal.sparse.indexer import Indexer
    from varifocal.sparse.queues import Queues
    from varifocal.targets._hf import HFTarget


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """What is read and how much is written."""

    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="The text to go on from.")
    ] = None
    prompt_file: Annotated[
        Path | None,
        typer.Option("--prompt-file", metavar="FILE", help="The same from a file in UTF-8."),
    ] = None
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Go on from the text as it is, also where the model has a chat template."
        ),
    ] = False
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", help="Most tokens of an answer.")
    ] = 256


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(ReachOptions, IndexerOptions):
    """Which blocks are attended to, and which are guessed."""

    selector: Annotated[
        str,
        typer.Option(
            "--selector", metavar="NAME", help="quest, infllm, lightning or lightning_tokens."
        ),
    ] = "quest"
    predictor: Annotated[
        str,
        typer.Option(
            "--predictor",
            metavar="NAME",
            help="none, last, ema, ema_score, cross_layer, static or oracle.",
        ),
    ] = "ema"
    guesses: Annotated[
        str,
        typer.Option(
            "--guesses",
            metavar="auto|SHARE",
            help="For each block that will be chosen. auto: measured first, then as many as pay, "
            "none where none does.",
        ),
    ] = "auto"

    def share(self) -> float | None:
        """None is auto."""
        if self.guesses == "auto":
            return None
        try:
            return float(self.guesses)
        except ValueError:
            raise BadOption(f"--guesses wants auto or a number, got {self.guesses!r}") from None


def generate(
    ask: PromptOptions, attention: AttentionOptions, model: ModelOptions, output: OutputOptions
) -> None:
    """Go on from a long text with sparse attention and PRR; greedy.

    The prompt is read densely. Then every token attends to the blocks that the selector chooses.
    The text is the one of plain sparse attention, whatever is guessed. Ctrl-C keeps what has come.
    """
    out = Output(output)
    text = _prompt(ask)
    if ask.max_new_tokens < 1:
        raise BadOption(f"--max-new-tokens must be at least 1, got {ask.max_new_tokens}")
    attention.reach()  # what is mistyped is found at once
    attention.share()
    target = model_from(model, out)
    tokens = _tokens(target, text, ask)
    indexer = attention.load_indexer(target, [attention.selector])
    with queues_from(model, target.device) as queues:
        cache = _cache(target, attention, indexer, queues)
        seconds, ids, reason = _decoded(target, cache, tokens, ask.max_new_tokens, out)
        result = _result(target, cache, attention, tokens, ids, reason, seconds)
    out.line()
    out.write(result)
    out.note(_summary(result))
    if reason == "cancelled":
        raise typer.Exit(130)


def _prompt(ask: PromptOptions) -> str:
    from varifocal.sparse.texts import read_text

    if (ask.prompt is None) == (ask.prompt_file is None):
        raise BadOption("give either --prompt TEXT or --prompt-file FILE")
    if ask.prompt_file is not None:
        return read_text(ask.prompt_file)
    text = ask.prompt or ""
    check_text(text, "--prompt")
    if not text.strip():
        raise BadRequest("--prompt is empty")
    return text


def _tokens(target: "HFTarget", text: str, ask: PromptOptions) -> torch.Tensor:
    """As a question where the model has a chat template, else as it is."""
    from varifocal.request import Message, Request
    from varifocal.sparse.decoding import text_ids

    if getattr(target.processor, "chat_template", None) and not ask.raw:
        asked = Request(messages=(Message("user", (text,)),), max_new_tokens=ask.max_new_tokens)
        return target.encode(asked).tokens
    ids = text_ids(target, text)
    room = target.context_length - len(ids)
    if ask.max_new_tokens > room:
        raise BadRequest(
            f"the prompt takes {len(ids)} tokens and {ask.max_new_tokens} more are asked for, but "
            f"{target.name} holds {target.context_length}"
        )
    return torch.tensor(ids, device=target.device)


def _cache(
    target: "HFTarget", options: AttentionOptions, indexer: "Indexer | None", queues: "Queues"
) -> "SparseCache":
    from varifocal.sparse.huggingface import SparseCache
    from varifocal.sparse.speculation import FixedSpeculation

    share = options.share()
    return SparseCache(
        target.model,
        options.reach(),
        block_size=options.block_size,
        selector=options.selector,
        indexer=indexer,
        predictor=options.predictor,
        kernel=options.kernel,
        speculation=None if share is None else FixedSpeculation(share),
        queues=queues,
        is_measured=share is None,
    )


def _decoded(
    target: "HFTarget", cache: "SparseCache", tokens: torch.Tensor, limit: int, out: Output
) -> tuple[dict[str, float], list[int], str]:
    """Seconds, ids and why they ended; text is shown as it comes."""
    from varifocal.sparse.decoding import Decoder

    decoder, ids, shown = Decoder(target, cache), list[int](), ""
    start = time.perf_counter()
    with out.busy(f"reading {len(tokens)} tokens"):
        logits = decoder.read(tokens)
    read = time.perf_counter()
    cache.calibrate_if_asked()
    begun = time.perf_counter()
    reason = ""
    with interruptible(can_wait=True) as interrupt:
        while not reason:
            ids.append(int(logits.argmax()))
            text = target.decode(ids)
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # half a character
                out.piece(text[len(shown) :])
                shown = text
            if ids[-1] in target.eos_ids:
                reason = "eos"
            elif len(ids) == limit:
                reason = "length"
            elif interrupt.is_asked:
                reason = "cancelled"
            else:
                logits = decoder.read(tokens.new_tensor(ids[-1:]))
    out.piece(target.decode(ids)[len(shown) :])
    cache.attention.settle()
    end = time.perf_counter()
    seconds = {"prefill": read - start, "calibrate": begun - read, "decode": end - begun}
    return seconds | {"total": end - start}, ids, reason


def _result(
    target: "HFTarget",
    cache: "SparseCache",
    options: AttentionOptions,
    tokens: torch.Tensor,
    ids: list[int],
    reason: str,
    seconds: dict[str, float],
) -> dict[str, Any]:
    """As JSON."""
    from varifocal.sparse.timeline import Timeline

    rates = {(r.predictor, r.layer): r for r in cache.rates()}
    own, last = rates.get((options.predictor, None)), rates.get(("last", None))
    most = cache.attention.reach.most_tokens(cache.attention.unit)
    return {
        "text": target.decode(ids),
        "token_ids": ids,
        "finish_reason": reason,
        "usage": {"prompt_tokens": len(tokens), "completion_tokens": len(ids)},
        "target": target.name,
        "selector": options.selector,
        "predictor": options.predictor,
        "block_size": options.block_size,
        "budget": options.budget,
        "most_tokens": most,
        "is_dense": most >= len(tokens) + len(ids),
        "hit_rate": own.hit_rate if own else None,
        "hit_rate_last": last.hit_rate if last else None,
        "waste_rate": own.waste_rate if own else None,
        "repaired_blocks": own.repaired_blocks if own else None,
        "layers": [
            {
                "layer": layer,
                "hit_rate": rate.hit_rate,
                "hit_rate_last": rates["last", layer].hit_rate,
                "repaired_blocks": rate.repaired_blocks,
            }
            for (predictor, layer), rate in rates.items()
            if predictor == options.predictor and layer is not None
        ],
        "timeline": Timeline.sum(cache.attention.times()).to_dict(),
        "seconds": seconds,
    }


def _summary(result: dict[str, Any]) -> str:
    written, seconds = len(result["token_ids"]), result["seconds"]["decode"]
    rate = result["hit_rate"]
    guessed = (
        "nothing was guessed: it would not pay here"
        if rate is None
        else f"{rate:.0%} of the chosen blocks were guessed ({result['hit_rate_last']:.0%} by the "
        f"last choice), {result['repaired_blocks']} repaired"
    )
    seen = f"at most {result['most_tokens']} keys a query"
    if result["is_dense"]:
        seen = "the budget holds the whole text, so attention is dense"
    return (
        f"{result['selector']} on {result['target']}: {written} tokens after "
        f"{result['usage']['prompt_tokens']}, {(written - 1) / seconds:.1f} tokens/s; {seen}; "
        f"{guessed}; ended by {result['finish_reason']}"
    )


@dataclass(frozen=True, kw_only=True)
class CaseOptions:
    """The random cases to compare on."""

    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="How many cases; 100 take a few seconds.")
    ] = 700
    seed: Annotated[int, typer.Option("--seed", help="Which cases are drawn.")] = 0
    selector: Annotated[
        str, typer.Option("--selector", metavar="NAME", help="Of all cases. Left out: drawn too.")
    ] = ""
    indexer: Annotated[
        Path | None,
        typer.Option(
            "--indexer",
            metavar="DIR",
            help="For lightning and lightning_tokens: index as many heads and features as this "
            "one has.",
        ),
    ] = None
    two_threads: Annotated[
        bool,
        typer.Option("--two-threads/--one-thread", help="Where selection runs beside speculation."),
    ] = False

    def index(self) -> tuple[int, int]:
        """Heads and width of what lightning selectors read."""
        from varifocal.sparse.cases import INDEX
        from varifocal.sparse.indexer import load_indexer
        from varifocal.sparse.selectors import find_selector

        if self.indexer is None:
            return INDEX
        if self.selector and not find_selector(self.selector).reads_index:
            raise BadOption(f"--indexer {self.indexer}: {self.selector} reads none; leave it out")
        config = load_indexer(self.indexer).config
        return config.heads, config.width


def verify(cases: CaseOptions, output: OutputOptions) -> None:
    """Compare PRR with plain sparse attention, bit for bit, over random cases.

    Each case is one predictor on one drawn setting: selector, block size, page layout, batch,
    heads, precision, drafted and rejected tokens. Exit code 0: all are identical; 1: one is not.
    """
    from varifocal.sparse.cases import check_cases
    from varifocal.sparse.queues import SingleQueue, TwoThreads

    index = cases.index()
    if cases.limit < 1:
        raise BadOption(f"--limit must be at least 1, got {cases.limit}")
    out = Output(output)
    counts, identical, different = Counter[str](), Counter[str](), []
    queues = TwoThreads() if cases.two_threads else SingleQueue()
    with queues:
        for setting, predictor, is_same in check_cases(
            cases.limit,
            seed=cases.seed,
            queues=queues,
            selector=cases.selector or None,
            index=index,
        ):
            counts[predictor] += 1
            identical[predictor] += is_same
            if not is_same:
                different.append(f"{predictor}: {setting}")
    out.write({"requests": counts.total(), "identical": identical.total()})
    table = Table("predictor", "cases", "identical to plain")
    for predictor, count in counts.items():
        table.add_row(predictor, str(count), str(identical[predictor]))
    out.table(table)
    for named in different[:3]:
        out.note(f"differs: {named}")
    if different:
        raise typer.Exit(1)
