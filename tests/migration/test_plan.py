"""What becomes of the parts of other systems, and which profiles replace their configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.paths import ROOT

from bayplan.migration import COMPONENTS, plan_of
from bayplan.migration.components import component_of
from bayplan.profiles.loading import load_profiles

VOLCANO = """
actions: "enqueue, allocate, backfill, reclaim"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
- plugins:
  - name: drf
  - name: proportion
  - name: nodeorder
configurations:
- name: enqueue
  arguments: {"overcommit-factor": 1.5}
"""
KUEUE = """
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
fairSharing: {preemptionStrategies: [LessThanOrEqualToFinalShare]}
waitForPodsReady: {timeout: 5m, blockAdmission: true}
multiKueue: {gcInterval: 1m}
resources: {excludeResourcePrefixes: [example.com/], deviceClassMappings: []}
manageJobsWithoutQueueName: true
managedJobsNamespaceSelector: {matchLabels: {team: x}}
integrations: {frameworks: [batch/job, pod], podOptions: {}, labelKeysToCopy: [team]}
"""
KOORDINATOR = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - name: Coscheduling
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: CoschedulingArgs, defaultTimeout: 600s}
  schedulerName: koord-scheduler
"""


def workload(image: str, kind: str = "Deployment", config: str = "", container: str = "c") -> Any:
    volumes = [{"name": "v", "configMap": {"name": config}}] if config else []
    spec = {"containers": [{"name": container, "image": image}], "volumes": volumes}
    metadata = {"namespace": "system", "name": "w"}
    return {"kind": kind, "metadata": metadata, "spec": {"template": {"spec": spec}}}


def config_map(key: str, text: str) -> dict[str, Any]:
    return {"system/config": {"data": {key: text}}}


@pytest.mark.parametrize(
    ("image", "kind", "container", "expected"),
    [
        ("docker.io/volcanosh/vc-scheduler:v1.15.1", "Deployment", "", "volcano scheduler go"),
        (
            "registry:5000/volcanosh/vc-controller-manager",
            "Deployment",
            "",
            "volcano controllers stay",
        ),
        (
            "ghcr.io/kai-scheduler/kai-scheduler/scheduler:v0.17.0",
            "Deployment",
            "",
            "kai scheduler go",
        ),
        (
            "ghcr.io/kai-scheduler/kai-scheduler/admission@sha256:a",
            "Deployment",
            "",
            "kai admission stay",
        ),
        ("registry.k8s.io/kueue/kueue:v0.19.2", "Deployment", "manager", "kueue manager go"),
        (
            "ghcr.io/koordinator-sh/koord-scheduler:v1.8.0",
            "Deployment",
            "",
            "koordinator scheduler go",
        ),
        ("ghcr.io/koordinator-sh/koordlet:v1.8.0", "DaemonSet", "", "koordinator koordlet stay"),
        ("projecthami/hami:v2.7.0", "Deployment", "vgpu-scheduler-extender", "hami scheduler go"),
        ("projecthami/hami:v2.7.0", "DaemonSet", "device-plugin", "hami device plugin stay"),
        ("projecthami/hami:v2.7.0", "DaemonSet", "vgpu-monitor", "hami monitor stay"),
    ],
    ids=str,
)
def test_a_program_is_known_by_its_image(
    image: str, kind: str, container: str, expected: str
) -> None:
    found = component_of(image, kind, container)
    assert found is not None
    assert f"{found.system} {found.name} {found.verdict}" == expected


@pytest.mark.parametrize(
    "image", ["", "nginx", "registry.k8s.io/kube-scheduler:v1.36.0", "example.com/my/scheduler:1"]
)
def test_other_programs_are_not_touched(image: str) -> None:
    assert component_of(image, "Deployment", "c") is None


def test_every_component_says_why() -> None:
    assert all(one.why for one in COMPONENTS)
    names = [(one.system, one.name) for one in COMPONENTS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("image", "key", "text", "name", "notes"),
    [
        ("volcanosh/vc-scheduler:1", "volcano-scheduler.conf", VOLCANO, "volcano", ()),
        (
            "kueue/kueue:1",
            "controller_manager_config.yaml",
            KUEUE,
            "default-scheduler",
            (
                "multiKueue has no counterpart",
                "resources.deviceClassMappings has no counterpart",
            ),
        ),
        ("koord-scheduler:1", "koord-scheduler-config", KOORDINATOR, "koord-scheduler", ()),
    ],
    ids=["volcano", "kueue", "koordinator"],
)
def test_a_configuration_becomes_a_profile_that_loads(
    image: str, key: str, text: str, name: str, notes: tuple[str, ...], tmp_path: Path
) -> None:
    plan = plan_of([workload(image, config="config")], [], config_map(key, text), [])
    (made,) = plan.conversions
    assert made.source == f"ConfigMap system/config ({key})"
    assert made.notes == notes
    path = tmp_path / "profiles.yaml"
    path.write_text(yaml.safe_dump(plan.configuration()))
    (profile,) = load_profiles(path).profiles
    assert profile.scheduler_name == name
    queues = next((one for one in made.profile["pluginConfig"] if one["name"] == "Queues"), None)
    if name == "volcano":
        assert queues is not None
        assert queues["args"]["volcano"] == yaml.safe_load(text)
    if name == "default-scheduler":
        assert queues is not None
        assert queues["args"]["kueue"]["waitForPodsReady"] == {
            "timeout": "5m",
            "blockAdmission": True,
        }
        assert queues["args"]["kueue"]["managedJobsNamespaceSelector"] == {
            "matchLabels": {"team": "x"}
        }
        assert queues["args"]["kueue"]["resources"] == {"excludeResourcePrefixes": ["example.com/"]}
        assert queues["args"]["kueue"]["manageJobsWithoutQueueName"] is True
        assert queues["args"]["kueue"]["integrations"] == {
            "frameworks": ["batch/job", "pod"],
            "labelKeysToCopy": ["team"],
        }


def test_kueue_leaves_out_the_namespaces_of_the_system_by_default() -> None:
    text = "{kind: Configuration, namespace: kq, manageJobsWithoutQueueName: true}"
    config = config_map("controller_manager_config.yaml", text)
    (made,) = plan_of([workload("kueue/kueue:1", config="config")], [], config, []).conversions
    (queues,) = made.profile["pluginConfig"]
    key, values = "kubernetes.io/metadata.name", ["kube-system", "kq"]
    assert queues["args"]["kueue"] == {
        "managedJobsNamespaceSelector": {
            "matchExpressions": [{"key": key, "operator": "NotIn", "values": values}]
        },
        "manageJobsWithoutQueueName": True,
        "integrations": {"frameworks": ["batch/job"]},
    }


@pytest.mark.parametrize(
    ("spec", "args", "strategy", "notes"),
    [
        (
            {},
            {"actions": ["allocate", "consolidation", "reclaim", "preempt", "stalegangeviction"]},
            "MostAllocated",
            (),
        ),
        (
            {
                "placementStrategy": {"gpu": "spread"},
                "kValue": 0.5,
                "minRuntime": {"reclaimMinRuntime": "10m"},
                "actions": {"consolidation": {"enabled": False}, "preempt": {"priority": 600}},
                "queueDepthPerAction": {"allocate": 10},
                "partitionLabelValue": "a",
            },
            {
                "actions": ["preempt", "allocate", "reclaim", "stalegangeviction"],
                "kValue": 0.5,
                "defaultReclaimMinRuntime": "10m",
            },
            "LeastAllocated",
            (
                "queueDepthPerAction has no counterpart",
                "nodes of a partition: give its pods a nodeSelector",
            ),
        ),
    ],
    ids=["default", "with everything"],
)
def test_a_shard_becomes_a_profile_that_loads(
    spec: Any, args: Any, strategy: str, notes: tuple[str, ...], tmp_path: Path
) -> None:
    plan = plan_of([], [], {}, [{"metadata": {"name": "s"}, "spec": spec}])
    (made,) = plan.conversions
    assert (made.source, made.notes) == ("SchedulingShard s", notes)
    scoring, queues = made.profile["pluginConfig"]
    assert queues["args"]["kai"] == args
    assert scoring["args"]["scoringStrategy"]["type"] == strategy
    path = tmp_path / "profiles.yaml"
    path.write_text(yaml.safe_dump(plan.configuration()))
    assert [one.scheduler_name for one in load_profiles(path).profiles] == ["kai-scheduler"]


def test_a_configuration_that_cannot_be_read_takes_no_other_with_it() -> None:
    broken = workload("volcanosh/vc-scheduler", config="config")
    koord = workload("koord-scheduler", config="other")
    maps = {
        **config_map("volcano-scheduler.conf", "tiers: ["),
        "system/other": {"data": {"c": KOORDINATOR}},
    }
    plan = plan_of([broken, koord], [], maps, [])
    assert [one.profile["schedulerName"] for one in plan.conversions] == ["koord-scheduler"]
    (problem,) = plan.problems
    assert problem.startswith("ConfigMap system/config (volcano-scheduler.conf): line ")
    assert len(plan.running) == 2


def definition(name: str, **annotations: str) -> Any:
    metadata = {"name": name, "annotations": annotations}
    return {"metadata": metadata, "spec": {"group": name.partition(".")[2]}}


def test_a_definition_of_a_chart_that_does_not_keep_it_would_fall() -> None:
    release = {"meta.helm.sh/release-name": "kueue"}
    found = [
        definition("workloads.kueue.x-k8s.io", **release),
        definition("queues.scheduling.volcano.sh"),
        definition("queues.scheduling.run.ai", **release, **{"helm.sh/resource-policy": "keep"}),
        definition("things.example.com", **release),
    ]
    (falling,) = plan_of([], found, {}, []).falling
    assert falling.keep == (
        "kubectl annotate crd workloads.kueue.x-k8s.io helm.sh/resource-policy=keep"
    )
    assert falling.release == "kueue"


def test_the_document_has_a_row_for_each_component() -> None:
    rows = [line for line in (ROOT / "docs" / "moving.md").read_text().splitlines() if "| " in line]
    for one in COMPONENTS:
        said = f"| {one.name} | {one.verdict} | {one.why} | {one.lost} |"
        found = [row for row in rows if row.endswith(said)]
        assert len(found) == 1, said
        assert found[0].lower().startswith(f"| {one.system} ")
