"""What benchmarks tell while they run: how long they take, and every row as soon as it is measured."""

import sys

NOISY = "--quick: small sizes and few repeats. Figures are noisy. Targets are for full sizes, and do not apply."


def say(line: str) -> None:
    """Writes a line to stderr at once, so that tables on stdout stay whole."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
