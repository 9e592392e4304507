"""What is delivered, decided token by token: end tokens, stop texts, budget, whole characters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from varifocal.result import FinishReason, TokenLogprob

_UNFINISHED = "\ufffd"  # what tokenizers show for the first bytes of a character: one or several
_PATIENCE = 16  # tokens after which bytes that make no character are taken as they are


@dataclass(frozen=True)
class Delivery:
    """What one block of decided tokens brought."""

    tokens: list[int]
    text: str  # safe to show: whole characters, and no beginning of a stop text
    logprobs: list[TokenLogprob] | None = None  # of these tokens, if they were pushed with them


class Commit:
    """The delivered text of one request.

    A block of tokens is pushed as one; the result is the same as pushing its tokens one by one.
    The first end by position decides: a completed stop text, an end token, or the last token of
    the budget, in this order of precedence at one position. Tokens and log-probs go on to the token
    that decides; the text goes to the start of the stop text, if it was one.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        eos_ids: frozenset[int],
        max_new_tokens: int,
        stop: Sequence[str] = (),
    ) -> None:
        self._decode, self._eos_ids = decode, eos_ids
        self._room, self._stop = max_new_tokens, tuple(stop)
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.text = ""  # whole characters so far; cut before a stop text
        self.finish_reason: FinishReason | None = None
        self._shown = 0  # characters of `text` already delivered
        self._known = 0  # tokens up to the last whole character
        self._context = 0  # decoded again with the next tokens, for spaces at joints
        self._read_to = 0  # characters of that window which are in `text`

    @property
    def room(self) -> int:
        """Tokens that may still come."""
        return 0 if self.finish_reason else self._room - len(self.tokens)

    def push(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None
    ) -> Delivery:
        """Deliver these decided tokens, and their log-probs, up to the first end."""
        before = len(self.tokens)
        for token in tokens:
            if self.finish_reason:
                break
            self._push_one(token)
        end = len(self.text) if self.finish_reason else len(self.text) - self._held_back()
        piece = self.text[self._shown : end]
        self._shown = max(self._shown, end)
        delivered = self.tokens[before:]
        if logprobs is None:
            return Delivery(delivered, piece)
        kept = list(logprobs[: len(delivered)])
        self.logprobs += kept
        return Delivery(delivered, piece, kept)

    def _push_one(self, token: int) -> None:
        self.tokens.append(token)
        is_eos, is_last = token in self._eos_ids, len(self.tokens) == self._room
        grown_from = len(self.text)
        if is_eos:
            self.tokens.pop()  # its text, if any, is not part of the answer
            self._read(final=True)
            self.tokens.append(token)
        else:
            self._read(final=is_last)
        if (cut := self._stop_at(grown_from)) is not None:
            self.text = self.text[:cut]
            self.finish_reason = "stop"
        elif is_eos:
            self.finish_reason = "eos"
        elif is_last:
            self.finish_reason = "length"

    def _read(self, *, final: bool) -> None:
        """Add the text of the tokens not read yet, but for a character that is still unfinished."""
        window = self._decode(self.tokens[self._context :])
        pending = len(self.tokens) - self._known
        is_whole = final or not window.endswith(_UNFINISHED) or pending > _PATIENCE
        end = len(window) if is_whole else len(window.rstrip(_UNFINISHED))
        self.text += window[self._read_to : end]
        self._read_to = max(self._read_to, end)
        if is_whole:
            newest, self._known = self._known, len(self.tokens)
            text = self._decode(self.tokens[newest:])
            # Tokens without text, such as special ones, are no context: SentencePiece would take
            # what follows them for the beginning of a text, which loses its space.
            if text.strip():
                self._context = newest
            self._read_to = len(text if text.strip() else window)

    def _stop_at(self, grown_from: int) -> int | None:
        """Where to cut: the start of the stop text that is completed first."""
        found = []
        for stop in self._stop:
            start = self.text.find(stop, max(0, grown_from - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start))
        return min(found)[1] if found else None

    def _held_back(self) -> int:
        """Length of the longest ending of the text that a stop text begins with."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
