"""bayplan cluster up: manifests in, a server and a kubeconfig out, nothing left behind."""

from __future__ import annotations

import fcntl
import os
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
from tests.forked import Forked

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


def forked(folder: Path, name: str, *arguments: str) -> Forked:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return Forked("cluster", name, *arguments, cwd=folder, **streams)


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Forked]:
    process = forked(folder, "up", *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = forked(folder, name, *arguments)
    out, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(arguments, process.wait(), out, errors)


def refused(folder: Path, *arguments: str, name: str = "up") -> str:
    done = run(folder, name, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_cluster_is_served_until_it_is_stopped(folder: Path, end: signal.Signals) -> None:
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
        with urlopen(request, timeout=60) as answer:  # noqa: S310
            pod = yaml.safe_load(answer.read())
        assert pod["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]
        assert not pod["metadata"]["creationTimestamp"].startswith("2000")
        process.send_signal(end)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "")
        assert err == "note: 1 object of kind Thing (nobody.example/v1) ignored\n"
    assert [file.name for file in folder.iterdir()] == ["all.yaml"]


# In the background -------------------------------------------------------------------------


@contextmanager
def detached(folder: Path, *arguments: str) -> Iterator[subprocess.CompletedProcess[str]]:
    """Start a cluster in the background; whatever becomes of the test, it does not stay."""
    done = run(folder, "up", "--detach", *arguments)
    try:
        yield done
    finally:
        for file in folder.glob("*.pid"):
            os.kill(int(file.read_text()), signal.SIGKILL)


def test_a_detached_cluster_serves_when_the_command_returns(folder: Path) -> None:
    with detached(folder, "-f", "all.yaml") as done:
        assert done.returncode == 0
        assert "1 pods, 1 nodes, 1 configmaps" in done.stdout
        assert done.stderr == "note: 1 object of kind Thing (nobody.example/v1) ignored\n"
        files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
        del files["all.yaml"]
        assert files == {
            "bayplan.kubeconfig": 0o600,
            "bayplan.kubeconfig.pid": 0o600,
            "bayplan.kubeconfig.log": 0o600,
        }
        config = yaml.safe_load((folder / "bayplan.kubeconfig").read_text())
        server = config["clusters"][0]["cluster"]["server"]
        with urlopen(f"{server}/api/v1/namespaces/team/pods/a", timeout=60) as answer:  # noqa: S310
            assert answer.status == 200
        assert "is that of a cluster that runs" in refused(folder, "--detach")
        ended = run(folder, "down")
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "# stopped\n", "")
    assert [file.name for file in folder.iterdir()] == ["all.yaml"]


def test_what_a_detached_cluster_prints_is_for_eval(folder: Path) -> None:
    with detached(folder, "--kubeconfig", "one two") as done:
        shell = subprocess.run(
            ["/bin/sh", "-c", f'{done.stdout}\nprintf %s "$KUBECONFIG"'],
            capture_output=True,
            text=True,
            check=True,
        )
        assert shell.stdout == str(folder / "one two")
        last = done.stdout.splitlines()[-1]
        assert last.endswith("bayplan cluster down --kubeconfig 'one two'")


def test_a_stopped_detached_cluster_leaves_nothing(folder: Path) -> None:
    with detached(folder):
        pid = folder / "bayplan.kubeconfig.pid"
        with pid.open() as held:
            os.kill(int(pid.read_text()), signal.SIGTERM)
            # The process holds it until its very end.
            fcntl.flock(held, fcntl.LOCK_EX)
    assert [file.name for file in folder.iterdir()] == ["all.yaml"]


def test_a_detached_cluster_that_cannot_start_says_why(folder: Path) -> None:
    assert "none.yaml" in refused(folder, "--detach", "-f", "none.yaml")
    assert [file.name for file in folder.iterdir()] == ["all.yaml"]


def test_a_detached_cluster_reads_standard_input(folder: Path) -> None:
    with (folder / "all.yaml").open() as manifests:
        command = [sys.executable, "-m", "bayplan.cli", "cluster", "up", "-d", "-f", "-"]
        subprocess.run(command, cwd=folder, stdin=manifests, check=True)
    done = run(folder, "down")
    assert done.stdout == "# stopped\n"


def test_a_cluster_in_the_foreground_stops_the_same_way(folder: Path) -> None:
    with running(folder) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert run(folder, "down").stdout == "# stopped\n"
        assert process.wait(timeout=60) == 0


def test_the_files_of_a_killed_cluster_are_removed(folder: Path) -> None:
    with detached(folder):
        pid = int((folder / "bayplan.kubeconfig.pid").read_text())
    # Its number says nothing: the process may be another one by now.
    (folder / "bayplan.kubeconfig.pid").write_text(f"{os.getpid()}\n")
    assert pid != os.getpid()
    done = run(folder, "down")
    assert done.stdout == "# was not running; removed its files\n"
    assert [file.name for file in folder.iterdir()] == ["all.yaml"]


def test_nothing_to_stop_is_an_error(folder: Path) -> None:
    assert "no cluster of bayplan cluster up" in refused(folder, name="down")
    foreign = folder / "bayplan.kubeconfig"
    foreign.write_text("apiVersion: v1\nkind: Config\n")
    assert "no cluster of bayplan cluster up" in refused(folder, name="down")
    assert foreign.exists()


def test_a_foreign_file_is_not_read_as_the_pid(folder: Path) -> None:
    path = folder / "bayplan.kubeconfig.pid"
    path.write_text("my notes\n")
    assert "was not written by bayplan cluster up" in refused(folder)
    assert path.read_text() == "my notes\n"


# Bad input ---------------------------------------------------------------------------------


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
    ],
)
def test_metadata_that_an_api_server_refuses_is_refused(
    folder: Path, metadata: str, expected: str
) -> None:
    path = folder / "bad.yaml"
    path.write_text(f"apiVersion: v1\nkind: ConfigMap\nmetadata: {metadata}\n")
    done = run(folder, "up", "-f", str(path), "--kubeconfig", str(folder / "k"))
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_foreign_kubeconfig_stays(folder: Path) -> None:
    path = folder / "config"
    path.write_text("apiVersion: v1\nkind: Config\n")
    assert "was not written by bayplan" in refused(folder, "--kubeconfig", "config")
    assert path.read_text() == "apiVersion: v1\nkind: Config\n"


def test_the_kubeconfig_of_a_running_cluster_is_not_overwritten(folder: Path) -> None:
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


def test_a_misspelt_field_of_a_kind_that_is_only_served_is_refused(folder: Path) -> None:
    manifest = "apiVersion: v1\nkind: Secret\nmetadata: {name: c}\ndatas: {a: Yg==}\n"
    (folder / "bad.yaml").write_text(manifest)
    error = refused(folder, "-f", "bad.yaml")
    assert error.startswith("bayplan: bad.yaml:1:1 (document 1): Secret: $.datas: unknown field")
    assert 'did you mean "data"?' in error
