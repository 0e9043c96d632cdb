"""What breaks on a real node while pods with claims come and go; no device gets lost by it.

``pytest tests/node/test_faults.py --rounds 50 -s`` kills each part so often, and counts.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.controlplane.plane import wait_until
from tests.node.machine_files import MachineFiles
from tests.node.real_node import DRIVER, PODS, DriverProcess, RealNode, claim_template, pod, request

GPUS = 8
ONE = claim_template("one", [request("gpu", "gpu")])
PAIR = claim_template(
    "pair",
    [request("gpu", "gpu"), request("nic", "nic")],
    {"requests": ["gpu", "nic"], "matchAttribute": "resource.kubernetes.io/pcieRoot"},
)
ALL = claim_template("all", [request("gpu", "gpu", GPUS)])
MOST_PODS = 14
"""Alive at a time: more than the machine has GPUs."""
MANY_ROUNDS = 10
"""From so many on, it is worth the minutes to wait for what a kubelet tries again."""
SETTLED_SECONDS = 200.0
"""After a failure to prepare, a kubelet tries a pod again within 90 s."""
NO_SPACE = "No space left on device"


class Churn:
    """Pods with claims that come and go, and a look at who has which device meanwhile."""

    def __init__(self, node: RealNode, pods: int = 20) -> None:
        self.node = node
        self.problems: list[str] = []
        self.made = 0
        self._least = pods
        self._draw = random.Random(0)
        self._enough = threading.Event()
        self._ended = threading.Event()
        self._claims = node.folder / "kubelet" / "plugins" / DRIVER / "claims"
        self._threads = [threading.Thread(target=run) for run in (self._churn, self._look)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let pods come and go for the time of a block, or longer until there were enough."""
        for thread in self._threads:
            thread.start()
        churning, looking = self._threads
        try:
            yield
            self._enough.set()
            churning.join()
        finally:
            self._enough.set()
            self._ended.set()
            looking.join()

    def _churn(self) -> None:
        while not self._ended.is_set() and not (self._enough.is_set() and self.made >= self._least):
            with suppress(OSError):  # the API server is away
                self._step()
            time.sleep(self._draw.uniform(0.0, 1.0))

    def _step(self) -> None:
        alive = [
            one["metadata"]["name"]
            for one in self.node.items(PODS)
            if "deletionTimestamp" not in one["metadata"]
        ]
        if len(alive) < MOST_PODS:
            template = self._draw.choice(["one", "pair"])
            self.node.apply(pod(f"p-{self.made}", template=template))
            self.made += 1
        else:
            for name in self._draw.sample(alive, 4):
                grace = self._draw.choice([0, 1, 1, 1])
                self.node.client.delete(f"{PODS}/{name}", gracePeriodSeconds=grace)

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            self.look()

    def look(self) -> None:
        """Note devices that two claims have at once."""
        owners: dict[str, str] = {}
        for path in self._claims.glob("*.json"):
            try:
                claim = json.loads(path.read_bytes())["claim"]
            except (FileNotFoundError, ValueError):
                continue
            for device in claim["devices"]:
                other = owners.setdefault(device["name"], claim["uid"])
                # One that was read before may be gone by now, and its device given to the next.
                if other != claim["uid"] and (self._claims / f"{other}.json").exists():
                    self.problems.append(f"{device['name']}: {other} and {claim['uid']}")

    def end(self, rounds: int) -> str:
        """Check what is left after everything runs again; say how many pods are what."""
        if rounds >= MANY_ROUNDS:
            wait_until(lambda: not self._unsettled(), "all pods are settled", SETTLED_SECONDS)
        phases = Counter(one["status"]["phase"] for one in self.node.items(PODS))
        self._all_is_free()
        assert self.problems == []
        return f"in the end {dict(phases)}"

    def _unsettled(self) -> list[str]:
        """Return the pods that wait without a word, or while GPUs are free."""
        found = []
        pods = self.node.items(PODS)
        running = [one for one in pods if one["status"]["phase"] == "Running"]
        for one in pods:
            conditions = {c["type"]: c for c in one["status"].get("conditions", ())}
            told = conditions.get("PodScheduled", {}).get("message")
            if one not in running and (not told or len(running) < GPUS):
                found.append(one["metadata"]["name"])
        return found

    def _all_is_free(self) -> None:
        """Delete everything; then a single pod gets all GPUs, and nothing of the others is left."""
        self.node.clear()
        wait_until(lambda: not self.node.prepared(), "no claim is prepared", SETTLED_SECONDS)
        self.node.apply(ALL, pod("all", template="all"))
        self.node.wait_for("Running", "all", seconds=SETTLED_SECONDS)
        assert len(self.node.claims()["all"]["gpu"]) == GPUS
        assert len(self.node.prepared()) == len(self.node.cdi_files()) == 1
        self.node.clear()
        wait_until(lambda: not self.node.cdi_files(), "no CDI file is left")
        assert self.node.prepared() == []


def test_kills_of_driver_kubelet_and_containerd(
    node: RealNode, driver: DriverProcess, rounds: int
) -> None:
    node.apply(ONE, PAIR)
    churn = Churn(node, pods=4 * rounds)
    parts = ["driver", "kubelet", "containerd"] * rounds
    draw = random.Random(1)
    draw.shuffle(parts)
    with churn.running():
        for part in parts:
            time.sleep(draw.uniform(0.0, 2.0))
            if part == "driver":
                driver.kill()
                driver.start()
            else:
                node.end(part, signal.SIGKILL)
                node.start()
    driver.probe()
    driver.wait_until_ready()
    print(f"\n{rounds} kills of each part, {churn.made} pods; {churn.end(rounds)}")


def test_an_api_server_that_is_away(node: RealNode, driver: DriverProcess, rounds: int) -> None:
    node.apply(ONE, PAIR)
    away = 120.0 if rounds >= MANY_ROUNDS else 3.0
    churn = Churn(node)
    with churn.running():
        time.sleep(2)
        node.end("kube-apiserver", signal.SIGKILL)
        time.sleep(away)
        node.start()
    # kube-controller-manager ends when it loses the API server.
    node.start()
    print(f"\nthe API server was away for {away:g} s; {churn.end(rounds)}")


def test_a_full_disk_is_told_and_passes(node: RealNode, driver: DriverProcess) -> None:
    node.apply(ONE, pod("before", template="one"))
    node.wait_for("Running", "before")
    driver.stop()
    own = f"/var/lib/kubelet/plugins/{DRIVER}"
    script = f"mkdir /run/small; mount -t tmpfs -o size=128k,mode=750 small /run/small; \
        cp -a {own}/. /run/small/; mount --move /run/small {own}"
    subprocess.run(node.within("sh", "-ec", script), check=True)
    try:
        driver.start()
        driver.wait_until_ready()
        fill = f"dd if=/dev/zero of={own}/filling bs=1k 2>/dev/null; true"
        subprocess.run(node.within("sh", "-c", fill), check=True)
        node.apply(pod("full", template="one"))
        node.wait_until_told("full", NO_SPACE, seconds=30)
        # What needs no room goes on: a claim is given back, a restart serves.
        node.delete_pods("before")
        driver.kill()
        driver.start()
        driver.wait_until_ready()
        subprocess.run(node.within("rm", f"{own}/filling"), check=True)
        node.apply(pod("after", template="one"))
        node.wait_for("Running", "after", seconds=30)
        node.clear()
        assert not any(Path(one).suffix == ".json" for one in node.cdi_files())
    finally:
        driver.stop()
        subprocess.run(node.within("umount", own), check=True)
        driver.start()


def test_a_clock_that_jumps(node: RealNode, machine: MachineFiles) -> None:
    library, offset = node.folder / "libclock.so", node.folder / "offset"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to move the driver's clock with")
    source = str(Path(__file__).with_name("clock.c"))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), source, "-ldl"], check=True)
    moved = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}
    driver = DriverProcess(node, machine.with_environment(moved))
    driver.start()
    try:
        driver.wait_until_ready()
        node.apply(ONE)
        # Back by an hour and by most of a year, but not to before the certificates were made.
        for number, seconds in enumerate((0, 3600, 0, 86400 * 365, 86400, 0)):
            offset.write_text(f"{seconds}\n")
            node.apply(pod(f"p-{number}", template="one"))
            node.wait_for("Running", f"p-{number}", seconds=30)
            assert driver.ready() == "ok"
        assert node.health_of("p-0") == ["Healthy"]
        node.clear()
        assert node.prepared() == node.cdi_files() == []
    finally:
        driver.stop()
