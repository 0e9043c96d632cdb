"""Which labels a node lacks for a pod's selector and affinity, in words."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from bayplan.api.pod import NodeSelectorRequirement, NodeSelectorTerm, PodSpec

__all__ = ["unmet"]

Labels = Mapping[str, str]


def unmet(spec: PodSpec, name: str, labels: Labels) -> tuple[str, int]:
    """Return the smallest change that would let the node match, and how many labels it changes.

    :param name: the node's name.
    :return: such as ``("if it had the label a", 1)``; ``("", 0)`` if no change would help.
    """
    written = _other_case(spec.node_selector, labels)
    parts = [
        _label(key, f"was {value}", labels)
        for key, value in sorted(spec.node_selector.items())
        if labels.get(key) != value
    ]
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is not None and affinity.required is not None:
        terms = [_of_term(term, name, labels) for term in affinity.required.node_selector_terms]
        possible = sorted((found for found in terms if found is not None), key=len)
        if not possible:
            return "", 0
        parts += possible[0]
    if len(written) == len(parts):
        pairs = " and ".join(f"{key}={value}" for key, value in written.items())
        return f"with nodeSelector {pairs}, as its labels are written", len(parts)
    return f"if {' and '.join(parts)}", len(parts)


def _other_case(selector: Labels, labels: Labels) -> dict[str, str]:
    """Return the labels of the node that differ from the selector by case or punctuation only."""
    plain = {_plain(key): (key, value) for key, value in labels.items()}
    found = {}
    for key, value in selector.items():
        near = plain.get(_plain(key))
        if labels.get(key) != value and near is not None and _plain(near[1]) == _plain(value):
            found[near[0]] = near[1]
    return found


def _plain(text: str) -> str:
    return text.lower().replace("_", "-")


def _label(key: str, wanted: str, labels: Labels) -> str:
    if key in labels:
        return f"its label {key} {wanted} (it is {labels[key] or 'empty'})"
    near = difflib.get_close_matches(key, labels, n=1, cutoff=0.8)
    has = f"it has {near[0]}={labels[near[0]]}" if near else "it has none"
    return f"its label {key} {wanted} ({has})"


def _of_term(term: NodeSelectorTerm, name: str, labels: Labels) -> list[str] | None:
    """Return what a node lacks of a term; None if no label would help."""
    if not term.match_expressions and not term.match_fields:
        return None
    for requirement in term.match_fields:
        named = name in requirement.values
        if requirement.key != "metadata.name" or named != (requirement.operator == "In"):
            return None
    return [
        text
        for requirement in term.match_expressions
        if (text := _of_requirement(requirement, labels))
    ]


def _of_requirement(requirement: NodeSelectorRequirement, labels: Labels) -> str:
    key, operator, values = requirement.key, requirement.operator, requirement.values
    value = labels.get(key)
    if operator == "In":
        return "" if value in values else _label(key, f"was {' or '.join(values)}", labels)
    if operator == "NotIn":
        if value is None or value not in values:
            return ""
        return f"its label {key} was not {' or '.join(sorted(values))}"
    if operator == "Exists":
        return "" if value is not None else f"it had the label {key}"
    if operator == "DoesNotExist":
        return "" if value is None else f"it did not have the label {key}"
    bound, beyond = int(values[0]), "greater" if operator == "Gt" else "less"
    try:
        number = int(value or "")
    except ValueError:
        return _label(key, f"was {beyond} than {bound}", labels)
    met = number > bound if operator == "Gt" else number < bound
    return "" if met else _label(key, f"was {beyond} than {bound}", labels)
