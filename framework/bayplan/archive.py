"""A cluster in one file: the zip of ``bayplan snapshot``, with a JSON list of objects per kind.

It holds what the scheduler reads and nothing else: no environment variables, no Secrets or
ConfigMaps, and no annotation that repeats a whole manifest.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import ApiObject, Job, Kind, ObjectMeta, Pod, ReplicaSet, StatefulSet
from bayplan.errors import InputError
from bayplan.yamlfile import Document

__all__ = ["ABOUT", "is_archive", "is_member", "read_archive", "write_archive"]

ABOUT = "about.json"
_LARGEST = 512 * 2**20
"""Bytes that one member may hold when it is unpacked."""
_REPEATS = ("kubectl.kubernetes.io/last-applied-configuration",)

Workload = Job | ReplicaSet | StatefulSet


def is_archive(path: Path) -> bool:
    """Whether a file is to be read as an archive."""
    return path.suffix == ".zip"


def is_member(source: str) -> bool:
    """Whether a document's source is a member of an archive."""
    return ".zip!" in source


# Reading -------------------------------------------------------------------------------------


def read_archive(path: Path) -> Iterator[Document]:
    """Yield the lists of an archive.

    :raises InputError: when it is no archive, or one of its members is too large or no JSON.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".json")]
            members = sorted(name for name in names if name != ABOUT)
            if not members:
                raise InputError("holds no .json file", str(path))
            for name in members:
                yield _member(archive, name, f"{path}!{name}")
    except zipfile.BadZipFile as exc:
        raise InputError(f"is no zip file: {exc}", str(path)) from None
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(path)) from None


def _member(archive: zipfile.ZipFile, name: str, source: str) -> Document:
    with archive.open(name) as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise InputError(f"is larger than {_LARGEST >> 20} MiB", source)
    try:
        text = content.decode()
        return Document(source, 1, json.loads(text), text)
    except (ValueError, RecursionError) as exc:
        raise InputError(f"is no JSON: {exc}", source) from None


# Writing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Owned:
    """How many pods a workload has that live, and that have succeeded."""

    alive: int = 0
    succeeded: int = 0


def write_archive(
    path: Path, objects: Mapping[Kind, Iterable[ApiObject]], about: Mapping[str, Any]
) -> dict[str, int]:
    """Write an archive that nobody else can read; return how many objects it holds, by kind.

    :param about: when and where it was taken.
    :raises InputError: when the file cannot be written.
    """
    found = {kind: list(of_kind) for kind, of_kind in objects.items()}
    owned = _owned(pod for pods in found.values() for pod in pods if isinstance(pod, Pod))
    counts: dict[str, int] = {}
    try:
        # Made beside it, so that a file that is half written never has the name.
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
    if isinstance(obj, Job | ReplicaSet | StatefulSet):
        obj = _at_rest(obj, owned.get(obj.metadata.uid, _Owned()))
    obj = replace(obj, metadata=_meta(obj.metadata))
    return dict(msgspec.to_builtins(obj, enc_hook=lambda quantity: quantity.text))


def _meta(meta: ObjectMeta) -> ObjectMeta:
    annotations = {key: text for key, text in meta.annotations.items() if key not in _REPEATS}
    return replace(meta, annotations=annotations, resource_version="")


def _owned(pods: Iterable[Pod]) -> dict[str, _Owned]:
    counts: dict[str, _Owned] = {}
    for pod in pods:
        alive = pod.status.phase in ("Pending", "Running")
        for owner in pod.metadata.owner_references:
            before = counts.get(owner.uid, _Owned())
            succeeded = pod.status.phase == "Succeeded"
            counts[owner.uid] = _Owned(before.alive + alive, before.succeeded + succeeded)
    return counts


def _at_rest(workload: Workload, owned: _Owned) -> Workload:
    """Return a workload that wants the pods that it has.

    The cluster's own controllers had their reasons for these; those of a simulation, which see
    only a part, must not make others.
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
