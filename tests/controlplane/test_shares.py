"""Shares of GPUs on an API server: whatever schedulers do at once, no GPU is given out twice."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from tests.cluster.apiserver.faces import Client, node
from tests.controlplane.installation import path_of
from tests.controlplane.live_cluster import PODS, Content, LiveCluster
from tests.controlplane.story_builders import asking, happens
from tests.scenarios.expected import Outcome

from bayplan.dialects.hami.assignments import read_assignments
from bayplan.dialects.hami.node_lock import lock_text, read_lock
from bayplan.dialects.hami.systems import HAMI
from bayplan.dialects.kai.shares import GROUP_LABEL, RESERVATIONS
from bayplan.dialects.kai.shares import INDEX_ANNOTATION as INDEX
from bayplan.dialects.koordinator.allocations import ALLOCATED
from bayplan.dialects.tensor_fusion_shares import GPU_IDS
from bayplan.profiles.loading import load_profiles
from bayplan.topology.machine.readers.hami_register import REGISTER

NODES = "/api/v1/nodes"
KEYS = HAMI.annotations
RESERVATION_PODS = f"/api/v1/namespaces/{RESERVATIONS}/pods"
GPUS = 2
"""GPUs of a node."""
MEMORY = 10_000
"""MiB of each GPU."""


def hami_node(name: str, gpus: int) -> Content:
    """Return a node whose device plugin has registered GPUs."""
    made = node(name, **{"kubernetes.io/hostname": name})
    register = [
        {"id": f"{name}-{index}", "index": index, "count": 10, "devmem": MEMORY, "devcore": 100}
        | {"type": "NVIDIA-A100", "mode": "hami-core", "health": True}
        for index in range(gpus)
    ]
    made["metadata"]["annotations"] = {REGISTER: json.dumps(register)}
    for kind in ("capacity", "allocatable"):
        made["status"][kind].update({"cpu": "64", "nvidia.com/gpu": str(10 * gpus)})
    return made


def sharing(name: str, scheduler: str, memory: int) -> Content:
    """Return a pod that asks for a share of a GPU."""
    made = asking(name, schedulerName=scheduler)
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory)}
    made["spec"]["containers"][0]["resources"] = {"limits": limits}
    return made


class Service(Protocol):
    """What a system does beside the schedulers."""

    def running(self) -> AbstractContextManager[None]:
        """Do it within the context."""


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
        while not self._ending.wait(0.1):
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


# Two schedulers at once ------------------------------------------------------------------------


@dataclass(frozen=True)
class Words:
    """How a system says it: a node with GPUs, a pod with a share, and what a pod got.

    ``node`` takes a name and a number of GPUs. ``pod`` takes a name, a scheduler and percent of a
    GPU. ``held`` returns the percent that a bound pod has of GPUs, by their names. ``service`` is
    what the system itself does meanwhile.
    """

    node: Callable[[str, int], list[Content]]
    pod: Callable[[str, str, int], Content]
    held: Callable[[Content], dict[str, int]]
    service: Callable[[Client], Service] | None = None


def hami_share(name: str, scheduler: str, percent: int) -> Content:
    return sharing(name, scheduler, MEMORY * percent // 100)


def hami_held(pod: Content) -> dict[str, int]:
    text = pod["metadata"].get("annotations", {}).get(KEYS.allocated, "")
    found = [one for devices in read_assignments(text, 1) for one in devices]
    return {one.uuid: one.memory * 100 // MEMORY for one in found}


def koordinator_node(name: str, gpus: int) -> list[Content]:
    made = node(name, **{"kubernetes.io/hostname": name})
    percent = {f"koordinator.sh/{key}": str(100 * gpus) for key in ("gpu-core", "gpu-memory-ratio")}
    for kind in ("capacity", "allocatable"):
        made["status"][kind].update({"cpu": "64", **percent})
    amounts = {"gpu-core": "100", "gpu-memory-ratio": "100", "gpu-memory": "80Gi"}
    resources = {f"koordinator.sh/{key}": text for key, text in amounts.items()}
    made_of = [
        {"type": "gpu", "id": f"{name}-{minor}", "minor": minor, "health": True}
        | {"resources": resources}
        for minor in range(gpus)
    ]
    device = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}
    return [made, {**device, "metadata": {"name": name}, "spec": {"devices": made_of}}]


def koordinator_share(name: str, scheduler: str, percent: int) -> Content:
    made = asking(name, schedulerName=scheduler)
    asked = {f"koordinator.sh/{key}": str(percent) for key in ("gpu-core", "gpu-memory-ratio")}
    made["spec"]["containers"][0]["resources"] = {"limits": asked, "requests": asked}
    return made


def koordinator_held(pod: Content) -> dict[str, int]:
    given = json.loads(pod["metadata"].get("annotations", {}).get(ALLOCATED, "{}"))
    return {
        f"{pod['spec']['nodeName']}-{one['minor']}": int(
            one["resources"]["koordinator.sh/gpu-core"]
        )
        for one in given.get("gpu", ())
    }


def tensor_fusion_node(name: str, gpus: int) -> list[Content]:
    made = node(name, **{"kubernetes.io/hostname": name})
    for kind in ("capacity", "allocatable"):
        made["status"][kind].update({"cpu": "64"})
    made_of = [
        {
            "apiVersion": "tensor-fusion.ai/v1",
            "kind": "GPU",
            "metadata": {"name": f"{name}-{index}"},
        }
        | {
            "status": {
                "phase": "Running",
                "capacity": {"tflops": "100", "vram": "100Gi"},
                "index": index,
                "nodeSelector": {"kubernetes.io/hostname": name},
            }
        }
        for index in range(gpus)
    ]
    return [made, *made_of]


def tensor_fusion_share(name: str, scheduler: str, percent: int) -> Content:
    made = asking(name, schedulerName=scheduler)
    keys = {"tflops-request": str(percent), "vram-request": f"{percent}Gi"}
    made["metadata"]["annotations"] = {f"tensor-fusion.ai/{key}": keys[key] for key in keys}
    return made


def tensor_fusion_held(pod: Content) -> dict[str, int]:
    notes = pod["metadata"].get("annotations", {})
    gpus = [name for name in notes.get(GPU_IDS, "").split(",") if name]
    return {name: int(notes["tensor-fusion.ai/tflops-request"]) for name in gpus}


def kai_node(name: str, gpus: int) -> list[Content]:
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.memory": str(MEMORY)}
    made = node(name, **labels)
    for kind in ("capacity", "allocatable"):
        made["status"][kind].update({"cpu": "64", "nvidia.com/gpu": str(gpus)})
    return [made]


def kai_share(name: str, scheduler: str, percent: int) -> Content:
    made = asking(name, schedulerName=scheduler)
    made["metadata"]["annotations"] = {"gpu-fraction": str(percent / 100)}
    return made


def kai_held(pod: Content) -> dict[str, int]:
    group = pod["metadata"].get("labels", {}).get(GROUP_LABEL)
    percent = round(float(pod["metadata"]["annotations"]["gpu-fraction"]) * 100)
    return {f"{pod['spec']['nodeName']} {group}": percent}


class Reservations:
    """KAI's reservation pods: the first on a node say which GPUs they got, the rest fail."""

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
        while not self._ending.wait(0.1):
            taken: dict[str, list[Content]] = {}
            for pod in self._client.get(RESERVATION_PODS).json["items"]:
                if pod["status"].get("phase") != "Failed":
                    taken.setdefault(pod["spec"]["nodeName"], []).append(pod)
            for pods in taken.values():
                self._serve(pods)

    def _serve(self, pods: list[Content]) -> None:
        told = {pod["metadata"].get("annotations", {}).get(INDEX) for pod in pods}
        free = [str(index) for index in range(GPUS) if str(index) not in told]
        pods.sort(key=lambda pod: int(pod["metadata"]["resourceVersion"]))
        for pod in pods:
            path = f"{RESERVATION_PODS}/{pod['metadata']['name']}"
            if INDEX in pod["metadata"].get("annotations", {}):
                continue
            if free:
                change = {"metadata": {"annotations": {INDEX: free.pop(0)}}}
                self._client.patch(path, change)
            else:
                self._client.patch(f"{path}/status", {"status": {"phase": "Failed"}})


WORDS = {
    "hami": Words(lambda name, gpus: [hami_node(name, gpus)], hami_share, hami_held, DevicePlugin),
    "koordinator": Words(koordinator_node, koordinator_share, koordinator_held),
    "kai": Words(kai_node, kai_share, kai_held, Reservations),
    "tensor-fusion": Words(tensor_fusion_node, tensor_fusion_share, tensor_fusion_held),
}


def given(cluster: LiveCluster, words: Words) -> Counter[str]:
    """Return the percent that pods have of each GPU."""
    found: Counter[str] = Counter()
    for pod in cluster.items(PODS):
        if "nodeName" in pod["spec"]:
            found.update(words.held(pod))
    return found


ELECTED = ("koordinator", "kai")
"""Systems that have no lock of their own, tried with leaders of different Leases as well."""


@pytest.mark.parametrize(
    ("system", "elected"),
    [*((system, False) for system in WORDS), *((system, True) for system in ELECTED)],
)
async def test_two_schedulers_at_once_never_overfill_a_gpu(
    system: str, elected: bool, cluster: LiveCluster, tmp_path: Path
) -> None:
    words, sizes, nodes, gpus = WORDS[system], {"one": 33, "two": 50}, 3, GPUS
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RESERVATIONS}}
    cluster.client.post("/api/v1/namespaces", namespace)
    cluster.used(reservation(RESERVATION_PODS))
    if elected:
        _allow_leases(cluster, sizes)
    cluster.apply(one for i in range(nodes) for one in words.node(f"n{i}", gpus))
    async with AsyncExitStack() as stack:
        if words.service is not None:
            stack.enter_context(words.service(cluster.client).running())
        for name in sizes:
            profile = tmp_path / f"{name}.yaml"
            profile.write_text(
                "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
                f"leaderElection: {{resourceNamespace: bayplan-system, resourceName: {name}}}\n"
                f"profiles: [{{schedulerName: {name}, plugins: {{multiPoint: "
                "{enabled: [{name: GPUSharing}]}}}]\n"
            )
            running = cluster.scheduler(load_profiles(profile), leader_elect=elected)
            await stack.enter_async_context(running)
        # Each of them could fill the cluster alone.
        for i in range(3 * nodes * gpus):
            cluster.apply(words.pod(f"{name}-{i}", name, sizes[name]) for name in sizes)
        await happens(lambda: _is_full(cluster, words, nodes * gpus, min(sizes.values())), 180.0)
        await _stands_still(cluster)
        found = given(cluster, words)
    assert max(found.values()) <= 100, found
    # KAI names groups, not GPUs.
    assert max(Counter(_node_of(name) for name in found).values()) <= gpus, found


def _allow_leases(cluster: LiveCluster, names: Iterable[str]) -> None:
    """Let schedulers have Leases of their own; the deployed role has one."""
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bayplan-system"}}
    cluster.client.post("/api/v1/namespaces", space)
    rbac, name = "rbac.authorization.k8s.io", "leases-of-tests"
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    rules = [{**rule, "resourceNames": list(names), "verbs": ["get", "patch"]}]
    subject = {"kind": "ServiceAccount", "name": "bayplan-scheduler", "namespace": "bayplan-system"}
    role = {"apiGroup": rbac, "kind": "Role", "name": name}
    meta = {"name": name, "namespace": "bayplan-system"}
    for kind, content in (
        ("Role", {"rules": rules}),
        ("RoleBinding", {"roleRef": role, "subjects": [subject]}),
    ):
        made = {"apiVersion": f"{rbac}/v1", "kind": kind, "metadata": meta, **content}
        path = f"/apis/{rbac}/v1/namespaces/bayplan-system/{kind.lower()}s"
        # The embedded cluster has no roles, and lets everybody do everything.
        cluster.client.post(path, made)


def _node_of(gpu: str) -> str:
    return gpu[:2]


def _is_full(cluster: LiveCluster, words: Words, gpus: int, least: int) -> bool:
    found = given(cluster, words)
    return len(found) == gpus and all(used + least > 100 for used in found.values())


DRA = {"apiVersion": "resource.k8s.io/v1"}


def claimed_node(name: str) -> list[Content]:
    """Return a node with a device that claims share, and one that is divided by counters."""
    memory = {"value": "100Gi", "requestPolicy": {"default": "100Gi", "validRange": {"min": "1Gi"}}}
    shared = {"name": "shared", "allowMultipleAllocations": True, "capacity": {"memory": memory}}

    def part(start: int) -> Content:
        counters = {f"slice-{at}": {"value": "1"} for at in range(start, start + 5)}
        consumed = [{"counterSet": "card", "counters": counters}]
        return {"name": f"part-{start}", "consumesCounters": consumed}

    slices = {f"slice-{at}": {"value": "1"} for at in range(8)}
    pool = {"name": name, "resourceSliceCount": 2, "generation": 1}
    spec = {"driver": "gpu.example.com", "pool": pool, "nodeName": name}
    sets = {**spec, "sharedCounters": [{"name": "card", "counters": slices}]}
    devices = {**spec, "devices": [shared, part(0), part(3)]}
    made = [{**DRA, "kind": "ResourceSlice", "metadata": {"name": f"{name}-sets"}, "spec": sets}]
    made += [{**DRA, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": devices}]
    return [node(name, **{"kubernetes.io/hostname": name}), *made]


def device_template(name: str, **asked: object) -> Content:
    exactly = {"deviceClassName": "gpu", "count": 1, **asked}
    requests = [{"name": "gpu", "exactly": exactly}]
    spec = {"spec": {"devices": {"requests": requests}}}
    return {**DRA, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}


def chosen(name: str) -> list[Content]:
    """Return selectors of the devices whose capacity, or whose lack of it, says their kind."""
    sharing = "device.allowMultipleAllocations"
    return [{"cel": {"expression": sharing if name == "shared" else f"!{sharing}"}}]


async def test_two_schedulers_at_once_give_out_no_more_of_a_device_than_there_is(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    memory = {"capacity": {"requests": {"memory": "40Gi"}}}
    cluster.apply(one for i in range(4) for one in claimed_node(f"n{i}"))
    cluster.apply(
        [
            {**DRA, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}},
            device_template("shared", selectors=chosen("shared"), **memory),
            device_template("part", selectors=chosen("part")),
        ]
    )
    async with AsyncExitStack() as stack:
        for name in ("one", "two"):
            profile = tmp_path / f"{name}.yaml"
            profile.write_text(
                "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
                f"profiles: [{{schedulerName: {name}}}]\n"
            )
            await stack.enter_async_context(cluster.scheduler(load_profiles(profile)))
        for kind, most in (("shared", 8), ("part", 4)):
            for i in range(most):
                for scheduler in ("one", "two"):
                    pod = asking(f"{kind}-{scheduler}-{i}", schedulerName=scheduler)
                    claims = [{"name": "gpu", "resourceClaimTemplateName": kind}]
                    pod["spec"]["resourceClaims"] = claims
                    cluster.apply([pod])
        await happens(lambda: len(cluster.placements()) >= 12, 120.0)
        await _stands_still(cluster)
        nodes = cluster.placements()
    found = Counter((node, pod.partition("-")[0]) for pod, node in nodes.items())
    assert found == {(f"n{i}", kind): most for i in range(4) for kind, most in TWO_AND_ONE.items()}


TWO_AND_ONE = {"shared": 2, "part": 1}
"""How many claims of each kind a node has devices for."""


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
            assert "Insufficient shares of GPUs" in outcome.pending["large"]

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
