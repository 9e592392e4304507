"""What transformers is told of sparse attention: a name, a mask, a cache's layers, and a hook.

Keys live in a cache that attends by itself; in place of keys the attention function gets a
`Reading` of it. transformers gives attention functions no hidden states, which an indexer reads: a
hook hands them to the cache that the forward was given. Nothing of a request is kept here or on
the model.
"""

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

from varifocal.cache import check_cacheable
from varifocal.errors import BadRequest, UnsupportedTarget

NAME = "varifocal_sparse"


def use(model: Any) -> None:
    """Let a model's language part attend sparsely, once it is given a `SparseCache`."""
    config = model.config.get_text_config()
    check_cacheable(config, str(config.model_type))
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _mask)
    is_part = config is not model.config  # the tower of a VLM keeps its own attention
    model.set_attn_implementation({"text_config": NAME} if is_part else NAME)


def listen(model: Any) -> None:
    """Hand caches that attend what enters attention, from now on; again changes nothing."""
    for attention in _attentions(model):
        if _hand_over not in attention._forward_pre_hooks.values():
            attention.register_forward_pre_hook(_hand_over, with_kwargs=True)


def _attentions(model: Any) -> list[nn.Module]:
    try:
        return [layer.self_attn for layer in model.get_decoder().layers]
    except AttributeError as error:
        raise UnsupportedTarget(
            f"an indexer reads what enters layers[i].self_attn of the decoder, as Llama and Qwen "
            f"have it; {type(model).__name__} has another structure ({error}): choose quest or "
            "infllm"
        ) from error


@dataclass(frozen=True)
class Entering:
    """What enters a layer's attention: normed hidden states, and the rotation of their places."""

    hidden: Float[Tensor, "*n E"]
    cos: Float[Tensor, "*n P"]
    sin: Float[Tensor, "*n P"]

    def at(self, rows: Int64[Tensor, " q"], places: Int64[Tensor, " q"]) -> "Entering":
        """Of single tokens."""
        return Entering(*(part[rows, places] for part in (self.hidden, self.cos, self.sin)))


class AttendingCache(Cache, ABC):
    """A cache that attends by itself; after `listen` it is handed what enters attention."""

    @abstractmethod
    def enter(self, layer: int, entering: Entering) -> None:
        """Of the tokens [R, N] of this forward, padding included; `attend` comes next."""

    @abstractmethod
    def attend(
        self, layer: int, query: Tensor, reading: "Reading", mask: Tensor | None, scale: float
    ) -> Tensor:
        """From the new tokens to all: [R, Hq, N, D] to [R, N, Hq, D]."""


def _hand_over(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    cache = kwargs.get("cache", kwargs.get("past_key_values"))  # before transformers 5.24
    if not isinstance(cache, AttendingCache):
        return
    hidden = args[0] if args else kwargs["hidden_states"]
    cos, sin = kwargs["position_embeddings"]
    if cos.ndim != 3:
        raise UnsupportedTarget(
            f"an indexer rotates by one place a token; this model gives {cos.shape[0]}: choose "
            "quest or infllm"
        )
    rows = len(hidden)  # positions may be given once for all rows
    entering = Entering(hidden, cos.expand(rows, -1, -1), sin.expand(rows, -1, -1))
    cache.enter(int(module.layer_idx), entering)  # type: ignore[arg-type]  # of every decoder's


@dataclass(frozen=True)
class Reading:
    """What the attention function gets for keys: the new ones, and the cache they belong to."""

    cache: AttendingCache
    layer: int
    keys: Tensor  # [R, H, N, D], padding included
    values: Tensor


class Layer(CacheLayerMixin):
    """What transformers asks of one layer: lengths. The tokens are appended when attending."""

    is_sliding = False
    is_compileable = False
    is_croppable = True

    def __init__(self, owner: AttendingCache, number: int) -> None:
        super().__init__()
        self._owner, self._number, self.columns = owner, number, 0

    def under(self, owner: AttendingCache) -> Self:
        """The same layer of another cache."""
        twin = copy(self)
        twin._owner = owner
        return twin

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Reading, Reading]:
        self.lazy_initialization(key_states, value_states)
        self.columns += key_states.shape[2]
        reading = Reading(self._owner, self._number, key_states, value_states)
        return reading, reading

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.columns + query_length, 0

    def get_seq_length(self) -> int:
        return self.columns

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.15

    def crop(self, tokens_to_remove: int) -> None:
        self.columns -= abs(tokens_to_remove)

    def reset(self) -> None:
        raise BadRequest("a SparseCache serves one batch: make a new one for the next")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        raise BadRequest("sparse attention decodes without beams: leave num_beams at 1")

    batch_repeat_interleave = batch_select_indices = reorder_cache


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Any,
    value: Any,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls."""
    if not isinstance(key, Reading):
        raise BadRequest(
            "sparse attention reads its own cache: pass cache=SparseCache(model, Reach(...)), or "
            "choose another attention implementation for forwards without one"
        )
    unknown = [name for name in ("softcap", "s_aux") if options.get(name) is not None]
    if dropout or unknown or options.get("sliding_window"):
        wanted = unknown or (["dropout"] if dropout else ["sliding_window"])
        raise UnsupportedTarget(f"sparse attention has no {', '.join(wanted)}; this model needs it")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return key.cache.attend(key.layer, query, key, attention_mask, scale), None


def _mask(
    *, attention_mask: Tensor | None = None, mask_function: Any = causal_mask_function, **_: Any
) -> Tensor | None:
    """The padding mask as it is; what is causal follows from the cache."""
    if mask_function is not causal_mask_function:
        raise UnsupportedTarget(
            "sparse attention is causal; this model lets some tokens see later ones, or packs "
            "several texts into one row"
        )
    return attention_mask


def real_tokens(mask: Tensor | None, rows: int, new: int, device: torch.device) -> Tensor:
    """Which of the new tokens are no padding: [R, N]."""
    if mask is None or mask.ndim == 4:
        return torch.ones(rows, new, dtype=torch.bool, device=device)
    return mask[:, -new:].bool()
