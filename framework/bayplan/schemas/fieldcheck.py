"""Checks of manifests: unknown fields, and values of the wrong type.

Otherwise a misspelt field would be ignored silently, and the pod placed as if it were not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bayplan.api import Kind
from bayplan.api.objects import DecodeError
from bayplan.schemas import FieldProblem, Step, field_problems
from bayplan.schemas.without_effect import unhonoured

__all__ = ["FieldNotes", "check_fields"]

_SHOWN = 3


def check_fields(kind: Kind, content: Mapping[str, Any]) -> list[FieldProblem]:
    """Return the unknown fields that may belong to a newer version, and are ignored.

    :raises DecodeError: for unknown fields that are mistakes: those that resemble a field of the
        kind, and all of them if bayplan knows the kind completely; and for values of the wrong
        type.
    """
    problems = field_problems(str(content["apiVersion"]), kind.name, content)
    mistakes = [problem for problem in problems if _is_mistake(kind, problem)]
    if mistakes:
        first, *others = mistakes
        also = ", ".join(problem.path for problem in others[:_SHOWN])
        more = ", …" if len(others) > _SHOWN else ""
        text = f"{first.message} (and there is {also}{more})" if others else first.message
        raise DecodeError(text, first.path)
    return problems


def _is_mistake(kind: Kind, problem: FieldProblem) -> bool:
    # Statuses come from a cluster, maybe a newer one; only the status of nodes is written by hand.
    written = problem.steps[:1] != ("status",) or kind.name == "Node"
    return not problem.unknown or (written and (problem.certain or kind.whole))


class FieldNotes:
    """Collects notes on ignored fields: one per field of a kind, however many objects have it."""

    def __init__(self) -> None:
        self._notes: dict[tuple[str, str], str] = {}

    def add(
        self, kind: Kind, problems: Iterable[FieldProblem], locate: Callable[[list[Step]], str]
    ) -> None:
        """Add the ignored fields of one object.

        :param locate: returns the position of a value in the file, given the steps to it.
        """
        for problem in problems:
            key = kind.name, re.sub(r"\[\d+\]", "[]", problem.path)
            if key not in self._notes:
                self._notes[key] = (
                    f"{locate(list(problem.steps))}: {kind.name}: {problem.path}: "
                    f"{problem.message}, ignored; a newer {_owner(kind)} may know it"
                )

    def add_unhonoured(
        self, kind: Kind, content: Mapping[str, Any], locate: Callable[[list[Step]], str]
    ) -> None:
        """Add what an object says that has no effect here; see ``add``."""
        for one in unhonoured(kind.group, kind.name, content):
            key = kind.name, one.path
            if key not in self._notes:
                self._notes[key] = (
                    f"{locate(list(one.steps))}: {kind.name}: {one.path}: has no effect here: "
                    f"{one.instead}"
                )

    def texts(self) -> list[str]:
        """Return one line per field."""
        return list(self._notes.values())


def _owner(kind: Kind) -> str:
    built_in = "." not in kind.group or kind.group.endswith(".k8s.io")
    return "Kubernetes" if built_in and ".sigs." not in kind.group else kind.group
