"""The upper bound: stop as soon as the answer is the final one and stays it."""

from varifocal.diffusion.gate import Exit, Gate, Setting
from varifocal.diffusion.view import View


class Oracle(Gate[int | None]):
    """Knows the whole run, so it can only be replayed on a recording of one."""

    name = "oracle"
    reads_canvas = False
    needs_format = True
    needs_future = True

    def start(self, setting: Setting) -> int | None:
        """The first step from which on every candidate has the final value; None without one."""
        assert setting.future is not None
        *values, final = [None if c is None else c.value for c in setting.future]
        if final is None:
            return None
        step = len(values)
        while step > 0 and values[step - 1] == final:
            step -= 1
        return step + 1

    def observe(self, state: int | None, view: View) -> Exit | None:
        """Whether that step has come."""
        if state is None or view.step < state:
            return None
        return Exit(reason="the answer is the final one from here on")

    def unmet(self, state: int | None) -> str | None:
        """No answer, or only at the end."""
        return "the final text has no answer" if state is None else "the answer came with the end"
