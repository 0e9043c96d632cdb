"""Turns what a plugin raised into an error that names the plugin, the hook and the line."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any

from bayplan.errors import PluginError

__all__ = ["PLUGIN_RAISES", "failure"]

PLUGIN_RAISES = (Exception, SystemExit)
"""What is caught from a plugin; SystemExit too: a plugin must not end the scheduler."""


def failure(
    plugin: str, hook: str, cause: BaseException, function: Callable[..., Any]
) -> PluginError:
    """Return the error for what a plugin raised, or for an unusable answer.

    It points at the innermost line of the plugin's package, or at ``function`` itself.
    """
    return PluginError(plugin, hook, cause, _place(cause, function))


def _place(cause: BaseException, function: Callable[..., Any]) -> str:
    """Return ``file:line``, "" for functions without Python code."""
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    if code is None:
        return ""
    place = f"{code.co_filename}:{code.co_firstlineno}"
    package = _package(plain.__globals__) if hasattr(plain, "__globals__") else None
    for frame, line in traceback.walk_tb(cause.__traceback__):
        file = frame.f_code.co_filename
        if file == code.co_filename or _package(frame.f_globals) == package:
            place = f"{file}:{line}"
    return place


def _package(namespace: dict[str, Any]) -> str:
    return str(namespace.get("__name__", "")).partition(".")[0]
