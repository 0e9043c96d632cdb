"""The demo: one command, and there are a page, a cluster for kubectl and jobs that run."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.apiserver.faces import client_of
from tests.controlplane.plane import wait_until

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def demo() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bayplan.cli", "demo", "--seed", "7"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_jobs_run_and_nothing_is_left_behind(demo: subprocess.Popen[str]) -> None:
    assert demo.stdout is not None
    page = demo.stdout.readline().split()[-1]
    kubeconfig = Path(demo.stdout.readline().rpartition("=")[2].strip())
    with urllib.request.urlopen(page, timeout=60) as answer:  # noqa: S310 - on loopback
        assert answer.read().startswith(b"<!doctype html>")
    client = client_of(str(kubeconfig))

    def runs() -> bool:
        pods = client.get(PODS).json["items"]
        return any(pod["status"].get("phase") == "Running" for pod in pods)

    wait_until(runs, "a job runs")
    assert len(client.names("/api/v1/nodes")) == 24
    demo.send_signal(signal.SIGTERM)
    assert demo.wait(60) == 0
    assert not kubeconfig.parent.exists()


def test_it_ends_by_itself_after_a_time() -> None:
    command = [sys.executable, "-m", "bayplan.cli", "demo", "--for", "1s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("Jobs come and go; Ctrl-C ends it.\n")
