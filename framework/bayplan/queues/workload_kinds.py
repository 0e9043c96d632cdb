"""What tells Workloads apart that fit into different places."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import msgspec

from bayplan.api import KueueWorkload

__all__ = ["equivalence"]


def equivalence(
    workload: KueueWorkload, asked: Sequence[tuple[int, Mapping[str, float]]]
) -> Hashable:
    """Return what decides where a workload fits, so that equal ones need one attempt only.

    :param asked: how many pods each of its pod sets has, and what they request together.
    """
    spec = workload.spec
    parts = []
    for pod_set, (count, requests) in zip(spec.pod_sets, asked, strict=False):
        pods = pod_set.template.spec
        where = msgspec.json.encode((pods.node_selector, pods.affinity, pod_set.topology_request))
        amounts = tuple(sorted(requests.items()))
        parts.append((count, amounts, pod_set.min_count, where, pods.tolerations))
    return (spec.priority or 0, tuple(parts))
