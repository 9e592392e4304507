"""The errors a user can meet: each message says what was wanted, what came, and the way out."""

from collections.abc import Mapping, Sequence
from typing import Any


class VarifocalError(Exception):
    """Something the user can put right; the command line prints the message and exits with 2."""


class BadRequest(VarifocalError):
    """A request that cannot be answered: messages, limits, stops or sampling do not fit."""


class BadImage(VarifocalError):
    """A picture that cannot be used: not a picture, damaged, too large or of a strange shape."""


class UnsupportedTarget(VarifocalError):
    """A model, or a part of one, that no file in `targets/` handles."""


class DrafterMismatch(VarifocalError):
    """A drafter that was made for another target: vocabulary, width, layers or processor differ."""


class BadArtifact(VarifocalError):
    """Files on disk that are missing, damaged or of another version: weights, shards, manifests."""


class BadOption(VarifocalError):
    """An option, setting or configuration key that is unknown, has no effect or is out of range."""


class BatchFailed(VarifocalError):
    """Some requests of a batch failed; `outcomes` has the results of the others.

    It lists the requests in their order: a GenerationResult each, or the exception it failed with.
    """

    def __init__(self, errors: Mapping[int, Exception], outcomes: Sequence[Any]) -> None:
        self.outcomes = list(outcomes)
        listed = "; ".join(f"request {n}: {type(e).__name__}: {e}" for n, e in errors.items())
        super().__init__(
            f"{len(errors)} of {len(outcomes)} requests failed ({listed}); the results of the "
            "others are in this error's outcomes"
        )
