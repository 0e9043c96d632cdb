"""JobSet, PyTorchJob, RayJob and RayCluster: their pods, their status, and their suspension."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bayplan.api import ApiObject, Job, JobSet, Pod, PyTorchJob, RayCluster, RayJob
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_object

KEY = "default/x"
VERSIONS = {
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "PyTorchJob": "kubeflow.org/v1",
    "RayJob": "ray.io/v1",
    "RayCluster": "ray.io/v1",
}


def template(duration: str = "") -> dict[str, Any]:
    return {
        "metadata": {"annotations": {"bayplan.dev/duration": duration} if duration else {}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        },
    }


def simulation(kind: str, spec: dict[str, Any], until: float = 600, **meta: Any) -> Simulation:
    content = {
        "apiVersion": VERSIONS[kind],
        "kind": kind,
        "metadata": {"name": "x", **meta},
        "spec": spec,
    }
    made = Simulation(default_profiles(), until=until)
    made.create([make_node("n", cpu=32), make_object(content)])
    made.run()
    return made


def get(made: Simulation, type_: type[ApiObject]) -> Any:
    found = made.cluster.get(type_, KEY)
    assert found is not None
    return found


def change(made: Simulation, type_: type[ApiObject], **fields: Any) -> None:
    obj = get(made, type_)
    made.cluster.update(replace(obj, spec=replace(obj.spec, **fields)))
    made.run()


def end(made: Simulation, pod: Pod, phase: str) -> None:
    made.cluster.update(replace(pod, status=replace(pod.status, phase=phase)))
    made.run()


def names(made: Simulation) -> list[str]:
    return sorted(pod.metadata.name for pod in made.pods())


def conditions(obj: Any) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in obj.status.conditions}


# JobSet ---------------------------------------------------------------------------------------


def replicated(
    name: str, replicas: int = 1, pods: int = 1, duration: str = "", **more: Any
) -> dict[str, Any]:
    spec = {"parallelism": pods, "completions": pods, "template": template(duration)}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}, **more}


def test_a_job_set_makes_a_job_for_every_replica() -> None:
    made = simulation("JobSet", {"replicatedJobs": [replicated("a"), replicated("w", 2, pods=2)]})
    jobs = made.cluster.list(Job)
    assert [job.metadata.name for job in jobs] == ["x-a-0", "x-w-0", "x-w-1"]
    last = jobs[-1].metadata
    assert last.owner_references[0].kind == "JobSet"
    marks = {key.partition("/")[2]: value for key, value in last.labels.items()}
    assert marks["job-index"] == "1"
    assert marks["job-global-index"] == "2"
    assert (marks["replicatedjob-name"], marks["global-replicas"]) == ("w", "3")
    assert [name[:8] for name in names(made)] == [
        *("x-a-0-0-", "x-w-0-0-", "x-w-0-1-", "x-w-1-0-", "x-w-1-1-"),
    ]
    pod = made.pods()[-1].metadata
    assert pod.labels["jobset.sigs.k8s.io/jobset-name"] == "x"
    assert pod.annotations["jobset.sigs.k8s.io/job-index"] == "1"


def test_a_job_set_counts_its_jobs_and_completes_with_the_last() -> None:
    groups = [replicated("a", duration="10s"), replicated("w", 2, duration="20s")]
    running = get(simulation("JobSet", {"replicatedJobs": groups}, until=15), JobSet).status
    assert [(s.name, s.succeeded, s.active) for s in running.replicated_jobs_status] == [
        ("a", 1, 0),
        ("w", 0, 2),
    ]
    done = get(simulation("JobSet", {"replicatedJobs": groups}), JobSet)
    assert done.status.terminal_state == "Completed"
    assert conditions(done) == {"Completed": ("True", "AllJobsCompleted")}


def test_a_suspended_job_set_has_suspended_jobs_and_no_pods() -> None:
    spec = {"suspend": True, "replicatedJobs": [replicated("w", 2)]}
    made = simulation("JobSet", spec)
    assert [job.spec.suspend for job in made.cluster.list(Job)] == [True, True]
    assert made.pods() == []
    job_set = get(made, JobSet)
    assert conditions(job_set) == {"Suspended": ("True", "SuspendedJobs")}
    assert job_set.status.replicated_jobs_status[0].suspended == 2


def test_what_a_queue_changes_in_a_suspended_job_set_reaches_its_pods() -> None:
    made = simulation("JobSet", {"suspend": True, "replicatedJobs": [replicated("w", 2)]})
    (group,) = get(made, JobSet).spec.replicated_jobs
    pods = group.template.spec.template
    pods = replace(pods, spec=replace(pods.spec, node_selector={"kubernetes.io/hostname": "n"}))
    spec = replace(group.template.spec, template=pods)
    group = replace(group, template=replace(group.template, spec=spec))
    change(made, JobSet, suspend=False, replicated_jobs=(group,))
    assert len(made.placements()) == 2
    assert {pod.spec.node_selector["kubernetes.io/hostname"] for pod in made.pods()} == {"n"}
    assert conditions(get(made, JobSet)) == {"Suspended": ("False", "ResumeJobs")}
    change(made, JobSet, suspend=True)
    assert made.pods() == []


def test_a_job_set_fails_with_its_first_job_or_starts_all_again() -> None:
    def failing(**policy: Any) -> Simulation:
        group = replicated("w", 2)
        group["template"]["spec"]["backoffLimit"] = 0
        made = simulation("JobSet", {"replicatedJobs": [group], **policy})
        end(made, made.pods()[0], "Failed")
        return made

    failed = get(failing(), JobSet)
    assert failed.status.terminal_state == "Failed"
    assert conditions(failed) == {"Failed": ("True", "FailedJobs")}
    again = failing(failurePolicy={"maxRestarts": 1})
    assert get(again, JobSet).status.restarts == 1
    key = "jobset.sigs.k8s.io/restart-attempt"
    assert [job.metadata.labels[key] for job in again.cluster.list(Job)] == ["1", "1"]
    assert [pod.status.phase for pod in again.pods()] == ["Running", "Running"]
    end(again, again.pods()[0], "Failed")
    assert conditions(get(again, JobSet)) == {
        "RestartingJobSet": ("False", "JobsReady"),
        "Failed": ("True", "ReachedMaxRestarts"),
    }


def test_a_group_waits_for_what_it_depends_on() -> None:
    wait = [{"name": "a", "status": "Complete"}]
    groups = [replicated("a", duration="30s"), replicated("w", dependsOn=wait)]
    early = simulation("JobSet", {"replicatedJobs": groups}, until=20)
    assert [job.metadata.name for job in early.cluster.list(Job)] == ["x-a-0"]
    late = simulation("JobSet", {"replicatedJobs": groups}, until=60)
    assert [job.metadata.name for job in late.cluster.list(Job)] == ["x-a-0", "x-w-0"]


def test_groups_start_in_order_once_the_one_before_is_ready() -> None:
    spec = {
        "startupPolicy": {"startupPolicyOrder": "InOrder"},
        "replicatedJobs": [replicated("a", pods=40), replicated("w")],
    }
    made = simulation("JobSet", spec)
    assert [job.metadata.name for job in made.cluster.list(Job)] == ["x-a-0"]
    spec["replicatedJobs"] = [replicated("a"), replicated("w")]
    assert len(simulation("JobSet", spec).placements()) == 2


# PyTorchJob -----------------------------------------------------------------------------------


def torch(workers: int = 2, duration: str = "", **more: Any) -> dict[str, Any]:
    return {
        "pytorchReplicaSpecs": {
            "Master": {"template": template(duration)},
            "Worker": {"replicas": workers, "template": template(duration)},
        },
        **more,
    }


def test_a_pytorch_job_numbers_its_pods() -> None:
    made = simulation("PyTorchJob", torch())
    assert names(made) == ["x-master-0", "x-worker-0", "x-worker-1"]
    labels = made.pods()[-1].metadata.labels
    assert labels["training.kubeflow.org/job-name"] == "x"
    assert labels["training.kubeflow.org/replica-type"] == "worker"
    assert labels["training.kubeflow.org/replica-index"] == "1"
    job = get(made, PyTorchJob)
    assert job.status.replica_statuses["Worker"].active == 2
    assert conditions(job) == {
        "Created": ("True", "PyTorchJobCreated"),
        "Running": ("True", "PyTorchJobRunning"),
    }


def test_a_pytorch_job_succeeds_with_its_master() -> None:
    job = get(simulation("PyTorchJob", torch(duration="10s")), PyTorchJob)
    assert conditions(job)["Succeeded"] == ("True", "PyTorchJobSucceeded")
    assert conditions(job)["Running"][0] == "False"
    assert job.status.conditions[-1].type == "Succeeded"
    assert job.status.completion_time == "2000-01-01T00:00:10Z"


def test_a_suspended_pytorch_job_gives_up_its_pods_until_it_is_resumed() -> None:
    made = simulation("PyTorchJob", torch(runPolicy={"suspend": True}))
    assert made.pods() == []
    assert conditions(get(made, PyTorchJob))["Suspended"] == ("True", "PyTorchJobSuspended")
    policy = get(made, PyTorchJob).spec.run_policy
    change(made, PyTorchJob, run_policy=replace(policy, suspend=False))
    assert len(made.placements()) == 3
    assert conditions(get(made, PyTorchJob))["Suspended"] == ("False", "PyTorchJobResumed")
    change(made, PyTorchJob, run_policy=policy)
    job = get(made, PyTorchJob)
    assert (made.pods(), job.status.replica_statuses["Worker"].active) == ([], 0)
    assert conditions(job)["Running"] == ("False", "PyTorchJobSuspended")


def test_the_last_workers_of_an_elastic_pytorch_job_go_first() -> None:
    made = simulation("PyTorchJob", torch(workers=3))
    specs = dict(get(made, PyTorchJob).spec.pytorch_replica_specs)
    specs["Worker"] = replace(specs["Worker"], replicas=1)
    change(made, PyTorchJob, pytorch_replica_specs=specs)
    assert names(made) == ["x-master-0", "x-worker-0"]


def test_a_failed_worker_is_replaced_unless_it_is_never_restarted() -> None:
    made = simulation("PyTorchJob", torch())
    end(made, made.pods()[-1], "Failed")
    assert [pod.status.phase for pod in made.pods()] == ["Running"] * 3
    spec = torch()
    spec["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    made = simulation("PyTorchJob", spec)
    end(made, made.pods()[-1], "Failed")
    assert conditions(get(made, PyTorchJob))["Failed"] == ("True", "PyTorchJobFailed")


# Ray ------------------------------------------------------------------------------------------


def ray(workers: int = 2, **group: Any) -> dict[str, Any]:
    one = {"groupName": "w", "replicas": workers, "template": template(), **group}
    return {"headGroupSpec": {"template": template()}, "workerGroupSpecs": [one]}


def test_a_ray_cluster_has_a_head_and_workers() -> None:
    made = simulation("RayCluster", ray(numOfHosts=2))
    assert names(made)[0] == "x-head"
    assert all(name.startswith("x-w-worker-") for name in names(made)[1:])
    labels = made.pods()[-1].metadata.labels
    assert labels["ray.io/cluster"] == "x"
    assert (labels["ray.io/node-type"], labels["ray.io/group"]) == ("worker", "w")
    status = get(made, RayCluster).status
    assert (status.state, status.desired_worker_replicas, status.ready_worker_replicas) == (
        *("ready", 4, 4),
    )
    reason = "AllPodRunningAndReadyFirstTime"
    assert conditions(get(made, RayCluster))["RayClusterProvisioned"] == ("True", reason)


def test_a_suspended_ray_cluster_has_no_pods() -> None:
    made = simulation("RayCluster", ray())
    change(made, RayCluster, suspend=True)
    assert made.pods() == []
    assert get(made, RayCluster).status.state == "suspended"
    assert conditions(get(made, RayCluster))["RayClusterSuspended"][0] == "True"
    change(made, RayCluster, suspend=False)
    assert len(made.placements()) == 3
    assert get(made, RayCluster).status.state == "ready"


def test_a_ray_group_that_shrinks_gives_up_the_workers_that_it_names() -> None:
    made = simulation("RayCluster", ray(3))
    (group,) = get(made, RayCluster).spec.worker_group_specs
    first = names(made)[1]
    strategy = replace(group.scale_strategy, workers_to_delete=(first,))
    change(
        made,
        RayCluster,
        worker_group_specs=(replace(group, replicas=2, scale_strategy=strategy),),
    )
    assert len(names(made)) == 3
    assert first not in names(made)


def ray_job(**more: Any) -> dict[str, Any]:
    return {"rayClusterSpec": ray(), "shutdownAfterJobFinishes": True, **more}


def test_a_ray_job_makes_a_cluster_and_submits_its_work() -> None:
    made = simulation("RayJob", ray_job())
    (cluster,) = made.cluster.list(RayCluster)
    assert cluster.metadata.owner_references[0].kind == "RayJob"
    assert cluster.metadata.labels["ray.io/originated-from-cr-name"] == "x"
    job = get(made, RayJob).status
    assert job.ray_cluster_name == cluster.metadata.name
    assert (job.job_deployment_status, job.job_status) == ("Running", "RUNNING")
    (submitter,) = made.cluster.list(Job)
    assert submitter.metadata.name == "x"
    assert len(made.placements()) == 4


def test_a_ray_job_ends_with_its_submitter_and_then_gives_up_its_cluster() -> None:
    annotations = {"bayplan.dev/duration": "30s"}
    made = simulation("RayJob", ray_job(ttlSecondsAfterFinished=60), annotations=annotations)
    job = get(made, RayJob).status
    assert (job.job_deployment_status, job.job_status) == ("Complete", "SUCCEEDED")
    assert job.end_time == "2000-01-01T00:00:30Z"
    assert made.cluster.now >= 90
    assert made.cluster.list(RayCluster) == []
    assert [pod.status.phase for pod in made.pods()] == ["Succeeded"]


def test_a_suspended_ray_job_has_no_cluster_and_gets_a_new_one() -> None:
    made = simulation("RayJob", ray_job(suspend=True))
    assert (made.cluster.list(RayCluster), made.pods()) == ([], [])
    assert get(made, RayJob).status.job_deployment_status == "Suspended"
    change(made, RayJob, suspend=False)
    assert len(made.placements()) == 4
    first = get(made, RayJob).status.ray_cluster_name
    change(made, RayJob, suspend=True)
    status = get(made, RayJob).status
    assert (made.pods(), status.ray_cluster_name, status.job_status) == ([], "", "")
    change(made, RayJob, suspend=False)
    assert get(made, RayJob).status.ray_cluster_name not in ("", first)


def test_a_ray_job_that_its_operator_submits_ends_with_the_head() -> None:
    spec = ray_job(submissionMode="HTTPMode")
    spec["rayClusterSpec"]["headGroupSpec"]["template"] = template("20s")
    made = simulation("RayJob", spec)
    assert get(made, RayJob).status.job_deployment_status == "Complete"
    assert made.cluster.list(Job) == []
