"""Macros: ``cel.bind``, and those that run an expression for each entry of a list or map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bayplan_dra.cel import types as t
from bayplan_dra.cel.calls import as_bool, as_key
from bayplan_dra.cel.compiled import Compiled, Scope, compile_error, no_overload
from bayplan_dra.cel.errors import EvaluationError
from bayplan_dra.cel.frame import Frame, Run, iteration, spend_for
from bayplan_dra.cel.library import sort_by_keys
from bayplan_dra.cel.syntax import FunctionCall, Identifier, Node
from bayplan_dra.cel.types import CelType
from bayplan_dra.cel.values import NONE, Optional

__all__ = ["MACROS", "MacroCompiler"]

MACROS = {
    "all",
    "exists",
    "exists_one",
    "existsOne",
    "filter",
    "map",
    "optFlatMap",
    "optMap",
    "sortBy",
    "transformList",
    "transformMap",
    "transformMapEntry",
}
"""The macros that are members."""


class MacroCompiler:
    """Compiles macros.

    :param visit: compiles a node.
    """

    def __init__(self, visit: Callable[[Node], Compiled], scope: Scope) -> None:
        self._visit = visit
        self._scope = scope

    def bind(self, node: FunctionCall) -> Compiled:
        """Compile ``cel.bind(variable, value, expression)``."""
        if len(node.args) != 3:
            raise compile_error(node.at, "cel.bind() takes a variable, its value and an expression")
        variable = self._variable(node.args[0])
        value = self._visit(node.args[1])
        with self._scope.within((variable, value.type)) as (slot,):
            body = self._visit(node.args[2])
        a, b = value.run, body.run

        def run(f: Frame) -> Any:
            f[slot] = a(f)
            return b(f)

        return Compiled(body.type, run, value.cost + body.cost)

    def _variable(self, node: Node) -> str:
        if not isinstance(node, Identifier):
            raise compile_error(node.at, "argument must be a simple name")
        return node.name

    def macro(self, node: FunctionCall) -> Compiled | None:
        """Compile a macro that is a member; None for other functions of the name."""
        assert node.target is not None
        name, args = node.function, node.args
        if name in ("optMap", "optFlatMap"):
            return self._optional_map(node) if len(args) == 2 else None
        two = len(args) >= 3 and isinstance(args[0], Identifier) and isinstance(args[1], Identifier)
        if name in ("all", "exists", "exists_one", "existsOne"):
            if len(args) == 2:
                return self._quantifier(node, 1)
            return self._quantifier(node, 2) if len(args) == 3 and two else None
        if name in ("filter", "sortBy"):
            if len(args) != 2:
                return None
            return self._filter(node) if name == "filter" else self._sort_by(node)
        if name == "map":
            return self._transform(node, 1) if len(args) in (2, 3) else None
        return self._transform(node, 2) if len(args) in (3, 4) and two else None

    def _range(self, node: Node, variables: int) -> tuple[Compiled, list[CelType]]:
        """Compile what a macro iterates over; return it with the types of its variables."""
        found = self._visit(node)
        kind = found.type
        if kind.name == "list":
            types = [t.INT, kind.parts[0]] if variables == 2 else [kind.parts[0]]
        elif kind.name == "map":
            types = list(kind.parts) if variables == 2 else [kind.parts[0]]
        elif kind == t.DYN:
            types = [t.DYN] * variables
        else:
            raise compile_error(
                node.at,
                f"expression of type '{kind}' cannot be range of a comprehension "
                "(must be list, map, or dynamic)",
            )
        return found, types

    def _body(self, node: Node, boolean: bool) -> Compiled:
        body = self._visit(node)
        if boolean and body.type not in (t.BOOL, t.DYN):
            raise compile_error(node.at, f"expected type 'bool' but found '{body.type}'")
        return body

    def _quantifier(self, node: FunctionCall, variables: int) -> Compiled:
        assert node.target is not None
        names = [self._variable(arg) for arg in node.args[:variables]]
        source, types = self._range(node.target, variables)
        with self._scope.within(*zip(names, types, strict=True)) as slots:
            body = self._body(node.args[variables], boolean=True)
        each = iteration(source.run, slots, body.cost + 2)
        test = body.run
        if node.function in ("exists_one", "existsOne"):

            def count(f: Frame) -> bool:
                return sum(as_bool(test(f)) for _ in each(f)) == 1

            return Compiled(t.BOOL, count, source.cost + 1)
        decisive = node.function == "exists"

        def run(f: Frame) -> bool:
            error: EvaluationError | None = None
            for _ in each(f):
                try:
                    if as_bool(test(f)) is decisive:
                        return decisive
                except EvaluationError as exc:
                    error = error or exc
            if error is not None:
                raise error
            return not decisive

        return Compiled(t.BOOL, run, source.cost + 1)

    def _filter(self, node: FunctionCall) -> Compiled:
        assert node.target is not None
        source, types = self._range(node.target, 1)
        with self._scope.within((self._variable(node.args[0]), types[0])) as slots:
            body = self._body(node.args[1], boolean=True)
        each, test = iteration(source.run, slots, body.cost + 2), body.run
        (slot,) = slots

        def run(f: Frame) -> tuple[Any, ...]:
            return tuple([f[slot] for _ in each(f) if as_bool(test(f))])

        return Compiled(t.list_of(types[0]), run, source.cost + 1)

    def _sort_by(self, node: FunctionCall) -> Compiled:
        assert node.target is not None
        source, types = self._range(node.target, 1)
        with self._scope.within((self._variable(node.args[0]), types[0])) as slots:
            body = self._visit(node.args[1])
        each, key = iteration(source.run, slots, body.cost + 4), body.run
        (slot,) = slots

        def run(f: Frame) -> tuple[Any, ...]:
            items, keys = [], []
            for _ in each(f):
                items.append(f[slot])
                keys.append(key(f))
            return sort_by_keys(tuple(items), keys)

        return Compiled(t.list_of(types[0]), run, source.cost + 1)

    def _transform(self, node: FunctionCall, variables: int) -> Compiled:
        """Compile map, transformList, transformMap and transformMapEntry."""
        assert node.target is not None
        names = [self._variable(arg) for arg in node.args[:variables]]
        source, types = self._range(node.target, variables)
        filtered = len(node.args) == variables + 2
        with self._scope.within(*zip(names, types, strict=True)) as slots:
            chosen = self._body(node.args[variables], boolean=True) if filtered else None
            body = self._visit(node.args[-1])
        cost = body.cost + (chosen.cost if chosen is not None else 0) + 2
        each, value = iteration(source.run, slots, cost), body.run
        test: Run = chosen.run if chosen is not None else (lambda f: True)
        if node.function in ("map", "transformList"):

            def as_list(f: Frame) -> tuple[Any, ...]:
                made = tuple([value(f) for _ in each(f) if as_bool(test(f))])
                spend_for(f, made)
                return made

            return Compiled(t.list_of(body.type), as_list, source.cost + 1)
        first = slots[0]
        if node.function == "transformMap":

            def as_map(f: Frame) -> dict[Any, Any]:
                made = {as_key(f[first]): value(f) for _ in each(f) if as_bool(test(f))}
                spend_for(f, made)
                return made

            return Compiled(t.map_of(types[0], body.type), as_map, source.cost + 1)

        def from_entries(f: Frame) -> dict[Any, Any]:
            found: dict[Any, Any] = {}
            for _ in each(f):
                if as_bool(test(f)):
                    entry = value(f)
                    if not isinstance(entry, dict) or found.keys() & entry.keys():
                        raise EvaluationError("transformMapEntry: a key is there twice")
                    found.update(entry)
            spend_for(f, found)
            return found

        kind = body.type if body.type.name == "map" else t.map_of(t.DYN, t.DYN)
        return Compiled(kind, from_entries, source.cost + 1)

    def _optional_map(self, node: FunctionCall) -> Compiled:
        assert node.target is not None
        source = self._visit(node.target)
        if source.type.name not in ("optional_type", "dyn"):
            raise no_overload(node.function, [source.type], node.at)
        inner = source.type.parts[0] if source.type.parts else t.DYN
        with self._scope.within((self._variable(node.args[0]), inner)) as (slot,):
            body = self._visit(node.args[1])
        a, b = source.run, body.run
        flat = node.function == "optFlatMap"

        def run(f: Frame) -> Any:
            value = a(f)
            if not isinstance(value, Optional):
                raise EvaluationError("no such overload")
            if not value.present:
                return NONE
            f[slot] = value.value
            return b(f) if flat else Optional(b(f), True)

        kind = body.type if flat else t.optional_of(body.type)
        return Compiled(kind, run, source.cost + body.cost + 1)
