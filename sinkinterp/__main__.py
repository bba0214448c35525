"""The command line as a module, which launchers of several processes start: `python -m sinkinterp`."""

from .cli.main import app

app()
