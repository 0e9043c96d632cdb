"""CEL's syntax: text to a tree of nodes.

The grammar is cel-python's, extended by optional access (``a.?b``, ``a[?b]``) and optional entries
of lists and maps.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import lark
import msgspec

from bayplan_dra.cel.errors import CompileError
from bayplan_dra.cel.values import Uint

__all__ = [
    "Conditional",
    "FunctionCall",
    "Identifier",
    "Index",
    "ListLiteral",
    "Literal",
    "LiteralEntry",
    "Logical",
    "MapLiteral",
    "Node",
    "Select",
    "SourcePosition",
    "parse",
]

_DEEPEST = 250
"""How deep an expression may be nested (cel-go's recursion limit)."""

_OPTIONALS = """
%extend member : member_opt_dot | member_opt_index
member_opt_dot : member "." "?" IDENT
member_opt_index : member "[" "?" expr "]"
%override list_lit : "[" [listinits] "]"
listinits : listinit ("," listinit)* [","]
listinit : expr | opt_listinit
opt_listinit : "?" expr
%override mapinits : mapinit ("," mapinit)* [","]
mapinit : expr ":" expr | opt_mapinit
opt_mapinit : "?" expr ":" expr
"""


class SourcePosition(msgspec.Struct, frozen=True):
    """The start of a node; line and column count from 1."""

    line: int = 1
    column: int = 1


class Literal(msgspec.Struct, frozen=True):
    """A constant."""

    value: Any
    at: SourcePosition


class Identifier(msgspec.Struct, frozen=True):
    """A name."""

    name: str
    at: SourcePosition


class Select(msgspec.Struct, frozen=True):
    """``operand.field``, or with ``optional`` ``operand.?field``."""

    operand: Node
    field: str
    optional: bool
    at: SourcePosition


class Index(msgspec.Struct, frozen=True):
    """``operand[key]``, or with ``optional`` ``operand[?key]``."""

    operand: Node
    key: Node
    optional: bool
    at: SourcePosition


class FunctionCall(msgspec.Struct, frozen=True):
    """A function, operator (``_+_``) or macro; ``target`` is the expression before the dot."""

    function: str
    target: Node | None
    args: tuple[Node, ...]
    at: SourcePosition


class Logical(msgspec.Struct, frozen=True):
    """``a && b && ...`` or, with ``any_of``, ``a || b || ...``."""

    any_of: bool
    args: tuple[Node, ...]
    at: SourcePosition


class Conditional(msgspec.Struct, frozen=True):
    """``condition ? then : otherwise``."""

    condition: Node
    then: Node
    otherwise: Node
    at: SourcePosition


class LiteralEntry(msgspec.Struct, frozen=True):
    """One entry of a list (``key`` None) or map; ``optional`` entries may have no value."""

    key: Node | None
    value: Node
    optional: bool


class ListLiteral(msgspec.Struct, frozen=True):
    """``[a, b]``."""

    entries: tuple[LiteralEntry, ...]
    at: SourcePosition


class MapLiteral(msgspec.Struct, frozen=True):
    """``{k: v}``."""

    entries: tuple[LiteralEntry, ...]
    at: SourcePosition


Node: TypeAlias = (
    Literal
    | Identifier
    | Select
    | Index
    | FunctionCall
    | Logical
    | Conditional
    | ListLiteral
    | MapLiteral
)


def parse(text: str) -> Node:
    """Parse an expression.

    :raises CompileError: for a syntax error, or nesting deeper than 250.
    """
    try:
        tree = _parser().parse(text)
    except lark.exceptions.UnexpectedInput as exc:
        line, column = max(getattr(exc, "line", 1), 1), max(getattr(exc, "column", 1), 1)
        source = text.splitlines()[line - 1 : line]
        shown = f": {source[0].strip()[:80]!r}" if source else ""
        raise CompileError(f"Syntax error{shown}", line, column) from None
    except lark.exceptions.LarkError as exc:
        raise CompileError(f"Syntax error: {str(exc).splitlines()[0]}", 1, 1) from None
    return _TreeReader(text).read(tree, 0)


@lru_cache(maxsize=1)
def _parser() -> lark.Lark:
    found = importlib.util.find_spec("celpy")
    assert found is not None
    assert found.origin is not None, "cel-python is a dependency"
    grammar = Path(found.origin).with_name("cel.lark").read_text(encoding="utf-8")
    return lark.Lark(
        grammar + _OPTIONALS,
        parser="lalr",
        start="expr",
        g_regex_flags=re.M,
        lexer_callbacks={"IDENT": _constant_names},
        propagate_positions=True,
        maybe_placeholders=False,
        priority="invert",
    )


def _constant_names(token: lark.Token) -> lark.Token:
    if token.value in ("true", "false"):
        return lark.Token.new_borrow_pos("BOOL_LIT", token.value, token)
    return token


_OPERATORS = {
    "relation_lt": "_<_",
    "relation_le": "_<=_",
    "relation_gt": "_>_",
    "relation_ge": "_>=_",
    "relation_eq": "_==_",
    "relation_ne": "_!=_",
    "relation_in": "@in",
    "addition_add": "_+_",
    "addition_sub": "_-_",
    "multiplication_mul": "_*_",
    "multiplication_div": "_/_",
    "multiplication_mod": "_%_",
}
Tree: TypeAlias = "lark.Tree[Any]"


class _TreeReader:
    """Turns the parser's tree, with its many levels of precedence, into nodes."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")

    def read(self, tree: Tree, depth: int) -> Node:
        # A level of precedence without an operator has one child; only real nesting counts.
        while len(tree.children) == 1 and tree.data in _TRANSPARENT:
            tree = tree.children[0]
        if depth > _DEEPEST:
            raise CompileError(
                f"expression recursion limit exceeded: {_DEEPEST}", *_line_column(tree)
            )
        method: Callable[[Tree, int], Node] = getattr(self, f"_{tree.data}", self._binary)
        return method(tree, depth + 1)

    def _expr(self, tree: Tree, depth: int) -> Node:
        condition, then, otherwise = (self.read(child, depth) for child in tree.children)
        return Conditional(condition, then, otherwise, _at(tree))

    def _conditionalor(self, tree: Tree, depth: int) -> Node:
        return Logical(True, self._chain(tree, depth), _at(tree))

    def _conditionaland(self, tree: Tree, depth: int) -> Node:
        return Logical(False, self._chain(tree, depth), _at(tree))

    def _chain(self, tree: Tree, depth: int) -> tuple[Node, ...]:
        operands: list[Node] = []
        kind = tree.data
        while tree.data == kind and len(tree.children) == 2:
            operands.append(self.read(tree.children[1], depth))
            tree = tree.children[0]
        operands.append(self.read(tree, depth))
        return tuple(reversed(operands))

    def _binary(self, tree: Tree, depth: int) -> Node:
        left, right = tree.children
        args = (self.read(left.children[0], depth), self.read(right, depth))
        return FunctionCall(_OPERATORS[left.data], None, args, self._after(left))

    def _after(self, tree: Tree) -> SourcePosition:
        """Return the position of the operator after an operand."""
        line, column = tree.meta.end_line, tree.meta.end_column
        rest = self._lines[line - 1][column - 1 :] if line <= len(self._lines) else ""
        return SourcePosition(line, column + len(rest) - len(rest.lstrip()))

    def _unary(self, tree: Tree, depth: int) -> Node:
        sign, operand = tree.children
        name = "!_" if sign.data == "unary_not" else "-_"
        return FunctionCall(name, None, (self.read(operand, depth),), _at(tree))

    def _member_dot(self, tree: Tree, depth: int) -> Node:
        operand, name = tree.children
        return Select(self.read(operand, depth), str(name), False, _before(name))

    def _member_opt_dot(self, tree: Tree, depth: int) -> Node:
        operand, name = tree.children
        return Select(self.read(operand, depth), str(name), True, _before(name))

    def _member_dot_arg(self, tree: Tree, depth: int) -> Node:
        operand, name, *args = tree.children
        return FunctionCall(
            str(name), self.read(operand, depth), self._args(args, depth), _at(tree)
        )

    def _member_index(self, tree: Tree, depth: int) -> Node:
        operand, key = (self.read(child, depth) for child in tree.children)
        return Index(operand, key, False, _at(tree))

    def _member_opt_index(self, tree: Tree, depth: int) -> Node:
        operand, key = (self.read(child, depth) for child in tree.children)
        return Index(operand, key, True, _at(tree))

    def _member_object(self, tree: Tree, depth: int) -> Node:
        raise CompileError("message literals are not supported", *_line_column(tree))

    def _ident(self, tree: Tree, depth: int) -> Node:
        name = str(tree.children[0])
        return Literal(None, _at(tree)) if name == "null" else Identifier(name, _at(tree))

    _dot_ident = _ident

    def _ident_arg(self, tree: Tree, depth: int) -> Node:
        name, *args = tree.children
        return FunctionCall(str(name), None, self._args(args, depth), _at(tree))

    _dot_ident_arg = _ident_arg

    def _args(self, found: list[Tree], depth: int) -> tuple[Node, ...]:
        return tuple(self.read(arg, depth) for arg in found[0].children) if found else ()

    def _list_lit(self, tree: Tree, depth: int) -> Node:
        entries = []
        for item in tree.children[0].children if tree.children else ():
            (value,) = item.children
            optional = value.data == "opt_listinit"
            inner = value.children[0] if optional else value
            entries.append(LiteralEntry(None, self.read(inner, depth), optional))
        return ListLiteral(tuple(entries), _at(tree))

    def _map_lit(self, tree: Tree, depth: int) -> Node:
        entries = []
        for item in tree.children[0].children if tree.children else ():
            optional = len(item.children) == 1
            key, value = item.children[0].children if optional else item.children
            entries.append(LiteralEntry(self.read(key, depth), self.read(value, depth), optional))
        return MapLiteral(tuple(entries), _at(tree))

    def _literal(self, tree: Tree, depth: int) -> Node:
        token = tree.children[0]
        assert isinstance(token, lark.Token)
        return Literal(_literal_value(token), _at(tree))


_TRANSPARENT = {
    "expr",
    "conditionalor",
    "conditionaland",
    "relation",
    "addition",
    "multiplication",
    "unary",
    "member",
    "primary",
    "paren_expr",
}


def _line_column(tree: Tree) -> tuple[int, int]:
    if tree.meta.empty:
        return 1, 1
    return tree.meta.line, tree.meta.column


def _at(tree: Tree) -> SourcePosition:
    return SourcePosition(*_line_column(tree))


def _before(name: Any) -> SourcePosition:
    """Return the position of the dot before a field."""
    return SourcePosition(name.line or 1, max(1, (name.column or 2) - 1))


# Literals ------------------------------------------------------------------------------------


_LONGEST_NUMBER = 400


def _literal_value(token: lark.Token) -> Any:
    text = str(token)
    try:
        if token.type == "BOOL_LIT":
            return text == "true"
        if token.type == "NULL_LIT":
            return None
        if len(text) > _LONGEST_NUMBER and token.type in ("INT_LIT", "UINT_LIT", "FLOAT_LIT"):
            raise ValueError("does not fit into 64 bits")
        if token.type == "INT_LIT":
            return _within(int(text, 0) if "x" in text else int(text), -(2**63), 2**63)
        if token.type == "UINT_LIT":
            digits = text[:-1]
            number = int(digits, 0) if "x" in digits else int(digits)
            return Uint(_within(number, 0, 2**64))
        if token.type == "FLOAT_LIT":
            if text.endswith(".") or math.isinf(float(text)):
                raise ValueError("is not a double")
            return float(text)
        if token.type == "BYTES_LIT":
            return _bytes(text[1:])
        return _string(text)
    except ValueError as exc:
        line, column = token.line or 1, token.column or 1
        raise CompileError(f"invalid literal {text[:40]}: {exc}", line, column) from None


def _within(number: int, low: int, high: int) -> int:
    if not low <= number < high:
        raise ValueError("does not fit into 64 bits")
    return number


_ESCAPE = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\"'`?\\])|x(?P<x>[0-9a-fA-F]{2})|X(?P<X>[0-9a-fA-F]{2})"
    r"|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<octal>[0-3][0-7]{2})|(?P<bad>.|$))",
    re.DOTALL,
)
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _body(text: str) -> tuple[str, bool]:
    """Return the text between the quotes, and whether it is raw."""
    raw = text[:1] in "rR"
    if raw:
        text = text[1:]
    quotes = 3 if text[:3] in ('"""', "'''") else 1
    return text[quotes:-quotes], raw


def _string(text: str) -> str:
    body, raw = _body(text)
    return body if raw else _ESCAPE.sub(_unescape, body)


def _unescape(match: re.Match[str]) -> str:
    if match["simple"]:
        return _SIMPLE.get(match["simple"], match["simple"])
    if match["octal"]:
        return chr(int(match["octal"], 8))
    digits = match["x"] or match["X"] or match["u"] or match["U"]
    if digits is None:
        raise ValueError(f"unknown escape {match[0]}")
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ValueError(f"{match[0]} is not a character")
    return chr(code)


def _bytes(text: str) -> bytes:
    body, raw = _body(text)
    if raw:
        return body.encode()
    found = bytearray()
    last = 0
    for match in _ESCAPE.finditer(body):
        found += body[last : match.start()].encode()
        octet = match["x"] or match["X"]
        if octet:
            found.append(int(octet, 16))
        elif match["octal"]:
            found.append(int(match["octal"], 8))
        else:
            found += _unescape(match).encode()
        last = match.end()
    return bytes(found + body[last:].encode())
