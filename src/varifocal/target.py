"""The contract of a frozen model, seen only through tokens, features and a cache."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from varifocal.cache import KVCache
from varifocal.request import Request
from varifocal.tree import DraftTree


@dataclass(frozen=True)
class Prompt:
    """A request as the target reads it. T tokens, pictures already expanded to their slots."""

    tokens: Int64[Tensor, " T"]
    image_of: Int64[Tensor, " T"]  # the picture whose slot this is, -1 for text
    pixels: dict[str, Tensor]  # what the family's processor made of the pictures
    request: Request
    is_given: bool = False  # the tokens came as they are: the request's messages say nothing

    @property
    def is_image(self) -> Bool[Tensor, " T"]:
        """Slots that image features replace."""
        return self.image_of >= 0


@dataclass(frozen=True, kw_only=True)
class Want:
    """What a drafter needs to see of the target, beyond its logits."""

    layers: tuple[int, ...] = ()  # hidden states leaving these decoder layers, counted from 1
    final: bool = False  # the state after the last norm, which the head reads
    embeddings: bool = False  # what entered the first layer, image features included

    @classmethod
    def union(cls, wants: Sequence["Want"]) -> "Want":
        """All that any of them wants."""
        if all(want == wants[0] for want in wants):
            return wants[0]
        return cls(
            layers=tuple(sorted({layer for want in wants for layer in want.layers})),
            final=any(want.final for want in wants),
            embeddings=any(want.embeddings for want in wants),
        )


@dataclass(frozen=True)
class Forward:
    """What the target computed for N new positions (T of them in a prefill)."""

    logits: Float[Tensor, "R V"]  # R = N in a round, 1 (the last position) in a prefill
    hidden: Float[Tensor, "N L D"] | None = None  # L = len(want.layers)
    final: Float[Tensor, "N D"] | None = None
    embeddings: Float[Tensor, "N D"] | None = None

    def rows(self, path: Sequence[int]) -> "Forward":
        """The same, for the nodes of `path` only."""
        if list(path) == list(range(len(self.logits))):
            return self
        index = torch.tensor(path, device=self.logits.device)

        def pick(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[index]

        return replace(
            self,
            logits=self.logits[index],
            hidden=pick(self.hidden),
            final=pick(self.final),
            embeddings=pick(self.embeddings),
        )

    def narrowed(self, made: Want, want: Want) -> "Forward":
        """Of what was made for several, what one of them wants."""
        if made == want:
            return self
        hidden = None
        if want.layers and self.hidden is not None:
            hidden = self.hidden[:, [made.layers.index(layer) for layer in want.layers]]
        return replace(
            self,
            hidden=hidden,
            final=self.final if want.final else None,
            embeddings=self.embeddings if want.embeddings else None,
        )


@dataclass(frozen=True)
class Region:
    """The part of a picture that one visual token saw, in fractions of width and height."""

    image: int
    box: tuple[float, float, float, float] | None  # left, top, right, bottom; None for a separator


class Target(ABC):
    """A frozen model. Holds weights only: everything of a request is in its prompt and cache."""

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    eos_ids: frozenset[int]
    banned_ids: frozenset[int]  # picture slots, padding, ...: a drafter must never propose them
    context_length: int
    device: torch.device
    dtype: torch.dtype

    @abstractmethod
    def encode(self, request: Request) -> Prompt:
        """Tokens and pixels of a request; raises BadRequest when it does not fit the context."""

    @abstractmethod
    def prefill(self, prompt: Prompt, want: Want) -> tuple[KVCache, Forward]:
        """Read the whole prompt. The logits are those of its last position."""

    @abstractmethod
    def forward(
        self, trees: Sequence[DraftTree], caches: Sequence[KVCache], want: Want
    ) -> list[Forward]:
        """Read all nodes of each tree, one tree per request; grows each cache by its tree.

        Every node sees the text of its own request and its own ancestors. Where this raises, the
        caches are as they were: several requests may be in it, and one alone at fault.
        """

    @abstractmethod
    def embed(self, tokens: Int64[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        """The frozen input embeddings."""

    @property
    @abstractmethod
    def readout(self) -> nn.Module:
        """The frozen LM head as a module, for a drafter that wants it in another layout."""

    @abstractmethod
    def head(self, states: Float[Tensor, "*n D"]) -> Float[Tensor, "*n V"]:
        """The frozen LM head, on states like `Forward.final`."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones left out; may end in U+FFFD inside a character."""

    @abstractmethod
    def tokenize(self, text: str) -> list[int]:
        """Ids of a bare text: nothing is added, and names of special tokens are text."""

    @abstractmethod
    def regions(self, prompt: Prompt) -> list[Region]:
        """What each visual token saw, in the order of the True entries of `prompt.is_image`."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A short digest of configuration, tokenizer and weights that a drafter is bound to."""
