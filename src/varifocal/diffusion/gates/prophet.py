"""Prophet: stop when the answer's place, forced by a pinned text, is decided by a wide gap."""

from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from varifocal.diffusion.entries import check, check_count
from varifocal.diffusion.gate import Exit, Gate, Setting
from varifocal.diffusion.schedule import Plan
from varifocal.diffusion.statistics import Want
from varifocal.diffusion.view import View
from varifocal.errors import BadOption


class Prophet(Gate[slice]):
    """Mean gap of the logits over a fixed window, against a threshold for each third of the run.

    [Prophet, Sec. 4; constraints "200:The|201:answer|202:is" on a canvas of 256] The window lies
    behind the pinned text and includes what is already filled; progress is step / planned steps.
    Pins change the path: it is compared with, and replayed on, a full run whose plan has them too.
    """

    name = "prophet"
    want = Want(gap=True, committed=True)

    @dataclass(frozen=True, kw_only=True)
    class Config(Gate.Config):
        """The published settings; thresholds in logits."""

        suffix: str = (
            "The answer is"  # pinned; "" pins nothing, and the window is all of the canvas
        )
        place: float = 0.78125  # where it begins, as a part of the canvas: 200 of 256
        offset: int = 2  # from its last token to the window
        window: int = 5  # positions
        early: float = 7.5  # progress below 1/3
        middle: float = 5.0  # below 2/3
        late: float = 2.5

        def __post_init__(self) -> None:
            check(0 <= self.place < 1, "place must be a part of the canvas below 1", self.place)
            check_count("offset", self.offset)
            check_count("window", self.window)

    def plan(self, plan: Plan, tokenizer: PreTrainedTokenizerBase) -> Plan:
        """With the suffix pinned."""
        if not self.config.suffix:
            return plan
        ids = tokenizer.encode(self.config.suffix, add_special_tokens=False)
        first = self._first(plan)
        if first + len(ids) - 1 + self.config.offset >= plan.canvas:
            raise BadOption(
                f"prophet: the suffix {self.config.suffix!r} takes {len(ids)} positions from "
                f"{first} on and leaves no window on a canvas of {plan.canvas}; give a smaller "
                "place, or suffix= for none"
            )
        pinned = dict(plan.pins) | {first + n: token for n, token in enumerate(ids)}
        return replace(plan, pins=tuple(sorted(pinned.items())))

    def start(self, setting: Setting) -> slice:
        """The window."""
        if not self.config.suffix:
            return slice(0, setting.plan.canvas)
        pinned, last = dict(setting.plan.pins), self._first(setting.plan)
        while last + 1 in pinned:
            last += 1
        begin = last + self.config.offset
        return slice(begin, min(begin + self.config.window, setting.plan.canvas))

    def observe(self, state: slice, view: View) -> Exit | None:
        """Whether the mean gap reaches the threshold of this third."""
        assert view.gap is not None
        gap, least = float(view.gap[state].mean()), self.threshold(view.step / view.total)
        if gap < least:
            return None
        return Exit(reason=f"mean gap {gap:.2f} >= {least:g} in {state.start}:{state.stop}")

    def threshold(self, progress: float) -> float:
        """Falls with progress, from 0 to 1."""
        config = self.config
        value: float = (
            config.early if 3 * progress < 1 else config.middle if 3 * progress < 2 else config.late
        )
        return value

    def _first(self, plan: Plan) -> int:
        """Where the suffix begins."""
        return int(self.config.place * plan.canvas)

    def unmet(self, state: slice) -> str | None:
        """The gap stayed too small."""
        return "the gap in the window never reached its threshold"
