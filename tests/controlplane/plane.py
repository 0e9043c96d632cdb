"""A real Kubernetes control plane for tests: etcd, kube-apiserver and kube-controller-manager.

The script that starts it stands beside the project; the programs are a machine's own, or not there.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.apiserver.faces import Client, client_of
from tests.real_programs import CLUSTER, CONTROL_PLANE, PEERS, RAN, SCHEDULER, environment

BASH = shutil.which("bash") or "bash"
_PORTS = 40
"""The control plane's, and those of the peers."""
_PROGRAMS = {"etcd": "etcd", "apiserver": "kube-apiserver", "kcm": "kube-controller-manager"}
SECONDS = 120.0
"""After so long a wait is given up."""

# The shell outlives this process however it ends, and then ends what was started.
_KEEPER = """
"$1" up gangs > "$KCP/up.log" 2>&1
echo up
cat > /dev/null
[ ! -d "$KCP/peers" ] || "$2" down
"$1" down
rm -rf "$KCP"
"""


class ControlPlane:
    """A running control plane; its parts can be killed, paused and started again.

    Parts are named ``etcd``, ``apiserver`` and ``kcm`` (kube-controller-manager).

    :ivar environment: of the scripts that start things here.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.kubeconfig = folder / "kubeconfig"
        self.client: Client = client_of(str(self.kubeconfig))
        self._commands = {name: self._command(name) for name in _PROGRAMS}
        self._killed: set[str] = set()
        self._changing = threading.Lock()

    @property
    def certificate(self) -> Path:
        """The certificate of the API server."""
        return self.folder / "certs" / "apiserver.crt"

    def log(self, part: str) -> str:
        """Return what a part has logged."""
        return (self.folder / "run" / f"{part}.log").read_text(errors="replace")

    def signal(self, part: str, number: signal.Signals) -> None:
        """Send a signal to a part, such as SIGSTOP and SIGCONT."""
        os.kill(self._pid(part), number)

    def kill(self, part: str) -> None:
        """Kill a part, if it has not ended by itself, and wait until it is gone."""
        with self._changing:
            self._killed.add(part)
            pid = self._pid(part)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while _is_alive(pid):
            time.sleep(0.01)

    def start(self, part: str) -> None:
        """Start a part again, as it was started first."""
        with self._changing:
            self._start(part)
            self._killed.discard(part)

    def restart_ended(self) -> None:
        """Start again what has ended by itself, as a kubelet does.

        kube-controller-manager ends when it loses the API server, also a while after it is back.
        """
        with self._changing:
            for part in self._commands.keys() - self._killed:
                if not _is_alive(self._pid(part)):
                    self._start(part)

    def _start(self, part: str) -> None:
        # Not a child of this process, so that whoever ends it need not be its parent.
        line = f'nohup "$@" >> run/{part}.log 2>&1 & echo $! > run/{part}.pid'
        subprocess.run(
            [BASH, "-c", line, "bash", *self._commands[part]],
            cwd=self.folder,
            check=True,
            start_new_session=True,
        )

    @contextmanager
    def kube_scheduler(self) -> Iterator[None]:
        """Run kube-scheduler, for pods of ``default-scheduler``."""
        subprocess.run([BASH, str(CLUSTER), "scheduler"], env=self.environment, check=True)
        RAN.add(SCHEDULER)
        try:
            yield
        finally:
            pid = self._pid("sched")
            os.kill(pid, signal.SIGKILL)
            (self.folder / "run" / "sched.pid").unlink()
            while _is_alive(pid):
                time.sleep(0.01)

    @contextmanager
    def with_flags(self, part: str, *more: str) -> Iterator[None]:
        """Run a part with more flags, and then as it was again."""
        given = self._commands[part]
        try:
            for command in ([*given, *more], given):
                self.kill(part)
                self._commands[part] = command
                self.start(part)
                self.wait_until_ready()
                if command is not given:
                    yield
        finally:
            self._commands[part] = given

    def wait_until_ready(self) -> None:
        """Wait until the API server is ready.

        :raises TimeoutError: when it does not get ready; with the end of its log.
        """
        until = time.monotonic() + SECONDS
        while not self.is_ready():
            if time.monotonic() > until:
                raise TimeoutError(f"kube-apiserver is not ready:\n{self.log('apiserver')[-3000:]}")
            time.sleep(0.1)

    def is_ready(self) -> bool:
        """Return whether the API server is ready."""
        return _is_ready(self.client)

    def _command(self, part: str) -> list[str]:
        """Return the command of a part, once its process is no longer the shell that starts it."""
        pid, until = self._pid(part), time.monotonic() + SECONDS
        while Path((found := _command(pid))[0]).name != _PROGRAMS[part]:
            if time.monotonic() > until:
                raise TimeoutError(f"{part} has not started: {found}")
            time.sleep(0.01)
        return found

    def _pid(self, part: str) -> int:
        return int((self.folder / "run" / f"{part}.pid").read_text())


def _is_ready(client: Client) -> bool:
    try:
        return client.get("/readyz").code == 200
    except (OSError, ssl.SSLError):
        return False


def wait_until(true: Callable[[], Any], what: str, seconds: float = SECONDS) -> None:
    """Wait until a condition holds.

    :raises TimeoutError: when it does not in time; names ``what`` was waited for.
    """
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            raise TimeoutError(f"waited for {seconds:g} s: {what}")
        time.sleep(0.05)


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """Run a control plane in a temporary folder; nothing of it stays, even after SIGKILL."""
    folder = Path(tempfile.mkdtemp(prefix="bayplan-controlplane-"))
    given = environment(folder, free_ports(_PORTS))
    with kept([BASH, "-c", _KEEPER, "bash", str(CLUSTER), str(PEERS)], given):
        plane = ControlPlane(folder, given)
        RAN.add(CONTROL_PLANE)
        ended = threading.Event()
        watching = threading.Thread(target=_restart_until, args=(plane, ended), daemon=True)
        watching.start()
        try:
            plane.wait_until_ready()
            yield plane
        finally:
            ended.set()
            watching.join()


@contextmanager
def kept(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Run a keeper: it brings something up, says a line, and ends it when its input ends.

    Its input ends however this process does. Yields the line.
    """
    keeper = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert keeper.stdout is not None
        yield keeper.stdout.readline().strip()
    finally:
        keeper.communicate()


def _restart_until(plane: ControlPlane, ended: threading.Event) -> None:
    while not ended.wait(0.2):
        plane.restart_ended()


def free_ports(count: int) -> range:
    """Return free ports in a row, below those that clients are given."""
    while True:
        first = random.randrange(20_000, 32_000, count)
        ports = range(first, first + count)
        if all(_is_free(port) for port in ports):
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
