"""Writes tests/slow.txt, the functions that `make test` leaves out, from the times of a whole run.

`pytest --junitxml build/tests.xml && python -m tools.slow build/tests.xml`
"""

import re
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).parents[1] / "tests" / "slow.txt"
MEAN, LONGEST = 0.45, 1.3  # seconds of a test


def slow_functions(junit: Path) -> list[str]:
    """The functions of which the mean test, or any test, takes longer than the limits, as file::function."""
    times = defaultdict[str, list[float]](list)
    for case in ElementTree.parse(junit).iter("testcase"):
        file, function = case.attrib["classname"].replace(".", "/"), re.sub(r"\[.*", "", case.attrib["name"])
        times[f"{file}.py::{function}"].append(float(case.attrib["time"]))
    return sorted(name for name, each in times.items() if max(each) > LONGEST or sum(each) / len(each) > MEAN)


if __name__ == "__main__":
    names = slow_functions(Path(sys.argv[1]))
    LIST.write_text("\n".join(names) + "\n", encoding="utf-8")
    print(f"{LIST.name}: {len(names)} functions")
