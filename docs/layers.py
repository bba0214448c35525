"""Draws the packages of sinkinterp in their layers, with the imports between them.

`python docs/layers.py` writes layers.svg.
"""

import ast
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sinkinterp"
GROUND = ("checks", "files", "spec", "table")
LAYERS: tuple[dict[str, str], ...] = (
    {
        "attention": "one attention call",
        "data": "tokens",
        "plots": "what figures share",
    },
    {
        "lm": "our model family",
        "metrics": "calls -> numbers",
        "interventions": "what changes",
    },
    {
        "backends": "how a library's model is read",
        "train": "the trainer",
        "report": "numbers, tables, figures",
    },
    {"measurement": "tokens -> report"},
    {"applications": "what caches may forget", "runs": "trained models, experiments"},
    {"pages": "HTML that shows results"},
    {"cli": "the command line"},
)
BOX, GAP, ROW, LEFT = 200, 40, 92, 24


def imports_of(path: Path) -> set[str]:
    """The parts of the package that a file imports from."""
    depth, parts = len(path.relative_to(PACKAGE).parts) - 1, set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level > depth:
            names = (
                [node.module] if node.module else [alias.name for alias in node.names]
            )
            parts.update(name.split(".")[0] for name in names)
    return parts


def arrows() -> list[tuple[str, str]]:
    """The pairs of packages of which the first imports from the second, the ground left out."""
    packages = {name for layer in LAYERS for name in layer}
    used = {
        name: set[str]().union(*map(imports_of, (PACKAGE / name).rglob("*.py")))
        for name in packages
    }
    return sorted(
        (name, other) for name in packages for other in used[name] & packages - {name}
    )


def places() -> dict[str, tuple[float, float]]:
    """Where each box has its upper left corner: layer 1 at the top."""
    width = 3 * BOX + 2 * GAP
    spots = {}
    for row, layer in enumerate(LAYERS):
        start = LEFT + 60 + (width - len(layer) * BOX - (len(layer) - 1) * GAP) / 2
        for i, name in enumerate(layer):
            spots[name] = (start + i * (BOX + GAP), 20 + row * ROW)
    return spots


def picture() -> str:
    """The SVG: a box per package, a line per pair."""
    spots, height = places(), 20 + len(LAYERS) * ROW + 60
    width = LEFT + 60 + 3 * BOX + 2 * GAP + 24
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for user, used in arrows():
        (x1, y1), (x2, y2) = spots[user], spots[used]
        lines.append(
            f'<path d="M{x1 + BOX / 2:.0f} {y1:.0f} L{x2 + BOX / 2:.0f} {y2 + 50:.0f}" stroke="#9aa5b1" '
            f'stroke-width="1.2" fill="none"><title>{user} imports from {used}</title></path>'
        )
    for row, layer in enumerate(LAYERS):
        lines.append(
            f'<text x="{LEFT}" y="{20 + row * ROW + 30}" font-size="22" fill="#7b8794">{row + 1}</text>'
        )
        for name, says in layer.items():
            x, y = spots[name]
            lines += [
                f'<rect x="{x:.0f}" y="{y}" width="{BOX}" height="50" rx="6" fill="#eef4fb" stroke="#2f6fab"/>',
                f'<text x="{x + BOX / 2:.0f}" y="{y + 21}" font-size="16" text-anchor="middle" fill="#102a43">'
                f"{name}</text>",
                f'<text x="{x + BOX / 2:.0f}" y="{y + 39}" font-size="11" text-anchor="middle" fill="#486581">'
                f"{escape(says)}</text>",
            ]
    y, ground = 20 + len(LAYERS) * ROW + 20, ", ".join(GROUND)
    rule = "A package imports only from layers above it."
    lines.append(
        f'<text x="{LEFT}" y="{y}" font-size="12" fill="#486581">Ground, for all: {ground}</text>'
    )
    lines.append(
        f'<text x="{LEFT}" y="{y + 20}" font-size="12" fill="#486581">{rule}</text>'
    )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    (Path(__file__).parent / "layers.svg").write_text(picture(), encoding="utf-8")
