"""Small tokenizers of three kinds, and random tokenisations of a text with each."""

import json
from functools import cache
from itertools import pairwise
from random import Random

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from varifocal.diffusion.denoiser import Vocabulary

END, MASK, OTHER = "<|end|>", "<|mask|>", "<|other|>"
CORPUS = [
    "The answer is (B).",
    "The answer is 42.",
    "so #### 1,234\n",
    r"thus \boxed{\frac{1}{2}}",
    "<answer>red</answer>",
    '{"steps": 2, "path": "a b"}',
    "```python\ndef double(x):\n    return 2 * x\n```\n",
    "Yes, no. Größe 12€ 日本",
]


def vocabulary_of(tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
    """One stop token that pads too, as LLaDA and Dream have it."""
    end, mask = tokenizer.convert_tokens_to_ids([END, MASK])
    return Vocabulary(size=len(tokenizer) + 5, mask=mask, pad=end, stops=frozenset({end}))


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE whose merges run over spaces and into markers."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[AddedToken(t, special=True) for t in (END, MASK, OTHER)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS * 3, trainer)
    core.add_tokens([AddedToken("<think>", special=False)])
    return _wrapped(core)


@cache
def sentence_piece() -> PreTrainedTokenizerFast:
    """As Llama's: ▁ for a space, bytes for what has no token, one space stripped at the front."""
    core = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=440,
        special_tokens=["<unk>", END, MASK, OTHER, *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=[*map(chr, range(33, 127)), "▁"],
        limit_alphabet=100,
        show_progress=False,
    )
    core.train_from_iterator(CORPUS * 3, trainer)
    raw = json.loads(core.to_str())
    raw["added_tokens"] = [t for t in raw["added_tokens"] if not t["content"].startswith("<0x")]
    core = Tokenizer.from_str(json.dumps(raw))
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _wrapped(core)


@cache
def word_piece() -> PreTrainedTokenizerFast:
    """A kind whose tokens do not stand for bytes: a decoder sees the whole text."""
    pieces = ["[UNK]", END, MASK, OTHER, "the", "answer", "is", "yes", "no", "##w", "##er", "."]
    core = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    core.add_special_tokens([AddedToken(t, special=True) for t in (END, MASK, OTHER)])
    core.decoder = decoders.WordPiece(cleanup=False)
    return _wrapped(core)


def _wrapped(core: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=END,
        mask_token=MASK,
        additional_special_tokens=[OTHER],
        clean_up_tokenization_spaces=False,
    )


def tokenized(text: str, tokenizer: PreTrainedTokenizerFast, rng: Random) -> list[int]:
    """One of the many ways to write `text` with the tokens of a byte-level or llama-like one."""
    return _byte_ids(text, rng) if tokenizer is byte_level() else _piece_ids(text, rng)


def _byte_ids(text: str, rng: Random) -> list[int]:
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    written = "".join(word for word, _ in alphabet.pre_tokenize_str(text))
    return _pieced(written, _tokens("byte"), rng)


def _piece_ids(text: str, rng: Random) -> list[int]:
    known = _tokens("piece")
    ids = []
    for part in _parts(" " + text, rng):  # the space that the decoder strips
        if rng.random() < 0.2 or any(c not in known for c in part.replace(" ", "▁")):
            ids += [known[f"<0x{byte:02X}>"] for byte in part.encode()]
        else:
            ids += _pieced(part.replace(" ", "▁"), known, rng)
    return ids


def _parts(text: str, rng: Random) -> list[str]:
    cuts = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(len(text) // 4))})
    return [text[a:b] for a, b in pairwise(cuts)]


def _pieced(text: str, known: dict[str, int], rng: Random) -> list[int]:
    ids, at = [], 0
    while at < len(text):
        lengths = [n for n in range(1, 9) if text[at : at + n] in known and at + n <= len(text)]
        length = rng.choice(lengths)
        ids.append(known[text[at : at + length]])
        at += length
    return ids


@cache
def _tokens(kind: str) -> dict[str, int]:
    tokenizer = byte_level() if kind == "byte" else sentence_piece()
    special = {END, MASK, OTHER, "<unk>", "<think>"}
    return {token: i for token, i in tokenizer.get_vocab().items() if token not in special}
