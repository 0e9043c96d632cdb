"""Jobs of other kinds, and topology, with Kueue's manager and with bayplan in its place."""

from __future__ import annotations

from typing import Any

from tests.controlplane.live_cluster import Content
from tests.peers.kueue_stories import QUEUE, Story, quota
from tests.peers.test_kinds import template

OTHERS = ("jobset", "lws")
RACK = "example.com/rack"
SET_OF_JOBS, SET_OF_LEADERS = "jobset.sigs.k8s.io/jobset-name", "leaderworkerset.sigs.k8s.io/name"


def job_set(story: Story, name: str, **counts: int) -> None:
    """Create a JobSet with a replicated job of each name, of so many pods."""
    jobs = [
        {
            "name": one,
            "template": {
                "spec": {
                    "parallelism": count,
                    "completions": count,
                    "template": template(restartPolicy="Never"),
                }
            },
        }
        for one, count in counts.items()
    ]
    meta = {"name": name, "namespace": story.name, "labels": {QUEUE: "q"}}
    version = "jobset.x-k8s.io/v1alpha2"
    story.add(
        {
            "apiVersion": version,
            "kind": "JobSet",
            "metadata": meta,
            "spec": {"replicatedJobs": jobs},
        }
    )


def leader_worker_set(story: Story, name: str, replicas: int) -> Content:
    """Create a LeaderWorkerSet of groups of two pods."""
    spec = {
        "replicas": replicas,
        "leaderWorkerTemplate": {"size": 2, "workerTemplate": template()},
    }
    meta = {"name": name, "namespace": story.name, "labels": {QUEUE: "q"}}
    version = "leaderworkerset.x-k8s.io/v1"
    made = {"apiVersion": version, "kind": "LeaderWorkerSet", "metadata": meta, "spec": spec}
    story.add(made)
    return made


def racks(story: Story, cores: int = 24) -> None:
    """Create a queue whose flavor has two racks of two nodes."""
    story.topology("racks", RACK)
    story.flavor(count=0, topologyName=story.of("racks"))
    for rack in ("r0", "r1"):
        story.nodes("main", 2, **{RACK: rack})
    story.queue("q", quota("main", cores))


def racks_of(story: Story, job: str) -> list[str]:
    """Return the racks of a job's pods, sorted."""
    named = {
        one["metadata"]["name"]: one["metadata"]["labels"].get(RACK)
        for one in story.client.get("/api/v1/nodes").json["items"]
    }
    return sorted(named[pod["spec"]["nodeName"]] for pod in story.pods_of(job))


def asking_for(**words: str) -> dict[str, Any]:
    """Return what a template says of the topology."""
    return {"notes": {f"kueue.x-k8s.io/podset-{name}-topology": one for name, one in words.items()}}


def domains(story: Story, job: str) -> int:
    """Return the number of domains that a Workload says its pods are in."""
    (assigned,) = story.workload(job)["status"]["admission"]["podSetAssignments"]
    stated = assigned.get("topologyAssignment", {"slices": []})
    return sum(one["domainCount"] for one in stated["slices"])


def waits_for_nodes(story: Story, job: str) -> None:
    """Wait until a job has to wait that would fit if others ended.

    Kueue calls that a wait for quota, bayplan one for nodes.
    """
    reasons = ("WaitingForQuota", "TopologyPlacementFailed")
    story.wait(lambda: story.reason(job)[1] in reasons, f"{job} waits")


def test_a_job_set_is_queued_as_one(story: Story) -> None:
    story.flavor()
    story.queue("q")
    job_set(story, "first", lead=1, work=3)
    story.wait(lambda: len(story.pods_of("first", SET_OF_JOBS)) == 4, "it runs")
    sets = [("lead", 1, {"cpu": "main"}), ("work", 3, {"cpu": "main"})]
    assert story.assigned("first") == sets
    job_set(story, "next", lead=1, work=2)
    story.wait_for("next", "False", "WaitingForQuota")
    story.succeed(story.pods_of("first", SET_OF_JOBS))
    story.wait(lambda: len(story.pods_of("next", SET_OF_JOBS)) == 3, "the next one runs")
    story.wait_for("first", "True", "Succeeded", "Finished")


def test_groups_of_a_set_of_leaders_are_queued_one_by_one(story: Story) -> None:
    story.flavor()
    story.queue("q")
    made = leader_worker_set(story, "serve", 4)
    story.wait(lambda: len(story.pods_of("serve", SET_OF_LEADERS)) == 6, "three groups run")

    def admitted() -> list[bool]:
        return sorted("admission" in one.get("status", {}) for one in story.slices("serve"))

    story.wait(lambda: admitted() == [False, True, True, True], "the fourth waits")
    path = f"/apis/{made['apiVersion']}/namespaces/{story.name}/leaderworkersets/serve"
    story.changed(path, {"spec": {"replicas": 2}})
    story.wait(lambda: len(story.slices("serve")) == 2, "two Workloads are left")
    used = story.cluster_queue
    story.wait(lambda: used("q")["status"]["reservingWorkloads"] == 2, "so is their quota")


def test_a_required_topology_keeps_a_job_in_one_rack(story: Story) -> None:
    racks(story, 40)
    story.job("half", "q", 10, **asking_for(required=RACK))
    story.wait_for_pods(half=10)
    assert len(set(racks_of(story, "half"))) == 1
    story.wait(lambda: domains(story, "half") == 2, "its Workload says on which nodes")
    story.job("large", "q", 17, **asking_for(required=RACK))
    waits_for_nodes(story, "large")
    story.job("other", "q", 10, **asking_for(required=RACK))
    story.wait_for_pods(other=10)
    assert set(racks_of(story, "other")).isdisjoint(racks_of(story, "half"))


def test_a_job_that_fits_no_rack_waits(story: Story) -> None:
    racks(story, 40)
    story.job("one", "q", 10, **asking_for(required=RACK))
    story.wait_for_pods(one=10)
    story.job("two", "q", 10, **asking_for(required=RACK))
    story.wait_for_pods(two=10)
    story.job("three", "q", 8, **asking_for(required=RACK))
    waits_for_nodes(story, "three")
    story.finish("one")
    story.wait_for_pods(three=8)


def test_a_preferred_topology_may_be_left(story: Story) -> None:
    racks(story)
    story.job("wide", "q", 20, **asking_for(preferred=RACK))
    story.wait_for_pods(wide=20)
    assert set(racks_of(story, "wide")) == {"r0", "r1"}
    story.finish("wide")
    story.wait_for("wide", "True", "Succeeded", "Finished")
    story.job("narrow", "q", 12, **asking_for(preferred=RACK))
    story.wait_for_pods(narrow=12)
    assert len(set(racks_of(story, "narrow"))) == 1


def test_an_unconstrained_topology_takes_what_is_free(story: Story) -> None:
    racks(story, 40)
    story.job("filling", "q", 14, **asking_for(required=RACK))
    story.wait_for_pods(filling=14)
    story.job("anywhere", "q", 17, **asking_for(unconstrained="true"))
    story.wait_for_pods(anywhere=17)
    assert set(racks_of(story, "anywhere")) == {"r0", "r1"}
    story.job("more", "q", 2, **asking_for(unconstrained="true"))
    waits_for_nodes(story, "more")
