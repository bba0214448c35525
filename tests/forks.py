"""Processes that are forked from that of the tests: they have imported everything."""

import os
import traceback

import pytest

_CAN_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
_IN_THREADS = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # children do little


def forks(test):
    """A test that forks; skipped where the system cannot."""
    return _CAN_FORK(_IN_THREADS(test))


def forked(work):
    """The process id of a child that does some work and ends: with 0, or with 1 where the work raises an error."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def ended(child):
    """The exit code of a child when it has ended; a negative number is a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
