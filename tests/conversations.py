"""Conversations with pictures for any family, and what transformers itself makes of them."""

from functools import cache
from typing import Any

from checkpoints import built, families
from tiny import picture

from varifocal.request import Message, Request

QUESTIONS = ("what is it?", "and its colour? <3", "compare them, please.")


def conversation(name: str, pictures: int, turns: int, **settings: Any) -> Request:
    """Pictures (as many as the family takes) before the first question; later turns are text."""
    family = families()[name]
    sizes = family.sizes[: min(pictures, family.max_pictures)]
    shown = [picture(seed, size) for seed, size in enumerate(sizes)]
    messages = [Message("user", (*shown, QUESTIONS[0]))]
    for later in range(1, turns):
        messages.append(Message("assistant", ("it is a chart.",)))
        messages.append(Message("user", (QUESTIONS[later],)))
    return Request(messages=tuple(messages), **settings)


@cache
def own_processor_of(name: str) -> Any:
    """The family's processor in transformers."""
    return families()[name].reference(built(name))


def own_inputs(name: str, request: Request) -> dict[str, Any]:
    """What that processor makes of a request, as keywords of the model."""
    reads_pictures = bool(families()[name].max_pictures)
    messages = [
        {"role": m.role, "content": _content(m) if reads_pictures else "".join(map(str, m.parts))}
        for m in request.messages
    ]
    made = own_processor_of(name).apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    made.pop("token_type_ids", None)
    return dict(made)


def _content(message: Message) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p}
        for p in message.parts
    ]
