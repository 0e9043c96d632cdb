"""Definitions of the kinds of other systems: which there are, and where each project keeps them."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bayplan.errors import InputError
from bayplan.inputs.limits import Limits
from bayplan.inputs.yamltext import YamlProblem, parse_yaml

__all__ = ["MIRROR", "SYSTEMS", "Definition", "System", "downloaded", "read_from"]

MIRROR = "https://raw.githubusercontent.com"
"""Serves the files of a project as OWNER/REPOSITORY/VERSION/PATH."""

_SECONDS = 30.0
_FILE = Limits(size=8 * 2**20, depth=100, values=500_000)
"""The largest definition, Ray's, has 2 MiB."""


class System(msgspec.Struct, frozen=True):
    """A project, and the kinds of it that bayplan can use without the project's own programs.

    :ivar name: as users write it.
    :ivar version: the release whose files are taken unless a user names another one.
    :ivar folder: of the definitions in the repository.
    :ivar files: one for each kind, ``GROUP_PLURAL``.
    """

    name: str
    repository: str
    version: str
    folder: str
    files: tuple[str, ...]

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each definition, ``PLURAL.GROUP``, and its path in the repository."""
        for file in self.files:
            group, _, plural = file.rpartition("_")
            yield f"{plural}.{group}", f"{self.folder}/{file}.yaml"


class Definition(msgspec.Struct, frozen=True):
    """A CustomResourceDefinition as a project wrote it: its text, and what that says.

    :ivar source: its file or address.
    """

    name: str
    source: str
    text: str
    content: Mapping[str, Any]

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions that an API server will serve."""
        return tuple(one["name"] for one in self.content["spec"]["versions"] if one.get("served"))


SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        System(
            "kai",
            "kai-scheduler/KAI-Scheduler",
            "v0.17.0",
            "deployments/kai-scheduler/crds",
            ("scheduling.run.ai_queues", "scheduling.run.ai_podgroups", "kai.scheduler_topologies"),
        ),
        System(
            "koordinator",
            "koordinator-sh/koordinator",
            "v1.8.0",
            "config/crd/bases",
            (
                "scheduling.sigs.k8s.io_podgroups",
                "scheduling.sigs.k8s.io_elasticquotas",
                "quota.koordinator.sh_elasticquotaprofiles",
                "scheduling.koordinator.sh_clusternetworktopologies",
                "scheduling.koordinator.sh_devices",
                "scheduling.koordinator.sh_reservations",
            ),
        ),
        System(
            "kueue",
            "kubernetes-sigs/kueue",
            "v0.19.2",
            "config/components/crd/bases",
            (
                "kueue.x-k8s.io_admissionchecks",
                "kueue.x-k8s.io_clusterqueues",
                "kueue.x-k8s.io_cohorts",
                "kueue.x-k8s.io_localqueues",
                "kueue.x-k8s.io_provisioningrequestconfigs",
                "kueue.x-k8s.io_resourceflavors",
                "kueue.x-k8s.io_topologies",
                "kueue.x-k8s.io_workloadpriorityclasses",
                "kueue.x-k8s.io_workloads",
            ),
        ),
        System(
            "scheduler-plugins",
            "kubernetes-sigs/scheduler-plugins",
            "v0.34.7",
            "config/crd/bases",
            ("scheduling.x-k8s.io_podgroups",),
        ),
        System(
            "volcano",
            "volcano-sh/volcano",
            "v1.15.1",
            "config/crd/volcano/bases",
            (
                "scheduling.volcano.sh_podgroups",
                "scheduling.volcano.sh_queues",
                "topology.volcano.sh_hypernodes",
            ),
        ),
    )
}
"""By name. Volcano's Job, KAI's shards and the like say something to their own programs only."""


def downloaded(system: System, version: str, mirror: str = MIRROR) -> Iterator[Definition]:
    """Yield the definitions of a system, as its project wrote them for a version.

    :param mirror: an address that serves the same paths.
    :raises InputError: when one cannot be had, or is no such definition; names its address.
    """
    for name, path in system.paths():
        place = urllib.parse.quote(f"{system.repository}/{version}/{path}")
        address = f"{mirror.rstrip('/')}/{place}"
        yield _definition(name, address, _fetched(address))


def read_from(system: System, folder: Path) -> Iterator[Definition]:
    """Yield the definitions of a system, from a folder.

    :param folder: a checkout of the project, or holds the files of its definitions.
    :raises InputError: when one is not there, or is no such definition; names its file.
    """
    for name, path in system.paths():
        places = [folder / path, folder / Path(path).name]
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            raise InputError(f"there is no {places[0].name}, nor {path}", str(folder))
        yield _definition(name, str(file), file.read_bytes())


def _fetched(address: str) -> bytes:
    if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
        raise InputError("expected an address that starts with https://", address)
    try:
        # Redirects lead to http, https and ftp only.
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:  # noqa: S310 - both were checked
            found: bytes = answer.read(_FILE.size + 1)
    except urllib.error.HTTPError as exc:
        missing = "there is no such file; is the version right?"
        raise InputError(missing if exc.code == 404 else str(exc), address) from None
    except (urllib.error.URLError, OSError) as exc:
        reason = getattr(exc, "reason", exc)
        raise InputError(
            f"cannot be reached: {reason}; --from takes files that are here", address
        ) from None
    return found


def _definition(name: str, source: str, text: bytes) -> Definition:
    try:
        contents = [one for one in parse_yaml(text.decode(), _FILE) if one is not None]
    except YamlProblem as exc:
        raise InputError(exc.message, f"{source}: line {exc.line}") from None
    except ValueError as exc:
        raise InputError(str(exc), source) from None
    if len(contents) != 1 or not _is_definition(contents[0], name):
        raise InputError(f"expected the CustomResourceDefinition {name}", source)
    return Definition(name, source, text.decode(), contents[0])


def _is_definition(content: Any, name: str) -> bool:
    try:
        versions = content["spec"]["versions"]
        return bool(
            content["apiVersion"] == "apiextensions.k8s.io/v1"
            and content["kind"] == "CustomResourceDefinition"
            and content["metadata"]["name"] == name
            and versions
            and all(isinstance(one["name"], str) for one in versions)
        )
    except (KeyError, TypeError, IndexError):
        return False
