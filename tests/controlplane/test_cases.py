"""Worked cases of each ecosystem end on a real API server as they do in memory."""

from __future__ import annotations

import pytest
import yaml
from tests.controlplane.live_cluster import LiveCluster
from tests.scenarios.expected import CASES, NAMES, check, profile_of

from bayplan.profiles.finder import PluginFinder
from bayplan.profiles.loading import load_profiles

NOT_THERE = {
    "koordinator-one-member-runs": "no kubelet says when pods started; of such pods the last stays",
    "kubernetes-disruption-mode-group": "the API server drops disruptionMode without a gate",
    "kubernetes-gang-too-large": "the API server serves v1alpha2 only",
    "kubernetes-volume-zones": "nothing provisions volumes",
    "kubernetes-workload-template": "a PodGroup needs a policy of its own in v1alpha2",
    "volcano-job": "Volcano's controller makes the pods",
    "volcano-job-partitions": "Volcano's controller makes the pods",
}
"""Cases that need what this control plane does not have."""


@pytest.mark.parametrize("case", [name for name in NAMES if name not in NOT_THERE])
async def test_a_case_ends_on_the_real_control_plane_as_in_memory(
    case: str, real: LiveCluster
) -> None:
    real.apply(yaml.safe_load_all((CASES / case / "manifests.yaml").read_text()))
    real.start_together()
    profile = profile_of(case)
    profiles = load_profiles(profile, PluginFinder()) if profile is not None else None
    async with real.scheduler(profiles) as app:
        await real.ends(app, lambda outcome: check(case, outcome))
