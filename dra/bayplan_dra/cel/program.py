"""A compiled selector, and its results for the devices that agree on what it reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bayplan.api.dra_validation import LONGEST_EXPRESSION
from bayplan_dra.cel import types
from bayplan_dra.cel.device import CelDevice
from bayplan_dra.cel.errors import (
    CelError,
    CompileError,
    EvaluationError,
    Interrupted,
)
from bayplan_dra.cel.frame import COST_LIMIT
from bayplan_dra.cel.values import type_name

if TYPE_CHECKING:
    from bayplan_dra.cel.compiler import CompiledExpression

__all__ = ["Program", "compile_selector"]

_MOST_SHARED = 100_000
_SAMPLE = 1_024
"""Misses after which results are cached only if at least half of the look-ups hit."""


class Program:
    """A compiled selector.

    :ivar reads: what it reads of a device, None for everything; devices that agree on that share
        one result.
    """

    def __init__(self, expression: str, source: CompiledExpression) -> None:
        self.expression = expression
        self.reads = source.reads
        self._run = source.run
        self._frame_rest: list[Any] = [None] * source.locals
        self._results: dict[object, bool | CelError] = {}
        self._asked = self._missed = 0
        by_kind: dict[str, list[str]] = {"attribute": [], "capacity": [], "domain": []}
        for kind, name in sorted(source.reads or ()):
            by_kind.setdefault(kind, []).append(name)
        self._attributes, self._capacities = by_kind["attribute"], by_kind["capacity"]
        self._domains = by_kind["domain"]
        self._reads_rest = len(by_kind) > 3

    def matches(self, device: CelDevice, interrupt: Callable[[], bool] | None = None) -> bool:
        """Evaluate for one device.

        :param interrupt: called every 100 iterations of a macro; True stops the evaluation.
        :raises EvaluationError: when there is no value, such as for a missing attribute.
        :raises CostExceeded: when it takes more than ``COST_LIMIT`` steps.
        :raises Interrupted: when the interrupt returned True.
        """
        value = self._run([device, COST_LIMIT, interrupt, 0, *self._frame_rest])
        if value is True or value is False:
            return bool(value)
        raise EvaluationError(
            f"CEL result of type {type_name(value)} could not be converted to bool"
        )

    def result(
        self, device: CelDevice, interrupt: Callable[[], bool] | None = None
    ) -> bool | CelError:
        """Return the result for a device, cached or evaluated; or the error.

        :param interrupt: as in ``matches``.
        :raises Interrupted: when the interrupt returned True.
        """
        if self.reads is None or not self._worth_keeping():
            return self._evaluate(device, interrupt)
        key = self._key(device)
        found = self._results.get(key)
        self._asked += 1
        if found is None:
            self._missed += 1
            if len(self._results) >= _MOST_SHARED:
                self._results.clear()
            found = self._results[key] = self._evaluate(device, interrupt)
        return found

    def _worth_keeping(self) -> bool:
        """Tell whether devices agree often enough for the cache to pay off."""
        return self._missed < _SAMPLE or self._missed * 2 < self._asked

    def _evaluate(self, device: CelDevice, interrupt: Callable[[], bool] | None) -> bool | CelError:
        try:
            return self.matches(device, interrupt)
        except Interrupted:
            raise
        except CelError as exc:
            # The error is cached for many devices; it must not keep frames alive.
            return exc.with_traceback(None)

    def _key(self, device: CelDevice) -> tuple[object, ...]:
        """Return all that the expression reads of a device."""
        mark: list[object] = [device.mark(name) for name in self._attributes]
        for name in self._capacities:
            found = device.flat_capacity.get(name)
            mark.append(found.text if found is not None else None)
        mark += [device.has_domain(name) for name in self._domains]
        if self._reads_rest:
            mark += [device.driver, device.allow_multiple_allocations]
        return tuple(mark)


@lru_cache(maxsize=1024)
def compile_selector(
    expression: str, multiple_allocations: bool = True, lists: bool = True
) -> Program:
    """Compile a selector; programs are cached.

    :param multiple_allocations: whether ``device.allowMultipleAllocations`` is declared.
    :param lists: whether list attributes and ``includes`` are allowed.
    :raises CompileError: with what is wrong, and where.
    """
    size = len(expression.encode())
    if size > LONGEST_EXPRESSION:
        raise CompileError(
            f"expression is too long: {size} bytes, the limit is {LONGEST_EXPRESSION}"
        )
    # Loading the parser takes as long as a small simulation, and most have no selector.
    from bayplan_dra.cel.compiler import compile_node
    from bayplan_dra.cel.syntax import parse

    source = compile_node(parse(expression), multiple_allocations, lists)
    if source.type not in (types.BOOL, types.DYN):
        raise CompileError(f"must evaluate to bool or the unknown type, not {source.type}", 1, 1)
    if source.cost > COST_LIMIT:
        raise CompileError("expression is too complex: its cost exceeds the limit")
    return Program(expression, source)
