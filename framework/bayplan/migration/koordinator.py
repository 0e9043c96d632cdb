"""Koordinator's descheduler as the plugin LowNodeLoad: its configuration becomes arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["low_node_load_of", "with_low_node_load"]

Content = Mapping[str, Any]

_PLUGIN = "LowNodeLoad"
_CONTROLLER = "MigrationController"
_WEIGHT = 100
"""What moves goes where it was found to fit."""
_OF_CONFIGURATION = (
    *("deschedulingInterval", "maxNoOfPodsToEvictPerNode", "maxNoOfPodsToEvictPerNamespace"),
    *("maxNoOfPodsToEvictTotal", "nodeSelector"),
)
_OF_PLUGIN = (
    *("paused", "numberOfNodes", "nodeMetricExpirationSeconds", "evictableNamespaces"),
    *("nodeSelector", "podSelectors", "useDeviationThresholds", "highThresholds"),
    *("lowThresholds", "prodHighThresholds", "prodLowThresholds", "resourceWeights"),
    *("anomalyCondition", "detectorCacheTimeout", "nodePools"),
)
_OF_CONTROLLER = (
    *("maxMigratingGlobally", "maxMigratingPerNode", "maxMigratingPerNamespace"),
    *("maxMigratingPerWorkload", "maxUnavailablePerWorkload", "skipCheckExpectedReplicas"),
    *("objectLimiters", "evictLocalStoragePods", "evictSystemCriticalPods", "ignorePvcPods"),
    *("labelSelector", "namespaces", "priorityThreshold"),
)
_ABOUT_JOBS = frozenset(
    (
        *("apiVersion", "kind", "dryRun", "nodeFit", "maxConcurrentReconciles"),
        *("defaultJobMode", "defaultJobTTL", "schedulerNames", "evictQPS", "evictBurst"),
        *("evictionPolicy", "defaultDeleteOptions", "arbitrationArgs"),
    )
)
"""What is about PodMigrationJobs, which nothing needs here, and what holds in any case."""


def low_node_load_of(content: Content) -> tuple[Content, tuple[str, ...]] | None:
    """Return the arguments of LowNodeLoad for a DeschedulerConfiguration, and what is left out.

    None for another configuration, and for one whose profiles do not have it on.
    """
    if content.get("kind") != "DeschedulerConfiguration":
        return None
    profiles = [one for one in _list(content.get("profiles")) if isinstance(one, Mapping)]
    enabled = [one for one in profiles if _PLUGIN in _enabled(one, "balance")]
    if not enabled:
        return None
    notes = [
        f"{name} has no counterpart"
        for one in profiles
        for point in ("deschedule", "balance")
        for name in _enabled(one, point)
        if name != _PLUGIN
    ]
    if len(enabled) > 1:
        notes.append(f"of {len(enabled)} profiles with {_PLUGIN} the first counts")
    chosen = enabled[0]
    plugin, controller = _args(chosen, _PLUGIN), _args(chosen, _CONTROLLER)
    args = _picked(content, _OF_CONFIGURATION)
    args |= _picked(controller, _OF_CONTROLLER) | _picked(plugin, _OF_PLUGIN)
    if any(one.get("dryRun") is True for one in (content, plugin, controller)):
        args["dryRun"] = True
    if "nodeSelector" in chosen and "nodeSelector" not in plugin:
        args["nodeSelector"] = chosen["nodeSelector"]
    notes += _unused(plugin, controller)
    threshold = args.get("priorityThreshold")
    if isinstance(threshold, Mapping) and threshold.get("name"):
        del args["priorityThreshold"]
        notes.append("priorityThreshold.name has no counterpart: state its value")
    return args, tuple(notes)


def with_low_node_load(profile: Content, args: Content) -> Content:
    """Return a profile with LowNodeLoad on."""
    plugins = dict(profile.get("plugins") or {})
    multi = dict(plugins.get("multiPoint") or {})
    multi["enabled"] = [*(multi.get("enabled") or ()), {"name": _PLUGIN, "weight": _WEIGHT}]
    config = [*(profile.get("pluginConfig") or ()), {"name": _PLUGIN, "args": args}]
    return {**profile, "plugins": {**plugins, "multiPoint": multi}, "pluginConfig": config}


def _unused(plugin: Content, controller: Content) -> list[str]:
    notes = []
    if plugin.get("nodeFit") is False:
        notes.append("nodeFit: false has no counterpart: nothing moves that fits nowhere")
    known = {*_OF_PLUGIN, "apiVersion", "kind", "dryRun", "nodeFit"}
    notes += [f"{_PLUGIN}: {key} has no counterpart" for key in sorted(plugin.keys() - known)]
    known = {*_OF_CONTROLLER, *_ABOUT_JOBS}
    left = (key for key in sorted(controller.keys() - known) if controller[key])
    return [*notes, *(f"{_CONTROLLER}: {key} has no counterpart" for key in left)]


def _enabled(profile: Content, point: str) -> Sequence[str]:
    plugins = profile.get("plugins")
    found = plugins.get(point) if isinstance(plugins, Mapping) else None
    entries = _list(found.get("enabled")) if isinstance(found, Mapping) else []
    names = (one.get("name") for one in entries if isinstance(one, Mapping))
    return [name for name in names if isinstance(name, str)]


def _args(profile: Content, name: str) -> Content:
    for one in _list(profile.get("pluginConfig")):
        if isinstance(one, Mapping) and one.get("name") == name:
            args = one.get("args")
            return args if isinstance(args, Mapping) else {}
    return {}


def _picked(content: Content, names: Sequence[str]) -> dict[str, Any]:
    return {name: content[name] for name in names if content.get(name) is not None}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []
