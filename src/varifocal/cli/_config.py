"""The configuration file and overrides: what they say of a command's options, checked."""

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml  # type: ignore[import-untyped]  # its types are another package's
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError

from varifocal.errors import BadOption

Hints = dict[str, dict[str, Any]]  # section: field: type


class Configured:
    """What a configuration file and overrides say, checked against the options of a command."""

    def __init__(self) -> None:
        self.defaults: dict[str, Any] = {}
        self.overridden: list[str] = []


def read_config(path: str | Path | None, overrides: Sequence[str], hints: Hints) -> Configured:
    """Read and check; unknown keys, wrong types and doubles are refused by name."""
    config = OmegaConf.create({}) if path is None else _load(Path(path))
    found = Configured()
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadOption(f"wanted section.field=value, got {text!r}; see --help for the options")
        keys = key.replace("-", "_").split(".")
        section = [keys[0]] if keys[0] in hints or keys[0] == "set" else []
        found.overridden.append(keys[1] if section and len(keys) > 1 else keys[0])
        read = _override(text, value, _hint_at(keys, hints))
        try:
            OmegaConf.update(config, ".".join(keys), read, merge=False, force_add=True)
        except (OmegaConfBaseException, ValueError) as error:
            raise BadOption(f"the override {text} does not fit --config: {error}") from error
    try:
        values = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise BadOption(f"the configuration cannot be read: {error}") from error
    for name, field, value, hint in _entries(values, hints):
        if field in found.defaults:
            raise BadOption(f"the configuration gives {field} twice; give it once")
        if value is not None:
            found.defaults[field] = _checked(name, value, hint)
    return found


def _hint_at(keys: Sequence[str], hints: Hints) -> Any:
    """The type of the option with this name; None where it is a part of one, or of a section."""
    section = hints.get(keys[0], {})
    if len(keys) == 2 and keys[1] in section:
        return section[keys[1]]
    known = {field: hint for fields_of in hints.values() for field, hint in fields_of.items()}
    return known.get(keys[0]) if len(keys) == 1 else None


def _override(text: str, value: str, hint: Any) -> Any:
    """A typed value: YAML where it is quoted or, for a list, in brackets; else what was typed.

    Its scalars stay text, as they do behind an option: a stop text may look like a number.
    """
    if value in ("null", "~"):
        return None  # as if left out
    opens = "\"'[{" if _is_list(hint) else "\"'"
    if not value.startswith(tuple(opens)):
        return value
    try:
        return _typed(yaml.compose(value, Loader=yaml.BaseLoader), value)
    except yaml.YAMLError as error:
        if not _is_list(hint):  # a question may begin with a quoted word
            return value
        raise BadOption(
            f"the override {text} is not YAML ({getattr(error, 'problem', error)}); put quotes "
            "around a text that begins like a list"
        ) from error


def _typed(node: Any, text: str) -> str | list[str]:
    """A YAML node as it would be typed: a list as its entries, a mapping as KEY=VALUE each."""

    def typed(part: Any) -> str:
        is_text = isinstance(part, yaml.ScalarNode)
        return str(part.value if is_text else text[part.start_mark.index : part.end_mark.index])

    if isinstance(node, yaml.MappingNode):
        return [f"{typed(key)}={typed(value)}" for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [typed(item) for item in node.value]
    return typed(node)


def _is_list(hint: Any) -> bool:
    return list in (get_origin(hint), *map(get_origin, get_args(hint)))


def _load(path: Path) -> Any:
    try:
        config = OmegaConf.load(path)
    except FileNotFoundError:
        raise BadOption(f"there is no configuration file {path}") from None
    except (OSError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise BadOption(f"the configuration {path} cannot be read: {error}") from error
    except Exception as error:  # PyYAML's errors have a base that omegaconf does not hand on
        reason = " ".join(str(error).split())
        raise BadOption(f"the configuration {path} is not YAML: {reason}") from error
    if not OmegaConf.is_dict(config):
        raise BadOption(f"the configuration {path} must map options to values")
    return config


def _entries(values: Any, hints: Hints) -> list[tuple[str, str, Any, Any]]:
    """(full name, field, value, type) of every key, sections opened."""
    known = {field: hint for section in hints.values() for field, hint in section.items()}
    found = []
    for raw, value in values.items():
        key = str(raw).replace("-", "_")
        if key in hints and (isinstance(value, dict) or key not in known):
            if not isinstance(value, dict):
                raise BadOption(f"the section {key} must map options to values, got {value!r}")
            for raw_field, inner in value.items():
                field = str(raw_field).replace("-", "_")
                if field not in hints[key]:
                    raise _unknown(f"{key}.{field}", [f"{key}.{name}" for name in hints[key]])
                found.append((f"{key}.{field}", field, inner, hints[key][field]))
        elif key in known:
            found.append((key, key, value, known[key]))
        else:
            raise _unknown(key, [*known, *hints])
    return found


def _unknown(key: str, known: Sequence[str]) -> BadOption:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
    return BadOption(f"the configuration has the unknown key {key}; {hint}")


def _checked(name: str, value: Any, hint: Any) -> Any:
    """The value as typer takes defaults: text, yes or no, or a list of texts."""
    is_list = _is_list(hint)
    wanted = {hint, *get_args(hint)}
    if isinstance(value, bool) and wanted & {int, float} and bool not in wanted:
        raise BadOption(
            f"the configuration's {name} is {str(value).lower()}, a yes or no; it wants a number"
        )
    if is_list and isinstance(value, dict):
        value = [f"{key}={_typed_as(item)}" for key, item in value.items()]
    elif is_list and not isinstance(value, list):
        value = [value]
    try:
        checked = TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].lower()
        raise BadOption(f"the configuration's {name} is {value!r}: {reason}") from error
    if is_list:
        return [str(item) for item in checked]
    return checked if isinstance(checked, bool) else str(checked)


def _typed_as(value: Any) -> str:
    """A YAML value as it would be typed after `--set key=`."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
