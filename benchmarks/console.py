"""What benchmarks tell while they run: how long they take, and every row as soon as it is measured."""

import sys


def say(line: str) -> None:
    """Writes a line to stderr at once, so that tables on stdout stay whole."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
