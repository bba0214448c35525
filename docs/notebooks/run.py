"""Runs the notebooks and keeps their output: `python docs/notebooks/run.py`. Figures are plotly's, and pictures too."""

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

os.environ["PLOTLY_RENDERER"] = "plotly_mimetype+png"
for file in sorted(Path(__file__).parent.glob("*.ipynb")):
    notebook = nbformat.read(file, as_version=4)
    NotebookClient(notebook, timeout=300).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times of the run
        if cell.cell_type == "code":
            # progress bars and warnings name this machine's folders
            cell.outputs = [
                output for output in cell.outputs if output.get("name") != "stderr"
            ]
    nbformat.write(notebook, file)
    print(f"ran {file.name}")
