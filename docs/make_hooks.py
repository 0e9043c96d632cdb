"""Write docs/hooks.md from the hook specifications: ``make docs``."""

from __future__ import annotations

import inspect
from pathlib import Path

from bayplan.plugin import hookspecs
from bayplan.plugin.contract import hook_names

__all__ = ["render"]

_HEAD = """\
# Hook reference

Generated from `bayplan/plugin/hookspecs.py` by `make docs`; a test keeps it in step. Hooks are
listed in the order in which a cycle runs them. A plugin implements any of them with `@hookimpl` and
takes any subset of the arguments. Start with [plugins.md](plugins.md).

"""


def render() -> str:
    """Return the page."""
    parts = [_HEAD]
    for name, arguments in hook_names().items():
        function = getattr(hookspecs, name)
        returns = str(inspect.signature(function).return_annotation)
        parts.append(f"## `{name}({', '.join(arguments)}) -> {returns}`\n\n")
        parts.append(f"{inspect.cleandoc(function.__doc__ or '')}\n\n")
    return "".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "hooks.md").write_text(render(), encoding="utf-8")
