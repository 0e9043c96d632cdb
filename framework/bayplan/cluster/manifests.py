"""Manifest files: from paths to typed objects, with errors that say where."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bayplan.api import (
    KINDS,
    ApiObject,
    ClusterNetworkTopology,
    Node,
    Pod,
    decode_object,
    kind_of,
)
from bayplan.api.object_key import object_key
from bayplan.api.objects import DecodeError, Kind, decode_text
from bayplan.api.validation import validate
from bayplan.cluster.archive import is_archive, read_archive
from bayplan.cluster.load_progress import LoadProgress
from bayplan.cluster.node_changes import AT_ANNOTATION, NodeChange, change_of, check_changes
from bayplan.cluster.snapshot_changes import SnapshotChanges
from bayplan.dialects.koordinator.gangs import layers_of
from bayplan.dialects.topograph import cluster_of, is_model
from bayplan.errors import InputError, did_you_mean
from bayplan.inputs.documents import Document, iter_documents, read_stdin, read_text, similar_path
from bayplan.inputs.durations import DURATION_ANNOTATION, parse_duration
from bayplan.inputs.limits import FILE
from bayplan.schemas.fieldcheck import FieldNotes, check_fields
from bayplan.topology.network.tree import TopologyError

__all__ = ["FullObject", "Manifests", "load_manifests"]

_SUFFIXES = (".yaml", ".yml", ".json")
_OTHERS = (
    *("CronJob", "Endpoints", "Event", "LimitRange", "ResourceQuota", "Secret", "ServiceAccount"),
    *("ResourceClass", "ResourceClaimParameters", "ResourceClassParameters"),
)
"""Kinds that are skipped although they look like misspelled ones."""


class Manifests(msgspec.Struct):
    """The objects of some files, in order, and the skipped kinds with their counts.

    ``contents`` is every object in full, if asked for; ``field_notes`` name ignored fields;
    ``replaced`` names the objects of a snapshot that had to be replaced; ``changes`` are those of
    nodes at a time of a simulation, in the order of their times.
    """

    objects: list[ApiObject] = msgspec.field(default_factory=list)
    ignored: dict[str, int] = msgspec.field(default_factory=dict)
    contents: list[FullObject] | None = None
    field_notes: FieldNotes = msgspec.field(default_factory=FieldNotes)
    replaced: list[str] = msgspec.field(default_factory=list)
    changes: list[NodeChange] = msgspec.field(default_factory=list)

    def notes(self) -> list[str]:
        """Return notes for the user about ignored fields and skipped objects."""
        return [*self.field_notes.texts(), *self.replaced]


class ManifestEntry(msgspec.Struct, eq=False):
    """One object in a document, and its path there.

    ``content`` is JSON text for an object of a snapshot.
    """

    document: Document
    path: tuple[str | int, ...]
    content: Any

    def where(self, steps: str = "") -> str:
        """Return the place of the object, or of a JSON path in it."""
        return self.where_at(_steps(steps))

    def where_at(self, steps: Sequence[str | int]) -> str:
        """Return the place of the value at these steps in the object."""
        place = self.document.where([*self.path, *steps])
        return f"{place} (document {self.document.index})"


class FullObject(msgspec.Struct, frozen=True):
    """An object in full; ``obj`` is None for a kind that bayplan does not read."""

    content: dict[str, Any] | None
    obj: ApiObject | None
    entry: ManifestEntry

    @property
    def where(self) -> str:
        """The place in the file; finding it parses the file again."""
        return self.entry.where()


def load_manifests(
    paths: Sequence[str],
    in_full: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> Manifests:
    """Load files, folders, archives of ``bayplan snapshot`` and ``-`` (standard input).

    A file's object that an archive also holds is applied to the archive's.

    :param in_full: whether to keep fields and kinds that bayplan does not read.
    :param report: called now and then with how many bytes are loaded, and how many there are.
    :raises InputError: for anything that cannot be read, and for duplicate objects.
    """
    progress = LoadProgress(report, [Path(path) for path in paths]) if report else None
    loader = _Loader(Manifests(contents=[] if in_full else None), progress)
    with _without_collections():
        for path in paths:
            if _is_archive(path):
                for document in read_archive(Path(path)):
                    loader.begin(document.text.content, 1)
                    loader.load(document)
                    del document
        loader.archives_end()
        for source, text in _texts(path for path in paths if not _is_archive(path)):
            found = False
            loader.begin(text, text.count("\n---") + 1)
            for document in iter_documents(text, source, FILE):
                found = True
                loader.load(document)
                # Freed before the collector could look at it.
                del document
            if not found:
                raise InputError("holds no objects", source)
    return loader.finish()


@contextmanager
def _without_collections() -> Iterator[None]:
    """Pause the garbage collector, which would walk all objects over and over."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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
            text = f"there is no such file or folder{similar_path(path)}"
            raise InputError(text, name or "-f")
        if not path.is_dir():
            yield name, read_text(path, FILE)
            continue
        files = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
        if not files:
            raise InputError("this folder holds no .yaml, .yml or .json file", name)
        for file in files:
            yield str(file), read_text(file, FILE)


def _entries(document: Document) -> Iterable[ManifestEntry]:
    """Yield the objects of a document; a List, as kubectl get writes it, holds several."""
    content = document.content
    if isinstance(content, dict) and str(content.get("kind", "")).endswith("List"):
        items = content.get("items")
        if isinstance(items, list):
            kind = str(content["kind"]).removesuffix("List")
            for index, item in enumerate(items):
                if isinstance(item, dict) and kind and "kind" not in item:
                    item = {"kind": kind, "apiVersion": content.get("apiVersion"), **item}
                yield ManifestEntry(document, ("items", index), item)
            return
    yield ManifestEntry(document, (), content)


class _Head(msgspec.Struct, rename="camel"):
    """The fields that identify an object."""

    api_version: Any = None
    kind: Any = None


_read_head = msgspec.json.Decoder(_Head).decode


class _Loader:
    """Turns entries into objects and finds duplicates."""

    def __init__(self, result: Manifests, progress: LoadProgress | None = None) -> None:
        self._result = result
        self._progress = progress
        self._loading_archives = True
        self._seen: dict[tuple[type, str], str] = {}
        self._archived: dict[tuple[type, str], tuple[ManifestEntry, ApiObject]] = {}
        self._changes = SnapshotChanges(result.replaced)
        self._changed: dict[tuple[type, str] | None, FullObject] = {}
        self._timed: list[tuple[NodeChange, ManifestEntry]] = []

    def begin(self, text: str, documents: int) -> None:
        """Begin with a text of about so many documents."""
        if self._progress is not None:
            self._progress.file(len(text), documents)

    def load(self, document: Document) -> None:
        """Add the objects of a document.

        :raises InputError: for an object that cannot be used.
        """
        for number, entry in enumerate(_entries(document), 1):
            if self._progress is not None:
                items = len(document.content["items"]) if entry.path else 1
                self._progress.entry(document.index, number, items)
            if isinstance(entry.content, dict) and is_model(entry.content):
                self._load_model(entry)
            else:
                self._load(entry)

    def archives_end(self) -> None:
        """Apply all later objects to those loaded so far, which come from archives."""
        self._loading_archives = False
        self._seen = {}

    def finish(self) -> Manifests:
        """Return all objects; changed ones replace those of the archives."""
        self._apply_changes()
        self._check_timed()
        return self._result

    def _apply_changes(self) -> None:
        result = self._result
        if not self._changed:
            return
        result.objects = self._changes.applied(result.objects, object_key)
        if result.contents is not None:
            contents, result.contents = result.contents, []
            for one in contents:
                key = None if one.obj is None else (type(one.obj), object_key(one.obj))
                result.contents.append(self._changed.get(key, one))
            result.contents = [
                one
                for one in result.contents
                if one.obj is None or not self._changes.is_gone(one.obj)
            ]

    def _check_timed(self) -> None:
        """Order the changes of nodes by their times, and check that each of them can be made."""
        self._timed.sort(key=lambda pair: pair[0].at)
        self._result.changes = [change for change, _ in self._timed]
        found = check_changes(self._result.changes, self._result.objects)
        if found is not None:
            wrong, error = found
            entry = next(entry for change, entry in self._timed if change is wrong)
            raise _error(KINDS["", "Node"], entry, error)

    def _load(self, entry: ManifestEntry) -> None:
        content = entry.content
        raw = isinstance(content, msgspec.Raw)
        head = _head_of(entry)
        kind = self._kind(head, entry)
        if kind is None:
            label = f"{head.kind} ({head.api_version})"
            self._result.ignored[label] = self._result.ignored.get(label, 0) + 1
            if self._result.contents is not None:
                self._result.contents.append(FullObject(_plain(entry), None, entry))
            return
        try:
            version = head.api_version.rpartition("/")[2]
            if raw:
                # A cluster's objects may have fields newer than our schemas.
                obj = decode_text(kind, version, content)
            else:
                ignored = check_fields(kind, content)
                self._result.field_notes.add(kind, ignored, entry.where_at)
                self._result.field_notes.add_unhonoured(kind, content, entry.where_at)
                obj = decode_object(kind, content)
            _check_duration(obj)
            timed = None if raw else change_of(obj, content)
            if isinstance(obj, ClusterNetworkTopology):
                layers_of(obj)
        except (DecodeError, TopologyError) as exc:
            raise _error(kind, entry, exc) from None
        if timed is not None:
            self._timed.append((timed, entry))
            return
        self._add(obj, None if self._result.contents is None else _plain(entry), entry)

    def _kind(self, head: _Head, entry: ManifestEntry) -> Kind | None:
        """Return the kind of an object; None for one that bayplan does not read."""
        group, _, version = head.api_version.rpartition("/")
        kind = KINDS.get((group, head.kind))
        if kind is None:
            homes = [known for (_, name), known in KINDS.items() if name == head.kind]
            if homes and "." not in group:
                right = f"{homes[0].group}/{homes[0].versions[0]}".lstrip("/")
                raise InputError(
                    f"$.apiVersion: {head.kind} {head.api_version} is not known; use {right}",
                    entry.where(),
                )
            near = did_you_mean(head.kind, {k for g, k in KINDS if g == group})
            if near and head.kind not in _OTHERS and not homes:
                raise InputError(
                    f'$.kind: there is no kind "{head.kind}" in {head.api_version}{near}',
                    entry.where(),
                )
            return None
        if version not in kind.versions:
            known = " or ".join(f"{group}/{v}".lstrip("/") for v in kind.versions)
            raise InputError(
                f"$.apiVersion: {head.kind} {head.api_version} is not known; use {known}",
                entry.where(),
            )
        return kind

    def _add(self, obj: ApiObject, content: dict[str, Any] | None, entry: ManifestEntry) -> None:
        key = (type(obj), object_key(obj))
        if obj.metadata.name and key in self._seen:
            first = self._seen[key]
            name = f"{kind_of(obj).name} {key[1]}"
            later = f"; a change at a time needs {AT_ANNOTATION}" if type(obj) is Node else ""
            raise InputError(f"{name} is defined twice; first in {first}{later}", entry.where())
        self._seen[key] = entry.document.source
        if self._loading_archives:
            self._archived[key] = entry, obj
        elif key in self._archived:
            self._change(key, entry)
            return
        self._result.objects.append(obj)
        if self._result.contents is not None:
            self._result.contents.append(FullObject(content, obj, entry))

    def _change(self, key: tuple[type, str], entry: ManifestEntry) -> None:
        """Apply an object of a file to that of an archive."""
        archived, old = self._archived[key]
        kind = kind_of(old)
        try:
            new, content = self._changes.change(kind, key, old, _plain(archived), _plain(entry))
        except DecodeError as exc:
            raise _error(kind, entry, exc) from None
        self._changed[key] = FullObject(content, new, entry)

    def _load_model(self, entry: ManifestEntry) -> None:
        """Add the nodes of a topograph model and their network."""
        try:
            made = cluster_of(entry.content)
        except TopologyError as exc:
            raise InputError(f"topograph model: {exc.path}: {exc}", entry.where(exc.path)) from None
        for obj in made:
            for where, message in validate(obj):
                raise InputError(f"topograph model: {where}: {message}", entry.where())
            self._add(obj, None, entry)


def _head_of(entry: ManifestEntry) -> _Head:
    content = entry.content
    if isinstance(content, msgspec.Raw):
        try:
            head = _read_head(content)
        except msgspec.DecodeError:
            content, head = None, _Head()
    elif isinstance(content, dict):
        head = _Head(content.get("apiVersion"), content.get("kind"))
    if not isinstance(content, (dict, msgspec.Raw)):
        got = _kind_of_value(entry.content)
        raise InputError(f"expected a Kubernetes object, got {got}", entry.where())
    for name, value in (("apiVersion", head.api_version), ("kind", head.kind)):
        if value is None or value == "":
            raise InputError(f'$: the required field "{name}" is missing', entry.where())
        if not isinstance(value, str):
            raise InputError(
                f"$.{name}: expected a string, got {_kind_of_value(value)}", entry.where()
            )
    return head


def _plain(entry: ManifestEntry) -> dict[str, Any]:
    content = entry.content
    plain: dict[str, Any] = content
    return msgspec.json.decode(content) if isinstance(content, msgspec.Raw) else plain


def _error(kind: Kind, entry: ManifestEntry, exc: DecodeError | TopologyError) -> InputError:
    meta = _plain(entry).get("metadata")
    name = meta.get("name", "") if isinstance(meta, dict) else ""
    message = exc.message if isinstance(exc, DecodeError) else str(exc)
    text = f"{kind.name} {name}: {exc.path}: {message}".replace(" :", ":")
    return InputError(text, entry.where(exc.path))


def _check_duration(obj: ApiObject) -> None:
    holders = [(obj.metadata, "$")] if obj.metadata.annotations else []
    template = None if isinstance(obj, Pod) else getattr(obj, "spec", None)
    template = getattr(template, "template", None)
    if template is not None:
        holders.append((template.metadata, "$.spec.template"))
    for metadata, path in holders:
        text = metadata.annotations.get(DURATION_ANNOTATION)
        if text is not None:
            try:
                parse_duration(text)
            except ValueError as exc:
                where = f'{path}.metadata.annotations["{DURATION_ANNOTATION}"]'
                raise DecodeError(str(exc), where) from None


def _steps(path: str) -> list[str | int]:
    """Split a JSON path such as ``$.spec.containers[0]["a/b"]`` into its steps."""
    found = re.findall(r'\.([^.\[]+)|\[(\d+)\]|\["([^"]*)"\]', path)
    return [int(index) if index else name or key for name, index, key in found]


def _kind_of_value(value: Any) -> str:
    names = {
        "NoneType": "nothing",
        "bool": "a boolean",
        "float": "a number",
        "int": "a number",
        "list": "a list",
        "str": "a string",
    }
    return names.get(type(value).__name__, type(value).__name__)
