"""DiffusionGemma, denoised by transformers' own loop and stopped by our gates.

It is no `Denoiser`. Its canvas holds random tokens where ours holds masks; what a step accepts the
next may replace by noise again, so nothing is committed before the end; each step reads the logits
of the step before (self-conditioning) at a temperature that falls with the steps; and the text is
the argmax of the last step, not what was accepted. A loop that commits masked positions once would
run another scheme than the one it was trained for. So transformers' `generate` runs untouched, and
a gate decides in the place of its StableAndConfidentStoppingCriteria.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessorList, PreTrainedTokenizerBase

from varifocal.decode import synchronised
from varifocal.diffusion import formats, gates
from varifocal.diffusion._gemma_run import NATIVE, Asked, Reads, Run
from varifocal.diffusion.denoiser import Vocabulary
from varifocal.diffusion.formats import Format
from varifocal.diffusion.gate import Gate, Setting
from varifocal.diffusion.request import Prompt, text_decoder
from varifocal.diffusion.result import DiffusionResult
from varifocal.diffusion.schedule import Plan
from varifocal.errors import BadOption, BadRequest, UnsupportedTarget
from varifocal.targets._fetched import place_of
from varifocal.targets._refuse import first_line

_FAILURES = (OSError, ValueError, RuntimeError, ImportError)


class GemmaDiffusion:
    """A frozen DiffusionGemma. Texts only; an answer is one canvas long at most."""

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer, self.name = tokenizer, name
        self.canvas: int = model.config.canvas_length
        text = model.config.get_text_config()
        ends = model.generation_config.eos_token_id
        ends = text.eos_token_id if ends is None else ends
        stops = frozenset(ends if isinstance(ends, list) else [ends])
        pad = min(stops) if text.pad_token_id is None else text.pad_token_id
        # There is no mask: padding, which writes nothing either, stands for it.
        self.vocabulary = Vocabulary(size=text.vocab_size, mask=pad, pad=pad, stops=stops)
        self.context_length: int = text.max_position_embeddings

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        format: str | Format | None,
        gate: str | Gate[Any] = "cvc",
        steps: int | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> list[DiffusionResult]:
        """Answer prompts one by one, so that none depends on the noise that another drew.

        `gate` "native" is transformers' own stop, "full" none. `steps` are denoising steps at
        most; None takes the checkpoint's number. The noise comes from torch's global generators,
        which get `seed` for each prompt and their state back after it.
        """
        if isinstance(prompts, str):
            raise BadRequest(f"wanted a list of prompts, got the text {prompts!r:.40}")
        found = None if gate == NATIVE else gates.find(gate)
        form = None if format is None else formats.find(format)
        plan = self._plan(found, steps)
        _check(found, form, plan)
        ids = [self._ids(prompt, number) for number, prompt in enumerate(prompts)]
        timed = synchronised(clock, self.model.device)
        return [
            self._run(self._asked(number, prompt, form, found, plan, seed), prompt, timed)
            for number, prompt in enumerate(ids)
        ]

    def _run(self, asked: Asked, prompt: list[int], clock: Callable[[], float]) -> DiffusionResult:
        run, device = Run(asked, clock), self.model.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(asked.seed)
            run.hooked(self.model).generate(
                torch.tensor([prompt], device=device),
                max_new_tokens=self.canvas,
                max_denoising_steps=run.plan.total,
                logits_processor=LogitsProcessorList([Reads(run)]),
                disable_compile=True,
            )
        return run.result()

    def _asked(
        self,
        number: int,
        prompt: list[int],
        format: Format | None,
        gate: Gate[Any] | None,
        plan: Plan,
        seed: int,
    ) -> Asked:
        return Asked(
            number=number,
            prompt_tokens=len(prompt),
            gate=gate,
            setting=Setting(plan=plan, stops=self.vocabulary.stops, has_format=format is not None),
            format=format,
            reader=None if format is None else format.reader(self.tokenizer, self.vocabulary),
            decode=text_decoder(self.tokenizer),
            model=self.name,
            seed=seed,
        )

    def _plan(self, gate: Gate[Any] | None, steps: int | None) -> Plan:
        if steps is None:
            config = self.model.generation_config
            default = config._get_default_generation_params()["max_denoising_steps"]
            steps = min(config.max_denoising_steps or default, self.canvas)
        plan = Plan(canvas=self.canvas, block=self.canvas, steps=steps)
        return plan if gate is None else gate.plan(plan, self.tokenizer)

    def _ids(self, prompt: Prompt, number: int) -> list[int]:
        """A text is encoded as the tokenizer does it, its own begin token included."""
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(map(int, prompt))
        if not ids:
            raise BadRequest(f"prompt {number} is empty: there is nothing to answer")
        if not 0 <= min(ids) <= max(ids) < self.vocabulary.size:
            raise BadRequest(
                f"prompt {number} has token ids outside of the vocabulary, which is 0 to "
                f"{self.vocabulary.size - 1}"
            )
        if len(ids) + self.canvas > self.context_length:
            raise BadRequest(
                f"prompt {number} has {len(ids)} tokens and the canvas {self.canvas}, but "
                f"{self.name} reads {self.context_length} in all; shorten the prompt"
            )
        return ids


def load_gemma(
    place: str | Path, *, dtype: torch.dtype | None = None, device: str = "auto"
) -> GemmaDiffusion:
    """A folder or a hub id of DiffusionGemma. `dtype=None` keeps the precision of its files.

    Raises UnsupportedTarget for other models, and for a transformers that does not have it.
    """
    try:
        from transformers import AutoConfig, AutoTokenizer, DiffusionGemmaForBlockDiffusion
    except ImportError as error:
        raise UnsupportedTarget(
            "this version of transformers has no DiffusionGemma; update it: pip install -U "
            "transformers"
        ) from error
    name = str(place)
    folder = place_of(name)
    try:
        config = AutoConfig.from_pretrained(folder)
        if config.model_type != "diffusion_gemma":
            raise UnsupportedTarget(
                f"{name} is a {config.model_type!r} model, no DiffusionGemma; for LLaDA and Dream "
                "take load_denoiser of varifocal.diffusion.loading"
            )
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model, info = DiffusionGemmaForBlockDiffusion.from_pretrained(
            folder, dtype=dtype or "auto", output_loading_info=True
        )
    except _FAILURES as error:
        raise UnsupportedTarget(
            f"{name!r} cannot be read as a DiffusionGemma: {first_line(error)}. Its files may be "
            "incomplete; fetch or copy them again"
        ) from error
    if missing := sorted(info["missing_keys"]):
        raise UnsupportedTarget(
            f"{name} lacks {len(missing)} weights, {missing[0]} among them; fetch or copy it again"
        )
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return GemmaDiffusion(model.to(device), tokenizer, name)


def _check(gate: Gate[Any] | None, format: Format | None, plan: Plan) -> None:
    """Refuse gates that ask for what this scheme does not have."""
    if gate is None:
        return
    reason = None
    if gate.needs_future:
        reason = "knows the end of the run, so it cannot stop a live one"
    elif type(gate).observe is Gate.observe and type(gate).settle is not Gate.settle:
        reason = "waits for committed tokens, and DiffusionGemma commits none before its end"
    elif plan.pins:
        reason = "pins tokens to the canvas, and DiffusionGemma may replace any token by noise"
    if reason is not None:
        raise BadOption(f"the gate {gate.name} {reason}; take native, full or cvc")
    if gate.needs_format and format is None:
        raise BadOption(
            f"the gate {gate.name} looks for an answer: give format=, one of "
            f"{', '.join(formats.names())}"
        )
