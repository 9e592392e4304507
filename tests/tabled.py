"""A denoiser whose logits are given, and texts as its tokens: steps can be told in advance."""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from diffusion.tiny import Kind, byte_tokenizer, tiny_denoiser, tiny_vocabulary

from varifocal.diffusion.denoiser import Canvas, Denoiser, Vocabulary
from varifocal.diffusion.formats import Ending, Format, Match
from varifocal.diffusion.masked import MaskedDenoiser

VOCABULARY = tiny_vocabulary()
END, MASK, SIZE = VOCABULARY.pad, VOCABULARY.mask, VOCABULARY.size
# A row's prompt and canvas, to the logits of its canvas [G, V].
Law = Callable[[list[int], list[int]], torch.Tensor]


def ids_of(text: str) -> list[int]:
    """One token a byte, so that positions of a canvas can be counted; "$" is the end."""
    return [END if c == "$" else _byte_ids()[ord(c)] for c in text]


def text_of(ids: Sequence[int]) -> str:
    """The other way round, with "_" for masks."""
    shown = {token: chr(byte) for byte, token in _byte_ids().items()} | {END: "$", MASK: "_"}
    return "".join(shown[token] for token in ids)


def sure(tokens: Sequence[int], confidence: float | Sequence[float]) -> torch.Tensor:
    """Logits that give each token its probability, and all others but the mask the same rest."""
    likely = torch.tensor(confidence).expand(len(tokens))[:, None]
    logits = ((1 - likely) / (SIZE - 2)).log().repeat(1, SIZE)
    logits[:, MASK] = -1e4
    return logits.scatter(1, torch.tensor(tokens)[:, None], likely.log())


def scripted(*told: tuple[str, float | Sequence[float]]) -> Law:
    """What is said after 0, 1, 2, ... commits; the last goes on."""

    def law(prompt: list[int], canvas: list[int]) -> torch.Tensor:
        step = sum(token != MASK for token in canvas)
        text, confidence = told[min(step, len(told) - 1)]
        return sure(ids_of(text), confidence)

    return law


class Tabled(Denoiser):
    """Notes the windows that it was asked for, with the rows of each."""

    name, tokenizer = "tabled", byte_tokenizer()
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(
        self, law: Law, *, context: int = 1000, vocabulary: Vocabulary = VOCABULARY
    ) -> None:
        self.law, self.context_length, self.vocabulary = law, context, vocabulary
        self.forwards: list[tuple[int, int, int]] = []  # rows, and the window on the canvas

    def forward(self, canvas: Canvas, window: slice, *, caching: bool = False) -> torch.Tensor:
        start = canvas.start
        self.forwards.append((len(canvas.tokens), window.start - start, window.stop - start))
        if caching and canvas.cache is None:
            assert window == slice(0, canvas.tokens.shape[1])
            canvas.cache = torch.arange(len(canvas.tokens))
        canvas.fresh = torch.zeros_like(canvas.is_real)
        canvas.fresh[:, window] = canvas.is_real[:, window]
        rows = []
        for row, real in zip(canvas.tokens.tolist(), canvas.is_real.tolist(), strict=True):
            prompt = [t for t, is_real in zip(row[:start], real[:start], strict=True) if is_real]
            logits = torch.zeros(len(row), SIZE)
            logits[start:] = self.law(prompt, row[start:])
            rows.append(logits[window])
        return torch.stack(rows)

    def select(self, canvas: Canvas, rows: Sequence[int]) -> Canvas:
        keep = list(rows)
        some = None if canvas.cache is None else canvas.cache[keep]
        return Canvas(canvas.tokens[keep], canvas.is_real[keep], canvas.length, some)


@cache
def decided(kind: Kind) -> MaskedDenoiser:
    """A random model that is often sure of itself, so that gates and samplers have work to do."""
    denoiser = tiny_denoiser(kind, seed=2)
    with torch.no_grad():
        denoiser.model.head.weight.mul_(2.5)
    return denoiser


class FirstLetter(Format):
    """The first Latin letter that something follows: random text has one, now here, now there."""

    def locate(self, text: str) -> Match | None:
        place = next((i for i, c in enumerate(text) if c.isascii() and c.isalpha()), None)
        if place is None:
            return None
        is_closed = place + 1 < len(text)
        return Match(
            value=text[place],
            begin=place,
            answer=(place, place + 1),
            end=place + 1 + is_closed,
            ending=Ending.CLOSED if is_closed else Ending.OPEN,
        )

    def agrees(self, value: str, reference: str) -> bool:
        return value == reference


FIRST_LETTER = FirstLetter(name="first_letter", hint="")


@cache
def _byte_ids() -> dict[int, int]:
    tokenizer = byte_tokenizer()
    return {
        byte: tokenizer.convert_tokens_to_ids("Ġ" if byte == 32 else chr(byte))
        for byte in range(32, 127)
    }
