"""What the product defines, the product uses: no function or class is there for tests alone."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import TypeGuard

from tests.paths import ROOT

SOURCES = ("framework", "plugins", "dra", "remote", "benchmarks")
CALLED_BY_OTHERS = re.compile("hookimpl|hookspec|validator|command|option|overload|serializer")
"""Decorators of what pluggy, pydantic, Click and type checkers call."""
OF_LIBRARIES = {
    "cli/commands.py": "Click calls the methods of a group",
    "cel/syntax.py": "the parser calls the method of a grammar's rule",
    "driver/web.py": "http.server calls the methods of a handler",
    "bayplan/logs.py": "logging calls the methods of a handler",
    "kubernetes/credentials.py": "logging calls the methods of a handler",
    "remote/client.py": "programs that use a remote GPU call it",
}
FOR_AUTHORS = ("bayplan/testing/",)
"""What plugin authors use in their tests."""
TROUBLE = {"end_watches", "last_version", "fail_next", "break_watch", "resume_watch", "vanish_node"}
"""What an embedded cluster is told to do wrong, so that tests see how others cope."""
VOTES = {"enqueueable", "voters"}
"""Volcano's functions by their names, and those that the cases of Volcano ask one by one."""

Definition = tuple[Path, str]


def is_defined(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Tell whether a node defines what only our own code can use."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    decorators = " ".join(ast.unparse(one) for one in node.decorator_list)
    return not node.name.startswith("__") and not CALLED_BY_OTHERS.search(decorators)


def test_what_the_product_defines_the_product_uses() -> None:
    defined: list[Definition] = []
    used: Counter[str] = Counter()
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Name):
                    used[node.id] += 1
                elif isinstance(node, ast.Attribute):
                    used[node.attr] += 1
                elif is_defined(node):
                    defined.append((path.relative_to(ROOT), node.name))
    plugins = set(re.findall(r":(\w+)\"", (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    excused = plugins | TROUBLE | VOTES
    unused = [
        f"{path}: {name}"
        for path, name in defined
        if not used[name]
        and name not in excused
        and not any(part in str(path) for part in (*OF_LIBRARIES, *FOR_AUTHORS))
    ]
    assert unused == [], "used by nothing, or by tests alone"
