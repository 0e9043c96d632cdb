"""What koord-descheduler does by LowNodeLoad becomes a plugin of the scheduler's profile."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml
from tests.migration.test_plan import KOORDINATOR, config_map, workload

from bayplan.migration import plan_of
from bayplan.profiles.loading import load_profiles

CONFIGURATION: Any = yaml.safe_load(
    """
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
enableProfiling: true
leaderElection: {resourceName: koord-descheduler}
deschedulingInterval: 60s
maxNoOfPodsToEvictPerNode: 5
dryRun: false
profiles:
- name: koord-descheduler
  plugins:
    deschedule: {disabled: [{name: "*"}]}
    balance: {enabled: [{name: LowNodeLoad}]}
    evict: {enabled: [{name: MigrationController}]}
  pluginConfig:
  - name: MigrationController
    args:
      apiVersion: descheduler/v1alpha2
      kind: MigrationControllerArgs
      evictionPolicy: Eviction
      evictQPS: "10"
      defaultJobMode: ReservationFirst
      maxMigratingPerWorkload: 10%
      namespaces: {exclude: [kube-system]}
      objectLimiters: {workload: {duration: 10m, maxMigrating: 2, burst: 1}}
  - name: LowNodeLoad
    args:
      apiVersion: descheduler/v1alpha2
      kind: LowNodeLoadArgs
      evictableNamespaces: {exclude: [kube-system, koordinator-system]}
      useDeviationThresholds: false
      lowThresholds: {cpu: 45, memory: 55}
      highThresholds: {cpu: 75, memory: 80}
      anomalyCondition: {consecutiveAbnormalities: 3}
"""
)
ARGS = {
    "deschedulingInterval": "60s",
    "maxNoOfPodsToEvictPerNode": 5,
    "maxMigratingPerWorkload": "10%",
    "namespaces": {"exclude": ["kube-system"]},
    "objectLimiters": {"workload": {"duration": "10m", "maxMigrating": 2, "burst": 1}},
    "evictableNamespaces": {"exclude": ["kube-system", "koordinator-system"]},
    "useDeviationThresholds": False,
    "lowThresholds": {"cpu": 45, "memory": 55},
    "highThresholds": {"cpu": 75, "memory": 80},
    "anomalyCondition": {"consecutiveAbnormalities": 3},
}
DESCHEDULER = workload("koordinatorsh/koord-descheduler:v1.8", config="config")


def planned(configuration: Any, scheduler: bool = False) -> Any:
    maps = config_map("koord-descheduler-config", yaml.safe_dump(configuration))
    workloads = [DESCHEDULER]
    if scheduler:
        workloads.append(workload("koordinatorsh/koord-scheduler:v1.8", config="other"))
        maps["system/other"] = {"data": {"koord-scheduler-config": KOORDINATOR}}
    return plan_of(workloads, [], maps, [])


def args_of(profile: Any, plugin: str) -> Any:
    (found,) = (one["args"] for one in profile["pluginConfig"] if one["name"] == plugin)
    return found


def test_the_schedulers_profile_rebalances_as_the_descheduler_did(tmp_path: Path) -> None:
    plan = planned(CONFIGURATION, scheduler=True)
    (made,) = plan.conversions
    assert made.source == (
        "ConfigMap system/other (koord-scheduler-config), "
        "ConfigMap system/config (koord-descheduler-config)"
    )
    assert made.notes == ()
    assert args_of(made.profile, "LowNodeLoad") == ARGS
    assert args_of(made.profile, "Coscheduling")["defaultTimeout"] == "600s"
    path = tmp_path / "profiles.yaml"
    path.write_text(yaml.safe_dump(plan.configuration()))
    (profile,) = load_profiles(path).profiles
    assert profile.scheduler_name == "koord-scheduler"
    assert "LowNodeLoad" in profile.plugins


def test_without_a_scheduler_there_is_a_profile_of_its_own(tmp_path: Path) -> None:
    plan = planned(CONFIGURATION)
    (made,) = plan.conversions
    assert made.profile["schedulerName"] == "koord-scheduler"
    assert args_of(made.profile, "LowNodeLoad") == ARGS


def test_a_descheduler_that_does_not_balance_leaves_the_profile_alone() -> None:
    given = copy.deepcopy(CONFIGURATION)
    del given["profiles"][0]["plugins"]["balance"]
    assert planned(given).conversions == ()
    (made,) = planned(given, scheduler=True).conversions
    assert "plugins" not in made.profile


def test_what_has_no_counterpart_is_named_and_a_dry_run_stays_one() -> None:
    given = copy.deepcopy(CONFIGURATION)
    (profile,) = given["profiles"]
    profile["plugins"]["deschedule"] = {"enabled": [{"name": "RemovePodsViolatingNodeAffinity"}]}
    controller, plugin = (one["args"] for one in profile["pluginConfig"])
    controller |= {"evictAllBarePods": True, "evictFailedBarePods": False, "dryRun": True}
    controller["priorityThreshold"] = {"name": "high"}
    plugin |= {"nodeFit": False, "unheardOf": 1}
    (made,) = planned(given).conversions
    assert args_of(made.profile, "LowNodeLoad") == {**ARGS, "dryRun": True}
    assert made.notes == (
        "RemovePodsViolatingNodeAffinity has no counterpart",
        "nodeFit: false has no counterpart: nothing moves that fits nowhere",
        "LowNodeLoad: unheardOf has no counterpart",
        "MigrationController: evictAllBarePods has no counterpart",
        "priorityThreshold.name has no counterpart: state its value",
    )


def test_what_makes_no_sense_breaks_nothing() -> None:
    for profiles in (None, 4, [3], [{"plugins": 3}], [{"plugins": {"balance": {"enabled": 3}}}]):
        assert planned({"kind": "DeschedulerConfiguration", "profiles": profiles}).conversions == ()
