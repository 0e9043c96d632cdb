"""Immutable fields of pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bayplan.cluster.apiserver.api_errors import Cause, invalid

__all__ = ["check_pod_update"]

Content = dict[str, Any]

_ALLOWED = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be "
    "set to 1 if it was previously negative)"
)
_MUTABLE = ("activeDeadlineSeconds", "tolerations", "schedulingGates")
_MUTABLE_WHEN_GATED = ("nodeSelector", "affinity")


def check_pod_update(before: Content, after: Content) -> None:
    """Refuse changes of a pod's immutable fields.

    :raises ApiError: 422, with the changed fields.
    """
    causes = list(_problems(before.get("spec", {}), after.get("spec", {})))
    if causes:
        raise invalid("", "Pod", after["metadata"]["name"], causes)


def _problems(old: Content, new: Content) -> Iterator[Cause]:
    mutable = _MUTABLE + (_MUTABLE_WHEN_GATED if old.get("schedulingGates") else ())
    if _fixed(old, mutable) != _fixed(new, mutable):
        yield Cause("FieldValueForbidden", _ALLOWED, "spec")
    kept = [t for t in old.get("tolerations", ()) if t not in new.get("tolerations", ())]
    if kept:
        text = "Forbidden: existing toleration can not be modified except its tolerationSeconds"
        yield Cause("FieldValueForbidden", text, "spec.tolerations")
    names = [gate.get("name") for gate in old.get("schedulingGates", ())]
    for gate in new.get("schedulingGates", ()):
        if gate.get("name") not in names:
            found = gate.get("name")
            text = f"Forbidden: only deletion is allowed, but found new scheduling gate '{found}'"
            yield Cause("FieldValueForbidden", text, "spec.schedulingGates")


def _fixed(spec: Content, mutable: tuple[str, ...]) -> Content:
    fixed = {key: value for key, value in spec.items() if key not in mutable}
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [{**container, "image": ""} for container in fixed[field]]
    return fixed
