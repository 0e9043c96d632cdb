"""Find the problems of an object's fields: unknown fields, and values of the wrong type."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from bayplan.schemas.catalog import ListOf, MapOf, RecordType, Scalar, Type, record_of
from bayplan.schemas.checkers import SCALARS, ItemBudget, checker_of

__all__ = ["FieldProblem", "Step", "Walk", "field_problems", "record_problems"]

Step = str | int


class Key(str):
    """A step into a mapping with free keys."""

    __slots__ = ()


_MOST = 100
"""The most problems that are reported for one object."""
_NEAR = 0.8
"""From this similarity (difflib's ratio) on, an unknown name is a misspelt known one."""
_RESEMBLING = 0.6
"""From this similarity on, a known name is suggested."""


class FieldProblem(msgspec.Struct, frozen=True):
    """Something wrong with a field.

    :param steps: the path to it: names, keys and indices from the object down.
    :param message: the problem, without the path.
    :param unknown: whether it is a field that the type does not have.
    :param certain: whether it is surely a mistake. An unknown field that resembles no field of the
        type may belong to a newer version.
    """

    steps: tuple[Step, ...]
    message: str
    unknown: bool
    certain: bool = True

    @property
    def path(self) -> str:
        """The JSON path, such as ``$.spec.containers[0].resource``."""
        return "$" + "".join(_json_step(step) for step in self.steps)

    @property
    def field(self) -> str:
        """The path in the API server's spelling, such as ``spec.containers[0].resource``."""
        text = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in self.steps)
        return text.removeprefix(".")


def field_problems(api_version: str, kind: str, content: Mapping[str, Any]) -> list[FieldProblem]:
    """Return the problems of an object's fields, at most 100; none for an unknown kind.

    :param api_version: the version with its group, such as ``apps/v1``.
    """
    record = record_of(api_version, kind)
    return [] if record is None else record_problems(record, content)


def record_problems(record: Type, content: Any) -> list[FieldProblem]:
    """Return the problems of a value of a type, at most 100."""
    budget = ItemBudget()
    if checker_of(record)(content, budget):
        return []
    if budget.left < 0:
        return [FieldProblem((), "too large", unknown=False)]
    found = []
    for problem in Walk().find(record, content, ()):
        found.append(problem)
        if len(found) == _MOST:
            break
    return found


class Walk:
    """Walks one object and finds its problems; slower than a checker, which only says yes or no."""

    def __init__(self) -> None:
        self._left = ItemBudget().left

    def find(self, type_: Type, value: Any, steps: tuple[Step, ...]) -> Iterator[FieldProblem]:
        """Yield the problems of a value; ``steps`` is the path to it."""
        if value is None:
            return
        if isinstance(type_, Scalar):
            if type_.name != "any" and type(value) not in SCALARS[type_.name]:
                yield _wrong(_EXPECTED[type_.name], value, steps)
        elif isinstance(type_, ListOf):
            yield from self._list(type_, value, steps)
        elif type(value) is not dict:
            yield _wrong("a mapping", value, steps)
        else:
            yield from self._mapping(type_, value, steps)

    def _list(self, type_: ListOf, value: Any, steps: tuple[Step, ...]) -> Iterator[FieldProblem]:
        if type(value) is not list:
            yield _wrong("a list", value, steps)
            return
        for index, item in enumerate(value):
            self._left -= 1
            if self._left < 0:
                return
            yield from self.find(type_.items, item, (*steps, index))

    def _mapping(
        self, type_: MapOf | RecordType, value: dict[Any, Any], steps: tuple[Step, ...]
    ) -> Iterator[FieldProblem]:
        for key, item in value.items():
            self._left -= 1
            if self._left < 0:
                return
            if type(key) is not str:
                text = f"expected keys that are text, got {_shown(key)}"
                yield FieldProblem(steps, text, unknown=False)
            elif isinstance(type_, MapOf):
                yield from self.find(type_.values, item, (*steps, Key(key)))
            elif key in type_.fields:
                yield from self.find(type_.fields[key].type, item, (*steps, key))
            elif not type_.open:
                yield _unknown(type_, key, (*steps, key))


# Unknown fields --------------------------------------------------------------------------------

_MOVED = {
    "resource.v1.Device": (
        ("basic",),
        'since resource.k8s.io/v1 the fields of "basic" belong in the device itself',
    ),
    "resource.v1.DeviceRequest": (
        (
            "deviceClassName",
            "selectors",
            "allocationMode",
            "count",
            "adminAccess",
            "tolerations",
            "capacity",
        ),
        'belongs under "exactly" since resource.k8s.io/v1',
    ),
}
"""Fields of earlier versions, and where they are now."""


def _unknown(record: RecordType, name: str, steps: tuple[Step, ...]) -> FieldProblem:
    # v1beta2 has the shape of v1.
    moved, hint = _MOVED.get(record.name.replace(".v1beta2.", ".v1."), ((), ""))
    if name in moved:
        return FieldProblem(steps, hint, unknown=True)
    near = _nearest(name, record.fields, _NEAR)
    if near:
        return FieldProblem(steps, f'unknown field; did you mean "{near}"?', unknown=True)
    near = _nearest(name, record.fields, _RESEMBLING)
    hint = f' (did you mean "{near}"?)' if near else ""
    return FieldProblem(steps, f"unknown field{hint}", unknown=True, certain=False)


def _nearest(name: str, known: Iterable[str], cutoff: float) -> str:
    plain = {_plain(one): one for one in known}
    if _plain(name) in plain:
        return plain[_plain(name)]
    near = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=cutoff)
    return plain[near[0]] if near else ""


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


# Wrong types -----------------------------------------------------------------------------------

_EXPECTED = {
    "boolean": "true or false",
    "bytes": "a string in base64",
    "int-or-string": "an integer or a string",
    "int32": "an integer",
    "int64": "an integer",
    "integer": "an integer",
    "number": "a number",
    "quantity": "a quantity",
    "string": "a string",
    "time": "a time",
}
_GOT = {
    bool: "a boolean",
    dict: "a mapping",
    float: "a number",
    int: "an integer",
    list: "a list",
    str: "a string",
}


def _wrong(expected: str, value: Any, steps: tuple[Step, ...]) -> FieldProblem:
    got = _GOT.get(type(value), type(value).__name__)
    return FieldProblem(steps, f"expected {expected}, got {got}", unknown=False)


def _shown(key: object) -> str:
    text = str(key).lower() if isinstance(key, bool) else str(key)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _json_step(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f'["{step}"]' if isinstance(step, Key) or not step.isidentifier() else f".{step}"
