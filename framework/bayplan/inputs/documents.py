"""YAML and JSON files: read and parse documents, and locate paths in them for error messages."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from bayplan.errors import InputError, nearest
from bayplan.inputs.jsontext import duplicate_key, parse_json, parse_json_sequence
from bayplan.inputs.limits import CONFIGURATION, FILE, LimitExceeded, Limits
from bayplan.inputs.yamltext import Position, YamlProblem, parse_yaml, positions

__all__ = [
    "Document",
    "Text",
    "iter_documents",
    "parse_documents",
    "read_stdin",
    "read_text",
    "similar_path",
]


class Text(msgspec.Struct, frozen=True, dict=True):
    """The text of a file; ``source`` is its name in messages."""

    source: str
    content: str

    @cached_property
    def positions(self) -> list[Position | None]:
        """The positions of the values of each document; computed for the first error."""
        return positions(self.content)


@dataclass(frozen=True)
class Document:
    """One document of a file; ``index`` counts from 1."""

    source: str
    index: int
    content: Any
    text: Text = field(repr=False, compare=False)

    def where(self, path: Sequence[str | int] = (), key: bool = False) -> str:
        """Return ``file:line:column`` of a path inside the document, or of its nearest parent.

        :param key: return the position of the value's key instead of the value.
        """
        of_text = self.text.positions
        root = of_text[self.index - 1] if self.index <= len(of_text) else None
        if root is None:
            return self.source
        position, steps = root.find(path)
        line, column = position.line, position.column
        if key and position.key is not None and steps == len(path):
            line, column = position.key
        return f"{self.source}:{line}:{column}"


def read_text(path: Path, limits: Limits = CONFIGURATION) -> str:
    """Read a UTF-8 file.

    :raises InputError: when it cannot be read, is not UTF-8, or is larger than the limits allow.
    """
    try:
        with path.open("rb") as file:
            content = file.read(limits.size + 1)
        limits.check_size(content)
    except LimitExceeded as exc:
        raise InputError(str(exc), str(path)) from None
    except FileNotFoundError as exc:
        raise InputError(f"{exc.strerror}{similar_path(path)}", str(path)) from None
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(path)) from None
    return _decoded(content, str(path))


def similar_path(path: Path) -> str:
    """Return ``'; did you mean "PATH"?'`` for what is there under a similar name, else ""."""
    for above in path.parents:
        if not above.is_dir():
            continue
        missing, *below = path.relative_to(above).parts
        try:
            near = nearest(missing, (one.name for one in above.iterdir()))
        except OSError:
            return ""
        found = above.joinpath(near, *below) if near else path
        return f'; did you mean "{found}"?' if near and found.exists() else ""
    return ""


def read_stdin() -> str:
    """Read standard input as UTF-8, whatever the locale.

    :raises InputError: when it is not UTF-8, or is too large.
    """
    content = sys.stdin.buffer.read(FILE.size + 1)
    try:
        FILE.check_size(content)
    except LimitExceeded as exc:
        raise InputError(str(exc), "standard input") from None
    return _decoded(content, "standard input")


def _decoded(content: bytes, source: str) -> str:
    try:
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
    except UnicodeDecodeError as exc:
        raise InputError(f"is not UTF-8 text (byte {exc.start})", source) from None


def parse_documents(text: str, source: str, limits: Limits = CONFIGURATION) -> list[Document]:
    """Parse all documents of a text; empty documents are skipped, but count for the index.

    :param source: the name of the text in messages.
    :raises InputError: for a text that is not YAML, naming the line, or is beyond the limits.
    """
    return list(iter_documents(text, source, limits))


def iter_documents(text: str, source: str, limits: Limits) -> Iterator[Document]:
    """Parse the documents of a text one by one; see ``parse_documents``.

    :raises InputError: for a text that is not YAML, naming the line, or is beyond the limits.
    """
    whole = Text(source, text)
    try:
        contents = _json(text, limits) if text.lstrip()[:1] in ("{", "[") else None
        for index, content in enumerate(contents or parse_yaml(text, limits), start=1):
            if content is not None:
                yield Document(source, index, content, whole)
    except LimitExceeded as exc:
        raise InputError(str(exc), source) from None
    except YamlProblem as exc:
        where = f"{source}:{exc.line}:{exc.column}" if exc.line else source
        raise InputError(f"not YAML: {exc.message}", where) from None


def _json(text: str, limits: Limits) -> list[Any] | None:
    """Return the values of a JSON text, None if only the YAML parser can read it."""
    try:
        content = text.encode()
        value = parse_json(content, limits)
    except LimitExceeded:
        raise
    except ValueError:
        return parse_json_sequence(text)
    # The YAML parser finds the duplicate key and its line.
    return None if duplicate_key(content, value) is not None else [value]
