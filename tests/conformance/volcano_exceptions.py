"""Which of Volcano's cases bayplan does not answer as Volcano does: a rule for each kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from bayplan.api.quantity import Quantity

__all__ = ["better_answer", "out_of_scope"]

Case = dict[str, Any]

_SCORING = ("numaaware",)
_DEVICES = 32
"""The most devices that the API lets a request of a claim ask for."""


def out_of_scope(case: Case) -> str | None:
    """Return why bayplan does not model a case, None for one that it does."""
    if case.get("sharding"):
        return "shards: several schedulers that split the nodes among them"
    for name in _SCORING:
        if name in case["plugins"]:
            return f'"{name}" scores nodes, which plugins of the profile do by their own rules'
    return None


def better_answer(case: Case, bound: Mapping[str, str]) -> str | None:
    """Return why bayplan's answer to a case is better than Volcano's, None for any other case.

    :param bound: the pods that bayplan bound in this case, with their nodes.
    """
    if _asks_too_many_devices(case):
        return f"a claim asks for more devices than the {_DEVICES} that the API allows"
    if _evicts_in_vain(case):
        return "the queue does not deserve the gang's minimum; Volcano evicts a pod without effect"
    if _names_a_tier_that_is_not_there(case):
        return (
            "a hard topology keeps a gang in one domain of the highest tier that exists; Volcano "
            "takes the whole cluster for one more tier"
        )
    if _binds_what_volcano_gives_up(case, bound):
        return "the gang fits, each hard sub-group in one domain; Volcano's search gives up"
    return None


def _asks_too_many_devices(case: Case) -> bool:
    requests = (
        request.get("exactly", {})
        for claim in case.get("resource_claims", ())
        for request in claim["spec"]["devices"]["requests"]
    )
    return any(one.get("count", 0) > _DEVICES for one in requests)


def _evicts_in_vain(case: Case) -> bool:
    """Tell whether Volcano reclaims for a gang of which its queue deserves less than the minimum.

    By CPU and by weight, as the plugin proportion divides a cluster where all queues want more.
    """
    if case["expected"].get("bind_num") or not case["expected"].get("evicted"):
        return False
    total = sum(_cpu(node["allocatable"]) for node in case["nodes"])
    weights = {queue["name"]: queue.get("weight") or 1 for queue in case["queues"]}
    waiting = defaultdict(list)
    for pod in case["pods"]:
        if not pod.get("node"):
            waiting[pod["podgroup"]].append(_cpu(pod["requests"]))
    groups = [group for group in case["podgroups"] if waiting[group["name"]]]
    return bool(groups) and all(
        sum(sorted(waiting[group["name"]])[: group["min_member"]])
        > total * weights[group["queue"]] / sum(weights.values())
        for group in groups
    )


def _cpu(amounts: Mapping[str, str]) -> float:
    return float(Quantity(amounts.get("cpu", "0")).amount)


def _names_a_tier_that_is_not_there(case: Case) -> bool:
    tiers = [int(tier) for tier in case.get("hypernodes_by_tier") or ()]
    asked = (group.get("network_topology") or {} for group in case["podgroups"])
    return bool(tiers) and any(
        one.get("mode") == "hard" and one.get("highestTierAllowed", 0) > max(tiers) for one in asked
    )


def _binds_what_volcano_gives_up(case: Case, bound: Mapping[str, str]) -> bool:
    """Tell whether gangs are bound of which Volcano binds nothing, within their hard topologies."""
    if case["expected"].get("bind_num") or not bound:
        return False
    return all(_is_placed_rightly(case, group, bound) for group in case["podgroups"])


def _is_placed_rightly(case: Case, group: Case, bound: Mapping[str, str]) -> bool:
    """Tell whether enough of a group is bound, each of its sub-groups where it may be."""
    own = [pod for pod in case["pods"] if pod["podgroup"] == group["name"]]
    placed = {f"{pod['namespace']}/{pod['name']}": pod for pod in own}
    nodes = {key: bound[key] for key in placed if key in bound}
    if len(nodes) < group["min_member"]:
        return False
    for policy in group.get("sub_group_policy") or ():
        asked = policy.get("networkTopology") or {}
        parts = defaultdict(set)
        for key, node in nodes.items():
            labels = placed[key].get("labels") or {}
            parts[tuple(labels.get(name) for name in policy["matchLabelKeys"])].add(node)
        domains = [
            set(case["hypernode_nodes"][name])
            for tier, names in case["hypernodes_by_tier"].items()
            if int(tier) <= asked.get("highestTierAllowed", 0)
            for name in names
        ]
        hard = asked.get("mode") == "hard"
        if hard and not all(any(part <= one for one in domains) for part in parts.values()):
            return False
    return True
