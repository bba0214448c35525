"""The program `sinkinterp`; as a module, `python -m sinkinterp`, launchers of several processes start it."""

import os
import signal
from types import FrameType


def main() -> None:
    """Runs the command line. Ctrl-C ends it in one line also while libraries are imported."""
    try:
        os.getcwd()
    except FileNotFoundError:  # torch ends the program then
        os.write(2, b"error: the folder that this program is started in is gone; change to another one\n")
        raise SystemExit(2) from None
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup sets another one
        signal.signal(signal.SIGINT, _interrupted)
    from .cli.main import app

    app()


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, but ends the program inside an import: libraries in C++ abort at an exception there."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os.write(2, b"interrupted\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
