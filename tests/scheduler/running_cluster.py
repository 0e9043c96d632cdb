"""A cluster in the middle of its work: what one version leaves behind, another one takes over.

``python -m tests.scheduler.running_cluster FILE`` writes it as this version leaves it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from tests.resizing.elastic_builders import job

from bayplan.api import ApiObject, Kind
from bayplan.api.objects import KINDS
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.testing import Cluster, make_node, make_object, make_pod

GPU = "nvidia.com/gpu"
LONG_ENOUGH = 300.0
"""Seconds after which the elastic job has grown to its most."""


def on(node: str) -> dict[str, Any]:
    """Return a part of a spec that keeps a pod on a node."""
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def half(name: str) -> ApiObject:
    """Return a pod that takes half of the GPU of node "s", in KAI's words."""
    return make_pod(name, annotations={"gpu-fraction": "0.5"}, spec=on("s"))


def web(name: str, cpu: int) -> ApiObject:
    """Return a pod that may use the reservation on node "c"."""
    return make_pod(name, cpu, labels={"app": "web"}, spec=on("c"))


def empty_cluster() -> Cluster:
    """Return a cluster without objects, with its controllers."""
    cluster = Cluster()
    start_controllers(cluster.api)
    return cluster


def running_cluster() -> Cluster:
    """Return a cluster with shares of a GPU, a reservation, a grown job, and a victim that saves.

    Pod "low" was told that it goes; "high" waits for its node.
    """
    cluster = empty_cluster()
    cluster.add(make_node("g", gpu=8), make_node("e", gpu=4), make_node("s", gpu=1))
    cluster.add(make_node("c", 8, "64Gi"))
    saves = {"bayplan.dev/checkpoint-seconds": "120"}
    cluster.add(make_pod("low", gpu=8, annotations=saves, spec=on("g")))
    cluster.add(half("half-0"), _reservation("kept"), job("grown", 1, 4, **on("e")))
    cluster.schedule()
    cluster.add(web("web-0", 2))
    cluster.advance(LONG_ENOUGH)
    cluster.add(make_pod("high", gpu=8, priority=10, spec=on("g")))
    cluster.advance(10)
    return cluster


def _reservation(name: str) -> ApiObject:
    main = {"name": "main", "resources": {"requests": {"cpu": "6", "memory": "1Gi"}}}
    return make_object(
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Reservation",
            "metadata": {"name": name},
            "spec": {
                "allocateOnce": False,
                "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
                "template": {"spec": {"containers": [main], **on("c")}},
            },
        }
    )


# Leaving and taking over ---------------------------------------------------------------------


def saved(cluster: Cluster) -> str:
    """Return all objects of a cluster, and when it was left, as JSON."""
    items = [
        _manifest(kind, obj)
        for kind in KINDS.values()
        for obj in sorted(cluster.api.list(kind.type), key=lambda one: one.metadata.name)
    ]
    return json.dumps({"seconds": cluster.api.now, "items": items}, indent=1) + "\n"


def _manifest(kind: Kind, obj: ApiObject) -> dict[str, Any]:
    plain = replace(obj, metadata=replace(obj.metadata, resource_version=""))
    version = f"{kind.group}/{kind.versions[0]}".lstrip("/")
    content = msgspec.to_builtins(plain, enc_hook=lambda quantity: quantity.text)
    return {"apiVersion": version, "kind": kind.name, **content}


def taken_over(text: str) -> Cluster:
    """Return a cluster with these objects, at the same time, and a scheduler of this version."""
    content = json.loads(text)
    cluster = empty_cluster()
    cluster.advance(content["seconds"])
    cluster.add(*map(make_object, content["items"]))
    return cluster


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(saved(running_cluster()))
