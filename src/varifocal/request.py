"""What a caller asks for: a conversation with pictures, limits, and how tokens are chosen."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from PIL import Image

from varifocal.errors import BadRequest
from varifocal.images import MAX_PIXELS, load_image
from varifocal.sampling import Sampling

Role = Literal["system", "user", "assistant"]
Part = str | Image.Image
Picture = str | Path | bytes | Image.Image


@dataclass(frozen=True)
class Message:
    """One turn of a conversation: text and pictures in the order in which they are read."""

    role: Role
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One generation: the same request gives the same text with every drafter.

    An answer that a stop text ends keeps, in ids, log-probs and counts, every token up to and with
    the one that completes the stop text; the text is cut before it.
    """

    messages: tuple[Message, ...]
    max_new_tokens: int = 256  # the end token counts
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()  # generation ends before the first of these texts
    logprobs: int | None = None  # log-probs of delivered tokens, with this many of the best; or not
    id: str = ""  # for benchmarks and logs

    def __post_init__(self) -> None:
        for message in self.messages:
            if message.role not in get_args(Role):
                raise BadRequest(
                    f"a message's role must be {', '.join(get_args(Role))}, got {message.role!r}"
                )
        if not self.messages or self.messages[-1].role != "user":
            raise BadRequest("a request must end with a user message")
        if any(not isinstance(p, str | Image.Image) for m in self.messages for p in m.parts):
            raise BadRequest("a message consists of texts and Pillow images (see load_image)")
        if not any(isinstance(part, str) and part.strip() for part in self.messages[-1].parts):
            raise BadRequest("the prompt is empty: the last message must contain some text")
        limit = self.max_new_tokens
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise BadRequest(f"max_new_tokens must be a count from 1, got {limit!r}")
        if not all(isinstance(stop, str) and stop for stop in self.stop):
            raise BadRequest(f"stop texts must be texts and not empty, got {self.stop!r}")
        if self.logprobs is not None and (
            not isinstance(self.logprobs, int)
            or isinstance(self.logprobs, bool)
            or self.logprobs < 0
        ):
            raise BadRequest(
                "logprobs must be None (off) or how many of the best tokens to list, 0 for the "
                f"chosen one alone; got {self.logprobs!r}"
            )
        if self.sampling.min_new_tokens > self.max_new_tokens:
            raise BadRequest(
                f"min_new_tokens is {self.sampling.min_new_tokens} but max_new_tokens only "
                f"{self.max_new_tokens}; ask for no fewer than that at most"
            )

    @property
    def images(self) -> tuple[Image.Image, ...]:
        """All pictures in reading order."""
        return tuple(p for m in self.messages for p in m.parts if not isinstance(p, str))


def ask(
    prompt: str,
    images: Picture | Sequence[Picture] = (),
    *,
    max_new_tokens: int = 256,
    sampling: Sampling | None = None,
    stop: str | Sequence[str] = (),
    logprobs: int | None = None,
    max_pixels: int = MAX_PIXELS,
    id: str = "",
) -> Request:
    """A request with one user message: the pictures first, then the prompt.

    Pictures are paths, bytes or Pillow images; all go through `load_image`, which refuses more than
    `max_pixels` (width times height).
    """
    several = (
        images if isinstance(images, Sequence) and not isinstance(images, str | bytes) else [images]
    )
    pictures = [load_image(image, max_pixels=max_pixels) for image in several]
    return Request(
        messages=(Message("user", (*pictures, prompt)),),
        max_new_tokens=max_new_tokens,
        sampling=sampling or Sampling(),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        logprobs=logprobs,
        id=id,
    )


def check_n(n: int) -> int:
    """The number of answers, if it is one."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise BadRequest(f"n must be a count of answers from 1, got {n!r}")
    return n
