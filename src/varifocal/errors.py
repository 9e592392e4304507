"""The errors a user can meet: each message says what was wanted, what came, and the way out."""


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
