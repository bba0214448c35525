"""The import arrows are part of the design: a part may lean only on the parts named here."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "sinkinterp"
LEANS_ON = {
    "errors": set(),
    "_registration": {"lm"},
    "table": set(),
    "spec": {"errors"},
    "attention": {"spec", "errors"},
    "lm": {"attention", "spec", "errors"},
    "data": {"spec", "errors"},
    "interventions": {"attention", "errors"},
    "metrics": {"attention", "errors"},
    "adapters": {"attention", "interventions", "errors"},
    "train": {"attention", "lm", "data", "spec", "errors"},
    "protocol": set(),
    "instruments": {"adapters", "attention", "metrics"},
    "memory": {"adapters", "attention"},
    "report": {"metrics", "protocol", "errors"},
    "maps": {"adapters", "attention", "interventions", "metrics", "errors"},
    "measurement": {"adapters", "attention", "data", "instruments", "interventions", "memory", "metrics", "protocol"}
    | {"report", "errors"},
    "presets": {"data", "metrics", "errors"},
    "parity": {"adapters", "instruments", "measurement", "table", "errors"},
    "tabulate": {"metrics", "report", "table", "errors"},
    "patching": {"adapters", "interventions", "memory", "errors"},
    "sweeping": {"adapters", "data", "instruments", "interventions", "measurement", "metrics", "report", "table"}
    | {"tabulate", "errors"},
    "eviction": {"adapters", "metrics", "table", "errors"},
    "study": {"adapters", "data", "lm", "measurement", "memory", "metrics", "train", "spec", "errors"},
    "inputs": {"adapters", "data", "study", "train", "errors"},
    "terminal": {"table", "errors"},
    "views": {"table"},
    "export": {"table", "views", "errors"},
    "swapping": {"adapters", "data", "interventions", "measurement", "report", "table", "tabulate"},
    "demo": {
        "adapters",
        "data",
        "lm",
        "measurement",
        "metrics",
        "report",
        "study",
        "swapping",
        "table",
        "tabulate",
        "train",
    },
    "reproduction": {"adapters", "data", "inputs", "interventions", "lm", "study", "table", "train", "errors"},
    "reporting": {"demo", "report", "tabulate", "views"},
    "gallery": {"adapters", "data", "demo", "inputs", "instruments", "maps", "measurement", "report", "study"}
    | {"table", "tabulate", "train", "views"},
    "cli_figures": {"export", "gallery", "terminal"},
    "viewing": {"adapters", "attention", "data", "interventions", "measurement", "metrics", "report", "tabulate"}
    | {"table", "views", "errors"},
    "serving": set(),
    "finetune": {"adapters", "measurement", "train", "errors"},
    "cli_reproduce": {"reproduction", "terminal", "views"},
    "cli_train": {"errors", "finetune", "lm", "study", "terminal", "train"},
    "cli_view": {"adapters", "data", "inputs", "interventions", "serving", "terminal", "viewing", "errors"},
    "cli": {
        "adapters",
        "cli_figures",
        "cli_reproduce",
        "cli_train",
        "cli_view",
        "data",
        "demo",
        "errors",
        "inputs",
        "instruments",
        "measurement",
        "parity",
        "presets",
        "report",
    }
    | {"reporting", "tabulate", "terminal"},
    "__main__": {"cli"},
}
LAZY = {"_registration"}  # imports inside functions only, to wait for transformers


def part_of(path: Path) -> str:
    inside = path.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imported(path: Path) -> set[str]:
    """Parts of the package that the file at `path` imports."""
    depth = len(path.relative_to(PACKAGE).parts) - 1
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level > depth:
            parts |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
        assert not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sinkinterp")), path
    return parts


def test_every_arrow_is_allowed():
    for path in PACKAGE.rglob("*.py"):
        part = part_of(path)
        if part != "__init__":
            assert imported(path) - {part} <= LEANS_ON[part], path


def test_the_allowed_arrows_hold_no_circle():
    order = [part for part in LEANS_ON if part not in LAZY]
    for part in order:
        assert all(order.index(other) < order.index(part) for other in LEANS_ON[part]), part


def test_views_know_neither_torch_nor_a_model():
    for path in (PACKAGE / "views").glob("*.py"):
        assert "torch" not in path.read_text(), path


def test_metrics_and_interventions_know_no_library_of_models():
    for folder in ("attention", "metrics", "interventions", "views"):
        for path in (PACKAGE / folder).glob("*.py"):
            assert "import transformers" not in path.read_text() and "from transformers" not in path.read_text(), path


def test_nothing_imports_experiments_or_tests():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""]
            )
            assert not any(name.split(".")[0] in ("experiments", "tests") for name in names), path


def test_pre_commit_and_constraints_pin_one_ruff():
    root = PACKAGE.parent
    (pinned,) = [line for line in (root / "constraints.txt").read_text().split() if line.startswith("ruff==")]
    assert f"rev: v{pinned.removeprefix('ruff==')} " in (root / ".pre-commit-config.yaml").read_text()
