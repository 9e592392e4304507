"""What the runs of a benchmark depend on, as plain data that two commands can be compared by."""

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from varifocal.drafter import Drafter
from varifocal.drafters._weights import network_of
from varifocal.evaluation.suites import Case
from varifocal.request import Request

_PACKAGE = Path(__file__).resolve().parent.parent
_SHOWN = 6  # differences that are named
Facts = dict[str, Any]


def request_digest(request: Request) -> str:
    """Of everything that a request says: every pixel, text, limit and setting."""
    digest = hashlib.sha256()

    def add(kind: str, data: bytes) -> None:
        digest.update(f"{kind} {len(data)}\n".encode() + data)

    for message in request.messages:
        add("role", message.role.encode())
        for part in message.parts:
            if isinstance(part, str):
                add("text", part.encode("utf-8", "surrogatepass"))
            else:
                add(f"image {part.mode} {part.size}", part.tobytes())
    settings = {
        "max_new_tokens": request.max_new_tokens,
        "sampling": asdict(request.sampling),
        "stop": request.stop,
        "logprobs": request.logprobs,
    }
    add("settings", json.dumps(settings, sort_keys=True).encode())
    return digest.hexdigest()[:32]


def cases_of(cases: Sequence[Case], requests: Sequence[Request]) -> list[Facts]:
    """Each request of a suite, with what its figures are made of besides."""
    made = []
    for case, request in zip(cases, requests, strict=True):
        known = json.dumps([case.reference, case.fields]).encode()
        made.append(
            {
                "id": case.id,
                "family": case.family,
                "request": request_digest(request),
                "answer": hashlib.sha256(known).hexdigest()[:16],
            }
        )
    return made


def drafter_facts(drafter: Drafter[Any]) -> Facts:
    """Settings and weights, also of drafters that it is made of; the content of files it names."""
    network = network_of(drafter)
    settings = asdict(drafter.config)
    files = [value for value in settings.values() if isinstance(value, str) and value]
    source = inspect.getsourcefile(type(drafter))
    if source and not Path(source).resolve().is_relative_to(_PACKAGE):
        files.append(source)  # a method of the user's own
    _, *members = drafters_in(drafter)
    return {
        "settings": settings,
        "weights": None if network is None else weights_digest(network),
        "files": {name: _file_digest(Path(name)) for name in files if Path(name).is_file()},
        "members": [{"name": member.name} | drafter_facts(member) for member in members],
    }


def drafters_in(drafter: Drafter[Any]) -> list[Drafter[Any]]:
    """A drafter, and those that it is directly made of."""
    values = list(vars(drafter).values())
    values += [item for value in values if isinstance(value, list | tuple) for item in value]
    return [drafter, *(value for value in values if isinstance(value, Drafter))]


def weights_digest(module: nn.Module) -> str:
    """Of names, shapes, types and every bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        whole = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(whole.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


@cache
def code_digest() -> str:
    """Of this package's source: a commit says nothing of a tree with changes in it."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:32]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not the same, in words: "repeats was 3, is 1". The first few of many."""
    named = list(_differing("", dict(before), dict(now)))
    more = [f"and {len(named) - _SHOWN} more"] if len(named) > _SHOWN else []
    return named[:_SHOWN] + more


def _differing(name: str, a: Any, b: Any) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys([*a, *b]):
            yield from _differing(f"{name}.{key}" if name else key, a.get(key), b.get(key))
    elif _is_named(a) and _is_named(b):
        old, new = ({_name(item): item for item in items} for items in (a, b))
        if gone := [key for key in old if key not in new]:
            yield f"{name} had {_listed(gone)}"
        if come := [key for key in new if key not in old]:
            yield f"{name} now has {_listed(come)}"
        if not gone and not come and list(old) != list(new):
            yield f"{name} come in another order"
        for key in old:
            if key in new:
                yield from _differing(f"{name} {key}", old[key], new[key])
    elif a != b:
        yield f"{name} was {_shown(a)}, is {_shown(b)}"


def _is_named(value: Any) -> bool:
    """Whether it is a list of entries, cases or members."""
    return isinstance(value, list) and all(isinstance(item, dict) and _name(item) for item in value)


def _name(item: Facts) -> str:
    return str(item.get("id") or item.get("entry") or item.get("name") or "")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _shown(value: Any) -> str:
    return "not there" if value is None else f"{value!s:.60}"


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]
