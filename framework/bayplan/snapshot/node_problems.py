"""What could not be read of nodes, or had to be assumed, in lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["NodeProblem", "problem_lines"]

NodeProblem = tuple[str, str]
"""The name of a node, and what of it is concerned: an annotation, a label, a pod on it."""
_MOST_NAMED = 4


def problem_lines(
    problems: Mapping[NodeProblem, str], nodes: Iterable[str] | None = None
) -> list[str]:
    """Return problems in the order of their subjects, those of equal nodes in one line.

    :param nodes: the nodes to name; None for all.
    """
    wanted = frozenset(nodes) if nodes is not None else None
    by_text: dict[tuple[str, str], list[str]] = {}
    for (node, subject), text in sorted(problems.items()):
        if wanted is None or node in wanted:
            by_text.setdefault((subject, text), []).append(node)
    return [f"{subject} of {_named(names)}: {text}" for (subject, text), names in by_text.items()]


def _named(nodes: list[str]) -> str:
    """Return the names of nodes, the first few of many."""
    shown = ", ".join(nodes[:_MOST_NAMED])
    more = len(nodes) - _MOST_NAMED
    return f"node{'s' if len(nodes) > 1 else ''} {shown}{f' and {more} more' if more > 0 else ''}"
