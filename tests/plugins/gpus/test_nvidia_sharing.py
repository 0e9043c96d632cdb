"""GPUs that NVIDIA's device plugin shares or that are divided by MIG."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins.gpus.gpu_builders import device_class, slice_of

from bayplan.api import ApiObject, Node, Pod
from bayplan.api.configmap import ConfigMap
from bayplan.api.gpus import GPUS
from bayplan.api.meta import ObjectMeta
from bayplan.cluster.embedded.claims import ClaimController
from bayplan.dialects.nvidia import GpuLabels, gpu_labels, mig_profile, replication_of
from bayplan.explain.explanation import explain
from bayplan.testing import Cluster, assert_pending, assert_placed, make_node, make_pod
from bayplan_plugins.gpus.ledger import GpuLedger

MIXED = {"nvidia.com/mig.strategy": "mixed", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
SLICED = {
    "nvidia.com/gpu.replicas": "10",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/device-plugin.config": "sliced",
}
MPS = {**SLICED, "nvidia.com/gpu.sharing-strategy": "mps"}
CONFIG = """
version: v1
sharing:
  timeSlicing:
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 10
"""
TOO_LARGE = (
    "request for 'nvidia.com/gpu: 2' too large: maximum request size for shared resources is 1"
)


def gpu_node(name: str, labels: Mapping[str, str], **resources: int) -> Node:
    """Return a node; resources are those of nvidia.com/, such as ``gpu=8``."""
    own = {f"nvidia.com/{key}": count for key, count in resources.items()}
    return make_node(name, cpu=64, labels=labels, **own)


def gpu_pod(name: str, **resources: int) -> Pod:
    return make_pod(name, **{f"nvidia.com/{key}": count for key, count in resources.items()})


def cluster_of(*objects: ApiObject) -> Cluster:
    cluster = Cluster()
    cluster.add(*objects)
    return cluster


def change(cluster: Cluster, new: ApiObject) -> None:
    cluster.api.update(new)
    cluster.api.deliver()


def config_map(text: str, key: str = "sliced") -> ConfigMap:
    return ConfigMap(ObjectMeta(name="plugin", namespace="gpu-operator"), {key: text})


def use(cluster: Cluster, node: str) -> list[tuple[int, int, int]]:
    """Return compute, memory in MiB and slots taken of each GPU of a node."""
    state = cluster.snapshot.shared(GpuLedger, GpuLedger).state(node)
    assert state is not None
    return [(one.compute, one.memory >> 20, one.slots) for one in state.used]


# Time slicing and MPS ----------------------------------------------------------------------------


def test_replicas_are_counted_on_the_gpus_with_the_fewest() -> None:
    cluster = cluster_of(
        gpu_node("a", SLICED, gpu=20), *(gpu_pod(f"p{n}", gpu=1) for n in range(3))
    )
    cluster.schedule()
    assert_placed(cluster, p0="a", p1="a", p2="a")
    assert use(cluster, "a") == [(200, 0, 2), (100, 0, 1)]


def test_no_more_replicas_than_the_node_has_are_given_out() -> None:
    cluster = cluster_of(
        gpu_node("a", SLICED, gpu=10), *(gpu_pod(f"p{n}", gpu=1) for n in range(11))
    )
    assert len(cluster.schedule()) == 10
    assert use(cluster, "a") == [(1000, 0, 10)]


def test_several_replicas_are_refused_before_binding_where_the_plugin_would() -> None:
    cluster = cluster_of(config_map(CONFIG), gpu_node("a", SLICED, gpu=80), gpu_pod("p", gpu=2))
    cluster.schedule()
    assert_pending(cluster, "p", TOO_LARGE)


def test_explain_says_how_many_replicas_a_container_may_have() -> None:
    cluster = cluster_of(config_map(CONFIG), gpu_node("a", SLICED, gpu=80), gpu_pod("p", gpu=2))
    cluster.schedule()
    pod = cluster.api.get(Pod, "default/p")
    assert pod is not None
    (one,) = explain(cluster.scheduler, pod).suggestions
    assert one.text == "would fit on a with one nvidia.com/gpu a container"


def test_several_replicas_are_allowed_where_nothing_says_otherwise() -> None:
    cluster = cluster_of(gpu_node("a", SLICED, gpu=80), gpu_pod("p", gpu=2))
    assert cluster.schedule()
    assert sum(slots for _, _, slots in use(cluster, "a")) == 2


def test_the_limit_is_one_for_each_container_not_for_the_pod() -> None:
    containers = [
        {"name": name, "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}
        for name in ("a", "b")
    ]
    pod = make_pod("p", spec={"containers": containers})
    cluster = cluster_of(config_map(CONFIG), gpu_node("a", SLICED, gpu=80), pod)
    cluster.schedule()
    assert_placed(cluster, p="a")


def test_a_node_takes_the_configuration_that_its_label_names() -> None:
    other = {**SLICED, "nvidia.com/device-plugin.config": "other"}
    cluster = cluster_of(
        config_map(CONFIG), gpu_node("a", SLICED, gpu=80), gpu_node("b", other, gpu=80)
    )
    cluster.add(gpu_pod("p", gpu=2))
    cluster.schedule()
    assert_placed(cluster, p="b")


def test_a_changed_configuration_lets_a_pod_in() -> None:
    cluster = cluster_of(config_map(CONFIG), gpu_node("a", SLICED, gpu=80), gpu_pod("p", gpu=2))
    cluster.schedule()
    assert_pending(cluster, "p", TOO_LARGE)
    change(cluster, config_map(CONFIG.replace("true", "false")))
    cluster.advance(20)
    assert_placed(cluster, p="a")


@pytest.mark.parametrize("said", ["true", "false"])
def test_a_label_says_it_where_the_configuration_cannot_be_read(said: str) -> None:
    labels = {**SLICED, "bayplan.dev/fail-requests-greater-than-one": said}
    contrary = CONFIG.replace("true", "false" if said == "true" else "true")
    cluster = cluster_of(config_map(contrary), gpu_node("a", labels, gpu=80), gpu_pod("p", gpu=2))
    cluster.schedule()
    assert ("p" in cluster.placements()) is (said == "false")


def test_mps_refuses_several_replicas_without_a_word_and_counts_its_part_of_the_memory() -> None:
    cluster = cluster_of(gpu_node("a", MPS, gpu=10), gpu_pod("one", gpu=1), gpu_pod("two", gpu=2))
    cluster.schedule()
    assert_placed(cluster, one="a")
    assert_pending(cluster, "two", TOO_LARGE)
    assert use(cluster, "a") == [(100, 8192, 1)]


def test_renamed_replicas_are_known_by_their_name() -> None:
    text = CONFIG.replace("timeSlicing:", "timeSlicing:\n    renameByDefault: true")
    node = make_node("a", cpu=64, labels=SLICED, **{"nvidia.com/gpu.shared": 80})
    one, two = (make_pod(f"p{n}", **{"nvidia.com/gpu.shared": n}) for n in (1, 2))
    cluster = cluster_of(config_map(text), node, one, two)
    cluster.schedule()
    assert_placed(cluster, p1="a")
    assert_pending(cluster, "p2", "request for 'nvidia.com/gpu.shared: 2' too large")


@pytest.mark.parametrize("labelled", [True, False])
def test_a_configuration_says_that_gpus_are_shared_where_no_label_does(labelled: bool) -> None:
    # The device plugin without GPU feature discovery.
    machine = {"bayplan.dev/machine": "dgx-1v"}
    labels = {"nvidia.com/device-plugin.config": "sliced"} if labelled else {}
    named = {"DeviceShare": {"devicePluginConfigMap": "" if labelled else "gpu-operator/plugin"}}
    objects = [config_map(CONFIG), gpu_node("a", {**labels, **machine}, gpu=80)]
    cluster = Cluster(objects, plugins=named)
    cluster.add(gpu_pod("one", gpu=1), gpu_pod("two", gpu=2))
    assert_placed(cluster, one="a")
    assert_pending(cluster, "two", TOO_LARGE)
    pod = cluster.api.get(Pod, "default/one")
    assert pod is not None
    assert GPUS not in pod.metadata.annotations
    assert sum(slots for _, _, slots in use(cluster, "a")) == 1


def test_a_configuration_that_may_be_of_other_nodes_says_nothing_of_a_node() -> None:
    cluster = cluster_of(config_map(CONFIG), gpu_node("a", {}, gpu=8), gpu_pod("p", gpu=2))
    cluster.schedule()
    assert_placed(cluster, p="a")


def test_a_configuration_that_cannot_be_read_is_told_on_its_nodes() -> None:
    text = CONFIG.replace("replicas: 10", "replicas: many")
    cluster = cluster_of(config_map(text), gpu_node("a", SLICED, gpu=80), gpu_pod("p", gpu=1))
    cluster.schedule()
    assert_placed(cluster, p="a")
    problem = cluster.snapshot.problems["a", "nvidia.com/device-plugin.config"]
    assert problem.startswith("configuration sliced: sharing.timeSlicing.resources.0.replicas: ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (CONFIG.replace("version: v1", ""), "configuration sliced: version: Field required"),
        ("", "configuration sliced: expected one mapping with version and sharing"),
        (None, "expected the key sliced in ConfigMap gpu-operator/plugin"),
    ],
)
def test_a_configuration_that_the_profile_names_has_to_be_there(
    text: str | None, problem: str
) -> None:
    named = {"DeviceShare": {"devicePluginConfigMap": "gpu-operator/plugin"}}
    cluster = Cluster([config_map(CONFIG), gpu_node("a", SLICED, gpu=80)], plugins=named)
    other = ConfigMap(ObjectMeta(name="other", namespace="default"), {"sliced": CONFIG})
    cluster.add(other, gpu_pod("p", gpu=1))
    assert_placed(cluster, p="a")
    assert not cluster.snapshot.problems
    change(cluster, config_map(text, "sliced") if text is not None else config_map(CONFIG, "b"))
    cluster.add(gpu_pod("q", gpu=1))
    assert_placed(cluster, q="a")
    assert cluster.snapshot.problems["a", "nvidia.com/device-plugin.config"] == problem


def test_replicas_promise_no_topology() -> None:
    machine = {"bayplan.dev/machine": "dgx-h100"}
    plain = gpu_node("plain", machine, gpu=8)
    for labels, named in ((SLICED, False), ({}, True)):
        node = gpu_node("a", {**machine, **labels}, gpu=8)
        cluster = cluster_of(node if labels else plain, gpu_pod("p", gpu=1))
        cluster.schedule()
        pod = cluster.api.get(Pod, "default/p")
        assert pod is not None
        assert (GPUS in pod.metadata.annotations) is named


# MIG ---------------------------------------------------------------------------------------------


def mig_node(name: str, labels: Mapping[str, str], **profiles: int) -> Node:
    """Return a node with MIG devices, such as ``mig_1g_10gb=7``."""
    own = {
        "nvidia.com/" + key.replace("mig_", "mig-").replace("_", "."): count
        for key, count in profiles.items()
    }
    return make_node(name, cpu=64, labels=labels, **own)


def test_mixed_devices_are_counted_by_profile() -> None:
    node = mig_node("a", MIXED, mig_1g_10gb=2, mig_3g_40gb=1)
    small = {"nvidia.com/mig-1g.10gb": 1}
    large = {"nvidia.com/mig-3g.40gb": 1}
    pods = [make_pod("s0", **small), make_pod("s1", **small), make_pod("l0", **large)]
    cluster = cluster_of(node, *pods, make_pod("l1", **large))
    cluster.schedule()
    assert_placed(cluster, s0="a", s1="a", l0="a")
    assert_pending(cluster, "l1", "Insufficient nvidia.com/mig-3g.40gb")
    assert use(cluster, "a") == [(121, 9984, 1), (121, 9984, 1), (454, 40448, 1)]


def test_whole_gpus_beside_mig_devices_promise_no_topology() -> None:
    machine = {"bayplan.dev/machine": "dgx-h100", **MIXED}
    node = make_node(
        "a", cpu=64, labels=machine, **{"nvidia.com/gpu": 4, "nvidia.com/mig-1g.10gb": 28}
    )
    cluster = cluster_of(node, gpu_pod("p", gpu=4))
    cluster.schedule()
    assert_placed(cluster, p="a")
    pod = cluster.api.get(Pod, "default/p")
    assert pod is not None
    assert GPUS not in pod.metadata.annotations
    assert sum(compute == 1000 for compute, _, _ in use(cluster, "a")) == 4


def test_partitions_of_claims_are_had_beside_those_of_the_plugin() -> None:
    node = mig_node("a", MIXED, mig_1g_10gb=1)
    name = "nvidia.com/mig-1g.12gb"
    gpus = device_class("small", 'device.driver == "gpu.example.com"', extendedResourceName=name)
    cluster = Cluster([node, gpus, slice_of("a", [{"name": "gpu-0"}])])
    ClaimController(cluster.api)
    cluster.add(make_pod("p", **{name: 1}), make_pod("q", **{"nvidia.com/mig-1g.10gb": 1}))
    cluster.schedule()
    assert_placed(cluster, p="a", q="a")


def test_slices_of_the_single_strategy_promise_no_topology() -> None:
    labels = {
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        "bayplan.dev/machine": "dgx-a100",
    }
    cluster = cluster_of(gpu_node("a", labels, gpu=56), gpu_pod("p", gpu=8))
    cluster.schedule()
    assert_placed(cluster, p="a")
    pod = cluster.api.get(Pod, "default/p")
    assert pod is not None
    assert GPUS not in pod.metadata.annotations
    assert len(use(cluster, "a")) == 56
    assert use(cluster, "a")[:9] == [(142, 4864, 1)] * 8 + [(0, 0, 0)]


@pytest.mark.parametrize("state", ["pending", "rebooting", "failed"])
def test_a_node_that_is_being_divided_is_not_offered(state: str) -> None:
    labels = {"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.config.state": state}
    cluster = cluster_of(gpu_node("a", labels, gpu=8), gpu_pod("p", gpu=1), make_pod("q"))
    cluster.schedule()
    assert_placed(cluster, q="a")
    assert_pending(cluster, "p", f"the node's MIG configuration all-1g.10gb is {state}")
    change(cluster, gpu_node("a", {**labels, "nvidia.com/mig.config.state": "success"}, gpu=8))
    cluster.advance(20)
    assert_placed(cluster, p="a")


def test_a_restart_counts_what_runs_already() -> None:
    running = gpu_pod("r", gpu=1)
    before = cluster_of(gpu_node("a", SLICED, gpu=10), running)
    before.schedule()
    bound = before.api.get(Pod, "default/r")
    assert bound is not None
    after = cluster_of(gpu_node("a", SLICED, gpu=10), bound, gpu_pod("p", gpu=1))
    after.schedule()
    assert use(after, "a") == [(200, 0, 2)]


# What labels and configurations say --------------------------------------------------------------


def test_a_profile_is_read_from_its_resource() -> None:
    assert mig_profile("nvidia.com/mig-1g.10gb.me.shared") == "1g.10gb+me"
    assert mig_profile("nvidia.com/mig-3g.40gb") == "3g.40gb"
    assert not any(
        mig_profile(f"nvidia.com/{name}") for name in ("mig-", "mig-x", "gpu", "mig-99g.1gb")
    )


@pytest.mark.parametrize(
    ("label", "text", "problem"),
    [
        ("gpu.replicas", "ten", 'expected a whole number up to 1024, got "ten"'),
        ("gpu.replicas", "99999", 'expected a whole number up to 1024, got "99999"'),
        ("gpu.memory", "-1", 'expected a whole number up to 4194304, got "-1"'),
        ("mig.config.state", "on", 'expected one of pending, rebooting, success, failed, got "on"'),
        ("mig.strategy", "all", 'expected one of none, single, mixed, got "all"'),
        ("mig-big.replicas", "2", "expected the name of a profile such as 1g.10gb"),
    ],
)
def test_a_wrong_label_is_told_on_the_node(label: str, text: str, problem: str) -> None:
    labels = {**SLICED, f"nvidia.com/{label}": text}
    cluster = cluster_of(gpu_node("a", labels, gpu=8), gpu_pod("p", gpu=1))
    cluster.schedule()
    assert cluster.snapshot.problems["a", "GPUs"] == f"label nvidia.com/{label}: {problem}"


def test_a_product_whose_profile_cannot_be_read_is_not_counted_as_whole_gpus() -> None:
    labels = {"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.product": "A100-MIG-1g.5"}
    cluster = cluster_of(gpu_node("a", labels, gpu=56), gpu_pod("p", gpu=1))
    cluster.schedule()
    assert cluster.snapshot.problems["a", "GPUs"] == (
        "label nvidia.com/gpu.product: expected a profile such as 1g.10gb after -MIG-, "
        'got "A100-MIG-1g.5"'
    )


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "nvidia.com/gpu.replicas",
                "nvidia.com/gpu.sharing-strategy",
                "nvidia.com/gpu.memory",
                "nvidia.com/gpu.product",
                "nvidia.com/mig.strategy",
                "nvidia.com/mig.config.state",
                "nvidia.com/mig-1g.10gb.replicas",
            ]
        ),
        st.text(max_size=20) | st.integers().map(str),
    )
)
def test_labels_are_read_or_refused_in_words(labels: dict[str, str]) -> None:
    try:
        found = gpu_labels(labels)
    except ValueError as exc:
        problem = str(exc)
        assert problem.startswith("label nvidia.com/")
        return
    assert isinstance(found, GpuLabels)
    assert all(0 <= count <= 1024 for count in found.replicas.values())


def documents() -> st.SearchStrategy[Any]:
    leaf = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    names = st.sampled_from(
        ["timeSlicing", "mps", "resources", "name", "replicas", "renameByDefault"]
    )
    return st.recursive(
        leaf, lambda part: st.lists(part, max_size=3) | st.dictionaries(names, part, max_size=3)
    )


@given(documents())
def test_configurations_are_read_or_refused_in_words(sharing: Any) -> None:
    found = replication_of(json.dumps({"version": "v1", "sharing": sharing}))
    if isinstance(found, str):
        assert found
    else:
        assert all(2 <= count <= 1024 for count in found.replicas.values())
