"""What a command loads: nothing that its work does not need."""

import subprocess
import sys

import pytest

from bayplan.profiles import finder as discovery
from bayplan.profiles.finder import PluginFinder
from bayplan.profiles.loading import default_profiles

HEAVY = {
    "aiohttp",
    "asyncio",
    "bayplan.live",
    "bayplan.nccl",
    "bayplan.topology.machine.readers.machinefile",
    "bayplan_dra.cel.compiler",
    "bayplan_dra.driver",
    "celpy",
    "grpc",
    "jsonschema",
    "kubernetes",
    "lark",
    "networkx",
    "prometheus_client",
    "re2",
    "rich.progress",
}
RUN = """
import sys
from bayplan.cli import main
sys.argv[0] = "bayplan"
try:
    main()
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""


def loaded_by(*arguments: str, check: bool = True) -> tuple[str, set[str]]:
    """Run a command in a process of its own; return its output and the modules it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=check
    )
    return done.stdout, set(done.stderr.split())


def test_a_plain_simulation_loads_no_library_that_it_does_not_use():
    output, loaded = loaded_by("simulate", "-f", "configs/examples/prefer-gather")
    assert "4 of 4 pods have a node" in output
    assert "bayplan_plugins.gpu_topology.plugin" in loaded
    assert sorted(loaded & HEAVY) == []


@pytest.mark.parametrize(
    ("example", "needed"),
    [("configs/examples/gpu-nic-pcie-root", "bayplan_dra.cel.compiler")],
)
def test_what_is_loaded_late_is_there_when_it_is_needed(example, needed):
    output, loaded = loaded_by("simulate", "-f", example)
    assert "8 of 8 pods have a node" in output
    assert needed in loaded


def test_help_loads_no_scheduler():
    _, loaded = loaded_by("--help")
    assert not loaded & {"bayplan.scheduler.scheduler", "numpy", "pydantic", "rich"}


def test_a_scheduler_without_a_journal_loads_no_database_library():
    profile = "configs/profiles/default.yaml"
    _, loaded = loaded_by("run", "--config", profile, "--kubeconfig", "none", check=False)
    assert "bayplan.live.app" in loaded
    assert "sqlalchemy" not in loaded


def test_a_scheduler_loads_its_pages_after_its_first_decisions():
    code = "import sys, bayplan.live.reading, bayplan.live.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"aiohttp", "bayplan.live.web", "bayplan.page.feed", "rich.console"}


def test_installed_plugins_are_looked_up_once(monkeypatch):
    asked = []
    discovery._installed.cache_clear()
    entry_points = discovery.entry_points
    monkeypatch.setattr(
        discovery, "entry_points", lambda **group: asked.append(group) or entry_points(**group)
    )
    for _ in range(2):
        assert len(default_profiles(PluginFinder()).profiles[0].plugins) > 20
    assert len(asked) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says how many threads a process has")
def test_a_command_starts_no_thread_for_each_core():
    asked = "import os; print(len(os.listdir('/proc/self/task')))"
    run = RUN.replace("print(*sorted(sys.modules), file=sys.stderr)", asked)
    arguments = (sys.executable, "-c", run, "simulate", "-f", "configs/examples/prefer-gather")
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1"
