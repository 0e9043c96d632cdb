"""GPUs over the network in TensorFusion's words: clients, and the workers that serve them.

A *client* is a pod with ``tensor-fusion.ai/is-local-gpu: "false"``. A *worker* is a pod on a GPU
node with the label ``tensor-fusion.ai/component: worker``; it holds the GPUs, or shares of them.
Both name their *workload*, any of whose workers may serve any of its clients. Names as in
NexusGPU/tensor-fusion (pkg/constants, internal/worker).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from bayplan.api import Pod, Quantity
from bayplan.api.gang import Gang, Membership
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.api.meta import ObjectMeta, OwnerReference
from bayplan.api.objects import decode_part
from bayplan.api.pod import Container, PodSpec, PodTemplate, ResourceRequirements
from bayplan.dialects.reading import is_index
from bayplan.inputs.limits import ANNOTATION
from bayplan.inputs.yamltext import parse_yaml

__all__ = [
    "MAX_LATENCY",
    "MEMBERS_BY",
    "MIN_BANDWIDTH",
    "NIC_BANDWIDTH",
    "PREFIX",
    "Link",
    "Side",
    "client_problem",
    "link_of",
    "membership_of",
    "says_side",
    "side_of",
    "worker_of",
    "workload_of",
]

Side = Literal["client", "worker"]
PREFIX = "tensor-fusion.ai/"
MAX_LATENCY = "bayplan.dev/gpu-max-latency"
"""The annotation of a client with the longest time that a message to its worker may take."""
MIN_BANDWIDTH = "bayplan.dev/gpu-min-bandwidth"
"""The annotation of a client with the bandwidth that it needs to its worker, in GB/s."""
NIC_BANDWIDTH = "bayplan.dev/nic-bandwidth"
"""The extended resource that counts what a node's NICs carry for workers, in MB/s."""

_LOCAL = f"{PREFIX}is-local-gpu"
_COMPONENT = f"{PREFIX}component"
MEMBERS_BY = frozenset((_LOCAL, _COMPONENT))
"""The names without any of which, as label or annotation, no pod is in a gang or has a rank."""
_WORKLOAD = f"{PREFIX}workload"
_SELECTED = f"{PREFIX}selected-workload"
_TEMPLATE = f"{PREFIX}worker-pod-template"
_COUNT = f"{PREFIX}gpu-count"
_SUFFIX = "-tf"
_OF_WORKERS = (
    "tflops-request",
    "tflops-limit",
    "vram-request",
    "vram-limit",
    "compute-percent-request",
    "compute-percent-limit",
    "gpu-count",
    "gpu-indices",
    "gpu-model",
    "gpupool",
    "vendor",
    "qos",
    "isolation",
    "dedicated-gpu",
    "partition",
)
"""The annotations of a client that say what its worker gets."""
_SHARES = tuple(f"{PREFIX}{name}" for name in _OF_WORKERS[:6])
_GROUPING = (
    "gang.scheduling.koordinator.sh",
    "kai.scheduler",
    "kueue.x-k8s.io",
    "pod-group.scheduling.sigs.k8s.io",
    "quota.scheduling.koordinator.sh",
    "scheduling.k8s.io",
    "scheduling.volcano.sh",
    "scheduling.x-k8s.io",
)
"""The domains of the labels and annotations that put pods into gangs and queues."""
_ALSO_GROUPING = ("bayplan.dev/queue", "pod-group-name")
_IMAGE = "tensorfusion/tensor-fusion-worker:latest"
_DEFAULTS = {"cpu": Quantity("1"), "memory": Quantity("1Gi")}
"""What a worker requests if no template says it."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_LATENCY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(us|ms)", re.ASCII)
_SECONDS = {"us": 1e-6, "ms": 1e-3}
_BANDWIDTH = re.compile(r"\d{1,6}(\.\d{1,6})?", re.ASCII)
_MOST_GPUS = 64
_SHOWN = 40
_LONGEST_NAME = 253


class Link(msgspec.Struct, frozen=True):
    """What a client needs of the way to its worker: seconds at most, GB/s at least."""

    max_latency: float = math.inf
    min_bandwidth: float = 0.0


def says_side(pod: Pod) -> bool:
    """Tell whether a pod has what ``side_of`` reads."""
    meta = pod.metadata
    return _LOCAL in meta.annotations or _COMPONENT in meta.labels


def side_of(pod: Pod) -> Side | None:
    """Tell whether a pod uses GPUs over the network or serves some; None for neither."""
    if pod.metadata.annotations.get(_LOCAL) == "false":
        return "client"
    return "worker" if pod.metadata.labels.get(_COMPONENT) == "worker" else None


def workload_of(pod: Pod) -> str:
    """Return the workload of a client or worker; without one a client's name, "" for a worker."""
    meta = pod.metadata
    if side_of(pod) == "worker":
        return meta.labels.get(_WORKLOAD, "")
    stated = meta.annotations.get(_SELECTED) or meta.annotations.get(_WORKLOAD)
    return stated or meta.labels.get(_WORKLOAD, "") or meta.name


def membership_of(pod: Pod) -> Membership | None:
    """Return the gang that a client and its worker are, unless they belong to another one."""
    if side_of(pod) is None or not workload_of(pod):
        return None
    key = f"{pod.metadata.namespace}/{workload_of(pod)}"
    return Membership(key, definition=Gang(key, min_member=2))


# What a client asks for --------------------------------------------------------------------


def client_problem(pod: Pod) -> str | None:
    """Return what is wrong with the annotations of a client, None for nothing."""
    try:
        _check(pod)
        link_of(pod)
        _template_of(pod)
    except ValueError as exc:
        return str(exc)
    return None


def _check(pod: Pod) -> None:
    workload, annotations = workload_of(pod), pod.metadata.annotations
    if not _NAME.fullmatch(workload):
        raise _unexpected(_WORKLOAD, "a name of up to 63 letters, digits, '-', '_', '.'", workload)
    count = annotations.get(_COUNT, "1")
    if not is_index(count) or not 1 <= int(count) <= _MOST_GPUS:
        raise _unexpected(_COUNT, f"a whole number from 1 to {_MOST_GPUS}", count)
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        wanted = {**container.resources.limits, **container.resources.requests}
        found = next((name for name in GPU_RESOURCES if name in wanted), None)
        if found is not None:
            raise ValueError(
                f'annotation {_LOCAL}: expected no {found} beside "false"; '
                f"{_COUNT} says how many GPUs the worker gets"
            )


def link_of(pod: Pod) -> Link:
    """Return what a client needs of the way to its worker.

    :raises ValueError: naming the annotation and what was expected.
    """
    annotations = pod.metadata.annotations
    latency, bandwidth = math.inf, 0.0
    text = annotations.get(MAX_LATENCY)
    if text is not None:
        found = _LATENCY.fullmatch(text)
        latency = float(found[1]) * _SECONDS[found[2]] if found is not None else 0.0
        if not latency:
            raise _unexpected(MAX_LATENCY, "a time above 0 such as 25us or 1.5ms", text)
    text = annotations.get(MIN_BANDWIDTH)
    if text is not None:
        bandwidth = float(text) if _BANDWIDTH.fullmatch(text) else 0.0
        if not bandwidth:
            raise _unexpected(MIN_BANDWIDTH, "a number of GB/s above 0", text)
    return Link(latency, bandwidth)


def _template_of(pod: Pod) -> PodTemplate:
    """Return what a client says of its worker's pod; one container at least."""
    text = pod.metadata.annotations.get(_TEMPLATE)
    template = PodTemplate()
    if text is not None:
        try:
            content = next(parse_yaml(text, ANNOTATION), None)
            template = decode_part(PodTemplate, content if content is not None else {})
        except ValueError as exc:
            expected = "expected a pod template in YAML"
            raise ValueError(f"annotation {_TEMPLATE}: {expected}: {exc}") from None
    for one in (*template.spec.containers, *template.spec.init_containers):
        amounts = (*one.resources.requests.items(), *one.resources.limits.items())
        wrong = next((name for name, quantity in amounts if quantity.units < 0), None)
        if wrong is not None:
            expected = f"expected an amount of {wrong} of 0 or more in container {one.name[:60]}"
            raise ValueError(f"annotation {_TEMPLATE}: {expected}")
    first = Container("worker", _IMAGE, ResourceRequirements(_DEFAULTS))
    containers = template.spec.containers or (first,)
    return replace(template, spec=replace(template.spec, containers=containers))


def _unexpected(name: str, expected: str, text: str) -> ValueError:
    return ValueError(f'annotation {name}: expected {expected}, got "{text[:_SHOWN]}"')


# The worker --------------------------------------------------------------------------------


def worker_of(client: Pod) -> Pod:
    """Return the worker of a client, as TensorFusion's operator makes it.

    It belongs to the client's queue and gang, requests the bandwidth that the client needs of the
    NICs of its node, and whole GPUs where the client asks for no shares.

    :raises ValueError: naming the annotation that cannot be read, and what was expected.
    """
    _check(client)
    template, meta = _template_of(client), client.metadata
    annotations = {
        **template.metadata.annotations,
        **_grouping(meta.annotations),
        **{
            f"{PREFIX}{name}": meta.annotations[f"{PREFIX}{name}"]
            for name in _OF_WORKERS
            if f"{PREFIX}{name}" in meta.annotations
        },
    }
    labels = {
        **template.metadata.labels,
        **_grouping(meta.labels),
        _COMPONENT: "worker",
        _WORKLOAD: workload_of(client),
    }
    owner = OwnerReference("Pod", meta.name, meta.uid, "v1", controller=True)
    name = f"{meta.name[: _LONGEST_NAME - len(_SUFFIX)]}{_SUFFIX}"
    own = ObjectMeta(
        name=name,
        namespace=meta.namespace,
        labels=labels,
        annotations=annotations,
        owner_references=(owner,),
    )
    return Pod(own, _spec_of(client, template.spec))


def _spec_of(client: Pod, spec: PodSpec) -> PodSpec:
    first, *others = spec.containers
    more = {}
    bandwidth = math.ceil(link_of(client).min_bandwidth * 1000)
    if bandwidth:
        more[NIC_BANDWIDTH] = Quantity(bandwidth)
    if not any(name in client.metadata.annotations for name in _SHARES):
        more[GPU_RESOURCES[0]] = Quantity(client.metadata.annotations.get(_COUNT, "1"))
    resources = replace(
        first.resources,
        requests={**first.resources.requests, **more},
        limits={**first.resources.limits, **more},
    )
    return replace(
        spec,
        containers=(replace(first, resources=resources), *others),
        scheduler_name=client.spec.scheduler_name,
        priority=client.spec.priority,
        priority_class_name=client.spec.priority_class_name,
        scheduling_group=client.spec.scheduling_group,
        restart_policy="Never",
    )


def _grouping(texts: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in texts.items()
        if name.partition("/")[0] in _GROUPING or name in _ALSO_GROUPING
    }
