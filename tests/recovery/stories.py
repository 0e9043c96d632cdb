"""Stories of nodes and devices that fail, played in virtual time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace
from tests.paths import SHARED

from bayplan.api import KINDS, ApiObject, Pod, ResourceClaim
from bayplan.api.objects import decode_object
from bayplan.cluster.manifests import load_manifests
from bayplan.plugin.base import Eviction
from bayplan.profiles.loading import ProfileSet
from bayplan.simulation import Simulation

Content = dict[str, Any]

RECOVERY = SHARED / "scenarios" / "recovery"
START = datetime(2026, 11, 24, 10, tzinfo=UTC)
"""Time 0 of most stories."""


def merged(old: Any, new: Any) -> Any:
    """Return a JSON value with a merge patch; lists are replaced."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    keys = {**old, **new}
    return {key: merged(old.get(key), new[key]) if key in new else old[key] for key in keys}


def _plain(obj: ApiObject) -> Content:
    found: Content = msgspec.to_builtins(obj, enc_hook=lambda quantity: quantity.text)
    return found


def _with_named_uids(objects: Sequence[ApiObject]) -> list[ApiObject]:
    """Give objects without a uid the one by which what they own names them."""
    named = {
        (owner.kind, one.metadata.namespace, owner.name): owner.uid
        for one in objects
        for owner in one.metadata.owner_references
    }
    found = []
    for one in objects:
        key = type(one).__name__, one.metadata.namespace, one.metadata.name
        if not one.metadata.uid and key in named:
            one = replace(one, metadata=replace(one.metadata, uid=named[key]))
        found.append(one)
    return found


class Story:
    """A cluster with jobs that run, and what happens to it."""

    def __init__(
        self,
        folder: Path,
        profiles: ProfileSet,
        until: float,
        start: datetime = START,
        own_replacements: bool = False,
    ) -> None:
        """Load what there is.

        :param own_replacements: the embedded controllers make pods again, not the story.
        """
        self.folder = folder
        self.simulation = Simulation(profiles, until=until, start=start)
        self.cluster = self.simulation.cluster
        loaded = load_manifests((str(folder / "manifests"),))
        self.simulation.create(_with_named_uids(loaded.objects), restore=True)
        self.before = {pod.key: pod.metadata.uid for pod in self.cluster.list(Pod)}
        for event in yaml.safe_load((folder / "event.yaml").read_text()):
            self.cluster.clock.call_at(event["at"], lambda one=event: self._happens(one))
        self._own_replacements = own_replacements
        self.looks: dict[float, dict[str, str]] = {}

    def _happens(self, event: Content) -> None:
        content = event["object"]
        kind = KINDS[content["apiVersion"].rpartition("/")[0], content["kind"]]
        meta = content["metadata"]
        key = f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else meta["name"]
        current = self.cluster.get(kind.type, key)
        if event["do"] == "delete":
            if current is not None:
                self.cluster.delete(kind.type, key, 0 if event.get("force") else None)
        elif event["do"] == "patch":
            assert current is not None
            self.cluster.update(decode_object(kind, merged(_plain(current), content)))
        elif self._own_replacements and content["kind"] == "Pod":
            return
        elif current is None:
            self.simulation.create([decode_object(kind, content)], restore=True)
        else:
            self.cluster.update(decode_object(kind, merged(_plain(current), content)))

    def look_at(self, *times: float) -> None:
        """Note where pods are at some times."""
        for at in times:
            self.cluster.clock.call_at(at, lambda at=at: self.looks.update({at: self.placed()}))

    def run(self) -> None:
        self.simulation.run()

    def placed(self) -> dict[str, str]:
        """Return the node of each pod that is there, "" for none."""
        return {pod.key: pod.spec.node_name for pod in self.cluster.list(Pod)}

    def kept(self) -> set[str]:
        """Return the pods of the beginning that are still there."""
        return {p.key for p in self.cluster.list(Pod) if self.before.get(p.key) == p.metadata.uid}

    def evictions(self) -> list[Eviction]:
        """Return what was evicted, in order."""
        return list(self.simulation.scheduler.evictor.evicted)

    def claims(self) -> dict[str, str]:
        """Return the pool of each claim's device."""
        return {
            one.key: ",".join(f"{r.pool}/{r.device}" for r in one.status.allocation.devices.results)
            for one in self.cluster.list(ResourceClaim)
            if one.status.allocation is not None
        }

    def expected(self) -> Content:
        """Return what the story says becomes of it."""
        found: Content = json.loads((self.folder / "expected.json").read_text())
        return found
