"""Node selectors and their terms, evaluated over columns of labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from bayplan import NodeView
from bayplan.api.pod import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec
from bayplan.plugin.hookspecs import BoolColumn

__all__ = ["matches_labels", "matches_selector", "matches_term", "required_match"]


def required_match(spec: PodSpec, nodes: NodeView) -> BoolColumn:
    """Return the nodes that spec.nodeSelector and the required node affinity allow."""
    mask = matches_labels(spec.node_selector, nodes)
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is not None and affinity.required is not None:
        mask = mask & matches_selector(affinity.required, nodes)
    return mask


def matches_labels(labels: Mapping[str, str], nodes: NodeView) -> BoolColumn:
    """Return the nodes that have all of the labels."""
    mask = np.ones(len(nodes), dtype=np.bool_)
    for key, value in labels.items():
        mask &= nodes.label_in(key, (value,))
    return mask


def matches_selector(selector: NodeSelector, nodes: NodeView) -> BoolColumn:
    """Return the nodes that any of the terms allows; no terms allow none."""
    mask = np.zeros(len(nodes), dtype=np.bool_)
    for term in selector.node_selector_terms:
        mask |= matches_term(term, nodes)
    return mask


def matches_term(term: NodeSelectorTerm, nodes: NodeView) -> BoolColumn:
    """Return the nodes that meet every requirement of a term; an empty term matches none."""
    if not term.match_expressions and not term.match_fields:
        return np.zeros(len(nodes), dtype=np.bool_)
    mask = np.ones(len(nodes), dtype=np.bool_)
    for requirement in term.match_expressions:
        mask &= _meets(requirement, nodes)
    for requirement in term.match_fields:
        mask &= _field_meets(requirement, nodes)
    return mask


def _meets(requirement: NodeSelectorRequirement, nodes: NodeView) -> BoolColumn:
    key, operator, values = requirement.key, requirement.operator, requirement.values
    if operator == "In":
        return nodes.label_in(key, values)
    if operator == "NotIn":
        return ~nodes.label_in(key, values)
    if operator == "Exists":
        return nodes.has_label(key)
    if operator == "DoesNotExist":
        return ~nodes.has_label(key)
    column = nodes.label(key)
    bound = int(values[0])
    return column.where(_beyond(text, operator, bound) for text in column.values)


def _beyond(text: str, operator: str, bound: int) -> bool:
    try:
        number = int(text)
    except ValueError:
        return False
    return number > bound if operator == "Gt" else number < bound


def _field_meets(requirement: NodeSelectorRequirement, nodes: NodeView) -> BoolColumn:
    # metadata.name is the only field that Kubernetes supports here.
    if requirement.key != "metadata.name":
        return np.zeros(len(nodes), dtype=np.bool_)
    wanted: Iterable[str] = frozenset(requirement.values)
    named = np.array([name in wanted for name in nodes.names], dtype=np.bool_)
    if requirement.operator == "In":
        return named
    if requirement.operator == "NotIn":
        return ~named
    return np.zeros(len(nodes), dtype=np.bool_)
