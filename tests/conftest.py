import gc
import json
import os
import shutil
import signal
import threading
from collections import Counter
from contextlib import contextmanager, nullcontext
from functools import cache
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may reach for the network
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as many workers as cores: more threads wait for each other

import hypothesis
import jaxtyping
import pytest
from jaxtyping import config
from shape_checks import calls_of, checked_where_it_states_shapes

hypothesis.settings.register_profile("same", derandomize=True)  # or a change fails for what another one brought in
hypothesis.settings.load_profile("same")  # --hypothesis-profile=default looks for new examples
COMPOSED = {"cli", "models", "pages", "runs", "tests"}  # folders of tests
jaxtyping.jaxtyped = checked_where_it_states_shapes  # before any import of the package, which may import all of it


def pytest_addoption(parser):
    parser.addoption("--browser", action="store_true", help="tests of pages fail without a browser")
    parser.addoption("--quick", action="store_true", help="leave out the functions of tests/slow.txt")


def pytest_unconfigure(config):
    """The last lines say what was skipped, and what was left out."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter and not hasattr(config, "workerinput") and (skipped := reporter.stats.get("skipped")):
        reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
        print("skipped:", "; ".join(f"{count} ({reason})" for reason, count in reasons.most_common()))
    if reporter and not hasattr(config, "workerinput") and config.getoption("quick"):
        print(f"left out: {len(SLOW_FUNCTIONS)} slow functions (tests/slow.txt); make test ALL=1 runs every test")


def pytest_configure(config):
    """Imports what nearly every test needs, once; xdist's controller runs no test and needs none of it."""
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return
    gc.disable()  # while modules are imported, which stay
    import kaleido
    import torch
    import typer.main

    from sinkinterp._experiments import load_package

    load_package()  # tests import what experiments share as `reproduce` does: from sinkinterp._experiments
    kaleido.start_sync_server = lambda **_: None  # most pictures of tests are not drawn
    typer.main.get_command = cache(typer.main.get_command)  # else each line of a CliRunner makes all commands anew
    torch.ones(1, requires_grad=True).backward()  # autograd begins with threads, and no fork, after one compiles
    if hasattr(os, "register_at_fork"):  # else threads that begin at once in a child renew one pool, and some find none
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(torch.get_num_threads()))
    os.fsync = os.fstat  # no test cuts the power, and none waits for a disk; `test_files` notes what is flushed


SLOW = (  # files that take longest start first, so that no worker waits for another at the end
    "test_benchmark_gpu",  # seven times as long in a process whose memory has grown
    "test_experiments", "test_study", "test_outside", "test_hub", "test_docs", "test_loop",
    "test_interventions", "test_demo", "test_generation", "test_real_weights", "test_examples", "test_watching",
    "test_make", "test_path_patching", "test_kills", "test_distributed", "test_wheel", "test_mutants",
)  # fmt: skip


SLOW_FUNCTIONS = frozenset((Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").split())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Slow files come first; pytest-xdist would sort files by how many tests they have. --quick drops slow ones."""
    if config.getoption("quick"):
        items[:] = [item for item in items if item.nodeid.partition("[")[0] not in SLOW_FUNCTIONS]
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))


def pytest_collection_finish():
    """What was imported stays: no search for garbage looks through it again, and few look through the rest."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session")
def browser(pytestconfig):
    """The path of Chromium. Without one the test is skipped, or fails with --browser."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        stop = pytest.fail if pytestconfig.getoption("browser") else pytest.skip
        stop("no Chromium: make test BROWSER=1 installs it")
    return path


@pytest.fixture(autouse=True)
def seeded():
    """Every test begins with one seed, its shapes unchecked, and what it calls leaves gradients on."""
    import torch

    torch.default_generator.manual_seed(0)  # torch.manual_seed also keeps a stack for each device that is not there
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    calls_of.clear()
    yield
    was_on = torch.is_grad_enabled()
    torch.set_grad_enabled(True)  # the next test is not at fault
    assert was_on


@pytest.fixture
def as_users_run_it():
    """The package without the type checks that the other tests execute: users do not have them."""
    with without_type_checks():
        yield


@pytest.fixture(scope="module")
def module_as_users_run_it():
    """As `as_users_run_it`, for a whole module: what composes parts whose own tests check their types."""
    with without_type_checks():
        yield


@pytest.fixture(scope="module", autouse=True)
def types_where_the_parts_are(request):
    """Shapes are checked in the tests of the parts, and not again in the tests of what is composed of them."""
    with without_type_checks() if request.path.parent.name in COMPOSED else nullcontext():
        yield


@contextmanager
def without_type_checks():
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)


@pytest.fixture
def interruptible():
    """Signals stop the test, and what it starts, even where the tests were started with them ignored (nohup, CI)."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    handlers = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of inputs, most of them bad; a module may add its own."""
    from abuse import bad_files

    folder = tmp_path_factory.mktemp("files")
    bad_files.make(folder)
    return folder


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Runs a command line in an empty folder; returns its exit code, and its output with single spaces."""
    from typer.testing import CliRunner

    from sinkinterp.cli.main import app

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run(*words):
        result = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
        return result.exit_code, " ".join(result.output.split())

    return run


@pytest.fixture
def answers_of_live_pages(monkeypatch):
    """What live pages answered: each is asked one question, and then its server is interrupted."""
    answers, forever = [], ThreadingHTTPServer.serve_forever

    def ask_once(server):
        thread = threading.Thread(target=forever, args=(server, 0.01))
        thread.start()
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        body = json.dumps({"prompt": "3 17 5 9", "edits": [{"kind": "swap", "numbers": [2]}]})
        connection.request("POST", "/ask", body, {"Content-Type": "application/json"})
        answers.append(json.loads(connection.getresponse().read()))
        server.shutdown()
        thread.join()
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", ask_once)
    return answers


@pytest.fixture
def make_call():
    """An attention call with peaked random scores; sizes are distinct primes, so that swapped axes cannot pass."""
    import torch

    from sinkinterp.attention.call import AttentionCall

    def make(n_heads=6, n_kv_heads=3, queries=11, keys=None, d_head=5, batch=2, **fields):
        keys = keys or queries
        q = torch.randn(batch, n_heads, queries, d_head) * 2
        k, v = (torch.randn(batch, n_kv_heads, keys, d_head) for _ in range(2))
        return AttentionCall(3, q, k, v, fields.pop("scale", d_head**-0.5), **fields)

    return make
