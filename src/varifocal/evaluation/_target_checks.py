"""Checks of the target alone: template, tokenizer, end tokens, context, attention, pictures."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from PIL import Image

from varifocal.errors import BadImage
from varifocal.evaluation._findings import Finding, attempt, skipped
from varifocal.evaluation.suites import Case
from varifocal.request import Message, Request, ask
from varifocal.target import Prompt
from varifocal.targets._hf import HFTarget

TEXTS = ("Hello, world. 12.5 % of 3,400?", "naïve café, Größe", "日本語 😀", "one\n  two\tthree")
SIZES = ((50, 50), (97, 31), (31, 200), (301, 77), (640, 480))  # width, height; odd on purpose
_QUESTION = "What is shown here?"
_ANSWER = "Seven zebras"


def check_target(target: HFTarget, cases: Sequence[Case]) -> list[Finding]:
    """All checks that need no drafter and no decoding."""
    checks: dict[str, Callable[[str, HFTarget], Finding]] = {
        "target.template": _template,
        "target.tokenizer": _tokenizer,
        "target.typed": _typed,
        "target.eos": _eos,
        "target.context": partial(_context, cases=cases),
        "target.attention": _attention,
        "target.pictures": _pictures,
    }
    return [attempt(name, partial(check, name, target)) for name, check in checks.items()]


def _template(check: str, target: HFTarget) -> Finding:
    """It takes a question, and pictures in their order where the target reads any."""
    pictures = [] if target.image_token is None else [_grey(64, 48), _grey(48, 64)]
    request = Request(
        messages=(Message("user", (*pictures, _QUESTION)),), max_new_tokens=1, id="doctor"
    )
    prompt = target.encode(request)
    text = target.decode(prompt.tokens[~prompt.is_image].tolist())
    slots = [int((prompt.image_of == number).sum()) for number in range(len(pictures))]
    numbers = {"slots": slots, "tokens": len(prompt.tokens)}
    order = [n for n in prompt.image_of.tolist() if n >= 0]
    if _QUESTION not in text:
        return Finding(
            check=check,
            verdict="fault",
            measured=f"the rendered prompt lacks the question: {text[:80]!r}",
            way_out="compare chat_template.jinja with that of the model's family",
            numbers=numbers,
        )
    if 0 in slots or any(a > b for a, b in pairwise(order)):
        return Finding(
            check=check,
            verdict="fault",
            measured=f"two pictures got {slots} slots, or stand in another order than asked",
            way_out="compare chat_template.jinja and the processor with those of the family",
            numbers=numbers,
        )
    placed = f"; two pictures got {slots[0]} and {slots[1]} slots, in order" if slots else ""
    return Finding(
        check=check, verdict="ok", measured=f"it takes a question{placed}", numbers=numbers
    )


def _tokenizer(check: str, target: HFTarget) -> Finding:
    """Text comes back as it went in."""
    changed = [text for text in TEXTS if _there_and_back(target, text) != text]
    names = sorted(_special_names(target))
    typed = f"is {' or '.join(names[:8])} text?"
    special = _special_ids(target) & set(target.tokenize(typed))
    if special:
        return Finding(
            check=check,
            verdict="fault",
            measured=f"{typed!r} is read with the special ids {sorted(special)}",
            way_out="the tokenizer ignores split_special_tokens: use the fast tokenizer "
            "(tokenizer.json) of the model's family",
            numbers={"changed": changed, "special": sorted(special)},
        )
    if changed:
        return Finding(
            check=check,
            verdict="warning",
            measured=f"{len(changed)} of {len(TEXTS)} texts come back changed, the first is "
            f"{changed[0]!r} -> {_there_and_back(target, changed[0])!r}",
            way_out="harmless where the vocabulary lacks these characters; otherwise compare "
            "tokenizer.json with where the model was published",
            numbers={"changed": changed, "special": []},
        )
    return Finding(
        check=check,
        verdict="ok",
        measured=f"{len(TEXTS)} texts and {len(names)} names of special tokens come back unchanged",
        numbers={"changed": [], "special": []},
    )


def _typed(check: str, target: HFTarget) -> Finding:
    """Names of special tokens that a user types add no slot and no special token."""
    pictures = [] if target.image_token is None else [_grey(64, 48)]
    names = " ".join(sorted(_special_names(target)))
    if not names:
        return skipped(check, "the tokenizer has no special tokens")
    plain, typed = (
        target.encode(ask(f"is {words} here?", pictures, max_new_tokens=1))
        for words in ("it", names)
    )
    added = _count_special(target, typed) - _count_special(target, plain)
    slots = int(typed.is_image.sum() - plain.is_image.sum())
    numbers = {"special_added": added, "slots_added": slots}
    if added or slots:
        return Finding(
            check=check,
            verdict="fault",
            measured=f"typing {names!r} adds {added} special tokens and {slots} picture slots",
            way_out="a user could break the conversation apart; use the fast tokenizer "
            "(tokenizer.json) of the model's family",
            numbers=numbers,
        )
    return Finding(
        check=check, verdict="ok", measured=f"typed {names!r} stays text", numbers=numbers
    )


def _eos(check: str, target: HFTarget) -> Finding:
    """There are end tokens, they are in the vocabulary, and turns of the template end in one."""
    ids = sorted(target.eos_ids)
    names = [str(target.tokenizer.convert_ids_to_tokens(i)) for i in ids]
    numbers = {"eos_ids": ids, "eos_tokens": names}
    outside = [i for i in ids if not 0 <= i < target.vocab_size]
    if outside or not ids:
        return Finding(
            check=check,
            verdict="fault",
            measured=f"the end tokens {ids} are not in the vocabulary of {target.vocab_size}"
            if outside
            else "there is no end token: every answer runs to its budget",
            way_out="put the right eos_token_id into generation_config.json",
            numbers=numbers,
        )
    ending = _turn_end(target)
    if ending is not None and ending not in target.eos_ids:
        name = target.tokenizer.convert_ids_to_tokens(ending)
        return Finding(
            check=check,
            verdict="warning",
            measured=f"the template ends an answer with {name!r} ({ending}), but the end tokens "
            f"are {names}",
            way_out=f"add {ending} to eos_token_id in generation_config.json if answers do not end",
            numbers=numbers,
        )
    return Finding(
        check=check, verdict="ok", measured=f"answers end with {', '.join(names)}", numbers=numbers
    )


def _context(check: str, target: HFTarget, cases: Sequence[Case]) -> Finding:
    """The requests at hand fit."""
    longest = max((len(target.encode(c.request).tokens) for c in cases), default=0)
    return Finding(
        check=check,
        verdict="ok",
        measured=f"it holds {target.context_length} tokens; the longest prompt here has {longest}",
        numbers={"context_length": target.context_length, "longest_prompt": longest},
    )


def _attention(check: str, target: HFTarget) -> Finding:
    """Which kernels compute attention, and whether rounding may show."""
    used = target.model.config.get_text_config()._attn_implementation
    dtype = str(target.dtype).removeprefix("torch.")
    numbers = {
        "attention": used,
        "stock_attention": target.stock_attention,
        "exact_rows": target.exact_rows,
        "dtype": dtype,
    }
    said = "on" if target.exact_rows else "off"
    effect = "texts are the same to the bit"
    if not target.exact_rows:
        effect = (
            "texts are the same in practice"
            if target.dtype == torch.float32
            else "texts may differ at near-ties of two tokens"
        )
    return Finding(
        check=check,
        verdict="ok",
        measured=f"full attention in all {target.num_layers} layers, by {used} in {dtype}; exact "
        f"rows are {said}: {effect}",
        numbers=numbers,
    )


@torch.inference_mode()
def _pictures(check: str, target: HFTarget) -> Finding:
    """As many features as slots and regions, for pictures of odd sizes."""
    if target.image_token is None:
        return skipped(check, f"{target.name} reads no pictures")
    counts: dict[str, int] = {}
    wrong, refused = [], []
    for width, height in SIZES:
        size = f"{width}x{height}"
        try:
            prompt = target.encode(ask(_QUESTION, [_grey(width, height)], max_new_tokens=1))
        except BadImage:
            refused.append(size)
            continue
        slots = counts[size] = int(prompt.is_image.sum())
        features, regions = len(target.see(prompt).features), len(target.regions(prompt))
        if not slots == features == regions:
            wrong.append(f"{size}: {slots} slots, {features} features, {regions} regions")
    if wrong:
        return Finding(
            check=check,
            verdict="fault",
            measured="; ".join(wrong),
            way_out="processor_config.json, preprocessor_config.json and config.json do not belong "
            "together; copy all three from where the model was published",
            numbers={"tokens": counts},
        )
    few, many = min(counts.values(), default=0), max(counts.values(), default=0)
    more = f"; {', '.join(refused)} are refused by name" if refused else ""
    return Finding(
        check=check,
        verdict="ok",
        measured=f"slots equal features for {len(counts)} odd sizes: {few} to {many} tokens{more}",
        numbers={"tokens": counts},
    )


def _there_and_back(target: HFTarget, text: str) -> str:
    """Some tokenizers write a space in front of every text, which is none of its own."""
    return target.decode(target.tokenize(text)).removeprefix(" ")


def _turn_end(target: HFTarget) -> int | None:
    """The special token right after an answer in a rendered conversation, if there is one."""
    talk = (
        Message("user", (_QUESTION,)),
        Message("assistant", (_ANSWER,)),
        Message("user", (_QUESTION,)),
    )
    tokens: list[int] = target.encode(Request(messages=talk, max_new_tokens=1)).tokens.tolist()
    special = _special_ids(target)
    turn: list[int] = []  # since the last special token, which is `before`
    before = opener = None
    for token in tokens:
        if token not in special:
            turn.append(token)
            continue
        text = target.decode(turn).strip()
        if opener is None and text.endswith(_QUESTION):
            opener = before
        if text.endswith(_ANSWER):
            # Where turns only begin with a token, the next user's says nothing about an end.
            return None if token == opener else token
        turn, before = [], token
    return None


def _special_ids(target: HFTarget) -> set[int]:
    return set(target.banned_ids | target.eos_ids)


def _special_names(target: HFTarget) -> set[str]:
    names = target.tokenizer.convert_ids_to_tokens(sorted(_special_ids(target)))
    return {name for name in names if name}


def _count_special(target: HFTarget, prompt: Prompt) -> int:
    special = _special_ids(target)
    return sum(t in special for t in prompt.tokens[~prompt.is_image].tolist())


def _grey(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), "grey")
