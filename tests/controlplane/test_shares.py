"""Shares of cards on an API server: whatever schedulers do at once, no card is given out twice."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from faces import Client, node
from live_cluster import PODS, Content, LiveCluster
from test_stories import asking, happens

from bayplan.dialects.vgpu.assignments import read_assignments
from bayplan.dialects.vgpu.node_lock import read_lock
from bayplan.dialects.vgpu.systems import HAMI
from bayplan.profiles.loading import load_profiles
from bayplan.topology.machine.readers.hami_register import REGISTER

NODES = "/api/v1/nodes"
KEYS = HAMI.annotations
MEMORY = 10_000
"""MiB of each card."""


def hami_node(name: str, cards: int) -> Content:
    """Return a node whose device plugin has registered cards."""
    made = node(name, **{"kubernetes.io/hostname": name})
    register = [
        {"id": f"{name}-{index}", "index": index, "count": 10, "devmem": MEMORY, "devcore": 100}
        | {"type": "NVIDIA-A100", "mode": "hami-core", "health": True}
        for index in range(cards)
    ]
    made["metadata"]["annotations"] = {REGISTER: json.dumps(register)}
    for kind in ("capacity", "allocatable"):
        made["status"][kind].update({"cpu": "64", "nvidia.com/gpu": str(10 * cards)})
    return made


def sharing(name: str, scheduler: str, memory: int) -> Content:
    """Return a pod that asks for a share of a card."""
    made = asking(name, schedulerName=scheduler)
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory)}
    made["spec"]["containers"][0]["resources"] = {"limits": limits}
    return made


class DevicePlugin:
    """HAMi's device plugins: they give each bound pod its devices, then release the node."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ending.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(0.02):
            for one in self._client.get(NODES).json["items"]:
                lock = one["metadata"].get("annotations", {}).get(KEYS.lock)
                if lock is not None:
                    self._serve(one["metadata"]["name"], read_lock(lock).pod)

    def _serve(self, node: str, key: str) -> None:
        path = f"{PODS}/{key.rpartition('/')[2]}"
        pod = self._client.get(path).json
        if pod.get("spec", {}).get("nodeName") == node:
            self._client.patch(path, {"metadata": {"annotations": {KEYS.phase: "success"}}})
            self._client.patch(f"{NODES}/{node}", {"metadata": {"annotations": {KEYS.lock: None}}})


def given(cluster: LiveCluster) -> Counter[str]:
    """Return the MiB that pods have of each card."""
    found: Counter[str] = Counter()
    for pod in cluster.items(PODS):
        text = pod["metadata"].get("annotations", {}).get(KEYS.allocated, "")
        if "nodeName" in pod["spec"]:
            for devices in read_assignments(text, 1):
                found.update({one.uuid: one.memory for one in devices})
    return found


async def test_two_schedulers_at_once_never_overfill_a_card(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    sizes, nodes, cards = {"one": MEMORY // 3, "two": MEMORY // 2}, 3, 2
    cluster.apply([hami_node(f"n{i}", cards) for i in range(nodes)])
    async with AsyncExitStack() as stack:
        stack.enter_context(DevicePlugin(cluster.client).running())
        for name in sizes:
            profile = tmp_path / f"{name}.yaml"
            profile.write_text(
                "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
                f"profiles: [{{schedulerName: {name}}}]\n"
            )
            await stack.enter_async_context(cluster.scheduler(load_profiles(profile)))
        # Each of them could fill the cluster alone.
        for i in range(3 * nodes * cards):
            cluster.apply(sharing(f"{name}-{i}", name, sizes[name]) for name in sizes)
        await happens(lambda: _is_full(cluster, nodes * cards, min(sizes.values())), 180.0)
        await _stands_still(cluster)
        found = given(cluster)
    assert max(found.values()) <= MEMORY, found


def _is_full(cluster: LiveCluster, cards: int, least: int) -> bool:
    found = given(cluster)
    return len(found) == cards and all(memory + least > MEMORY for memory in found.values())


async def _stands_still(cluster: LiveCluster) -> None:
    """Wait until no pod has been bound for a while."""
    count, calm = 0, 0
    while calm < 30:
        await asyncio.sleep(0.1)
        now = len(cluster.placements())
        count, calm = now, calm + 1 if now == count else 0
