"""transformers' options as settings of a request: honoured exactly, or refused by name."""

import math
from copy import copy
from dataclasses import dataclass
from typing import Any

from transformers.generation import logits_process as processors
from transformers.generation import stopping_criteria as criteria

from varifocal.errors import BadOption, BadRequest
from varifocal.huggingface._rows import CACHES, Row
from varifocal.sampling import Sampling

_ALONE = "leave it out, or call model.generate without varifocal"

# Options that only one value of is honoured, by the values that mean "off".
_OFF: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0),
    "dola_layers": (None,),
    "constraints": (None,),
    "force_words_ids": (None,),
    "guidance_scale": (None, 1),
    "prompt_lookup_num_tokens": (None,),
    "assistant_early_exit": (None,),
    "use_mtp": (None, False),
    "is_assistant": (None, False),
    "prefill_chunk_size": (None,),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "use_cache": (None, True),
    "token_healing": (None, False),
    "return_legacy_cache": (None, False),
    "compile_config": (None,),
    # A full cache gives the same text, wherever its memory comes from.
    "cache_implementation": (None, "dynamic", "dynamic_full", "static"),
}
_INSTEAD = {
    "prompt_lookup_num_tokens": 'give drafter="lookup"',
    "output_hidden_states": "call the model on the returned sequences",
    "output_attentions": "call the model on the returned sequences",
    "cache_implementation": "varifocal keeps a full cache on the device; leave it out",
}
_NOT_READ = ("pixel_values_videos", "video_embeds", "input_features", "image_embeds")

# They keep notes from call to call, so they cannot be asked about drafts that are not text yet.
_WITH_MEMORY = (
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "WhisperTimeStampLogitsProcessor",
    "WhisperNoSpeechDetection",
)
_OF_THE_BATCH = (  # they look at the whole batch, or count its rows
    processors.PrefixConstrainedLogitsProcessor,
    processors.EncoderNoRepeatNGramLogitsProcessor,
    processors.EncoderRepetitionPenaltyLogitsProcessor,
)
# What `Sampling` does too, for all nodes of a tree at once, in the order of `model.generate`.
_NATIVE = (
    processors.RepetitionPenaltyLogitsProcessor,
    processors.NoBadWordsLogitsProcessor,
    processors.MinLengthLogitsProcessor,
    processors.MinNewTokensLengthLogitsProcessor,
    processors.TemperatureLogitsWarper,
    processors.TopKLogitsWarper,
    processors.TopPLogitsWarper,
    processors.MinPLogitsWarper,
)
_NEEDS_NO_SCORES = (
    criteria.MaxLengthCriteria,
    criteria.EosTokenCriteria,
    criteria.StopStringCriteria,
    criteria.MaxTimeCriteria,
)


def check_call(config: Any, logits: Any, stops: Any, kwargs: dict[str, Any]) -> None:
    """Refuse by name what cannot be done position by position, or is not done here."""
    for name, off in _OFF.items():
        value = getattr(config, name, None)
        if value not in off:
            raise BadOption(f"{name}={value!r} is not honoured here; {_INSTEAD.get(name, _ALONE)}")
    for name in _NOT_READ:
        if kwargs.get(name) is not None:
            raise BadOption(f"{name} is not read here: ids and pictures are; {_ALONE}")
    others = set(kwargs.get("mm_encoder_outputs") or {}) - {"image"}
    if others:
        raise BadOption(f"{min(others)} is not read here: ids and pictures are; {_ALONE}")
    for name in CACHES:
        cache = kwargs.get(name)
        if cache is not None and (
            getattr(cache, "_is_user_defined", False) or cache.get_seq_length() > 0
        ):
            raise BadOption(
                f"a given {name} is not honoured: varifocal fills a cache of its own. Give the "
                "whole conversation as input_ids, without a cache"
            )
    for one in logits or []:
        if type(one).__name__ in _WITH_MEMORY:
            raise BadOption(
                f"{type(one).__name__} keeps notes from call to call, so it cannot be asked about "
                f"drafts that may be rejected; {_ALONE}"
            )
    strange = [type(c).__name__ for c in stops or [] if not isinstance(c, _NEEDS_NO_SCORES)]
    if strange and config.return_dict_in_generate and config.output_scores:
        raise BadOption(
            f"{strange[0]} may read scores, which are known here when the answer is complete; "
            "leave out output_scores or this criterion"
        )


@dataclass(frozen=True)
class Settings:
    """How one row is decoded."""

    sampling: Sampling
    max_new_tokens: int
    eos_ids: frozenset[int]
    processors: list[Any]  # of transformers, for every node; empty where `sampling` does it all
    criteria: list[Any]  # of transformers, after every token
    keeps_scores: bool = False

    @classmethod
    def of(cls, config: Any, logits: Any, stops: Any, row: Row, seed: int) -> "Settings":
        """From what `model.generate` prepared. Rows are chosen by `seed` when sampling."""
        room = [c.max_length for c in stops if isinstance(c, criteria.MaxLengthCriteria)]
        ends = [c.eos_token_id for c in stops if isinstance(c, criteria.EosTokenCriteria)]
        max_new = max(1, min(room) - row.padded.shape[1])
        handled = (criteria.MaxLengthCriteria, criteria.EosTokenCriteria)
        listed = [_for_row(one, row) for one in logits or []]
        keeps = bool(
            config.return_dict_in_generate and (config.output_scores or config.output_logits)
        )
        if keeps and row.count > 1:
            raise BadOption(
                "output_scores and output_logits are given for one row; call generate for each row"
            )
        plain = Sampling(temperature=1.0 if config.do_sample else 0.0, seed=seed)
        sampling = None if keeps else _native(listed, plain, row, max_new)
        return cls(
            sampling=sampling or plain,
            max_new_tokens=max_new,
            eos_ids=frozenset(int(i) for end in ends for i in end.reshape(-1).tolist()),
            processors=[] if sampling else listed,
            criteria=[c for c in stops if not isinstance(c, handled)],
            keeps_scores=keeps,
        )


def _for_row(one: Any, row: Row) -> Any:
    """The processor for this row alone."""
    if row.count > 1 and isinstance(one, _OF_THE_BATCH):
        raise BadOption(
            f"{type(one).__name__} looks at the whole batch; call generate for each row"
        )
    skipped: Any = getattr(one, "prompt_ignore_length", None)
    if isinstance(one, processors.RepetitionPenaltyLogitsProcessor) and hasattr(skipped, "shape"):
        one = copy(one)
        one.prompt_ignore_length = skipped[row.number : row.number + 1]
    return one


def _native(listed: list[Any], plain: Sampling, row: Row, max_new: int) -> Sampling | None:
    """The same settings as `Sampling`, or None where one of them has no equal there."""
    kinds = [type(one) for one in listed]
    if any(kind not in _NATIVE for kind in kinds):
        return None
    order = [_NATIVE.index(kind) for kind in kinds]
    if order != sorted(set(order)):
        return None
    made: dict[str, Any] = {"temperature": plain.temperature, "seed": plain.seed}
    for one in listed:
        changed = _changes(one, row, max_new)
        if changed is None:
            return None
        if "temperature" in changed and not plain.temperature:
            continue  # no choice of the likeliest depends on it
        made |= {
            k: max(v, made.get(k, v)) if k == "min_new_tokens" else v for k, v in changed.items()
        }
    try:
        return Sampling(**made)
    except BadRequest:  # beyond the range of `Sampling`: transformers' own does it, node by node
        return None


def _changes(one: Any, row: Row, max_new: int) -> dict[str, Any] | None:
    length = row.padded.shape[1]
    if getattr(one, "filter_value", -math.inf) != -math.inf:
        return None
    if getattr(one, "min_tokens_to_keep", 1) != 1:
        return None
    match one:
        case processors.RepetitionPenaltyLogitsProcessor():
            skipped = one.prompt_ignore_length
            padding = length - row.tokens.shape[1]
            is_padding = skipped is None or int(skipped) == padding
            return {"repetition_penalty": one.penalty} if is_padding else None
        case processors.NoBadWordsLogitsProcessor():
            words = [tuple(map(int, word)) for word in one.sequence_bias]
            return {"bad_words": words}
        case processors.MinLengthLogitsProcessor():
            return {"min_new_tokens": min(max(one.min_length - length, 0), max_new)}
        case processors.MinNewTokensLengthLogitsProcessor():
            fits = one.prompt_length_to_skip == length
            return {"min_new_tokens": min(one.min_new_tokens, max_new)} if fits else None
        case processors.TemperatureLogitsWarper():
            return {"temperature": one.temperature}
        case processors.TopKLogitsWarper():
            return {"top_k": one.top_k}
        case processors.TopPLogitsWarper():
            return {"top_p": one.top_p}
        case processors.MinPLogitsWarper():
            return {"min_p": one.min_p}
    return None
