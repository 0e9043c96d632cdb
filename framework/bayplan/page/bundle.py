"""The page's script and style: its modules joined in the order in which they import each other.

A file that opens from disk cannot load modules, so they are joined into one script. Each module
becomes a function of its own; the modules of ``assets/views`` are the page's views, by file name.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

__all__ = ["script", "style"]

_IMPORT = re.compile(r'^import \{([^}]*)\} from "([^"]+)";\n', re.M)
_EXPORT = re.compile(r"^export (?:async )?(?:function\*?|const|class) (\w+)", re.M)


def _assets() -> Traversable:
    return files("bayplan.page") / "assets"


def _modules() -> dict[str, str]:
    """Return the text of each module by its path, such as ``views/jobs.js``."""
    root = _assets()
    found = {one.name: one for one in root.iterdir() if one.name.endswith(".js")}
    views = {f"views/{one.name}": one for one in (root / "views").iterdir()}
    return {name: one.read_text("utf-8") for name, one in sorted({**found, **views}.items())}


def _path(importer: str, target: str) -> str:
    folder = importer.rpartition("/")[0]
    parts = [*folder.split("/")] if folder else []
    for part in target.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _name(path: str) -> str:
    return "module_" + re.sub(r"\W", "_", path.removesuffix(".js"))


@cache
def script() -> str:
    """Return all modules as one script.

    :raises ValueError: for a module that imports one that does not exist, or a circle of them.
    """
    modules = _modules()
    done: dict[str, str] = {}
    open_: list[str] = []

    def add(path: str) -> None:
        if path in done:
            return
        if path not in modules:
            raise ValueError(f'{open_[-1]} imports "{path}", which does not exist')
        if path in open_:
            raise ValueError(f"modules import each other: {' -> '.join([*open_, path])}")
        open_.append(path)
        for _, target in _IMPORT.findall(modules[path]):
            add(_path(path, target))
        open_.pop()
        done[path] = _wrapped(path, modules[path])

    views = [path for path in modules if path.startswith("views/")]
    for path in views:
        add(path)
    listed = ", ".join(f"{_name(path)}.view" for path in views)
    add("app.js")
    app = f"{_name('app.js')}.start([{listed}]);"
    return "\n".join(['"use strict";', *done.values(), app, ""])


def _wrapped(path: str, text: str) -> str:
    def imported(match: re.Match[str]) -> str:
        return f"const {{{match[1].replace(' as ', ': ')}}} = {_name(_path(path, match[2]))};\n"

    names = ", ".join(_EXPORT.findall(text))
    body = re.sub(r"^export ", "", _IMPORT.sub(imported, text), flags=re.M)
    return f"const {_name(path)} = (() => {{\n{body}\nreturn {{ {names} }};\n}})();"


@cache
def style() -> str:
    """Return the page's style sheet."""
    return (_assets() / "style.css").read_text("utf-8")
