"""`python -m experiments NAME` does the same as `sinkinterp reproduce NAME`."""

import typer

from sinkinterp.cli.reproduce import reproduce

typer.run(reproduce)
