"""Koordinator's quotas: ElasticQuota, ElasticQuotaProfile, the quota of a pod, plugin arguments.

Names and defaults as in koordinator-sh/koordinator v1.8 (apis/extension/elastic_quota.go,
pkg/scheduler/apis/config, pkg/quota-controller/profile).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec
import pydantic
import pydantic.alias_generators

from bayplan.api import ElasticQuota, ElasticQuotaProfile, Node, Pod
from bayplan.api.elastic_quota import (
    QUOTA_PREFIX,
    ElasticQuotaSpec,
    amounts_in,
    elastic_quota_problems,
    names_in,
)
from bayplan.api.meta import ObjectMeta
from bayplan.api.quantity import Quantity, countable
from bayplan.api.queue import Queue, Share
from bayplan.api.resources import amount_of
from bayplan.api.selectors import compile_selector

__all__ = [
    "BUILTIN_QUOTAS",
    "DEFAULT_QUOTA",
    "FEATURE_GATES",
    "ROOT_QUOTA",
    "SYSTEM_QUOTA",
    "KoordinatorQueueArgs",
    "QuotaDefinition",
    "QuotaNames",
    "ResourceList",
    "definition_of",
    "is_preemptible",
    "quantity_of",
    "queue_of",
    "tree_root_of",
]

ResourceList = dict[str, int]
"""Exact amounts by resource: CPU in milli-CPU, anything else in whole units. What a quota's ``max``
does not name is not counted, so a resource that is missing differs from one with the amount 0."""

ROOT_QUOTA = "koordinator-root-quota"
SYSTEM_QUOTA = "koordinator-system-quota"
DEFAULT_QUOTA = "koordinator-default-quota"
BUILTIN_QUOTAS = (ROOT_QUOTA, SYSTEM_QUOTA, DEFAULT_QUOTA)
"""Quotas that Koordinator makes; nobody deletes them."""
FEATURE_GATES = (
    "DisableDefaultQuota",
    "ElasticQuotaGuaranteeUsage",
    "ElasticQuotaIgnoreTerminatingPod",
    "ElasticQuotaImmediateIgnoreTerminatingPod",
    "MultiQuotaTree",
)
"""The gates of Koordinator's scheduler that concern quotas."""
_UNBOUNDED = (2**63 - 1) // 5
"""The ``max`` that a profile gives its quota, in units."""
_USUAL_KEYS = ("cpu", "memory")
"""The resources of a profile's quota unless it names others."""
_UNBOUNDED_GROUP: dict[str, str | int] = dict.fromkeys(_USUAL_KEYS, _UNBOUNDED)

Value = TypeVar("Value")


class QuotaDefinition(msgspec.Struct, frozen=True):
    """What an ElasticQuota says.

    ``lends`` says that others may use what the quota does not ask for. ``tree`` is the id of its
    tree, "" for the default one; ``total`` is what the tree has, when a profile made its root.
    ``forced`` spares it the checks of min. ``strict`` are the resources whose ``max`` may not be
    set below what is used. ``problem`` says what is wrong with the object.
    """

    name: str
    namespace: str = ""
    parent: str = ROOT_QUOTA
    is_parent: bool = False
    lends: bool = True
    tree: str = ""
    is_tree_root: bool = False
    ignores_default_tree: bool = False
    forced: bool = False
    minimum: ResourceList = msgspec.field(default_factory=dict)
    maximum: ResourceList = msgspec.field(default_factory=dict)
    weight: ResourceList = msgspec.field(default_factory=dict)
    guaranteed: ResourceList = msgspec.field(default_factory=dict)
    total: ResourceList | None = None
    used: ResourceList = msgspec.field(default_factory=dict)
    namespaces: tuple[str, ...] = ()
    strict: tuple[str, ...] = ()
    problem: str | None = None


def definition_of(quota: ElasticQuota) -> QuotaDefinition:
    """Return what a quota says; an annotation that cannot be read counts as absent."""
    meta = quota.metadata
    problem = next(elastic_quota_problems(quota), None)
    maximum = _list(quota.spec.max)
    weight: ResourceList = _annotated(meta, "shared-weight", _amounts, ResourceList())
    default_parent = "" if meta.name == ROOT_QUOTA else ROOT_QUOTA
    return QuotaDefinition(
        meta.name,
        meta.namespace,
        parent=_label(meta, "parent") or default_parent,
        is_parent=_label(meta, "is-parent") == "true",
        lends=_label(meta, "allow-lent-resource") != "false",
        tree=_label(meta, "tree-id"),
        is_tree_root=_label(meta, "is-root") == "true",
        ignores_default_tree=_label(meta, "ignore-default-tree") == "true",
        forced=_label(meta, "allow-force-update") == "true",
        minimum=_list(quota.spec.min),
        maximum=maximum,
        weight=weight if any(weight.values()) else dict(maximum),
        guaranteed=_annotated(meta, "guaranteed", _amounts, {}),
        total=_annotated(meta, "total-resource", _amounts, None),
        used=_list(quota.status.used),
        namespaces=tuple(_annotated(meta, "namespaces", names_in, [])),
        strict=tuple(_annotated(meta, "max-strict-check-resource-keys", names_in, [])),
        problem=f"{problem[0]}: {problem[1]}" if problem else None,
    )


def queue_of(own: QuotaDefinition, meta: ObjectMeta) -> Queue:
    """Return a quota as a queue; the children of the root quota are roots.

    A quota that does not lend keeps its min for itself. Resources that ``max`` does not name have
    no limit, and no part of what is left over is divided by them.
    """
    minimum = Share(_floats(own.minimum))
    return Queue(
        own.name,
        parent="" if own.parent == ROOT_QUOTA else own.parent,
        source=f"ElasticQuota {own.namespace}/{own.name}",
        deserved=minimum,
        guaranteed=Share() if own.lends else minimum,
        limit=Share(_floats(own.maximum), other=float("inf")),
        weight=Share(_floats(own.weight)),
        lent=Share(other=float("inf")) if own.lends else Share(),
        uid=meta.uid,
        problem=own.problem,
        labels=meta.labels,
    )


def is_preemptible(pod: Pod) -> bool:
    """Tell whether a pod may be evicted for another; those that may not are held within min."""
    return pod.metadata.labels.get(f"{QUOTA_PREFIX}preemptible") != "false"


def quantity_of(resource: str, amount: int) -> str:
    """Return an amount as Kubernetes writes it: "1500m" of CPU, "80Gi" of memory, "8" of GPUs.

    More than a quantity can hold is as much as it can hold.
    """
    amount = int(countable(amount))
    if resource == "cpu" and amount % 1000:
        return f"{amount}m"
    units = amount // 1000 if resource == "cpu" else amount
    step, suffixes = (1024, "KMGTPE") if resource == "memory" else (1000, "kMGTPE")
    suffix = ""
    for letter in suffixes:
        if units == 0 or units % step:
            break
        units //= step
        suffix = f"{letter}i" if step == 1024 else letter
    return f"{units}{suffix}"


class QuotaNames:
    """Which quota a pod belongs to: names and namespaces of the quotas, updated one by one.

    :param default: the quota of pods that name none, "" to leave them without a quota; then the
        label alone counts.
    """

    def __init__(self, default: str = DEFAULT_QUOTA) -> None:
        self._default = default
        self._namespaces: dict[str, set[str]] = {}
        self._listed: dict[str, set[str]] = {}

    def add(self, quota: QuotaDefinition) -> None:
        """Add a quota; one that is already there has to be removed first."""
        self._namespaces.setdefault(quota.name, set()).add(quota.namespace)
        for namespace in quota.namespaces:
            self._listed.setdefault(namespace, set()).add(quota.name)

    def remove(self, quota: QuotaDefinition) -> None:
        """Remove a quota, as it was added."""
        self._namespaces.get(quota.name, set()).discard(quota.namespace)
        for namespace in quota.namespaces:
            self._listed.get(namespace, set()).discard(quota.name)

    def named_by(self, pod: Pod) -> str:
        """Return the quota that a pod names, which need not exist.

        That is its label, else the quota that is named as the pod's namespace and lies in it, else
        the quota that lists the namespace (the first by name), else the default quota.
        """
        label = pod.metadata.labels.get(f"{QUOTA_PREFIX}name", "")
        if label or not self._default:
            return label
        namespace = pod.metadata.namespace
        if namespace and namespace in self._namespaces.get(namespace, ()):
            return namespace
        return min(self._listed.get(namespace, ()), default=self._default)


def tree_root_of(profile: ElasticQuotaProfile, nodes: Iterable[Node]) -> ElasticQuota:
    """Return the quota at the root of a profile's tree, made of the nodes that it selects.

    Its min is a part of what these nodes offer (``resourceRatio``), its max is unbounded. The tree
    id is the profile's label, else the FNV-1a hash of its namespace and name.
    """
    meta, spec = profile.metadata, profile.spec
    selector = compile_selector(spec.node_selector)
    total: ResourceList = {}
    for node in nodes:
        if selector.matches(node.metadata.labels):
            offered = node.status.allocatable or node.status.capacity
            for name, quantity in offered.items():
                total[name] = total.get(name, 0) + amount_of(name, quantity)
    ratio = _ratio(spec.resource_ratio)
    total = {name: int(amount * ratio) for name, amount in total.items()}
    keys = _annotated(meta, "resource-keys", names_in, list(_USUAL_KEYS))
    tree = _label(meta, "tree-id") or str(_fnv1a(f"{meta.namespace}/{meta.name}"))
    texts = {name: quantity_of(name, amount) for name, amount in sorted(total.items())}
    return ElasticQuota(
        ObjectMeta(
            name=spec.quota_name,
            namespace=meta.namespace,
            labels={
                f"{QUOTA_PREFIX}profile": meta.name,
                **spec.quota_labels,
                f"{QUOTA_PREFIX}tree-id": tree,
                f"{QUOTA_PREFIX}is-root": "true",
            },
            annotations={f"{QUOTA_PREFIX}total-resource": msgspec.json.encode(texts).decode()},
        ),
        ElasticQuotaSpec(
            min={name: Quantity(texts.get(name, "0")) for name in keys},
            max={name: Quantity(_UNBOUNDED) for name in keys},
        ),
    )


class KoordinatorQueueArgs(pydantic.BaseModel):
    """Arguments of Koordinator's ElasticQuota plugin (pkg/scheduler/apis/config, v1.8).

    Quotas are up to date in every decision, so ``quotaSnapshotUpdateInterval`` is always kept.
    Of equivalent pods that were refused one is tried again after a change, so ``enableQueueHint``,
    which spares Koordinator useless tries, has nothing to spare. Pods of the default quota preempt
    by DefaultPreemption alone, as they do in Koordinator's own profile whatever
    ``disableDefaultQuotaPreemption`` says. ``featureGates`` are those of the scheduler that concern
    quotas.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=pydantic.alias_generators.to_camel
    )

    delay_evict_time: str = "120s"
    revoke_pod_interval: str = "1s"
    default_quota_group_max: dict[str, str | int] = _UNBOUNDED_GROUP
    system_quota_group_max: dict[str, str | int] = _UNBOUNDED_GROUP
    quota_group_namespace: str = "koordinator-system"
    monitor_all_quotas: bool = False
    enable_check_parent_quota: bool = False
    enable_runtime_quota: bool = True
    enable_min_quota_scale: bool = True
    disable_default_quota_preemption: bool | None = None
    feature_gates: dict[str, bool] = {}
    enable_queue_hint: bool | None = None
    quota_snapshot_update_interval: str | None = None
    hook_plugins: list[dict[str, object]] | None = None

    @pydantic.field_validator("feature_gates")
    @classmethod
    def _known_gates(cls, gates: dict[str, bool]) -> dict[str, bool]:
        for name in gates:
            if name not in FEATURE_GATES:
                known = ", ".join(FEATURE_GATES)
                raise ValueError(f'expected one of the gates {known}, got "{name}"')
        return gates

    @pydantic.field_validator("hook_plugins")
    @classmethod
    def _without_hooks(
        cls, value: list[dict[str, object]] | None
    ) -> list[dict[str, object]] | None:
        if value:
            raise ValueError("Koordinator's hook plugins are Go code: write a plugin of bayplan")
        return value


def _label(meta: ObjectMeta, key: str) -> str:
    return meta.labels.get(QUOTA_PREFIX + key, "")


def _annotated(meta: ObjectMeta, key: str, read: Callable[[str], Value], default: Value) -> Value:
    text = meta.annotations.get(QUOTA_PREFIX + key, "")
    try:
        return read(text) if text else default
    except ValueError:
        return default


def _amounts(text: str) -> ResourceList:
    return _list(amounts_in(text))


def _list(quantities: Mapping[str, Quantity]) -> ResourceList:
    return {name: amount_of(name, quantity) for name, quantity in quantities.items()}


def _floats(amounts: ResourceList) -> dict[str, float]:
    return {name: float(amount) for name, amount in amounts.items()}


def _ratio(text: str | None) -> float:
    try:
        ratio = float(text) if text is not None else 1.0
    except ValueError:
        return 1.0
    return ratio if 0 < ratio <= 1 else 1.0


def _fnv1a(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value
