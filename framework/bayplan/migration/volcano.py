"""Volcano's scheduler configuration as a profile: its queues as they are, its scores by ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bayplan.inputs.durations import parse_duration

__all__ = ["volcano_profile"]

Content = Mapping[str, Any]

_KNOWN = ("actions", "configurations", "metrics", "tiers")
_BUILT_IN = ("predicates", "nodeorder")
"""The plugins that choose nodes of Volcano's built-in configuration."""
_MOST_WEIGHT = 10_000
_ALL = 100
_HOUR = 3600.0
_NODE_ORDER = {
    "nodeaffinity.weight": ("NodeAffinity", 2),
    "podaffinity.weight": ("InterPodAffinity", 2),
    "balancedresource.weight": ("NodeResourcesBalancedAllocation", 1),
    "tainttoleration.weight": ("TaintToleration", 3),
    "imagelocality.weight": ("ImageLocality", 1),
    "podtopologyspread.weight": ("PodTopologySpread", 2),
}
"""The weights of nodeorder with their defaults, and which of our plugins gives the same score."""
_ABSENT = ("extender", "rescheduling")
_TASK_TOPOLOGY_SCALE = 10
"""Our scores for task topologies are a tenth of Volcano's."""


class _Scores(msgspec.Struct):
    """What a profile says of scores: weights by plugin, arguments by plugin, and notes."""

    weights: dict[str, int] = msgspec.field(default_factory=dict)
    args: dict[str, Content] = msgspec.field(default_factory=dict)
    unscored: list[str] = msgspec.field(default_factory=list)
    unfiltered: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)

    def weigh(self, plugin: str, weight: int) -> None:
        """Let a plugin of the default profile score with a weight, 0 for not at all."""
        if weight:
            self.weights[plugin] = weight
        else:
            self.unscored.append(plugin)

    def number(self, plugin: Content, key: str, default: int, least: int = 0) -> int:
        """Return a whole number of a plugin's arguments; Volcano ignores anything else."""
        value = _arguments(plugin).get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            self.notes.append(f"{plugin['name']}: {key} is no whole number, so {default} counts")
            return default
        if not least <= value <= _MOST_WEIGHT:
            bound = min(max(value, least), _MOST_WEIGHT)
            self.notes.append(f"{plugin['name']}: {key} becomes {bound}")
            return bound
        return value


def volcano_profile(content: Content, scheduler: str) -> tuple[Content, tuple[str, ...]]:
    """Return the profile of a ``volcano-scheduler.conf``, and what has no counterpart in it.

    :param scheduler: the schedulerName of the profile.
    """
    args = {key: content[key] for key in _KNOWN if key in content}
    scores = _Scores()
    scores.notes += [f"{key} has no counterpart" for key in sorted(content.keys() - set(_KNOWN))]
    by_name = {plugin["name"]: plugin for plugin in reversed(list(_plugins(content)))}
    for name in _ABSENT:
        if name in by_name:
            scores.notes.append(f"the plugin {name} has no counterpart")
    _node_order(by_name.get("nodeorder"), scores)
    for name, convert in _CONVERTED.items():
        if name in by_name:
            convert(by_name[name], scores)
    if "usage" in by_name:
        _usage(by_name["usage"], _part(content, "metrics"), scores)
    plugins: dict[str, Any] = {
        "multiPoint": {
            "enabled": [{"name": n, "weight": w} for n, w in scores.weights.items()],
            "disabled": [{"name": "DefaultPreemption"}],
        }
    }
    for point, names in (("score", scores.unscored), ("filter", scores.unfiltered)):
        if names:
            plugins[point] = {"disabled": [{"name": name} for name in names]}
    profile = {
        "schedulerName": scheduler,
        "plugins": plugins,
        "pluginConfig": [
            {"name": "Queues", "args": {"volcano": args}},
            *({"name": name, "args": own} for name, own in scores.args.items()),
        ],
    }
    return profile, tuple(scores.notes)


def _plugins(content: Content) -> Iterator[Content]:
    tiers = content.get("tiers")
    if not tiers:
        yield from ({"name": name} for name in _BUILT_IN)
        return
    for tier in tiers if isinstance(tiers, Sequence) else ():
        for plugin in (tier.get("plugins") or ()) if isinstance(tier, Mapping) else ():
            if isinstance(plugin, Mapping) and isinstance(plugin.get("name"), str):
                yield plugin


def _arguments(plugin: Content) -> Content:
    found = plugin.get("arguments")
    return found if isinstance(found, Mapping) else {}


def _scores_nodes(plugin: Content) -> bool:
    return plugin.get("enableNodeOrder", True) is not False


# One function for each plugin ----------------------------------------------------------------


def _node_order(plugin: Content | None, scores: _Scores) -> None:
    """Set the weights of nodeorder; without it none of Kubernetes' scores counts."""
    if plugin is None or not _scores_nodes(plugin):
        for name in ("NodeResourcesFit", *(name for name, _ in _NODE_ORDER.values())):
            scores.weigh(name, 0)
        return
    least = scores.number(plugin, "leastrequested.weight", 1)
    most = scores.number(plugin, "mostrequested.weight", 0)
    if least and most:
        scores.notes.append(
            "nodeorder: leastrequested and mostrequested are opposites: the difference of their "
            "weights counts"
        )
    kind = "LeastAllocated" if least >= most else "MostAllocated"
    scores.weigh("NodeResourcesFit", abs(least - most))
    scores.args["NodeResourcesFit"] = {"scoringStrategy": {"type": kind}}
    for key, (name, usual) in _NODE_ORDER.items():
        scores.weigh(name, scores.number(plugin, key, usual))
    resources = [{"name": name} for name in ("cpu", "memory", "nvidia.com/gpu")]
    scores.args["NodeResourcesBalancedAllocation"] = {"resources": resources}
    # Volcano leaves out the default of kube-scheduler, which is 1.
    scores.args["InterPodAffinity"] = {"hardPodAffinityWeight": 0}


def _binpack(plugin: Content, scores: _Scores) -> None:
    weight = scores.number(plugin, "binpack.weight", 1)
    if not weight or not _scores_nodes(plugin):
        return
    stated = _arguments(plugin).get("binpack.resources")
    others = _names(stated)
    weights = {name: f"binpack.resources.{name}" for name in others}
    weights |= {"cpu": "binpack.cpu", "memory": "binpack.memory"}
    own = {name: scores.number(plugin, key, 1, -_MOST_WEIGHT) for name, key in weights.items()}
    scores.weights["VolcanoBinpack"] = weight
    scores.args["VolcanoBinpack"] = {
        # A negative weight is 1 in Volcano.
        "resources": {name: number if number >= 0 else 1 for name, number in own.items()}
    }


def _task_topology(plugin: Content, scores: _Scores) -> None:
    weight = scores.number(plugin, "task-topology.weight", 1)
    if weight and _scores_nodes(plugin):
        scores.weights["VolcanoTaskTopology"] = weight * _TASK_TOPOLOGY_SCALE


def _resource_strategy(plugin: Content, scores: _Scores) -> None:
    """Carry the arguments over; what Volcano would ignore in them is left out."""
    stated = _arguments(plugin)
    fit = scores.number(plugin, "resourceStrategyFitWeight", 10, -_MOST_WEIGHT)
    fit = fit if fit >= 0 else 10
    sra = _part(stated, "sra")
    proportional = _part(stated, "proportional")
    own: dict[str, Any] = {"resourceStrategyFitWeight": fit}
    resources = dict(_strategies(_part(stated, "resources"), scores))
    if resources:
        own["resources"] = resources
    sra_weight = _whole(sra.get("weight"), 0) if sra.get("enable") is True else 0
    if sra_weight:
        own["sra"] = {
            "enable": True,
            "resources": ",".join(_names(sra.get("resources"))),
            "weight": sra_weight,
            "resourceWeight": {
                name: _whole(value, 1) for name, value in _part(sra, "resourceWeight").items()
            },
        }
    if proportional.get("enable") is True:
        own["proportional"] = {
            "enable": True,
            "resources": ",".join(_names(proportional.get("resources"))),
            "resourceProportion": {
                name: value if _is_number(value) and value >= 0 else 1
                for name, value in _part(proportional, "resourceProportion").items()
            },
        }
    name = "VolcanoResourceStrategyFit"
    scored = _scores_nodes(plugin) and fit + sra_weight
    scores.weights[name] = fit + sra_weight if scored else 1
    scores.args[name] = own
    if not scored:
        scores.unscored.append(name)
    if plugin.get("enablePredicate") is False:
        scores.unfiltered.append(name)


def _strategies(stated: Content, scores: _Scores) -> Iterator[tuple[str, Content]]:
    for name, value in stated.items():
        if "*" in name[:-1] or name == "*":
            scores.notes.append(f'resource-strategy-fit: the pattern "{name}" has no effect')
            continue
        one = value if isinstance(value, Mapping) else {}
        kind = one.get("type")
        packs = kind == "MostAllocated"
        if kind not in ("MostAllocated", "LeastAllocated", None):
            scores.notes.append(f"resource-strategy-fit: {name} counts as LeastAllocated")
        weight = _whole(one.get("weight"), 1) or 1
        yield name, {"type": "MostAllocated" if packs else "LeastAllocated", "weight": weight}


def _node_groups(plugin: Content, scores: _Scores) -> None:
    stated = _arguments(plugin)
    names = ("strict", "enablePreferredOrder")
    own = {name: stated[name] for name in names if isinstance(stated.get(name), bool)}
    if plugin.get("enableHierarchy") is True:
        own["enableHierarchy"] = True
    # Volcano's scores are -1 to 150, ours 0 to 100.
    scores.weights["VolcanoNodeGroups"] = 2
    scores.args["VolcanoNodeGroups"] = own
    if not _scores_nodes(plugin):
        scores.unscored.append("VolcanoNodeGroups")
    if plugin.get("enablePredicate") is False:
        scores.unfiltered.append("VolcanoNodeGroups")


def _revocable_nodes(plugin: Content, scores: _Scores) -> None:
    if _scores_nodes(plugin):
        scores.weights["VolcanoRevocableNodes"] = 1


_ESTIMATOR = ("request_ratio", "burst_ratio", "risk_threshold", "risk_factor", "be_cpu", "be_mem")


def _usage(plugin: Content, metrics: Content, scores: _Scores) -> None:
    """Carry usage over; where the metrics come from stands beside the tiers."""
    name = "VolcanoUsage"
    weight = scores.number(plugin, "usage.weight", 5)
    thresholds, estimator = (_part(_arguments(plugin), key) for key in ("thresholds", "estimator"))
    own: dict[str, Any] = {
        "cpuWeight": scores.number(plugin, "cpu.weight", 1),
        "memoryWeight": scores.number(plugin, "memory.weight", 1),
        "thresholds": {
            key: thresholds[key]
            for key in ("cpu", "mem")
            if 0 <= _whole(thresholds.get(key), _ALL + 1) <= _ALL
        },
        "estimator": {key: estimator[key] for key in _ESTIMATOR if key in estimator},
    }
    interval = _seconds(metrics.get("interval"))
    if interval is not None:
        own["metricsIntervalSeconds"] = interval
    own |= _metric_provider(metrics, scores)
    scored = weight and _scores_nodes(plugin)
    scores.weights[name] = weight if scored else 1
    scores.args[name] = own
    if not scored:
        scores.unscored.append(name)
    if plugin.get("enablePredicate") is False:
        scores.unfiltered.append(name)


def _metric_provider(metrics: Content, scores: _Scores) -> Content:
    kind, address = metrics.get("type"), metrics.get("address")
    if kind != "prometheus" or not isinstance(address, str):
        if kind is not None:
            scores.notes.append(
                f"metrics of type {kind} have no counterpart: metrics-server is asked"
            )
        return {}
    # Volcano's configuration map has texts.
    tls = _part(metrics, "tls")
    verifies = str(tls.get("insecureSkipVerify", "false")).lower() != "true"
    given = {"type": "Prometheus", "address": address, "insecureSkipVerify": not verifies}
    return {"metricProvider": given}


def _seconds(text: Any) -> float | None:
    try:
        seconds = parse_duration(text) if isinstance(text, str) else 0.0
    except ValueError:
        return None
    return seconds if 0 < seconds <= _HOUR else None


_CONVERTED = {
    "binpack": _binpack,
    "nodegroup": _node_groups,
    "resource-strategy-fit": _resource_strategy,
    "task-topology": _task_topology,
    "tdm": _revocable_nodes,
}
"""The plugins of Volcano that score nodes by rules of its own."""


def _part(content: Content, key: str) -> Content:
    found = content.get(key)
    if not isinstance(found, Mapping):
        return {}
    return {name: value for name, value in found.items() if isinstance(name, str)}


def _names(text: Any) -> Sequence[str]:
    names = text.split(",") if isinstance(text, str) else ()
    return [name.strip() for name in names if name.strip()]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: Any, default: int) -> int:
    """Return a whole number that is not negative, else the default."""
    fine = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return min(value, _MOST_WEIGHT) if fine else default
