"""How every command runs: its sections of options, errors, exit codes."""

import inspect
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from varifocal.cli._config import Hints, read_config
from varifocal.errors import BadOption, VarifocalError

_CONFIG = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="YAML with options, alone or in sections named like the boxes of this help.",
        rich_help_panel="Configuration",
    ),
]
_OVERRIDES = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SECTION.FIELD=VALUE",
        help="Changes to --config, such as sampling.seed=7 or 'limits.stop=[a, b]'.",
        rich_help_panel="Configuration",
    ),
]


def sectioned(function: Callable[..., None]) -> Callable[..., None]:
    """A command for typer from a function whose arguments are dataclasses of options.

    Each argument becomes a section: a box of the help and a section of the configuration file.
    """
    sections = get_type_hints(function)
    sections.pop("return", None)
    parameters, hints = [], {}
    for section, cls in sections.items():
        assert isinstance(cls, type) and is_dataclass(cls), section
        for parameter in _parameters(section, cls):
            assert parameter.name not in hints, f"{parameter.name} stands in two sections"
            parameters.append(parameter)
            hints[parameter.name] = parameter.annotation
    for name, hint in (("config", _CONFIG), ("overrides", _OVERRIDES)):
        parameters.append(_parameter(name, hint, None))
        hints[name] = hint

    def run(**given: Any) -> None:
        function(
            **{
                section: cls(**{f.name: given[f.name] for f in fields(cls)})
                for section, cls in sections.items()
            }
        )

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # for typer
    run.__annotations__ = hints
    run.sections = {s: _plain_hints(cls) for s, cls in sections.items()}  # type: ignore[attr-defined]  # for Command
    return run


def _parameters(section: str, cls: type) -> list[inspect.Parameter]:
    hints = get_type_hints(cls, include_extras=True)
    made = []
    for field in fields(cls):
        kind, info = get_args(hints[field.name])
        info = copy(info)
        info.rich_help_panel = section.capitalize()
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if default is MISSING:
            default = inspect.Parameter.empty
        made.append(_parameter(field.name, Annotated[kind, info], default))
    return made


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _plain_hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


class Command(TyperCommand):
    """A command with `--config`, overrides, `--json` without a value, and `--debug`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options of the configuration file become defaults of those on the command line."""
        args = _with_json_value(args)
        if not ctx.resilient_parsing and "--help" not in args:
            given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            ctx.default_map = self._defaults(given)
        return super().parse_args(ctx, args)

    def _defaults(self, given: Mapping[str, Any]) -> dict[str, Any]:
        hints: Hints = getattr(self.callback, "sections", {})
        # typer wraps the callback; the function below it knows the sections
        inner = inspect.unwrap(self.callback) if self.callback else None
        hints = hints or getattr(inner, "sections", {})
        values = read_config(given.get("config"), given.get("overrides") or (), hints)
        twice = sorted(set(values.overridden) & {key for key, value in given.items() if value})
        if twice:
            raise BadOption(
                f"{', '.join(twice)} is given both as an option and as an override; give it once"
            )
        return values.defaults

    def invoke(self, ctx: Any) -> Any:
        """Run it; with --debug errors show where they come from."""
        is_debugged = bool(ctx.params.get("debug"))
        if is_debugged:
            logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
            logging.getLogger("varifocal").setLevel(logging.DEBUG)
        try:
            with _hushed(bool(ctx.params.get("quiet")) and not is_debugged):
                return super().invoke(ctx)
        except (typer.Exit, typer.TyperException):
            raise
        except BrokenPipeError:
            raise typer.Exit(141) from None  # as if ended by SIGPIPE
        except Exception:
            if is_debugged:
                traceback.print_exc()
            raise


@contextmanager
def _hushed(is_asked: bool) -> Iterator[None]:
    """Warnings of the log are notes as well: Python prints them even if nobody set up a log."""
    log = logging.getLogger("varifocal")
    before = log.level
    if is_asked:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _with_json_value(args: Sequence[str]) -> list[str]:
    """`--json` without a value means standard output."""
    made = []
    for n, arg in enumerate(args):
        made.append(arg)
        follower = args[n + 1] if n + 1 < len(args) else "--"
        is_other = follower != "-" and re.match(r"-|[\w-]+(\.[\w-]+)*=", follower)
        if arg == "--json" and is_other:
            made.append("-")
    return made


class DefaultGroup(TyperGroup):
    """A group whose first command runs when none is named; options go to it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the first command's name where it is left out."""
        is_named = args and (args[0] in self.commands or args[0] in ("--help", "-h"))
        if not is_named and not ctx.resilient_parsing:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


class Program(TyperGroup):
    """The whole program: whatever goes wrong ends in one message and an exit code."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Exit with 0 done, 1 bad verdict, 2 bad usage or input, 130 Ctrl-C, 141 closed pipe."""
        is_standalone = options.pop("standalone_mode", True)
        code = self._run(*args, **options)
        code = _flushed(code)
        if is_standalone:
            sys.exit(code)
        return code

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without a command there is nothing to do but to show the help."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def _run(self, *args: Any, **options: Any) -> int:
        for stream in (sys.stdout, sys.stderr):
            if callable(reconfigure := getattr(stream, "reconfigure", None)):
                reconfigure(errors="replace")  # a terminal that cannot show a letter is no error
        try:
            return int(super().main(*args, **options | {"standalone_mode": False}) or 0)
        except typer.Abort:
            return 130
        except typer.TyperException as error:  # of usage: typer's own words
            path = getattr(getattr(error, "ctx", None), "command_path", "varifocal")
            _complain(f"{error.format_message()}\nTry '{path} --help'.")
        except VarifocalError as error:
            _complain(str(error))
        except KeyboardInterrupt:
            return 130
        except OSError as error:
            _complain(
                f"{error.strerror or error}: {error.filename}" if error.filename else f"{error}"
            )
        except MemoryError:
            _complain("out of memory; use a smaller target, fewer pictures or fewer tokens")
        except Exception as error:
            _complain(
                f"unexpected {type(error).__name__}: {error}\n"
                "This is a fault of varifocal; --debug shows where. Please report it."
            )
        return 2


def _complain(message: str) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(Text.assemble(("Error: ", "bold red"), message))


def _flushed(code: int) -> int:
    """Write what is left; a reader that has gone away is no error worth a message."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141
    except (OSError, ValueError):
        return code or 2
    if code == 141:  # or the interpreter complains when it flushes at its end
        with suppress(OSError, ValueError):  # not a real file, as in tests
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
