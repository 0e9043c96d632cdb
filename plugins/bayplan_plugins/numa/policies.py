"""By which policy and in which scope resources are aligned on a node."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.api import Node, NodeResourceTopology
from bayplan.api.numa import ZoneAttribute
from bayplan.errors import did_you_mean
from bayplan_plugins.numa.hints import Policy

__all__ = ["POLICIES", "NodePolicy", "policy_of"]

_POLICY = "bayplan.dev/topology-manager-policy"
_SCOPE = "bayplan.dev/topology-manager-scope"
_KOORDINATOR = "node.koordinator.sh/numa-topology-policy"
POLICIES: Mapping[str, Policy] = {
    "none": "none",
    "best-effort": "best-effort",
    "restricted": "restricted",
    "single-numa-node": "single-numa-node",
    "None": "none",
    "BestEffort": "best-effort",
    "Restricted": "restricted",
    "SingleNUMANode": "single-numa-node",
    "BestEffortContainerLevel": "best-effort",
    "BestEffortPodLevel": "best-effort",
    "RestrictedContainerLevel": "restricted",
    "RestrictedPodLevel": "restricted",
    "SingleNUMANodeContainerLevel": "single-numa-node",
    "SingleNUMANodePodLevel": "single-numa-node",
}


class NodePolicy(msgspec.Struct, frozen=True):
    """A policy, and its scope: "container" or "pod".

    :param by_koordinator: whether Koordinator's label gives it, instead of the kubelet.
    :param problem: what is wrong; with a problem nothing is aligned.
    """

    policy: Policy = "none"
    scope: str = "container"
    by_koordinator: bool = False
    problem: str = ""


def policy_of(node: Node, zones: NodeResourceTopology | None) -> NodePolicy:
    """Return the policy of a node.

    Annotations and labels of the node win over its report: Koordinator's agent reports "None" for
    the kubelet of a node whose label asks for an alignment of whole pods.
    """
    meta = node.metadata
    attributes: tuple[ZoneAttribute, ...] = zones.attributes if zones is not None else ()
    reported = {attribute.name: attribute.value for attribute in attributes}
    older = zones.topology_policies[0] if zones is not None and zones.topology_policies else ""
    own = meta.annotations.get(_POLICY) or meta.labels.get(_POLICY)
    koordinator = "" if own else meta.labels.get(_KOORDINATOR, "")
    text = own or koordinator or reported.get("topologyManagerPolicy") or older or "none"
    scope = (
        meta.annotations.get(_SCOPE)
        or meta.labels.get(_SCOPE)
        or ("pod" if koordinator else reported.get("topologyManagerScope"))
        or ("pod" if older.endswith("PodLevel") else "container")
    )
    problem = ""
    if text not in POLICIES:
        near = did_you_mean(text, POLICIES)
        problem = f'nothing is aligned, there is no Topology Manager policy "{text}"{near}'
    elif scope not in ("pod", "container"):
        problem = f'there is no Topology Manager scope "{scope}", expected container or pod'
    if problem:
        return NodePolicy(problem=problem)
    return NodePolicy(POLICIES[text], scope, bool(koordinator))
