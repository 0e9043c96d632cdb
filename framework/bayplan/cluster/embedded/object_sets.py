"""The objects that operators make for those that hold several: AppWrappers, sets of sets.

What they make is JSON (:mod:`bayplan.dialects`); what pods there are is up to the controllers of
what is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import ApiObject, Pod, kind_of
from bayplan.api.objects import KINDS, DecodeError, decode_object
from bayplan.api.operated import (
    AppWrapper,
    DisaggregatedSet,
    KnativeService,
    OperatedObject,
    PodClique,
    PodCliqueSet,
)
from bayplan.cluster.embedded.children import Children
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.dialects.disaggregated import sets_of
from bayplan.dialects.grove_sets import BASE_LABEL, GANG_LABEL, objects_of
from bayplan.dialects.knative import deployments_of
from bayplan.dialects.wrapped_jobs import components_of
from bayplan.errors import InputError
from bayplan.kinds import KINDS_OF_WORKLOADS, progress_of, templates_of

__all__ = ["ObjectSetsController", "holder"]

Content = dict[str, Any]
_MAKERS: Mapping[type[OperatedObject], Callable[[Content], Iterable[Content]]] = {
    AppWrapper: components_of,
    DisaggregatedSet: sets_of,
    KnativeService: deployments_of,
    PodCliqueSet: objects_of,
}


def holder(group: str, name: str) -> type[OperatedObject] | None:
    """Return the type of these objects of a kind, None for any other kind."""
    kind = KINDS.get((group, name))
    return next((one for one in _MAKERS if kind is not None and kind.type is one), None)


class ObjectSetsController:
    """Makes these objects, brings them in line with their owners, and deletes the others."""

    types = tuple(_MAKERS)

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children

    def reconcile(self, owner: OperatedObject) -> None:
        """Bring what is made for an object in line with it, and its status with that."""
        content: Content = msgspec.to_builtins(owner)
        kind = kind_of(owner)
        row = KINDS_OF_WORKLOADS[kind.group, kind.name]
        if progress_of(row, content, ()).end is not None:
            return
        suspended = bool(row.suspend) and owner.spec.get("suspend") is True
        try:
            wanted = [] if suspended else list(_MAKERS[type(owner)](content))
        except (ValueError, KeyError, TypeError) as exc:
            self._cluster.report(owner, InputError(f"{kind.name} {owner.metadata.name}: {exc}"))
            return
        kept = {key for one in wanted if (key := self._brought_in_line(owner, one)) is not None}
        for child in self._children.all(owner):
            key = type(child), self._cluster.key_of(child)
            if not isinstance(child, Pod) and key not in kept:
                if child.metadata.deletion_timestamp is None:
                    self._cluster.delete(*key)
        if isinstance(owner, AppWrapper):
            self._report_phase(owner, content, suspended)

    def _brought_in_line(
        self, owner: OperatedObject, content: Content
    ) -> tuple[type[ApiObject], str] | None:
        """Create or update an object; return its type and key, None where it cannot be made."""
        group, kind_name = content["apiVersion"].rpartition("/")[0], content["kind"]
        kind = KINDS.get((group, kind_name))
        if kind is None:
            return None
        meta = {**content["metadata"], "namespace": owner.metadata.namespace}
        try:
            wanted = decode_object(kind, {**content, "metadata": meta})
        except DecodeError as exc:
            name = f"{kind_name} {content['metadata'].get('name', '')}"
            self._cluster.report(owner, InputError(f"{name}: {exc}"))
            return None
        key = self._cluster.key_of(wanted)
        known = self._cluster.get(type(wanted), key)
        if known is None:
            if self._waits_for_base(owner, wanted):
                return None
            self._children.create(owner, wanted)
        elif all(one.uid != owner.metadata.uid for one in known.metadata.owner_references):
            return None
        elif not isinstance(owner, AppWrapper) and isinstance(known, OperatedObject):
            # An AppWrapper never changes what it has made.
            spec = getattr(wanted, "spec", {})
            if known.spec != spec and known.metadata.deletion_timestamp is None:
                self._cluster.update(replace(known, spec=spec))
        return type(wanted), key

    def _waits_for_base(self, owner: OperatedObject, wanted: ApiObject) -> bool:
        """Tell whether a clique waits until the gang runs that it comes on top of."""
        base = wanted.metadata.labels.get(BASE_LABEL)
        if base is None:
            return False
        children = self._children.all(owner)
        cliques = [one for one in children if one.metadata.labels.get(GANG_LABEL) == base]
        return not all(
            isinstance(one, PodClique)
            and one.status.get("readyReplicas", 0)
            >= one.spec.get("minAvailable", one.spec.get("replicas", 1))
            for one in cliques
        )

    # AppWrappers -----------------------------------------------------------------------------

    def _report_phase(self, owner: AppWrapper, content: Content, suspended: bool) -> None:
        """Write whether what an AppWrapper holds runs, and how it ended."""
        ends, ready = [], True
        for child in self._children.all(owner):
            kind = kind_of(child)
            row = KINDS_OF_WORKLOADS.get((kind.group, kind.name))
            if row is None:
                continue
            of_child = msgspec.to_builtins(child, enc_hook=lambda quantity: quantity.text)
            templates = tuple(templates_of(row, of_child))
            state = progress_of(row, of_child, templates)
            ready = ready and state.ready >= sum(one.count for one in templates)
            ends.append(state)
        phase = "Suspended" if suspended else "Running"
        if ends and all(one.end is not None for one in ends):
            phase = "Succeeded" if all(one.succeeded for one in ends) else "Failed"
        value = "True" if ready and ends and phase == "Running" else "False"
        status = dict(owner.status)
        known = {one.get("type"): one for one in status.get("conditions", ())}
        if known.get("PodsReady", {}).get("status", "False") != value:
            now = self._cluster.timestamp()
            made = {"type": "PodsReady", "status": value, "lastTransitionTime": now}
            known["PodsReady"] = {**made, "reason": "AppWrapper", "message": ""}
            status["conditions"] = list(known.values())
        if phase != owner.status.get("phase"):
            status["phase"] = phase
        if status != owner.status:
            self._cluster.update(replace(owner, status=status))
