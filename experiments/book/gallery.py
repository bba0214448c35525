"""Draws every view from the checkpoints that ship, and from the models that `make models` made: `make figures`.

    python -m experiments.book.gallery

Writes figures/gallery.html, and the pictures that the documents show.
"""

from pathlib import Path

from sinkinterp.files import write_file
from sinkinterp.pages.gallery import gallery
from sinkinterp.pages.report import save_pictures

if __name__ == "__main__":
    folder = Path("figures")
    drawn = gallery(lambda name: print(f"measuring {name}"))
    write_file(folder / "gallery.html", drawn.html)
    for file in save_pictures({folder / f"{name}.png": figure for name, figure in drawn.previews.items()}):
        print(f"wrote {file}")
