"""Where plugins come from: entry points, ``module:Class`` names, and single files."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from functools import cached_property, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from bayplan.dialects.koordinator.gangs import PLUGIN_NAMES
from bayplan.errors import InputError, did_you_mean
from bayplan.plugin.contract import check_class
from bayplan.plugin.plugin import Plugin

__all__ = ["ENTRY_POINT_GROUP", "PluginFinder", "load_file", "plugin_files", "plugins_in"]

ENTRY_POINT_GROUP = "bayplan.plugins"

_TESTS = ("test_*.py", "*_test.py", "conftest.py")
"""Files that pytest collects; they may stand beside the plugins that they test."""


class PluginFinder:
    """Finds plugin classes by the name that a profile uses; loads only what is asked for.

    :param plugins_dir: a folder of single-file plugins; each class there is known by its name.
        Tests beside them are not loaded.
    """

    def __init__(self, plugins_dir: Path | None = None) -> None:
        self._classes: dict[str, type[Plugin[Any]]] = {}
        if plugins_dir is not None:
            if not plugins_dir.is_dir():
                raise InputError("is not a folder", str(plugins_dir))
            for path in plugin_files(plugins_dir):
                self._classes.update(plugins_in(load_file(path)))

    @cached_property
    def entry_points(self) -> Mapping[str, EntryPoint]:
        """The installed plugins' entry points by name."""
        return _installed(tuple((path, _changed_at(path)) for path in sys.path))

    def local(self) -> Mapping[str, type[Plugin[Any]]]:
        """Return the plugins of the plugins folder, by name."""
        return dict(self._classes)

    def find(self, name: str, where: str = "") -> type[Plugin[Any]]:
        """Return the class of a plugin.

        :raises InputError: when there is none, or it cannot be imported.
        """
        found = self._classes.get(name)
        if found is not None:
            check_class(name, found, where)
            return found
        installed = self.entry_points
        if name in installed:
            target = installed[name].value
        elif ":" in name:
            target = name
        else:
            known = {*installed, *self._classes}
            hint = did_you_mean(name, known)
            if name in PLUGIN_NAMES:
                hint = f'; bayplan calls it "{PLUGIN_NAMES[name]}"'
            raise InputError(f'there is no plugin "{name}"{hint}', where)
        cls = _import(target, name, where)
        check_class(name, cls, where)
        return cls


@lru_cache(1)
def _installed(_: tuple[tuple[str, int], ...]) -> Mapping[str, EntryPoint]:
    """Return the entry points of plugins; read again when a folder of Python's path changes."""
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    return MappingProxyType(found)


def _changed_at(path: str) -> int:
    """Return when a folder changed last, in nanoseconds; -1 if there is none."""
    try:
        return Path(path or ".").stat().st_mtime_ns
    except OSError:
        return -1


def _import(target: str, name: str, where: str) -> type[Plugin[Any]]:
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
        cls = getattr(module, attribute)
    except (Exception, SystemExit) as exc:
        problem = f"{type(exc).__name__}: {exc}"
        raise InputError(f'plugin "{name}" cannot be imported: {problem}', where) from exc
    if not (inspect.isclass(cls) and issubclass(cls, Plugin)):
        raise InputError(f'"{target}" is not a subclass of bayplan.Plugin', where)
    return cls


def plugin_files(folder: Path) -> list[Path]:
    """Return the Python files of a folder, without tests."""
    files = sorted(folder.glob("*.py"))
    return [path for path in files if not any(path.match(pattern) for pattern in _TESTS)]


def load_file(path: Path) -> ModuleType:
    """Import a Python file as a module named ``bayplan_local_STEM``.

    :raises InputError: when it cannot be imported.
    """
    name = f"bayplan_local_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InputError("is not a Python file", str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as exc:
        raise InputError(f"cannot be imported: {type(exc).__name__}: {exc}", str(path)) from exc
    return module


def plugins_in(module: ModuleType) -> dict[str, type[Plugin[Any]]]:
    """Return the plugin classes that a module defines, by name."""
    return {
        name: cls
        for name, cls in vars(module).items()
        if inspect.isclass(cls)
        and issubclass(cls, Plugin)
        and cls is not Plugin
        and cls.__module__ == module.__name__
    }
