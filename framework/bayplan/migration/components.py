"""Programs of other systems: what becomes of each once bayplan schedules, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

__all__ = ["COMPONENTS", "Component", "System", "Verdict", "component_of"]

System = Literal["volcano", "kai", "kueue", "koordinator", "hami"]
Verdict = Literal["go", "stay"]


class Component(msgspec.Struct, frozen=True):
    """A program of a system.

    :ivar images: the ends of its images' names, without registry and tag; the longest match counts.
    :ivar verdict: whether it may go once bayplan has all of its pods.
    :ivar lost: what its system did with it, and nobody does then; "" for nothing.
    """

    system: System
    name: str
    images: tuple[str, ...]
    verdict: Verdict
    why: str
    lost: str = ""


COMPONENTS: tuple[Component, ...] = (
    Component(
        "volcano",
        "scheduler",
        ("volcanosh/vc-scheduler", "vc-scheduler"),
        "go",
        "bayplan reads its queues, PodGroups, HyperNodes and configuration",
        "the plugins rescheduling and extender",
    ),
    Component(
        "volcano",
        "agent scheduler",
        ("volcanosh/vc-agent-scheduler", "vc-agent-scheduler"),
        "go",
        "bayplan schedules its pods one by one as well",
    ),
    Component(
        "volcano",
        "controllers",
        ("volcanosh/vc-controller-manager", "vc-controller-manager"),
        "stay",
        "makes the pods of Volcano Jobs, and the PodGroups of pods without one",
    ),
    Component(
        "volcano",
        "HyperNode controller",
        ("volcanosh/vc-hypernode-controller-manager", "vc-hypernode-controller-manager"),
        "stay",
        "discovers the network, which bayplan reads",
    ),
    Component(
        "volcano",
        "webhooks",
        ("volcanosh/vc-webhook-manager", "vc-webhook-manager"),
        "stay",
        "checks Volcano Jobs and fills them in; without its Service no Job is accepted",
    ),
    Component(
        "volcano",
        "agent",
        ("volcanosh/vc-agent", "vc-agent"),
        "stay",
        "enforces what colocated pods may use of a node",
    ),
    Component(
        "volcano",
        "vGPU device plugin",
        ("volcano-vgpu-device-plugin",),
        "stay",
        "gives containers the shares that bayplan chooses",
    ),
    Component(
        "kai",
        "operator",
        ("kai-scheduler/operator",),
        "go",
        "would make its scheduler again: it goes first",
    ),
    Component(
        "kai",
        "scheduler",
        ("kai-scheduler/scheduler",),
        "go",
        "bayplan reads its queues, PodGroups and topologies",
        "scheduling shards as processes of their own: each becomes a profile",
    ),
    Component(
        "kai", "binder", ("kai-scheduler/binder",), "go", "bayplan binds, and makes no BindRequest"
    ),
    Component(
        "kai",
        "pod grouper",
        ("kai-scheduler/podgrouper", "kai-scheduler/pod-grouper"),
        "stay",
        "makes PodGroups with KAI's priorities and sub-groups; else owners are gangs",
    ),
    Component(
        "kai",
        "PodGroup controller",
        ("kai-scheduler/podgroupcontroller", "kai-scheduler/podgroup-controller"),
        "go",
        "bayplan writes the status of PodGroups",
    ),
    Component(
        "kai",
        "queue controller",
        ("kai-scheduler/queuecontroller", "kai-scheduler/queue-controller"),
        "go",
        "bayplan writes the status of queues",
        "its metrics of queues: bayplan's have names of their own",
    ),
    Component(
        "kai",
        "admission",
        ("kai-scheduler/admission",),
        "stay",
        "writes what containers that share a GPU read; without such pods it may go",
    ),
    Component(
        "kai",
        "node scale adjuster",
        ("kai-scheduler/nodescaleadjuster", "kai-scheduler/node-scale-adjuster"),
        "go",
        "bayplan's plugin Autoscaling asks for nodes",
    ),
    Component(
        "kai",
        "reservation",
        ("kai-scheduler/resource-reservation", "kai-scheduler/resourcereservation"),
        "stay",
        "holds the GPUs that running pods share",
    ),
    Component(
        "kueue",
        "manager",
        ("kueue/kueue", "kueue-manager"),
        "go",
        "bayplan admits in its place once its Lease is given back; its webhooks go with it",
        "kinds that bayplan does not suspend",
    ),
    Component(
        "kueue", "viz", ("kueueviz-backend", "kueueviz-frontend"), "go", "bayplan has a page"
    ),
    Component(
        "koordinator",
        "scheduler",
        ("koord-scheduler",),
        "go",
        "bayplan reads its quotas, gangs, Reservations, loads, devices, CPU sets and configuration",
    ),
    Component(
        "koordinator",
        "manager",
        ("koord-manager",),
        "stay",
        "reckons Batch resources, and its webhooks fill in pods by ClusterColocationProfile",
    ),
    Component(
        "koordinator",
        "koordlet",
        ("koordlet",),
        "stay",
        "reports devices and NUMA nodes, and enforces CPU sets and QoS",
    ),
    Component(
        "koordinator",
        "device daemon",
        ("koord-device-daemon",),
        "stay",
        "reports devices of nodes",
    ),
    Component(
        "koordinator",
        "descheduler",
        ("koord-descheduler",),
        "stay",
        "moves pods by rules of its own; LowNodeLoad alone becomes bayplan's plugin",
    ),
    Component(
        "hami",
        "scheduler",
        ("projecthami/hami", "hami-scheduler"),
        "go",
        "bayplan chooses the GPUs; the policies of configs/admission fill in what its webhook did",
        "its webhook's other devices than NVIDIA's",
    ),
    Component(
        "hami",
        "device plugin",
        ("hami-device-plugin", "k8s-vgpu-scheduler"),
        "stay",
        "gives containers the shares that bayplan chooses, and reports GPUs",
    ),
    Component(
        "hami",
        "monitor",
        ("hami-vgpu-monitor",),
        "stay",
        "measures what containers use",
    ),
    Component(
        "hami",
        "DRA driver",
        ("hami-dra-driver",),
        "stay",
        "prepares the devices of claims",
    ),
)
"""All that are known; others of the same namespaces are not touched."""


def component_of(image: str, workload: str, container: str) -> Component | None:
    """Return the program that a container runs, None for any other.

    HAMi has one image for its scheduler and its device plugin; the kind of workload tells them.

    :param image: with registry and tag, such as ``docker.io/volcanosh/vc-scheduler:v1.15.1``.
    :param workload: the kind of what makes the pods, such as DaemonSet.
    """
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    name = f"{head}{slash}{last.partition(':')[0]}"
    found = max(_matches(name), default=None, key=lambda match: match[0])
    if found is None:
        return None
    component = found[1]
    if component.system == "hami" and component.name == "scheduler" and workload == "DaemonSet":
        wanted = "monitor" if "monitor" in container else "device plugin"
        (component,) = (c for c in COMPONENTS if c.system == "hami" and c.name == wanted)
    return component


def _matches(name: str) -> Iterator[tuple[int, Component]]:
    for component in COMPONENTS:
        for image in component.images:
            if name == image or name.endswith(f"/{image}"):
                yield len(image), component
