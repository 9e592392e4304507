"""Token ids as a text that remembers which token took part in which character."""

import json
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from varifocal.diffusion.denoiser import Vocabulary


@dataclass(frozen=True, slots=True)
class Text:
    """A text written by n tokens.

    Token i takes part in the characters begins[i] to ends[i] (exclusive). A token that writes
    nothing has an empty range, and tokens that share a character all have it in theirs.
    """

    string: str
    begins: Sequence[int]
    ends: Sequence[int]

    def tokens(self, begin: int, end: int) -> range:
        """The tokens that take part in the characters `begin` to `end` (exclusive)."""
        return range(bisect_right(self.ends, begin), bisect_left(self.begins, end))


class Detokenizer(ABC):
    """Writes the tokens of one row as text. What it remembers belongs to that row."""

    @abstractmethod
    def read(self, ids: Sequence[int]) -> Text:
        """The text of `ids`. Special tokens write nothing, and keep their place."""


def detokenizer(tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> Detokenizer:
    """By the bytes of each token where the tokenizer lets them be known, else by prefixes."""
    if tokenizer.is_fast:
        state = tokenizer.backend_tokenizer.decoder
        spelling = None if state is None else _spelling(json.loads(state.__getstate__()))
        if spelling is not None:
            return ByteDetokenizer(tokenizer, vocabulary, spelling)
    return PrefixDetokenizer(tokenizer, vocabulary)


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How tokens stand for bytes: by the byte-level alphabet, or as SentencePiece writes them."""

    is_byte_level: bool = False
    replaced: tuple[tuple[str, str], ...] = ()  # "▁" by " "
    has_byte_tokens: bool = False  # <0x0A>
    stripped: int = 0  # spaces at the very beginning that are not part of the text

    def bytes_of(self, token: str) -> bytes:
        """The bytes that a token stands for."""
        if self.is_byte_level:
            # A token with a character outside of the alphabet was added as it is.
            known = all(c in _BYTE_OF for c in token)
            return bytes(_BYTE_OF[c] for c in token) if known else token.encode(errors="replace")
        if self.has_byte_tokens and len(token) == 6 and token[:3] == "<0x" and token[5] == ">":
            try:
                return bytes.fromhex(token[3:5])
            except ValueError:
                pass  # a token that only looks like a byte
        for old, new in self.replaced:
            token = token.replace(old, new)
        return token.encode(errors="replace")


class ByteDetokenizer(Detokenizer):
    """Tokens to bytes, all bytes to text at once: characters split over tokens come out whole."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary, spelling: Spelling
    ) -> None:
        self._pieces = _Pieces(tokenizer, vocabulary, spelling)
        self._stripped = b" " * spelling.stripped

    def read(self, ids: Sequence[int]) -> Text:
        """The text of `ids`; bytes that are no UTF-8 are written as U+FFFD."""
        pieces = list(map(self._pieces.__getitem__, ids))
        if self._stripped:
            first = next((i for i, piece in enumerate(pieces) if piece), None)
            if first is not None and pieces[first].startswith(self._stripped):
                pieces[first] = pieces[first].removeprefix(self._stripped)
        starts = list(accumulate(map(len, pieces), initial=0))
        raw = b"".join(pieces)
        if raw.isascii():
            return Text(raw.decode("ascii"), starts[:-1], starts[1:])
        string, is_first = _decode(raw)
        begun = np.concatenate(([0], np.cumsum(is_first)))  # characters begun before each byte
        places = np.array(starts)
        ends = begun[places]
        begins = np.append(begun[1:] - 1, len(string))[places[:-1]]
        return Text(string, begins.tolist(), ends[1:].tolist())


class PrefixDetokenizer(Detokenizer):
    """Right for every tokenizer, and slow: decodes each prefix and sees what a token changed.

    The reference for the fast path. Decodes again only from the first changed token on.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> None:
        self._tokenizer = tokenizer
        self._silent = _silent(tokenizer, vocabulary)
        self._size = len(tokenizer)
        self._visible: list[int] = []
        self._prefixes = [""]  # of the visible tokens, the empty one first

    def read(self, ids: Sequence[int]) -> Text:
        """The text of `ids`, as the tokenizer decodes it."""
        is_visible = [0 <= i < self._size and i not in self._silent for i in ids]
        visible = [int(i) for i, shown in zip(ids, is_visible, strict=True) if shown]
        same = _common(self._visible, visible)
        del self._prefixes[same + 1 :]
        for count in range(same + 1, len(visible) + 1):
            self._prefixes.append(self._decode(visible[:count]))
        self._visible = visible
        string = self._prefixes[-1]
        # What a token settled stays so: bytes that begin a character may unmake, in the decoding
        # of a prefix, other characters that bytes spelt before them.
        settled = list(accumulate((_common(p, string) for p in self._prefixes), max))
        # Where a prefix ends within a character, its last token takes part in that one too.
        reached = [
            n + (not string.startswith(p)) for n, p in zip(settled, self._prefixes, strict=True)
        ]
        before = list(accumulate(is_visible, initial=0))
        begins = [settled[k] for k in before[:-1]]
        return Text(string, begins, [reached[k] for k in before[1:]])

    def _decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)


class _Pieces(dict[int, bytes]):
    """What each id writes, looked up when it is first met."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary, spelling: Spelling
    ) -> None:
        super().__init__(dict.fromkeys(_silent(tokenizer, vocabulary), b""))
        self._tokenizer = tokenizer
        self._spelling = spelling

    def __missing__(self, number: int) -> bytes:
        # A model's vocabulary may be longer than its tokenizer's.
        token = self._tokenizer.convert_ids_to_tokens(int(number)) if number >= 0 else None
        piece = b"" if token is None else self._spelling.bytes_of(token)
        self[number] = piece
        return piece


def _silent(tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> set[int]:
    """Ids that write nothing."""
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    named = {vocabulary.mask, vocabulary.pad, *vocabulary.stops, *vocabulary.banned}
    return added | named | set(tokenizer.all_special_ids)


def _spelling(decoder: dict[str, Any]) -> Spelling | None:
    """From the state of a tokenizers decoder; None where it does more than tokens one by one."""
    parts: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    if [part["type"] for part in parts] == ["ByteLevel"]:
        return Spelling(is_byte_level=True)
    replaced: list[tuple[str, str]] = []
    has_byte_tokens, stripped = False, 0
    for part in parts:
        match part:
            case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                replaced.append((old, new))
            case {"type": "ByteFallback"}:
                has_byte_tokens = True
            case {"type": "Strip", "content": " ", "start": start, "stop": 0}:
                stripped = start
            case {"type": "Fuse"}:
                pass
            case _:
                return None
    if stripped > 1:
        return None
    return Spelling(replaced=tuple(replaced), has_byte_tokens=has_byte_tokens, stripped=stripped)


def _decode(raw: bytes) -> tuple[str, NDArray[np.bool_]]:
    """UTF-8 as text, and for each byte whether a character begins with it.

    Each largest part that begins a character wrongly is one U+FFFD, as in `errors="replace"`.
    """
    is_first = (np.frombuffer(raw, np.uint8) & 0xC0) != 0x80
    parts, at = [], 0
    while True:
        try:
            parts.append(raw[at:].decode())
            return "".join(parts), is_first
        except UnicodeDecodeError as error:
            begin, end = at + error.start, at + error.end
            parts.append(raw[at:begin].decode() + "\ufffd")
            is_first[begin], is_first[begin + 1 : end] = True, False
            at = end


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many leading items agree."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(i for i in range(shorter) if one[i] != other[i])


def _byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in byte-level BPE [GPT-2].

    Printable ones stand for themselves, the other bytes are numbered on from U+0100.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + n): b for n, b in enumerate(rest)}


_BYTE_OF = _byte_alphabet()
