"""``bayplan dra-driver`` as an operator runs it, against an API server on loopback."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.dra.driver.apiserver import SLICES, ApiServer
from tests.dra.driver.driver_stage import eventually, short_folder
from tests.dra.driver.fake_kubelet import Kubelet

from bayplan.api import ResourceClaim
from bayplan.api.dra import DeviceTaint
from bayplan.cli import main
from bayplan.testing import make_object
from bayplan.topology.machine.readers.machinefile import known_machine
from bayplan_dra.driver.command import command
from bayplan_dra.driver.kubernetes_api import KubernetesApi
from bayplan_dra.driver.publish.devices import DRIVER, inventory_of
from bayplan_dra.driver.publish.publisher import Owner, Publisher


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().serving() as made:
        made.put("/api/v1/nodes/n", {"metadata": {"name": "n", "uid": "node-uid"}})
        yield made


@contextmanager
def running(root: Path, server: ApiServer, *more: str) -> Iterator[subprocess.Popen[str]]:
    arguments = ["dra-driver", "--node", "n", "--machine", "dgx-1v", "--listen", "127.0.0.1:0"]
    arguments += ["--kubeconfig", str(server.write_kubeconfig(root / "kubeconfig"))]
    for name in ("plugins", "registry", "cdi"):
        arguments += [f"--{name}-dir", str(root / name)]
    code = "import sys; from bayplan.cli import main; sys.argv[0] = 'bayplan'; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments, *more], stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def make_claim(server: ApiServer, name: str, *devices: str) -> ResourceClaim:
    results = [
        {"request": "gpu", "driver": DRIVER, "pool": "n", "device": device} for device in devices
    ]
    content = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}"
    found = make_object(server.put(path, content))
    assert isinstance(found, ResourceClaim)
    return found


def test_the_command_publishes_and_prepares_until_it_is_terminated(server: ApiServer) -> None:
    with short_folder() as root, running(root, server) as process:
        eventually(lambda: list((root / "registry").glob("*.sock")), 20)
        kubelet = Kubelet(root)
        kubelet.advance()
        (found,) = eventually(server.slices)
        assert [one["name"] for one in found["spec"]["devices"]][:2] == ["gpu-0", "gpu-1"]
        assert found["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
        claim = make_claim(server, "c", "gpu-0", "gpu-3")
        answer = kubelet.prepare(claim)["c"]
        assert sorted(one.device_name for one in answer.devices) == ["gpu-0", "gpu-3"]
        assert len(list((root / "cdi").iterdir())) == 1
        kubelet.stop()
        process.terminate()
        assert process.wait(15) == 0
        assert not list(root.rglob("*.sock")), "sockets are left"
        assert server.slices(), "the kubelet removes slices, an update would need them"
        assert process.stderr is not None
        logged = process.stderr.read()
        assert "registered with the kubelet" in logged
        assert "secret" not in logged


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "9450"], '--listen: expected HOST:PORT such as 127.0.0.1:9450, got "9450"'),
        (["--machine", "dgx-h1oo"], 'or known machine "dgx-h1oo"; did you mean "dgx-h100"?'),
        (["--context", "prod"], "prod"),
        (["--plugins-dir", "/proc/x"], "/proc/x"),
        (["--partition", "x"], '--partition: expected "all" or GPUs such as 0-3,6, got "x"'),
        (["--partition", "9"], "GPU9 does not exist: the machine has 8 GPUs"),
        (["--partition", "0"], "GPU0 cannot be divided: the MIG profiles of Tesla V100-SXM2-32GB"),
    ],
)
def test_an_unusable_option_is_named(
    server: ApiServer,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    given = ["bayplan", "dra-driver", "--node", "n", "--machine", "dgx-1v"]
    given += ["--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0"]
    for name in ("plugins", "registry", "cdi"):
        given += [f"--{name}-dir", str(tmp_path / name)]
    monkeypatch.setattr(sys, "argv", [*given, *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    arguments = ["--node", "n", "--machine", "dgx-1v", "--kubeconfig", str(tmp_path / "none")]
    result = CliRunner().invoke(command, arguments)
    assert str(result.exception) == f"{tmp_path / 'none'}: there is no such file"
    outside = CliRunner().invoke(command, arguments[:4])
    assert "this process does not run in a cluster" in str(outside.exception)
    assert "give --kubeconfig FILE" in str(outside.exception)


# Slices over HTTP ----------------------------------------------------------------------------


@pytest.fixture
def publisher(server: ApiServer, tmp_path: Path) -> Publisher:
    api = KubernetesApi(server.write_kubeconfig(tmp_path / "kubeconfig"))
    return Publisher(api, DRIVER, Owner("n", "node-uid"))


INVENTORY = inventory_of(known_machine("dgx-h100"))


def test_published_slices_are_not_written_again(server: ApiServer, publisher: Publisher) -> None:
    assert publisher.publish(INVENTORY, {}) == 1
    assert publisher.publish(INVENTORY, {}) == 0
    writes = [call for call in server.calls if not call.startswith("GET")]
    assert len(writes) == 1


def test_slices_of_others_are_left_alone(server: ApiServer, publisher: Publisher) -> None:
    for name, driver, node in (("a", "gpu.nvidia.com", "n"), ("b", DRIVER, "m")):
        spec = {"driver": driver, "nodeName": node, "pool": {"name": node}}
        server.put(f"{SLICES}/{name}", {"metadata": {"name": name}, "spec": spec})
    publisher.publish(INVENTORY, {})
    publisher.withdraw()
    assert [one["metadata"]["name"] for one in server.slices()] == ["a", "b"]


def test_a_missing_right_is_reported_with_the_role_to_fix(
    server: ApiServer, publisher: Publisher
) -> None:
    server.denied.add("POST")
    with pytest.raises(Exception, match=r"cannot POST \(403\); the role in configs/deploy"):
        publisher.publish(INVENTORY, {})


def test_fields_that_the_api_server_drops_are_reported(
    server: ApiServer, publisher: Publisher
) -> None:
    server.dropped.add("allowMultipleAllocations")
    publisher.publish(inventory_of(known_machine("dgx-h100"), cpus=True), {})
    (warning,) = publisher.warnings
    assert "dropped allow_multiple_allocations of cpu-numa-0, cpu-numa-1" in warning
    assert "DRAConsumableCapacity" in warning


def test_a_slice_with_an_unknown_field_is_written_again(
    server: ApiServer, publisher: Publisher
) -> None:
    publisher.publish(INVENTORY, {})
    (found,) = server.slices()
    found["spec"]["fieldOfTomorrow"] = 1
    assert publisher.publish(INVENTORY, {}) == 1
    assert "fieldOfTomorrow" not in server.slices()[0]["spec"]


def test_dropped_fields_are_not_written_again_and_again(
    server: ApiServer, publisher: Publisher
) -> None:
    server.dropped.add("taints")
    taints = {"gpu-0": (DeviceTaint("x", "NoSchedule"),)}
    assert publisher.publish(INVENTORY, taints) == 1
    assert publisher.publish(INVENTORY, taints) == 0
    assert len(publisher.warnings) == 1


def test_the_readiness_probe_says_what_is_missing(server: ApiServer) -> None:
    from bayplan_dra.driver.web import WebServer

    problems = ["its slices are not published yet"]
    web = WebServer("127.0.0.1", 0, lambda: problems[0])
    web.start()
    base = f"http://127.0.0.1:{web.port}"
    assert _get(f"{base}/healthz") == (200, "ok\n")
    assert _get(f"{base}/readyz") == (503, "its slices are not published yet\n")
    problems[0] = ""
    assert _get(f"{base}/readyz") == (200, "ok\n")
    assert "bayplan_driver_claim_seconds" in _get(f"{base}/metrics")[1]
    web.stop()


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - on loopback
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def test_a_node_can_run_driver_and_device_plugin_over_different_gpus(server: ApiServer) -> None:
    with short_folder() as root:
        folder = root / "device-plugins"
        folder.mkdir()
        more = ("--device-plugin", "0-3", "--device-plugins-dir", str(folder))
        with running(root, server, *more) as process:
            eventually(lambda: list((root / "registry").glob("*.sock")), 20)
            kubelet = Kubelet(root)
            kubelet.advance()
            (found,) = eventually(server.slices, 20)
            names = [one["name"] for one in found["spec"]["devices"]]
            assert names[:4] == ["gpu-4", "gpu-5", "gpu-6", "gpu-7"]
            eventually((folder / "bayplan-gpu.sock").exists)
            kubelet.stop()
            process.terminate()
            assert process.wait(15) == 0
            assert process.stderr is not None
            assert (
                "the device plugin of n offers gpu-0, gpu-1, gpu-2, gpu-3\n"
                in process.stderr.read()
            )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--no-driver"], "--no-driver: there is nothing to do without --device-plugin"),
        (["--device-plugin", "one"], 'expected "all" or GPUs such as 0-3,6, got "one"'),
        (["--device-plugin", "7-9"], "GPU8 does not exist: the machine has 8 GPUs"),
    ],
)
def test_wrong_gpus_for_the_device_plugin_are_refused(arguments: list[str], message: str) -> None:
    given = ["--node", "n", "--machine", "dgx-1v", *arguments]
    result = CliRunner().invoke(command, given)
    assert message in str(result.exception)


def test_without_nvml_the_driver_says_what_to_do() -> None:
    result = CliRunner().invoke(command, ["--node", "n"])
    assert "the GPUs of this machine cannot be read" in str(result.exception)
    assert "--machine" in str(result.exception)
