"""Layers of the target that a drafter reads: in decoding from a forward, in training recorded."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from varifocal.errors import BadArtifact
from varifocal.target import Forward, Target
from varifocal.training._taps import checked_taps, three_taps
from varifocal.training.artifacts import Artifact


def layers_of(target: Target, taps: Sequence[int]) -> tuple[int, ...]:
    """The layers that a setting names; a low, a middle and a high one where it names none."""
    return checked_taps(taps or three_taps(target.num_layers), target.num_layers)


def side_by_side(seen: Forward) -> Float[Tensor, "n F"]:
    """The tapped layers of each position as one row."""
    assert seen.hidden is not None
    return seen.hidden.flatten(1)


def recorded(item: Artifact, layers: Sequence[int], drafter: str) -> Float[Tensor, "T F"]:
    """The same of a recorded sample. Raises BadArtifact if a layer was not recorded."""
    columns = find_layers(layers, item.tap_layers, drafter, f"the sample {item.id}")
    assert item.taps is not None
    return item.taps[:, columns].flatten(1)


def find_layers(
    wanted: Sequence[int], recorded: Sequence[int], drafter: str, where: str
) -> list[int]:
    """Where the wanted layers stand among the recorded ones; raises BadArtifact if one is missing.

    `drafter` and `where` are named in the error.
    """
    if missing := sorted(set(wanted) - set(recorded)):
        layers = ",".join(map(str, wanted))
        raise BadArtifact(
            f"{drafter} reads the layers {layers} of the target, and {where} lacks {missing} (it "
            f"holds {list(recorded)}). Record them with `varifocal record --taps {layers} --out "
            "ANOTHER_FOLDER`"
        )
    return [list(recorded).index(layer) for layer in wanted]
