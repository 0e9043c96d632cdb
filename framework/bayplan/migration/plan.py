"""What runs in a cluster of other systems, what becomes of it, and which profile replaces it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bayplan.inputs.limits import CONFIGURATION
from bayplan.inputs.yamltext import YamlProblem, parse_yaml
from bayplan.migration.components import Component, component_of
from bayplan.migration.koordinator import low_node_load_of, with_low_node_load
from bayplan.migration.volcano import volcano_profile
from bayplan.schemas.upstream import SYSTEMS

__all__ = ["GROUPS", "Conversion", "FallingDefinition", "Plan", "Running", "mounted", "plan_of"]

Content = Mapping[str, Any]

GROUPS = frozenset(
    name.partition(".")[2] for system in SYSTEMS.values() for name, _ in system.paths()
) | {"batch.volcano.sh", "flow.volcano.sh", "bus.volcano.sh", "nodeinfo.volcano.sh"}
"""Groups of kinds whose objects have to outlast their systems."""
_KEEP = "helm.sh/resource-policy"
_RELEASE = "meta.helm.sh/release-name"
_SCHEDULERS: Mapping[str, str] = {
    "volcano": "volcano",
    "kai": "kai-scheduler",
    "koordinator": "koord-scheduler",
    "hami": "hami-scheduler",
}
"""The schedulerName of the pods of each system, unless its configuration says another."""


class Running(msgspec.Struct, frozen=True):
    """A component that runs, and where: ``Deployment NAMESPACE/NAME``."""

    component: Component
    where: str


class FallingDefinition(msgspec.Struct, frozen=True):
    """A definition that goes with a Helm release, and all objects of its kind with it."""

    name: str
    release: str

    @property
    def keep(self) -> str:
        """The command after which Helm leaves it alone."""
        return f"kubectl annotate crd {self.name} {_KEEP}=keep"


class Conversion(msgspec.Struct, frozen=True):
    """A profile in the place of a configuration, with what has no counterpart.

    :ivar source: the object that it was read from.
    :ivar profile: an entry of ``profiles``.
    """

    source: str
    profile: Content
    notes: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    """What becomes of a cluster's other schedulers.

    :ivar problems: what could not be read, with its place.
    """

    running: tuple[Running, ...]
    falling: tuple[FallingDefinition, ...]
    conversions: tuple[Conversion, ...]
    problems: tuple[str, ...] = ()

    def configuration(self) -> Content:
        """Return the profile file that replaces all configurations that were found."""
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [one.profile for one in self.conversions],
        }


def plan_of(
    workloads: Iterable[Content],
    definitions: Iterable[Content],
    config_maps: Mapping[str, Content],
    shards: Iterable[Content],
) -> Plan:
    """Return the plan for a cluster.

    :param workloads: Deployments, StatefulSets and DaemonSets.
    :param config_maps: by ``NAMESPACE/NAME``: those that the workloads mount.
    :param shards: KAI's SchedulingShards.
    """
    running: list[Running] = []
    conversions: list[Conversion] = []
    rebalancing: list[Conversion] = []
    problems: list[str] = []
    for workload in workloads:
        for component, _ in _components(workload):
            running.append(Running(component, _place(workload)))
            descheduler = (component.system, component.name) == ("koordinator", "descheduler")
            into = rebalancing if descheduler else conversions
            try:
                into += _converted(component, workload, config_maps)
            except ValueError as exc:
                problems.append(str(exc))
    conversions = _joined(conversions, rebalancing)
    found = list(shards)
    conversions += [_of_shard(one) for one in found]
    parts = {(one.component.system, one.component.name) for one in running}
    if ("kai", "scheduler") in parts and not found:
        conversions.append(_of_shard({"metadata": {"name": "default"}}))
    return Plan(
        tuple(
            sorted(running, key=lambda one: (one.component.system, one.component.name, one.where))
        ),
        tuple(_falling(definitions)),
        tuple(conversions),
        tuple(problems),
    )


def mounted(workload: Content) -> Iterator[str]:
    """Yield the ConfigMaps that a component of another system mounts, as ``NAMESPACE/NAME``."""
    if not list(_components(workload)):
        return
    namespace = workload["metadata"].get("namespace", "default")
    for volume in _pod_of(workload).get("volumes") or ():
        if name := (volume.get("configMap") or {}).get("name"):
            yield f"{namespace}/{name}"


def _pod_of(workload: Content) -> Content:
    found: Content = workload["spec"]["template"]["spec"]
    return found


def _components(workload: Content) -> Iterator[tuple[Component, Content]]:
    seen = set()
    for container in _pod_of(workload).get("containers") or ():
        component = component_of(
            container.get("image", ""), workload.get("kind", ""), container.get("name", "")
        )
        if component is not None and component not in seen:
            seen.add(component)
            yield component, container


def _place(workload: Content) -> str:
    metadata = workload["metadata"]
    return f"{workload.get('kind', '')} {metadata.get('namespace', 'default')}/{metadata['name']}"


def _falling(definitions: Iterable[Content]) -> Iterator[FallingDefinition]:
    for one in definitions:
        annotations = one["metadata"].get("annotations") or {}
        release = annotations.get(_RELEASE)
        if one["spec"]["group"] in GROUPS and release and annotations.get(_KEEP) != "keep":
            yield FallingDefinition(one["metadata"]["name"], release)


# Configurations ------------------------------------------------------------------------------


def _converted(
    component: Component, workload: Content, config_maps: Mapping[str, Content]
) -> Iterator[Conversion]:
    convert = {
        ("volcano", "scheduler"): _of_volcano,
        ("kueue", "manager"): _of_kueue,
        ("koordinator", "scheduler"): _of_koordinator,
        ("koordinator", "descheduler"): _of_descheduler,
    }.get((component.system, component.name))
    if (component.system, component.name) == ("hami", "scheduler"):
        yield Conversion(_place(workload), {"schedulerName": _SCHEDULERS["hami"]})
    if convert is None:
        return
    for key in mounted(workload):
        for name, text in (config_maps.get(key, {}).get("data") or {}).items():
            where = f"ConfigMap {key} ({name})"
            content = _parsed(text, where)
            if isinstance(content, Mapping):
                found = convert(content, where)
                if found is not None:
                    yield found


def _parsed(text: str, where: str) -> Any:
    try:
        documents = list(parse_yaml(text, CONFIGURATION))
    except YamlProblem as exc:
        raise ValueError(f"{where}: line {exc.line}: {exc.message}") from None
    except ValueError as exc:
        raise ValueError(f"{where}: {exc}") from None
    return documents[0] if len(documents) == 1 else None


def _of_volcano(content: Content, where: str) -> Conversion | None:
    if not {"actions", "tiers"} & content.keys():
        return None
    return Conversion(where, *volcano_profile(content, _SCHEDULERS["volcano"]))


def _of_kueue(content: Content, where: str) -> Conversion | None:
    if content.get("kind") != "Configuration":
        return None
    args: dict[str, Any] = {}
    fair = content.get("fairSharing")
    if isinstance(fair, Mapping):
        # Kueue's older configurations turn it on by a field.
        args["fairSharing"] = fair.get("enable", True)
        if fair.get("preemptionStrategies"):
            args["preemptionStrategies"] = fair["preemptionStrategies"]
    for key in ("waitForPodsReady", "admissionFairSharing"):
        if isinstance(content.get(key), Mapping):
            kept = {k: v for k, v in content[key].items() if k != "enable"}
            if content[key].get("enable", True):
                args[key] = kept
    args |= _jobs_of_kueue(content)
    left_out = [k for k in ("multiKueue", "objectRetentionPolicies") if k in content]
    resources = content.get("resources")
    if isinstance(resources, Mapping):
        known = ("excludeResourcePrefixes", "transformations")
        args["resources"] = {key: resources[key] for key in known if key in resources}
        left_out += [f"resources.{key}" for key in resources if key not in known]
    profile = {
        "schedulerName": "default-scheduler",
        "pluginConfig": [{"name": "Queues", "args": {"kueue": args}}],
    }
    return Conversion(where, profile, tuple(f"{key} has no counterpart" for key in left_out))


def _jobs_of_kueue(content: Content) -> dict[str, Any]:
    """Return which jobs Kueue manages; what a configuration leaves out is as Kueue fills it in."""
    namespace = content.get("namespace") or "kueue-system"
    others = {"operator": "NotIn", "values": ["kube-system", namespace]}
    everywhere = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", **others}]}
    found: dict[str, Any] = {
        "managedJobsNamespaceSelector": content.get("managedJobsNamespaceSelector") or everywhere
    }
    integrations = content.get("integrations") or {}
    # They also get the LocalQueue "default" of their namespace, without a queue of their own.
    own = {"frameworks": integrations.get("frameworks") or ["batch/job"]}
    if content.get("manageJobsWithoutQueueName"):
        found["manageJobsWithoutQueueName"] = True
    if integrations.get("labelKeysToCopy"):
        own["labelKeysToCopy"] = integrations["labelKeysToCopy"]
    return {**found, "integrations": own}


def _of_koordinator(content: Content, where: str) -> Conversion | None:
    if content.get("kind") != "KubeSchedulerConfiguration":
        return None
    profiles = [one for one in content.get("profiles") or () if isinstance(one, Mapping)]
    if not profiles:
        return None
    name = profiles[0].get("schedulerName") or _SCHEDULERS["koordinator"]
    return Conversion(where, {**profiles[0], "schedulerName": name})


def _of_descheduler(content: Content, where: str) -> Conversion | None:
    """Return what stands for a descheduler's configuration; its profile holds arguments only."""
    found = low_node_load_of(content)
    return None if found is None else Conversion(where, *found)


def _joined(
    conversions: Sequence[Conversion], rebalancing: Sequence[Conversion]
) -> list[Conversion]:
    """Let the profile of Koordinator's scheduler rebalance, or one of its own where it has none."""
    if not rebalancing:
        return list(conversions)
    one, name = rebalancing[0], _SCHEDULERS["koordinator"]
    known = [own for own in conversions if own.profile["schedulerName"] == name]
    base = known[0] if known else Conversion("", {"schedulerName": name})
    joined = Conversion(
        ", ".join(filter(None, (base.source, one.source))),
        with_low_node_load(base.profile, one.profile),
        (*base.notes, *one.notes),
    )
    if not known:
        return [*conversions, joined]
    return [joined if own is base else own for own in conversions]


_ORDER = {
    "allocate": 500,
    "consolidation": 400,
    "reclaim": 300,
    "preempt": 200,
    "stalegangeviction": 100,
}
"""KAI's actions and their usual priorities."""


def _of_shard(shard: Content) -> Conversion:
    """Return the profile of a SchedulingShard."""
    spec = shard.get("spec") or {}
    notes = [
        f"{key} has no counterpart"
        for key in (
            "queueDepthPerAction",
            "plugins",
            "args",
            "usageDBConfig",
            "scenarioSearchBudgets",
        )
        if spec.get(key)
    ]
    if spec.get("partitionLabelValue"):
        notes.append("nodes of a partition: give its pods a nodeSelector")
    given = spec.get("actions") or {}
    priorities = {**_ORDER, **{k: v.get("priority", _ORDER.get(k, 0)) for k, v in given.items()}}
    actions = [
        name
        for name in sorted(_ORDER, key=lambda name: -priorities[name])
        if given.get(name, {}).get("enabled", True)
    ]
    kai: dict[str, Any] = {"actions": actions}
    if spec.get("kValue") is not None:
        kai["kValue"] = spec["kValue"]
    times = spec.get("minRuntime") or {}
    for ours, theirs in (
        ("defaultPreemptMinRuntime", "preemptMinRuntime"),
        ("defaultReclaimMinRuntime", "reclaimMinRuntime"),
    ):
        if times.get(theirs):
            kai[ours] = times[theirs]
    strategy = (spec.get("placementStrategy") or {}).get("gpu", "binpack")
    scoring = {
        "type": "LeastAllocated" if strategy == "spread" else "MostAllocated",
        "resources": [{"name": "nvidia.com/gpu", "weight": 100}, {"name": "cpu", "weight": 1}],
    }
    profile = {
        "schedulerName": _SCHEDULERS["kai"],
        "plugins": {
            "multiPoint": {
                "enabled": [{"name": "GPUSharing", "weight": 100}],
                "disabled": [{"name": "DefaultPreemption"}],
            }
        },
        "pluginConfig": [
            {"name": "NodeResourcesFit", "args": {"scoringStrategy": scoring}},
            {"name": "Queues", "args": {"kai": kai}},
        ],
    }
    return Conversion(f"SchedulingShard {shard['metadata']['name']}", profile, tuple(notes))
