"""Rollouts of Deployments and StatefulSets, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import (
    ApiObject,
    ControllerRevision,
    Deployment,
    Pod,
    ReplicaSet,
    StatefulSet,
)
from bayplan.api.workloads import WorkloadCondition
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_object

Content = dict[str, Any]


def template(image: str, grace: int = 0, cpu: str = "1") -> Content:
    container = {"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"terminationGracePeriodSeconds": grace, "containers": [container]},
    }


def workload(kind: str, image: str = "one", grace: int = 0, cpu: str = "1", **spec: Any) -> Any:
    return make_object(
        {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {"name": "x"},
            "spec": {
                "selector": {"matchLabels": {"app": "x"}},
                "template": template(image, grace, cpu),
                **spec,
            },
        }
    )


class Rollout:
    """A workload in a simulation, and what was seen of its pods."""

    def __init__(self, obj: Any, cpu: int = 100, until: float | None = 3600) -> None:
        self.made = Simulation(default_profiles(), until=until)
        self.made.create([make_node("n", cpu=cpu), obj])
        self.type = type(obj)
        self.seen: list[Counter[str]] = []
        self.made.run()

    def change(self, obj: Any) -> None:
        """Give the workload another spec, and watch how many pods of which image run."""
        self.made.cluster.watch(lambda event: self._count(event.obj))
        self.made.cluster.update(replace(self.object, spec=obj.spec))
        self.made.run()

    def _count(self, obj: ApiObject | None) -> None:
        if isinstance(obj, Pod):
            self.seen.append(self.running)

    @property
    def object(self) -> Any:
        (found,) = self.made.cluster.list(self.type)
        return found

    @property
    def pods(self) -> list[Pod]:
        return [p for p in self.made.pods() if p.metadata.deletion_timestamp is None]

    @property
    def images(self) -> Counter[str]:
        return Counter(pod.spec.containers[0].image for pod in self.pods)

    @property
    def running(self) -> Counter[str]:
        found = (pod for pod in self.pods if pod.status.phase == "Running")
        return Counter(pod.spec.containers[0].image for pod in found)

    def condition(self, kind: str) -> WorkloadCondition:
        return next(c for c in self.object.status.conditions if c.type == kind)

    @property
    def sizes(self) -> dict[str, int]:
        found = self.made.cluster.list(ReplicaSet)
        return {s.spec.template.spec.containers[0].image: s.spec.replicas for s in found}


def rolling(surge: int | str, unavailable: int | str) -> Content:
    return {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


# Deployments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("surge", "unavailable", "most", "least"),
    [(0, 1, 4, 3), (1, 0, 5, 4), ("25%", "25%", 5, 3), ("50%", 0, 6, 4), (2, 2, 6, 2)],
)
def test_a_rollout_keeps_to_its_surge_and_to_what_may_be_missing(
    surge: int | str, unavailable: int | str, most: int, least: int
) -> None:
    spec: Content = {"replicas": 4, "strategy": rolling(surge, unavailable)}
    made = Rollout(workload("Deployment", **spec))
    made.change(workload("Deployment", "two", **spec))
    assert made.images == {"two": 4}
    assert max(sum(seen.values()) for seen in made.seen) <= most
    assert min(sum(seen.values()) for seen in made.seen) >= least
    assert any(set(seen) == {"one", "two"} for seen in made.seen)


def test_recreate_makes_no_new_pod_before_the_last_old_one_has_gone() -> None:
    spec: Content = {"replicas": 3, "strategy": {"type": "Recreate"}}
    made = Rollout(workload("Deployment", grace=30, **spec))
    made.change(workload("Deployment", "two", grace=30, **spec))
    assert made.images == {"two": 3}
    assert made.made.cluster.now == 30
    assert not any(set(seen) == {"one", "two"} for seen in made.seen)


def test_a_pod_counts_once_it_has_been_ready_for_long_enough() -> None:
    spec: Content = {"replicas": 3, "minReadySeconds": 10, "strategy": rolling(1, 0)}
    made = Rollout(workload("Deployment", **spec))
    assert made.made.cluster.now == 10
    made.change(workload("Deployment", "two", **spec))
    # One after the other, ten seconds each.
    assert made.made.cluster.now == 40
    assert made.object.status.available_replicas == 3


def test_a_rollout_that_is_done_says_so() -> None:
    made = Rollout(workload("Deployment", replicas=2))
    (only,) = made.made.cluster.list(ReplicaSet)
    progressing, available = made.condition("Progressing"), made.condition("Available")
    assert (progressing.status, progressing.reason) == ("True", "NewReplicaSetAvailable")
    name = only.metadata.name
    assert progressing.message == f'ReplicaSet "{name}" has successfully progressed.'
    assert (available.status, available.reason) == ("True", "MinimumReplicasAvailable")
    status = made.object.status
    assert (status.replicas, status.updated_replicas, status.ready_replicas) == (2, 2, 2)
    assert status.unavailable_replicas is None


def test_a_rollout_that_does_not_go_on_misses_its_deadline() -> None:
    spec: Content = {"replicas": 2, "progressDeadlineSeconds": 60, "strategy": rolling(1, 0)}
    made = Rollout(workload("Deployment", **spec), cpu=2)
    made.change(workload("Deployment", "two", **spec))
    progressing = made.condition("Progressing")
    assert (progressing.status, progressing.reason) == ("False", "ProgressDeadlineExceeded")
    assert "has timed out progressing" in progressing.message
    assert made.condition("Available").status == "True"


def test_nobody_waits_for_a_deadline_alone() -> None:
    gated = template("one")
    gated["spec"]["schedulingGates"] = [{"name": "example.com/later"}]
    made = Rollout(workload("Deployment", template=gated), until=None)
    assert made.condition("Progressing").reason == "ReplicaSetUpdated"
    assert made.made.cluster.now == 0


def test_a_paused_deployment_changes_its_size_but_not_its_template() -> None:
    made = Rollout(workload("Deployment", replicas=2))
    made.change(workload("Deployment", "two", replicas=3, paused=True))
    assert made.images == {"one": 3}
    assert made.condition("Progressing").reason == "DeploymentPaused"
    made.change(workload("Deployment", "two", replicas=3))
    assert made.images == {"two": 3}
    assert made.condition("Progressing").reason == "NewReplicaSetAvailable"


def test_replica_sets_carry_their_revision() -> None:
    made = Rollout(workload("Deployment"))
    made.change(workload("Deployment", "two"))
    key = "deployment.kubernetes.io/revision"

    def revisions() -> dict[str, str]:
        return {
            s.spec.template.spec.containers[0].image: s.metadata.annotations[key]
            for s in made.made.cluster.list(ReplicaSet)
        }

    assert revisions() == {"one": "1", "two": "2"}
    made.change(workload("Deployment", "one"))
    assert revisions() == {"one": "3", "two": "2"}
    assert made.object.metadata.annotations[key] == "3"
    (old,) = [s for s in made.made.cluster.list(ReplicaSet) if revisions() and s.spec.replicas]
    assert old.metadata.annotations["deployment.kubernetes.io/revision-history"] == "1"


def test_old_replica_sets_are_kept_up_to_the_limit() -> None:
    made = Rollout(workload("Deployment", revisionHistoryLimit=2))
    for image in ("two", "three", "four", "five"):
        made.change(workload("Deployment", image, revisionHistoryLimit=2))
    assert made.sizes == {"three": 0, "four": 0, "five": 1}


def test_a_size_that_changes_during_a_rollout_is_shared() -> None:
    spec: Content = {"strategy": rolling("50%", "50%")}
    made = Rollout(workload("Deployment", replicas=4, **spec), cpu=4)
    # The new pods do not fit, so that both sets stay.
    made.change(workload("Deployment", "two", replicas=4, cpu="3", **spec))
    before = made.sizes
    assert before["one"]
    assert before["two"]
    made.change(workload("Deployment", "two", replicas=8, cpu="3", **spec))
    after = made.sizes
    assert after["one"] > before["one"]
    assert after["two"] > before["two"]
    assert sum(after.values()) == 12


def test_a_replica_set_from_elsewhere_is_taken_over() -> None:
    owner = make_object(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "x", "uid": "u-1"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "x"}},
                "template": template("one"),
            },
        }
    )
    marked = template("one")
    marked["metadata"]["labels"] = {"app": "x", "pod-template-hash": "5bd4"}
    reference = {"kind": "Deployment", "name": "x", "uid": "u-1", "controller": True}
    known = make_object(
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": "x-5bd4", "ownerReferences": [reference]},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "x"}},
                "template": marked,
            },
        }
    )
    made = Simulation(default_profiles())
    made.create([make_node("n"), known, owner])
    made.run()
    assert [s.metadata.name for s in made.cluster.list(ReplicaSet)] == ["x-5bd4"]
    assert len(made.pods()) == 2


# StatefulSets ---------------------------------------------------------------------------------


def images_by_name(made: Rollout) -> Mapping[str, str]:
    return {pod.metadata.name: pod.spec.containers[0].image for pod in made.pods}


def test_a_stateful_set_is_updated_from_the_last_pod_on() -> None:
    made = Rollout(workload("StatefulSet", replicas=3, grace=10))
    order: list[str] = []
    made.made.cluster.watch(
        lambda event: (
            order.append(event.obj.metadata.name)
            if isinstance(event.obj, Pod)
            and event.obj.metadata.deletion_timestamp
            and event.type.name == "MODIFIED"
            else None
        )
    )
    made.change(workload("StatefulSet", "two", replicas=3, grace=10))
    assert list(dict.fromkeys(order)) == ["x-2", "x-1", "x-0"]
    assert made.made.cluster.now == 30
    assert set(images_by_name(made).values()) == {"two"}
    status = made.object.status
    assert status.current_revision == status.update_revision
    assert (status.updated_replicas, status.current_replicas) == (3, 3)


def test_pods_before_the_partition_stay_as_they_are() -> None:
    spec: Content = {"replicas": 3, "updateStrategy": {"rollingUpdate": {"partition": 2}}}
    made = Rollout(workload("StatefulSet", **spec))
    made.change(workload("StatefulSet", "two", **spec))
    assert images_by_name(made) == {"x-0": "one", "x-1": "one", "x-2": "two"}
    # One that is made anew stays on its side of the partition.
    made.made.cluster.delete(Pod, "default/x-0")
    made.made.cluster.delete(Pod, "default/x-2")
    made.made.run()
    assert images_by_name(made) == {"x-0": "one", "x-1": "one", "x-2": "two"}
    status = made.object.status
    assert status.current_revision != status.update_revision
    assert (status.current_replicas, status.updated_replicas) == (2, 1)


def test_on_delete_replaces_what_somebody_deletes() -> None:
    spec: Content = {"replicas": 2, "updateStrategy": {"type": "OnDelete"}}
    made = Rollout(workload("StatefulSet", **spec))
    made.change(workload("StatefulSet", "two", **spec))
    assert set(images_by_name(made).values()) == {"one"}
    made.made.cluster.delete(Pod, "default/x-1")
    made.made.run()
    assert images_by_name(made) == {"x-0": "one", "x-1": "two"}


def test_parallel_pods_are_made_at_once_and_updated_one_by_one() -> None:
    spec: Content = {"replicas": 3, "podManagementPolicy": "Parallel"}
    made = Rollout(workload("StatefulSet", **spec))
    made.change(workload("StatefulSet", "two", **spec))
    assert set(images_by_name(made).values()) == {"two"}
    assert min(sum(seen.values()) for seen in made.seen) >= 2


def test_several_pods_of_a_stateful_set_may_be_missing() -> None:
    spec: Content = {
        "replicas": 4,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}},
    }
    made = Rollout(workload("StatefulSet", grace=10, **spec))
    made.change(workload("StatefulSet", "two", grace=10, **spec))
    assert set(images_by_name(made).values()) == {"two"}
    assert made.made.cluster.now == 20


def test_templates_are_kept_as_revisions() -> None:
    made = Rollout(workload("StatefulSet", revisionHistoryLimit=1))
    for image in ("two", "three", "two"):
        made.change(workload("StatefulSet", image, revisionHistoryLimit=1))
    found = sorted(made.made.cluster.list(ControllerRevision), key=lambda one: one.revision)
    images = [r.data["spec"]["template"]["spec"]["containers"][0]["image"] for r in found]
    assert images == ["three", "two"]
    assert [one.revision for one in found] == [3, 4]


def test_a_stateful_pod_that_fails_is_made_anew() -> None:
    made = Rollout(workload("StatefulSet", replicas=2))
    pod = next(p for p in made.pods if p.metadata.name == "x-0")
    made.made.cluster.update(replace(pod, status=replace(pod.status, phase="Failed")))
    made.made.run()
    assert {p.metadata.name: p.status.phase for p in made.pods} == {
        "x-0": "Running",
        "x-1": "Running",
    }
    assert pod.metadata.uid not in {p.metadata.uid for p in made.pods}


def test_pods_of_another_cluster_keep_their_revision() -> None:
    owner = make_object(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "x", "uid": "u-1"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": "x"}},
                "template": template("one"),
            },
        }
    )
    held = template("one")
    labels = {"app": "x", "controller-revision-hash": "x-7cf599745"}
    reference = {"kind": "StatefulSet", "name": "x", "uid": "u-1", "controller": True}
    pod = make_object(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "x-0",
                "uid": "u-2",
                "labels": labels,
                "ownerReferences": [reference],
            },
            "spec": {**held["spec"], "nodeName": "n"},
            "status": {"phase": "Running"},
        }
    )
    made = Simulation(default_profiles())
    made.create([make_node("n"), replace(owner, spec=replace(owner.spec, replicas=2)), pod])
    made.run()
    # The one that is there stays, and counts as ready though it does not say so.
    assert [p.metadata.name for p in made.pods()] == ["x-0", "x-1"]
    assert made.pods()[0].metadata.uid == "u-2"


@pytest.mark.parametrize(
    ("kind", "spec", "path"),
    [
        ("Deployment", {"strategy": rolling("half", 0)}, "rollingUpdate.maxSurge"),
        ("Deployment", {"strategy": rolling(0, 0)}, "rollingUpdate.maxUnavailable"),
        ("Deployment", {"strategy": rolling(0, "200%")}, "rollingUpdate.maxUnavailable"),
        ("Deployment", {"minReadySeconds": -1}, "minReadySeconds"),
        (
            "Deployment",
            {"minReadySeconds": 30, "progressDeadlineSeconds": 30},
            "progressDeadlineSeconds",
        ),
        ("Deployment", {"strategy": {"type": "Recreate", **rolling(1, 1)}}, "rollingUpdate"),
        ("StatefulSet", {"updateStrategy": {"rollingUpdate": {"partition": -1}}}, "partition"),
        ("DaemonSet", {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}, "maxUnavail"),
        ("DaemonSet", {"revisionHistoryLimit": -1}, "revisionHistoryLimit"),
    ],
)
def test_strategies_that_cannot_be_are_refused(kind: str, spec: Content, path: str) -> None:
    make: Callable[[], Any] = lambda: workload(kind, **spec)  # noqa: E731
    with pytest.raises(ValueError, match=path):
        make()


def test_both_kinds_survive_a_round_trip() -> None:
    for kind in (Deployment, StatefulSet):
        assert isinstance(workload(kind.__name__), kind)
