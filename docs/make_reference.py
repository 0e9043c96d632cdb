"""Write the reference of what hooks are given into docs/plugins.md: ``make docs``."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from bayplan import NodeRow, NodeView, PodInfo, Unit

__all__ = ["filled", "render"]

_BEGIN = "<!-- Generated from the classes by `make docs`; a test keeps it in step. -->\n"
_END = "<!-- The end of what is generated. -->\n"


def render() -> str:
    """Return the reference: of each class, what may be read, its type and what it means."""
    parts: list[str] = []
    for cls in (PodInfo, NodeRow, NodeView, Unit):
        parts.append(f"\n### {cls.__name__}\n\n{_text(cls.__doc__ or '')}\n\n")
        parts.append("| name | type | meaning |\n|---|---|---|\n")
        for name, kind, meaning in _members(cls):
            kind = kind.replace("|", "\\|")
            parts.append(f"| `{name}` | `{kind}` | {meaning} |\n")
    return "".join(parts) + "\n"


def filled(page: str) -> str:
    """Return a page with the reference of today between its markers."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{render()}{_END}{after}"


def _members(cls: type) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of the attributes, then of the methods of a class.

    :raises ValueError: for one that has no docstring or no type.
    """
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    methods: list[tuple[str, str, str]] = []
    for statement, following in pairwise([*node.body, ast.Pass()]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            doc = following.value if isinstance(following, ast.Expr) else None
            text = doc.value if isinstance(doc, ast.Constant) else None
            yield _row(cls, statement.target.id, statement.annotation, text)
        elif isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
            row = _row(cls, statement.name, statement.returns, ast.get_docstring(statement))
            if statement.decorator_list:
                yield row
            else:
                arguments = ", ".join(one.arg for one in statement.args.args[1:])
                methods.append((f"{row[0]}({arguments})", *row[1:]))
    yield from methods


def _row(cls: type, name: str, annotation: ast.expr | None, doc: object) -> tuple[str, str, str]:
    if annotation is None or not isinstance(doc, str):
        raise ValueError(f"{cls.__name__}.{name} needs a type and a docstring")
    return name, ast.unparse(annotation), _text(doc)


def _text(doc: str) -> str:
    return " ".join(inspect.cleandoc(doc).replace("``", "`").split())


if __name__ == "__main__":
    path = Path(__file__).parent / "plugins.md"
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
