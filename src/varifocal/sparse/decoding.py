"""Decode plain text with the language part of a target, a token at a time, over any cache."""

import inspect
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from varifocal.errors import BadOption, BadRequest, UnsupportedTarget
from varifocal.sparse.huggingface import use
from varifocal.sparse.indexer import Indexer, has_indexer, load_indexer
from varifocal.targets import load_target
from varifocal.targets._hf import HFTarget

TINY = "tiny"  # the long-context model of this package
_TINY_FOLDER = Path(__file__).parent / "weights" / "tiny"


def open_model(
    name: str, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> HFTarget:
    """A target by folder, hub id or as `tiny`, whose language part attends sparsely.

    Raises UnsupportedTarget where it cannot, as with sliding windows.
    """
    path = str(_tiny_folder()) if name == TINY else name
    target = load_target(path, dtype=dtype, device=device, exact_rows=False)
    target.name = name
    use(target.model)
    return target


def load_indexer_for(target: HFTarget, folder: Path | None = None) -> Indexer:
    """The indexer in a folder, by default the one beside the target's weights.

    Raises BadOption where there is none or it was trained for other weights.
    """
    if folder is None:
        folder = _tiny_folder() if target.name == TINY else Path(target.name)
        if not has_indexer(folder):
            raise BadOption(
                f"there is no indexer beside the weights of {target.name!r}: give --indexer DIR, "
                "train one with `python -m varifocal.sparse.train_indexer`, or choose quest or "
                "infllm"
            )
    indexer = load_indexer(folder)
    indexer.check_origin(target.name, target.fingerprint)
    return indexer


def _tiny_folder() -> Path:
    if not (_TINY_FOLDER / "config.json").is_file():
        raise UnsupportedTarget(
            f"the tiny long-context model is missing from {_TINY_FOLDER}; give --target a folder "
            "or hub id of a Llama or Qwen model, or of a vision-language model"
        )
    return _TINY_FOLDER


def dense_twin(target: HFTarget) -> HFTarget:
    """The same weights under the model's stock attention: the dense baseline."""
    tensors = [*target.model.parameters(), *target.model.buffers()]
    model = deepcopy(target.model, {id(tensor): tensor for tensor in tensors})
    model.config.get_text_config()._attn_implementation = target.stock_attention
    return type(target)(model, target.processor, target.name)


def text_ids(target: HFTarget, text: str) -> list[int]:
    """The ids of a text as it is, with the begin token that the tokenizer sets.

    A text that the vocabulary mostly lacks is refused: nothing could be learned from it.
    """
    ids = list(target.tokenizer(text, split_special_tokens=True)["input_ids"])
    unknown = target.tokenizer.unk_token_id
    if unknown is not None and ids.count(unknown) > len(ids) / 10:
        raise BadRequest(
            f"{target.name} knows none of {ids.count(unknown)} of the text's {len(ids)} words; "
            "give it a text of its own language, or choose another model"
        )
    return ids


class Decoder:
    """One text of one target over one cache of transformers, sparse or dense; greedy."""

    def __init__(self, target: HFTarget, cache: Any, length: int = 0) -> None:
        self.cache, self.length = cache, length
        self._target = target
        self._model, _ = target.text_parts()
        known = inspect.signature(type(self._model).forward).parameters
        self._keyword = "cache" if "cache" in known else "past_key_values"

    @property
    def device(self) -> torch.device:
        """Of the target."""
        return self._target.device

    def read(self, tokens: Int64[Tensor, " N"]) -> Float[Tensor, " V"]:
        """Append tokens; the logits behind the last of them."""
        return self.read_all(tokens, last=1)[0]

    @torch.no_grad()
    def read_all(self, tokens: Int64[Tensor, " N"], last: int) -> Float[Tensor, "last V"]:
        """Append tokens; the logits behind each of the `last` ones."""
        end = self.length + len(tokens)
        if end > self._target.context_length:
            raise BadRequest(
                f"{self._target.name} holds {self._target.context_length} tokens, got {end}: "
                "shorten the text or ask for fewer tokens"
            )
        positions = torch.arange(self.length, end, device=self._target.device)
        out = self._model(
            inputs_embeds=self._target.embed(tokens)[None],
            position_ids=positions[None],
            use_cache=True,
            **{self._keyword: self.cache},
        )
        self.length = end
        logits: Tensor = self._target.head(out.last_hidden_state[0, -last:])
        return logits

    def branch(self, cache: Any) -> "Decoder":
        """Another text that goes on from here, over a copy of this cache that the caller made."""
        return Decoder(self._target, cache, self.length)
