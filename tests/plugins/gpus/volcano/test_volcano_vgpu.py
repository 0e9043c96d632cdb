"""Pods with shares of GPUs in the words of Volcano's vGPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bayplan.api import Node, Pod
from bayplan.cluster.embedded.device_plugins import VirtualDevicePlugins
from bayplan.dialects.hami.systems import VOLCANO
from bayplan.testing import Cluster, assert_pending, assert_placed, make_node, make_object
from bayplan.topology.machine.readers.hami_register import VOLCANO_REGISTER
from bayplan_plugins.gpus.ledger import GpuLedger

KEYS = VOLCANO.annotations
MIB = 1 << 20


def node(name: str, *gpus: str) -> Node:
    """Return a node whose device plugin has registered GPUs, ``uuid,count,MiB,type,health``."""
    register = "".join(f"{gpu}:" for gpu in gpus)
    count = sum(int(gpu.split(",")[1]) for gpu in gpus)
    return make_node(
        name,
        cpu=64,
        annotations={VOLCANO_REGISTER: register},
        **{"volcano.sh/vgpu-number": count},
    )


def pod(
    name: str,
    *containers: Mapping[str, Any],
    init: tuple[Mapping[str, Any], ...] = (),
    notes: Mapping[str, str] | None = None,
) -> Pod:
    found = make_object(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": dict(notes or {})},
            "spec": {
                "initContainers": [_container(f"i{n}", own) for n, own in enumerate(init)],
                "containers": [_container(f"c{n}", own) for n, own in enumerate(containers)],
            },
        }
    )
    assert isinstance(found, Pod)
    return found


def _container(name: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    own = {f"volcano.sh/vgpu-{key}": str(value) for key, value in limits.items()}
    return {"name": name, "image": "cuda", "resources": {"limits": own}}


def notes_of(cluster: Cluster, name: str) -> Mapping[str, str]:
    found = cluster.api.get(Pod, f"default/{name}")
    assert found is not None
    return found.metadata.annotations


def used(cluster: Cluster, name: str) -> list[tuple[int, int, int]]:
    state = cluster.snapshot.shared(GpuLedger, GpuLedger).state(name)
    assert state is not None
    return [(use.compute // 10, use.memory // MIB, use.slots) for use in state.used]


TWO = ("GPU-a,10,8192,NVIDIA-A40,true", "GPU-b,10,8192,NVIDIA-A40,true,hami-core")


def test_a_pod_gets_its_share_in_the_words_of_volcano() -> None:
    own = pod("p", {"number": 1, "memory": 3000, "cores": 30}, {}, {"memory": 1000})
    cluster = Cluster([node("n1", *TWO), own])
    VirtualDevicePlugins(cluster.api)
    assert_placed(cluster, p="n1")
    notes = notes_of(cluster, "p")
    assert notes[KEYS.allocated] == "GPU-b,NVIDIA,3000,30:;;GPU-b,NVIDIA,1000,0:"
    assert notes[KEYS.to_allocate] == notes[KEYS.allocated]
    assert (notes[KEYS.node], notes[KEYS.phase]) == ("n1", "success")
    assert used(cluster, "n1") == [(0, 0, 0), (30, 4000, 2)]
    again = Cluster([*cluster.api.list(Node), *cluster.api.list(Pod)])
    assert used(again, "n1") == used(cluster, "n1")


def test_a_whole_gpu_leaves_its_compute_to_others() -> None:
    cluster = Cluster([node("n1", TWO[0]), pod("p", {"number": 1}), pod("q", {"memory": 1})])
    assert_placed(cluster, p="n1")
    assert notes_of(cluster, "p")[KEYS.allocated] == "GPU-a,NVIDIA,8192,0:"
    assert_pending(cluster, "q", "Insufficient shares of GPUs")


@pytest.mark.parametrize(
    ("notes", "reason"),
    [
        ({"volcano.sh/vgpu-use-gpuuuid": "GPU-c"}, "2/2 CardUuidMismatch"),
        ({"volcano.sh/vgpu-nouse-gpuuuid": "GPU-a,GPU-b"}, "2/2 CardUuidMismatch"),
        ({"volcano.sh/vgpu-mode": "mig"}, "1/2 CardTypeMismatch"),
        ({"nvidia.com/use-gputype": "H100"}, "2/2 CardTypeMismatch"),
    ],
)
def test_pods_say_which_gpus_they_may_have(notes: dict[str, str], reason: str) -> None:
    gpus = (TWO[1], "GPU-c,10,100,NVIDIA-A40,false") if "mode" in str(notes) else TWO
    cluster = Cluster([node("n1", *gpus), pod("p", {"memory": 1000}, notes=notes)])
    assert_pending(cluster, "p", reason)


def test_init_containers_get_no_gpu() -> None:
    own = pod("p", {"memory": 1000}, init=({"memory": 1000},))
    cluster = Cluster([node("n1", *TWO), own])
    assert_pending(cluster, "p", 'container "i0": Volcano vGPU serves no init containers')


def test_a_pod_does_not_ask_in_the_words_of_two_systems() -> None:
    own = pod("p", {"memory": 1000}, {})
    both = own.spec.containers[0].resources.limits | {"nvidia.com/gpumem": "1000"}
    content = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "image": "cuda",
                    "resources": {
                        "limits": {k: str(getattr(v, "text", v)) for k, v in both.items()}
                    },
                }
            ]
        },
    }
    cluster = Cluster([node("n1", *TWO), make_object(content)])
    assert_pending(
        cluster, "p", "words of one system, got nvidia.com/gpumem (HAMi) and volcano.sh/vgpu-"
    )
