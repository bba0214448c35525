"""The program `sinkinterp`; as a module, `python -m sinkinterp`, launchers of several processes start it."""

import os
import signal
from types import FrameType

_ENDED = b"interrupted\n"


def main() -> None:
    """Runs the command line. Ctrl-C ends it in one line at any moment."""
    try:
        os.getcwd()
    except FileNotFoundError:  # torch ends the program then
        os.write(2, b"error: the folder that this program is started in is gone; change to another one\n")
        raise SystemExit(2) from None
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup sets another one
            signal.signal(signal.SIGINT, _interrupted)
        from .cli.main import app

        app()
    except KeyboardInterrupt:  # before a command has begun, or after its end
        os.write(2, _ENDED)
        raise SystemExit(130) from None


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, but ends the program inside an import: libraries in C++ abort at an exception there."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os.write(2, _ENDED)
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
