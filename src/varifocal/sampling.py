"""From logits to tokens; the noise that decides a token belongs to its output position."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from varifocal.errors import BadRequest
from varifocal.result import TokenLogprob

# Beyond these a division in float32 overflows, or what is left is the limit itself.
_COLDEST, _HOTTEST = 1e-6, 1e30


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is chosen. The default is greedy.

    Logits pass the settings in the order of transformers' `generate`: `logit_bias`, the three
    penalties, `bad_words`, `min_new_tokens` (these in greedy decoding too; see `processors`), then
    `temperature`, `top_k`, `top_p`, `min_p`. What is left is the law p. A token is drawn as
    argmax(log p + Gumbel noise), and the noise is a function of (seed, output position, token)
    alone: any drafter, or none, gives the same text. [Daliri24]
    """

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # keep the k likeliest tokens; 0 keeps all
    top_p: float = 1.0  # keep the smallest set with at least this mass
    min_p: float = 0.0  # keep tokens at least this fraction as likely as the likeliest
    # Divides the positive and multiplies the negative logits of tokens that stand in the prompt
    # (picture slots have the placeholder's id, as in transformers) or in the answer.
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0  # taken off the logit of every token that the answer has
    frequency_penalty: float = 0.0  # taken off once for each time that the answer has it
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)  # added to logits
    # Never to be completed: token ids, or a text, which stands for the ways in which the target's
    # tokenizer writes it with and without a space before it. Other splits of the same letters into
    # tokens stay possible.
    bad_words: Sequence[str | Sequence[int]] = ()
    min_new_tokens: int = 0  # tokens before an end token may come; stop texts end an answer sooner
    seed: int = 0

    def __post_init__(self) -> None:
        if not _is_number(self.temperature) or self.temperature < 0:
            raise BadRequest(
                f"temperature must be 0 (greedy) or a positive number, got {self.temperature!r}"
            )
        _check_count("top_k", self.top_k)
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise BadRequest(f"top_p must be in (0, 1], got {self.top_p!r}; 1 is off")
        if not _is_number(self.min_p) or not 0 <= self.min_p <= 1:
            raise BadRequest(f"min_p must be in [0, 1], got {self.min_p!r}; 0 is off")
        # A wider range would overflow float32 and so lose the order of the tokens.
        if not _is_number(self.repetition_penalty) or not 0.01 <= self.repetition_penalty <= 100:
            raise BadRequest(
                f"repetition_penalty must be in [0.01, 100], got {self.repetition_penalty!r}; 1 is "
                "off, 1.1 to 1.3 is usual"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not _is_number(value) or not -2 <= value <= 2:
                raise BadRequest(f"{name} must be in [-2, 2], got {value!r}; 0 is off")
        _check_count("min_new_tokens", self.min_new_tokens)
        if not _is_whole(self.seed) or not 0 <= self.seed < 2**63:
            raise BadRequest(f"seed must be a whole number in [0, 2**63), got {self.seed!r}")
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        object.__setattr__(self, "bad_words", _words(self.bad_words))

    @property
    def changes_logits(self) -> bool:
        """Whether logits are processed before a token is chosen from them."""
        return bool(
            self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or self.bad_words
            or self.min_new_tokens
        )

    @property
    def idle_when_greedy(self) -> list[str]:
        """Settings that were given but change nothing at temperature 0."""
        if self.temperature > 0:
            return []
        given = {"top_k": self.top_k > 0, "top_p": self.top_p < 1, "min_p": self.min_p > 0}
        return [name for name, is_given in given.items() if is_given]

    def pick(
        self, logits: Float[Tensor, "N V"], position: Int64[Tensor, " N"]
    ) -> Int64[Tensor, " N"]:
        """The target's own token for each row; rows at one output position share their noise."""
        if self.temperature == 0:
            return logits.argmax(-1)
        used, row = torch.unique(position, return_inverse=True)
        noise = gumbel(self.seed, used, logits.shape[-1])
        return (self.filtered(logits) + noise[row]).argmax(-1)

    def filtered(self, logits: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """log p up to a constant, -inf for tokens that the filters remove; float32."""
        scores = logits.float()
        # Dividing the distance to the best logit keeps tiny temperatures finite.
        scores = (scores - scores.amax(-1, keepdim=True)) / min(
            max(self.temperature, _COLDEST), _HOTTEST
        )
        if 0 < self.top_k < scores.shape[-1]:
            limit = scores.topk(self.top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < limit, -math.inf)
        if self.top_p < 1:
            ordered, order = scores.sort(dim=-1, descending=True)
            mass = ordered.softmax(-1).cumsum(-1)
            drop = torch.zeros_like(mass, dtype=torch.bool)
            drop[:, 1:] = mass[:, :-1] >= self.top_p  # the token that crosses top_p stays
            scores = scores.masked_fill(drop.scatter(-1, order, drop), -math.inf)
        if self.min_p > 0:  # the likeliest token is never removed: its score is 0
            scores = scores.masked_fill(scores < math.log(self.min_p), -math.inf)
        return scores


def logprobs_of(
    logits: Float[Tensor, "N V"], tokens: Sequence[int], num_best: int
) -> list[TokenLogprob]:
    """What the target itself thought of these tokens: log softmax of its logits in float32.

    Of the raw logits, before any setting of `Sampling`, temperature included (OpenAI's meaning).
    """
    law = logits.float().log_softmax(-1)
    best, ids = law.topk(num_best, dim=-1)
    index = torch.tensor(tokens, device=logits.device)[:, None]
    values = torch.cat([law.gather(-1, index), best], -1).tolist()
    return [
        TokenLogprob(token=token, logprob=row[0], best=tuple(zip(others, row[1:], strict=True)))
        for token, row, others in zip(tokens, values, ids.tolist(), strict=True)
    ]


def gumbel(seed: int, position: Int64[Tensor, " P"], vocab: int) -> Float[Tensor, "P V"]:
    """Gumbel noise from a counter-based hash of (seed, position, token); no generator state."""
    token = torch.arange(vocab, device=position.device)
    key = _mix(_mix(position + _wrap(seed * 0x9E3779B97F4A7C15))[:, None] + token[None])
    # u in (0, 1) with 32 bits; E = -log(1 - u) keeps its precision where E is small, which is
    # where the Gumbel -log(E) is large and decides.
    u = (
        ((key >> 20 & 0xFFFFFFFF).double() + 0.5) / 2**32
        if key.device.type != "mps"
        else ((key >> 20 & 0xFFFFFF).float() + 0.5) / 2**24
    )
    return -(-torch.log1p(-u)).log().float()


def _mix(x: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
    """The finaliser of splitmix64 in wrapping 64-bit arithmetic."""
    x = (x ^ _shift(x, 30)) * _wrap(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _wrap(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Int64[Tensor, "..."], bits: int) -> Int64[Tensor, "..."]:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # logical: torch's >> keeps the sign


def _wrap(value: int) -> int:
    """The signed 64-bit number with the same low 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


def _is_number(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]  # it is one


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadRequest(f"{name} must be 0 (off) or a positive count, got {value!r}")


def _bias(given: Mapping[int, float]) -> dict[int, float]:
    """A copy of its own, checked but for what only the target knows."""
    if not isinstance(given, Mapping):
        raise BadRequest(f"logit_bias must map token ids to numbers, got {given!r}")
    for token, value in given.items():
        if not _is_whole(token) or token < 0:
            raise BadRequest(f"logit_bias is for token ids, whole numbers from 0; got {token!r}")
        if not _is_number(value) or not -100 <= value <= 100:
            raise BadRequest(
                f"logit_bias must be in [-100, 100], got {value!r} for token {token}; to exclude a "
                "token for certain use bad_words"
            )
    return {token: float(given[token]) for token in sorted(given)}


def _words(given: Sequence[str | Sequence[int]]) -> tuple[str | tuple[int, ...], ...]:
    """Texts as they are, token ids as tuples."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise BadRequest(f"bad_words must be a list of texts or of lists of ids, got {given!r}")
    words: list[str | tuple[int, ...]] = []
    for word in given:
        if isinstance(word, str):
            if not word.strip():
                raise BadRequest(f"bad_words must hold more than spaces, got {word!r}")
            words.append(word)
            continue
        is_list = isinstance(word, Sequence) and len(word) > 0
        if not is_list or not all(_is_whole(token) and token >= 0 for token in word):
            raise BadRequest(
                f"bad_words wants texts or lists of token ids, whole numbers from 0; got {word!r}"
            )
        words.append(tuple(word))
    return tuple(words)
