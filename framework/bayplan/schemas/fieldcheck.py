"""Fields of manifests that their kinds do not have, and values of the wrong type.

A misspelt field would be passed over in silence, and the pod placed as if it had not been written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bayplan.api import Kind
from bayplan.api.objects import DecodeError
from bayplan.schemas import FieldProblem, Step, field_problems

__all__ = ["FieldNotes", "check_fields"]

_SHOWN = 3


def check_fields(kind: Kind, content: Mapping[str, Any]) -> list[FieldProblem]:
    """Return unknown fields that may be those of a newer version, and are ignored.

    :raises DecodeError: for fields that are misspelt for sure: those that resemble one of the kind,
        and all of a kind that bayplan knows completely; and for values of the wrong type.
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
    # A status is what a cluster wrote, perhaps a newer one; but for nodes, whose room people write.
    written = problem.steps[:1] != ("status",) or kind.name == "Node"
    return not problem.unknown or (written and (problem.certain or kind.whole))


class FieldNotes:
    """What is told of ignored fields: each field of a kind once, however many objects have it."""

    def __init__(self) -> None:
        self._notes: dict[tuple[str, str], str] = {}

    def add(
        self, kind: Kind, problems: Iterable[FieldProblem], locate: Callable[[list[Step]], str]
    ) -> None:
        """Take down the ignored fields of one object.

        :param locate: says where in the file the value at some steps is.
        """
        for problem in problems:
            key = kind.name, re.sub(r"\[\d+\]", "[]", problem.path)
            if key not in self._notes:
                self._notes[key] = (
                    f"{locate(list(problem.steps))}: {kind.name}: {problem.path}: "
                    f"{problem.message}, ignored; a newer {_owner(kind)} may know it"
                )

    def texts(self) -> list[str]:
        """Return a line for each field."""
        return list(self._notes.values())


def _owner(kind: Kind) -> str:
    built_in = "." not in kind.group or kind.group.endswith(".k8s.io")
    return "Kubernetes" if built_in and ".sigs." not in kind.group else kind.group
