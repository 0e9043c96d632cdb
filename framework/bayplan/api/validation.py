"""The API server's checks that typed decoding cannot express.

They cover only what would mislead a scheduler: names, amounts, counts, and enumerations whose wrong
values would otherwise be misread.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import singledispatch
from typing import Any

from bayplan.api import dra_validation
from bayplan.api.colocation import ClusterColocationProfile, colocation_problems
from bayplan.api.dra import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from bayplan.api.elastic_quota import (
    ElasticQuota,
    ElasticQuotaProfile,
    elastic_quota_problems,
    quota_profile_problems,
)
from bayplan.api.jobset import JobSet
from bayplan.api.kubeflow import PyTorchJob
from bayplan.api.kueue import (
    ClusterQueue,
    Cohort,
    KueueWorkload,
    LocalQueue,
    ResourceFlavor,
)
from bayplan.api.kueue_validation import (
    cluster_queue_problems,
    cohort_problems,
    flavor_problems,
    local_queue_problems,
    workload_problems,
)
from bayplan.api.meta import LabelSelector, ObjectMeta
from bayplan.api.node import Node
from bayplan.api.pod import (
    Container,
    NodeAffinity,
    NodeSelectorTerm,
    Pod,
    PodAffinityTerm,
    PodSpec,
)
from bayplan.api.policy import PodDisruptionBudget
from bayplan.api.pools import ComputePool, ElasticJob, reserved_part
from bayplan.api.quantity import Quantity
from bayplan.api.queue_objects import (
    KaiQueue,
    VolcanoQueue,
    kai_queue_problems,
    volcano_queue_problems,
)
from bayplan.api.ray import RayCluster, RayClusterSpec, RayJob
from bayplan.api.reservation import Reservation, reservation_problems
from bayplan.api.resources import (
    DEFAULT_MEMORY,
    DEFAULT_MILLI_CPU,
    LARGEST_AMOUNT,
    pod_requests,
)
from bayplan.api.storage import PersistentVolume, PersistentVolumeClaim
from bayplan.api.volume_claim import PersistentVolumeClaimSpec
from bayplan.api.workload_validation import rollout_problems
from bayplan.api.workloads import (
    DaemonSet,
    Deployment,
    Job,
    ReplicaSet,
    StatefulSet,
    VolcanoJob,
)

__all__ = ["validate", "validate_node_affinity"]

Problem = tuple[str, str]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_STANDARD = ("cpu", "ephemeral-storage", "memory")
_MAX_REPLICAS = 1_000_000
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def validate(obj: Any) -> Iterator[Problem]:
    """Yield (JSON path, message) for each problem that the API server would refuse."""
    yield from _metadata(obj.metadata)
    # Pods are the most frequent; looking up the function would take half as long as the checks.
    yield from _pod_spec(obj.spec, "$.spec") if type(obj) is Pod else _spec(obj)


def _metadata(metadata: ObjectMeta) -> Iterator[Problem]:
    if not metadata.name and not metadata.generate_name:
        yield "$.metadata", 'the required field "name" is missing'
    elif metadata.name and not _NAME.fullmatch(metadata.name):
        yield (
            "$.metadata.name",
            f'"{metadata.name}" is not a name: expected lower-case letters, digits, "-" and "."',
        )
    if metadata.namespace and not _NAME.fullmatch(metadata.namespace):
        yield "$.metadata.namespace", f'"{metadata.namespace}" is not a namespace name'


@singledispatch
def _spec(obj: Any) -> Iterator[Problem]:
    return iter(())


@_spec.register
def _(obj: Node) -> Iterator[Problem]:
    yield from _amounts(obj.status.capacity, "$.status.capacity")
    yield from _amounts(obj.status.allocatable, "$.status.allocatable")


_spec.register(VolcanoQueue)(volcano_queue_problems)
_spec.register(KaiQueue)(kai_queue_problems)
_spec.register(Reservation)(reservation_problems)
_spec.register(ClusterColocationProfile)(colocation_problems)
_spec.register(ElasticQuota)(elastic_quota_problems)
_spec.register(ElasticQuotaProfile)(quota_profile_problems)
_spec.register(ClusterQueue)(cluster_queue_problems)
_spec.register(Cohort)(cohort_problems)
_spec.register(LocalQueue)(local_queue_problems)
_spec.register(ResourceFlavor)(flavor_problems)


@_spec.register
def _(obj: KueueWorkload) -> Iterator[Problem]:
    yield from workload_problems(obj)
    for index, pod_set in enumerate(obj.spec.pod_sets):
        yield from _count(pod_set.count, f"$.spec.podSets[{index}].count")
        yield from _pod_spec(pod_set.template.spec, f"$.spec.podSets[{index}].template.spec")


@_spec.register
def _(obj: Job) -> Iterator[Problem]:
    yield from _count(obj.spec.parallelism, "$.spec.parallelism")
    if obj.spec.completions is not None:
        yield from _count(obj.spec.completions, "$.spec.completions")
    elif obj.spec.completion_mode == "Indexed":
        yield "$.spec.completions", "is required when completionMode is Indexed"
    yield from _pod_spec(obj.spec.template.spec, "$.spec.template.spec")


@_spec.register(Deployment)
@_spec.register(ReplicaSet)
@_spec.register(StatefulSet)
@_spec.register(DaemonSet)
def _(obj: Deployment | ReplicaSet | StatefulSet | DaemonSet) -> Iterator[Problem]:
    if not isinstance(obj, DaemonSet):
        yield from _count(obj.spec.replicas, "$.spec.replicas")
    if not isinstance(obj, ReplicaSet):
        yield from rollout_problems(obj)
    selector = obj.spec.selector
    if selector is None:
        yield "$.spec.selector", "is required"
        return
    labels = obj.spec.template.metadata.labels
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        yield "$.spec.template.metadata.labels", "do not match spec.selector"
    if isinstance(obj, StatefulSet):
        for index, wanted in enumerate(obj.spec.volume_claim_templates):
            path = f"$.spec.volumeClaimTemplates[{index}]"
            if not wanted.metadata.name:
                yield f"{path}.metadata", 'the required field "name" is missing'
            yield from _volume_claim(wanted.spec, f"{path}.spec")
    yield from _pod_spec(obj.spec.template.spec, "$.spec.template.spec")


@_spec.register
def _(obj: PodDisruptionBudget) -> Iterator[Problem]:
    for field, value in (
        ("minAvailable", obj.spec.min_available),
        ("maxUnavailable", obj.spec.max_unavailable),
    ):
        path = f"$.spec.{field}"
        if isinstance(value, int) and value < 0:
            yield path, f"expected 0 or more, got {value}"
        elif isinstance(value, str) and not re.fullmatch(r"(\d|[1-9]\d|100)%", value):
            yield path, f'expected a count or a percentage such as "50%", got "{value}"'


@_spec.register
def _(obj: VolcanoJob) -> Iterator[Problem]:
    if not obj.spec.tasks:
        yield "$.spec.tasks", "a job needs at least one task"
    names = [task.name for task in obj.spec.tasks if task.name]
    total = sum(task.replicas for task in obj.spec.tasks)
    if obj.spec.min_available is not None and not 0 <= obj.spec.min_available <= total:
        yield "$.spec.minAvailable", f"expected 0 to {total}, the number of its pods"
    for index, task in enumerate(obj.spec.tasks):
        path = f"$.spec.tasks[{index}]"
        yield from _count(task.replicas, f"{path}.replicas")
        if task.name and names.count(task.name) > 1:
            yield f"{path}.name", f'two tasks are named "{task.name}"'
        if task.min_available is not None and not 0 <= task.min_available <= task.replicas:
            yield f"{path}.minAvailable", f"expected 0 to {task.replicas}, its replicas"
        parts = task.partition_policy
        if parts is not None and parts.total_partitions * parts.partition_size != task.replicas:
            yield (
                f"{path}.partitionPolicy",
                f"{parts.total_partitions} partitions of {parts.partition_size} are not "
                f"{task.replicas} replicas",
            )
        yield from _pod_spec(task.template.spec, f"{path}.template.spec")


@_spec.register
def _(obj: JobSet) -> Iterator[Problem]:
    names = [one.name for one in obj.spec.replicated_jobs]
    for index, one in enumerate(obj.spec.replicated_jobs):
        path = f"$.spec.replicatedJobs[{index}]"
        if names.index(one.name) < index:
            yield f"{path}.name", f'two replicated jobs are named "{one.name}"'
        yield from _count(one.replicas, f"{path}.replicas")
        for number, wanted in enumerate(one.depends_on):
            if wanted.name not in names[:index]:
                yield f"{path}.dependsOn[{number}].name", "expected an earlier replicated job"
        job = Job(spec=one.template.spec.job_spec)
        for where, problem in _spec(job):
            yield where.replace("$", f"{path}.template", 1), problem


@_spec.register
def _(obj: PyTorchJob) -> Iterator[Problem]:
    specs = obj.spec.pytorch_replica_specs
    if not specs:
        yield "$.spec.pytorchReplicaSpecs", "a job needs a Master or Workers"
    for kind, one in specs.items():
        path = f"$.spec.pytorchReplicaSpecs.{kind}"
        if kind not in ("Master", "Worker"):
            yield path, "expected Master or Worker"
        elif kind == "Master" and one.replicas != 1:
            yield f"{path}.replicas", f"expected 1 master, got {one.replicas}"
        yield from _count(one.replicas, f"{path}.replicas")
        yield from _pod_spec(one.template.spec, f"{path}.template.spec")
    elastic = obj.spec.elastic_policy
    if elastic is not None and elastic.min_replicas is not None:
        least, most = elastic.min_replicas, elastic.max_replicas
        if least < 1 or (most is not None and most < least):
            yield "$.spec.elasticPolicy.minReplicas", "expected 1 to maxReplicas"


@_spec.register
def _(obj: ElasticJob) -> Iterator[Problem]:
    scaling = obj.spec.scaling
    yield from _count(scaling.gpu_per_replica, "$.spec.scaling.gpuPerReplica")
    yield from _count(obj.spec.backoff_limit, "$.spec.backoffLimit")
    if scaling.min_replicas < 1:
        text = f"expected at least 1 replica, got {scaling.min_replicas}"
        yield "$.spec.scaling.minReplicas", text
    elif scaling.max_replicas < scaling.min_replicas:
        text = f"expected at least minReplicas ({scaling.min_replicas}), got {scaling.max_replicas}"
        yield "$.spec.scaling.maxReplicas", text
    elif obj.spec.replicas is not None and not (
        scaling.min_replicas <= obj.spec.replicas <= scaling.max_replicas
    ):
        bounds = f"{scaling.min_replicas} to {scaling.max_replicas}"
        yield "$.spec.replicas", f"expected {bounds}, its bounds, got {obj.spec.replicas}"
    yield from _pod_spec(obj.spec.template.spec, "$.spec.template.spec")


@_spec.register
def _(obj: ComputePool) -> Iterator[Problem]:
    spec = obj.spec
    if reserved_part(spec.capacity) is None:
        text = f'expected 0 to 100 percent, such as "10%", got {str(spec.capacity.reserved)[:40]!r}'
        yield "$.spec.capacity.reserved", text
    seen: set[str] = set()
    for index, quota in enumerate(spec.quotas):
        path = f"$.spec.quotas[{index}]"
        if quota.tenant in seen or not quota.tenant:
            problem = f'tenant "{quota.tenant}" has two quotas' if quota.tenant else "is required"
            yield f"{path}.tenant", problem
        seen.add(quota.tenant)
        for field, amounts in (("limit", quota.limit), ("guaranteed", quota.guaranteed)):
            for name, amount in amounts.items():
                if amount.amount < 0:
                    yield f"{path}.{field}.{name}", f"expected 0 or more, got {amount.text}"
        for name, amount in quota.guaranteed.items():
            most = quota.limit.get(name)
            if most is not None and most.amount < amount.amount:
                text = f"{amount.text} is more than the limit, {most.text}"
                yield f"{path}.guaranteed.{name}", text


@_spec.register
def _(obj: RayCluster) -> Iterator[Problem]:
    yield from _ray_cluster(obj.spec, "$.spec")


@_spec.register
def _(obj: RayJob) -> Iterator[Problem]:
    spec = obj.spec
    if spec.ray_cluster_spec is not None:
        yield from _ray_cluster(spec.ray_cluster_spec, "$.spec.rayClusterSpec")
    elif not spec.cluster_selector:
        yield "$.spec.rayClusterSpec", "is required without a clusterSelector"
    if spec.suspend and spec.cluster_selector:
        yield "$.spec.suspend", "a job that selects a cluster cannot be suspended"
    elif spec.suspend and not spec.shutdown_after_job_finishes:
        yield "$.spec.suspend", "needs shutdownAfterJobFinishes"


def _ray_cluster(spec: RayClusterSpec, path: str) -> Iterator[Problem]:
    yield from _pod_spec(spec.head_group_spec.template.spec, f"{path}.headGroupSpec.template.spec")
    names = [group.group_name for group in spec.worker_group_specs]
    for index, group in enumerate(spec.worker_group_specs):
        where = f"{path}.workerGroupSpecs[{index}]"
        if names.index(group.group_name) < index:
            yield f"{where}.groupName", f'two groups are named "{group.group_name}"'
        yield from _count(group.replicas or 0, f"{where}.replicas")
        if not 0 <= group.min_replicas <= group.max_replicas:
            yield f"{where}.minReplicas", f"expected 0 to maxReplicas ({group.max_replicas})"
        if group.num_of_hosts < 1:
            yield f"{where}.numOfHosts", f"expected 1 or more, got {group.num_of_hosts}"
        yield from _pod_spec(group.template.spec, f"{where}.template.spec")


@_spec.register
def _(obj: PersistentVolumeClaim) -> Iterator[Problem]:
    yield from _volume_claim(obj.spec, "$.spec")


@_spec.register
def _(obj: PersistentVolume) -> Iterator[Problem]:
    yield from _storage(obj.spec.capacity, "$.spec.capacity")
    if not obj.spec.access_modes:
        yield "$.spec.accessModes", "expected one access mode or more"
    terms = obj.affinity.node_selector_terms if obj.affinity is not None else ()
    for index, term in enumerate(terms):
        yield from _node_term(term, f"$.spec.nodeAffinity.required.nodeSelectorTerms[{index}]")


_spec.register(ResourceSlice, dra_validation.slice_problems)
_spec.register(ResourceClaim, dra_validation.claim_problems)
_spec.register(ResourceClaimTemplate, dra_validation.template_problems)
_spec.register(DeviceClass, dra_validation.class_problems)
_spec.register(DeviceTaintRule, dra_validation.taint_rule_problems)


def _count(value: int, path: str) -> Iterator[Problem]:
    if not 0 <= value <= _MAX_REPLICAS:
        yield path, f"expected 0 to {_MAX_REPLICAS}, got {value}"


def _amounts(amounts: Mapping[str, Quantity], path: str) -> Iterator[Problem]:
    for name, quantity in amounts.items():
        if quantity.number < 0:
            yield f'{path}["{name}"]', f"expected an amount of 0 or more, got {quantity.text}"


def _requested(amounts: Mapping[str, Quantity], path: str) -> Iterator[Problem]:
    """Check resource names and amounts: a name without a domain is standard, or misspelt."""
    for name, quantity in amounts.items():
        problem = _problem_of(name, quantity)
        if problem:
            yield f'{path}["{name}"]', problem


def _problem_of(name: str, quantity: Quantity) -> str:
    if quantity.number < 0:
        return f"expected an amount of 0 or more, got {quantity.text}"
    if name in _STANDARD or name.startswith("hugepages-"):
        return ""
    if "/" in name:
        if type(quantity.number) is int:
            return ""
        return f"an extended resource is counted in whole units, got {quantity.text}"
    near = difflib.get_close_matches(name.lower(), _STANDARD, n=1, cutoff=0.8)
    hint = f'; did you mean "{near[0]}"?' if near else ", such as nvidia.com/gpu"
    known = f"{', '.join(_STANDARD)} or hugepages-<size>"
    return f"expected {known}, or a name with a domain{hint}"


def _pod_spec(spec: PodSpec, path: str) -> Iterator[Problem]:
    if not spec.containers:
        yield f"{path}.containers", "a pod needs at least one container"
    for field, containers in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
    ):
        for index, container in enumerate(containers):
            yield from _container(container, f"{path}.{field}[{index}]")
    if spec.overhead:
        yield from _amounts(spec.overhead, f"{path}.overhead")
    if _at_most(spec) > LARGEST_AMOUNT:
        for name, amount in pod_requests(spec).scoring.items():
            if amount > LARGEST_AMOUNT:
                yield (
                    path,
                    f"requests more {name} in total than bayplan can count ({LARGEST_AMOUNT})",
                )
    if spec.resources:
        yield from _requested(spec.resources.requests, f"{path}.resources.requests")
        yield from _requested(spec.resources.limits, f"{path}.resources.limits")
    yield from _claims(spec, path)
    if spec.volumes:
        yield from _volumes(spec, path)
    if spec.affinity or spec.topology_spread_constraints:
        yield from _placement_rules(spec, path)


def _at_most(spec: PodSpec) -> int:
    """Return an upper bound of a pod's request for any resource: the sum of all, in thousandths."""
    holders = [container.resources for container in spec.containers]
    holders += [container.resources for container in spec.init_containers]
    if spec.resources:
        holders.append(spec.resources)
    named = sum(quantity.milli for quantity in spec.overhead.values())
    for holder in holders:
        for quantity in holder.requests.values():
            named += quantity.milli
        for quantity in holder.limits.values():
            named += quantity.milli
    defaults = len(holders) * (DEFAULT_MILLI_CPU + DEFAULT_MEMORY)
    return named + defaults


def _volume_claim(spec: PersistentVolumeClaimSpec, path: str) -> Iterator[Problem]:
    yield from _storage(spec.resources.requests, f"{path}.resources.requests")
    if not spec.access_modes:
        yield f"{path}.accessModes", "expected one access mode or more"
    elif "ReadWriteOncePod" in spec.access_modes and len(spec.access_modes) > 1:
        yield f"{path}.accessModes", "ReadWriteOncePod goes with no other access mode"
    yield from _selector(spec.selector, f"{path}.selector")


def _storage(amounts: Mapping[str, Quantity], path: str) -> Iterator[Problem]:
    yield from _amounts(amounts, path)
    if "storage" not in amounts:
        yield path, 'the required field "storage" is missing'


def _volumes(spec: PodSpec, path: str) -> Iterator[Problem]:
    names: set[str] = set()
    for index, volume in enumerate(spec.volumes):
        where = f"{path}.volumes[{index}]"
        if volume.name and volume.name in names:
            yield f"{where}.name", f'two volumes are named "{volume.name}"'
        names.add(volume.name)
        claim = volume.persistent_volume_claim
        if claim is not None and not claim.claim_name:
            yield f"{where}.persistentVolumeClaim.claimName", "must not be empty"
        if volume.ephemeral is not None:
            at = f"{where}.ephemeral.volumeClaimTemplate.spec"
            if not volume.name:
                yield f"{where}.name", "is required"
            yield from _volume_claim(volume.ephemeral.volume_claim_template.spec, at)


def _claims(spec: PodSpec, path: str) -> Iterator[Problem]:
    names: dict[str, None] = {}
    for index, claim in enumerate(spec.resource_claims):
        where = f"{path}.resourceClaims[{index}]"
        if not claim.name:
            yield f"{where}.name", "is required"
        elif claim.name in names:
            yield f"{where}.name", f'two resource claims are named "{claim.name}"'
        names[claim.name] = None
        if (claim.resource_claim_name is None) == (claim.resource_claim_template_name is None):
            yield (
                where,
                "expected exactly one of resourceClaimName and resourceClaimTemplateName",
            )
    for field, containers in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
    ):
        for index, container in enumerate(containers):
            for place, used in enumerate(container.resources.claims):
                if used.name not in names:
                    at = f"{path}.{field}[{index}].resources.claims[{place}].name"
                    known = ", ".join(names) or "none"
                    yield at, f'"{used.name}" is not in spec.resourceClaims ({known})'


def _container(container: Container, path: str) -> Iterator[Problem]:
    resources = container.resources
    yield from _requested(resources.requests, f"{path}.resources.requests")
    yield from _requested(resources.limits, f"{path}.resources.limits")
    for name, request in resources.requests.items():
        limit = resources.limits.get(name)
        if limit is not None and request.number > limit.number:
            yield (
                f'{path}.resources.requests["{name}"]',
                f"{request.text} is more than the limit {limit.text}",
            )
    for index, port in enumerate(container.ports):
        for field, value in (("containerPort", port.container_port), ("hostPort", port.host_port)):
            if not 0 <= value <= 65535:
                yield f"{path}.ports[{index}].{field}", f"expected 1 to 65535, got {value}"


def _placement_rules(spec: PodSpec, path: str) -> Iterator[Problem]:
    for index, constraint in enumerate(spec.topology_spread_constraints):
        where = f"{path}.topologySpreadConstraints[{index}]"
        if constraint.max_skew < 1:
            yield f"{where}.maxSkew", f"expected 1 or more, got {constraint.max_skew}"
        if not constraint.topology_key:
            yield f"{where}.topologyKey", "must not be empty"
        if constraint.min_domains is not None and constraint.min_domains < 1:
            yield f"{where}.minDomains", f"expected 1 or more, got {constraint.min_domains}"
        if constraint.min_domains is not None and constraint.when_unsatisfiable != "DoNotSchedule":
            yield f"{where}.minDomains", "is allowed with whenUnsatisfiable DoNotSchedule only"
        yield from _selector(constraint.label_selector, f"{where}.labelSelector")
    affinity = spec.affinity
    if affinity is None:
        return
    if affinity.node_affinity:
        yield from validate_node_affinity(affinity.node_affinity, f"{path}.affinity.nodeAffinity")
    for field, side in (
        ("podAffinity", affinity.pod_affinity),
        ("podAntiAffinity", affinity.pod_anti_affinity),
    ):
        if side is None:
            continue
        for index, pod_term in enumerate(side.required):
            yield from _pod_term(pod_term, f"{path}.affinity.{field}.{_REQUIRED}[{index}]")
        for index, weighted in enumerate(side.preferred):
            where = f"{path}.affinity.{field}.{_PREFERRED}[{index}]"
            yield from _weight(weighted.weight, where)
            yield from _pod_term(weighted.pod_affinity_term, f"{where}.podAffinityTerm")


def validate_node_affinity(affinity: NodeAffinity, path: str) -> Iterator[Problem]:
    """Yield (JSON path, message) for each invalid part of a node affinity."""
    required = affinity.required
    for index, term in enumerate(required.node_selector_terms if required else ()):
        yield from _node_term(term, f"{path}.{_REQUIRED}.nodeSelectorTerms[{index}]")
    for index, preferred in enumerate(affinity.preferred):
        at = f"{path}.{_PREFERRED}[{index}]"
        yield from _weight(preferred.weight, at)
        yield from _node_term(preferred.preference, f"{at}.preference")


def _weight(weight: int, path: str) -> Iterator[Problem]:
    if not 1 <= weight <= 100:
        yield f"{path}.weight", f"expected 1 to 100, got {weight}"


def _pod_term(term: PodAffinityTerm, path: str) -> Iterator[Problem]:
    if not term.topology_key:
        yield f"{path}.topologyKey", "must not be empty"
    yield from _selector(term.label_selector, f"{path}.labelSelector")


def _selector(selector: LabelSelector | None, path: str) -> Iterator[Problem]:
    for index, term in enumerate(selector.match_expressions if selector else ()):
        needs_values = term.operator in ("In", "NotIn")
        if needs_values != bool(term.values):
            expected = "one value or more" if needs_values else "no values"
            where = f"{path}.matchExpressions[{index}].values"
            yield where, f"operator {term.operator} takes {expected}"


def _node_term(term: NodeSelectorTerm, path: str) -> Iterator[Problem]:
    for index, requirement in enumerate(term.match_expressions):
        where = f"{path}.matchExpressions[{index}].values"
        operator, values = requirement.operator, requirement.values
        if operator in ("In", "NotIn") and not values:
            yield where, f"operator {operator} takes one value or more"
        if operator in ("Exists", "DoesNotExist") and values:
            yield where, f"operator {operator} takes no values"
        if operator in ("Gt", "Lt") and (len(values) != 1 or not _is_integer(values[0])):
            yield where, f"operator {operator} takes one integer, got {list(values)}"


def _is_integer(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d{1,19}", text) is not None
