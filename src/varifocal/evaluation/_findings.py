"""What one examination found: a verdict, what was measured, and the way out."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from varifocal.errors import VarifocalError

logger = logging.getLogger(__name__)

Verdict = Literal["ok", "warning", "fault", "not applicable"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of one check."""

    check: str  # group.name, such as "target.template"
    verdict: Verdict
    measured: str  # a sentence with the numbers
    way_out: str = ""  # what to do; empty where there is nothing to do
    numbers: dict[str, Any] = field(default_factory=dict)  # the same, for programs


def attempt(check: str, examine: Callable[[], Finding]) -> Finding:
    """Run one check. One that breaks off is a finding too: the others are still made."""
    try:
        return examine()
    except VarifocalError as error:  # its message says what was wanted and the way out
        return Finding(check=check, verdict="fault", measured=str(error))
    except Exception as error:  # whatever is broken may raise anything, and that is to be told
        logger.debug("%s broke off", check, exc_info=True)
        return Finding(
            check=check,
            verdict="fault",
            measured=f"it broke off with {type(error).__name__}: {_first_line(error)}",
            way_out="run it again with --debug, which shows where",
        )


def skipped(check: str, reason: str) -> Finding:
    """A check that says nothing about this pair, and why."""
    return Finding(check=check, verdict="not applicable", measured=reason)


def percent(share: float) -> str:
    """A share as people read it."""
    return f"{100 * share:.0f} %"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").split("\n")[0]
