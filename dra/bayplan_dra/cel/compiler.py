"""CEL to Python closures, checked for types on the way.

Every node becomes a function of a *frame*: a list that holds the device, what is left of the cost
budget, the interrupt, the count of iterations, and the local variables. What is known when the
expression is compiled is done then: constant calls are folded, overloads are chosen by static
types where these are known, and ``device.attributes["d"].n`` is one dictionary access.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bayplan_dra.cel import types as t
from bayplan_dra.cel.calls import (
    Compiled,
    as_bool,
    as_key,
    dispatch,
    fast_comparison,
    get,
    get_field,
    try_get,
)
from bayplan_dra.cel.errors import CompileError, CostExceeded, EvaluationError
from bayplan_dra.cel.frame import (
    COST_LIMIT,
    DEVICE,
    FIRST_LOCAL,
    Frame,
    Run,
    iteration,
    spend_for,
)
from bayplan_dra.cel.library import FUNCTIONS, Overload, sort_by_keys
from bayplan_dra.cel.syntax import (
    Call,
    Conditional,
    Identifier,
    Index,
    ListLiteral,
    Literal,
    Logical,
    MapLiteral,
    Node,
    Position,
    Select,
)
from bayplan_dra.cel.types import CelType
from bayplan_dra.cel.values import (
    NONE,
    Optional,
    TypeName,
    Uint,
    no_such_key,
)

__all__ = ["Read", "Source", "compile_node"]

Read = tuple[str, str]
"""Something that an expression reads of a device: ("attribute", name), ("capacity", name),
("domain", name of an attribute domain), ("driver", "") or ("shared", "")."""


class Source(NamedTuple):
    """An expression compiled: its type and function, what it reads (None: everything), locals."""

    type: CelType
    run: Run
    reads: frozenset[Read] | None
    locals: int
    cost: int


def compile_node(node: Node, multiple_allocations: bool, lists: bool) -> Source:
    """Compile a tree.

    :param multiple_allocations: whether ``device.allowMultipleAllocations`` exists.
    :param lists: whether ``includes`` exists.
    :raises CompileError: for what is undeclared or of the wrong type.
    """
    compiler = _Compiler(multiple_allocations, lists)
    done = compiler.visit(node)
    reads = None if compiler.reads_all else frozenset(compiler.reads)
    return Source(done.type, done.run, reads, compiler.most_locals, done.cost)


_ATTRIBUTES = t.map_of(t.STRING, t.map_of(t.STRING, t.DYN))
_CAPACITY = t.map_of(t.STRING, t.map_of(t.STRING, t.QUANTITY))
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
_MACROS = {
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
_MISSING: Any = object()


class _Compiler:
    def __init__(self, multiple_allocations: bool, lists: bool) -> None:
        self._multiple_allocations = multiple_allocations
        self._lists = lists
        self._scope: dict[str, tuple[int, CelType]] = {}
        self._next_local = FIRST_LOCAL
        self.most_locals = 0
        # What is computed now is paid from one budget for the whole expression.
        self._folding: Frame = [None, COST_LIMIT, None, 0]
        self.reads: set[Read] = set()
        self.reads_all = False

    def visit(self, node: Node) -> Compiled:
        if isinstance(node, Literal):
            return _constant(_literal_type(node.value), node.value)
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
        local = self._scope.get(node.name)
        if local is not None:
            slot, kind = local
            return Compiled(kind, lambda f: f[slot], 1)
        if node.name == "device":
            self.reads_all = True
            return Compiled(t.DEVICE, lambda f: f[DEVICE], 1)
        if node.name in _TYPE_NAMES:
            return _constant(t.TYPE, TypeName(_TYPE_NAMES[node.name]))
        raise _error(node.at, f"undeclared reference to '{node.name}' (in container '')")

    def _is_device(self, node: Node) -> bool:
        named = isinstance(node, Identifier) and node.name == "device"
        return named and "device" not in self._scope

    def _table_of(self, node: Node) -> str | None:
        """Return "attributes" or "capacity" where the node is that field of the device."""
        if isinstance(node, Select) and not node.optional and self._is_device(node.operand):
            return node.field if node.field in ("attributes", "capacity") else None
        return None

    def _domain_of(self, node: Node) -> tuple[str, str] | None:
        """Return (table, domain) for ``device.attributes["domain"]`` and the like."""
        if isinstance(node, Index) and not node.optional:
            table, key = self._table_of(node.operand), node.key
            if table is not None and isinstance(key, Literal) and isinstance(key.value, str):
                return table, key.value
        return None

    def _entry_of(self, node: Node) -> tuple[str, str, str, bool] | None:
        """Return (table, qualified name, identifier, optional) for one attribute or capacity."""
        if isinstance(node, Select):
            found, name = self._domain_of(node.operand), node.field
        elif isinstance(node, Index) and isinstance(node.key, Literal):
            found, name = self._domain_of(node.operand), node.key.value
        else:
            return None
        if found is None or not isinstance(name, str):
            return None
        return found[0], f"{found[1]}/{name}", name, node.optional

    def _entry(self, table: str, key: str, name: str, optional: bool) -> Compiled:
        """Read one attribute or capacity with a single access."""
        kind = t.DYN if table == "attributes" else t.QUANTITY
        self.reads.add(("attribute" if table == "attributes" else "capacity", key))
        if table == "attributes":

            def read(f: Frame) -> Any:
                try:
                    return f[DEVICE].flat[key]
                except KeyError:
                    return _MISSING

        else:

            def read(f: Frame) -> Any:
                return f[DEVICE].flat_capacity.get(key, _MISSING)

        if optional:

            def optional_entry(f: Frame) -> Any:
                value = read(f)
                return NONE if value is _MISSING else Optional(value, True)

            return Compiled(t.optional_of(kind), optional_entry, 3)
        if table == "attributes":

            def attribute(f: Frame) -> Any:
                try:
                    return f[DEVICE].flat[key]
                except KeyError:
                    raise no_such_key(name) from None

            return Compiled(kind, attribute, 3)

        def capacity(f: Frame) -> Any:
            try:
                return f[DEVICE].flat_capacity[key]
            except KeyError:
                raise no_such_key(name) from None

        return Compiled(kind, capacity, 3)

    def _select(self, node: Select) -> Compiled:
        entry = self._entry_of(node)
        if entry is not None:
            return self._entry(*entry)
        if self._is_device(node.operand):
            return self._device_field(node)
        operand = self.visit(node.operand)
        return self._access(operand, node.field, node.optional, node.at)

    def _device_field(self, node: Select) -> Compiled:
        field = node.field
        known: dict[str, tuple[CelType, Run]] = {
            "driver": (t.STRING, lambda f: f[DEVICE].driver),
            "attributes": (_ATTRIBUTES, lambda f: f[DEVICE].attributes),
            "capacity": (_CAPACITY, lambda f: f[DEVICE].capacity),
        }
        if self._multiple_allocations:
            known["allowMultipleAllocations"] = (
                t.BOOL,
                lambda f: f[DEVICE].allow_multiple_allocations,
            )
        if field not in known:
            raise _error(node.at, f"undefined field '{field}'")
        if field == "driver":
            self.reads.add(("driver", ""))
        elif field == "allowMultipleAllocations":
            self.reads.add(("shared", ""))
        else:
            self.reads_all = True
        kind, run = known[field]
        if node.optional:
            return Compiled(t.optional_of(kind), lambda f: Optional(run(f), True), 2)
        return Compiled(kind, run, 2)

    def _index(self, node: Index) -> Compiled:
        entry = self._entry_of(node)
        if entry is not None:
            return self._entry(*entry)
        operand, key = self.visit(node.operand), self.visit(node.key)
        base = _unwrapped(operand.type)
        if base.name == "list" and key.type not in (t.INT, t.UINT, t.DOUBLE, t.DYN):
            raise _no_overload("_[_]", [operand.type, key.type], node.at)
        if base.name not in ("list", "map", "dyn"):
            raise _no_overload("_[_]", [operand.type, key.type], node.at)
        if base.name == "map" and not t.bind(base.parts[0], key.type, {}):
            raise _no_overload("_[_]", [operand.type, key.type], node.at)
        part = base.parts[-1] if base.parts else t.DYN
        a, b = operand.run, key.run
        wrapped = node.optional or operand.type.name == "optional_type"
        cost = operand.cost + key.cost + 1
        if not wrapped:
            return Compiled(part, lambda f: get(a(f), b(f)), cost)
        return Compiled(t.optional_of(part), lambda f: try_get(a(f), b(f)), cost)

    def _access(self, operand: Compiled, field: str, optional: bool, at: Position) -> Compiled:
        """Read a field of a map, or of what is only known at run time."""
        base = _unwrapped(operand.type)
        if base.name not in ("map", "dyn"):
            raise _error(at, f"type '{operand.type}' does not support field selection")
        part = base.parts[1] if base.parts else t.DYN
        run = operand.run
        if optional or operand.type.name == "optional_type":
            return Compiled(t.optional_of(part), lambda f: try_get(run(f), field), operand.cost + 1)
        return Compiled(part, lambda f: get_field(run(f), field), operand.cost + 1)

    # Logic ---------------------------------------------------------------------------------

    def _logical(self, node: Logical) -> Compiled:
        parts = [self.visit(arg) for arg in node.args]
        name = "_||_" if node.any_of else "_&&_"
        for part in parts:
            if part.type not in (t.BOOL, t.DYN):
                raise _no_overload(name, [part.type, t.BOOL], node.at)
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
            raise _no_overload("_?_:_", types, node.at)
        kind = t.join(then.type, otherwise.type)
        if kind is None:
            types = [condition.type, then.type, otherwise.type]
            raise _no_overload("_?_:_", types, node.at)
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
                raise _error(_at(entry.value), f"expected type '{kind}' but found '{own}'")
            kind = joined
        cost = 1 + sum(part.cost for part, _ in parts)
        result = t.list_of(kind or t.DYN)
        if all(part.constant and not optional for part, optional in parts):
            return _constant(result, tuple(part.value for part, _ in parts))
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
                raise _error(_at(where), f"expected type '{expected}' but found '{got}'")
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

    def _call(self, node: Call) -> Compiled:
        if node.target is None and node.function == "has":
            return self._has(node)
        target = node.target
        if isinstance(target, Identifier) and target.name not in self._scope:
            qualified = f"{target.name}.{node.function}"
            if qualified == "cel.bind":
                return self._bind(node)
            if qualified in FUNCTIONS:
                return self._function(qualified, None, node)
        if target is not None and node.function in _MACROS:
            macro = self._macro(node)
            if macro is not None:
                return macro
        if node.function == "@in":
            known = self._known_presence(node)
            if known is not None:
                return known
        return self._function(node.function, target, node)

    def _known_presence(self, node: Call) -> Compiled | None:
        """Read ``"n" in device.attributes["d"]`` and ``"d" in device.attributes`` directly."""
        name, holder = node.args
        if not (isinstance(name, Literal) and isinstance(name.value, str)):
            return None
        text = name.value
        domain = self._domain_of(holder)
        if domain is not None:
            return self._presence(domain[0], f"{domain[1]}/{text}")
        table = self._table_of(holder)
        if table == "attributes":
            self.reads.add(("domain", text))
            return Compiled(t.BOOL, lambda f: f[DEVICE].has_domain(text), 3)
        return None

    def _presence(self, table: str, key: str) -> Compiled:
        if table == "attributes":
            self.reads.add(("attribute", key))
            return Compiled(t.BOOL, lambda f: f[DEVICE].has(key), 3)
        self.reads.add(("capacity", key))
        return Compiled(t.BOOL, lambda f: key in f[DEVICE].flat_capacity, 3)

    def _has(self, node: Call) -> Compiled:
        if len(node.args) != 1 or not isinstance(node.args[0], Select):
            raise _error(node.at, "invalid argument to has() macro: expected a field")
        field = node.args[0]
        entry = self._entry_of(field)
        if entry is not None:
            return self._presence(entry[0], entry[1])
        if self._is_device(field.operand):
            self._device_field(field)
            return _constant(t.BOOL, True)
        operand = self.visit(field.operand)
        base = _unwrapped(operand.type)
        if base.name not in ("map", "dyn"):
            raise _error(field.at, f"type '{operand.type}' does not support field selection")
        run, name = operand.run, field.field
        return Compiled(t.BOOL, lambda f: try_get(run(f), name).present, operand.cost + 1)

    def _function(self, name: str, target: Node | None, node: Call) -> Compiled:
        if name == "includes" and not self._lists:
            raise _error(node.at, "undeclared reference to 'includes' (in container '')")
        overloads = [o for o in FUNCTIONS.get(name, ()) if o.member == (target is not None)]
        if not overloads:
            raise _error(node.at, f"undeclared reference to '{name}' (in container '')")
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
            raise _no_overload(name, [arg.type for arg in args], node.at)
        returned = {kind for _, kind in fitting}
        kind = returned.pop() if len(returned) == 1 else t.DYN
        cost = 1 + sum(arg.cost for arg in args)
        run = fast_comparison(name, args) or dispatch(
            [overload for overload, _ in fitting], args, name
        )
        if all(arg.constant for arg in args):
            try:
                return _constant(kind, run(self._folding))
            except (EvaluationError, CostExceeded):
                # It fails when it is reached, which may be never.
                pass
        return Compiled(kind, run, cost)

    # Macros --------------------------------------------------------------------------------

    def _bind(self, node: Call) -> Compiled:
        if len(node.args) != 3:
            raise _error(node.at, "cel.bind() takes a variable, its value and an expression")
        variable = self._variable(node.args[0])
        value = self.visit(node.args[1])
        with self._locals((variable, value.type)) as (slot,):
            body = self.visit(node.args[2])
        a, b = value.run, body.run

        def run(f: Frame) -> Any:
            f[slot] = a(f)
            return b(f)

        return Compiled(body.type, run, value.cost + body.cost)

    def _variable(self, node: Node) -> str:
        if not isinstance(node, Identifier):
            raise _error(_at(node), "argument must be a simple name")
        return node.name

    def _locals(self, *variables: tuple[str, CelType]) -> _Locals:
        return _Locals(self, variables)

    def _macro(self, node: Call) -> Compiled | None:
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
        """Compile what a macro iterates over; return the types of its variables, too."""
        found = self.visit(node)
        kind = found.type
        if kind.name == "list":
            types = [t.INT, kind.parts[0]] if variables == 2 else [kind.parts[0]]
        elif kind.name == "map":
            types = list(kind.parts) if variables == 2 else [kind.parts[0]]
        elif kind == t.DYN:
            types = [t.DYN] * variables
        else:
            raise _error(
                _at(node),
                f"expression of type '{kind}' cannot be range of a comprehension "
                "(must be list, map, or dynamic)",
            )
        return found, types

    def _body(self, node: Node, boolean: bool) -> Compiled:
        body = self.visit(node)
        if boolean and body.type not in (t.BOOL, t.DYN):
            raise _error(_at(node), f"expected type 'bool' but found '{body.type}'")
        return body

    def _quantifier(self, node: Call, variables: int) -> Compiled:
        assert node.target is not None
        names = [self._variable(arg) for arg in node.args[:variables]]
        source, types = self._range(node.target, variables)
        with self._locals(*zip(names, types, strict=True)) as slots:
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

    def _filter(self, node: Call) -> Compiled:
        assert node.target is not None
        source, types = self._range(node.target, 1)
        with self._locals((self._variable(node.args[0]), types[0])) as slots:
            body = self._body(node.args[1], boolean=True)
        each, test = iteration(source.run, slots, body.cost + 2), body.run
        (slot,) = slots

        def run(f: Frame) -> tuple[Any, ...]:
            return tuple([f[slot] for _ in each(f) if as_bool(test(f))])

        return Compiled(t.list_of(types[0]), run, source.cost + 1)

    def _sort_by(self, node: Call) -> Compiled:
        assert node.target is not None
        source, types = self._range(node.target, 1)
        with self._locals((self._variable(node.args[0]), types[0])) as slots:
            body = self.visit(node.args[1])
        each, key = iteration(source.run, slots, body.cost + 4), body.run
        (slot,) = slots

        def run(f: Frame) -> tuple[Any, ...]:
            items, keys = [], []
            for _ in each(f):
                items.append(f[slot])
                keys.append(key(f))
            return sort_by_keys(tuple(items), keys)

        return Compiled(t.list_of(types[0]), run, source.cost + 1)

    def _transform(self, node: Call, variables: int) -> Compiled:
        """Compile map, transformList, transformMap and transformMapEntry."""
        assert node.target is not None
        names = [self._variable(arg) for arg in node.args[:variables]]
        source, types = self._range(node.target, variables)
        filtered = len(node.args) == variables + 2
        with self._locals(*zip(names, types, strict=True)) as slots:
            chosen = self._body(node.args[variables], boolean=True) if filtered else None
            body = self.visit(node.args[-1])
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

    def _optional_map(self, node: Call) -> Compiled:
        assert node.target is not None
        source = self.visit(node.target)
        if source.type.name not in ("optional_type", "dyn"):
            raise _no_overload(node.function, [source.type], node.at)
        inner = source.type.parts[0] if source.type.parts else t.DYN
        with self._locals((self._variable(node.args[0]), inner)) as (slot,):
            body = self.visit(node.args[1])
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


class _Locals:
    """Local variables while a macro's body is compiled."""

    def __init__(self, compiler: _Compiler, variables: Sequence[tuple[str, CelType]]) -> None:
        self._compiler = compiler
        self._variables = variables
        self._before: dict[str, tuple[int, CelType]] = {}

    def __enter__(self) -> tuple[int, ...]:
        compiler = self._compiler
        self._before = dict(compiler._scope)
        slots = []
        for name, kind in self._variables:
            slot = compiler._next_local
            compiler._next_local += 1
            compiler._scope[name] = (slot, kind)
            slots.append(slot)
        compiler.most_locals = max(compiler.most_locals, compiler._next_local - FIRST_LOCAL)
        return tuple(slots)

    def __exit__(self, *exc: object) -> None:
        self._compiler._scope = self._before
        self._compiler._next_local -= len(self._variables)


# At compile time -----------------------------------------------------------------------------


def _constant(kind: CelType, value: Any) -> Compiled:
    return Compiled(kind, lambda f: value, 0, True, value)


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


def _unwrapped(kind: CelType) -> CelType:
    return kind.parts[0] if kind.name == "optional_type" else kind


def _optional_part(kind: CelType, node: Node) -> CelType:
    if kind.name not in ("optional_type", "dyn"):
        raise _error(_at(node), f"expected type 'optional_type' but found '{kind}'")
    return kind.parts[0] if kind.parts else t.DYN


def _at(node: Node) -> Position:
    return node.at


def _error(at: Position, message: str) -> CompileError:
    return CompileError(message, at.line, at.column)


def _no_overload(name: str, types: Sequence[CelType], at: Position) -> CompileError:
    applied = ", ".join(str(kind) for kind in types)
    return _error(at, f"found no matching overload for '{name}' applied to '({applied})'")
