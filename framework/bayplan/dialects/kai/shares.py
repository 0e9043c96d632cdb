"""KAI's shares of GPUs: what pods ask for, how big the GPUs of a node are, who shares a GPU.

Pods that share a GPU are a group, which a label names. A *reservation pod* holds the GPU for them
all: it requests one GPU of the device plugin and learns which one it got. Names as in
kai-scheduler/KAI-Scheduler (api/constants, pkg/binder).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bayplan.api import Pod, Quantity
from bayplan.api.configmap import ConfigMap
from bayplan.api.meta import ObjectMeta, OwnerReference
from bayplan.api.pod import Container, PodSpec, ResourceRequirements
from bayplan.dialects.reading import is_index

__all__ = [
    "ASKING_ANNOTATIONS",
    "GPU",
    "GROUP_LABEL",
    "INDEX_ANNOTATION",
    "MEMORY_LABEL",
    "MIG_LABEL",
    "MIG_PREFIX",
    "RESERVATIONS",
    "SHARE_ANNOTATIONS",
    "GpuShareRequest",
    "config_maps",
    "gpu_memory_of",
    "gpu_share_of",
    "group_labels",
    "groups_of",
    "is_reservation",
    "mig_gpus",
    "old_group_labels",
    "received",
    "reservation_fields",
    "reservation_pod",
    "reserved_index",
]

GPU = "nvidia.com/gpu"
GROUP_LABEL = "runai-gpu-group"
"""The label of a pod, and of a reservation pod, that names the group that shares a GPU."""
MIG_LABEL = "node-role.kubernetes.io/runai-mig-enabled"
"""The label that says whether the GPUs of a node are divided by MIG."""
MIG_PREFIX = "nvidia.com/mig-"
"""What the resources of MIG's partitions begin with."""
MEMORY_LABEL = "nvidia.com/gpu.memory"
"""The label of a node with the memory of each of its GPUs, in MiB."""
RESERVATIONS = "kai-resource-reservation"
"""The namespace of the reservation pods."""
INDEX_ANNOTATION = "run.ai/reserve_for_gpu_index"
"""What a reservation pod says of the GPU that it got: its index."""
RECEIVED_ANNOTATION = "received-resource-type"
CONFIG_MAP_ANNOTATION = "runai/shared-gpu-configmap"

_FRACTION, _MEMORY = "gpu-fraction", "gpu-memory"
_DEVICES, _CONTAINER, _MPS = "gpu-fraction-num-devices", "gpu-fraction-container-name", "mps"
_GROUPS = f"{GROUP_LABEL}/"
ASKING_ANNOTATIONS = (_FRACTION, _MEMORY)
"""The annotations of pods that say how much of a GPU they ask for."""
SHARE_ANNOTATIONS = (_FRACTION, _MEMORY, _DEVICES, _CONTAINER, _MPS)
"""All annotations of pods about shares."""
_PREFIX = "gpu-reservation"
_UNKNOWN_MEMORY = 100
"""MiB that KAI assumes for the GPUs of a node whose label says nothing."""
_GRAIN = 100
"""MiB: the memory of a GPU is rounded down to a multiple of this."""
_BYTES = 1 << 20
_DECIMAL = re.compile(r"\+?(\d{1,12}(\.\d{0,18})?|\.\d{1,18})([eE][+-]?\d{1,2})?", re.ASCII)
_INTEGER = re.compile(r"\d{1,12}", re.ASCII)
_MIG = re.compile(r"nvidia\.com/mig-(\d{1,2})g\.\d{1,5}gb(\.[a-z0-9.]{1,20})?", re.ASCII)
_SHOWN = 40
_MOST_DEVICES = 1024
_MOST_GROUPS = 64


class GpuShareRequest(msgspec.Struct, frozen=True):
    """What a pod asks for of each of its ``devices`` GPUs: a ``fraction``, or MiB of ``memory``.

    The other of the two is 0. ``container`` is the one that uses the GPUs; init containers count
    first.
    """

    fraction: float = 0.0
    memory: int = 0
    devices: int = 1
    container: int = 0

    def memory_of(self, gpu: int) -> int:
        """Return the MiB that it takes of a GPU of so many MiB (KAI: GetResourceGpuMemory)."""
        return self.memory or int(self.fraction * gpu)

    def part_of(self, gpu: int) -> float:
        """Return the part of a GPU of so many MiB that it counts as.

        Memory counts in hundredths, rounded up (KAI: getGpuMemoryFractionalOnNode).
        """
        return math.ceil(100 * self.memory / gpu) / 100 if self.memory else self.fraction


def gpu_share_of(pod: Pod) -> GpuShareRequest | str | None:
    """Return what a pod's annotations ask for; None without any; a text says what is wrong."""
    annotations = pod.metadata.annotations
    fraction, memory = annotations.get(_FRACTION), annotations.get(_MEMORY)
    if fraction is None and memory is None:
        for name, condition in ((_MPS, annotations.get(_MPS) == "true"), (_DEVICES, True)):
            if condition and name in annotations:
                return f"annotation {name}: expected {_FRACTION} or {_MEMORY} beside it"
        return None
    if fraction is not None and memory is not None:
        return f"annotations {_FRACTION} and {_MEMORY}: expected one of them"
    name = _FRACTION if fraction is not None else _MEMORY
    if annotations.get(_MPS, "false") not in ("true", "false"):
        return str(_unexpected(_MPS, '"true" or "false"', annotations[_MPS]))
    if any(GPU in one.resources.limits for one in _containers(pod)):
        return f"annotation {name}: expected no limit of {GPU} in a pod that shares GPUs"
    try:
        return _read(annotations, pod)
    except ValueError as exc:
        return str(exc)


def _read(annotations: Mapping[str, str], pod: Pod) -> GpuShareRequest:
    fraction, memory = 0.0, 0
    if _FRACTION in annotations:
        text = annotations[_FRACTION]
        fraction = float(text) if len(text) < _SHOWN and _DECIMAL.fullmatch(text) else 0.0
        if not 0 < fraction < 1:
            raise _unexpected(_FRACTION, "a number above 0 and below 1", text)
    else:
        text = annotations[_MEMORY]
        memory = int(text) if _INTEGER.fullmatch(text) else 0
        if not memory:
            raise _unexpected(_MEMORY, "a whole number of MiB, above 0", text)
    text = annotations.get(_DEVICES, "1")
    devices = int(text) if _INTEGER.fullmatch(text) else 0
    if not 1 <= devices <= _MOST_DEVICES:
        raise _unexpected(_DEVICES, f"a whole number from 1 to {_MOST_DEVICES}", text)
    return GpuShareRequest(fraction, memory, devices, _container(annotations, pod))


def _container(annotations: Mapping[str, str], pod: Pod) -> int:
    """Return the container that uses the GPUs: the one that is named, else the first."""
    name = annotations.get(_CONTAINER)
    if name is None:
        return len(pod.spec.init_containers)
    names = [one.name for one in _containers(pod)]
    if name not in names:
        raise _unexpected(_CONTAINER, f"the name of a container ({', '.join(names[:5])})", name)
    return names.index(name)


def _containers(pod: Pod) -> Sequence[Container]:
    return (*pod.spec.init_containers, *pod.spec.containers)


def _unexpected(name: str, expected: str, text: str) -> ValueError:
    return ValueError(f'annotation {name}: expected {expected}, got "{text[:_SHOWN]}"')


# Nodes -------------------------------------------------------------------------------------


def gpu_memory_of(labels: Mapping[str, str]) -> int:
    """Return the MiB of each GPU of a node by its labels, rounded down to a multiple of 100.

    A label of 1 TiB or more is in bytes (an old fault of the feature discovery). 100 MiB without a
    label that can be read, as KAI assumes, so that fractions work there all the same.
    """
    text = labels.get(MEMORY_LABEL, "")
    memory = int(text) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else 0
    if memory >= _BYTES:
        memory //= _BYTES
    return memory - memory % _GRAIN or _UNKNOWN_MEMORY


def mig_gpus(resource: str) -> int:
    """Return how many GPUs a partition of MIG counts as in queues: its compute slices.

    That is KAI's count, ``nvidia.com/mig-2g.10gb`` is 2; 0 for any other resource.
    """
    found = _MIG.fullmatch(resource)
    return int(found[1]) if found is not None else 0


# Groups ------------------------------------------------------------------------------------


def groups_of(pod: Pod) -> tuple[str, ...]:
    """Return the groups of a pod by its labels, in the order of their names."""
    labels = pod.metadata.labels
    found = {text for name, text in labels.items() if name == GROUP_LABEL and text}
    found |= {text for name, text in labels.items() if name.startswith(_GROUPS) and text}
    return tuple(sorted(found))[:_MOST_GROUPS]


def group_labels(request: GpuShareRequest, groups: Sequence[str]) -> dict[str, str]:
    """Return the labels that put a pod into groups."""
    if request.devices > 1:
        return {f"{_GROUPS}{group}": group for group in groups}
    return dict.fromkeys((GROUP_LABEL,), groups[0])


def old_group_labels(pod: Pod) -> tuple[str, ...]:
    """Return the names of the labels that put a pod into groups."""
    labels = pod.metadata.labels
    return tuple(name for name in labels if name == GROUP_LABEL or name.startswith(_GROUPS))


# Reservation pods --------------------------------------------------------------------------


def is_reservation(pod: Pod) -> bool:
    """Tell whether a pod holds a GPU for those that share it."""
    meta = pod.metadata
    return meta.namespace == RESERVATIONS and bool(meta.labels.get(GROUP_LABEL))


def reserved_index(pod: Pod) -> int | str | None:
    """Return the index of the GPU that a reservation pod got; None before; a text is wrong."""
    text = pod.metadata.annotations.get(INDEX_ANNOTATION)
    if not text:
        return None
    return int(text) if is_index(text) else str(_unexpected(INDEX_ANNOTATION, "an index", text))


def reservation_fields() -> dict[str, Any]:
    """Return the fields of a reservation pod that bayplan's types do not hold, by JSON pointer."""
    env = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in (("POD_NAME", "metadata.name"), ("POD_NAMESPACE", "metadata.namespace"))
    ]
    return {
        "/spec/serviceAccountName": RESERVATIONS,
        "/spec/containers/0/imagePullPolicy": "IfNotPresent",
        "/spec/containers/0/env": env,
    }


def reservation_pod(node: str, group: str, source: Pod, image: str = "") -> Pod:
    """Return the pod that holds a GPU of a node for a group, as KAI's binder makes it.

    :param source: the first pod of the group, whose tolerations it needs, too.
    """
    code = hashlib.sha256(f"{node}/{group}".encode()).hexdigest()[:16]
    one = {GPU: Quantity("1")}
    return Pod(
        ObjectMeta(
            name=f"{_PREFIX}-{code}",
            namespace=RESERVATIONS,
            labels={"app": RESERVATIONS, GROUP_LABEL: group},
            annotations={"karpenter.sh/do-not-disrupt": "true"},
        ),
        PodSpec(
            containers=(
                Container(
                    name="resource-reservation",
                    image=image,
                    resources=ResourceRequirements(requests=one, limits=one),
                ),
            ),
            node_name=node,
            tolerations=source.spec.tolerations,
            termination_grace_period_seconds=0,
        ),
    )


# What a bound pod learns --------------------------------------------------------------------


def received(pod: Pod) -> dict[str, str]:
    """Return the annotations of a pod that got its share."""
    return {RECEIVED_ANNOTATION: "Fraction", CONFIG_MAP_ANNOTATION: _config_map_prefix(pod)}


def _config_map_prefix(pod: Pod) -> str:
    """Return the beginning of the names of the pod's ConfigMaps: what KAI's webhook wrote, if any.

    Else it is made from the name of the pod's owner and from its uid, in KAI's form, short enough
    for the name of a volume.
    """
    known = pod.metadata.annotations.get(CONFIG_MAP_ANNOTATION)
    if known and re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,240}[a-z0-9])?", known, re.ASCII):
        return known
    owners = pod.metadata.owner_references
    base = (owners[0].name if owners else pod.metadata.name)[:32].rstrip(".-")
    code = hashlib.sha256(f"{pod.key}/{pod.metadata.uid}".encode()).hexdigest()[:7]
    return f"{base}-{code}-shared-gpu"


def config_maps(
    pod: Pod, request: GpuShareRequest, part: float, gpus: Sequence[int]
) -> tuple[ConfigMap, ...]:
    """Return the ConfigMaps from which the container takes its environment.

    :param part: the part of each GPU that the pod got.
    :param gpus: the indices of its GPUs.
    """
    inits = len(pod.spec.init_containers)
    index = request.container
    place = f"i{index}" if index < inits else str(index - inits)
    name = f"{_config_map_prefix(pod)}-{place}"
    visible = {"NVIDIA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
    portion = f"{part:.2f}"
    shared = {**visible, "RUNAI_NUM_OF_GPUS": portion, "GPU_PORTION": portion}
    owner = OwnerReference(
        api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid
    )

    def made(name: str, data: dict[str, str]) -> ConfigMap:
        meta = ObjectMeta(name=name, namespace=pod.metadata.namespace, owner_references=(owner,))
        return ConfigMap(meta, data)

    return made(name, shared), made(f"{name}-evar", visible)
