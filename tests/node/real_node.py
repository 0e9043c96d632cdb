"""A real kubelet with containerd and a control plane for tests, all on this machine.

The scripts stand beside the project; they need the programs, root, mounts and cgroups v1.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.apiserver.faces import Client, client_of
from tests.controlplane.installation import install, path_of
from tests.controlplane.plane import BASH, free_ports, kept, wait_until
from tests.controlplane.process import BAYPLAN
from tests.live.deployed import DEPLOY, documents
from tests.node.machine_files import MachineFiles
from tests.real_programs import KUBELET, PROGRAMS, RAN, missing
from tests.real_programs import NODE as SCRIPTS

Content = dict[str, Any]

NODE = "node-a"
DRIVER = "dra.bayplan.dev"
IMAGE = "bayplan.test/busybox:1"
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_PORTS = ("API_PORT", "ETCD_PORT", "PEER_PORT", "KCM_PORT", "KUBELET_PORT", "HEALTH_PORT")
_LIVENESS_SECONDS = 30.0
"""Three probes, one each 10 s, as a kubelet does without other settings."""
_TRIED_AGAIN = (
    f"no relationship found between node '{NODE}' and this object",
    "code = Unavailable desc = error reading from server",
)
"""What the kubelet may say of a claim that it prepares at its next look at the pod."""
_RESYNC_SECONDS = 100.0
_EXEC_TRIES = 10
_OF_CLOUD = "node.cloudprovider.kubernetes.io/uninitialized"
_MAY_MOUNT = "mount -t tmpfs none /mnt && test -w /sys/fs/cgroup/cpu"


@dataclass
class RealNode:
    """A running node. Its parts are ``kubelet``, ``containerd``, ``kube-apiserver`` and so on.

    :ivar folder: where everything of it is; the kubelet's own folder is ``kubelet`` there.
    :ivar keeper: the process whose namespaces it has.
    """

    folder: Path
    environment: Mapping[str, str]
    keeper: int
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.kubeconfig = self.folder / "admin.kubeconfig"
        self.client = client_of(str(self.kubeconfig))

    # Processes ---------------------------------------------------------------------------

    def log(self, part: str) -> str:
        """Return what a part has logged."""
        return (self.folder / "logs" / f"{part}.log").read_text(errors="replace")

    def end(self, part: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a part, and wait until it is gone."""
        pid = self.pid(part)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        wait_until(lambda: not _is_alive(pid), f"{part} has ended")
        # To the script, a process that nobody has waited for yet runs still.
        (self.folder / "run" / f"{part}.pid").unlink()

    @contextmanager
    def restarted(self, part: str, **variables: str) -> Iterator[None]:
        """End a part, do what the block says, and start it again, with other variables if given.

        Whether it works again is for the caller to see: the node is Ready for a while without it.
        """
        self.end(part)
        yield
        self.start(**variables)

    def start(self, **variables: str) -> None:
        """Start what does not run, and wait until the node is ready.

        :param variables: of up.sh, instead of those that the node was made with.
        """
        enter = ["nsenter", f"--target={self.keeper}", "--cgroup", "--mount", "--"]
        done = subprocess.run(
            [*enter, str(SCRIPTS / "up.sh")],
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def admit_pods(self) -> None:
        """Remove the taint of a node whose cloud has not looked at it yet: there is no cloud."""
        path = f"/api/v1/nodes/{NODE}"
        taints = self.client.get(path).json["spec"].get("taints", ())
        left = [one for one in taints if one["key"] != _OF_CLOUD]
        assert self.client.patch(path, {"spec": {"taints": left}}).code == 200

    def pid(self, part: str) -> int:
        """Return the process of a part."""
        return int((self.folder / "run" / f"{part}.pid").read_text().split()[0])

    def within(self, *command: str) -> list[str]:
        """Return a command that runs in the mounts of the node."""
        return ["nsenter", f"--mount=/proc/{self.pid('mounts')}/ns/mnt", "--", *command]

    # Objects -----------------------------------------------------------------------------

    def apply(self, *contents: Content) -> None:
        """Create objects, or replace their specs."""
        for content in contents:
            answer = self.client.post(path_of(content, name=False), content)
            if answer.code == 409:
                answer = self.client.patch(path_of(content), content)
            assert answer.code in (200, 201), answer

    def items(self, path: str) -> list[Content]:
        """Return the objects of a collection."""
        answer = self.client.get(path)
        assert answer.code == 200, answer
        return list(answer.json["items"])

    def pod(self, name: str) -> Content:
        """Return a pod; an empty object if there is none."""
        answer = self.client.get(f"{PODS}/{name}")
        return dict(answer.json) if answer.code == 200 else {}

    def phase(self, name: str) -> str:
        """Return the phase of a pod, "" for none."""
        return str(self.pod(name).get("status", {}).get("phase", ""))

    def wait_for(self, phase: str, *names: str, seconds: float = 60.0) -> None:
        """Wait until pods have a phase.

        :raises AssertionError: with what is known of those that do not in time.
        """
        for name in names:
            self._wait(lambda name=name: self.phase(name) == phase, name, f"not {phase}", seconds)

    def wait_until_told(self, name: str, text: str, seconds: float = 60.0) -> None:
        """Wait until an event of a pod contains a text.

        :raises AssertionError: with what is known of the pod if none does in time.
        """
        self._wait(
            lambda: any(text in one for one in self.told(name)), name, f'not told "{text}"', seconds
        )

    def _wait(self, true: Callable[[], bool], name: str, otherwise: str, seconds: float) -> None:
        """Wait for something that the kubelet does with a pod.

        An API server may refuse a kubelet the claim of a pod that was just bound to its node (the
        Node authorizer sees that a moment later), and a call may meet the connection to a driver
        that has just ended; the kubelet then tries again within 90 s.
        """
        with contextlib.suppress(TimeoutError):
            return wait_until(true, name, seconds)
        late = any(text in one for text in _TRIED_AGAIN for one in self.told(name))
        try:
            wait_until(true, name, _RESYNC_SECONDS * late)
        except TimeoutError:
            told = "\n".join(self.told(name))
            pod = json.dumps(self.pod(name).get("status", {}), indent=1)
            raise AssertionError(f"{name} is {otherwise}:\n{pod}\n{told}") from None

    def told(self, name: str) -> list[str]:
        """Return the events of a pod, the first one first."""
        events = self.items("/api/v1/namespaces/default/events")
        events = [one for one in events if one["involvedObject"]["name"] == name]
        events.sort(key=lambda one: int(one["metadata"]["resourceVersion"]))
        return [f"{one['type']} {one['reason']}: {one['message']}" for one in events]

    def claims(self) -> dict[str, dict[str, list[str]]]:
        """Return the devices of each allocated claim by request, by the pod that owns it."""
        found = {}
        for claim in self.items(CLAIMS):
            owners = claim["metadata"].get("ownerReferences") or [claim["metadata"]]
            results = claim.get("status", {}).get("allocation", {}).get("devices", {})
            devices: dict[str, list[str]] = {}
            for one in results.get("results", ()):
                devices.setdefault(one["request"], []).append(one["device"])
            if devices:
                found[owners[0]["name"]] = devices
        return found

    def devices(self) -> list[str]:
        """Return the devices that the node offers."""
        slices = self.items(SLICES)
        return [one["name"] for found in slices for one in found["spec"].get("devices", ())]

    def tainted(self) -> dict[str, list[str]]:
        """Return the keys of the taints of devices that have any."""
        return {
            one["name"]: [taint["key"] for taint in one["taints"]]
            for found in self.items(SLICES)
            for one in found["spec"].get("devices", ())
            if one.get("taints")
        }

    def attribute(self, name: str) -> dict[str, Any]:
        """Return the value of an attribute by device."""
        devices = [one for found in self.items(SLICES) for one in found["spec"]["devices"]]
        values = {one["name"]: one["attributes"].get(name, {}) for one in devices}
        return {device: next(iter(value.values()), None) for device, value in values.items()}

    def health_of(self, name: str) -> list[str]:
        """Return the health of a pod's devices, as its status has it, sorted."""
        return sorted(
            one["health"]
            for status in self.pod(name)["status"].get("containerStatuses", ())
            for resource in status.get("allocatedResourcesStatus", ())
            for one in resource["resources"]
        )

    # Files -------------------------------------------------------------------------------

    def prepared(self) -> list[str]:
        """Return the UIDs of claims that are prepared."""
        claims = self.folder / "kubelet" / "plugins" / DRIVER / "claims"
        return sorted(path.stem for path in claims.glob("*"))

    def cdi_files(self) -> list[str]:
        """Return the names of CDI files."""
        return sorted(path.name for path in (self.folder / "cdi").iterdir())

    def driver_files(self) -> list[str]:
        """Return what the driver has on the node, apart from CDI files."""
        kubelet = self.folder / "kubelet"
        found = [*(kubelet / "plugins").rglob("*"), *(kubelet / "plugins_registry").iterdir()]
        return sorted(str(path.relative_to(kubelet)) for path in found)

    def delete_pods(self, *names: str, grace: int = 1) -> None:
        """Delete pods, and wait until they are gone."""
        for name in names:
            self.client.delete(f"{PODS}/{name}", gracePeriodSeconds=grace)
        for name in names:
            wait_until(lambda name=name: not self.pod(name), f"{name} is gone", _RESYNC_SECONDS)

    def clear(self) -> None:
        """Delete all pods, claims and their templates."""
        self.delete_pods(*(one["metadata"]["name"] for one in self.items(PODS)))
        for path in (CLAIMS, CLAIMS.replace("resourceclaims", "resourceclaimtemplates")):
            self.client.delete(path)
        wait_until(lambda: not self.items(CLAIMS), "all claims are gone")

    # Containers --------------------------------------------------------------------------

    def run_in(self, pod: str, container: str, *command: str) -> tuple[int, str]:
        """Run a command that says something in a container; return its exit status, and that."""
        (status,) = [
            one for one in self.pod(pod)["status"]["containerStatuses"] if one["name"] == container
        ]
        ctr = str(self.folder / "pkg" / "usr" / "bin" / "ctr")
        socket = str(self.folder / "run" / "containerd.sock")
        identity = status["containerID"].removeprefix("containerd://")
        enter = self.within(ctr, "--address", socket, "-n", "k8s.io", "tasks", "exec", "--exec-id")
        # When the machine is busy, ctr may lose what a short command says.
        for _ in range(_EXEC_TRIES):
            name = f"test-{time.monotonic_ns()}"
            done = subprocess.run(
                [*enter, name, identity, *command], capture_output=True, text=True
            )
            if done.stdout or done.stderr:
                break
        return done.returncode, done.stdout + done.stderr

    def environment_of(self, pod: str, container: str) -> dict[str, str]:
        """Return the environment of a container."""
        status, text = self.run_in(pod, container, "env")
        assert status == 0, text
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def device_files(self, pod: str, container: str) -> set[str]:
        """Return the files of GPUs and NICs that a container sees."""
        status, text = self.run_in(pod, container, "find", "/dev", "-type", "c")
        assert status == 0, text
        return {
            path.removeprefix("/dev/")
            for path in text.split()
            if path.startswith(("/dev/nvidia", "/dev/infiniband"))
        }

    def may_open(self, pod: str, container: str, major: int, minor: int) -> bool:
        """Tell whether a container may open a device: no driver answers, but the cgroup does."""
        script = (
            f"rm -f /tmp/d; mknod /tmp/d c {major} {minor} && dd if=/tmp/d of=/dev/null count=1"
        )
        _, text = self.run_in(pod, container, "sh", "-c", script)
        assert "No such device or address" in text or "not permitted" in text, text
        return "No such device or address" in text

    # bayplan -----------------------------------------------------------------------------

    def install_driver(self) -> None:
        """Apply the driver's manifest, all of it but the DaemonSet."""
        manifest = documents(DEPLOY / "namespace.yaml", DEPLOY / "dra-driver.yaml")
        self.apply(*(one for one in manifest if one["kind"] != "DaemonSet"))

    def account(self, name: str, bound_to_node: bool = False) -> Path:
        """Write a kubeconfig with a token of a service account, bound to the node if asked."""
        body: Content = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 7200},
        }
        if bound_to_node:
            uid = self.client.get(f"/api/v1/nodes/{NODE}").json["metadata"]["uid"]
            body["spec"]["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Node",
                "name": NODE,
                "uid": uid,
            }
        path = f"/api/v1/namespaces/bayplan-system/serviceaccounts/{name}/token"
        answer = self.client.post(path, body)
        assert answer.code == 201, answer
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": answer.json["status"]["token"]}
        written = self.folder / f"{name}.kubeconfig"
        written.write_text(yaml.safe_dump(config))
        written.chmod(0o600)
        return written


class DriverProcess:
    """``bayplan dra-driver`` on the node, with the rights of its manifest."""

    def __init__(self, node: RealNode, machine: MachineFiles, *options: str) -> None:
        self._node = node
        self._machine = machine
        self._kubeconfig = node.account("bayplan-dra-driver", bound_to_node=True)
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.log = node.folder / "logs" / "bayplan-driver.log"
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"

    def start(self, *options: str) -> None:
        """Start it; ``options`` replace those of before."""
        self._options = options or self._options
        command = [str(BAYPLAN), "dra-driver", "--node", NODE, "--listen", self.address]
        command += ["--kubeconfig", str(self._kubeconfig), *self._machine.options, *self._options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._node.within(*command),
                env={**os.environ, **self._machine.environment},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it gracefully, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            assert self._process.wait(30) in (0, -signal.SIGTERM), self.log.read_text()[-3000:]

    def ready(self) -> str:
        """Return what /readyz says; "" when nothing answers."""
        with contextlib.suppress(OSError):
            return Client(f"http://{self.address}").get("/readyz").body.decode().strip()
        return ""

    def probe(self) -> None:
        """Do what the liveness probe of its manifest does: end what does not answer for 30 s.

        A kubelet starts it again then.
        """
        try:
            wait_until(self.ready, "the driver answers", _LIVENESS_SECONDS)
        except TimeoutError:
            print(f"the driver did not answer: {self._state()}")
            self.kill()
            self.start()

    def wait_until_ready(self) -> None:
        """Wait until it is ready."""
        try:
            wait_until(lambda: self.ready() == "ok", "the driver is ready")
        except TimeoutError as exc:
            log = self.log.read_text()[-3000:]
            raise AssertionError(f"{exc}: {self.ready()}; {self._state()}\n{log}") from None

    def _state(self) -> str:
        """Return how the process ended, or what its threads wait for in the kernel."""
        assert self._process is not None
        status = self._process.poll()
        if status is not None:
            return f"it ended with {status}"
        threads = Path(f"/proc/{self._process.pid}/task").glob("*")
        waits = [f"{(one / 'comm').read_text()} {(one / 'wchan').read_text()}" for one in threads]
        return "its threads: " + ", ".join(" ".join(one.split()) for one in sorted(waits))


@contextmanager
def real_node(**variables: str) -> Iterator[RealNode]:
    """Run a node in a temporary folder; nothing of it stays, even after SIGKILL.

    :param variables: of up.sh, such as ``NUMA``.
    """
    reason = why_not()
    if reason:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="bayplan-node-"))
    environment = {
        **os.environ,
        **{name: str(port) for name, port in zip(_PORTS, free_ports(len(_PORTS)), strict=True)},
        "BIN": str(PROGRAMS),
        "WORK": str(folder),
        **variables,
    }
    keeper = str(Path(__file__).with_name("keeper.sh"))
    with kept([BASH, keeper, str(SCRIPTS)], environment) as said:
        word, _, process = said.partition(" ")
        assert word == "up", (folder / "up.log").read_text()
        RAN.add(KUBELET)
        node = RealNode(folder, environment, int(process))
        node.admit_pods()
        install(node.client)
        node.install_driver()
        yield node


def why_not() -> str:
    """Return why no node can be run here; "" if it can."""
    if not (SCRIPTS / "up.sh").exists():
        return "there are no scripts of a real kubelet beside the project"
    if reason := missing(KUBELET):
        return reason
    if os.geteuid() != 0:
        return "a kubelet needs root"
    mounting = [
        "unshare",
        "--cgroup",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        _MAY_MOUNT,
    ]
    if shutil.which("unshare") is None or subprocess.run(mounting, capture_output=True).returncode:
        return "a kubelet needs mounts and cgroups v1, which this machine does not allow"
    return ""


def claim_template(name: str, requests: Iterable[Content], *constraints: Content) -> Content:
    """Return a template of claims."""
    devices = {"requests": list(requests), "constraints": list(constraints)}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    }


def request(name: str, of: str, count: int = 1, cel: str = "") -> Content:
    """Return a request for devices of a class, ``gpu`` or ``nic``."""
    exactly: Content = {"deviceClassName": f"{of}.bayplan.dev", "count": count}
    if cel:
        exactly["selectors"] = [{"cel": {"expression": cel}}]
    return {"name": name, "exactly": exactly}


def pod(
    name: str,
    containers: Mapping[str, Iterable[str]] | None = None,
    template: str = "",
    command: str = "exec sleep 100000",
    **spec: Any,
) -> Content:
    """Return a pod for bayplan with one claim, if it has a template.

    :param containers: the requests that each container names; "" is the whole claim.
    """
    given = {"c": [""] if template else []} if containers is None else containers
    made = []
    for container, requests in given.items():
        claims = [{"name": "own", "request": one} if one else {"name": "own"} for one in requests]
        made.append(
            {
                "name": container,
                "image": IMAGE,
                "command": ["sh", "-c", f"trap 'exit 0' TERM; {command}"],
                "resources": {"claims": claims},
            }
        )
    if template:
        spec["resourceClaims"] = [{"name": "own", "resourceClaimTemplateName": template}]
    whole = {
        "schedulerName": "bayplan",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "containers": made,
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}


@contextmanager
def in_background(*threads: threading.Thread) -> Iterator[None]:
    """Run threads for the time of a block; wait for them in the end."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
