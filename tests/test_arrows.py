"""The layers are part of the design: a package imports from layers above it in this list, and from the ground."""

import ast
import re
import runpy
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "sinkinterp"
GROUND = {"checks", "files", "spec", "table"}
PICTURE = PACKAGE.parent / "docs" / "layers.py"
LAYERS = tuple(map(set, runpy.run_path(str(PICTURE))["LAYERS"]))
WITHIN_A_LAYER: set[tuple[str, str]] = set()  # arrows between packages of one layer; none is needed
NAMED_TWICE = {  # files whose names occur in several packages; take names out, put none in
    *("explaining", "maps", "page"),
    *("qk", "report", "weights"),
}
DOORS = {"__init__", "__main__"}  # they hand out what lies behind them


def part_of(path: Path) -> str:
    inside = path.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def module_of(path: Path) -> str:
    inside = path.relative_to(PACKAGE).with_suffix("")
    return ".".join(inside.parts[:-1] if inside.stem == "__init__" else inside.parts)


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {module_of(path): path for path in FILES}


@cache
def imports_in(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file, also inside functions."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


@cache
def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports, also inside functions."""
    package = path.relative_to(PACKAGE).parts[:-1]
    found = set()
    for node in imports_in(path):
        assert not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sinkinterp")), path
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = ".".join((*package[: len(package) - node.level + 1], *filter(None, (node.module,))))
        for alias in node.names:
            whole = f"{base}.{alias.name}".lstrip(".")
            found.add(whole if whole in MODULES else base)
    return found - {""}


def allowed(part: str) -> set[str]:
    """The parts that a package may import from."""
    if part in GROUND:
        return GROUND
    layer = next(i for i, layer in enumerate(LAYERS) if part in layer)
    beside = {other for one, other in WITHIN_A_LAYER if one == part}
    return {part} | GROUND | beside | set().union(*LAYERS[:layer])


def test_the_root_holds_only_the_ground_and_the_doors():
    assert {path.stem for path in PACKAGE.glob("*.py")} == GROUND | DOORS


def test_the_name_of_a_file_occurs_once_in_the_package():
    counts = Counter(path.stem for path in FILES)
    assert {name for name, times in counts.items() if times > 1} - {"__init__"} <= NAMED_TWICE


def test_the_glossary_has_at_most_thirty_words_and_each_once():
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("| word | meaning |")[2].partition("\n\n")[0]
    words = [word for cell in re.findall(r"^\| ([a-z, ]+) \|", table, re.MULTILINE) for word in cell.split(", ")]
    assert 0 < len(words) == len(set(words)) <= 30


def test_every_package_has_its_layer():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == set().union(*LAYERS) | {"_experiments"}


def test_a_package_imports_only_from_the_layers_above_it():
    for path in FILES:
        if part_of(path) not in {*DOORS, "_experiments"}:
            parts = {module.split(".")[0] for module in imported(path)} - {"_experiments"}
            assert parts <= allowed(part_of(path)), path


def test_the_imports_of_modules_hold_no_circle_even_inside_functions():
    graph = {module: imported(path) - {module} for module, path in MODULES.items()}
    assert set(TopologicalSorter(graph).static_order()) >= set(MODULES)


# public names, libraries that may be absent, and experiments, which lie outside
BY_NAME = {"__init__", "backends/load", "_experiments/__init__"}


def test_modules_are_imported_by_statements_and_none_reads_the_source_of_another():
    texts = {path.relative_to(PACKAGE).with_suffix("").as_posix(): path.read_text(encoding="utf-8") for path in FILES}
    assert {name for name, text in texts.items() if "import_module" in text} == BY_NAME
    assert {name for name, text in texts.items() if re.search(r"meta_path|getattr\(import_|lazy_", text)} == {
        "__init__"
    }
    assert not [
        name for name, text in texts.items() if re.search(r"sys\.modules\[.*\] = |__import__|resolve_name", text)
    ]
    readers = {name for name, text in texts.items() if re.search(r"\.py[\"'}]|getsource", text)}
    # experiments' first lines, git's code, Python's docstrings, and a forward that nnsight runs: no file of the package
    assert readers <= {"_experiments/__init__", "runs/experiment", "data/sources", "backends/nnsight"}


def test_plots_know_neither_torch_nor_a_model():
    for path in (PACKAGE / "plots").glob("*.py"):
        assert "torch" not in path.read_text(), path


def test_metrics_and_interventions_know_no_library_of_models():
    for folder in ("attention", "metrics", "interventions", "plots"):
        for path in (PACKAGE / folder).glob("*.py"):
            assert "import transformers" not in path.read_text() and "from transformers" not in path.read_text(), path


def test_nothing_imports_experiments_or_tests():
    for path in FILES:
        for node in imports_in(path):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not any(name.split(".")[0] in ("experiments", "tests") for name in names), path


def test_experiments_import_only_from_shared_whose_files_know_five_others_at_most():
    folder, known = PACKAGE.parent / "experiments", {"cases", "rules", "study", "tasks", "effects"}
    for path in (*folder.glob("*.py"), *folder.glob("shared/*.py")):
        for node in imports_in(path):
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("experiments")):
                module = node.module or ""
                is_experiment = path.parent == folder and module.startswith("shared.")
                is_shared = path.parent == folder / "shared" and path.stem not in known and module in known
                assert node.level == 1 and (is_experiment or is_shared), path


def test_pre_commit_and_constraints_pin_one_ruff():
    root = PACKAGE.parent
    (pinned,) = [line for line in (root / "constraints.txt").read_text().split() if line.startswith("ruff==")]
    assert f"rev: v{pinned.removeprefix('ruff==')} " in (root / ".pre-commit-config.yaml").read_text()


def test_the_picture_of_the_layers_is_drawn_from_the_code_as_it_is():
    docs = PACKAGE.parent / "docs"
    assert (docs / "layers.svg").read_text(encoding="utf-8") == runpy.run_path(str(docs / "layers.py"))["picture"]()
