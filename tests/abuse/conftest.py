import jaxtyping
import pytest

import sinkinterp as si


@pytest.fixture(autouse=True)
def as_users_run_it():
    """The package without the type checks that other tests execute: users do not have them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def subject():
    """A model of one layer and one head that reads 64 symbols, 16 at most."""
    return si.load("sinkinterp/demo-softmax")


@pytest.fixture(scope="session")
def reader():
    """A model that reads text."""
    return si.load("sinkinterp/text-softmax")
