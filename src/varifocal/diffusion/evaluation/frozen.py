"""The settings that were chosen once, on two tasks of one model, and hold everywhere else.

frozen.json is what `varifocal diffusion tune` wrote: one setting for every gate that has
thresholds, all chosen on the same questions by the same rule, and where that was. The defaults of
`latch` and `cvc` are those of this file; of the other gates the published ones.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from varifocal.diffusion import gates
from varifocal.diffusion.gate import Gate
from varifocal.errors import BadOption

PLACE = Path(__file__).with_name("frozen.json")
TUNED = "@tuned"


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """What was chosen, and on what."""

    chosen: dict[str, str]  # gate: as it is typed
    provenance: dict[str, Any]

    def told(self) -> str:
        """One line for reports."""
        p = self.provenance
        return (
            f"Settings were chosen once, on {p['items']} {p['split']} questions each of "
            f"{' and '.join(p['tasks'])} with {p['model']} ({', '.join(p['samplers'])}), and are "
            f"the same everywhere: {self.chosen['latch']}; {TUNED} marks rivals whose "
            f"thresholds were chosen on the same questions by the same rule ({p['rule']})."
        )


@cache
def frozen() -> Frozen:
    """The file's content."""
    return Frozen(**json.loads(PLACE.read_text(encoding="utf-8")))


def find_gate(text: str) -> Gate[Any]:
    """A gate as typed, or "name@tuned" for its chosen setting."""
    name = text.strip().removesuffix(TUNED)
    if name == text.strip():
        return gates.find(name)
    chosen = frozen().chosen
    if name not in chosen:
        raise BadOption(
            f"{name} has no tuned setting; there is one for {', '.join(chosen)}. For others give "
            "name:option=value"
        )
    return gates.find(chosen[name])
