"""Controllers of other projects, on a real control plane: their pods are what bayplan gets."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.controlplane.live_cluster import EVENTS, PODS, Kubelet, LiveCluster
from tests.controlplane.plane import BASH, ControlPlane, wait_until
from tests.controlplane.process import Scheduler
from tests.real_programs import PEERS, RAN, missing_peers

Content = dict[str, Any]

SCHEDULER = "bayplan"
"""The schedulerName of pods; the peers take it for their own."""
_PROFILE: Content = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [{"schedulerName": SCHEDULER}, {"schedulerName": "volcano"}],
}
"""Operators that write Volcano's groups send the pods to Volcano, whatever their templates say."""


def _with_plugins(plugins: Mapping[str, Content]) -> Content:
    """Return the profile with plugins beside those of the default one."""
    if not plugins:
        return _PROFILE
    enabled = {"multiPoint": {"enabled": [{"name": name} for name in plugins]}}
    configs = [{"name": name, "args": args} for name, args in plugins.items()]
    first = {"schedulerName": SCHEDULER, "plugins": enabled, "pluginConfig": configs}
    return {**_PROFILE, "profiles": [first]}


@dataclass
class Peers:
    """A control plane for the peers' controllers, with their own kinds and webhooks.

    :ivar kubeconfig: of bayplan's account, with the rights of configs/deploy.
    """

    plane: ControlPlane
    cluster: LiveCluster
    kubeconfig: Path
    kubelet: Kubelet

    @contextmanager
    def running(self, *names: str, **variables: str) -> Iterator[None]:
        """Run controllers; skips the test where their programs are missing.

        :param variables: of the script, such as ``MPI_GANG``.
        """
        if reason := missing_peers(*names):
            pytest.skip(reason)
        RAN.update(names)
        self._call("up", *names, SCHED=SCHEDULER, **variables)
        try:
            yield
        finally:
            self._call("down", *names)

    def define(self, pattern: str) -> None:
        """Install the definitions of a project whose controller does not run."""
        self._call("crds", pattern)

    def stop(self, name: str) -> None:
        """End a controller and remove its webhooks; its kinds and objects stay."""
        self._call("down", name)

    @contextmanager
    def scheduler(
        self, folder: Path, expected: str = "", plugins: Mapping[str, Content] | None = None
    ) -> Iterator[Scheduler]:
        """Run ``bayplan run`` as it is installed; its log may hold no problem in the end.

        :param expected: what a line of the log contains that is none.
        :param plugins: the arguments of plugins beside those of the default profile.
        """
        profile = folder / "profile.yaml"
        profile.write_text(yaml.safe_dump(_with_plugins(plugins or {})))
        made = Scheduler(self.kubeconfig, folder, profile)
        made.start()
        try:
            yield made
        finally:
            made.stop()
        problems = [line for line in made.problems() if not expected or expected not in line]
        assert not problems, "\n".join(problems)

    def log(self, name: str) -> str:
        """Return what a controller has logged."""
        path = self.plane.folder / "peers" / "run" / f"{name}.log"
        return path.read_text(errors="replace")

    @staticmethod
    def now() -> float:
        """Return the time in seconds, from any start."""
        return time.monotonic()

    def wait(self, true: Callable[[], Any], what: str, seconds: float = 180.0) -> None:
        """Wait until a condition holds.

        :raises AssertionError: when it does not in time, with the pods and their events.
        """
        try:
            wait_until(true, what, seconds)
        except TimeoutError as exc:
            raise AssertionError(f"{exc}\n{self._picture()}") from None

    def _picture(self) -> str:
        pods = [
            f"{one['metadata']['name']} {one['spec'].get('nodeName')} {one['status']}"
            for one in self.cluster.items(PODS)
        ]
        events = [
            f"{one['involvedObject']['kind']}/{one['involvedObject']['name']} "
            f"{one.get('reason')}: {one.get('message')}"
            for one in self.cluster.items(EVENTS)
        ]
        return "\n".join((*pods, *events[-40:]))

    def _call(self, *arguments: str, **variables: str) -> None:
        done = subprocess.run(
            [BASH, str(PEERS), *arguments],
            env={**self.plane.environment, **variables},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
