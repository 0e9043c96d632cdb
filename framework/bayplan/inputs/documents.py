"""YAML and JSON files with places: parse documents, and say where in the file a path is."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bayplan.errors import InputError
from bayplan.inputs.jsontext import duplicate_key, parse_json, parse_json_sequence
from bayplan.inputs.limits import CONFIGURATION, FILE, LimitExceeded, Limits
from bayplan.inputs.yamltext import Place, YamlProblem, parse_yaml, places

__all__ = ["Document", "Text", "iter_documents", "parse_documents", "read_stdin", "read_text"]


@dataclass(frozen=True)
class Text:
    """A file's text; ``source`` is its name in messages."""

    source: str
    content: str

    @cached_property
    def places(self) -> list[Place | None]:
        """Where the values of each document stand; found out when an error first asks."""
        return places(self.content)


@dataclass(frozen=True)
class Document:
    """One document of a file; ``index`` counts from 1."""

    source: str
    index: int
    content: Any
    text: Text = field(repr=False, compare=False)

    def where(self, path: Sequence[str | int] = (), key: bool = False) -> str:
        """Return ``file:line:column`` of a path inside the document, as near as it exists.

        :param key: whether the key of the value is meant, rather than the value.
        """
        of_text = self.text.places
        root = of_text[self.index - 1] if self.index <= len(of_text) else None
        if root is None:
            return self.source
        place, steps = root.find(path)
        line, column = place.line, place.column
        if key and place.key is not None and steps == len(path):
            line, column = place.key
        return f"{self.source}:{line}:{column}"


def read_text(path: Path, limits: Limits = CONFIGURATION) -> str:
    """Read a UTF-8 file.

    :raises InputError: when it cannot be read, or is larger than the limits allow.
    """
    try:
        with path.open("rb") as file:
            content = file.read(limits.size + 1)
        limits.check_size(content)
    except LimitExceeded as exc:
        raise InputError(str(exc), str(path)) from None
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(path)) from None
    return _decoded(content, str(path))


def read_stdin() -> str:
    """Read standard input, which has to be UTF-8 whatever the locale.

    :raises InputError: when it is not, or is too large.
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
    """Parse all documents of a text; empty ones are left out, but counted.

    :raises InputError: for text that is not YAML, naming the line, or beyond the limits.
    """
    return list(iter_documents(text, source, limits))


def iter_documents(text: str, source: str, limits: Limits) -> Iterator[Document]:
    """Parse the documents of a text one by one; empty ones are left out, but counted.

    :raises InputError: for text that is not YAML, naming the line, or beyond the limits.
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
    """Return the values of a JSON text; None when it takes the YAML parser to read it."""
    try:
        content = text.encode()
        value = parse_json(content, limits)
    except LimitExceeded:
        raise
    except ValueError:
        return parse_json_sequence(text)
    # YAML's parser finds the key that appears twice, and its line.
    return None if duplicate_key(content, value) is not None else [value]
