"""What compiling a part of an expression yields, and the errors of compiling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from bayplan_dra.cel.errors import CompileError
from bayplan_dra.cel.frame import FIRST_LOCAL, Run
from bayplan_dra.cel.syntax import SourcePosition
from bayplan_dra.cel.types import CelType

__all__ = ["Compiled", "Scope", "compile_error", "constant", "no_overload", "unwrapped"]


class Compiled(NamedTuple):
    """A node's type, its function, and its cost in steps; ``constant`` where the value is known."""

    type: CelType
    run: Run
    cost: int
    constant: bool = False
    value: Any = None


class Scope:
    """The local variables that an expression can use, each with its slot of the frame.

    :ivar most: the largest number of variables at once.
    """

    def __init__(self) -> None:
        self.most = 0
        self._variables: dict[str, tuple[int, CelType]] = {}
        self._next = FIRST_LOCAL

    def __contains__(self, name: str) -> bool:
        return name in self._variables

    def find(self, name: str) -> tuple[int, CelType] | None:
        """Return a variable's slot and type."""
        return self._variables.get(name)

    @contextmanager
    def within(self, *variables: tuple[str, CelType]) -> Iterator[tuple[int, ...]]:
        """Declare variables for a macro's body; yield their slots."""
        before = dict(self._variables)
        slots = []
        for name, kind in variables:
            self._variables[name] = (self._next, kind)
            slots.append(self._next)
            self._next += 1
        self.most = max(self.most, self._next - FIRST_LOCAL)
        try:
            yield tuple(slots)
        finally:
            self._variables = before
            self._next -= len(variables)


def constant(kind: CelType, value: Any) -> Compiled:
    """Return a value that is known when the expression is compiled."""
    return Compiled(kind, lambda f: value, 0, True, value)


def unwrapped(kind: CelType) -> CelType:
    """Return the type of an optional's value; other types as they are."""
    return kind.parts[0] if kind.name == "optional_type" else kind


def compile_error(at: SourcePosition, message: str) -> CompileError:
    """Return an error with its place."""
    return CompileError(message, at.line, at.column)


def no_overload(name: str, types: Sequence[CelType], at: SourcePosition) -> CompileError:
    """Return the error of a function that does not take arguments of these types."""
    applied = ", ".join(str(kind) for kind in types)
    return compile_error(at, f"found no matching overload for '{name}' applied to '({applied})'")
