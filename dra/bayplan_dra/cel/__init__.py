"""CEL selectors over devices: compiled once, then evaluated in a few microseconds per device.

    program = compile_selector('device.attributes["gpu.example.com"].model == "H100"')
    program.matches(device)

The dialect and the functions are those of Kubernetes 1.36 for DRA. Users write expressions, so
their size and cost are limited, and an evaluation can be interrupted.
"""

from bayplan_dra.cel.device import CelDevice
from bayplan_dra.cel.errors import (
    CelError,
    CompileError,
    CostExceeded,
    EvaluationError,
    Interrupted,
)
from bayplan_dra.cel.frame import COST_LIMIT
from bayplan_dra.cel.program import Program, compile_selector

__all__ = [
    "COST_LIMIT",
    "CelDevice",
    "CelError",
    "CompileError",
    "CostExceeded",
    "EvaluationError",
    "Interrupted",
    "Program",
    "compile_selector",
]
