"""Koordinator's ClusterColocationProfile: what pods of some kind get when they are created."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bayplan.api.meta import ApiStruct, LabelSelector, ObjectMeta

__all__ = ["ClusterColocationProfile", "ColocationSpec", "colocation_problems"]

_PATCHED = {
    "metadata": ("labels", "annotations"),
    "spec": ("nodeSelector", "schedulerName", "tolerations"),
}
"""What a patch may change, by where that is."""


class ColocationSpec(ApiStruct, frozen=True):
    """spec: which pods, and what they get."""

    namespace_selector: LabelSelector | None = None
    selector: LabelSelector | None = None
    probability: int | str | None = None
    qos_class: str = ""
    priority_class_name: str = ""
    koordinator_priority: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    label_keys_mapping: dict[str, str] = {}
    annotation_keys_mapping: dict[str, str] = {}
    label_suffixes: dict[str, str] = {}
    scheduler_name: str = ""
    patch: dict[str, Any] | None = None


class ClusterColocationProfile(ApiStruct, frozen=True):
    """config.koordinator.sh/v1alpha1 ClusterColocationProfile."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ColocationSpec = ColocationSpec()

    @property
    def key(self) -> str:
        """The name."""
        return self.metadata.name

    @property
    def is_on(self) -> bool:
        """Whether it changes any pods."""
        return str(self.spec.probability) not in ("0", "0%")


def colocation_problems(found: ClusterColocationProfile) -> Iterator[tuple[str, str]]:
    """Yield (JSON path, message) for what bayplan, or a policy, cannot do of a profile."""
    spec = found.spec
    if str(spec.probability) not in ("None", "0", "0%", "100", "100%"):
        yield "$.spec.probability", "expected 0% or 100%: admission policies know no chance"
    for part, content in (spec.patch or {}).items():
        if not isinstance(content, dict) or part not in _PATCHED:
            yield f"$.spec.patch.{part}", f"expected {' or '.join(_PATCHED)} only"
            continue
        for field in content:
            if field not in _PATCHED[part]:
                expected = ", ".join(_PATCHED[part])
                yield f"$.spec.patch.{part}.{field}", f"expected one of {expected}"
