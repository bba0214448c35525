import pytest

import sinkinterp as si


@pytest.fixture(autouse=True)
def without_type_checks(as_users_run_it):
    """Bad values reach the package's own checks."""


@pytest.fixture(scope="session")
def subject():
    """A model of one layer and one head that reads 64 symbols, 16 at most."""
    return si.load("sinkinterp/demo-softmax")
