"""What a caller asks for, checked before anything is computed."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from varifocal.diffusion import formats
from varifocal.diffusion.denoiser import Denoiser
from varifocal.diffusion.formats import Format
from varifocal.diffusion.gate import Gate
from varifocal.diffusion.sampler import Sampler
from varifocal.diffusion.schedule import Plan
from varifocal.errors import BadOption, BadRequest
from varifocal.sampling import Sampling

Prompt = str | Sequence[int]


def check_choices(
    gate: Gate[Any], sampler: Sampler[Any], format: Format | None, plan: Plan, asked: Plan
) -> None:
    """Refuse what cannot run together; `plan` is what the gate made of the one asked for."""
    if gate.needs_future:
        raise BadOption(
            f"the gate {gate.name} knows the end of the run, so it cannot stop a live one: record "
            "a full run and replay it (varifocal diffusion record, varifocal diffusion replay)"
        )
    if gate.needs_format and format is None:
        raise BadOption(
            f"the gate {gate.name} looks for an answer: give format=, one of "
            f"{', '.join(formats.names())}"
        )
    if not sampler.plans and plan.steps is not None:
        whose = "" if asked.steps is not None else f", for which the gate {gate.name} asks,"
        raise BadOption(
            f"the sampler {sampler.name} decides itself how many tokens a step commits: "
            f"steps={plan.steps}{whose} has no effect; leave it out, or take a sampler that plans, "
            "such as low_confidence"
        )


def check_recorded(gate: Gate[Any]) -> None:
    """Refuse to record anything but a full run."""
    if gate.name != "full":
        raise BadOption(
            "a recording is of a full run, for other gates to be replayed on: give gate=full, got "
            f"{gate.name}"
        )


def samplings(sampling: Sampling | Sequence[Sampling], count: int) -> list[Sampling]:
    """One for each prompt."""
    each = [sampling] * count if isinstance(sampling, Sampling) else list(sampling)
    if len(each) != count:
        raise BadRequest(
            f"wanted one sampling, or one for each of {count} prompts, got {len(each)}"
        )
    if any(one.changes_logits for one in each):
        raise BadRequest(
            "penalties, logit_bias, bad_words and min_new_tokens are for texts that grow from left "
            "to right; a diffusion model takes temperature, top_k, top_p, min_p and seed"
        )
    return each


def prompt_ids(denoiser: Denoiser, prompt: Prompt, plan: Plan, number: int) -> list[int]:
    """A prompt's tokens, if it can be answered. Texts are encoded as they are, without a chat."""
    vocabulary = denoiser.vocabulary
    if isinstance(prompt, str):
        ids = list(denoiser.tokenizer.encode(prompt, add_special_tokens=False))
    else:
        ids = [int(token) for token in prompt]
    if not ids:
        raise BadRequest(f"prompt {number} is empty: there is nothing to answer")
    if not 0 <= min(ids) <= max(ids) < vocabulary.size:
        raise BadRequest(
            f"prompt {number} has token ids outside of the vocabulary, which is 0 to "
            f"{vocabulary.size - 1}"
        )
    if vocabulary.mask in ids:
        raise BadRequest(
            f"prompt {number} contains the model's mask token ({vocabulary.mask}): only the canvas "
            "may be masked; take it out"
        )
    room = denoiser.context_length - len(ids)
    if plan.canvas > room:
        raise BadRequest(
            f"prompt {number} has {len(ids)} tokens and the canvas {plan.canvas}, but "
            f"{denoiser.name} reads {denoiser.context_length} in all; "
            + (f"give canvas={room} at most" if room > 0 else "shorten the prompt")
        )
    return ids


def text_decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Ids to text, special tokens left out and spaces left alone."""
    return partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
