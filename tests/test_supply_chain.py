"""What `make` and the workflow install is pinned by hashes, and what ships has a licence."""

import re
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_arrows import PACKAGE

from sinkinterp.backends.named_models import SHIPPED

ROOT = PACKAGE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def pins_in(file):
    """The blocks of a file of requirements: name to version and number of hashes."""
    blocks = re.findall(r"^([\w.-]+)==(\S+)((?:.*\\\n)*.*)$", file.read_text(), re.MULTILINE)
    return {name: (version, len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", rest))) for name, version, rest in blocks}


def applies(requirement, extras):
    """Whether a requirement of a package with these extras is one here."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras})


def needed(requirements, extras=()):
    """The names of the packages that meet these requirements here, and of all that these need."""
    names = set()
    for requirement in (one for one in map(Requirement, requirements) if applies(one, extras)):
        name = canonicalize_name(requirement.name)
        try:
            parts = tuple(requires(name) or ())
        except PackageNotFoundError:
            parts = ()
        names |= {name} | _needed_of(parts, frozenset(requirement.extras))
    return names


@cache
def _needed_of(parts, extras):
    return needed(parts, extras)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_locked_package_has_hashes_and_the_version_of_the_constraints(lock):
    constraints = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    versions = {canonicalize_name(name): version for name, version in constraints.items()}
    pins = pins_in(lock)
    assert pins and len(pins) == lock.read_text().count("==") - lock.read_text().count(" == '")
    for name, (version, hashes) in pins.items():
        assert hashes and versions.get(name, version) == version.removesuffix("+cpu"), name
    assert not re.search(r"://|--index|--find", lock.read_text())


def test_all_that_the_project_and_its_tests_need_is_locked():
    wanted = needed(PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["dev"])
    assert wanted <= set().union(*map(pins_in, LOCKS))
    (backend,) = PROJECT["build-system"]["requires"]
    assert backend == f"hatchling=={pins_in(ROOT / 'requirements' / 'build.txt')['hatchling'][0]}"


def test_the_small_torch_is_the_pinned_one_and_no_other_file_has_its_hash():
    (version, hashes), (usual, _) = (pins_in(ROOT / "requirements" / f"{name}.txt")["torch"] for name in ("cpu", "dev"))
    assert version == f"{usual}+cpu" and hashes
    small = set(re.findall("[0-9a-f]{64}", (ROOT / "requirements/cpu.txt").read_text()))
    others = "".join(lock.read_text() for lock in LOCKS if lock.stem != "cpu")
    assert not small & set(re.findall("[0-9a-f]{64}", others))


def test_make_installs_by_hash_and_the_workflow_names_actions_by_commit():
    makefile = (ROOT / "Makefile").read_text()
    options = re.search("^OPTIONS := (.*)", makefile, re.MULTILINE)[1]
    installs = [line for line in re.findall(r"pip install.*", makefile) if "build/" not in line]
    assert installs and all("$(OPTIONS)" in line or "--no-index" in line for line in installs)
    assert "--require-hashes" in options and "--no-deps" in options
    actions = re.findall(r"uses: *(.*)", "".join(file.read_text() for file in (ROOT / ".github").rglob("*.yml")))
    assert actions and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action) for action in actions)


def test_every_checkpoint_and_text_that_ships_has_a_licence_line():
    rows = re.findall(r"^\| ([^|]+) \| [^|]*(?:MIT|PSF|BSD)", (SHIPPED / "README.md").read_text(), re.MULTILINE)
    licensed = {name for row in rows for name in row.split(", ")}
    assert {path.name for path in SHIPPED.iterdir()} - {"README.md"} <= licensed
