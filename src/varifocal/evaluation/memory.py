"""How much memory a request's state takes: whatever its drafter remembers of it, by walking it."""

import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from varifocal.drafter import Drafter
from varifocal.request import Request
from varifocal.target import Prompt, Target

# Not the state's own: they are there without it, or are shared by all requests.
_FOREIGN = (Drafter, Target, Prompt, Request, Image.Image, type, ModuleType, FunctionType,
            BuiltinFunctionType, MethodType, Enum)  # fmt: skip


def state_bytes(state: object, shared: Iterable[Tensor] = ()) -> int:
    """Bytes that a drafter's state of one request keeps alive.

    Tensors count with the whole storage that they keep, once however many views there are; Python
    objects with what the interpreter says. Weights (`shared`) and the request itself do not count.
    """
    seen = {_storage(tensor)[0] for tensor in shared}
    total, todo = 0, [state]
    while todo:
        item = todo.pop()
        if item is None or isinstance(item, _FOREIGN):
            continue
        key, size = _storage(item) if isinstance(item, Tensor) else (id(item), _size(item))
        if key not in seen:
            seen.add(key)
            total += size
            todo += _parts(item)
    return total


def weights_of(*modules: nn.Module) -> Iterator[Tensor]:
    """All tensors of modules, packed copies of weights included."""
    for module in modules:
        for part in module.modules():
            yield from (x for x in _module_values(part) if isinstance(x, Tensor))


def _storage(tensor: Tensor) -> tuple[int, int]:
    """What tells it from other memory, and its bytes."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # packed by oneDNN: no view of it can exist
        return id(tensor), tensor.numel() * tensor.element_size()


def _size(item: object) -> int:
    """An object's own bytes, without those of its parts."""
    if isinstance(item, np.ndarray):
        return int(item.nbytes)
    return 0 if isinstance(item, nn.Module) else sys.getsizeof(item)


def _parts(item: Any) -> Iterable[object]:
    if isinstance(item, Tensor | np.ndarray | str | bytes | int | float):
        return ()
    if isinstance(item, nn.Module):
        return (*_module_values(item), *item.children())
    if isinstance(item, dict):
        return (*item.keys(), *item.values())
    if isinstance(item, list | tuple | set | frozenset):
        return tuple(item)
    slots = (name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ()))
    values = [getattr(item, name) for name in slots if hasattr(item, name)]
    return (*values, *getattr(item, "__dict__", {}).values())


def _module_values(module: nn.Module) -> Iterator[object]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)
    yield from (x for x in vars(module).values() if isinstance(x, Tensor))
