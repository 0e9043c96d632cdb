"""Archives: the zip file of ``bayplan snapshot``, with one JSON list of objects for each kind.

An archive holds only what the scheduler reads: no environment variables, no Secrets, no ConfigMaps
but those that define queues, and no annotations that repeat a whole manifest.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import ApiObject, Deployment, Job, Kind, ObjectMeta, Pod, ReplicaSet, StatefulSet
from bayplan.errors import InputError
from bayplan.inputs.documents import Document, Text
from bayplan.inputs.jsontext import check_depth
from bayplan.inputs.limits import FILE, LimitExceeded

__all__ = ["ABOUT", "is_archive", "read_archive", "write_archive"]

ABOUT = "about.json"
_REPEATS = ("kubectl.kubernetes.io/last-applied-configuration",)

Workload = Job | ReplicaSet | StatefulSet | Deployment


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive, by its name."""
    return path.suffix == ".zip"


# Reading -------------------------------------------------------------------------------------


def read_archive(path: Path) -> Iterator[Document]:
    """Yield the lists of an archive.

    :raises InputError: when it is not an archive, or a member is too large or not JSON.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".json")]
            members = sorted(name for name in names if name != ABOUT)
            if not members:
                raise InputError("holds no .json file", str(path))
            for name in members:
                yield _member(archive, name, f"{path}!{name}")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as exc:
        # Damaged, encrypted, or compressed in a way that Python does not support.
        raise InputError(f"is not a readable zip file: {exc}", str(path)) from None
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(path)) from None


def _member(archive: zipfile.ZipFile, name: str, source: str) -> Document:
    with archive.open(name) as file:
        content = file.read(FILE.size + 1)
    try:
        FILE.check_size(content)
        check_depth(content, FILE)
        text = content.decode()
        return Document(source, 1, _list(content), Text(source, text))
    except (ValueError, RecursionError) as exc:
        text = str(exc) if isinstance(exc, LimitExceeded) else f"is not JSON: {exc}"
        raise InputError(text, source) from None


class _List(msgspec.Struct):
    """A list of objects, left as text until their kinds are known."""

    kind: str
    items: list[msgspec.Raw]


def _list(content: bytes) -> Any:
    try:
        found = msgspec.json.decode(content, type=_List)
    except msgspec.ValidationError:
        return msgspec.json.decode(content)
    return {"kind": found.kind, "items": found.items}


# Writing -------------------------------------------------------------------------------------


class _Owned(msgspec.Struct, frozen=True):
    """The numbers of a workload's live and succeeded pods."""

    alive: int = 0
    succeeded: int = 0


def write_archive(
    path: Path, objects: Mapping[Kind, Iterable[ApiObject]], about: Mapping[str, Any]
) -> dict[str, int]:
    """Write an archive that only its owner can read; return its object counts by kind.

    :param about: when and where the snapshot was taken.
    :raises InputError: when the file cannot be written.
    """
    found = {kind: list(of_kind) for kind, of_kind in objects.items()}
    owned = _owned(obj for of_kind in found.values() for obj in of_kind)
    counts: dict[str, int] = {}
    try:
        # Written under another name first, so that no reader sees half an archive.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(path)) from None
    try:
        with (
            os.fdopen(handle, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            archive.writestr(ABOUT, json.dumps(about, indent=2))
            for kind, of_kind in found.items():
                if of_kind:
                    archive.writestr(_name(kind), _list_of(kind, of_kind, owned))
                    counts[kind.name] = counts.get(kind.name, 0) + len(of_kind)
        Path(temporary).replace(path)
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(path)) from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    return counts


def _name(kind: Kind) -> str:
    return f"{kind.plural}.{kind.group}.json" if kind.group else f"{kind.plural}.json"


def _list_of(kind: Kind, objects: list[ApiObject], owned: Mapping[str, _Owned]) -> bytes:
    version = f"{kind.group}/{kind.versions[0]}".lstrip("/")
    items = [
        {"apiVersion": version, "kind": kind.name, **_plain(obj, owned)}
        for obj in sorted(objects, key=lambda obj: (obj.metadata.namespace, obj.metadata.name))
    ]
    return msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items})


def _plain(obj: ApiObject, owned: Mapping[str, _Owned]) -> dict[str, Any]:
    if isinstance(obj, Job | ReplicaSet | StatefulSet | Deployment):
        obj = _at_rest(obj, owned.get(obj.metadata.uid, _Owned()))
    obj = replace(obj, metadata=_meta(obj.metadata))
    return dict(msgspec.to_builtins(obj, enc_hook=lambda quantity: quantity.text))


def _meta(meta: ObjectMeta) -> ObjectMeta:
    annotations = {key: text for key, text in meta.annotations.items() if key not in _REPEATS}
    return replace(meta, annotations=annotations, resource_version="")


def _owned(objects: Iterable[ApiObject]) -> dict[str, _Owned]:
    """Count the pods of every workload; a Deployment gets those of its ReplicaSets."""
    found = list(objects)
    deployments = {
        one.metadata.uid: owner.uid
        for one in found
        if isinstance(one, ReplicaSet)
        for owner in one.metadata.owner_references
        if owner.controller
    }
    counts: dict[str, _Owned] = {}
    for pod in (one for one in found if isinstance(one, Pod)):
        alive = pod.status.phase in ("Pending", "Running")
        owners = [owner.uid for owner in pod.metadata.owner_references]
        owners += [deployments[uid] for uid in owners if uid in deployments]
        for uid in owners:
            before = counts.get(uid, _Owned())
            succeeded = pod.status.phase == "Succeeded"
            counts[uid] = _Owned(before.alive + alive, before.succeeded + succeeded)
    return counts


def _at_rest(workload: Workload, owned: _Owned) -> Workload:
    """Return a workload whose desired pods are those it has.

    A simulation's controllers see only a part of the cluster and must not create other pods
    than the cluster's own controllers did.
    """
    if isinstance(workload, Job):
        spec = workload.spec
        completions = spec.completions
        if spec.completion_mode != "Indexed":
            completions = owned.alive + owned.succeeded
        return replace(
            workload, spec=replace(spec, parallelism=owned.alive, completions=completions)
        )
    return replace(workload, spec=replace(workload.spec, replicas=owned.alive))
