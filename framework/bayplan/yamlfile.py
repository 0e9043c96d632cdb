"""YAML files with positions: parse documents, and say where in the file a path is.

The YAML is that of Kubernetes: no time stamps, no tags, and no key twice in one mapping.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bayplan.errors import InputError

__all__ = ["Document", "parse_documents", "read_stdin", "read_text"]

_MAX_BYTES = 512 * 1024 * 1024
_MAX_DEPTH = 200


@dataclass(frozen=True)
class Document:
    """One document of a file; ``index`` counts from 1, ``text`` is the whole file's."""

    source: str
    index: int
    content: Any
    text: str

    def where(self, path: Sequence[str | int] = ()) -> str:
        """Return ``file:line:column`` of a path inside the document, as near as it exists."""
        node = _compose(self.text, self.index)
        for step in path:
            child = _child(node, step)
            if child is None:
                break
            node = child
        if node is None:
            return self.source
        return f"{self.source}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def read_text(path: Path) -> str:
    """Read a UTF-8 file.

    :raises InputError: when it cannot be read.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"is larger than {_MAX_BYTES >> 20} MiB", str(path))
        return _decoded(path.read_bytes(), str(path))
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(path)) from None


def read_stdin() -> str:
    """Read standard input, which has to be UTF-8 whatever the locale.

    :raises InputError: when it is not.
    """
    return _decoded(sys.stdin.buffer.read(), "standard input")


def _decoded(content: bytes, source: str) -> str:
    try:
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
    except UnicodeDecodeError as exc:
        raise InputError(f"is not UTF-8 text (byte {exc.start})", source) from None


def parse_documents(text: str, source: str) -> list[Document]:
    """Parse all documents of a file; empty ones are left out, but counted.

    :raises InputError: for text that is not YAML, naming the line.
    """
    found = []
    try:
        loader = _Loader(text)
        try:
            index = 0
            while loader.check_data():
                index += 1
                content = loader.get_data()
                if content is not None:
                    found.append(Document(source, index, content, text))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise InputError(f"not YAML: {exc.problem or exc.context}", where) from None
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise InputError(
            f"not YAML: the character {exc.character!r} is not allowed", f"{source}:{line}"
        ) from None
    except yaml.YAMLError as exc:
        raise InputError(f"not YAML: {exc}", source) from None
    except RecursionError:
        raise InputError(
            "not usable YAML: nested too deeply, or containing itself", source
        ) from None
    return found


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """The safe loader, without time stamps and with duplicate keys refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _problem("a key has to be a text", key)
            if key.value in seen:
                raise _problem(f'the key "{key.value}" stands twice', key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError):
            raise _problem(f"a value that is no {node.tag.rsplit(':', 1)[-1]}", node) from None


def _problem(text: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, text, node.start_mark)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def _compose(text: str, index: int) -> yaml.Node | None:
    for number, node in enumerate(yaml.compose_all(text, Loader=_Loader), start=1):
        if number == index:
            return node
    return None


def _child(node: yaml.Node | None, step: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return value  # type: ignore[no-any-return]
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step]  # type: ignore[no-any-return]
    return None
