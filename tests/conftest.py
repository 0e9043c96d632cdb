"""Options of the whole suite, and tests that are coroutines."""

import asyncio
import gc
import importlib
import inspect
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from tests.controlplane.installation import install
from tests.controlplane.plane import ControlPlane, control_plane
from tests.live.fastloop import FastLoop
from tests.paths import ROOT
from tests.real_programs import RAN, missing, report
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from bayplan import garbage
from bayplan.api.objects import remove_kind
from bayplan.kinds import KINDS_OF_WORKLOADS, rows_of_users

# The same examples each time, however slow the machine is.
settings.register_profile("bayplan", deadline=None, derandomize=True)
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=int(os.environ.get("BAYPLAN_EXAMPLES", "2000")),
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("bayplan")
# Else it takes values from the source of all modules that are loaded, and looks again whenever one
# is imported: a sixth of the time of these tests, and other examples in each process.
pytest.MonkeyPatch().setattr(providers, "_get_local_constants", lambda: providers._local_constants)

# Collecting makes hundreds of thousands of objects that stay. What walks over them whenever a
# cluster is read is not called in the process of the tests.
gc.set_threshold(400_000, 20, 50)
garbage.collect_rarely = lambda: None

_LIVE = Path(__file__).parent / "live"
_WAITING = (
    "tests/controlplane/",
    "tests/dra/driver/",
    "tests/live/test_bench_live.py",
    "tests/live/test_bill_pages.py",
    "tests/live/test_commands.py",
    "tests/live/test_trouble.py",
    "tests/page/test_browser.py",
    "tests/remote/",
)
"""Tests that mostly wait for other processes, threads and sockets."""
_REAL = re.compile(r"controlplane/|[-\[]real[-\]]")
_OWN = {"tests/node/": "the node", "tests/peers/": "the peers", "tests/chart/": "the chart"}
"""Tests with a control plane of their own."""


@pytest.fixture(autouse=True)
def _no_kinds_of_users() -> Iterator[None]:
    """Let no test know the kinds of workloads that the profile of another one adds."""
    yield
    for key, kind in list(rows_of_users().items()):
        remove_kind(kind)
        rows_of_users().pop(key)  # type: ignore[attr-defined]
        KINDS_OF_WORKLOADS.pop(key)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Let no test have its logs printed where a command of another one sent them."""
    logger = logging.getLogger("bayplan")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kubeconfig",
        metavar="FILE",
        help="run the API contract against this cluster instead of the embedded one",
    )
    parser.addoption(
        "--rounds",
        metavar="N",
        type=int,
        default=2,
        help="how often tests/controlplane/test_faults.py breaks each part of a cluster; "
        "tests/node/test_topology_manager.py tries four pods a round with each policy",
    )


@pytest.fixture(scope="session")
def rounds(request: pytest.FixtureRequest) -> int:
    """How often a test breaks, asks or measures something."""
    return int(request.config.getoption("--rounds"))


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """The real control plane, if there is one, with all kinds that bayplan follows.

    Tests that use it are in tests/controlplane, or have "real" in their names.
    """
    if reason := missing():
        pytest.skip(reason)
    with control_plane() as plane:
        install(plane.client)
        yield plane


class _Scheduling(LoadScopeScheduling):
    """All tests on a real control plane go to one process, likewise those on a real node, those of
    the peers, those that mostly wait, and those of a file that share a fixture. Any other test goes
    to the next process that is free.

    xdist keeps tests that are done, and walks all of them after each one; here they are dropped.
    """

    def _split_scope(self, nodeid: str) -> str:
        for place, scope in _OWN.items():
            if place in nodeid:
                return scope
        if _REAL.search(nodeid) and "[embedded" not in nodeid:
            return "the control plane"
        if nodeid.startswith(_WAITING):
            return "what waits"
        path = nodeid.partition("::")[0]
        return path if _has_shared_fixtures(path) else nodeid

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        nodeid = self.registered_collections[node][item_index]
        scope = self._split_scope(nodeid)
        units = self.assigned_work[node]
        # A test that tries again was complete the first time.
        if unit := units.get(scope):
            unit.pop(nodeid, None)
            if not unit:
                del units[scope]
        self._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope, unit = self.workqueue.popitem(last=False)
        self.assigned_work[node][scope] = unit
        node.send_runtest_some([self._places[nodeid] for nodeid in unit])

    @cached_property
    def _places(self) -> dict[str, int]:
        """Where each test is in the collection, which is the same in all processes."""
        assert self.collection is not None
        return {nodeid: place for place, nodeid in enumerate(self.collection)}

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        return sum(map(len, workload.values()))


@cache
def _has_shared_fixtures(path: str) -> bool:
    """Tell whether the tests of a file share what would be made again in each process."""
    return 'scope="module"' in (ROOT / path).read_text()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the tests in each process from another place on: what one compiled, the others read.

    In a fresh clone each would compile all of them, which takes as long as hundreds of tests.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    places = [place for name in session.config.args if (place := Path(name)).is_dir()]
    files = [file for place in places for file in sorted(place.rglob("test_*.py"))]
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in files[first:] + files[:first]:
        name = ".".join(file.absolute().relative_to(ROOT).with_suffix("").parts)
        # What fails or skips here is told when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests of programs that are not ours try twice: how soon these act is not ours to say.

    The summary names each that did. What waits comes first, while other processes work.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(_WAITING))
    if missing():
        # They are skipped, and a test that may try again takes 10 ms longer.
        return
    for item in items:
        if any(place in item.nodeid for place in _OWN):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes to use: tests of processes wait, those of real programs mostly.

    Each process collects all tests, which takes as long as hundreds of them.
    """
    return (os.cpu_count() or 1) + (1 if missing() else 2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _Scheduling:
    return _Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking what all tests share over and over.

    A command that runs in this process freezes what is its own; it must not thaw that of all.
    """
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that started this one which real programs ran here."""
    if isinstance(output := getattr(session.config, "workeroutput", None), dict):
        output["real programs"] = sorted(RAN)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    """Learn which real programs ran in another process; one that died cannot say."""
    RAN.update(getattr(node, "workeroutput", {}).get("real programs", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(report(RAN))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine; those of tests/live in a loop that skips idle time."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    factory = FastLoop if pyfuncitem.path.is_relative_to(_LIVE) else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(test(**arguments))
    return True
