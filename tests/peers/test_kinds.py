"""A job of each kind, made into pods by its own controller: bayplan gives all of them nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.cluster.apiserver.faces import Client
from tests.controlplane.live_cluster import EVENTS, PODS, Content
from tests.controlplane.queue_builders import cluster_queue
from tests.controlplane.story_builders import asking, nodes
from tests.peers.real_peers import SCHEDULER, Peers

from bayplan.kinds import KINDS_OF_WORKLOADS

TRAINING = "training.kubeflow.org/job-name"


def template(labels: dict[str, str] | None = None, **spec: object) -> Content:
    """Return a pod template of a core for bayplan."""
    made: Content = {"spec": {**asking("x")["spec"], "schedulerName": SCHEDULER, **spec}}
    return {"metadata": {"labels": labels}, **made} if labels else made


def named(version: str, kind: str, name: str, spec: Content, **meta: object) -> Content:
    meta = {"name": name, **meta}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def job_set() -> list[Content]:
    job = {
        "spec": {"parallelism": 3, "completions": 3, "template": template(restartPolicy="Never")}
    }
    spec = {"replicatedJobs": [{"name": "w", "replicas": 2, "template": job}]}
    return [named("jobset.x-k8s.io/v1alpha2", "JobSet", "s", spec, namespace="default")]


def leader_worker_set() -> list[Content]:
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": template()}}
    return [named("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "s", spec, namespace="default")]


def train_job() -> list[Content]:
    containers = template()["spec"]["containers"]
    pod = {"spec": {"schedulerName": SCHEDULER, "containers": [{**containers[0], "name": "node"}]}}
    step = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}}
    jobs = [{"name": "node", "template": {**step, "spec": {"template": pod}}}]
    runtime = {
        "mlPolicy": {"numNodes": 3, "torch": {}},
        "template": {"spec": {"replicatedJobs": jobs}},
    }
    version = "trainer.kubeflow.org/v1alpha1"
    labels = {"trainer.kubeflow.org/framework": "torch"}
    return [
        named(version, "ClusterTrainingRuntime", "torch", runtime, labels=labels),
        named(version, "TrainJob", "s", {"runtimeRef": {"name": "torch"}}, namespace="default"),
    ]


def ray_cluster() -> list[Content]:
    group = {"rayStartParams": {}, "template": template()}
    workers = {"groupName": "w", "replicas": 2, "minReplicas": 2, "maxReplicas": 4, **group}
    spec = {"headGroupSpec": group, "workerGroupSpecs": [workers]}
    return [named("ray.io/v1", "RayCluster", "s", spec, namespace="default")]


def mpi_job() -> list[Content]:
    replicas = {
        "Launcher": {"replicas": 1, "template": template()},
        "Worker": {"replicas": 2, "template": template()},
    }
    spec = {"runLauncherAsWorker": True, "mpiReplicaSpecs": replicas}
    return [named("kubeflow.org/v2beta1", "MPIJob", "s", spec, namespace="default")]


@dataclass(frozen=True)
class Kind:
    """A kind of jobs.

    :ivar peers: the controllers that make pods of it.
    :ivar objects: a job.
    :ivar label: what its pods have, by which their number is known.
    :ivar group: the collection of the PodGroups that the controller writes, if it does.
    :ivar variables: of the script that starts the controllers.
    """

    peers: Sequence[str]
    objects: Callable[[], list[Content]]
    label: str
    pods: int
    group: str = ""
    variables: dict[str, str] = field(default_factory=dict)


VOLCANO = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
COSCHEDULING = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
KINDS = {
    "jobset": Kind(["jobset"], job_set, "jobset.sigs.k8s.io/jobset-name", 6),
    "lws": Kind(["lws"], leader_worker_set, "leaderworkerset.sigs.k8s.io/name", 6),
    "lws-volcano": Kind(
        ["lws"],
        leader_worker_set,
        "leaderworkerset.sigs.k8s.io/name",
        6,
        VOLCANO,
        {"LWS_GANG": "volcano"},
    ),
    "trainer": Kind(["jobset", "trainer"], train_job, "jobset.sigs.k8s.io/jobset-name", 3),
    "kuberay": Kind(["kuberay"], ray_cluster, "ray.io/cluster", 3),
    "kuberay-volcano": Kind(
        ["kuberay"], ray_cluster, "ray.io/cluster", 3, VOLCANO, {"KUBERAY_BATCH": "volcano"}
    ),
    "mpi": Kind(["mpi"], mpi_job, TRAINING, 3),
    "mpi-volcano": Kind(["mpi"], mpi_job, TRAINING, 3, VOLCANO, {"MPI_GANG": "volcano"}),
    "mpi-coscheduling": Kind(["mpi"], mpi_job, TRAINING, 3, COSCHEDULING, {"MPI_GANG": SCHEDULER}),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_all_pods_of_a_job_get_nodes(peers: Peers, kind: Kind, tmp_path: Path) -> None:
    with peers.running(*kind.peers, **kind.variables), peers.scheduler(tmp_path):
        peers.cluster.apply([*nodes(2), *kind.objects()])
        peers.wait(lambda: placed(peers.cluster.client, kind.label) == kind.pods, "all have nodes")
        if kind.group:
            assert peers.cluster.client.names(kind.group) != []


OWNED = {
    # A job without anybody's PodGroup: how many pods fit, and how many then have nodes.
    "jobset": (5, 0),
    "lws": (5, 3),
    "kuberay": (2, 0),
    "mpi": (2, 0),
    "trainer": (2, 0),
}


@pytest.mark.parametrize("name", OWNED)
def test_of_a_gang_that_nobody_wrote_all_pods_get_nodes_or_none(
    peers: Peers, name: str, tmp_path: Path
) -> None:
    kind, (fit, expected) = KINDS[name], OWNED[name]
    client = peers.cluster.client
    with peers.running(*kind.peers), peers.scheduler(tmp_path):
        # Of the eight cores, others have what does not fit.
        others = [asking(f"o{i}", nodeName="n0") for i in range(8 - fit)]
        peers.cluster.apply([*nodes(1), *others, *kind.objects()])
        peers.wait(lambda: settled(client, kind.label) == kind.pods, "all are placed or refused")
        assert placed(client, kind.label) == expected
        for other in others:
            client.delete(f"{PODS}/{other['metadata']['name']}", gracePeriodSeconds=0)
        peers.wait(lambda: placed(client, kind.label) == kind.pods, "all have nodes")
        # What is made again joins those that run.
        gone = next(one for one in pods_of(client, kind.label) if not is_head(one))
        client.delete(f"{PODS}/{gone['metadata']['name']}", gracePeriodSeconds=0)
        uid = gone["metadata"]["uid"]
        peers.wait(
            lambda: (
                placed(client, kind.label) == kind.pods
                and uid not in {one["metadata"]["uid"] for one in pods_of(client, kind.label)}
            ),
            "the pod is made again and has a node",
        )


def is_head(pod: Content) -> bool:
    """Tell whether a pod's end is the end of its job."""
    labels = pod["metadata"]["labels"]
    return (
        labels.get("ray.io/node-type") == "head"
        or labels.get("training.kubeflow.org/job-role") == "launcher"
    )


def pods_of(client: Client, label: str) -> list[Content]:
    """Return the pods of the job."""
    found: list[Content] = client.get(PODS, labelSelector=f"{label}=s").json["items"]
    return found


def settled(client: Client, label: str) -> int:
    """Return how many pods of the job have a node, or were refused one."""
    return sum(
        "nodeName" in pod["spec"]
        or any(
            one["type"] == "PodScheduled" and one["status"] == "False"
            for one in pod["status"].get("conditions", ())
        )
        for pod in pods_of(client, label)
    )


def placed(client: Client, label: str) -> int:
    """Return how many pods of the job have nodes."""
    return sum("nodeName" in pod["spec"] for pod in pods_of(client, label))


QUEUED = ("jobset", "trainer", "kuberay", "mpi")
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"


@pytest.mark.parametrize("name", QUEUED)
def test_a_suspended_job_runs_with_quota_and_stops_without(
    peers: Peers, name: str, tmp_path: Path
) -> None:
    """Its own controller has to take the fields that admission sets, and those that it restores."""
    kind, client = KINDS[name], peers.cluster.client
    peers.define("kueue.x-k8s.io_*")
    *before, job = kind.objects()
    with peers.running(*kind.peers), peers.scheduler(tmp_path):
        peers.cluster.apply([*nodes(2), *cluster_queue("q"), *before, suspended(job)])
        peers.wait(lambda: placed(client, kind.label) == kind.pods, "it was admitted and placed")
        assert {one["metadata"]["labels"].get(QUEUE) for one in pods_of(client, kind.label)} == {
            "q"
        }
        (workload,) = peers.cluster.items(WORKLOADS)
        path = f"{WORKLOADS}/{workload['metadata']['name']}"
        assert client.patch(path, {"spec": {"active": False}}).code == 200
        peers.wait(lambda: not pods_of(client, kind.label), "it was stopped")
        assert client.patch(path, {"spec": {"active": True}}).code == 200
        peers.wait(lambda: placed(client, kind.label) == kind.pods, "it was admitted again")


SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets/s"


def test_each_replica_of_a_leader_worker_set_has_a_workload_as_long_as_it_lasts(
    peers: Peers, tmp_path: Path
) -> None:
    kind, client = KINDS["lws"], peers.cluster.client
    peers.define("kueue.x-k8s.io_*")
    (owner,) = kind.objects()
    owner["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    with peers.running(*kind.peers), peers.scheduler(tmp_path):
        peers.cluster.apply([*nodes(2), *cluster_queue("q"), owner])
        peers.wait(lambda: all_placed(client, kind, 6), "both replicas are admitted and placed")
        peers.wait(lambda: len(reserved_since(peers)) == 2, "both admissions are written")
        before = reserved_since(peers)
        assert {name.rpartition("-")[0] for name in before} == {
            "leaderworkerset-s-0",
            "leaderworkerset-s-1",
        }
        # All pods of a replica are made again once its leader is deleted.
        uids = {one["metadata"]["uid"] for one in pods_of(client, kind.label)}
        client.delete(f"{PODS}/s-0")
        peers.wait(
            lambda: (
                all_placed(client, kind, 6)
                and len(uids & {one["metadata"]["uid"] for one in pods_of(client, kind.label)}) == 3
            ),
            "the replica is made again",
        )
        assert reserved_since(peers) == before
        assert client.patch(SETS, {"spec": {"replicas": 1}}).code == 200
        peers.wait(lambda: len(reserved_since(peers)) == 1, "the other one's Workload is gone")
        client.delete(SETS)
        peers.wait(lambda: not peers.cluster.items(WORKLOADS), "the last one goes with the set")


def test_a_rolling_update_surges_by_a_replica_with_a_workload_of_its_own(
    peers: Peers, tmp_path: Path
) -> None:
    """There are quota and nodes for three replicas of three cores."""
    kind, client = KINDS["lws"], peers.cluster.client
    peers.define("kueue.x-k8s.io_*")
    (owner,) = kind.objects()
    owner["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    surge = {"maxSurge": 1, "maxUnavailable": 0}
    owner["spec"]["rolloutStrategy"] = {
        "type": "RollingUpdate",
        "rollingUpdateConfiguration": surge,
    }

    def updated() -> bool:
        images = {one["spec"]["containers"][0]["image"] for one in pods_of(client, kind.label)}
        return images == {"another"} and all_placed(client, kind, 6)

    *others, queue = cluster_queue("q")
    queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "9"
    with peers.running(*kind.peers, "kwok"), peers.scheduler(tmp_path):
        peers.cluster.apply([*nodes(2), *others, queue, owner])
        peers.wait(lambda: len(reserved_since(peers)) == 2, "both replicas are admitted")
        peers.wait(lambda: all_placed(client, kind, 6), "both replicas are placed")
        templates = owner["spec"]["leaderWorkerTemplate"]
        templates["workerTemplate"]["spec"]["containers"][0]["image"] = "another"
        answer = client.patch(SETS, {"spec": {"leaderWorkerTemplate": templates}})
        assert answer.code == 200
        peers.wait(updated, "both replicas are made again")
        admitted = {
            one["involvedObject"]["name"].rpartition("-")[0]
            for one in peers.cluster.items(EVENTS)
            if one["involvedObject"]["kind"] == "Workload" and one["reason"] == "Admitted"
        }
        assert admitted == {f"leaderworkerset-s-{index}" for index in range(3)}
        peers.wait(lambda: len(reserved_since(peers)) == 2, "the surplus Workload is gone")


def reserved_since(peers: Peers) -> dict[str, tuple[str, str]]:
    """Return the UID of each Workload with quota, and since when it has that."""
    return {
        one["metadata"]["name"]: (one["metadata"]["uid"], stated["lastTransitionTime"])
        for one in peers.cluster.items(WORKLOADS)
        for stated in one.get("status", {}).get("conditions", ())
        if stated["type"] == "QuotaReserved" and stated["status"] == "True"
    }


QUEUE = "kueue.x-k8s.io/local-queue-name"


def suspended(job: Content) -> Content:
    """Return a job that waits for the queue ``q``."""
    row = KINDS_OF_WORKLOADS[job["apiVersion"].rpartition("/")[0], job["kind"]]
    at, *above = reversed(row.suspend.split("."))
    held: Content = job
    for step in reversed(above):
        held = held.setdefault(step, {})
    held[at] = True
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    return job


@dataclass(frozen=True)
class Story:
    """What happens to a job whose operator writes PodGroups itself.

    :ivar path: of the job.
    :ivar fit: how many of its pods there is room for at first, and how many then have nodes.
    :ivar sized: returns its spec for a size; :ivar sizes: each with the number of its pods.
    """

    path: str
    fit: tuple[int, int]
    sized: Callable[[Content, int], None]
    sizes: Sequence[tuple[int, int]]


def _groups(spec: Content, count: int) -> None:
    spec["replicas"] = count


def _ray_workers(spec: Content, count: int) -> None:
    spec["workerGroupSpecs"][0]["replicas"] = count


def _mpi_workers(spec: Content, count: int) -> None:
    spec["mpiReplicaSpecs"]["Worker"]["replicas"] = count


def of(resource: str) -> str:
    group, _, plural = resource.rpartition("/")
    return f"/apis/{group}/namespaces/default/{plural}/s"


MPI = Story(of("kubeflow.org/v2beta1/mpijobs"), (2, 0), _mpi_workers, ((3, 4), (2, 3)))
STORIES = {
    "lws-volcano": Story(
        of("leaderworkerset.x-k8s.io/v1/leaderworkersets"), (5, 3), _groups, ((1, 3), (2, 6))
    ),
    "kuberay-volcano": Story(of("ray.io/v1/rayclusters"), (2, 0), _ray_workers, ((3, 4), (2, 3))),
    "mpi-volcano": MPI,
    "mpi-coscheduling": MPI,
}


@pytest.mark.parametrize("name", STORIES)
def test_a_job_whose_operator_writes_its_groups_lives_as_a_gang(
    peers: Peers, name: str, tmp_path: Path
) -> None:
    """It is bound whole or not at all, loses a pod, changes its size and is deleted."""
    kind, story, client = KINDS[name], STORIES[name], peers.cluster.client
    fit, expected = story.fit
    with peers.running(*kind.peers, **kind.variables), peers.scheduler(tmp_path):
        others = [asking(f"o{i}", nodeName="n0") for i in range(8 - fit)]
        peers.cluster.apply([*nodes(1), *others, *kind.objects()])
        peers.wait(lambda: settled(client, kind.label) == kind.pods, "all are placed or refused")
        assert placed(client, kind.label) == expected
        for other in others:
            client.delete(f"{PODS}/{other['metadata']['name']}", gracePeriodSeconds=0)
        peers.wait(lambda: all_placed(client, kind, kind.pods), "all have nodes")

        gone = next(one for one in pods_of(client, kind.label) if not is_head(one))
        client.delete(f"{PODS}/{gone['metadata']['name']}", gracePeriodSeconds=0)
        uid = gone["metadata"]["uid"]
        peers.wait(
            lambda: (
                all_placed(client, kind, kind.pods)
                and uid not in {one["metadata"]["uid"] for one in pods_of(client, kind.label)}
            ),
            "the pod is made again and has a node",
        )
        for size, count in story.sizes:
            spec = client.get(story.path).json["spec"]
            story.sized(spec, size)
            assert client.patch(story.path, {"spec": spec}).code == 200
            peers.wait(lambda n=count: all_placed(client, kind, n), f"{count} pods have nodes")

        client.delete(story.path)
        peers.wait(
            lambda: not pods_of(client, kind.label) and not client.names(kind.group),
            "its pods and its groups are gone",
        )


def all_placed(client: Client, kind: Kind, count: int) -> bool:
    """Tell whether a job has as many pods, all with nodes."""
    return len(pods_of(client, kind.label)) == placed(client, kind.label) == count
