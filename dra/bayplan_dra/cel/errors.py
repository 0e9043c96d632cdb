"""The errors of CEL expressions."""

from __future__ import annotations

__all__ = ["CelError", "CompileError", "CostExceeded", "EvaluationError", "Interrupted"]


class CelError(Exception):
    """Base of all errors of CEL expressions."""


class CompileError(CelError):
    """The expression has a syntax error, an undeclared name or a wrong type.

    ``line`` and ``column`` count from 1; 0 means unknown.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        where = f"ERROR: <input>:{line}:{column}: " if line else ""
        super().__init__(f"{where}{message}")
        self.message = message
        self.line = line
        self.column = column


class EvaluationError(CelError):
    """The expression has no value for this device, such as "no such key: model"."""


class CostExceeded(CelError):
    """The evaluation took more steps than allowed."""


class Interrupted(CelError):
    """The caller interrupted the evaluation."""
