"""Layers of a target whose states a drafter reads, or a recording keeps."""

from collections.abc import Sequence

from varifocal.errors import BadOption


def three_taps(num_layers: int) -> tuple[int, ...]:
    """A low, a middle and a high layer, counted from 1: 2, half, all but 3. [EAGLE-3]

    Targets of fewer than 8 layers, where these would meet: the first, a middle one, the last.
    """
    if num_layers >= 8:
        return 2, num_layers // 2, num_layers - 3
    if num_layers < 3:
        raise BadOption(f"three layers are to be tapped, but the target has {num_layers}")
    return 1, (num_layers + 1) // 2, num_layers


def checked_taps(layers: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """The layers, if the target has them: ascending, each once."""
    taps = tuple(layers)
    if list(taps) != sorted(set(taps)) or any(not 1 <= layer <= num_layers for layer in taps):
        raise BadOption(
            f"taps must be ascending layers of the target, which has {num_layers}, counted from 1; "
            f"got {', '.join(map(str, taps))}"
        )
    return taps
