"""Options that the commands of `varifocal sparse` share, and what is made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer

from varifocal.cli._inputs import quiet_transformers
from varifocal.cli._options import Dtype
from varifocal.cli._output import Output
from varifocal.engine import find_device, find_dtype, set_threads
from varifocal.errors import BadOption, UnsupportedTarget

if TYPE_CHECKING:
    from varifocal.sparse.indexer import Indexer
    from varifocal.sparse.queues import Queues
    from varifocal.sparse.selection import Reach
    from varifocal.targets._hf import HFTarget


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model, and where it runs."""

    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="ID|PATH|tiny",
            help="A Llama or Qwen, or a vision-language model; tiny is a long-context model that "
            "comes along.",
        ),
    ] = "tiny"
    dtype: Annotated[
        Dtype,
        typer.Option("--dtype", help="auto: bfloat16 where the device computes it natively."),
    ] = Dtype.AUTO
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, ...")] = "auto"
    threads: Annotated[
        int, typer.Option("--threads", help="Torch's CPU threads, for each of the two queues.")
    ] = 1
    two_threads: Annotated[
        bool,
        typer.Option(
            "--two-threads/--one-thread",
            help="On a CPU: select on a second thread, or take turns. The result is the same.",
        ),
    ] = True


@dataclass(frozen=True, kw_only=True)
class ReachOptions:
    """How far a query sees."""

    budget: Annotated[
        int, typer.Option("--budget", help="Tokens that the selector may choose.")
    ] = 2048
    first: Annotated[int, typer.Option("--first", help="First tokens that are always kept.")] = 16
    recent: Annotated[int, typer.Option("--recent", help="Newest tokens that are always kept.")] = (
        64
    )
    block_size: Annotated[int, typer.Option("--block-size", help="Tokens of a block.")] = 16
    dense_layers: Annotated[
        int, typer.Option("--dense-layers", help="First layers that attend to everything.")
    ] = 0

    kernel: Annotated[
        str,
        typer.Option(
            "--kernel",
            metavar="NAME",
            help="torch, triton, flashinfer, or auto: triton's on CUDA, else torch's.",
        ),
    ] = "torch"

    def reach(self) -> "Reach":
        """Checked."""
        from varifocal.sparse.selection import Reach

        reach = Reach(
            budget=self.budget,
            first=self.first,
            recent=self.recent,
            dense_layers=self.dense_layers,
        )
        reach.count(self.block_size)
        return reach


Selectors = Annotated[
    str,
    typer.Option(
        "--selectors",
        metavar="A,B",
        help="quest, infllm; lightning, lightning_tokens with an indexer.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class IndexerOptions:
    """What the lightning selectors score by."""

    indexer: Annotated[
        Path | None,
        typer.Option(
            "--indexer",
            metavar="DIR",
            help="For lightning and lightning_tokens: a trained indexer. Left out: the one beside "
            "the target's weights, as tiny has it.",
        ),
    ] = None

    def load_indexer(self, target: "HFTarget", selectors: Sequence[str]) -> "Indexer | None":
        """None where no selector reads one."""
        from varifocal.sparse.decoding import load_indexer_for
        from varifocal.sparse.selectors import find_selector

        if any(find_selector(name).reads_index for name in selectors):
            return load_indexer_for(target, self.indexer)
        if self.indexer is not None:
            raise BadOption(
                f"--indexer {self.indexer}: {', '.join(selectors)} reads none; choose the selector "
                "lightning or lightning_tokens, or leave it out"
            )
        return None


def model_from(options: ModelOptions, out: Output) -> "HFTarget":
    """Load what was named."""
    from safetensors import SafetensorError

    from varifocal.sparse.decoding import open_model

    quiet_transformers()
    set_threads(options.threads)
    device = find_device(options.device)
    with out.busy(f"loading {options.target}"):
        try:
            return open_model(options.target, dtype=find_dtype(str(options.dtype)), device=device)
        except SafetensorError as error:
            raise UnsupportedTarget(
                f"the weights of {options.target!r} are damaged or cut short ({error}); fetch or "
                "copy them again"
            ) from error


def queues_from(options: ModelOptions, device: torch.device) -> "Queues":
    """What the steps run on, to be used in a `with`."""
    from varifocal.sparse.queues import SingleQueue, TwoThreads

    return TwoThreads() if options.two_threads and device.type == "cpu" else SingleQueue()
