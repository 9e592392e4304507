"""The sequences of a call, and how the model itself reads their prompts."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from varifocal.cache import KVCache
from varifocal.decode import Reading
from varifocal.errors import BadOption, BadRequest
from varifocal.request import Request
from varifocal.target import Forward, Prompt, Want
from varifocal.targets._hf import HFTarget

CACHES = ("cache", "past_key_values")  # its name since transformers 5.24, and before
_BY_TOKEN = ("position_ids", "token_type_ids", "mm_token_type_ids")  # one entry for each token
_OF_PICTURES = ("image_sizes", "image_grid_thw", "batch_num_images", "pixel_attention_mask")


@dataclass(frozen=True)
class Row:
    """One sequence as transformers prepared it: P tokens, T of them its own."""

    padded: Int64[Tensor, "1 P"]  # what logits processors and stopping criteria are called with
    tokens: Int64[Tensor, "1 T"]  # without the padding on the left
    kwargs: dict[str, Any]  # for the model's `prepare_inputs_for_generation`
    number: int = 0
    count: int = 1  # rows of the call
    slots: Tensor = field(default_factory=lambda: torch.empty(0))  # bool (T): pictures' slots


def rows_of(model: Any, input_ids: Int64[Tensor, "B P"], kwargs: dict[str, Any]) -> list[Row]:
    """Every sequence by itself, padding cut away.

    Raises BadRequest for padding elsewhere than on the left, and where features of pictures and
    their slots differ in number.
    """
    kept = {key: value for key, value in kwargs.items() if key not in CACHES}
    mask = kept.pop("attention_mask", None)
    count = len(input_ids)
    begins = [0] * count if mask is None else [_begin(row) for row in mask]
    image_id = getattr(model.config, "image_token_id", None)
    is_slot = torch.zeros_like(input_ids, dtype=torch.bool)
    if image_id is not None:
        is_slot = input_ids == image_id
    _check_features(kept, is_slot)
    if count > 1:
        _check_divisible(kept)
    rows = []
    for number, begin in enumerate(begins):
        part = slice(number, number + 1)
        own = kept if count == 1 and not begin else _own(kept, is_slot, number, begin, count)
        rows.append(
            Row(
                input_ids[part],
                input_ids[part, begin:],
                own,
                number,
                count,
                is_slot[number, begin:],
            )
        )
    return rows


def _begin(mask: Tensor) -> int:
    """The first token that is not padding."""
    seen = mask.bool()
    begin = int(seen.int().argmax())
    if not bool(seen[begin:].all()):
        raise BadRequest(
            "the attention_mask hides tokens behind the first that it shows; pad on the left "
            '(processor.tokenizer.padding_side = "left") and hide padding only'
        )
    return begin


def _features(kwargs: dict[str, Any]) -> Any:
    return (kwargs.get("mm_encoder_outputs") or {}).get("image")


def _check_features(kwargs: dict[str, Any], is_slot: Tensor) -> None:
    seen = _features(kwargs)
    if seen is None:
        return
    made, wanted = len(_flat(seen.pooler_output)), int(is_slot.sum())
    if made != wanted:
        raise BadRequest(
            f"the pictures made {made} visual tokens, but input_ids has {wanted} slots for them; "
            "make ids and pixels in one call of the model's own processor"
        )


def _check_divisible(kwargs: dict[str, Any]) -> None:
    """Refuse several rows with pictures whose features transformers has not made beforehand."""
    raw = [k for k in ("pixel_values", "image_embeds") if kwargs.get(k) is not None]
    if raw:
        raise BadOption(
            f"{raw[0]} of several rows cannot be told apart here; call generate for each row"
        )


def _own(
    kwargs: dict[str, Any], is_slot: Tensor, number: int, begin: int, count: int
) -> dict[str, Any]:
    """What belongs to one row, from its first token on."""
    own = {key: value for key, value in kwargs.items() if count == 1 or key not in _OF_PICTURES}
    for key in _BY_TOKEN:
        value = own.get(key)
        if value is not None:  # (B, P) or (axes, B, P); or one row for all
            at = number if value.shape[-2] == count else 0
            own[key] = value[..., at : at + 1, begin:]
    seen = _features(kwargs)
    if seen is not None:
        before = int(is_slot[:number].sum())
        after = before + int(is_slot[number].sum())
        image = _cut(seen, before, after) if after > before else None
        own["mm_encoder_outputs"] = {"image": image} if image is not None else {}
    return own


def _flat(features: Any) -> Tensor:
    """Visual tokens (M, D) of one tensor, or of one for each picture."""
    parts = [features] if isinstance(features, Tensor) else list(features)
    return torch.cat([part.flatten(0, -2) for part in parts])


def _cut(seen: Any, before: int, after: int) -> Any:
    """The same output of the tower for these visual tokens only."""

    def part(features: Any) -> Any:
        own = _flat(features)[before:after]
        if not isinstance(features, Tensor):
            return (own,)
        return own.unflatten(0, (-1, *features.shape[1:-1]))  # whole tiles: a row has all of its

    own = copy(seen)
    own["pooler_output"] = part(seen.pooler_output)
    layers = getattr(seen, "deepstack_features", None)
    if layers is not None:
        own["deepstack_features"] = [part(layer) for layer in layers]
    return own


class GivenInputs(Reading):
    """A prompt of ids and features, read by the caller's own model as transformers does it."""

    def __init__(self, target: HFTarget, row: Row, want: Want, request: Request) -> None:
        # `Reading` would encode the request, which here stands for ids that exist already.
        self._model, self._row, self._given = target, row, want
        starts = row.slots & ~torch.cat([row.slots.new_zeros(1), row.slots[:-1]])
        image_of = torch.where(row.slots, starts.cumsum(0) - 1, -1)  # a run of slots is a picture
        device = target.device
        tokens = row.tokens[0].to(device)
        self.prompt = Prompt(tokens, image_of.to(device), {}, request, is_given=True)
        self.cache = KVCache(target.num_layers)

    def take(self) -> tuple[KVCache, Forward]:
        """One causal pass over the prompt: positions, pictures and all are the model's."""
        model, want, ids = self._model.model, self._given, self._row.tokens
        name = self._model._cache_keyword
        kwargs = {**self._row.kwargs, name: self.cache.hf}
        inputs = model.prepare_inputs_for_generation(ids, is_first_iteration=True, **kwargs)
        with _watched(self._model._text_model, want.layers) as seen:
            out = model(**inputs, return_dict=True)
        length = ids.shape[1]
        positions = seen.inputs.get("position_ids")
        if positions is not None:
            if positions.dim() == 3 and len(positions) == 4:  # row 0 numbers the text, for masks
                positions = positions[1:]
            self.cache.offset = int(positions.max()) + 1 - length
        embeddings = seen.inputs.get("inputs_embeds")
        if want.embeddings and embeddings is None:
            embeddings = self._model.embed(ids.to(self._model.device))
        hidden = [seen.layers[number] for number in want.layers]
        return self.cache, Forward(
            out.logits[0, -1:],
            hidden=torch.stack(hidden, 1) if hidden else None,
            final=seen.final if want.final else None,
            embeddings=embeddings[0] if want.embeddings and embeddings is not None else None,
        )


@dataclass
class _Seen:
    """What went into the decoder in one forward, and what came out."""

    inputs: dict[str, Any] = field(default_factory=dict)
    final: Tensor | None = None
    layers: dict[int, Tensor] = field(default_factory=dict)


@contextmanager
def _watched(decoder: Any, layers: tuple[int, ...]) -> Iterator[_Seen]:
    """Note one forward of this thread; others may use the same model at the same time."""
    seen, own = _Seen(), threading.get_ident()

    def note(_module: Any, _args: Any, kwargs: dict[str, Any], out: Any) -> None:
        if threading.get_ident() == own:
            seen.inputs, seen.final = kwargs, out.last_hidden_state[0]

    handles = [decoder.register_forward_hook(note, with_kwargs=True)]
    for number in layers:

        def tap(_module: Any, _args: Any, out: Any, number: int = number) -> None:
            if threading.get_ident() == own:
                seen.layers[number] = (out[0] if isinstance(out, tuple) else out)[0]

        handles.append(decoder.layers[number - 1].register_forward_hook(tap))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
