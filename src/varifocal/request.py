"""What a caller asks for: a conversation with pictures, limits, and how tokens are chosen."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from PIL import Image

from varifocal.errors import BadRequest
from varifocal.sampling import Sampling

Role = Literal["system", "user", "assistant"]
Part = str | Image.Image


@dataclass(frozen=True)
class Message:
    """One turn of a conversation: text and pictures in the order in which they are read."""

    role: Role
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One generation: the same request gives the same text with every drafter."""

    messages: tuple[Message, ...]
    max_new_tokens: int = 256  # the end token counts
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()  # generation ends before the first of these texts
    id: str = ""  # for benchmarks and logs

    def __post_init__(self) -> None:
        if not self.messages or self.messages[-1].role == "assistant":
            raise BadRequest("a request must end with a user message")
        if not any(isinstance(part, str) and part.strip() for part in self.messages[-1].parts):
            raise BadRequest("the prompt is empty: the last message must contain some text")
        if self.max_new_tokens < 1:
            raise BadRequest(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if "" in self.stop:
            raise BadRequest("a stop text must not be empty")

    @property
    def images(self) -> tuple[Image.Image, ...]:
        """All pictures in reading order."""
        return tuple(p for m in self.messages for p in m.parts if not isinstance(p, str))


def ask(
    prompt: str,
    images: Sequence[Image.Image] = (),
    *,
    max_new_tokens: int = 256,
    sampling: Sampling | None = None,
    stop: Sequence[str] = (),
    id: str = "",
) -> Request:
    """A request with one user message: the pictures first, then the prompt."""
    return Request(
        messages=(Message("user", (*images, prompt)),),
        max_new_tokens=max_new_tokens,
        sampling=sampling or Sampling(),
        stop=tuple(stop),
        id=id,
    )
