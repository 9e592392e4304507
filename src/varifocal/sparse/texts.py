"""Long texts to decode: files, or the documentation that comes with Python."""

from collections.abc import Sequence
from pathlib import Path

import torch

from varifocal.errors import BadRequest
from varifocal.sparse.contest import Sample
from varifocal.sparse.decoding import text_ids
from varifocal.targets._hf import HFTarget


def read_text(path: Path) -> str:
    """A text in UTF-8."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadRequest(f"the text {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"the text {path} is not UTF-8: {error}") from error
    if not text.strip():
        raise BadRequest(f"the text {path} is empty")
    return text


def documentation() -> str:
    """Python's reference by topic, some 460,000 characters of English and code."""
    from pydoc_data.topics import topics  # half a megabyte that only this reads

    return "\n\n".join(topics[name] for name in sorted(topics))


def windows(
    target: HFTarget, texts: Sequence[tuple[str, str]], context: int, given: int, count: int
) -> list[Sample]:
    """`count` windows of each (name, text), evenly spread: `context` tokens, then `given` more."""
    samples = []
    for name, text in texts:
        ids = torch.tensor(text_ids(target, text), device=target.device)
        begins = int(ids[:1] == target.tokenizer.bos_token_id)  # every window begins like a text
        begin, ids = ids[:begins], ids[begins:]
        cut = context - begins
        room = len(ids) - cut - given
        if room < 0:
            raise BadRequest(
                f"the text {name} has {len(ids)} tokens, too few for a context of {context} and "
                f"{given} more: give a longer text or a shorter context"
            )
        for number in range(count):
            window = ids[room * number // max(1, count - 1) :]
            prompt = torch.cat([begin, window[:cut]])
            samples.append(Sample(name, prompt, window[cut : cut + given]))
    return samples


def nested(
    target: HFTarget,
    texts: Sequence[tuple[str, str]],
    contexts: Sequence[int],
    given: int,
    count: int,
) -> list[list[Sample]]:
    """The windows of the longest context, each as samples of all contexts with one beginning."""
    found = []
    for number, window in enumerate(windows(target, texts, max(contexts), given, count)):
        name = f"{window.name}, place {number % count + 1}" if count > 1 else window.name
        ids = torch.cat([window.prompt, window.given])
        found.append([Sample(name, ids[:n], ids[n : n + given]) for n in sorted(contexts)])
    return found
