"""A conversation as the ids of its rendered chat template; what a user typed stays text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from varifocal.errors import BadRequest, UnsupportedTarget
from varifocal.request import Request


@dataclass(frozen=True)
class Instead:
    """Texts in the place of pictures, one for each, and what the template writes for a picture."""

    texts: Sequence[str]
    before: str  # the frame; may be missing in the rendered chat, and goes with the placeholder
    placeholder: str  # "" for a model that reads text only
    after: str


def chat_ids(
    processor: Any, request: Request, name: str, instead: Instead | None = None
) -> list[int]:
    """Ids of the rendered chat, one placeholder per picture; typed placeholders stay text.

    `processor` is a processor with its tokenizer, or the tokenizer of a model that reads text only.
    With `instead` there are texts in the place of pictures, written before the chat is split into
    tokens. Raises UnsupportedTarget where the checkpoint has no template, or one that does not take
    this.
    """
    if not getattr(processor, "chat_template", None):
        raise UnsupportedTarget(
            f"{name} has no chat template, so it is not known how to ask it; put the "
            "template of its family into chat_template.jinja in the checkpoint's folder"
        )
    tokenizer = getattr(processor, "tokenizer", processor)
    reads_pictures = tokenizer is not processor
    typed = _Typed(tokenizer, request, instead, in_parts=reads_pictures)
    try:
        text = processor.apply_chat_template(
            typed.messages, add_generation_prompt=True, tokenize=False
        )
    except (TemplateError, TypeError) as error:
        raise UnsupportedTarget(
            f"the chat template of {name} does not take this conversation: {error}"
        ) from error
    if instead is not None and reads_pictures:
        text = typed.without_pictures(text, instead)
    # A processor adds the begin token that its template lacks; a bare tokenizer leaves it to the
    # template. So do transformers' own.
    bos = tokenizer.bos_token
    adds_bos = reads_pictures and not (bos and text.startswith(bos))
    ids: list[int] = []
    for piece, is_plain in typed.split(text):
        if ids and _adds_spaces(tokenizer):
            ids += _continuation(tokenizer, piece, is_plain)
        else:
            ids += tokenizer(
                piece, add_special_tokens=adds_bos and not ids, split_special_tokens=is_plain
            )["input_ids"]
    return ids


def expand(
    ids: Sequence[int], image_id: int, written: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Replace the k-th placeholder by what is written for picture k.

    The tokens, and for each the picture whose slot it is; -1 marks what is no slot.
    """
    if ids.count(image_id) != len(written):
        raise BadRequest(
            f"the chat template made {ids.count(image_id)} picture slots for {len(written)} "
            "pictures; this checkpoint's template cannot show the pictures where they stand"
        )
    tokens: list[int] = []
    image_of: list[int] = []
    image = 0
    for token in ids:
        if token != image_id:
            tokens.append(token)
            image_of.append(-1)
            continue
        tokens += written[image]
        image_of += [image if slot == image_id else -1 for slot in written[image]]
        image += 1
    return tokens, image_of


class _Typed:
    """Special-token names that a user typed, kept apart from those of the chat template."""

    def __init__(
        self, tokenizer: Any, request: Request, instead: Instead | None, *, in_parts: bool
    ) -> None:
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        special = {*tokenizer.all_special_tokens, *(t.content for t in added if t.special)}
        names = sorted(special, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names))) if names else None
        self._typed: list[str] = []
        texts = [] if instead is None else list(instead.texts)
        text = "".join(
            [*(p for m in request.messages for p in m.parts if isinstance(p, str)), *texts]
        )
        # Two private-use characters that this request does not contain bracket a stand-in.
        free = (chr(c) for c in range(0xE000, 0xF8FF) if chr(c) not in text)
        self._open, self._close = next(free), next(free)
        self.messages: list[dict[str, Any]] = [
            {"role": m.role, "content": [self._part(p) for p in m.parts]} for m in request.messages
        ]
        if not in_parts:  # templates of models that read text only join strings
            shown = iter(texts)
            for message in self.messages:
                message["content"] = "".join(
                    part["text"] if part["type"] == "text" else self._plain(next(shown))
                    for part in message["content"]
                )

    def _part(self, part: Any) -> dict[str, str]:
        if not isinstance(part, str):
            return {"type": "image"}
        return {"type": "text", "text": self._plain(part)}

    def _plain(self, text: str) -> str:
        return self._names.sub(self._stand_in, text) if self._names else text

    def _stand_in(self, match: re.Match[str]) -> str:
        self._typed.append(match.group())
        return f"{self._open}{len(self._typed) - 1}{self._close}"

    def without_pictures(self, text: str, instead: Instead) -> str:
        """The rendered chat with a text for each placeholder and its frame."""
        before, after = re.escape(instead.before), re.escape(instead.after)
        shown = re.compile(f"(?:{before})?{re.escape(instead.placeholder)}(?:{after})?")
        pieces = shown.split(text)
        if len(pieces) - 1 != len(instead.texts):
            raise BadRequest(
                f"the chat template made {len(pieces) - 1} picture slots for {len(instead.texts)} "
                "pictures; this checkpoint's template cannot show the pictures where they stand"
            )
        texts = [self._plain(own) for own in instead.texts]
        return "".join(part for both in zip(pieces, [*texts, ""], strict=True) for part in both)

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """Pieces of the rendered chat; True marks what must not be read as special tokens."""
        for k, piece in enumerate(re.split(f"{self._open}(\\d+){self._close}", text)):
            if k % 2:
                yield self._typed[int(piece)], True
            elif piece:
                yield piece, False


def ids_inside(tokenizer: Any, text: str) -> list[int]:
    """Ids of a bare text that stands inside another."""
    if _adds_spaces(tokenizer):
        return _continuation(tokenizer, text, is_plain=True)
    made = tokenizer(text, add_special_tokens=False, split_special_tokens=True)
    return list(made["input_ids"])


def _adds_spaces(tokenizer: Any) -> bool:
    """Whether every text gets a space in front, as with SentencePiece; its pieces must not."""
    made = tokenizer("a", add_special_tokens=False)["input_ids"]
    return bool(tokenizer.convert_ids_to_tokens(made)[0].startswith("▁"))


def _continuation(tokenizer: Any, piece: str, is_plain: bool) -> list[int]:
    """Ids of a piece inside a text: those that come after the ids of a character before it."""
    for before in ("\n", ".", "a"):
        alone, both = (
            tokenizer(text, add_special_tokens=False, split_special_tokens=is_plain)["input_ids"]
            for text in (before, before + piece)
        )
        if both[: len(alone)] == alone:
            return list(both[len(alone) :])
    made = tokenizer(piece, add_special_tokens=False, split_special_tokens=is_plain)
    return list(made["input_ids"])
