"""bayplan cluster up: manifests in, a server and a kubeconfig out, nothing left behind."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import yaml

MANIFESTS = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {capacity: {cpu: 4}, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: team}
spec: {containers: [{name: c, image: i, env: [{name: A, value: b}]}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
data: {a: b}
---
apiVersion: nobody.example/v1
kind: Thing
metadata: {name: t}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "all.yaml").write_text(textwrap.dedent(MANIFESTS))
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        "from bayplan.cli import main; main()",
        "cluster",
        "up",
        *arguments,
    ]


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command(*arguments), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def refused(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        command(*arguments), cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_cluster_is_served_until_it_is_told_to_end(folder: Path, end: signal.Signals) -> None:
    with running(folder, "-f", "all.yaml") as process:
        assert process.stdout is not None
        assert "1 pods, 1 nodes, 1 configmaps" in process.stdout.readline()
        path = folder / "bayplan.kubeconfig"
        assert process.stdout.readline() == f"export KUBECONFIG={path}\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        config = yaml.safe_load(path.read_text())
        server = config["clusters"][0]["cluster"]["server"]
        token = config["users"][0]["user"]["token"]
        assert server.startswith("http://127.0.0.1:")
        assert server.endswith(token)
        request = Request(f"{server}/api/v1/namespaces/team/pods/a")  # noqa: S310
        with urlopen(request, timeout=10) as answer:  # noqa: S310
            pod = yaml.safe_load(answer.read())
        assert pod["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]
        assert not pod["metadata"]["creationTimestamp"].startswith("2000")
        process.send_signal(end)
        out, err = process.communicate(timeout=10)
        assert (process.returncode, out) == (0, "")
        assert err == "note: 1 object of kind Thing (nobody.example/v1) passed over\n"
        assert not path.exists()


def test_a_port_that_is_taken_is_named(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        error = refused(folder, "--port", port)
    assert f"port {port} of 127.0.0.1 is taken" in error
    assert not (folder / "bayplan.kubeconfig").exists()


def test_bad_input_is_an_answer(folder: Path) -> None:
    assert "there is no such file" in refused(folder, "-f", "none.yaml")
    assert "nowhere/kubeconfig" in refused(folder, "--kubeconfig", "nowhere/kubeconfig")
    (folder / "bad.yaml").write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: p},"
        " spec: {priorityClassName: none, containers: [{name: c}]}}"
    )
    error = refused(folder, "-f", "bad.yaml")
    assert "bad.yaml" in error
    assert 'no PriorityClass with name "none"' in error


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("{name: c, labels: {a: b c}}", 'metadata.labels: Invalid value: "b c": a valid label'),
        ("{name: c, annotations: {a b: c}}", 'Invalid value: "a b": name part must consist of'),
        ("{name: c, labels: {1: a}}", "labels"),
    ],
)
def test_metadata_that_an_api_server_refuses_is_refused(
    folder: Path, metadata: str, expected: str
) -> None:
    path = folder / "bad.yaml"
    path.write_text(f"apiVersion: v1\nkind: ConfigMap\nmetadata: {metadata}\n")
    done = subprocess.run(
        command("-f", str(path), "--kubeconfig", str(folder / "k")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


def test_the_kubeconfig_of_somebody_else_stays(folder: Path) -> None:
    path = folder / "config"
    path.write_text("apiVersion: v1\nkind: Config\n")
    assert "was not written by bayplan" in refused(folder, "--kubeconfig", "config")
    assert path.read_text() == "apiVersion: v1\nkind: Config\n"


def test_the_kubeconfig_of_a_cluster_that_runs_is_not_taken_over(folder: Path) -> None:
    with running(folder, "-f", "all.yaml") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()
        before = (folder / "bayplan.kubeconfig").read_text()
        assert "is that of a cluster that runs" in refused(folder)
        assert (folder / "bayplan.kubeconfig").read_text() == before
        process.kill()
        process.wait()
    # What a cluster leaves that was killed is free to be taken.
    with running(folder) as process:
        assert process.stdout is not None
        assert "serving" in process.stdout.readline()
