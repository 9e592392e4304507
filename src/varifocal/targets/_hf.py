"""Targets on stock transformers models; each family fills in what only it knows."""

import hashlib
import inspect
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from varifocal.cache import KVCache, packed
from varifocal.errors import BadRequest
from varifocal.request import Request
from varifocal.target import Forward, Prompt, Target, Want
from varifocal.targets._chat import Instead, chat_ids, expand
from varifocal.targets._exact import EXACT_ROWS, exact_attention_name
from varifocal.targets._packed import Laid, lay_out, lay_out_all, packed_decoder
from varifocal.targets._refuse import (
    check_attention,
    check_decoder,
    check_generation,
    check_processor,
    check_tokenizer,
)
from varifocal.tree import DraftTree

_ALL = slice(None)


@dataclass(frozen=True)
class Pictures:
    """What a family's processor made of all pictures of a request."""

    pixels: dict[str, Tensor]  # for the vision tower
    written: list[list[int]]  # ids that take the place of each picture's placeholder


@dataclass(frozen=True)
class Seen:
    """What the vision tower and the projector made of all pictures."""

    features: Float[Tensor, "M D"]  # visual tokens in slot order
    extra: dict[str, Any] = field(default_factory=dict)  # for the decoder's prefill, by keyword


class HFTarget(Target):
    """A transformers model with a plain decoder inside.

    `exact_rows` makes logits bit-equal for plain and tree forwards: at least EXACT_ROWS rows
    per forward and attention whose sums do not depend on where entries lie in the cache.
    """

    def __init__(self, model: Any, processor: Any, name: str, *, exact_rows: bool = False) -> None:
        self.model, self.processor, self.name = model.eval(), processor, name
        self.tokenizer = getattr(processor, "tokenizer", processor)
        text_config = model.config.get_text_config()
        check_decoder(text_config, name)
        check_attention(text_config._attn_implementation, name)
        check_generation(getattr(model, "generation_config", None), name)
        self.check_config(model.config, name)
        check_tokenizer(self.tokenizer, name)
        if self.image_token is not None:
            check_processor(processor, self.image_token, name)
        self.check()
        self._text_model, self._lm_head = self.text_parts()
        self.exact_rows = exact_rows
        used = text_config._attn_implementation
        # What outside baselines run with.
        self.stock_attention = "sdpa" if used == exact_attention_name() else used
        if exact_rows:
            text_config._attn_implementation = exact_attention_name()
        self.vocab_size = int(self._lm_head.weight.shape[0])
        self.hidden_size = int(text_config.hidden_size)
        self.num_layers = int(text_config.num_hidden_layers)
        self.context_length = int(text_config.max_position_embeddings)
        self.eos_ids = _eos_ids(model, self.tokenizer)
        self.banned_ids = frozenset(_special_ids(self.tokenizer)) - self.eos_ids
        self.device, self.dtype = model.device, model.dtype
        self._fingerprint = ""
        self._packed_decoder: Any = None  # made when several requests first share a forward
        # Renamed in transformers 5.24; the decoder's signature tells which name it knows.
        known = inspect.signature(type(self._text_model).forward).parameters
        self._cache_keyword = "cache" if "cache" in known else "past_key_values"

    # -- what a family knows -------------------------------------------------------------------

    @abstractmethod
    def text_parts(self) -> tuple[Any, Any]:
        """The decoder without its head, and the head."""

    @abstractmethod
    def process_images(self, request: Request) -> Pictures:
        """Pixels, and what stands in the prompt for each picture: slots and what frames them."""

    @abstractmethod
    def see(self, prompt: Prompt) -> Seen:
        """Tower and projector on the prompt's pixels."""

    def positions(self, prompt: Prompt) -> Int64[Tensor, "*axes T"]:
        """Rotary positions of the prompt, with a leading axis of 3 where a family has M-RoPE.

        The text that follows goes on after the largest of them.
        """
        return torch.arange(len(prompt.tokens), device=self.device)

    @classmethod
    def load_processor(cls, path: str | Path) -> Any:
        """What makes tokens and pixels for this family, from a folder or hub id."""
        # Imported here: it takes two seconds.
        from transformers import AutoProcessor

        return AutoProcessor.from_pretrained(path)

    @classmethod
    def check_config(cls, config: Any, name: str) -> None:
        """Refuse with UnsupportedTarget what this family does not read, before weights are."""
        return

    def check(self) -> None:
        """Refuse with UnsupportedTarget files that do not belong together."""
        return

    tested: ClassVar[str] = "pictures and text"  # what the tests cover, for people
    model_types: ClassVar[tuple[str, ...]]  # of the checkpoints' config.json
    image_token: str | None = None  # a slot; the chat template writes one for each picture
    image_frame: ClassVar[tuple[str, str]] = ("", "")  # what the template writes around it

    # -- the contract --------------------------------------------------------------------------

    def encode(self, request: Request) -> Prompt:
        """Chat template, then one slot per visual token."""
        if request.images and self.image_token is None:
            raise BadRequest(
                f"{self.name} reads no pictures; leave them out or choose a VLM target"
            )
        pictures = self.process_images(request) if request.images else Pictures({}, [])
        ids = chat_ids(self.processor, request, self.name)
        tokens, image_of = expand(ids, self._image_id, pictures.written)
        self._check_length(request, len(tokens), sum(i >= 0 for i in image_of))
        return Prompt(
            torch.tensor(tokens, device=self.device),
            torch.tensor(image_of, device=self.device),
            {k: v.to(self.device) for k, v in pictures.pixels.items()},
            request,
        )

    def _check_length(self, request: Request, length: int, num_visual: int) -> None:
        """Refuse a prompt that with its answer is longer than the context."""
        room = self.context_length - length
        if request.max_new_tokens <= room:
            return
        taken = f"the prompt takes {length} tokens ({num_visual} of them for pictures)"
        if room < 1:
            shorter = "give fewer or smaller pictures, or shorten" if num_visual else "shorten"
            raise BadRequest(
                f"{taken}, but {self.name} holds {self.context_length} for prompt and answer "
                f"together, so no answer fits; {shorter} the text or earlier turns by at least "
                f"{1 - room} tokens"
            )
        raise BadRequest(
            f"{taken} and {request.max_new_tokens} more are asked for, but {self.name} holds "
            f"{self.context_length}; ask for at most {room}"
        )

    def encode_instead(self, request: Request, texts: Sequence[str]) -> Prompt:
        """As `encode`, with a text in the place of each picture and of what frames it."""
        before, after = self.image_frame
        shown = Instead(texts, before, self.image_token or "", after)
        ids = chat_ids(self.processor, request, self.name, shown)
        self._check_length(request, len(ids), 0)
        tokens = torch.tensor(ids, device=self.device)
        return Prompt(tokens, torch.full_like(tokens, -1), {}, request)

    def prefill(self, prompt: Prompt, want: Want) -> tuple[KVCache, Forward]:
        """One causal pass over the prompt, pictures in their slots."""
        return self.read(prompt, self.see(prompt) if prompt.pixels else None, want)

    def read(self, prompt: Prompt, seen: Seen | None, want: Want) -> tuple[KVCache, Forward]:
        """As `prefill`, with what the tower and the projector made of the pictures, if any."""
        embeddings, extra = self.embed(prompt.tokens), {}
        if seen is not None:
            slots = int(prompt.is_image.sum())
            if len(seen.features) != slots:
                raise RuntimeError(
                    f"{len(seen.features)} visual tokens for {slots} slots in {self.name}"
                )
            embeddings, extra = embeddings.clone(), seen.extra
            embeddings[prompt.is_image] = seen.features.to(embeddings.dtype)
        cache = KVCache(self.num_layers)
        positions = self.positions(prompt)
        final, hidden = self._run(embeddings, positions, None, cache.hf, want, **extra)
        cache.offset = int(positions.max()) + 1 - len(embeddings)
        return cache, _forward(self.head(final[-1:]), final, hidden, embeddings, want)

    def forward(
        self, trees: Sequence[DraftTree], caches: Sequence[KVCache], want: Want
    ) -> list[Forward]:
        """Each tree against its own cache, all of them in one pass over the weights.

        Where it fails (there may be no memory left), the caches are as they were.
        """
        lengths = [cache.length for cache in caches]
        try:
            if len(trees) == 1:
                return [self._forward(trees[0], caches[0], want)]
            return self._forward_packed(trees, caches, want) if trees else []
        except Exception:
            for cache, length in zip(caches, lengths, strict=True):
                cache.cut(length)
            raise

    def _forward(self, tree: DraftTree, cache: KVCache, want: Want) -> Forward:
        n = len(tree)
        laid = lay_out(tree, cache, self.dtype, rows=EXACT_ROWS if self.exact_rows else n)
        embeddings = self.embed(laid.tokens)
        final, hidden = self._run(embeddings, laid.positions, laid.mask, cache.hf, want)
        logits = self.head(final)  # of the idle rows too: the head's kernel depends on the count
        if len(laid) > n:  # their entries are dropped
            cache.keep(range(n), len(laid))
        return _forward(logits, final, hidden, embeddings, want, slice(n))

    def _forward_packed(
        self, trees: Sequence[DraftTree], caches: Sequence[KVCache], want: Want
    ) -> list[Forward]:
        """The rows of all trees in one sequence, see `_packed`."""
        laid = lay_out_all(trees, caches, self.dtype, exact=self.exact_rows)
        made = self._packed_rows(laid, caches, want, [len(tree) for tree in trees])
        for tree, cache, own in zip(trees, caches, laid, strict=True):
            if len(own) > len(tree):
                cache.keep(range(len(tree)), len(own))
        return made

    def forward_rows(
        self, laid: Sequence[Laid], caches: Sequence[KVCache], want: Want
    ) -> list[Forward]:
        """Rows that the caller laid out, for each cache its own, in one pass over the weights.

        Masks say what of its cache a row sees, and the caches grow by all rows: so a tree can be
        read level by level. No row is added where `exact_rows`.
        """
        if len(laid) > 1:
            return self._packed_rows(laid, caches, want, [len(own) for own in laid])
        embeddings = self.embed(laid[0].tokens)
        final, hidden = self._run(embeddings, laid[0].positions, laid[0].mask, caches[0].hf, want)
        return [_forward(self.head(final), final, hidden, embeddings, want)]

    def _packed_rows(
        self, laid: Sequence[Laid], caches: Sequence[KVCache], want: Want, counts: Sequence[int]
    ) -> list[Forward]:
        """What was computed for the first so many rows of each."""
        if self._packed_decoder is None:
            self._packed_decoder = packed_decoder(self._text_model)
        embeddings = self.embed(torch.cat([own.tokens for own in laid]))
        together = packed(caches, [len(own) for own in laid], [own.mask for own in laid])
        final, hidden = self._run(
            embeddings,
            torch.cat([own.positions for own in laid]),
            embeddings.new_zeros(1, 1, 1, 1),  # stands for a mask: none is made
            together,
            want,
            decoder=self._packed_decoder,
        )
        logits, made, begin = self.head(final), [], 0
        for own, count in zip(laid, counts, strict=True):
            rows = slice(begin, begin + count)
            made.append(_forward(logits, final, hidden, embeddings, want, rows))
            begin += len(own)
        return made

    def _run(
        self,
        embeddings: Float[Tensor, "N D"],
        positions: Int64[Tensor, "*axes N"],
        mask: Tensor | None,
        cache: Any,
        want: Want,
        decoder: Any = None,
        **extra: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The decoder on these rows; also the states leaving the wanted layers.

        `cache` is one of transformers.
        """
        decoder = self._text_model if decoder is None else decoder
        with _tapped(decoder.layers, want.layers) as taps:
            out = decoder(
                inputs_embeds=embeddings[None],
                attention_mask=mask,
                position_ids=positions.unsqueeze(-2),  # (1, N), or (3, 1, N) with M-RoPE
                use_cache=True,
                **{self._cache_keyword: cache},
                **extra,
            )
        hidden = torch.stack([taps[i] for i in want.layers], 1) if want.layers else None
        return out.last_hidden_state[0], hidden

    def embed(self, tokens: Int64[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        """The target's own input embeddings."""
        return self._text_model.embed_tokens(tokens)  # type: ignore[no-any-return]

    @property
    def readout(self) -> nn.Module:
        """The target's own LM head."""
        return self._lm_head  # type: ignore[no-any-return]

    def head(self, states: Float[Tensor, "*n D"]) -> Float[Tensor, "*n V"]:
        """The target's own LM head."""
        return self._lm_head(states)  # type: ignore[no-any-return]

    def decode(self, tokens: Sequence[int]) -> str:
        """Special tokens have no text."""
        return self.tokenizer.decode(  # type: ignore[no-any-return]
            list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def tokenize(self, text: str) -> list[int]:
        """Neither a begin token nor a template is added."""
        made = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return list(made["input_ids"])

    @property
    def fingerprint(self) -> str:
        """Digest of shapes, vocabulary and samples of every weight; computed once."""
        if not self._fingerprint:
            digest = hashlib.sha256()
            for name, weight in sorted(self.model.state_dict().items()):
                flat = weight.detach().reshape(-1)
                # Signs survive every change of precision, and no two trainings share them.
                signs = (flat[:: max(1, len(flat) // 256)][:256] > 0).cpu()
                digest.update(f"{name}{tuple(weight.shape)}".encode() + bytes(signs.tolist()))
            vocabulary = sorted(self.tokenizer.get_vocab().items())
            digest.update(repr(vocabulary).encode())
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint

    # -- joinery -------------------------------------------------------------------------------

    @property
    def _image_id(self) -> int:
        if self.image_token is None:
            return -1
        return int(self.tokenizer.convert_tokens_to_ids(self.image_token))


def _forward(
    logits: Tensor,
    final: Tensor,
    hidden: Tensor | None,
    embeddings: Tensor,
    want: Want,
    rows: slice = _ALL,
) -> Forward:
    """What was wanted, of these rows."""
    return Forward(
        logits[rows],
        hidden=None if hidden is None else hidden[rows],
        final=final[rows] if want.final else None,
        embeddings=embeddings[rows] if want.embeddings else None,
    )


@contextmanager
def _tapped(layers: Any, wanted: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Collect the states leaving the wanted layers (counted from 1) during one forward."""
    taps: dict[int, Tensor] = {}
    handles = []
    for number in wanted:

        def hook(_module: Any, _args: Any, out: Any, number: int = number) -> None:
            taps[number] = (out[0] if isinstance(out, tuple) else out)[0]

        handles.append(layers[number - 1].register_forward_hook(hook))
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    configured = getattr(generation, "eos_token_id", None)
    if configured is None:
        configured = tokenizer.eos_token_id
    ids = configured if isinstance(configured, list | tuple) else [configured]
    return frozenset(int(i) for i in ids if i is not None)


def _special_ids(tokenizer: Any) -> set[int]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {int(i) for i, t in added.items() if t.special} | set(tokenizer.all_special_ids)
