"""Where the program starts: Ctrl-C is answered even while torch is still being imported."""

import sys


def main() -> None:
    """Run `varifocal`; also `python -m varifocal`."""
    try:
        from varifocal.cli import main as program  # seconds, in which a user may change his mind

        program()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
