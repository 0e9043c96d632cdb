"""Shares of cards on an API server: whatever schedulers do at once, no card is given out twice."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from expected import Outcome
from faces import Client, node
from installation import path_of
from live_cluster import PODS, Content, LiveCluster
from test_stories import asking, happens

from bayplan.dialects.kai_shares import GROUP_LABEL, RESERVATIONS
from bayplan.dialects.kai_shares import INDEX_ANNOTATION as INDEX
from bayplan.dialects.vgpu.assignments import read_assignments
from bayplan.dialects.vgpu.node_lock import lock_text, read_lock
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


async def test_a_pod_that_a_dead_scheduler_left_in_the_middle_of_its_binding_keeps_its_share(
    cluster: LiveCluster,
) -> None:
    node = hami_node("n0", 1)
    left = sharing("left", "bayplan", 7000)
    left["spec"]["nodeName"] = "n0"
    devices = "n0-0,NVIDIA,7000,0:;"
    notes = {KEYS.allocated: devices, KEYS.to_allocate: devices, KEYS.phase: "allocating"}
    left["metadata"]["annotations"] = {**notes, KEYS.node: "n0"}
    node["metadata"]["annotations"][KEYS.lock] = lock_text(time.time() - 301, "default", "left")
    cluster.apply([node, left])
    async with cluster.scheduler() as app:
        cluster.apply([sharing("large", "default-scheduler", 5000)])
        cluster.apply([sharing("small", "default-scheduler", 3000)])

        def check(outcome: Outcome) -> None:
            assert outcome.placements.keys() == {"left", "small"}
            assert "Insufficient shares of cards" in outcome.pending["large"]

        await cluster.ends(app, check)
    (node,) = cluster.items(NODES)
    lock = node["metadata"].get("annotations", {}).get(KEYS.lock, "")
    assert read_lock(lock).pod != "default/left"


async def test_a_scheduler_that_dies_between_a_reservation_pod_and_the_binding(
    real: LiveCluster, tmp_path: Path
) -> None:
    # In the embedded cluster KAI's agent answers at once, so that nobody dies in between.
    cluster = real
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RESERVATIONS}}
    cluster.client.post("/api/v1/namespaces", namespace)
    made = node("n0", **{"kubernetes.io/hostname": "n0", "nvidia.com/gpu.memory": "80000"})
    made["status"]["capacity"]["nvidia.com/gpu"] = "2"
    pods = f"/api/v1/namespaces/{RESERVATIONS}/pods"
    sharer = asking("sharer")
    sharer["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    cluster.apply([made, sharer])
    cluster.used(reservation(pods))
    profile = tmp_path / "profile.yaml"
    profile.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles:\n- plugins: {multiPoint: {enabled: [{name: GPUSharing}]}}\n"
    )
    async with cluster.scheduler(load_profiles(profile)):
        await happens(lambda: cluster.items(pods))
        assert cluster.placements() == {}
    (held,) = cluster.items(pods)
    async with cluster.scheduler(load_profiles(profile)):
        name = held["metadata"]["name"]
        cluster.client.patch(f"{pods}/{name}", {"metadata": {"annotations": {INDEX: "1"}}})
        await happens(lambda: cluster.placements() == {"sharer": "n0"})
    assert [one["metadata"]["uid"] for one in cluster.items(pods)] == [held["metadata"]["uid"]]
    (bound,) = cluster.items(PODS)
    group = held["metadata"]["labels"][GROUP_LABEL]
    assert bound["metadata"]["labels"][GROUP_LABEL] == group


def reservation(pods: str) -> Content:
    """Return what names the collection of reservation pods, so that it is emptied in the end."""
    namespace = pods.split("/")[-2]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any", "namespace": namespace}}


HAMI_CONFIG = "nvidia: {{memoryFactor: {factor}}}"
PLUGIN_CONFIG = """
version: v1
sharing:
  timeSlicing:
    failRequestsGreaterThanOne: {only_one}
    resources: [{{name: nvidia.com/gpu, replicas: 10}}]
"""
PROFILE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - name: DeviceShare
    args:
      hami: {deviceConfigMap: kube-system/hami-scheduler-device}
      devicePluginConfigMap: gpu-operator/device-plugin-config
"""


def config_map(key: str, **data: str) -> Content:
    namespace, _, name = key.partition("/")
    meta = {"namespace": namespace, "name": name}
    named = {key.replace("_", "-"): text for key, text in data.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": named}


async def test_the_settings_of_device_plugins_are_followed(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    hami, plugin = "kube-system/hami-scheduler-device", "gpu-operator/device-plugin-config"
    sliced = node("sliced", **{"kubernetes.io/hostname": "sliced", "nvidia.com/gpu.replicas": "10"})
    sliced["metadata"]["labels"]["nvidia.com/device-plugin.config"] = "sliced"
    sliced["status"]["capacity"]["nvidia.com/gpu"] = "20"
    greedy = asking("greedy", nodeSelector={"kubernetes.io/hostname": "sliced"})
    greedy["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
    configs = [
        config_map(hami, **{"device-config.yaml": HAMI_CONFIG.format(factor=10)}),
        config_map(plugin, sliced=PLUGIN_CONFIG.format(only_one="true")),
    ]
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-operator"}}
    cluster.client.post("/api/v1/namespaces", space)
    for one in configs:
        assert cluster.client.post(path_of(one, name=False), one).code == 201
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    try:
        cluster.apply([hami_node("n0", 1), sliced, greedy])
        cluster.apply(sharing(f"p{n}", "default-scheduler", 900) for n in range(2))
        plugins = DevicePlugin(cluster.client)
        async with cluster.scheduler(load_profiles(profile)) as app:

            def before(outcome: Outcome) -> None:
                assert len(outcome.placements) == 1
                assert "too large" in outcome.pending["greedy"]

            await cluster.ends(app, before)
            configs[0]["data"]["device-config.yaml"] = HAMI_CONFIG.format(factor=1)
            configs[1]["data"]["sliced"] = PLUGIN_CONFIG.format(only_one="false")
            for one in configs:
                cluster.client.patch(path_of(one), {"data": one["data"]})
            with plugins.running():
                await happens(lambda: len(cluster.placements()) == 3)
    finally:
        for one in configs:
            cluster.client.delete(path_of(one))
