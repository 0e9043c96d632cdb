"""``bayplan bench live`` on a cluster: figures, and nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cluster.apiserver.faces import Client, Face, serving
from tests.forked import Forked

from bayplan.api import Node
from bayplan.cli import cli
from bayplan.cluster.apiserver import Role, Rule, ServedCluster, WallClock
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import InputError
from bayplan_benchmarks.live_cluster.objects import Workload, pods, surroundings
from bayplan_benchmarks.live_cluster.server_metrics import server_usage

SECONDS = 60.0
CREATED = (
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/api/v1/pods",
    "/apis/resource.k8s.io/v1/resourceclaims",
    "/apis/resource.k8s.io/v1/resourceslices",
    "/apis/resource.k8s.io/v1/deviceclasses",
    "/apis/scheduling.k8s.io/v1alpha2/podgroups",
)


@pytest.fixture
def face() -> Iterator[Face]:
    with serving(ServedCluster(clock=WallClock())) as made:
        yield made


@pytest.fixture
def client(face: Face) -> Client:
    return Client(face.server.url)


@pytest.fixture
def kubeconfig(face: Face, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    face.server.write_kubeconfig(path)
    return path


def bench(kubeconfig: Path, *more: str, name: str = "live") -> Forked:
    given = ("--nodes", "20", "--pods", "40", "--kubeconfig", str(kubeconfig), *more)
    return Forked("bench", name, *given, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def names(client: Client) -> dict[str, list[str]]:
    return {path: client.names(path) for path in CREATED}


def test_every_workload_has_figures_and_nothing_is_left(client: Client, kubeconfig: Path) -> None:
    before = names(client)
    process = bench(kubeconfig, "-o", "json")
    out, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    answer = json.loads(out)
    assert answer["input"] == {
        "nodes": 20,
        "pods": 40,
        "draNodes": 4,
        "draPods": 32,
        "gangNodes": 20,
        "gangPods": 24,
        "gangrackNodes": 20,
        "gangrackPods": 24,
    }
    for prefix in ("", "dra.", "gang.", "gangrack."):
        for name in ("podsPerSecond", "createSeconds", "boundSeconds", "cpuMicrosecondsPerPod"):
            assert answer["figures"][f"{prefix}{name}"] > 0
    assert "20 nodes without kubelets (label and taint bayplan.dev/bench=" in errors
    assert "without figures of the API server" in errors
    assert "all is deleted" in errors
    assert names(client) == before


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_an_interrupted_run_deletes_everything(
    client: Client, kubeconfig: Path, number: signal.Signals, status: int
) -> None:
    before = names(client)
    process = bench(kubeconfig, "--scheduler", "nobody")
    until = time.monotonic() + SECONDS
    while len(client.names("/api/v1/pods")) < 40 and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == status, errors
    assert "all is deleted" in errors
    assert "Traceback" not in errors
    assert names(client) == before


def test_a_scheduler_is_started_beside_a_backlog_and_nothing_is_left(
    client: Client, kubeconfig: Path
) -> None:
    before = names(client)
    process = bench(kubeconfig, "-o", "json", name="live-mega")
    out, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    answer = json.loads(out)
    assert answer["input"] == {"nodes": 20, "boundPods": 100, "waitingPods": 40}
    for name in ("readySeconds", "drainPodsPerSecond", "drainSeconds", "peakMemoryMiB"):
        assert answer["figures"][name] > 0
    assert "all is deleted" in errors
    assert names(client) == before


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        ("sh -c 'echo it is broken; exit 3'", "the scheduler ended with 3: it is broken"),
        ("/nowhere/scheduler", "/nowhere/scheduler: No such file or directory"),
    ],
)
def test_a_scheduler_that_does_not_start_ends_the_run(
    client: Client, kubeconfig: Path, start: str, problem: str
) -> None:
    before = names(client)
    process = bench(kubeconfig, "--scheduler", "s", "--start", start, name="live-mega")
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 2, errors
    assert problem in errors
    assert "Traceback" not in errors
    assert names(client) == before


def test_missing_rights_are_named_before_anything_is_created(tmp_path: Path) -> None:
    reader = Role("reader", (Rule(("*",), ("*",), ("get", "list", "watch")),))
    with serving(tokens={"secret-token": reader}) as face:
        path = tmp_path / "kubeconfig"
        face.server.write_kubeconfig(path, "secret-token")
        refused = CliRunner().invoke(cli, ["bench", "live", "--kubeconfig", str(path)])
    assert isinstance(refused.exception, InputError)
    assert f"{path}: may not create deviceclasses.resource.k8s.io, create namespaces" in str(
        refused.exception
    )
    assert refused.output == ""


def test_gangs_without_pod_groups_are_annotations_and_stay_on_nodes_of_the_run() -> None:
    workload = Workload("x7k2p", "gang", 2, 8, "bayplan", pod_groups=False)
    made = list(pods(workload))
    assert {type(obj) for obj in surroundings(workload)} == {Node}
    gangs = [pod.metadata.annotations["gang.scheduling.koordinator.sh/name"] for pod in made]
    assert gangs == ["gang-0"] * 4 + ["gang-1"] * 4
    assert all(pod.spec.node_selector == {"bayplan.dev/bench": "x7k2p"} for pod in made)


class Metrics(Transport):
    """An API server that has metrics and nothing else."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def request(self, *_: Any, **__: Any) -> bytes:
        return self._text.encode()


async def test_a_servers_usage_is_its_cpu_time_and_the_writes_of_schedulers() -> None:
    labels = 'group="",version="v1",verb="{}",resource="pods",subresource="{}",system_client="{}"'
    lines = [
        "process_cpu_seconds_total 2.5",
        f"apiserver_request_total{{{labels.format('POST', 'binding', '')}}} 7",
        f"apiserver_request_total{{{labels.format('POST', 'binding', 'kube-scheduler')}}} 2",
        f"apiserver_request_total{{{labels.format('POST', '', 'kube-controller-manager')}}} 9",
        f"apiserver_request_total{{{labels.format('LIST', '', '')}}} 9",
        "process_max_fds 5",
    ]
    usage = await server_usage(Metrics("\n".join(lines)))
    assert usage.cpu == 2.5
    assert usage.writes == {"POST pods/binding": 9}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("live", "--scheduler", "default-scheduler"), "--scheduler needs --kubeconfig"),
        (("basic", "--kubeconfig", "f"), '--kubeconfig: the benchmark "basic" does not run on a'),
        (("live", "--kubeconfig", "nowhere"), "nowhere: there is no such file"),
        (("live-mega",), '--kubeconfig: the benchmark "live-mega" needs a cluster'),
        (("live-mega", "--kubeconfig", "f", "--scheduler", "s"), "--start: "),
        (("live", "--kubeconfig", "f", "--scheduler", "s", "--start", "x"), "--start: "),
        (
            ("live-mega", "--kubeconfig", "f", "--scheduler", "s", "--start", "x 'y"),
            "--start: No closing quotation",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: tuple[str, ...], problem: str) -> None:
    refused = CliRunner().invoke(cli, ["bench", *arguments])
    assert isinstance(refused.exception, InputError)
    assert problem in str(refused.exception)
