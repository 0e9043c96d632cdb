"""The kinds that bayplan reads, and the decoding of plain mappings and JSON into typed objects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias, TypeVar

import msgspec
import msgspec.inspect

from bayplan.api.autoscaling import HorizontalPodAutoscaler
from bayplan.api.colocation import ClusterColocationProfile
from bayplan.api.configmap import ConfigMap
from bayplan.api.dra import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from bayplan.api.dra_versions import as_v1
from bayplan.api.elastic_quota import ElasticQuota, ElasticQuotaProfile
from bayplan.api.jobset import JobSet
from bayplan.api.koordinator_device import KoordinatorDevice
from bayplan.api.kubeflow import PyTorchJob
from bayplan.api.kueue import (
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    KueueWorkload,
    LocalQueue,
    MultiKueueCluster,
    MultiKueueConfig,
    ProvisioningRequestConfig,
    ResourceFlavor,
    WorkloadPriorityClass,
)
from bayplan.api.kueue_versions import as_v1beta2
from bayplan.api.lease import Lease
from bayplan.api.load import NodeMetric, NodeMetrics, WatchedLoad
from bayplan.api.network import ClusterNetworkTopology, HyperNode, KaiTopology, Topology
from bayplan.api.node import Node
from bayplan.api.numa import NodeResourceTopology
from bayplan.api.operated import (
    AppWrapper,
    ClusterTrainingRuntime,
    DisaggregatedSet,
    JAXJob,
    KnativeService,
    LeaderWorkerSet,
    MPIJob,
    OperatedObject,
    PaddleJob,
    PodClique,
    PodCliqueScalingGroup,
    PodCliqueSet,
    PodGang,
    RayService,
    SparkApplication,
    TFJob,
    TrainingRuntime,
    TrainJob,
    Workflow,
    XGBoostJob,
)
from bayplan.api.pod import Pod
from bayplan.api.podgroup import (
    CompositePodGroup,
    KaiPodGroup,
    NativePodGroup,
    PodGroup,
    SchedulerPluginsPodGroup,
    VolcanoPodGroup,
    Workload,
)
from bayplan.api.policy import (
    Namespace,
    PodDisruptionBudget,
    PriorityClass,
    ResourceQuota,
    Service,
)
from bayplan.api.pools import AiComputePool, AiElasticJob, ComputePool, ElasticJob
from bayplan.api.provisioning import ProvisioningRequest
from bayplan.api.quantity import Quantity, is_quantity
from bayplan.api.queue_objects import KaiQueue, VolcanoQueue
from bayplan.api.ray import RayCluster, RayJob
from bayplan.api.reservation import Reservation
from bayplan.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from bayplan.api.tensor_fusion import TensorFusionGpu
from bayplan.api.validation import validate
from bayplan.api.workloads import (
    ControllerRevision,
    DaemonSet,
    Deployment,
    Job,
    ReplicaSet,
    StatefulSet,
    StoredPodTemplate,
    VolcanoCommand,
    VolcanoJob,
)

__all__ = [
    "KINDS",
    "ApiObject",
    "DecodeError",
    "Kind",
    "add_kind",
    "decode_json",
    "decode_object",
    "decode_part",
    "decode_text",
    "is_known",
    "kind_of",
    "only_written",
    "remove_kind",
]

Part = TypeVar("Part")

ApiObject: TypeAlias = (
    Pod
    | Node
    | PodGroup
    | SchedulerPluginsPodGroup
    | VolcanoPodGroup
    | KaiPodGroup
    | NativePodGroup
    | CompositePodGroup
    | Workload
    | ClusterNetworkTopology
    | HyperNode
    | Topology
    | KaiTopology
    | Namespace
    | Service
    | PriorityClass
    | ResourceQuota
    | HorizontalPodAutoscaler
    | PodDisruptionBudget
    | Job
    | ReplicaSet
    | Deployment
    | StatefulSet
    | DaemonSet
    | ControllerRevision
    | StoredPodTemplate
    | VolcanoJob
    | VolcanoCommand
    | JobSet
    | PyTorchJob
    | RayJob
    | RayCluster
    | OperatedObject
    | PodGang
    | ResourceSlice
    | ResourceClaim
    | ResourceClaimTemplate
    | DeviceClass
    | DeviceTaintRule
    | ClusterColocationProfile
    | NodeMetric
    | NodeMetrics
    | WatchedLoad
    | Reservation
    | NodeResourceTopology
    | KoordinatorDevice
    | TensorFusionGpu
    | PersistentVolumeClaim
    | PersistentVolume
    | StorageClass
    | CSINode
    | CSIDriver
    | CSIStorageCapacity
    | VolcanoQueue
    | KaiQueue
    | ElasticQuota
    | ElasticQuotaProfile
    | ClusterQueue
    | Cohort
    | LocalQueue
    | ResourceFlavor
    | KueueWorkload
    | WorkloadPriorityClass
    | AdmissionCheck
    | ProvisioningRequestConfig
    | MultiKueueCluster
    | MultiKueueConfig
    | ProvisioningRequest
    | ConfigMap
    | Lease
    | ComputePool
    | AiComputePool
    | ElasticJob
    | AiElasticJob
)


class Kind(msgspec.Struct, frozen=True):
    """A kind that bayplan reads, with the versions that it can decode.

    ``whole`` says that bayplan knows all its fields, so any unknown field is a mistake.
    ``plural_name`` is its name in API paths, where English does not say it. ``poll_seconds`` is
    how often to list a kind that no server lets anybody watch; 0 for all others.
    """

    group: str
    name: str
    versions: tuple[str, ...]
    type: type[ApiObject]
    namespaced: bool = True
    whole: bool = False
    plural_name: str = ""
    short: tuple[str, ...] = ()
    poll_seconds: float = 0.0

    @property
    def plural(self) -> str:
        """The kind's name in API paths, such as ``nodes`` or ``priorityclasses``."""
        if self.plural_name:
            return self.plural_name
        name = self.name.lower()
        if name.endswith("points"):
            return name
        if name.endswith("y"):
            return f"{name[:-1]}ies"
        return f"{name}es" if name.endswith("s") else f"{name}s"


_DRA = "resource.k8s.io"
_DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")
_KUEUE = "kueue.x-k8s.io"
_KUEUE_VERSIONS = ("v1beta2", "v1beta1")
_STORAGE = "storage.k8s.io"
_KINDS = (
    Kind("", "Pod", ("v1",), Pod, short=("po",)),
    Kind("", "Node", ("v1",), Node, namespaced=False),
    Kind("", "Namespace", ("v1",), Namespace, namespaced=False),
    Kind("", "Service", ("v1",), Service),
    Kind("", "ResourceQuota", ("v1",), ResourceQuota),
    Kind("", "ConfigMap", ("v1",), ConfigMap),
    Kind("coordination.k8s.io", "Lease", ("v1",), Lease),
    Kind("", "PersistentVolumeClaim", ("v1",), PersistentVolumeClaim),
    Kind("", "PersistentVolume", ("v1",), PersistentVolume, namespaced=False),
    Kind(_STORAGE, "StorageClass", ("v1",), StorageClass, namespaced=False),
    Kind(_STORAGE, "CSINode", ("v1",), CSINode, namespaced=False),
    Kind(_STORAGE, "CSIDriver", ("v1",), CSIDriver, namespaced=False),
    Kind(_STORAGE, "CSIStorageCapacity", ("v1",), CSIStorageCapacity),
    Kind("autoscaling", "HorizontalPodAutoscaler", ("v2", "v1"), HorizontalPodAutoscaler),
    Kind("apps", "Deployment", ("v1",), Deployment, short=("deploy",)),
    Kind("apps", "ReplicaSet", ("v1",), ReplicaSet, short=("rs",)),
    Kind("apps", "StatefulSet", ("v1",), StatefulSet, short=("sts",)),
    Kind("apps", "DaemonSet", ("v1",), DaemonSet, short=("ds",)),
    Kind("batch", "Job", ("v1",), Job),
    Kind("batch.volcano.sh", "Job", ("v1alpha1",), VolcanoJob, short=("vj", "vcjob", "vcjobs")),
    Kind("bus.volcano.sh", "Command", ("v1alpha1",), VolcanoCommand),
    Kind("jobset.x-k8s.io", "JobSet", ("v1alpha2",), JobSet),
    Kind("kubeflow.org", "PyTorchJob", ("v1",), PyTorchJob),
    Kind("kubeflow.org", "TFJob", ("v1",), TFJob),
    Kind("kubeflow.org", "XGBoostJob", ("v1",), XGBoostJob),
    Kind("kubeflow.org", "PaddleJob", ("v1",), PaddleJob),
    Kind("scheduler.grove.io", "PodGang", ("v1alpha1",), PodGang),
    Kind("trainer.kubeflow.org", "TrainJob", ("v1alpha1",), TrainJob),
    Kind("trainer.kubeflow.org", "TrainingRuntime", ("v1alpha1",), TrainingRuntime),
    Kind(
        "trainer.kubeflow.org",
        "ClusterTrainingRuntime",
        ("v1alpha1",),
        ClusterTrainingRuntime,
        namespaced=False,
    ),
    Kind("ray.io", "RayService", ("v1",), RayService),
    Kind("kubeflow.org", "JAXJob", ("v1",), JAXJob),
    Kind("kubeflow.org", "MPIJob", ("v2beta1", "v1"), MPIJob),
    Kind("leaderworkerset.x-k8s.io", "LeaderWorkerSet", ("v1",), LeaderWorkerSet, short=("lws",)),
    Kind("disaggregatedset.x-k8s.io", "DisaggregatedSet", ("v1",), DisaggregatedSet),
    Kind("grove.io", "PodCliqueSet", ("v1alpha1",), PodCliqueSet, short=("pcs",)),
    Kind("grove.io", "PodCliqueScalingGroup", ("v1alpha1",), PodCliqueScalingGroup),
    Kind("grove.io", "PodClique", ("v1alpha1",), PodClique),
    Kind(
        "sparkoperator.k8s.io",
        "SparkApplication",
        ("v1beta2",),
        SparkApplication,
        short=("sparkapp",),
    ),
    Kind("workload.codeflare.dev", "AppWrapper", ("v1beta2",), AppWrapper, short=("aw",)),
    Kind("argoproj.io", "Workflow", ("v1alpha1",), Workflow, short=("wf",)),
    Kind("serving.knative.dev", "Service", ("v1",), KnativeService, short=("ksvc", "kservice")),
    Kind("ray.io", "RayJob", ("v1",), RayJob),
    Kind("ray.io", "RayCluster", ("v1",), RayCluster),
    Kind("policy", "PodDisruptionBudget", ("v1",), PodDisruptionBudget),
    Kind("scheduling.k8s.io", "PriorityClass", ("v1",), PriorityClass, namespaced=False),
    Kind("scheduling.sigs.k8s.io", "PodGroup", ("v1alpha1",), PodGroup),
    Kind("scheduling.x-k8s.io", "PodGroup", ("v1alpha1",), SchedulerPluginsPodGroup),
    Kind("scheduling.volcano.sh", "PodGroup", ("v1beta1",), VolcanoPodGroup),
    Kind("scheduling.run.ai", "PodGroup", ("v2alpha2",), KaiPodGroup),
    Kind("scheduling.k8s.io", "PodGroup", ("v1alpha2", "v1alpha3", "v1beta1"), NativePodGroup),
    Kind("scheduling.k8s.io", "CompositePodGroup", ("v1alpha3",), CompositePodGroup),
    Kind("scheduling.k8s.io", "Workload", ("v1alpha2", "v1alpha3", "v1beta1"), Workload),
    Kind("scheduling.volcano.sh", "Queue", ("v1beta1",), VolcanoQueue, namespaced=False),
    Kind("scheduling.run.ai", "Queue", ("v2",), KaiQueue, namespaced=False),
    Kind("scheduling.sigs.k8s.io", "ElasticQuota", ("v1alpha1",), ElasticQuota),
    Kind("quota.koordinator.sh", "ElasticQuotaProfile", ("v1alpha1",), ElasticQuotaProfile),
    Kind("topology.volcano.sh", "HyperNode", ("v1alpha1",), HyperNode, namespaced=False),
    Kind(
        _KUEUE,
        "Topology",
        ("v1beta2", "v1beta1", "v1alpha1"),
        Topology,
        namespaced=False,
    ),
    Kind("bayplan.dev", "ComputePool", ("v1alpha1",), ComputePool, namespaced=False),
    Kind("ai.example.com", "ComputePool", ("v1",), AiComputePool, namespaced=False),
    Kind("bayplan.dev", "ElasticJob", ("v1alpha1",), ElasticJob, short=("ej",)),
    Kind("ai.example.com", "ElasticJob", ("v1",), AiElasticJob),
    Kind(_KUEUE, "ClusterQueue", _KUEUE_VERSIONS, ClusterQueue, namespaced=False),
    Kind(_KUEUE, "Cohort", (*_KUEUE_VERSIONS, "v1alpha1"), Cohort, namespaced=False),
    Kind(_KUEUE, "LocalQueue", _KUEUE_VERSIONS, LocalQueue),
    Kind(_KUEUE, "ResourceFlavor", _KUEUE_VERSIONS, ResourceFlavor, namespaced=False),
    Kind(_KUEUE, "Workload", _KUEUE_VERSIONS, KueueWorkload),
    Kind(_KUEUE, "WorkloadPriorityClass", _KUEUE_VERSIONS, WorkloadPriorityClass, namespaced=False),
    Kind(_KUEUE, "AdmissionCheck", _KUEUE_VERSIONS, AdmissionCheck, namespaced=False),
    Kind(
        _KUEUE,
        "ProvisioningRequestConfig",
        _KUEUE_VERSIONS,
        ProvisioningRequestConfig,
        namespaced=False,
    ),
    Kind(_KUEUE, "MultiKueueCluster", _KUEUE_VERSIONS, MultiKueueCluster, namespaced=False),
    Kind(_KUEUE, "MultiKueueConfig", _KUEUE_VERSIONS, MultiKueueConfig, namespaced=False),
    Kind("autoscaling.x-k8s.io", "ProvisioningRequest", ("v1", "v1beta1"), ProvisioningRequest),
    Kind("kai.scheduler", "Topology", ("v1alpha1",), KaiTopology, namespaced=False),
    Kind(
        "scheduling.koordinator.sh",
        "ClusterNetworkTopology",
        ("v1alpha1",),
        ClusterNetworkTopology,
        namespaced=False,
    ),
    Kind(
        "scheduling.koordinator.sh",
        "Device",
        ("v1alpha1",),
        KoordinatorDevice,
        namespaced=False,
    ),
    Kind("scheduling.koordinator.sh", "Reservation", ("v1alpha1",), Reservation, namespaced=False),
    Kind(
        "config.koordinator.sh",
        "ClusterColocationProfile",
        ("v1alpha1",),
        ClusterColocationProfile,
        namespaced=False,
    ),
    Kind("slo.koordinator.sh", "NodeMetric", ("v1alpha1",), NodeMetric, namespaced=False),
    Kind(
        "metrics.k8s.io",
        "NodeMetrics",
        ("v1beta1",),
        NodeMetrics,
        namespaced=False,
        plural_name="nodes",
        poll_seconds=30.0,
    ),
    Kind("tensor-fusion.ai", "GPU", ("v1",), TensorFusionGpu, namespaced=False),
    Kind(
        "topology.node.k8s.io",
        "NodeResourceTopology",
        ("v1alpha2", "v1alpha1"),
        NodeResourceTopology,
        namespaced=False,
    ),
    Kind(_DRA, "ResourceSlice", _DRA_VERSIONS, ResourceSlice, namespaced=False, whole=True),
    Kind(_DRA, "DeviceClass", _DRA_VERSIONS, DeviceClass, namespaced=False, whole=True),
    Kind(_DRA, "ResourceClaim", _DRA_VERSIONS, ResourceClaim, whole=True),
    Kind(_DRA, "ResourceClaimTemplate", _DRA_VERSIONS, ResourceClaimTemplate, whole=True),
    Kind(
        _DRA,
        "DeviceTaintRule",
        ("v1beta2", "v1alpha3"),
        DeviceTaintRule,
        namespaced=False,
        whole=True,
    ),
)
WATCHED_LOADS = Kind(
    "load-watcher",
    "WatchedLoad",
    ("v1",),
    WatchedLoad,
    namespaced=False,
    poll_seconds=30.0,
)
"""What a program beside the API server knows; followed where a profile names one."""
KINDS: dict[tuple[str, str], Kind] = {(kind.group, kind.name): kind for kind in _KINDS}
_WRITTEN = (
    Kind("apps", "ControllerRevision", ("v1",), ControllerRevision),
    Kind("", "PodTemplate", ("v1",), StoredPodTemplate),
)
"""Kinds that bayplan only writes; in manifests they are ignored."""
_BY_TYPE = {kind.type: kind for kind in (*_KINDS, *_WRITTEN, WATCHED_LOADS)}


def add_kind(kind: Kind) -> None:
    """Let bayplan read one more kind, whose type is its own.

    :raises ValueError: if it is known already.
    """
    if (kind.group, kind.name) in KINDS:
        raise ValueError(f"bayplan knows the kind {kind.name} of {kind.group} already")
    KINDS[kind.group, kind.name] = kind
    _BY_TYPE[kind.type] = kind


def remove_kind(kind: Kind) -> None:
    """Forget a kind that was added."""
    del KINDS[kind.group, kind.name], _BY_TYPE[kind.type]


class DecodeError(ValueError):
    """An object has a wrong type or value; ``path`` is the JSON path to it.

    :param more: what else is wrong: pairs of a path and a message.
    """

    def __init__(self, message: str, path: str, more: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(f"{path}: {message}")
        self.message = message
        self.path = path
        self.problems = [(path, message), *more]


def kind_of(obj: ApiObject) -> Kind:
    """Return the kind of an object."""
    return _BY_TYPE[type(obj)]


def only_written(type_: type[ApiObject]) -> Kind | None:
    """Return the kind of a type that bayplan writes and never reads; None for any other."""
    return next((kind for kind in _WRITTEN if kind.type is type_), None)


def is_known(obj: ApiObject) -> bool:
    """Tell whether an object is of a kind that bayplan reads or writes."""
    return type(obj) in _BY_TYPE


def decode_object(kind: Kind, content: dict[str, Any]) -> ApiObject:
    """Decode a parsed manifest into a typed object.

    ``null`` means absent; a missing namespace is ``default``.

    :raises DecodeError: for a wrong type or a value that the API server would refuse.
    """
    return _complete(kind, _converted(kind, content))


def decode_text(kind: Kind, version: str, content: bytes | msgspec.Raw) -> ApiObject:
    """Decode JSON that an API server wrote, as in a snapshot, into a typed object.

    Unknown fields are ignored. The values of pods and claims are not checked, because the API
    server has checked them.

    :raises DecodeError: for a wrong type, or a value that the API server would refuse.
    """
    if _is_current(kind, version):
        try:
            return _complete(kind, _decoder(kind.type).decode(content), checked=True)
        except msgspec.DecodeError:
            # It may only be a null; the slow path handles nulls, and locates errors.
            pass
    return decode_object(kind, msgspec.json.decode(content))


def _converted(kind: Kind, content: dict[str, Any]) -> ApiObject:
    version = str(content.get("apiVersion", "")).rpartition("/")[2]
    if kind.group != _DRA and _is_current(kind, version):
        try:
            return msgspec.convert(content, kind.type, dec_hook=_quantity)
        except msgspec.ValidationError:
            # It may only be a null; few objects have one, so only these are copied without.
            pass
    content = _without_nulls(content)
    content = _current(kind, version, content)
    try:
        return msgspec.convert(content, kind.type, dec_hook=_quantity)
    except msgspec.ValidationError as exc:
        raise _decode_error(str(exc), content, kind.type) from None


def _is_current(kind: Kind, version: str) -> bool:
    """Tell whether a version has the shape of the kind's type."""
    if kind.group == _DRA:
        return version == "v1"
    return kind.group != _KUEUE or version not in ("v1beta1", "v1alpha1")


def _current(kind: Kind, version: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return content of any of the kind's versions in the shape of its type."""
    if kind.group == _DRA:
        return as_v1(version, content)
    return as_v1beta2(kind.name, version, content) if kind.group == _KUEUE else content


def _complete(kind: Kind, obj: ApiObject, checked: bool = False) -> ApiObject:
    """Set a missing namespace, and check the object unless an API server has."""
    if kind.namespaced and not obj.metadata.namespace:
        metadata = msgspec.structs.replace(obj.metadata, namespace="default")
        obj = msgspec.structs.replace(obj, metadata=metadata)
    if checked:
        return _checked(kind, obj)
    found = list(validate(obj))
    if found:
        path, message = found[0]
        raise DecodeError(message, path, found[1:])
    return obj


def decode_json(kind: Kind, version: str, content: bytes) -> ApiObject:
    """Decode JSON as an API server sends it, in one of the kind's versions, into a typed object.

    Unknown fields are ignored, because a newer API server may have more fields.

    :raises DecodeError: for a wrong type or value.
    """
    if _is_current(kind, version):
        try:
            return _checked(kind, _decoder(kind.type).decode(content))
        except msgspec.ValidationError:
            # It may only be a null; the slow path handles nulls, and locates errors.
            pass
    try:
        plain = msgspec.json.decode(content)
    except msgspec.DecodeError as exc:
        raise DecodeError(f"is not JSON: {exc}", "$") from None
    if not isinstance(plain, dict):
        raise DecodeError("expected a mapping", "$")
    plain = _without_nulls(plain)
    plain = _current(kind, version, plain)
    try:
        return _checked(kind, msgspec.convert(plain, kind.type, dec_hook=_quantity))
    except msgspec.ValidationError as exc:
        raise _decode_error(str(exc), plain, kind.type) from None


@cache
def _decoder(type_: type[ApiObject]) -> msgspec.json.Decoder[ApiObject]:
    return msgspec.json.Decoder(type_, dec_hook=_quantity)


def _checked(kind: Kind, obj: ApiObject) -> ApiObject:
    # The API server has checked pods and claims, the most frequent kinds; CRDs check less.
    if kind.type not in (Pod, ResourceClaim):
        for path, message in validate(obj):
            raise DecodeError(message, path)
    return obj


def decode_part(type_: type[Part], content: dict[str, Any]) -> Part:
    """Decode a parsed mapping into any API struct, such as a node affinity in a profile.

    :raises DecodeError: for a wrong type.
    """
    try:
        return msgspec.convert(_without_nulls(content), type_, dec_hook=_quantity)
    except msgspec.ValidationError as exc:
        raise _decode_error(str(exc), content, type_) from None


def _quantity(type_: type[Any], value: Any) -> Any:
    if type_ is Quantity and isinstance(value, (str, int, float)):
        return Quantity(value)
    got = {"dict": "a mapping", "list": "a list"}.get(type(value).__name__, type(value).__name__)
    raise ValueError(f"expected a {type_.__name__.lower()}, got {got}")


def _without_nulls(value: Any) -> Any:
    """Return a copy without nulls.

    :raises DecodeError: for a key that is not text, an integer beyond 64 bits, endless nesting, or
        more values than an object can have (a few lines of YAML aliases can stand for billions).
    """
    return _Cleaner().clean(value, "$", 0)


class _Cleaner:
    """Copies one object without nulls, and counts its values."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def clean(self, value: Any, path: str, depth: int) -> Any:
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            what = "nested too deeply, or containing itself" if depth > _DEEPEST else "too large"
            raise DecodeError(what, path[:100])
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise DecodeError(f"expected keys that are text, got {_shown(key)}", path)
            return {
                key: self.clean(item, f"{path}.{key}", depth + 1)
                for key, item in value.items()
                if item is not None
            }
        if isinstance(value, list):
            return [self.clean(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise DecodeError(f"{_shown(value)} does not fit into 64 bits", path)
        return value


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


_SUFFIX = re.compile(r"(?P<message>.*?)(?: - at `(?P<key>key in )?(?P<path>\$[^`]*)`)?", re.DOTALL)
_NAMES = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "object": "a mapping",
    "str": "a string",
}
_DEEPEST = 60
_MOST_VALUES = 200_000


def _decode_error(text: str, content: dict[str, Any], type_: type[Any]) -> DecodeError:
    match = _SUFFIX.fullmatch(text)
    assert match is not None
    path = _full_path(match["path"] or "$", content)
    message = re.sub(
        r"Expected `([^`]+)`, got `([^`]+)`",
        lambda m: (
            f"expected {_plain(m[1])}, got {_plain(m[2]).replace('true or false', 'a boolean')}"
        ),
        match["message"],
    )
    missing = re.fullmatch(r"Object missing required field `([^`]+)`", message)
    if missing:
        message = f'the required field "{missing[1]}" is missing'
    wrong = re.fullmatch(r"Invalid enum value '?(.*?)'?", message)
    if wrong:
        allowed = ", ".join(_allowed_at(path, type_))
        message = f'"{wrong[1]}" is not one of the allowed values ({allowed})'
    return DecodeError(message, path)


def _allowed_at(path: str, type_: type[Any]) -> list[str]:
    """Return the values of the enumeration at a JSON path."""
    node: msgspec.inspect.Type = msgspec.inspect.type_info(type_)
    for name, _ in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
        node = _present(node)
        if isinstance(node, msgspec.inspect.StructType):
            node = next(field.type for field in node.fields if field.encode_name == name)
        elif isinstance(node, msgspec.inspect.VarTupleType):
            node = node.item_type
    node = _present(node)
    values = node.values if isinstance(node, msgspec.inspect.LiteralType) else ()
    return [str(value) for value in values if value]


def _present(node: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Return a type without its null alternative."""
    if isinstance(node, msgspec.inspect.UnionType):
        return next(t for t in node.types if not isinstance(t, msgspec.inspect.NoneType))
    return node


_AMOUNTS = ("requests", "limits", "capacity", "allocatable", "overhead", "resources")


def _full_path(path: str, content: Any) -> str:
    """Replace ``[...]``, msgspec's placeholder for a mapping's key, with the faulty key."""
    head, hidden, tail = path.partition("[...]")
    if not hidden:
        return path
    for step in re.findall(r"\.([^.\[]+)|\[(\d+)\]", head):
        content = content[step[0]] if step[0] else content[int(step[1])]
    if tail:
        return _path_beyond(head, tail, content)
    quantities = head.endswith(_AMOUNTS)
    for key, value in content.items():
        if not (is_quantity(value) if quantities else isinstance(value, str)):
            return f'{head}["{key}"]'
    return path


def _path_beyond(head: str, tail: str, content: dict[str, Any]) -> str:
    """Return the path of the first value under a hidden key that is not a quantity."""
    for key, value in content.items():
        for name in re.findall(r"\.([^.\[]+)", tail):
            value = value.get(name) if isinstance(value, dict) else None
        if not is_quantity(value):
            return f'{head}["{key}"]{tail}'
    return f"{head}[...]{tail}"


def _plain(names: str) -> str:
    return " or ".join(_NAMES.get(name.strip(), name.strip()) for name in names.split("|"))
