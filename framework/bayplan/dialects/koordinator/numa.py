"""Koordinator: what a pod asks of the NUMA nodes of its node.

Names as in koordinator-sh/koordinator v1.8 (apis/extension/numa_aware.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from bayplan.api.meta import ApiStruct
from bayplan.dialects.koordinator.annotations import mapping_in, part_of

__all__ = ["NUMA_SPEC", "NumaPolicy", "NumaSpec", "numa_spec_of"]

NumaPolicy: TypeAlias = Literal["", "BestEffort", "Restricted", "SingleNUMANode"]

NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"


class NumaSpec(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """How a pod's resources are to be aligned, "" for as its node says.

    ``exclusive`` says whether pods with CPUs of one NUMA node, and of several, may share a NUMA
    node with each other: not where it is Required.
    """

    policy: NumaPolicy = msgspec.field(default="", name="numaTopologyPolicy")
    exclusive: Literal["", "Preferred", "Required"] = msgspec.field(
        default="", name="singleNUMANodeExclusive"
    )

    @property
    def apart(self) -> bool:
        """Whether the pod shares no NUMA node with pods of the other kind."""
        return self.exclusive == "Required" or bool(self.policy and not self.exclusive)


_ANY = NumaSpec()


def numa_spec_of(annotations: Mapping[str, str]) -> NumaSpec:
    """Return what a pod asks of NUMA nodes; the defaults without the annotation.

    :raises ValueError: for an annotation that cannot be read, naming it.
    """
    if NUMA_SPEC not in annotations:
        return _ANY
    return part_of(NumaSpec, NUMA_SPEC, "$", mapping_in(annotations, NUMA_SPEC))
