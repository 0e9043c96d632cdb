"""Manifest files: from paths to typed objects, with errors that say where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayplan.api import KINDS, ApiObject, ClusterNetworkTopology, decode_object, kind_of
from bayplan.api.objects import DecodeError
from bayplan.api.validation import validate
from bayplan.archive import is_archive, is_member, read_archive
from bayplan.dialects.koordinator import layers_of
from bayplan.dialects.topograph import cluster_of, is_model
from bayplan.durations import DURATION_ANNOTATION, parse_duration
from bayplan.errors import InputError, did_you_mean
from bayplan.fieldcheck import FieldNotes, check_fields
from bayplan.topology.network import TopologyError
from bayplan.yamlfile import Document, parse_documents, read_stdin, read_text

__all__ = ["Content", "Manifests", "load_manifests", "object_key"]

_SUFFIXES = (".yaml", ".yml", ".json")
_OTHERS = ("Endpoints", "Event", "LimitRange", "ResourceQuota", "Secret", "ServiceAccount")
"""Kinds of Kubernetes that do not matter here, and that look like misspelt ones."""


@dataclass
class Manifests:
    """The objects of some files, in order, and the kinds that were passed over, with counts.

    ``notes`` are of fields that are ignored; ``contents`` is everything in full, where that was
    asked for.
    """

    objects: list[ApiObject] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)
    notes: FieldNotes = field(default_factory=FieldNotes)
    contents: list[Content] | None = None


@dataclass(frozen=True)
class Content:
    """What stands in a manifest; ``obj`` is None for a kind that bayplan does not read."""

    content: dict[str, Any] | None
    obj: ApiObject | None
    where: str


def object_key(obj: ApiObject) -> str:
    """Return ``namespace/name``, or ``name`` for objects without a namespace."""
    meta = obj.metadata
    return f"{meta.namespace}/{meta.name}" if kind_of(obj).namespaced else meta.name


def load_manifests(paths: Sequence[str], in_full: bool = False) -> Manifests:
    """Load files, folders, archives of ``bayplan snapshot`` and ``-`` (standard input).

    :param in_full: whether to keep what bayplan does not read, too.
    :raises InputError: for anything that cannot be read, and for two objects of one name.
    """
    result = Manifests(contents=[] if in_full else None)
    seen: dict[tuple[type, str], Document] = {}
    for documents in _documents(paths):
        for document in documents:
            for content, path in _items(document):
                _load(content, document, path, result, seen)
    return result


def _documents(paths: Sequence[str]) -> Iterable[Iterable[Document]]:
    for source, text in _texts(path for path in paths if not _is_archive(path)):
        documents = parse_documents(text, source)
        if not documents:
            raise InputError("holds no objects", source)
        yield documents
    for path in paths:
        if _is_archive(path):
            yield read_archive(Path(path))


def _is_archive(name: str) -> bool:
    return is_archive(Path(name)) and Path(name).is_file()


def _texts(paths: Iterable[str]) -> Iterable[tuple[str, str]]:
    for name in paths:
        if name == "-":
            yield "standard input", read_stdin()
            continue
        path = Path(name)
        try:
            exists = bool(name) and path.exists()
        except OSError as exc:
            raise InputError(exc.strerror or str(exc), name[:80]) from None
        if not exists:
            raise InputError("there is no such file or folder", name or "-f")
        if not path.is_dir():
            yield name, read_text(path)
            continue
        files = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
        if not files:
            raise InputError("this folder holds no .yaml, .yml or .json file", name)
        for file in files:
            yield str(file), read_text(file)


def _items(document: Document) -> Iterable[tuple[Any, list[str | int]]]:
    """Yield the objects of a document; a List (as kubectl get writes it) holds several."""
    content = document.content
    if isinstance(content, dict) and str(content.get("kind", "")).endswith("List"):
        items = content.get("items")
        if isinstance(items, list):
            kind = str(content["kind"]).removesuffix("List")
            for index, item in enumerate(items):
                if isinstance(item, dict) and kind and "kind" not in item:
                    item = {"kind": kind, "apiVersion": content.get("apiVersion"), **item}
                yield item, ["items", index]
            return
    yield content, []


def _load(
    content: Any,
    document: Document,
    path: list[str | int],
    result: Manifests,
    seen: dict[tuple[type, str], Document],
) -> None:
    where = _where(document, path)
    if not isinstance(content, dict):
        raise InputError(f"expected a Kubernetes object, got {_kind_of_value(content)}", where)
    if is_model(content):
        _load_model(content, document, path, result, seen)
        return
    api_version, kind_name = content.get("apiVersion"), content.get("kind")
    for name, value in (("apiVersion", api_version), ("kind", kind_name)):
        if value is None or value == "":
            raise InputError(f'$: the required field "{name}" is missing', where)
        if not isinstance(value, str):
            raise InputError(f"$.{name}: expected a string, got {_kind_of_value(value)}", where)
    assert isinstance(api_version, str)
    assert isinstance(kind_name, str)
    group, _, version = api_version.rpartition("/")
    kind = KINDS.get((group, kind_name))
    if kind is None:
        homes = [known for (_, name), known in KINDS.items() if name == kind_name]
        if homes and "." not in group:
            right = f"{homes[0].group}/{homes[0].versions[0]}".lstrip("/")
            raise InputError(
                f"$.apiVersion: {kind_name} {api_version} is not known; use {right}", where
            )
        near = did_you_mean(kind_name, {k for g, k in KINDS if g == group})
        if near and kind_name not in _OTHERS and kind_name not in {k for _, k in KINDS}:
            raise InputError(
                f'$.kind: there is no kind "{kind_name}" in {api_version}{near}', where
            )
        label = f"{kind_name} ({api_version})"
        result.ignored[label] = result.ignored.get(label, 0) + 1
        if result.contents is not None:
            result.contents.append(Content(content, None, where))
        return
    if version not in kind.versions:
        known = " or ".join(f"{group}/{v}".lstrip("/") for v in kind.versions)
        raise InputError(
            f"$.apiVersion: {kind_name} {api_version} is not known; use {known}", where
        )
    try:
        # What was read from a cluster may be newer than what is known here.
        unknown = [] if is_member(document.source) else check_fields(kind, content)
        result.notes.add(kind, unknown, lambda steps: _where(document, [*path, *steps]))
        obj = decode_object(kind, content)
        _check_duration(obj)
        if isinstance(obj, ClusterNetworkTopology):
            layers_of(obj)
    except (DecodeError, TopologyError) as exc:
        at = _where(document, [*path, *_steps(exc.path)])
        name = content.get("metadata", {})
        name = name.get("name", "") if isinstance(name, dict) else ""
        message = exc.message if isinstance(exc, DecodeError) else str(exc)
        raise InputError(
            f"{kind_name} {name}: {exc.path}: {message}".replace(" :", ":"), at
        ) from None
    key = (type(obj), object_key(obj))
    if obj.metadata.name and key in seen:
        raise InputError(
            f"{kind_name} {key[1]} is defined twice; first in {seen[key].source}", where
        )
    seen[key] = document
    result.objects.append(obj)
    if result.contents is not None:
        result.contents.append(Content(content, obj, where))


def _load_model(
    content: dict[str, Any],
    document: Document,
    path: list[str | int],
    result: Manifests,
    seen: dict[tuple[type, str], Document],
) -> None:
    """Take over the nodes of a topograph model, and their network."""
    try:
        made = cluster_of(content)
    except TopologyError as exc:
        at = _where(document, [*path, *_steps(exc.path)])
        raise InputError(f"topograph model: {exc.path}: {exc}", at) from None
    for obj in made:
        for where, message in validate(obj):
            raise InputError(f"topograph model: {where}: {message}", _where(document, path))
        key = (type(obj), object_key(obj))
        if key in seen:
            name = f"{kind_of(obj).name} {key[1]}"
            raise InputError(
                f"{name} is defined twice; first in {seen[key].source}", _where(document, path)
            )
        seen[key] = document
        result.objects.append(obj)
        if result.contents is not None:
            result.contents.append(Content(None, obj, _where(document, path)))


def _check_duration(obj: ApiObject) -> None:
    template = getattr(getattr(obj, "spec", None), "template", None)
    holders = [(obj.metadata, "$")] + ([(template.metadata, "$.spec.template")] if template else [])
    for metadata, path in holders:
        text = metadata.annotations.get(DURATION_ANNOTATION)
        if text is not None:
            try:
                parse_duration(text)
            except ValueError as exc:
                where = f'{path}.metadata.annotations["{DURATION_ANNOTATION}"]'
                raise DecodeError(str(exc), where) from None


def _where(document: Document, path: list[str | int]) -> str:
    return f"{document.where(path)} (document {document.index})"


def _steps(path: str) -> list[str | int]:
    """Split a JSON path such as ``$.spec.containers[0]["a/b"]`` into its steps."""
    found = re.findall(r'\.([^.\[]+)|\[(\d+)\]|\["([^"]*)"\]', path)
    return [name or key or int(index) for name, index, key in found]


def _kind_of_value(value: Any) -> str:
    names = {
        "NoneType": "nothing",
        "bool": "a truth value",
        "float": "a number",
        "int": "a number",
        "list": "a list",
        "str": "a text",
    }
    return names.get(type(value).__name__, type(value).__name__)
