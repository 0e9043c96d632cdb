"""The table of functions: by name, with the types that each overload takes and returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bayplan_dra.cel.errors import EvaluationError
from bayplan_dra.cel.types import CelType

__all__ = ["FUNCTIONS", "Overload", "declare", "fail"]


class Overload(msgspec.Struct, frozen=True):
    """An overload of a function: the types that it takes and returns.

    :ivar member: whether the first argument is before the dot.
    """

    member: bool
    takes: tuple[CelType, ...]
    returns: CelType
    run: Callable[..., Any]


FUNCTIONS: dict[str, list[Overload]] = {}
"""All functions by name; importing the modules of this package fills it."""


def declare(name: str, takes: Sequence[CelType], returns: CelType, run: Callable[..., Any]) -> None:
    """Declare an overload of a function; ``.name`` is a member of its first argument."""
    member = name.startswith(".")
    overload = Overload(member, tuple(takes), returns, run)
    FUNCTIONS.setdefault(name.lstrip("."), []).append(overload)


def fail(message: str) -> EvaluationError:
    """Return the error for a call that fails."""
    return EvaluationError(message)
