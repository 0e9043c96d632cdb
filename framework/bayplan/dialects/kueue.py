"""Kueue: pod groups, the topology annotations of pod sets, and Topology levels.

Names as in kubernetes-sigs/kueue (apis/kueue/v1beta2). A Job whose pods have a topology annotation
is a gang, as Kueue admits it as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.api import ApiObject, Job, Pod, Topology
from bayplan.api.gang import Fill, Gang, Gather, Membership, Slice
from bayplan.api.kueue import PodSetTopologyRequest, TopologyConstraint
from bayplan.api.meta import ObjectMeta
from bayplan.dialects.reading import is_index
from bayplan.inputs.jsontext import parse_json
from bayplan.inputs.limits import ANNOTATION
from bayplan.topology.network.tree import HOSTNAME, ROOT_LAYER, Layer

__all__ = [
    "ADMISSION_GATE",
    "DEFAULT_QUEUE",
    "GROUP_LABEL",
    "GROUP_MARK",
    "INDEX_LABEL",
    "INDEX_OFFSET",
    "JOB_UID",
    "MANAGED_MARK",
    "MANAGER_LEASE",
    "MANAGER_PODS",
    "MEMBERS_BY",
    "MOST_SLICE_LAYERS",
    "MULTI_CLUSTER_CONTROLLER",
    "NAME",
    "POD_FINALIZER",
    "PREFERRED_TOPOLOGY",
    "PROVISIONING_CONTROLLER",
    "REQUIRED_TOPOLOGY",
    "RETRIABLE",
    "SAFE_TO_DELETE",
    "SET_GROUP",
    "SLICE_LAYERS",
    "SLICE_SIZE",
    "SLICE_TOPOLOGY",
    "SUSPENDING_PARENT",
    "TOTAL_ANNOTATION",
    "UNCONSTRAINED_TOPOLOGY",
    "asks_for_topology",
    "gang_of",
    "gather_of",
    "group_of",
    "is_fast",
    "is_serving",
    "layers_of",
    "membership_of",
    "set_group_of",
    "slices_of",
    "topology_request_of",
    "total_of",
]

NAME = "Kueue"
MANAGER_LEASE = "c1f6bfd2.kueue.x-k8s.io"
"""The name of the Lease by which Kueue's manager leads, in whatever namespace it runs."""
MANAGER_PODS = {"app.kubernetes.io/name": "kueue", "control-plane": "controller-manager"}
"""The labels of its manager's pods, by its manifests and its chart."""
ADMISSION_GATE = "kueue.x-k8s.io/admission"
"""The scheduling gate of pods until their Workload is admitted."""
MANAGED_MARK = ("kueue.x-k8s.io/managed", "true")
"""The label of the pods whose Workloads Kueue's manager keeps."""
POD_FINALIZER = MANAGED_MARK[0]
"""The finalizer of pods that count for their Workload after their end."""
SUSPENDING_PARENT = "kueue.x-k8s.io/pod-suspending-parent"
"""The annotation of pods that wait with an object above them, with the integration of its kind."""
GROUP_MARK = ("kueue.x-k8s.io/is-group-workload", "true")
"""The annotation of Workloads of groups of pods, and its value."""
DEFAULT_QUEUE = "default"
"""The name of the LocalQueue of what names none, where a namespace has it."""
_DOMAIN = "kueue.x-k8s.io/"
JOB_UID = f"{_DOMAIN}job-uid"
"""The label of Workloads with the uid of their job, group or object."""
MULTI_CLUSTER_CONTROLLER = f"{_DOMAIN}multikueue"
"""The controller of checks that send jobs to other clusters; such jobs are managed by it."""
PROVISIONING_CONTROLLER = f"{_DOMAIN}provisioning-request"
"""The controller of checks that ask a cluster autoscaler for nodes."""
GROUP_LABEL = f"{_DOMAIN}pod-group-name"
TOTAL_ANNOTATION = f"{_DOMAIN}pod-group-total-count"
RETRIABLE = f"{_DOMAIN}retriable-in-group"
"""On a pod of a group, "false": none takes its place once it has failed."""
_FAST_ANNOTATION = f"{_DOMAIN}pod-group-fast-admission"
"""On the pods of a group, "true": the first of them says what all of them ask for."""
_SERVING_ANNOTATION = f"{_DOMAIN}pod-group-serving"
"""On the pods of a group, "true": it never ends, as one that ended is replaced."""
INDEX_OFFSET = f"{_DOMAIN}pod-index-offset"
"""On a pod, what its index begins with: others of its group come before those of its template."""
INDEX_LABEL = f"{_DOMAIN}pod-group-pod-index"
REQUIRED_TOPOLOGY = f"{_DOMAIN}podset-required-topology"
PREFERRED_TOPOLOGY = f"{_DOMAIN}podset-preferred-topology"
UNCONSTRAINED_TOPOLOGY = f"{_DOMAIN}podset-unconstrained-topology"
SAFE_TO_DELETE = f"{_DOMAIN}safe-to-forcefully-delete"
"""On a pod, "true": nothing is lost or done twice if it is deleted while its node is silent."""
SLICE_TOPOLOGY = f"{_DOMAIN}podset-slice-required-topology"
SLICE_SIZE = f"{_DOMAIN}podset-slice-size"
SET_GROUP = f"{_DOMAIN}podset-group-name"
SLICE_LAYERS = f"{_DOMAIN}podset-slice-required-topology-constraints"
_TOPOLOGY = (
    REQUIRED_TOPOLOGY,
    PREFERRED_TOPOLOGY,
    UNCONSTRAINED_TOPOLOGY,
    SLICE_TOPOLOGY,
    SLICE_LAYERS,
)
_JOB_LABEL = "batch.kubernetes.io/job-name"
_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
MEMBERS_BY = frozenset((GROUP_LABEL, TOTAL_ANNOTATION, *_TOPOLOGY))
"""The names without any of which, as label or annotation, no pod is in a gang or has a rank."""
MOST_SLICE_LAYERS = 3


def membership_of(pod: Pod) -> Membership | None:
    """Return the pod's group, or its Job if that requests a topology."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    namespace = pod.metadata.namespace
    name = group_of(pod.metadata)
    if name:
        key = f"{namespace}/{name}"
        index = labels.get(INDEX_LABEL, "")
        rank = int(index) if is_index(index) else None
        total = total_of(pod.metadata)
        if total is None:
            text = annotations.get(TOTAL_ANNOTATION, "")
            problem = f'annotation {TOTAL_ANNOTATION}: expected 1 or more, got "{text[:40]}"'
            return Membership(key, rank, problem=problem)
        # Its pods may come one after the other, each once the one before is ready.
        least = 1 if is_fast(pod.metadata) else total
        return Membership(key, rank, definition=_gang(key, least, annotations))
    if annotations.get(TOTAL_ANNOTATION):
        beside = f"expected {GROUP_LABEL} beside it"
        return Membership(None, problem=f"annotation {TOTAL_ANNOTATION}: {beside}")
    # The Jobs of a JobSet are one gang, whose roles lie where their templates ask for.
    if asks_for_topology(annotations) and _JOBSET_LABEL not in labels and (job := _job_of(pod)):
        return Membership(f"{namespace}/{job}")
    return None


def group_of(metadata: ObjectMeta) -> str:
    """Return the name of a pod's group, "" without one; the annotation comes before the label."""
    return metadata.annotations.get(GROUP_LABEL) or metadata.labels.get(GROUP_LABEL, "")


def total_of(metadata: ObjectMeta) -> int | None:
    """Return how many pods the group of a pod has, None if the pod does not say."""
    text = metadata.annotations.get(TOTAL_ANNOTATION, "")
    return int(text) if is_index(text) and int(text) else None


def is_fast(metadata: ObjectMeta) -> bool:
    """Tell whether the first pod of a pod's group says what all of them ask for."""
    return metadata.annotations.get(_FAST_ANNOTATION) == "true"


def is_serving(metadata: ObjectMeta) -> bool:
    """Tell whether a pod's group never ends."""
    return metadata.annotations.get(_SERVING_ANNOTATION) == "true"


def _job_of(pod: Pod) -> str:
    """Return the name of the Job that controls a pod, or else that its label names."""
    owner = next((one for one in pod.metadata.owner_references if one.controller), None)
    if owner is not None and owner.kind == "Job" and owner.api_version == "batch/v1":
        return owner.name
    return pod.metadata.labels.get(_JOB_LABEL, "")


def asks_for_topology(annotations: Mapping[str, str]) -> bool:
    """Tell whether the pods of a template with these annotations ask for a topology."""
    return any(key in annotations for key in _TOPOLOGY)


def gang_of(obj: ApiObject) -> Gang | None:
    """Return the gang of a Job whose pods request a topology."""
    if not isinstance(obj, Job):
        return None
    annotations = obj.spec.template.metadata.annotations
    if not any(key in annotations for key in _TOPOLOGY):
        return None
    count = obj.spec.parallelism
    if obj.spec.completions is not None:
        count = min(count, obj.spec.completions)
    key = f"{obj.metadata.namespace}/{obj.metadata.name}"
    return _gang(key, max(1, count), annotations)


def _gang(key: str, count: int, annotations: Mapping[str, str]) -> Gang:
    try:
        gather, fill = gather_of(annotations)
        slices = slices_of(annotations)
    except ValueError as exc:
        return Gang(key, count, problem=str(exc))
    for one in slices:
        if count % one.size:
            problem = f"{count} pods are not whole slices of {one.size} at {one.layer}"
            return Gang(key, count, problem=problem)
    return Gang(
        key,
        count,
        gather,
        slices,
        fill=fill,
        domain_order="LeastFree",
        match_policy="until-all-end",
    )


def gather_of(annotations: Mapping[str, str]) -> tuple[tuple[Gather, ...], Fill | None]:
    """Return the domains that annotations ask for, and how these are filled.

    :raises ValueError: for annotations that exclude each other.
    """
    given = [
        key
        for key in (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, UNCONSTRAINED_TOPOLOGY)
        if annotations.get(key)
    ]
    if len(given) > 1:
        raise ValueError(f"annotations {' and '.join(given)} exclude each other")
    if not given:
        return (Gather(ROOT_LAYER, required=False),) if _has_slices(annotations) else (), None
    value = annotations[given[0]]
    if given[0] == REQUIRED_TOPOLOGY:
        return (Gather(value, required=True),), None
    if given[0] == PREFERRED_TOPOLOGY:
        return (Gather(value, required=False, climb=True),), None
    if value != "true":
        raise ValueError(
            f'annotation {UNCONSTRAINED_TOPOLOGY}: expected "true", got "{value[:40]}"'
        )
    return (Gather(ROOT_LAYER, required=False),), "LeastFree"


def _has_slices(annotations: Mapping[str, str]) -> bool:
    return bool(annotations.get(SLICE_TOPOLOGY) or annotations.get(SLICE_LAYERS))


def set_group_of(annotations: Mapping[str, str]) -> str:
    """Return the name of the pod sets that share a domain with a template's, "" for none."""
    return annotations.get(SET_GROUP, "")


def slices_of(annotations: Mapping[str, str]) -> tuple[Slice, ...]:
    """Return the slices that annotations ask for.

    :raises ValueError: for a level without a size, and layers that cannot be read.
    """
    text = annotations.get(SLICE_LAYERS)
    if text:
        return _slice_layers(text)
    level, size = annotations.get(SLICE_TOPOLOGY), annotations.get(SLICE_SIZE)
    if not level and not size:
        return ()
    if not level or not size or not is_index(size) or int(size) < 1:
        raise ValueError(
            f"annotations {SLICE_TOPOLOGY} and {SLICE_SIZE} belong together: "
            f'expected a level and a size of 1 or more, got "{level or ""}" and "{size or ""}"'
        )
    return (Slice(level, int(size)),)


def _slice_layers(text: str) -> tuple[Slice, ...]:
    expected = f'annotation {SLICE_LAYERS}: expected [{{"topology": ..., "size": ...}}]'
    try:
        layers = parse_json(text, ANNOTATION)
    except ValueError as exc:
        raise ValueError(f"{expected}: {exc}") from None
    if not isinstance(layers, list) or not 1 <= len(layers) <= MOST_SLICE_LAYERS:
        raise ValueError(f"{expected}, 1 to {MOST_SLICE_LAYERS} of them")
    found: list[Slice] = []
    for layer in layers:
        level = layer.get("topology") if isinstance(layer, dict) else None
        size = layer.get("size") if isinstance(layer, dict) else None
        if not isinstance(level, str) or type(size) is not int or size < 1:
            raise ValueError(expected)
        if found and found[-1].size % size:
            raise ValueError(f"annotation {SLICE_LAYERS}: {size} does not divide {found[-1].size}")
        found.append(Slice(level, size))
    return tuple(found)


def topology_request_of(
    annotations: Mapping[str, str], index: str = "", part: tuple[str, int] | None = None
) -> PodSetTopologyRequest | None:
    """Return what a pod template's annotations ask for, as a Workload says it; None for nothing.

    :param index: the label of pods that has their number among those of the template.
    :param part: the label that tells equal parts of them, and the number of these.
    :raises ValueError: for layers of slices that are none.
    """
    levels = {
        name: annotations.get(name, "")
        for name in (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, UNCONSTRAINED_TOPOLOGY)
    }
    required, preferred = (
        levels[REQUIRED_TOPOLOGY],
        "" if levels[REQUIRED_TOPOLOGY] else levels[PREFERRED_TOPOLOGY],
    )
    constrained = bool(required or preferred)
    text, size = annotations.get(SLICE_LAYERS), annotations.get(SLICE_SIZE, "")
    level = annotations.get(SLICE_TOPOLOGY, "") if is_index(size) else ""
    layers = _slice_layers(text) if text is not None else ()
    request = PodSetTopologyRequest(
        required=required,
        preferred=preferred,
        unconstrained=not constrained and levels[UNCONSTRAINED_TOPOLOGY] == "true",
        pod_index_label=index,
        pod_set_group_name=annotations.get(SET_GROUP, "") if constrained else "",
        pod_set_slice_required_topology=level,
        pod_set_slice_size=int(size) if level else None,
        sub_group_index_label=part[0] if part is not None else "",
        sub_group_count=part[1] if part is not None else None,
        slices=tuple(TopologyConstraint(one.layer, one.size) for one in layers),
    )
    return request if request != PodSetTopologyRequest() else None


def layers_of(topology: Topology) -> tuple[Layer, ...]:
    """Return the levels of a Topology, the outermost first, as layers named by their label."""
    labels = [level.node_label for level in topology.spec.levels]
    return tuple(Layer(label, (label,)) for label in labels if label != HOSTNAME)
