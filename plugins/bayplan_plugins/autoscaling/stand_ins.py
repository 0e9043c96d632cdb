"""Stand-ins: pods that ask autoscalers for nodes in the place of others, and never get one.

All that is known of a stand-in is in its object, so that a restart makes none twice and leaves none
behind. Several pods that need a part of a GPU each share the stand-in of that GPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bayplan import Handle
from bayplan.api import ObjectMeta, Pod, PodCondition, pod_requests
from bayplan.api.pod import PodSpec
from bayplan.cluster.protocol import CreateObject, DeleteObject, PatchFields, PatchPodStatus
from bayplan.dialects.autoscaling import STAND_IN_LABEL, STAND_IN_NAMESPACE, STAND_IN_PODS
from bayplan.errors import ClusterError
from bayplan.plugin.decision import NODES_LACK
from bayplan_plugins.autoscaling.visible import VisiblePod, code_of

__all__ = ["STAND_IN_FIELDS", "StandIns"]

_PODS_POINTER = "/metadata/annotations/bayplan.dev~1stand-in-pods"
_SHARE = "bayplan.dev/stand-in-shares"
"""The part of its GPU that they need."""
_GRACE = 10.0
"""Seconds after the start in which a stand-in may be found again by the unit that it is for."""
_WHOLE, _FULL = 1.0 + 1e-9, 1.0 - 1e-9
"""One GPU, as sums of parts of it may come out."""
STAND_IN_FIELDS: dict[str, Any] = {
    "/spec/automountServiceAccountToken": False,
    "/spec/enableServiceLinks": False,
    "/spec/securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 65534,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "/spec/containers/0/securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    },
}
"""What the strictest Pod Security Standard asks for."""


class _StandIn(msgspec.Struct):
    """A stand-in, and the pods that it asks for with the parts of a GPU that they need."""

    name: str
    kind: str
    """What those have in common that may share it."""
    shares: dict[str, float] = msgspec.field(default_factory=dict)
    asks: Mapping[str, int] = msgspec.field(default_factory=dict)
    uid: str = ""

    @property
    def key(self) -> str:
        return f"{STAND_IN_NAMESPACE}/{self.name}"

    @property
    def used(self) -> float:
        return sum(self.shares.values())


class Asked(msgspec.Struct, frozen=True):
    """How many stand-ins ask for some pods, whether any is new, and why one could not be made."""

    count: int
    is_new: bool
    problem: str


class StandIns:
    """Makes stand-ins, and deletes them once no pod needs them."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._known: dict[str, _StandIn] = {}
        self._of_pod: dict[str, str] = {}
        """The name of the stand-in of each pod, by the pod's key."""
        self._open: dict[str, dict[str, None]] = {}
        """By kind, the names of those whose GPU has something left."""
        self._claimed: set[str] = set()
        """The pods that have asked since the start."""
        self._began: float | None = None
        self._problems: dict[str, str] = {}
        """Why the stand-in of a pod could not be made, by the pod's key."""
        handle.snapshot.on_object(Pod, self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._gone(old.metadata.name)
            return
        one = self._known.get(new.metadata.name)
        if one is None:
            one = self._known[new.metadata.name] = _read(new)
            self._note_room(one)
            for key in one.shares:
                self._of_pod.setdefault(key, one.name)
        one.uid = new.metadata.uid
        if new.metadata.annotations.get(STAND_IN_PODS, "").split() != list(one.shares):
            # Others joined it before it was seen.
            self._write_pods(one)
        if not any(c.type == "PodScheduled" for c in new.status.conditions):
            # No scheduler looks at it, so this is what autoscalers wait for.
            message = f"stands for {', '.join(one.shares)}"
            condition = PodCondition("PodScheduled", "False", NODES_LACK, message[:1000])
            self._handle.submit(PatchPodStatus(new.key, one.uid, condition))

    def _gone(self, name: str) -> None:
        one = self._known.pop(name, None)
        if one is not None:
            self._note_room(one)
        for key in one.shares if one is not None else ():
            if self._of_pod.get(key) == name:
                del self._of_pod[key]

    # Asking --------------------------------------------------------------------------------------

    def ask(self, pods: Sequence[VisiblePod]) -> Asked:
        """Ask for what some pods need."""
        names: dict[str, None] = {}
        problem, is_new = "", False
        for one in pods:
            key = one.pod.key
            self._claimed.add(key)
            problem = self._problems.pop(key, problem)
            before = self._of_pod.get(key)
            name = self._stand_in(one)
            is_new |= name != before
            names[name] = None
        return Asked(len(names), is_new, problem)

    def _stand_in(self, one: VisiblePod) -> str:
        """Return the name of the stand-in of a pod, which is made unless there is one."""
        key, kind = one.pod.key, _kind(one)
        known = self._known.get(self._of_pod.get(key, ""))
        if known is not None and known.kind == kind and _covers(known.asks, one.amounts):
            return known.name
        if known is not None:
            self._leave(known, key)
        shared = self._with_room(kind, one) if one.share else None
        if shared is not None:
            shared.shares[key] = one.share
            self._note_room(shared)
            self._of_pod[key] = shared.name
            self._write_pods(shared)
            return shared.name
        return self._make(one, kind)

    def _with_room(self, kind: str, pod: VisiblePod) -> _StandIn | None:
        """Return a stand-in whose GPU has room, and which asks for as much CPU and memory."""
        found = (self._known[name] for name in self._open.get(kind, ()))
        return next(
            (
                one
                for one in found
                if one.used + pod.share <= _WHOLE and _covers(one.asks, pod.amounts)
            ),
            None,
        )

    def _note_room(self, one: _StandIn) -> None:
        """Note whether the GPU of a stand-in has something left."""
        if one.name in self._known and one.shares and one.used < _FULL:
            self._open.setdefault(one.kind, {})[one.name] = None
            return
        names = self._open.get(one.kind, {})
        names.pop(one.name, None)
        if not names:
            self._open.pop(one.kind, None)

    def _make(self, one: VisiblePod, kind: str) -> str:
        amounts = sorted(one.amounts.items())
        code = code_of(f"{one.pod.uid} {kind} {amounts}")
        shares = {one.pod.key: one.share or 1.0}
        made = _StandIn(f"stand-in-{code}", kind, shares, dict(one.amounts))
        self._known[made.name] = made
        self._note_room(made)
        self._of_pod[one.pod.key] = made.name
        meta = ObjectMeta(
            name=made.name,
            namespace=STAND_IN_NAMESPACE,
            labels={STAND_IN_LABEL: one.together or code_of(one.pod.key)},
            annotations={STAND_IN_PODS: one.pod.key, _SHARE: _shares_text(made), _KIND: kind},
        )
        pod = Pod(meta, one.full_spec())
        self._handle.submit(
            CreateObject(pod, STAND_IN_FIELDS), lambda error: self._made(made, error)
        )
        return made.name

    def _made(self, one: _StandIn, error: ClusterError | None) -> None:
        if error is not None:
            self._problems |= dict.fromkeys(one.shares, str(error))
            self._gone(one.name)

    def _write_pods(self, one: _StandIn) -> None:
        """Note in a stand-in for which pods it is."""
        if one.uid:
            fields = {
                _PODS_POINTER: " ".join(one.shares),
                "/metadata/annotations/bayplan.dev~1stand-in-shares": _shares_text(one),
            }
            self._handle.submit(PatchFields(Pod, one.key, one.uid, fields))

    # Giving back ---------------------------------------------------------------------------------

    def leave(self, pod: str) -> DeleteObject | None:
        """Forget a pod that is about to be bound; return what has to be deleted before.

        A stand-in that outlived the binding, if only for a moment, would buy one more node.
        """
        self._claimed.discard(pod)
        known = self._known.get(self._of_pod.pop(pod, ""))
        if known is None:
            return None
        known.shares.pop(pod, None)
        if known.shares:
            self._note_room(known)
            self._write_pods(known)
            return None
        self._known.pop(known.name)
        self._note_room(known)
        return DeleteObject(Pod, known.key, known.uid)

    def drop(self, pods: Iterable[str]) -> None:
        """Forget pods, by key, that need no nodes any more."""
        for key in pods:
            self._claimed.discard(key)
            self._problems.pop(key, None)
            known = self._known.get(self._of_pod.pop(key, ""))
            if known is not None:
                self._leave(known, key)

    def _leave(self, one: _StandIn, key: str) -> None:
        one.shares.pop(key, None)
        self._of_pod.pop(key, None)
        if one.shares:
            self._note_room(one)
            self._write_pods(one)
            return
        self._known.pop(one.name, None)
        self._note_room(one)
        self._handle.submit(DeleteObject(Pod, one.key, one.uid))

    def sweep(self) -> float | None:
        """Drop what was left by an earlier process; return when to look again, in seconds."""
        now = self._handle.now
        if self._began is None:
            self._began = now
        living, placed = self._handle.snapshot.living, self._handle.snapshot.placed
        left = [key for key in self._of_pod if key not in self._claimed]
        # Of those that wait still, each may ask again.
        self.drop([key for key in left if key in placed or key not in living])
        left = [key for key in left if key in self._of_pod]
        unread = [one for one in self._known.values() if not one.shares]
        if not left and not unread:
            return None
        if now < self._began + _GRACE:
            return self._began + _GRACE
        self.drop(left)
        for one in unread:
            self._leave(one, "")
        return None


_KIND = "bayplan.dev/stand-in-kind"


def _kind(one: VisiblePod) -> str:
    """Return what pods have in common that one stand-in may ask for."""
    spec: PodSpec = one.full_spec()
    if one.share:
        # The CPU and the memory of pods that share a GPU may differ.
        resources = {name: n for name, n in one.amounts.items() if "/" in name}
        what: Any = (resources, spec.node_selector, spec.affinity, spec.tolerations)
    else:
        what = spec
    encoded = msgspec.json.encode(what, enc_hook=lambda quantity: quantity.text)
    return hashlib.sha256(encoded).hexdigest()[:16]


def _shares_text(one: _StandIn) -> str:
    return " ".join(f"{share:.4f}" for share in one.shares.values())


def _read(pod: Pod) -> _StandIn:
    """Return a stand-in as its object describes it; one that cannot be read is for no pod."""
    said = pod.metadata.annotations
    keys, texts = said.get(STAND_IN_PODS, "").split(), said.get(_SHARE, "").split()
    try:
        shares = dict(zip(keys, map(float, texts), strict=True))
    except ValueError:
        shares = {}
    asks = pod_requests(pod.spec).effective
    return _StandIn(pod.metadata.name, said.get(_KIND, ""), shares, asks, pod.metadata.uid)


def _covers(asks: Mapping[str, int], amounts: Mapping[str, int]) -> bool:
    """Tell whether a stand-in asks for at least as much as a pod."""
    return all(asks.get(name, 0) >= amount for name, amount in amounts.items())
