"""What transformers users get back: its own output class, with what varifocal counted."""

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from varifocal.cache import KVCache
from varifocal.result import GenerationResult


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """`GenerateDecoderOnlyOutput` with the result of its row; a list of them for several."""

    # One for each token; transformers' own annotations say a single one.
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    varifocal: GenerationResult | list[GenerationResult] | None = None


@dataclass(frozen=True)
class Answer:
    """One row, decoded."""

    result: GenerationResult
    cache: KVCache
    logits: list[Tensor] = field(default_factory=list)  # (1, V) for each token, if asked for
    scores: list[Tensor] = field(default_factory=list)  # the same, processed


def assembled(answers: list[Answer], input_ids: Tensor, config: Any) -> Any:
    """The ids (rows, tokens) with their prompts, or an output that holds them."""
    sequences = _sequences(answers, input_ids, config)
    if not config.return_dict_in_generate:
        return sequences
    made: dict[str, Any] = {"sequences": sequences}
    (first, *others) = answers
    # Copies: tensors made in inference mode could not be changed, nor trained on, outside of it.
    if config.output_scores:
        made["scores"] = tuple(row.to(input_ids.device).clone() for row in first.scores)
    if config.output_logits:
        made["logits"] = tuple(row.to(input_ids.device).clone() for row in first.logits)
    if not others:  # caches of several rows have different lengths
        names = {f.name for f in fields(GenerateDecoderOnlyOutput)}
        made["cache" if "cache" in names else "past_key_values"] = first.cache.copy().hf
    results = [answer.result for answer in answers]
    return SpeculativeOutput(**made, varifocal=results if others else results[0])


def _sequences(answers: list[Answer], input_ids: Tensor, config: Any) -> Tensor:
    """Prompt and answer of each row; shorter ones end in padding."""
    longest = max(len(answer.result.token_ids) for answer in answers)
    padding = getattr(config, "_pad_token_tensor", None)
    pad = 0 if padding is None else int(padding)  # without an end token all have one length
    new = [[*a.result.token_ids, *[pad] * (longest - len(a.result.token_ids))] for a in answers]
    added = torch.tensor(new, dtype=input_ids.dtype, device=input_ids.device)
    return torch.cat([input_ids, added], 1)
