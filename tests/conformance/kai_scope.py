"""Which of KAI's scenarios are run, and with which profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.conformance.kai_scenarios import Case
from tests.paths import ROOT

from bayplan.profiles.loading import ProfileSet, load_profiles
from bayplan.testing import Cluster

PROFILE = ROOT / "configs/profiles/kai.yaml"


def out_of_scope(case: Case) -> str | None:
    """Return why a scenario is not run, None when it is."""
    if any(task.get("is_legacy_mig_task") for job in case["jobs"] for task in job["tasks"]):
        return "pods on partitions of MIG that no resource names"
    return None


def profiles_of(case: Case) -> ProfileSet:
    """Return the profile that decides as KAI's with the case's actions and settings."""
    actions = case["actions"] or ["allocate"]
    grace = (case.get("session_overrides") or {}).get("global_default_staleness_grace_period_s", 0)
    kai: dict[str, Any] = {
        "actions": actions,
        "maxConsolidationPreemptees": -1,
        "defaultStalenessGracePeriod": f"{grace:g}s",
    }
    plugins: dict[str, Mapping[str, Any]] = {"Queues": {"kai": kai}}
    plugins["GPUSharing"] = {
        "nodes": "spread" if _spreads(case) else "pack",
        "gpus": "spread" if "gpuspread" in _named(case) else "pack",
    }
    if _spreads(case):
        gpus = {"type": "LeastAllocated", "resources": [{"name": "nvidia.com/gpu", "weight": 1}]}
        plugins["NodeResourcesFit"] = {"scoringStrategy": gpus}
    cluster = Cluster(profiles=load_profiles(PROFILE), plugins=plugins)
    profile = next(iter(cluster.scheduler.profiles.values())).profile
    return ProfileSet((profile,))


def _spreads(case: Case) -> bool:
    """Tell whether a case replaces KAI's packing of GPUs by spreading."""
    return any(given.get("gpu") == "spread" for given in _named(case).values())


def _named(case: Case) -> dict[str, dict[str, Any]]:
    """Return the plugins that a case names instead of KAI's own list, with their arguments."""
    tiers = (case.get("config") or {}).get("tiers") or ()
    return {one["name"]: one.get("arguments") or {} for tier in tiers for one in tier["plugins"]}
