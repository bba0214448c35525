"""`python -m experiments NAME` does the same as `sinkinterp reproduce NAME`."""

import sys

from sinkinterp.cli.main import app

app(["reproduce", *sys.argv[1:]])
