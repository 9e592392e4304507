"""Whether a draft model writes text with the target's ids: vocabularies, ends, probe texts."""

from typing import Any

from varifocal.errors import BadOption, DrafterMismatch
from varifocal.target import Target
from varifocal.targets._chat import ids_inside

# Spaces, digits, case, scripts, marks, code: where tokenizers with equal words still part ways.
_PROBES = (
    "The picture shows a red circle.",
    " two  spaces,\ta tab\nand a line",
    "It's 3.14159 or 1,234,567 - $5.00 (10 %)?",
    "Äpfel, naïve café, ÉCOLE; e\u0301",
    "猫が3匹います。 Привет, мир! مرحبا",
    "👩\u200d🚀 ½ … “quoted”",
    "def f(x):\n    return x[0] ** 2  # <b>bold</b>",
)
_WAY_OUT = (
    "take a smaller model of the target's own family (they are published with one tokenizer), or "
    "one that was trained with its tokenizer"
)


def check_same_ids(target: Target, model: Target) -> None:
    """Refuse a draft model whose ids of text are not the target's.

    Special tokens may differ, such as the placeholder of a picture or those of the chat template:
    the draft model reads prompts of its own, and they are never drafted. An end token of the target
    must not be another token of the draft model. Raises DrafterMismatch, or BadOption where the
    target knows ids only.
    """
    theirs, ours = _tokenizer(target), _tokenizer(model)
    wanted, came = _vocabulary(theirs), _vocabulary(ours)
    differ = [token for token in wanted.keys() & came.keys() if wanted[token] != came[token]]
    special = _special(theirs) | _special(ours)
    foreign = [token for token in wanted.keys() ^ came.keys() if token not in special]
    wrong = sorted({t for t in differ if t not in special} | set(foreign), key=_order(wanted))
    if wrong:
        token = wrong[0]
        raise _mismatch(
            target,
            model,
            f"{len(wrong)} of {len(wanted.keys() | came.keys())} words have other ids: "
            f"{token!r} is {_said(wanted, token)} for the target and {_said(came, token)} for the "
            "draft model",
        )
    _check_ends(target, model, wanted, came)
    for text in _PROBES:  # inside a text: how one begins is a matter of the prompt
        right, drafted = ids_inside(theirs, text), ids_inside(ours, text)
        if right != drafted:
            raise _mismatch(
                target,
                model,
                f"the words are the same, but they divide {text!r} differently: the target into "
                f"{right[:12]}, the draft model into {drafted[:12]}",
            )


def _check_ends(
    target: Target, model: Target, wanted: dict[str, int], came: dict[str, int]
) -> None:
    """An end that is something else for the draft model would be drafted for what it is there."""
    ends = {token: number for token, number in wanted.items() if number in target.eos_ids}
    names = {number: token for token, number in came.items()}
    for token, number in ends.items():
        if names.get(number, token) != token:
            raise _mismatch(
                target,
                model,
                f"{number} ends an answer of the target ({token!r}) and is {names[number]!r} for "
                "the draft model",
            )


def _tokenizer(target: Target) -> Any:
    tokenizer: Any = getattr(target, "tokenizer", None)
    if not hasattr(tokenizer, "get_vocab") or getattr(tokenizer, "knows_ids_only", False):
        raise BadOption(
            f"{target.name} comes without a tokenizer, so it cannot be seen whether the draft "
            "model writes with its ids; give tokenizer= (the model's tokenizer or processor)"
        )
    return tokenizer


def _vocabulary(tokenizer: Any) -> dict[str, int]:
    return dict(tokenizer.get_vocab())


def _special(tokenizer: Any) -> set[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return {str(token) for token in added} | set(tokenizer.all_special_tokens)


def _order(wanted: dict[str, int]) -> Any:
    return lambda token: (wanted.get(token, len(wanted)), token)


def _said(vocabulary: dict[str, int], token: str) -> str:
    return str(vocabulary[token]) if token in vocabulary else "no word"


def _mismatch(target: Target, model: Target, reason: str) -> DrafterMismatch:
    return DrafterMismatch(
        f"{model.name} cannot draft for {target.name}, because it writes text with other ids: "
        f"{reason}. Every drafted token is checked by its id, so an ensemble needs the target's "
        f"tokenizer; {_WAY_OUT}"
    )
