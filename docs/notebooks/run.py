"""Runs the notebooks and keeps their output: `python docs/notebooks/run.py`. Figures are kept as pictures."""

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

os.environ["PLOTLY_RENDERER"] = "png"
for file in sorted(Path(__file__).parent.glob("*.ipynb")):
    notebook = nbformat.read(file, as_version=4)
    NotebookClient(notebook, timeout=300).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times of the run
    nbformat.write(notebook, file)
    print(f"ran {file.name}")
