"""Random stories of a node's driver and kubelet: what must hold whoever fails, and at the end."""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.dra.driver.driver_stage import DriverNode, claim_pod, devices_of, shared_claim, template
from tests.dra.driver.fake_kubelet import RECONCILE_SECONDS, RESYNC_SECONDS, claim_names

from bayplan.api import Pod
from bayplan.errors import Transient
from bayplan_dra.driver import metrics
from bayplan_dra.driver.prepare.cdi import CdiFolder
from bayplan_dra.driver.prepare.checkpoint import Checkpoint
from bayplan_dra.driver.publish import loop
from bayplan_dra.driver.publish.devices import DRIVER

STEPS: dict[str, tuple[Any, str]] = {
    "a claim is written": (Checkpoint, "put"),
    "a CDI file is written": (CdiFolder, "write"),
    "a CDI file is removed": (CdiFolder, "remove"),
    "a claim is removed": (Checkpoint, "remove"),
    "an answer": (metrics, "claim_done"),
}
"""What a driver does in a call, so that it can be killed before it."""
SPECS = {"one": {"c": ""}, "pair": {"gpus": "gpu", "nics": "nic"}, "shared": {"a": "gpu", "b": ""}}


class DriverStory(RuleBasedStateMachine):
    """Pods come and go, while the driver, the kubelet and the API server fail.

    :ivar alive: whether the driver runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="bd-", dir="/tmp"))
        for index in range(8):
            (self.root / "host/dev").mkdir(parents=True, exist_ok=True)
            (self.root / f"host/dev/nvidia{index}").touch()
        clock = SimpleNamespace(monotonic=lambda: 0.0)
        self.patches = [
            patch.multiple(loop, time=clock, _FIRST_RETRY=0.01, _LAST_RETRY=0.01, _REST_SECONDS=0.0)
        ]
        self.killed_before = ""
        for name, (owner, method) in STEPS.items():
            run = self.deadly(name, getattr(owner, method))
            self.patches.append(patch.object(owner, method, run))
        for one in self.patches:
            one.start()
        self.options = {"patience_seconds": 0.0, "host": self.root / "host"}
        self.node = DriverNode(self.root, **self.options)
        clock.monotonic = lambda: self.node.kubelet.now
        self.node.cluster.add(
            template("one", gpu=1), template("pair", gpu=2, nic=1), shared_claim(gpu=1)
        )
        self.alive = True
        self.died = threading.Event()
        self.count = 0
        self.pods: dict[str, Pod | None] = {}
        self.expected: dict[str, set[str]] = {}

    def teardown(self) -> None:
        try:
            self.end()
        finally:
            self.node.close()
            for one in reversed(self.patches):
                one.stop()
            shutil.rmtree(self.root)

    # Who fails -------------------------------------------------------------------------------

    def deadly(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method before which the driver is killed if it has to be."""

        def killed(*arguments: Any) -> Any:
            in_call = threading.current_thread() is not threading.main_thread()
            if in_call and (self.died.is_set() or self.killed_before == name):
                self.died.set()
                for server in self.node.driver._servers:
                    server._server.stop(None)
                raise SystemExit
            return run(*arguments)

        return killed

    @precondition(lambda self: self.alive)
    @rule(step=st.sampled_from(sorted(STEPS)))
    def kill_driver_before(self, step: str) -> None:
        self.killed_before = step

    @precondition(lambda self: self.alive)
    @rule(how=st.sampled_from(["stop", "kill"]))
    def end_driver(self, how: str) -> None:
        getattr(self.node, how)(self.node.driver)
        self.alive = False

    @precondition(lambda self: not self.alive)
    @rule()
    def start_driver(self) -> None:
        self.start()

    @precondition(lambda self: self.alive)
    @rule(how=st.sampled_from(["stop", "kill"]))
    def update_driver(self, how: str) -> None:
        old = self.node.driver
        self.start()
        getattr(self.node, how)(old)

    def start(self) -> None:
        self.count += 1
        made = self.node.made(pod_uid=f"{self.count:08}-0000", **self.options)
        made.start()
        self.killed_before = ""
        self.node.driver, self.alive = made, True

    @rule(seconds=st.sampled_from([0, 1, 5, 40]))
    def restart_kubelet(self, seconds: int) -> None:
        self.node.kubelet.stop()
        self.node.kubelet.advance(seconds)
        self.node.kubelet.start()

    @precondition(lambda self: self.node.kubelet.up)
    @rule()
    def stop_kubelet(self) -> None:
        self.node.kubelet.stop()

    @precondition(lambda self: not self.node.kubelet.up)
    @rule()
    def start_kubelet(self) -> None:
        self.node.kubelet.start()

    @rule(fails=st.booleans())
    def break_or_mend_api_server(self, fails: bool) -> None:
        self.node.api.failing = Transient("connection refused") if fails else None

    # Pods and time ---------------------------------------------------------------------------

    @rule(wanted=st.sampled_from(sorted(SPECS)))
    def create_pod(self, wanted: str) -> None:
        self.count += 1
        name = f"p{self.count}"
        with self.node.api.lock:
            self.node.cluster.add(claim_pod(name, wanted, **SPECS[wanted]))
        self.pods[name] = None

    @precondition(lambda self: self.pods)
    @rule(index=st.integers(0, 99), force=st.booleans())
    def delete_pod(self, index: int, force: bool) -> None:
        name = list(self.pods)[index % len(self.pods)]
        pod = self.pods.pop(name)
        self.node.delete(pod or self.node.pod(name), force)

    @precondition(lambda self: self.node.kubelet.running)
    @rule()
    def restart_containers(self) -> None:
        for pod in self.pods.values():
            if pod is not None and pod.metadata.uid in self.node.kubelet.running:
                self.node.kubelet.restart_containers(pod)

    @rule(seconds=st.sampled_from([1, 5, RESYNC_SECONDS]))
    def pass_time(self, seconds: float) -> None:
        self.node.kubelet.advance(seconds)

    # What must hold --------------------------------------------------------------------------

    @invariant()
    def placed_pods_are_run(self) -> None:
        """Let the scheduler and the kubelet do what they can."""
        if self.alive and self.node.api.failing is None:
            self.node.settle()
        with self.node.api.lock:
            placed = self.node.cluster.advance(1)
        for name in [name for name, pod in self.pods.items() if pod is None and name in placed]:
            pod = self.pods[name] = self.node.pod(name)
            if self.node.api.failing is None:
                self.expected[pod.metadata.uid] = self.gpus(name)
            self.node.kubelet.add_pod(pod)
        if self.died.is_set() and self.alive:
            self.node.kill(self.node.driver)
            self.alive, self.killed_before = False, ""
            self.died.clear()

    def gpus(self, pod: str) -> set[str]:
        (name,) = claim_names(self.node.pod(pod)).values()
        claim = self.node.api.claim("default", name)
        assert claim is not None
        return {name for name in devices_of(claim) if name.startswith("gpu")}

    @invariant()
    def no_device_has_two_owners(self) -> None:
        owners: dict[str, set[str]] = {}
        for containers in self.node.kubelet.running.values():
            for container in containers.values():
                for name in container.devices:
                    found = re.search(r"=(.+)-(gpu|nic)-(.+)", name)
                    if found:
                        uid, kind, index = found.groups()
                        owners.setdefault(f"{kind}-{index}", set()).add(uid)
        assert {name: uids for name, uids in owners.items() if len(uids) > 1} == {}

    @invariant()
    def every_pod_has_the_files_of_its_claim(self) -> None:
        for uid, containers in self.node.kubelet.running.items():
            files = {path for one in containers.values() for path in one.files}
            expected = self.expected.get(uid)
            if expected is not None:
                assert files == {f"/dev/nvidia{name.removeprefix('gpu-')}" for name in expected}

    def end(self) -> None:
        """Mend everything: all pods run, and nothing is left of them when they are gone."""
        kubelet = self.node.kubelet
        self.node.api.failing = None
        self.killed_before = ""
        if not self.alive:
            self.start()
        if not kubelet.up:
            kubelet.start()
        kubelet.advance(2)
        self.node.settle()
        kubelet.advance(10)
        self.node.driver.health.wake()
        self.node.settle()
        self.placed_pods_are_run()
        kubelet.advance(2 * RESYNC_SECONDS + RECONCILE_SECONDS)
        self.no_device_has_two_owners()
        placed = {pod.metadata.uid for pod in self.pods.values() if pod is not None}
        assert placed == kubelet.running.keys()
        for name, pod in self.pods.items():
            self.node.delete(pod or self.node.pod(name))
        kubelet.advance(RECONCILE_SECONDS)
        folders = (self.root / "cdi", self.root / "plugins" / DRIVER / "claims")
        assert [path.name for folder in folders for path in folder.iterdir()] == []
        assert kubelet.claims == {}


TestDriverStory = DriverStory.TestCase
TestDriverStory.settings = settings(
    max_examples=15, stateful_step_count=25, phases=[Phase.generate]
)
