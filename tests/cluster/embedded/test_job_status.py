"""The status of Jobs, of Kubernetes and of Volcano."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bayplan.api import Job, Pod, VolcanoCommand, VolcanoJob, VolcanoPodGroup
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_object

KEY = "default/x"


def template(duration: str = "") -> dict[str, Any]:
    return {
        "metadata": {"annotations": {"bayplan.dev/duration": duration} if duration else {}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        },
    }


def simulation(spec: dict[str, Any], duration: str = "", until: float = 60) -> Simulation:
    job = make_object(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "x"},
            "spec": {"template": template(duration), **spec},
        }
    )
    made = Simulation(default_profiles(), until=until)
    made.create([make_node("n", cpu=8), job])
    made.run()
    return made


def job_of(made: Simulation) -> Job:
    job = made.cluster.get(Job, KEY)
    assert job is not None
    return job


def change(made: Simulation, **fields: Any) -> None:
    job = job_of(made)
    made.cluster.update(replace(job, spec=replace(job.spec, **fields)))
    made.run()


def conditions(job: Job) -> list[tuple[str, str, str]]:
    return [(c.type, c.status, c.reason) for c in job.status.conditions]


def test_a_running_job_counts_its_pods_and_says_since_when_it_runs() -> None:
    status = job_of(simulation({"parallelism": 2})).status
    assert (status.active, status.ready, status.succeeded) == (2, 2, None)
    assert status.start_time == "2000-01-01T00:00:00Z"
    assert status.conditions == ()


def test_a_job_that_reached_its_completions_is_complete() -> None:
    job = job_of(simulation({"parallelism": 2, "completions": 2}, duration="10s"))
    assert (job.status.active, job.status.succeeded) == (None, 2)
    assert job.status.completion_time == "2000-01-01T00:00:10Z"
    reason = "CompletionsReached"
    assert conditions(job) == [
        ("SuccessCriteriaMet", "True", reason),
        ("Complete", "True", reason),
    ]


def test_a_job_without_completions_waits_for_the_pods_that_still_run() -> None:
    made = simulation({"parallelism": 2}, until=5)
    first = made.pods()[0]
    made.cluster.update(replace(first, status=replace(first.status, phase="Succeeded")))
    made.run()
    job = job_of(made)
    assert (job.status.active, job.status.succeeded, conditions(job)) == (1, 1, [])


def test_a_job_with_too_many_failures_fails_and_its_pods_go() -> None:
    made = simulation({"parallelism": 2, "backoffLimit": 0})
    first = made.pods()[0]
    made.cluster.update(replace(first, status=replace(first.status, phase="Failed")))
    made.run()
    job = job_of(made)
    assert (job.status.active, job.status.failed) == (None, 1)
    assert [c[0] for c in conditions(job)] == ["FailureTarget", "Failed"]
    assert [pod.status.phase for pod in made.pods()] == ["Failed"]


def test_a_suspended_job_has_no_start_time_and_gets_a_new_one_when_resumed() -> None:
    made = simulation({"parallelism": 2}, until=600)
    change(made, suspend=True)
    job = job_of(made)
    assert (job.status.start_time, job.status.active, made.pods()) == (None, None, [])
    assert conditions(job) == [("Suspended", "True", "JobSuspended")]
    made.cluster.clock.advance(90)
    change(made, suspend=False)
    job = job_of(made)
    assert (job.status.start_time, job.status.active) == ("2000-01-01T00:01:30Z", 2)
    assert conditions(job) == [("Suspended", "False", "JobResumed")]


def test_a_finished_job_makes_no_more_pods() -> None:
    made = simulation({"parallelism": 1, "completions": 1}, duration="10s")
    before = job_of(made)
    for pod in made.pods():
        made.cluster.delete(Pod, pod.key)
    made.run()
    assert (made.pods(), job_of(made).status) == ([], before.status)


def test_an_elastic_job_gives_up_its_last_indexes_and_runs_them_again() -> None:
    spec = {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}
    made = simulation(spec)
    last = max(made.pods(), key=lambda pod: pod.metadata.name)
    made.cluster.update(replace(last, status=replace(last.status, phase="Succeeded")))
    made.run()
    assert job_of(made).status.completed_indexes == "3"
    change(made, parallelism=2, completions=2)
    job = job_of(made)
    assert (job.status.active, job.status.completed_indexes) == (2, "")
    alive = [pod for pod in made.pods() if pod.status.phase == "Running"]
    assert [pod.metadata.name[:4] for pod in alive] == ["x-0-", "x-1-"]


def test_completed_indexes_are_written_as_ranges() -> None:
    spec = {"parallelism": 5, "completions": 5, "completionMode": "Indexed"}
    assert job_of(simulation(spec, duration="1s")).status.completed_indexes == "0-4"


def volcano_simulation(duration: str, until: float) -> Simulation:
    job = make_object(
        {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": {"name": "x"},
            "spec": {"minAvailable": 1, "tasks": [{"replicas": 2, "template": template(duration)}]},
        }
    )
    made = Simulation(default_profiles(), until=until)
    made.create([make_node("n", cpu=8), job])
    made.run()
    return made


def volcano(duration: str, until: float) -> VolcanoJob:
    found = volcano_simulation(duration, until).cluster.get(VolcanoJob, KEY)
    assert found is not None
    return found


def test_a_volcano_job_has_the_phase_of_its_pods() -> None:
    running = volcano("10s", until=5).status
    assert (running.state.phase, running.running, running.min_available) == ("Running", 2, 1)
    done = volcano("10s", until=60).status
    assert (done.state.phase, done.running, done.succeeded) == ("Completed", 0, 2)
    assert done.state.last_transition_time == "2000-01-01T00:00:10Z"


def commanded(made: Simulation, action: str) -> VolcanoJob:
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "x", "uid": "u"}
    command = make_object(
        {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {"name": action.lower()},
            "action": action,
            "target": target,
        }
    )
    made.create([command])
    made.run()
    assert made.cluster.list(VolcanoCommand) == []
    job = made.cluster.get(VolcanoJob, KEY)
    assert job is not None
    return job


def test_a_volcano_job_is_aborted_and_resumed_by_commands() -> None:
    made = volcano_simulation("", until=600)
    job = commanded(made, "AbortJob")
    assert (job.status.state.phase, made.pods(), made.cluster.list(VolcanoPodGroup)) == (
        *("Aborted", [], []),
    )
    job = commanded(made, "ResumeJob")
    assert (job.status.state.phase, job.status.running, job.status.retry_count) == ("Running", 2, 1)
    assert len(made.cluster.list(VolcanoPodGroup)) == 1


def test_a_volcano_job_fails_when_it_is_resumed_too_often() -> None:
    made = volcano_simulation("", until=600)
    for _ in range(2):
        commanded(made, "AbortJob")
        assert commanded(made, "ResumeJob").status.state.phase == "Running"
    commanded(made, "AbortJob")
    job = commanded(made, "ResumeJob")
    assert (job.status.state.phase, made.pods()) == ("Failed", [])


def test_a_command_that_a_phase_forbids_changes_nothing() -> None:
    made = volcano_simulation("", until=600)
    assert commanded(made, "ResumeJob").status.state.phase == "Running"
    assert commanded(made, "TerminateJob").status.state.phase == "Terminated"
    assert commanded(made, "ResumeJob").status.state.phase == "Terminated"
