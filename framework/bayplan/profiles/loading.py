"""The profile file: KubeSchedulerConfiguration as kube-scheduler reads it, with our plugins.

``load_profiles`` returns, for each profile, the plugins of every extension point in order and the
checked arguments of each plugin. The merge rules are kube-scheduler's: defaults, minus
``disabled``, plus ``enabled``. ``multiPoint`` stands for every point that a plugin implements; the
entry of a single point overrides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pydantic
from pydantic.alias_generators import to_camel

from bayplan.api.pod import DEFAULT_SCHEDULER
from bayplan.dialects.koordinator.gangs import PLUGIN_NAMES, CoschedulingArgs
from bayplan.errors import InputError, did_you_mean
from bayplan.inputs.documents import Document, Text, parse_documents, read_text
from bayplan.inputs.validated import validated
from bayplan.kinds import Ends, PodTemplates, When, WorkloadKind, register
from bayplan.plugin.base import Args
from bayplan.plugin.contract import hook_names
from bayplan.plugin.plugin import Plugin
from bayplan.profiles.configuration import (
    Configuration,
    PluginConfig,
    PluginSet,
    PodTemplatesEntry,
    ProfileEntry,
    WorkloadKindEntry,
)
from bayplan.profiles.finder import PluginFinder
from bayplan.profiles.settings import ClientConnection, LeaderElection

__all__ = [
    "POINTS",
    "Profile",
    "ProfileSet",
    "default_profiles",
    "holds_profiles",
    "load_leader_election",
    "load_profiles",
    "load_workload_kinds",
]

_FAMILY = {"filter_node": "filter", "score_node": "score", "normalize": "score", "slots": "filter"}
_QUIET = {
    "sign",
    "admit",
    "requeue_hint",
    "concerns",
    "remedies",
    "relax",
    "queueing",
    "serves",
    "may_preempt",
    "overdue",
    "prepare",
    "request_nodes",
    "may_give_up",
    "group_status",
    "post_evict",
    "network_tree",
    "node_devices",
}
"""Hooks that are not extension points of their own: they follow the plugin."""

POINTS = tuple(
    to_camel(hook) for hook in hook_names() if hook not in _FAMILY and hook not in _QUIET
)
"""Extension points by their names in YAML."""

DEFAULT_PLUGINS: tuple[tuple[str, int], ...] = (
    ("PrioritySort", 1),
    # Before Gang, as it knows what the gang of a client and its worker waits for.
    ("RemoteGPUs", 5),
    ("Gang", 1),
    # Before those that evict: what jobs have beyond their minimum goes first.
    ("Resizer", 20),
    # Before the gates, as it knows what the gate of a queue's controller waits for.
    ("Queues", 1),
    ("SchedulingGates", 1),
    ("NodeUnschedulable", 1),
    ("NodeName", 1),
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodePorts", 1),
    ("NodeResourcesFit", 1),
    # After what says that a node is full anyway.
    ("GangRestart", 1),
    ("VolumeRestrictions", 1),
    ("NodeVolumeLimits", 1),
    ("VolumeBinding", 1),
    ("VolumeZone", 1),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
    ("NetworkGather", 1),
    ("NetworkNear", 1),
    ("DynamicResources", 2),
    # Above all that spread pods: once a GPU is broken up, nothing mends it. Before DeviceShare,
    # which chooses the GPU where this one does not.
    ("GPUFragmentation", 10),
    ("DeviceShare", 1),
    ("GPUSharing", 1),
    ("GPUTopology", 2),
    ("NodeNUMA", 1),
    # After those that choose devices: what a pod leaves of a reservation comes last.
    ("Reservation", 1),
    ("DefaultPreemption", 1),
)
"""Without "plugins": kube-scheduler 1.36's plugins and weights, with gangs and gathering."""

_DEFAULT_ARGS: Mapping[str, Mapping[str, Any]] = {"GPUFragmentation": {"packs": "GPUs"}}
"""What the default profile (``configs/profiles/default.yaml``) says besides: it packs GPUs."""

_KIND = "KubeSchedulerConfiguration"
_WITHOUT_EFFECT = {
    "DeviceShare": ("allocator", "disableDeviceNUMATopologyAlignment"),
    "Reservation": (
        "controllerWorkers",
        "enablePreemption",
        "gcIntervalSeconds",
        "minCandidateNodesAbsolute",
        "minCandidateNodesPercentage",
        "resyncIntervalSeconds",
    ),
}
"""Arguments of Koordinator's plugins that bayplan takes and does not need."""


class Profile(msgspec.Struct, frozen=True):
    """One profile, resolved: plugin classes, their arguments, and the order at every hook.

    ``notes`` tell the operator which settings have no effect.
    """

    scheduler_name: str
    plugins: Mapping[str, type[Plugin[Any]]]
    args: Mapping[str, Args]
    points: Mapping[str, tuple[tuple[str, int], ...]]
    notes: tuple[str, ...] = ()


class ProfileSet(msgspec.Struct, frozen=True):
    """The profiles of one file and the settings that they share; backoffs in seconds.

    With ``any_scheduler`` the first profile takes every pod, whatever its schedulerName.
    """

    profiles: tuple[Profile, ...]
    initial_backoff: float = 1.0
    max_backoff: float = 10.0
    any_scheduler: bool = False
    leader_election: LeaderElection = msgspec.field(default_factory=LeaderElection)
    client_connection: ClientConnection = msgspec.field(default_factory=ClientConnection)

    @property
    def usual_name(self) -> str:
        """Whose pods those are that name no scheduler: Kubernetes' default, or the first's."""
        names = [profile.scheduler_name for profile in self.profiles]
        return DEFAULT_SCHEDULER if DEFAULT_SCHEDULER in names else names[0]


def default_profiles(
    finder: PluginFinder | None = None, scheduler_names: Sequence[str] = ()
) -> ProfileSet:
    """Return the default profile.

    :param scheduler_names: whose pods it takes; without any, every pod.
    :raises InputError: when a plugin of the default profile cannot be imported.
    """
    profile = _installed_default() if finder is None else _default(finder)
    if not scheduler_names:
        return ProfileSet((profile,), any_scheduler=True)
    named = (msgspec.structs.replace(profile, scheduler_name=name) for name in scheduler_names)
    return ProfileSet(tuple(named))


def _default(finder: PluginFinder) -> Profile:
    raw = ProfileEntry(
        plugin_config=tuple(
            PluginConfig(name=name, args=dict(args)) for name, args in _DEFAULT_ARGS.items()
        )
    )
    source = "the default profile"
    document = Document(source, 1, {}, Text(source, ""))
    return _resolve(raw, document, (), finder, DEFAULT_SCHEDULER)


@lru_cache(maxsize=1)
def _installed_default() -> Profile:
    """Return the default profile of the installed plugins, which stay as they are."""
    return _default(PluginFinder())


def load_profiles(path: Path, finder: PluginFinder | None = None) -> ProfileSet:
    """Read a profile file, or the ConfigMap that carries one.

    :raises InputError: naming file, line, column and path of what cannot be used.
    """
    document, default_name, config = _configuration(path)
    if config.extenders:
        raise InputError(
            "extenders are not supported: write a plugin instead", document.where(["extenders"])
        )
    _register_kinds(document, config)
    finder = finder or PluginFinder()
    raws = config.profiles or (ProfileEntry(),)
    profiles = []
    for index, raw in enumerate(raws):
        at = ("profiles", index)
        profiles.append(_resolve(raw, document, at, finder, default_name))
        names = [profile.scheduler_name for profile in profiles]
        if len(set(names)) < len(names):
            raise InputError(f'two profiles are named "{names[-1]}"', document.where(at))
        if profiles[-1].points["queue_sort"] != profiles[0].points["queue_sort"]:
            raise InputError(
                "all profiles share one queue, so they need the same queueSort plugin",
                document.where(at),
            )
        _check_cluster_args(profiles, document.where(at))
    if config.pod_max_backoff_seconds < config.pod_initial_backoff_seconds:
        raise InputError(
            "podMaxBackoffSeconds is less than podInitialBackoffSeconds",
            document.where(["podMaxBackoffSeconds"]),
        )
    return ProfileSet(
        tuple(profiles),
        config.pod_initial_backoff_seconds,
        config.pod_max_backoff_seconds,
        leader_election=config.leader_election,
        client_connection=config.client_connection,
    )


def _check_cluster_args(profiles: Sequence[Profile], at: str) -> None:
    """Check that the last of several profiles agrees on what is about the whole cluster.

    :raises InputError: naming the plugin and the argument on which it does not.
    """
    *others, last = profiles
    for name, cls in last.plugins.items():
        for argument in cls.cluster_args:
            mine = getattr(last.args[name], argument)
            for one in others:
                if name in one.args and getattr(one.args[name], argument) != mine:
                    given = to_camel(argument)
                    raise InputError(
                        f'{name}: the argument "{given}" is about the whole cluster: it has to be '
                        f'as in the profile "{one.scheduler_name}"',
                        at,
                    )


def load_workload_kinds(path: Path) -> ClientConnection:
    """Let bayplan know the kinds of workloads of a profile file; its plugins need not be installed.

    :returns: how the file says to reach the cluster.
    :raises InputError: naming file, line, column and path of what cannot be used.
    """
    document, _, config = _configuration(path)
    _register_kinds(document, config)
    return config.client_connection


def _register_kinds(document: Document, config: Configuration) -> None:
    seen = set()
    for index, entry in enumerate(config.workload_kinds):
        at = document.where(("workloadKinds", index))
        if (entry.group, entry.kind) in seen:
            raise InputError(f"there are two rows for {entry.kind} of {entry.group}", at)
        seen.add((entry.group, entry.kind))
        try:
            register(_row_of(entry), entry.version, entry.plural)
        except ValueError as exc:
            raise InputError(str(exc), at) from None


def _row_of(entry: WorkloadKindEntry) -> WorkloadKind:
    """Return the row of a kind as a profile has it."""
    given = {name: getattr(entry, name) for name in _ROW_FIELDS}
    pods = tuple(
        PodTemplates(
            **{
                **{name: getattr(one, name) for name in _POD_FIELDS},
                "later": tuple(When(**dict(when)) for when in one.later),
                "serial": tuple(When(**dict(when)) for when in one.serial),
            }
        )
        for one in entry.pods
    )
    ends = Ends(**dict(entry.ends)) if entry.ends is not None else None
    return WorkloadKind(**{**given, "name": entry.kind, "pods": pods, "ends": ends})


def _shared(row: type[msgspec.Struct], entry: type[pydantic.BaseModel]) -> tuple[str, ...]:
    """Return the fields that users may give to a part of a row."""
    return tuple(name for name in row.__struct_fields__ if name in entry.model_fields)


_POD_FIELDS = _shared(PodTemplates, PodTemplatesEntry)
_ROW_FIELDS = tuple(
    name for name in _shared(WorkloadKind, WorkloadKindEntry) if name not in ("pods", "ends")
)


def holds_profiles(path: Path) -> bool:
    """Return whether a file is a profile file rather than manifests, by what it says.

    :raises InputError: for a file that cannot be read.
    """
    return _KIND in read_text(path)


def load_leader_election(path: Path) -> LeaderElection:
    """Return the Lease that a profile file names; its plugins need not be installed.

    :raises InputError: naming file, line, column and path of what cannot be used.
    """
    return _configuration(path)[2].leader_election


def _configuration(path: Path) -> tuple[Document, str, Configuration]:
    """Read a profile file; return it with the default scheduler name, and decoded."""
    documents = parse_documents(read_text(path), str(path))
    if not documents:
        raise InputError("is empty; expected a KubeSchedulerConfiguration", str(path))
    if len(documents) > 1:
        raise InputError("holds several documents; expected one", documents[1].where())
    document, default_name = _unwrap(documents[0])
    return document, default_name, validated(Configuration, document.content, document, ())


def _unwrap(document: Document) -> tuple[Document, str]:
    """Take the configuration out of a ConfigMap; return it with the default scheduler name."""
    content = document.content
    if not isinstance(content, dict):
        raise InputError("expected a mapping of kind KubeSchedulerConfiguration", document.where())
    if content.get("kind") != "ConfigMap":
        return document, DEFAULT_SCHEDULER
    data = content.get("data")
    entries = data if isinstance(data, dict) else {}
    for key, text in entries.items():
        if isinstance(text, str) and _KIND in text:
            inner = parse_documents(text, f"{document.source} (data.{key})")
            if len(inner) != 1 or not isinstance(inner[0].content, dict):
                raise InputError("expected one document", f"{document.source} (data.{key})")
            # Koordinator's ConfigMap does not name its scheduler; its Deployment does.
            named = "koord-scheduler" if "koord" in key else DEFAULT_SCHEDULER
            return inner[0], named
    raise InputError("this ConfigMap holds no KubeSchedulerConfiguration", document.where(["data"]))


class _GivenArgs(msgspec.Struct):
    """``pluginConfig`` of a profile: arguments by plugin, their positions, and side effects."""

    args: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    at: dict[str, tuple[str | int, ...]] = msgspec.field(default_factory=dict)
    left_out: set[str] = msgspec.field(default_factory=set)
    notes: list[str] = msgspec.field(default_factory=list)


def _resolve(
    raw: ProfileEntry,
    document: Document,
    at: tuple[str | int, ...],
    finder: PluginFinder,
    default_name: str,
) -> Profile:
    config = _plugin_config(raw, document, at)
    sets = _plugin_sets(raw, document, at)
    _check_disabled(sets, document, at, finder)
    defaults = [item for item in DEFAULT_PLUGINS if item[0] not in config.left_out]
    multi = _merge(defaults, sets.get("multiPoint", PluginSet()))
    names = [name for name, _ in multi]
    names += [entry.name for point in POINTS for entry in sets.get(point, PluginSet()).enabled]
    classes = {name: _find(finder, name, document, at, sets) for name in dict.fromkeys(names)}
    for name, where in config.at.items():
        if name not in classes:
            finder.find(name, document.where((*where, "name")))
    args = {name: _checked_args(name, cls, config, document) for name, cls in classes.items()}
    points = {hook: _at_point(hook, multi, sets, classes, document, at) for hook in hook_names()}
    if len(points["queue_sort"]) != 1:
        count = len(points["queue_sort"])
        raise InputError(
            f"a profile needs exactly one queueSort plugin, this one has {count}",
            document.where((*at, "plugins")),
        )
    owners = [name for name, _ in points["queueing"]]
    if len(owners) > 1:
        raise InputError(
            f"a profile takes one plugin with queues, this one has {' and '.join(owners)}",
            document.where((*at, "plugins")),
        )
    used = {name for order in points.values() for name, _ in order}
    return Profile(
        raw.scheduler_name or default_name,
        {name: cls for name, cls in classes.items() if name in used},
        {name: args[name] for name in classes if name in used},
        points,
        tuple(config.notes),
    )


def _plugin_config(raw: ProfileEntry, document: Document, at: tuple[str | int, ...]) -> _GivenArgs:
    """Read the arguments of plugins; those of Koordinator's Coscheduling become Gang's."""
    config = _GivenArgs()
    jobs_may_preempt: bool | None = None
    for index, entry in enumerate(raw.plugin_config):
        where = (*at, "pluginConfig", index)
        args = {k: v for k, v in entry.args.items() if k not in ("apiVersion", "kind")}
        name = entry.name
        _check_kind(name, entry.args, document, (*where, "args", "kind"))
        if name == "Coscheduling":
            theirs = validated(CoschedulingArgs, args, document, (*where, "args"))
            config.left_out |= theirs.disabled_plugins()
            config.notes += [
                f"Coscheduling: {key} has no effect" for key in theirs.without_effect()
            ]
            if theirs.enable_preemption is not None:
                jobs_may_preempt = theirs.enable_preemption
            args = {}
        name = PLUGIN_NAMES.get(name, name)
        config.notes += [
            f"{name}: {key} has no effect" for key in _WITHOUT_EFFECT.get(name, ()) if key in args
        ]
        if name in config.args:
            raise InputError(f'"{entry.name}" is configured twice', document.where(where))
        config.args[name], config.at[name] = args, where
    if jobs_may_preempt is not None:
        own = config.args.get("DefaultPreemption", {})
        config.args["DefaultPreemption"] = {"gangs": jobs_may_preempt, **own}
    return config


def _check_disabled(
    sets: Mapping[str, PluginSet],
    document: Document,
    at: tuple[str | int, ...],
    finder: PluginFinder,
) -> None:
    """Check that disabled plugins exist.

    :raises InputError: for one that does not.
    """
    for point, plugin_set in sets.items():
        for index, disabled in enumerate(plugin_set.disabled):
            if disabled.name != "*":
                where = (*at, "plugins", point, "disabled", index, "name")
                finder.find(disabled.name, document.where(where))


def _checked_args(
    name: str, cls: type[Plugin[Any]], config: _GivenArgs, document: Document
) -> Args:
    given = config.args.get(name, {})
    return validated(cls.Args, given, document, (*config.at.get(name, ()), "args"), plugin=name)


def _check_kind(
    name: str, args: Mapping[str, Any], document: Document, at: tuple[str | int, ...]
) -> None:
    """Check the kind of a plugin's arguments, if they state one.

    :raises InputError: when it is another plugin's.
    """
    kind, expected = args.get("kind"), f"{name.rpartition(':')[2]}Args"
    if kind is not None and kind != expected:
        raise InputError(
            f'plugin "{name}": expected arguments of kind {expected}', document.where(at)
        )


def _plugin_sets(
    raw: ProfileEntry, document: Document, at: tuple[str | int, ...]
) -> dict[str, PluginSet]:
    known = {"multiPoint", *POINTS}
    for point in raw.plugins:
        if point not in known:
            raise InputError(
                f'"{point}" is not an extension point{did_you_mean(point, known)}',
                document.where((*at, "plugins", point)),
            )
    for point, plugin_set in raw.plugins.items():
        seen: set[str] = set()
        for index, entry in enumerate(plugin_set.enabled):
            own = PLUGIN_NAMES.get(entry.name, entry.name)
            if own in seen:
                where = (*at, "plugins", point, "enabled", index, "name")
                text = f'"{entry.name}" is enabled twice at {point}'
                raise InputError(text, document.where(where))
            seen.add(own)
    return {point: _renamed(plugin_set) for point, plugin_set in raw.plugins.items()}


def _renamed(plugin_set: PluginSet) -> PluginSet:
    """Return the same plugins by bayplan's names, where another system's profile names them."""
    enabled, disabled = (
        [
            entry.model_copy(update={"name": PLUGIN_NAMES.get(entry.name, entry.name)})
            for entry in entries
        ]
        for entries in (plugin_set.enabled, plugin_set.disabled)
    )
    return plugin_set.model_copy(update={"enabled": enabled, "disabled": disabled})


def _find(
    finder: PluginFinder,
    name: str,
    document: Document,
    at: tuple[str | int, ...],
    sets: Mapping[str, PluginSet],
) -> type[Plugin[Any]]:
    for point, plugin_set in sets.items():
        for index, entry in enumerate(plugin_set.enabled):
            if entry.name == name:
                where = (*at, "plugins", point, "enabled", index, "name")
                return finder.find(name, document.where(where))
    return finder.find(name, document.where(at))


def _merge(defaults: Iterable[tuple[str, int]], change: PluginSet) -> list[tuple[str, int]]:
    disabled = {entry.name for entry in change.disabled}
    added = {entry.name: entry.weight for entry in change.enabled}
    kept = [
        (name, added.pop(name) or weight if name in added else weight)
        for name, weight in defaults
        if "*" not in disabled and (name not in disabled)
    ]
    return kept + [(name, weight or 1) for name, weight in added.items()]


def _at_point(
    hook: str,
    multi: list[tuple[str, int]],
    sets: Mapping[str, PluginSet],
    classes: Mapping[str, type[Plugin[Any]]],
    document: Document,
    at: tuple[str | int, ...],
) -> tuple[tuple[str, int], ...]:
    """Return the plugins of one hook in order, with weights."""
    point = to_camel(_FAMILY.get(hook, hook))
    change = sets.get(point, PluginSet())
    specific = {entry.name: entry.weight for entry in change.enabled}
    for index, entry in enumerate(change.enabled):
        if hook == _FAMILY.get(hook, hook) and not _implements(classes[entry.name], point):
            raise InputError(
                f'plugin "{entry.name}" does not implement {point}',
                document.where((*at, "plugins", point, "enabled", index)),
            )
    disabled = {entry.name for entry in change.disabled}
    from_multi = {
        name: weight
        for name, weight in multi
        if _has(classes[name], hook) and "*" not in disabled and name not in disabled
    }
    order = [name for name in specific if name in dict(multi)]
    order += [name for name in from_multi if name not in specific]
    order += [name for name in specific if name not in dict(multi)]
    weights = {**dict.fromkeys(specific, 1), **dict(multi), **from_multi}
    return tuple(
        (name, specific.get(name) or weights[name]) for name in order if _has(classes[name], hook)
    )


def _has(cls: type[Plugin[Any]], hook: str) -> bool:
    return hasattr(getattr(cls, hook, None), "bayplan_impl")


def _implements(cls: type[Plugin[Any]], point: str) -> bool:
    return any(
        _has(cls, hook) for hook in hook_names() if to_camel(_FAMILY.get(hook, hook)) == point
    )
