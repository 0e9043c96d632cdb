"""Matching of node selectors: labels, and ``metadata.name`` as the only field."""

from __future__ import annotations

from bayplan.api.node import Node
from bayplan.api.pod import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

__all__ = ["selects"]


def selects(selector: NodeSelector, node: Node) -> bool:
    """Tell whether any term selects the node; an empty term selects no node."""
    return any(_term(term, node) for term in selector.node_selector_terms)


def _term(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    labels = node.metadata.labels
    name = node.metadata.name
    return all(_meets(r, labels.get(r.key)) for r in term.match_expressions) and all(
        r.key == "metadata.name" and _meets(r, name) for r in term.match_fields
    )


def _meets(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    operator, values = requirement.operator, requirement.values
    if operator == "In":
        return value is not None and value in values
    if operator == "NotIn":
        return value is None or value not in values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    try:
        number, bound = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if operator == "Gt" else number < bound
