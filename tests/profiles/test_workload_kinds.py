"""Kinds of workloads that a user adds in the profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue

from bayplan.api import Pod
from bayplan.api.object_key import object_key
from bayplan.api.operated import OperatedObject
from bayplan.cli.commands import cli
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.errors import InputError
from bayplan.kinds import KINDS_OF_WORKLOADS, rows_of_users
from bayplan.profiles.loading import load_profiles, load_workload_kinds
from bayplan.testing import Cluster, make_node, make_object, make_pods_of

ROW: dict[str, Any] = {
    "group": "example.com",
    "kind": "Training",
    "version": "v1",
    "plural": "trainings",
    "suspend": "spec.suspend",
    "minimum": ["spec.minWorkers"],
    "pods": [
        {
            "role": "worker",
            "template": "spec.template",
            "count": ["spec.workers"],
            "labels": {"example.com/role": "worker"},
            "pod": "{object}-{index}",
        }
    ],
}
CONTAINER = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
TRAINING: dict[str, Any] = {
    "apiVersion": "example.com/v1",
    "kind": "Training",
    "metadata": {"name": "llm", "uid": "uid-1"},
    "spec": {"workers": 3, "template": {"spec": {"containers": [CONTAINER]}}},
}


def profile(folder: Path, **changes: Any) -> Path:
    """Write a profile with the row, changed."""
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "workloadKinds": [{**ROW, **changes}],
    }
    (folder / "profile.yaml").write_text(yaml.safe_dump(content))
    return folder / "profile.yaml"


@pytest.mark.parametrize(("cores", "placed"), [(2, 0), (3, 3)])
def test_pods_of_a_users_kind_go_together(tmp_path: Path, cores: int, placed: int) -> None:
    profiles = load_profiles(profile(tmp_path))
    owner = make_object(TRAINING)
    made = Cluster([make_node("n", cpu=cores), owner, *make_pods_of(owner)], profiles)
    assert len(made.schedule()) == placed


def test_the_minimum_of_a_users_kind_counts(tmp_path: Path) -> None:
    profiles = load_profiles(profile(tmp_path))
    owner = make_object({**TRAINING, "spec": {**TRAINING["spec"], "minWorkers": 2}})
    made = Cluster([make_node("n", cpu=2), owner, *make_pods_of(owner)], profiles)
    assert len(made.schedule()) == 2


def test_a_profile_that_is_read_again_replaces_its_rows(tmp_path: Path) -> None:
    load_profiles(profile(tmp_path))
    load_profiles(profile(tmp_path, minimum=[]))
    assert KINDS_OF_WORKLOADS["example.com", "Training"].minimum == ()


def test_an_object_that_was_read_before_a_profile_was_read_again_is_known(tmp_path: Path) -> None:
    load_workload_kinds(profile(tmp_path))
    before = make_object(TRAINING)
    load_profiles(profile(tmp_path, minimum=[]))
    assert type(make_object(TRAINING)) is type(before)
    assert object_key(before) == "default/llm"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"group": "ray.io", "kind": "RayCluster"},
            "bayplan knows the kind RayCluster of ray.io already",
        ),
        ({"group": "batch"}, 'expected the group of a CRD, such as example.com, got "batch"'),
        ({"pods": []}, "workloadKinds.0.pods: "),
        (
            {"pods": [{"role": "a", "template": "spec..template"}]},
            'expected a path such as spec.template, got "spec..template"',
        ),
        (
            {"pods": [{"template": "spec.template"}]},
            "expected either role, or each with a template in every entry",
        ),
        (
            {"labels": {"a": "{object.__class__}"}},
            'expected no placeholder but {object}, {role}, {unit}, {index}, got "{object.__cla',
        ),
        ({"minimun": ["spec.a"]}, "minimun"),
        ({"version": "one"}, "workloadKinds.0.version: "),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_with_its_place(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InputError) as raised:
        load_profiles(profile(tmp_path, **changes))
    assert expected in str(raised.value)
    assert "profile.yaml:" in str(raised.value)
    assert rows_of_users() == {}


def test_two_rows_of_one_kind_are_refused(tmp_path: Path) -> None:
    content = yaml.safe_load(profile(tmp_path).read_text())
    content["workloadKinds"] *= 2
    (tmp_path / "profile.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=r"there are two rows for Training of example\.com"):
        load_profiles(tmp_path / "profile.yaml")


def test_a_users_kind_does_not_block_another_of_its_name(tmp_path: Path) -> None:
    profiles = load_profiles(profile(tmp_path, kind="TFJob"))
    own = make_object({**TRAINING, "kind": "TFJob"})
    specs = {"Worker": {"replicas": 2, "template": TRAINING["spec"]["template"]}}
    meta = {"name": "llm", "uid": "uid-2"}
    content = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": meta}
    other = make_object({**content, "spec": {"tfReplicaSpecs": specs}})
    made = Cluster([make_node("n", cpu=5), own, other], profiles)
    made.add(*make_pods_of(own), *make_pods_of(other))
    assert len(made.schedule()) == 5


def run(*arguments: object) -> str:
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_check_shows_what_a_row_makes_of_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "training.yaml").write_text(yaml.safe_dump(TRAINING))
    output = run("kind", "check", profile(tmp_path), "-f", tmp_path / "training.yaml")
    assert output.splitlines() == [
        "Training of example.com/v1",
        "  role worker: spec.workers pods of spec.template",
        "  minimum: spec.minWorkers, else all pods",
        "  the scheduler's role needs: apiGroups [example.com], resources [trainings], "
        "verbs [list, watch, patch]",
        "Training default/llm",
        "  worker: 3 pods, with example.com/role=worker",
        "  needs 3 pods at once",
    ]


@pytest.mark.parametrize("workers", [-1, 99999999999, "many"])
def test_a_check_refuses_what_is_no_number_of_pods(tmp_path: Path, workers: object) -> None:
    spec = {**TRAINING["spec"], "workers": workers}
    (tmp_path / "training.yaml").write_text(yaml.safe_dump({**TRAINING, "spec": spec}))
    given = ["kind", "check", str(profile(tmp_path)), "-f", str(tmp_path / "training.yaml")]
    result = CliRunner().invoke(cli, given)
    expected = "Training default/llm: spec.workers: expected a number of pods"
    assert expected in str(result.exception) or expected in result.output
    assert result.exit_code != 0


def test_a_users_kind_is_simulated_and_explained(tmp_path: Path) -> None:
    (tmp_path / "in.yaml").write_text(
        yaml.safe_dump_all([TRAINING, yaml.safe_load(NODE.format(cores=2))])
    )
    given = ("--config", profile(tmp_path), "-f", tmp_path / "in.yaml")
    assert "0 of 3 pods have a node" in run("simulate", *given)
    assert "the first of 3 pods" in run("explain", "training/llm", *given)


NODE = """
apiVersion: v1
kind: Node
metadata: {{name: n}}
status: {{allocatable: {{cpu: {cores}, pods: 9}}}}
"""


def test_a_users_kind_waits_for_the_queue_of_its_label(tmp_path: Path) -> None:
    """With ``suspend`` and ``ends`` a row is all that Kueue's queues need."""
    ends = {"good": ["Done"], "bad": ["Broken"]}
    running = "status.conditions[Running]"
    load_workload_kinds(profile(tmp_path, suspend="spec.suspend", ends=ends, running=running))
    queues = [flavor("f"), cluster_queue("cq", {"f": {"cpu": 3}}), local_queue("lq", "cq")]
    cluster = Cluster([make_node("n", cpu=8)])
    start_controllers(cluster.api)
    cluster.add(*queues, waiting("a"), waiting("b"))
    cluster.schedule()
    cluster.advance(30.0)
    kind = type(waiting("a"))
    suspended = {one.metadata.name: one.spec["suspend"] for one in cluster.api.list(kind)}
    assert suspended == {"a": False, "b": True}
    assert sum(bool(pod.spec.node_name) for pod in cluster.api.list(Pod)) == 3
    (first,) = [one for one in cluster.api.list(kind) if one.metadata.name == "a"]
    assert [one["type"] for one in first.status["conditions"] if one["status"] == "True"] == [
        "Running"
    ]
    for pod in cluster.api.list(Pod):
        cluster.api.update(replace(pod, status=replace(pod.status, phase="Succeeded")))
    cluster.advance(30.0)
    suspended = {one.metadata.name: one.spec["suspend"] for one in cluster.api.list(kind)}
    assert suspended == {"a": False, "b": False}


def waiting(name: str) -> OperatedObject:
    made = make_object(
        {
            "apiVersion": "example.com/v1",
            "kind": "Training",
            "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
            "spec": {
                "workers": 3,
                "suspend": True,
                "template": {
                    "spec": {
                        "containers": [
                            {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
                        ]
                    }
                },
            },
        }
    )
    assert isinstance(made, OperatedObject)
    return made
