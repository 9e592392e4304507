"""Where the program starts: Ctrl-C is answered even while torch is still being imported."""

import os
import sys

# Before torch starts its threads: with OpenMP's default, threads that wait for one another keep the
# cores busy, and one busy neighbour makes a forward on two threads a hundred times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def main() -> None:
    """Run `varifocal`; also `python -m varifocal`."""
    try:
        from varifocal.cli import main as program  # seconds, in which a user may change his mind

        program()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
