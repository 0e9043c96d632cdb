"""What an update may change in a pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.cluster.api_errors import Cause
from bayplan.cluster.apiserver.validation.formats import forbidden, items, mapping, wrong

__all__ = ["pod_update_problems"]

Content = Mapping[str, Any]

_ALLOWED = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be "
    "set to 1 if it was previously negative)"
)
_MUTABLE = ("activeDeadlineSeconds", "tolerations", "schedulingGates")
_MUTABLE_WHEN_GATED = ("nodeSelector", "affinity")


def pod_update_problems(after: Content, before: Content) -> Iterator[Cause]:
    """Yield the changes of a pod that are not allowed."""
    old, new = mapping(before.get("spec")), mapping(after.get("spec"))
    for field in ("containers", "initContainers"):
        if len(old.get(field) or ()) != len(new.get(field) or ()):
            yield forbidden(f"spec.{field}", "pod updates may not add or remove containers")
            return
    yield from _deadline(old.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds"))
    mutable: tuple[str, ...] = _MUTABLE
    if old.get("schedulingGates"):
        mutable += _MUTABLE_WHEN_GATED
        yield from _node_selector(mapping(old.get("nodeSelector")), new.get("nodeSelector"))
    if _fixed(old, mutable) != _fixed(new, mutable):
        yield forbidden("spec", _ALLOWED)
    kept = [_lasting(one) for _, one in items(new.get("tolerations"))]
    if any(_lasting(one) not in kept for _, one in items(old.get("tolerations"))):
        why = "existing toleration can not be modified except its tolerationSeconds"
        yield forbidden("spec.tolerations", why)
    names = [gate.get("name") for _, gate in items(old.get("schedulingGates"))]
    for index, gate in items(new.get("schedulingGates")):
        if gate.get("name") not in names:
            why = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            yield forbidden(f"spec.schedulingGates[{index}].name", why)


def _deadline(old: Any, new: Any) -> Iterator[Cause]:
    path = "spec.activeDeadlineSeconds"
    if old is not None and new is None:
        yield wrong(path, None, "must not update from a positive integer to nil value")
    elif old is not None and new > old:
        yield wrong(path, new, "must be less than or equal to previous value")


def _node_selector(old: Content, new: Any) -> Iterator[Cause]:
    if not old.items() <= mapping(new).items():
        why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        yield wrong("spec.nodeSelector", new or {}, why)


def _lasting(toleration: Content) -> dict[str, Any]:
    """Return a toleration without its seconds, which may change."""
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _fixed(spec: Content, mutable: tuple[str, ...]) -> dict[str, Any]:
    fixed = {key: value for key, value in spec.items() if value and key not in mutable}
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [{**one, "image": ""} for _, one in items(fixed[field])]
    return fixed
