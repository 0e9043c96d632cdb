"""What Jobs, JobSets and Volcano jobs say of failures is what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.cluster.embedded.test_suspended_jobs import template

from bayplan.api import Job, JobSet, Pod, PodCondition, VolcanoJob
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_object

KEY = "default/x"
DISRUPTED = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def played(version: str, kind: str, spec: dict[str, Any]) -> Simulation:
    """Return a cluster in which a job's pods run."""
    content = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    made = Simulation(default_profiles(), until=10_000)
    made.create([make_node("n", cpu=32), make_object(content)])
    made.run()
    return made


def pods(made: Simulation) -> list[Pod]:
    return [one for one in made.cluster.list(Pod) if one.metadata.deletion_timestamp is None]


def fails(made: Simulation, pod: Pod) -> None:
    made.cluster.update(replace(pod, status=replace(pod.status, phase="Failed")))
    made.run()


def is_evicted(made: Simulation, pod: Pod) -> None:
    """Evict a pod as a scheduler does, with the condition that says so."""
    condition = PodCondition("DisruptionTarget", "True", "PreemptionByScheduler")
    conditions = (*pod.status.conditions, condition)
    made.cluster.update(replace(pod, status=replace(pod.status, conditions=conditions)))
    made.cluster.delete(Pod, pod.key)
    made.run()


# Jobs ------------------------------------------------------------------------------------------


def job(*rules: dict[str, Any]) -> dict[str, Any]:
    spec = {"parallelism": 2, "completions": 2, "backoffLimit": 1, "template": template()}
    return {**spec, "podFailurePolicy": {"rules": list(rules)}}


def ends(made: Simulation) -> dict[str, str]:
    """Return the reasons of the conditions of the Job."""
    found = made.cluster.get(Job, KEY)
    assert found is not None
    return {one.type: one.reason for one in found.status.conditions}


def test_a_job_fails_at_once_where_its_policy_says_so() -> None:
    made = played("batch/v1", "Job", job({"action": "FailJob", **DISRUPTED}))
    is_evicted(made, pods(made)[0])
    assert ends(made)["Failed"] == "PodFailurePolicy"
    assert pods(made) == []


@pytest.mark.parametrize(("action", "fails_in_the_end"), [("Ignore", False), ("Count", True)])
def test_failures_that_are_ignored_do_not_count(action: str, fails_in_the_end: bool) -> None:
    made = played("batch/v1", "Job", job({"action": action, **DISRUPTED}))
    for _ in range(3):
        pod = next((one for one in pods(made) if one.status.phase == "Running"), None)
        if pod is None:
            break
        condition = PodCondition("DisruptionTarget", "True", "DeletionByTaintManager")
        fails(made, replace(pod, status=replace(pod.status, conditions=(condition,))))
    assert ("Failed" in ends(made)) is fails_in_the_end


def test_a_failure_of_its_own_matches_no_rule_for_disruptions() -> None:
    made = played("batch/v1", "Job", job({"action": "FailJob", **DISRUPTED}))
    fails(made, pods(made)[0])
    assert "Failed" not in ends(made)
    assert len([one for one in pods(made) if one.status.phase == "Running"]) == 2


# JobSets ---------------------------------------------------------------------------------------


def job_set(**policy: Any) -> dict[str, Any]:
    spec = {"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": template()}
    spec["podFailurePolicy"] = {"rules": [{"action": "FailJob", **DISRUPTED}]}
    replicated = [{"name": "w", "replicas": 2, "template": {"spec": spec}}]
    return {"replicatedJobs": replicated, "failurePolicy": policy}


def status(made: Simulation) -> Any:
    found = made.cluster.get(JobSet, KEY)
    assert found is not None
    return found.status


def test_a_rule_that_ignores_the_maximum_restarts_for_ever() -> None:
    rule = {
        "name": "host",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    made = played("jobset.x-k8s.io/v1alpha2", "JobSet", job_set(maxRestarts=0, rules=[rule]))
    for times in (1, 2, 3):
        is_evicted(made, pods(made)[0])
        assert (status(made).restarts, status(made).restarts_count_towards_max) == (times, 0)
    assert len(pods(made)) == 2
    fails(made, pods(made)[0])
    assert status(made).terminal_state == "Failed"
    (failed,) = (one for one in status(made).conditions if one.type == "Failed")
    assert failed.reason == "ReachedMaxRestarts"
    assert "(first failed job: x-w-" in failed.message


@pytest.mark.parametrize(
    ("rule", "is_failed"),
    [
        ({"onJobFailureReasons": ["BackoffLimitExceeded"]}, True),
        ({"onJobFailureReasons": ["DeadlineExceeded"]}, False),
        ({"onJobFailureMessagePatterns": ["backoff limit$"]}, True),
        ({"onJobFailureMessagePatterns": ["(", "no such words"]}, False),
        ({"targetReplicatedJobs": ["w"]}, True),
        ({"targetReplicatedJobs": ["other"]}, False),
        ({}, True),
    ],
)
def test_the_first_rule_that_matches_decides(rule: dict[str, Any], is_failed: bool) -> None:
    rules = [{"name": "r", "action": "FailJobSet", **rule}]
    made = played("jobset.x-k8s.io/v1alpha2", "JobSet", job_set(maxRestarts=5, rules=rules))
    fails(made, pods(made)[0])
    assert (status(made).terminal_state == "Failed") is is_failed
    assert status(made).restarts == (0 if is_failed else 1)


@pytest.mark.parametrize("action", ["RestartJob", "nonsense"])
def test_an_action_that_is_not_known_here_restarts_no_more_often_than_allowed(action: str) -> None:
    rules = [{"name": "r", "action": action}]
    made = played("jobset.x-k8s.io/v1alpha2", "JobSet", job_set(maxRestarts=1, rules=rules))
    fails(made, pods(made)[0])
    assert status(made).restarts == 1
    fails(made, pods(made)[0])
    assert status(made).terminal_state == "Failed"


def test_a_blocking_restart_waits_until_all_old_pods_are_gone() -> None:
    content = job_set(maxRestarts=1, restartStrategy="BlockingRecreate")
    pod = content["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = 60
    made = played("jobset.x-k8s.io/v1alpha2", "JobSet", content)
    began = made.cluster.now
    seen: list[tuple[float, int]] = []
    for after in (1, 30, 59, 61):
        made.cluster.clock.call_at(
            began + after, lambda: seen.append((made.cluster.now - began, len(pods(made))))
        )
    fails(made, pods(made)[0])
    assert [count for _, count in seen[:3]] == [0, 0, 0]
    assert len(pods(made)) == 2


# Volcano ---------------------------------------------------------------------------------------


def volcano_job(*policies: dict[str, Any], of_task: bool = False) -> dict[str, Any]:
    task: dict[str, Any] = {"name": "t", "replicas": 2, "template": template()}
    spec = {"minAvailable": 2, "schedulerName": "default-scheduler", "tasks": [task]}
    (task if of_task else spec)["policies"] = list(policies)
    return spec


def phase(made: Simulation) -> tuple[str, int]:
    found = made.cluster.get(VolcanoJob, KEY)
    assert found is not None
    return found.status.state.phase, found.status.retry_count


def uids(made: Simulation) -> set[str]:
    return {pod.metadata.uid for pod in pods(made)}


@pytest.mark.parametrize("of_task", [False, True])
def test_an_eviction_restarts_a_volcano_job_that_says_so(of_task: bool) -> None:
    policy = {"event": "PodEvicted", "action": "RestartJob"}
    made = played("batch.volcano.sh/v1alpha1", "Job", volcano_job(policy, of_task=of_task))
    before = uids(made)
    is_evicted(made, pods(made)[0])
    assert phase(made) == ("Running", 1)
    assert uids(made).isdisjoint(before)
    assert len(uids(made)) == 2


def test_without_a_policy_only_the_pod_that_was_evicted_comes_again() -> None:
    made = played("batch.volcano.sh/v1alpha1", "Job", volcano_job())
    before = uids(made)
    is_evicted(made, pods(made)[0])
    assert phase(made) == ("Running", 0)
    assert len(uids(made) & before) == 1


def test_a_failure_aborts_a_volcano_job_whose_policy_is_for_everything() -> None:
    policy = {"events": ["*"], "action": "AbortJob"}
    made = played("batch.volcano.sh/v1alpha1", "Job", volcano_job(policy))
    fails(made, pods(made)[0])
    assert phase(made)[0] == "Aborted"
