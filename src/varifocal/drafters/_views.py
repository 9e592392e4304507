"""Prompts of one request as a draft model reads them: with pictures, without, pooled, captioned.

M is the prompt itself, T has a newline in the place of each picture, P pools 2x2 patches before the
projector, C has "image: " and a caption there. Each view that can be made keeps a cache of its own;
the others are left out by name. All views read the same text on, in one forward. [TABED]
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int64
from PIL import Image
from torch import Tensor

from varifocal.cache import KVCache
from varifocal.drafters._caption import Captioner
from varifocal.errors import VarifocalError
from varifocal.request import Request
from varifocal.target import Prompt, Want
from varifocal.targets._chat import ids_inside
from varifocal.targets._hf import HFTarget, Seen
from varifocal.targets._packed import Laid, lay_out
from varifocal.targets._pooled import Pools, without_slots
from varifocal.tree import DraftTree

logger = logging.getLogger(__name__)

NAMES = "MTPC"
_NO_PICTURES = "the draft model reads no pictures"


@dataclass
class Reading:
    """The views of one request and what they have read; `left_out` has the reasons of others."""

    names: list[str]
    caches: list[KVCache]
    left_out: dict[str, str]
    num_drafted: int = 0  # newest entries of each cache that may be rejected

    def read(self, model: HFTarget, tokens: Sequence[int]) -> list[Float[Tensor, "n V"]]:
        """Decided text in all views at once: of each view, the logits after each token."""
        chain = DraftTree.chain(tokens, model.device)
        return self._forward(model, [lay_out(chain, c, model.dtype) for c in self.caches])

    def draft(
        self,
        model: HFTarget,
        tokens: Int64[Tensor, " k"],
        sees: Bool[Tensor, "k d"],
        depth: int,
    ) -> list[Float[Tensor, "k V"]]:
        """Drafted tokens at one depth below the newest text: of each view, the logits after each.

        Each sees the text and some of the d entries drafted so far, of which it is one itself.
        """
        assert sees.shape[1] == self.num_drafted + len(tokens)
        laid = [_level(tokens, sees, depth, cache, model.dtype) for cache in self.caches]
        logits = self._forward(model, laid)
        self.num_drafted += len(tokens)
        return logits

    def keep(self, entries: Sequence[int]) -> None:
        """Of what was drafted, these entries became text; the others are forgotten."""
        for cache in self.caches:
            cache.keep(entries, self.num_drafted)
        self.num_drafted = 0

    def drop(self, name: str, reason: str) -> None:
        """Go on without a view."""
        at = self.names.index(name)
        del self.names[at], self.caches[at]
        self.left_out[name] = reason
        logger.warning("the view %s of the draft model is left out: %s", name, reason)

    def _forward(self, model: HFTarget, laid: list[Laid]) -> list[Tensor]:
        return [seen.logits for seen in model.forward_rows(laid, self.caches, Want())]


def _level(
    tokens: Int64[Tensor, " k"],
    sees: Bool[Tensor, "k d"],
    depth: int,
    cache: KVCache,
    dtype: torch.dtype,
) -> Laid:
    """Rows of a level behind the levels that the cache holds already."""
    rows, drafted = sees.shape
    length = cache.length + rows
    text = length - drafted
    positions = torch.full_like(tokens, text + cache.offset + depth - 1)
    if rows == 1 and drafted == depth:  # a chain: a single row that sees everything
        return Laid(tokens, positions, None)
    mask = torch.zeros(rows, length, dtype=dtype, device=tokens.device)
    mask[:, text:].masked_fill_(~sees, torch.finfo(dtype).min)
    return Laid(tokens, positions, mask[None, None])


# -- opening -----------------------------------------------------------------------------------


@dataclass
class _Opening:
    """Views that can be made of a request, before they are read."""

    prompts: dict[str, tuple[Prompt, Seen | None]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def open_views(model: HFTarget, prompt: Prompt, names: str, captioner: Captioner | None) -> Reading:
    """Read the prompt of each view; `prompt` is the target's. Captions are made here, once.

    A view that reads what another one reads already is left out, as all but one are where there is
    no picture.
    """
    opening = _given(model, prompt) if prompt.is_given else _asked(model, prompt, names, captioner)
    reading = Reading([], [], {})
    for name in names:
        if name not in opening.prompts:
            reading.left_out[name] = opening.left_out.get(name, "")
            continue
        own, seen = opening.prompts[name]
        same = [n for n in reading.names if _is_same(opening.prompts[n][0], own)]
        if same:
            reading.left_out[name] = f"it reads the same as {same[0]}"
            continue
        reading.names.append(name)
        reading.caches.append(model.read(own, seen, Want())[0])
    for name, reason in reading.left_out.items():
        logger.warning("the view %s of the draft model is left out: %s", name, reason)
    return reading


def _asked(model: HFTarget, prompt: Prompt, names: str, captioner: Captioner | None) -> _Opening:
    """From a conversation, by the draft model's own template and processor."""
    request = Request(messages=prompt.request.messages, max_new_tokens=1)
    opening = _Opening()
    if "M" in names or "P" in names:
        _with_pictures(model, request, names, opening)
    if "T" in names:
        _with_texts(model, request, "T", ["\n"] * len(request.images), opening)
    if "C" in names:
        texts, reason = _captions(request.images, captioner)
        if reason:
            opening.left_out["C"] = reason
        else:
            _with_texts(model, request, "C", texts, opening)
    return opening


def _given(model: HFTarget, prompt: Prompt) -> _Opening:
    """From ids alone, which have no pictures that the draft model could read."""
    newline = ids_inside(model.tokenizer, "\n")
    is_slot, image_of = prompt.is_image.tolist(), [*prompt.image_of.tolist(), -1]
    ids: list[int] = []
    for place, token in enumerate(prompt.tokens.tolist()):
        if not is_slot[place]:
            ids.append(token)
        elif image_of[place + 1] != image_of[place]:
            ids += newline
    tokens = torch.tensor([i for i in ids if i < model.vocab_size], device=model.device)
    text = Prompt(tokens, torch.full_like(tokens, -1), {}, prompt.request)
    opening = _Opening()
    reason = "the prompt came as ids, without pictures for the draft model"
    opening.left_out = dict.fromkeys("MPC", reason)
    if _fits(model, text, "T", opening):
        opening.prompts["T"] = (text, None)
        if not any(is_slot):  # then nothing is missing from the others either
            opening.prompts = dict.fromkeys(NAMES, (text, None))
    return opening


def _with_pictures(model: HFTarget, request: Request, names: str, opening: _Opening) -> None:
    """M, and P beside it: the tower runs once for both."""
    if request.images and model.image_token is None:
        opening.left_out |= {"M": _NO_PICTURES, "P": _NO_PICTURES}
        return
    try:
        prompt = model.encode(request)
    except VarifocalError as error:
        # Pooled, it may fit where the full prompt does not; but then it is as long as the context.
        opening.left_out |= {"M": str(error), "P": str(error)}
        return
    if not request.images:
        opening.prompts |= {"M": (prompt, None), "P": (prompt, None)}
        return
    if "P" not in names or not isinstance(model, Pools):
        opening.prompts["M"] = (prompt, model.see(prompt))
        family = model.model.config.model_type
        opening.left_out["P"] = f"pictures of the family {family} cannot be pooled"
        return
    seen = model.see_pooled(prompt)
    opening.prompts["M"] = (prompt, seen.full)
    opening.prompts["P"] = (without_slots(prompt, seen.counts), seen.pooled)


def _with_texts(
    model: HFTarget, request: Request, name: str, texts: Sequence[str], opening: _Opening
) -> None:
    """Texts in the place of pictures, written before the chat is divided into tokens."""
    try:
        opening.prompts[name] = (model.encode_instead(request, texts), None)
    except VarifocalError as error:
        opening.left_out[name] = str(error)


def _captions(
    pictures: Sequence[Image.Image], captioner: Captioner | None
) -> tuple[list[str], str]:
    """ "image: " and what the captioner says of each; or the reason why there are none."""
    if not pictures:
        return [], ""
    if captioner is None:
        return [], "there is no captioner"
    try:
        said = [captioner(picture).strip() for picture in pictures]
    except Exception as error:  # of foreign code; a draft must not end a request
        return [], f"the captioner failed: {type(error).__name__}: {error}"
    if not all(said):
        return [], f"the captioner said nothing of picture {said.index('') + 1}"
    return [f"image: {caption}" for caption in said], ""


def _fits(model: HFTarget, prompt: Prompt, name: str, opening: _Opening) -> bool:
    if len(prompt.tokens) < model.context_length:
        return True
    opening.left_out[name] = too_long(model, len(prompt.tokens))
    return False


def too_long(model: HFTarget, length: int) -> str:
    """Why a view of so many tokens ends here."""
    return f"{model.name} holds {model.context_length} tokens, of which {length} are taken"


def _is_same(one: Prompt, other: Prompt) -> bool:
    """Whether two views read the same: as long, the same ids, and pictures in neither."""
    if bool(one.is_image.any()) or bool(other.is_image.any()):
        return False
    return torch.equal(one.tokens, other.tokens)
