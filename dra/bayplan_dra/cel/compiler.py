"""CEL to Python closures, checked for types on the way.

Every node becomes a function of a *frame*: a list that holds the device, what is left of the cost
budget, the interrupt, the count of iterations, and the local variables. As much as possible is done
when the expression is compiled: constant calls are folded, overloads are chosen by static types
where these are known, and ``device.attributes["d"].n`` is one dictionary access
(:mod:`.device_access`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bayplan_dra.cel import types as t
from bayplan_dra.cel.calls import as_key, dispatch, fast_comparison, get, try_get
from bayplan_dra.cel.compiled import (
    Compiled,
    Scope,
    compile_error,
    constant,
    no_overload,
    unwrapped,
)
from bayplan_dra.cel.device_access import DeviceAccess, DeviceRead
from bayplan_dra.cel.errors import CostExceeded, EvaluationError
from bayplan_dra.cel.frame import COST_LIMIT, Frame, Run, spend_for
from bayplan_dra.cel.library import FUNCTIONS, Overload
from bayplan_dra.cel.macros import MACROS, MacroCompiler
from bayplan_dra.cel.syntax import (
    Conditional,
    FunctionCall,
    Identifier,
    Index,
    ListLiteral,
    Literal,
    Logical,
    MapLiteral,
    Node,
    Select,
    SourcePosition,
)
from bayplan_dra.cel.types import CelType
from bayplan_dra.cel.values import TypeName, Uint

__all__ = ["CompiledExpression", "compile_node"]


class CompiledExpression(NamedTuple):
    """An expression's type and function, what it reads (None: everything), locals and cost."""

    type: CelType
    run: Run
    reads: frozenset[DeviceRead] | None
    locals: int
    cost: int


def compile_node(node: Node, multiple_allocations: bool, lists: bool) -> CompiledExpression:
    """Compile a tree.

    :param multiple_allocations: whether ``device.allowMultipleAllocations`` exists.
    :param lists: whether ``includes`` exists.
    :raises CompileError: for what is undeclared or of the wrong type.
    """
    compiler = _Compiler(multiple_allocations, lists)
    done = compiler.visit(node)
    return CompiledExpression(
        done.type, done.run, compiler.device.reads, compiler.scope.most, done.cost
    )


_TYPE_NAMES = {
    "bool": "bool",
    "int": "int",
    "uint": "uint",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
    "list": "list",
    "map": "map",
    "null_type": "null_type",
    "type": "type",
}


class _Compiler:
    def __init__(self, multiple_allocations: bool, lists: bool) -> None:
        self._lists = lists
        self.scope = Scope()
        self.device = DeviceAccess(self.scope, multiple_allocations)
        self._macros = MacroCompiler(self.visit, self.scope)
        # Folding is paid from one budget for the whole expression.
        self._folding: Frame = [None, COST_LIMIT, None, 0]

    def visit(self, node: Node) -> Compiled:
        if isinstance(node, Literal):
            return constant(_literal_type(node.value), node.value)
        if isinstance(node, Identifier):
            return self._identifier(node)
        if isinstance(node, Select):
            return self._select(node)
        if isinstance(node, Index):
            return self._index(node)
        if isinstance(node, Logical):
            return self._logical(node)
        if isinstance(node, Conditional):
            return self._conditional(node)
        if isinstance(node, ListLiteral):
            return self._list(node)
        if isinstance(node, MapLiteral):
            return self._map(node)
        return self._call(node)

    # Names and fields ----------------------------------------------------------------------

    def _identifier(self, node: Identifier) -> Compiled:
        local = self.scope.find(node.name)
        if local is not None:
            slot, kind = local
            return Compiled(kind, lambda f: f[slot], 1)
        if node.name == "device":
            return self.device.whole()
        if node.name in _TYPE_NAMES:
            return constant(t.TYPE, TypeName(_TYPE_NAMES[node.name]))
        raise compile_error(node.at, f"undeclared reference to '{node.name}' (in container '')")

    def _select(self, node: Select) -> Compiled:
        read = self.device.select(node)
        if read is not None:
            return read
        operand = self.visit(node.operand)
        return self._access(operand, node.field, node.optional, node.at)

    def _index(self, node: Index) -> Compiled:
        read = self.device.index(node)
        if read is not None:
            return read
        operand, key = self.visit(node.operand), self.visit(node.key)
        base = unwrapped(operand.type)
        if base.name == "list" and key.type not in (t.INT, t.UINT, t.DOUBLE, t.DYN):
            raise no_overload("_[_]", [operand.type, key.type], node.at)
        if base.name not in ("list", "map", "dyn"):
            raise no_overload("_[_]", [operand.type, key.type], node.at)
        if base.name == "map" and not t.bind(base.parts[0], key.type, {}):
            raise no_overload("_[_]", [operand.type, key.type], node.at)
        part = base.parts[-1] if base.parts else t.DYN
        a, b = operand.run, key.run
        wrapped = node.optional or operand.type.name == "optional_type"
        cost = operand.cost + key.cost + 1
        if not wrapped:
            return Compiled(part, lambda f: get(a(f), b(f)), cost)
        return Compiled(t.optional_of(part), lambda f: try_get(a(f), b(f)), cost)

    def _access(
        self, operand: Compiled, field: str, optional: bool, at: SourcePosition
    ) -> Compiled:
        """Read a field of a map, or of a value whose type is only known at run time."""
        base = unwrapped(operand.type)
        if base.name not in ("map", "dyn"):
            raise compile_error(at, f"type '{operand.type}' does not support field selection")
        part = base.parts[1] if base.parts else t.DYN
        run = operand.run
        if optional or operand.type.name == "optional_type":
            return Compiled(t.optional_of(part), lambda f: try_get(run(f), field), operand.cost + 1)
        return Compiled(part, lambda f: get(run(f), field), operand.cost + 1)

    # Logic ---------------------------------------------------------------------------------

    def _logical(self, node: Logical) -> Compiled:
        parts = [self.visit(arg) for arg in node.args]
        name = "_||_" if node.any_of else "_&&_"
        for part in parts:
            if part.type not in (t.BOOL, t.DYN):
                raise no_overload(name, [part.type, t.BOOL], node.at)
        decisive = node.any_of
        runs = tuple(part.run for part in parts)

        def run(f: Frame) -> bool:
            error: EvaluationError | None = None
            for one in runs:
                try:
                    value = one(f)
                except EvaluationError as exc:
                    # Another operand may still decide.
                    error = error or exc
                    continue
                if value is decisive:
                    return node.any_of
                if value is not (not decisive):
                    error = error or EvaluationError("no such overload")
            if error is not None:
                raise error
            return not decisive

        return Compiled(t.BOOL, run, sum(part.cost for part in parts))

    def _conditional(self, node: Conditional) -> Compiled:
        condition = self.visit(node.condition)
        then, otherwise = self.visit(node.then), self.visit(node.otherwise)
        if condition.type not in (t.BOOL, t.DYN):
            types = [condition.type, then.type, otherwise.type]
            raise no_overload("_?_:_", types, node.at)
        kind = t.join(then.type, otherwise.type)
        if kind is None:
            types = [condition.type, then.type, otherwise.type]
            raise no_overload("_?_:_", types, node.at)
        c, a, b = condition.run, then.run, otherwise.run

        def run(f: Frame) -> Any:
            value = c(f)
            if value is True:
                return a(f)
            if value is False:
                return b(f)
            raise EvaluationError("no such overload")

        return Compiled(kind, run, condition.cost + max(then.cost, otherwise.cost))

    # Literals ------------------------------------------------------------------------------

    def _list(self, node: ListLiteral) -> Compiled:
        parts = [(self.visit(entry.value), entry.optional) for entry in node.entries]
        kind: CelType | None = None
        for (part, optional), entry in zip(parts, node.entries, strict=True):
            own = _optional_part(part.type, entry.value) if optional else part.type
            joined = own if kind is None else t.join(kind, own)
            if joined is None:
                raise compile_error(entry.value.at, f"expected type '{kind}' but found '{own}'")
            kind = joined
        cost = 1 + sum(part.cost for part, _ in parts)
        result = t.list_of(kind or t.DYN)
        if all(part.constant and not optional for part, optional in parts):
            return constant(result, tuple(part.value for part, _ in parts))
        runs = [(part.run, optional) for part, optional in parts]

        def run(f: Frame) -> tuple[Any, ...]:
            found = []
            for one, optional in runs:
                value = one(f)
                if not optional:
                    found.append(value)
                elif value.present:
                    found.append(value.value)
            made = tuple(found)
            spend_for(f, made)
            return made

        return Compiled(result, run, cost)

    def _map(self, node: MapLiteral) -> Compiled:
        parts = []
        key_type: CelType | None = None
        value_type: CelType | None = None
        for entry in node.entries:
            assert entry.key is not None
            key, value = self.visit(entry.key), self.visit(entry.value)
            own = _optional_part(value.type, entry.value) if entry.optional else value.type
            keys = key.type if key_type is None else t.join(key_type, key.type)
            values = own if value_type is None else t.join(value_type, own)
            if keys is None or values is None:
                where = entry.key if keys is None else entry.value
                expected, got = (key_type, key.type) if keys is None else (value_type, own)
                raise compile_error(where.at, f"expected type '{expected}' but found '{got}'")
            key_type, value_type = keys, values
            parts.append((key, value, entry.optional))
        runs = [(key.run, value.run, optional) for key, value, optional in parts]

        def run(f: Frame) -> dict[Any, Any]:
            found: dict[Any, Any] = {}
            for key, value, optional in runs:
                name, content = as_key(key(f)), value(f)
                if name in found:
                    raise EvaluationError(f"Failed with repeated key: {name}")
                if not optional:
                    found[name] = content
                elif content.present:
                    found[name] = content.value
            spend_for(f, found)
            return found

        cost = 1 + sum(key.cost + value.cost for key, value, _ in parts)
        return Compiled(t.map_of(key_type or t.DYN, value_type or t.DYN), run, cost)

    # Calls ---------------------------------------------------------------------------------

    def _call(self, node: FunctionCall) -> Compiled:
        target = node.target
        if target is None and node.function == "has":
            return self._has(node)
        if isinstance(target, Identifier) and target.name not in self.scope:
            qualified = f"{target.name}.{node.function}"
            if qualified == "cel.bind":
                return self._macros.bind(node)
            if qualified in FUNCTIONS:
                return self._function(qualified, None, node)
        if target is not None and node.function in MACROS:
            macro = self._macros.macro(node)
            if macro is not None:
                return macro
        if node.function == "@in":
            known = self.device.contains(node)
            if known is not None:
                return known
        return self._function(node.function, target, node)

    def _has(self, node: FunctionCall) -> Compiled:
        if len(node.args) != 1 or not isinstance(node.args[0], Select):
            raise compile_error(node.at, "invalid argument to has() macro: expected a field")
        field = node.args[0]
        known = self.device.has(field)
        if known is not None:
            return known
        operand = self.visit(field.operand)
        base = unwrapped(operand.type)
        if base.name not in ("map", "dyn"):
            raise compile_error(field.at, f"type '{operand.type}' does not support field selection")
        run, name = operand.run, field.field
        return Compiled(t.BOOL, lambda f: try_get(run(f), name).present, operand.cost + 1)

    def _function(self, name: str, target: Node | None, node: FunctionCall) -> Compiled:
        if name == "includes" and not self._lists:
            raise compile_error(node.at, "undeclared reference to 'includes' (in container '')")
        overloads = [o for o in FUNCTIONS.get(name, ()) if o.member == (target is not None)]
        if not overloads:
            raise compile_error(node.at, f"undeclared reference to '{name}' (in container '')")
        nodes = ((target,) if target is not None else ()) + node.args
        args = [self.visit(arg) for arg in nodes]
        fitting: list[tuple[Overload, CelType]] = []
        for overload in overloads:
            bindings: dict[CelType, CelType] = {}
            if len(overload.takes) == len(args) and all(
                t.bind(expected, arg.type, bindings)
                for expected, arg in zip(overload.takes, args, strict=True)
            ):
                fitting.append((overload, t.resolve(overload.returns, bindings)))
        if not fitting:
            raise no_overload(name, [arg.type for arg in args], node.at)
        returned = {kind for _, kind in fitting}
        kind = returned.pop() if len(returned) == 1 else t.DYN
        cost = 1 + sum(arg.cost for arg in args)
        run = fast_comparison(name, args) or dispatch(
            [overload for overload, _ in fitting], args, name
        )
        if all(arg.constant for arg in args):
            try:
                return constant(kind, run(self._folding))
            except (EvaluationError, CostExceeded):
                # It fails if it is evaluated, which may never happen.
                pass
        return Compiled(kind, run, cost)


def _literal_type(value: Any) -> CelType:
    kinds: dict[type, CelType] = {
        bool: t.BOOL,
        int: t.INT,
        Uint: t.UINT,
        float: t.DOUBLE,
        str: t.STRING,
        bytes: t.BYTES,
        type(None): t.NULL,
    }
    return kinds[type(value)]


def _optional_part(kind: CelType, node: Node) -> CelType:
    if kind.name not in ("optional_type", "dyn"):
        raise compile_error(node.at, f"expected type 'optional_type' but found '{kind}'")
    return kind.parts[0] if kind.parts else t.DYN
