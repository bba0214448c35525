"""Draws the packages of sinkinterp in their layers, with the imports between them.

`python docs/layers.py` writes layers.svg.
"""

import ast
from collections import Counter
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sinkinterp"
GROUND = ("guesses", "checks", "arguments", "attributes", "files", "seals", "spec", "table")
LAYERS: tuple[dict[str, str], ...] = (
    {"attention": "one attention call", "data": "tokens", "plots": "what figures share"},
    {"lm": "our model family", "metrics": "calls -> numbers", "interventions": "what changes"},
    {"backends": "how a library's model is read", "train": "the trainer", "report": "numbers, tables, figures"},
    {"measurement": "tokens -> report"},
    {"applications": "what caches may forget", "runs": "trained models, experiments"},
    {"pages": "HTML that shows results"},
    {"cli": "the command line"},
)
BOX, GAP, ROW, LEFT = 200, 40, 92, 24


def imports_of(path: Path) -> Counter[str]:
    """How often a file imports from each part of the package."""
    depth = len(path.relative_to(PACKAGE).parts) - 1
    parts: Counter[str] = Counter()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level > depth:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            parts.update(name.split(".")[0] for name in names)
    return parts


def arrows() -> dict[tuple[str, str], int]:
    """How many imports lead from one package to another, the ground left out."""
    packages = {name for layer in LAYERS for name in layer}
    found: Counter[tuple[str, str]] = Counter()
    for name in packages:
        for path in (PACKAGE / name).rglob("*.py"):
            for other, count in imports_of(path).items():
                if other in packages - {name}:
                    found[name, other] += count
    return dict(found)


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
    """The SVG: a box per package, a line per pair, thicker where there are more imports."""
    spots, height = places(), 20 + len(LAYERS) * ROW + 60
    width = LEFT + 60 + 3 * BOX + 2 * GAP + 24
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for (user, used), count in sorted(arrows().items()):
        (x1, y1), (x2, y2) = spots[user], spots[used]
        stroke = min(4.0, 0.6 + count / 8)
        lines.append(
            f'<path d="M{x1 + BOX / 2:.0f} {y1:.0f} L{x2 + BOX / 2:.0f} {y2 + 50:.0f}" stroke="#9aa5b1" '
            f'stroke-width="{stroke:.1f}" fill="none"><title>{user} imports from {used}: {count}</title></path>'
        )
    for row, layer in enumerate(LAYERS):
        lines.append(f'<text x="{LEFT}" y="{20 + row * ROW + 30}" font-size="22" fill="#7b8794">{row + 1}</text>')
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
    lines.append(f'<text x="{LEFT}" y="{y}" font-size="12" fill="#486581">Ground, for all: {ground}</text>')
    lines.append(
        f'<text x="{LEFT}" y="{y + 20}" font-size="12" fill="#486581">A package imports only from layers above it. '
        "A thicker line stands for more imports.</text>"
    )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    (Path(__file__).parent / "layers.svg").write_text(picture(), encoding="utf-8")
