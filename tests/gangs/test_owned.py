"""Gangs that nobody wrote: which pods go together by what owns them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples

from bayplan.api import ApiObject, OwnerReference, Pod, kind_of
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.explain.explanation import explain
from bayplan.gangs.owned import GANG_ANNOTATION, MINIMUM_ANNOTATION
from bayplan.profiles.loading import default_profiles
from bayplan.scheduler.scheduler import Scheduler
from bayplan.testing import Cluster, make_gang, make_node, make_object, make_pod, make_pods_of

JOBSET = "jobset.sigs.k8s.io"
LWS = "leaderworkerset.sigs.k8s.io"
TEMPLATE: Mapping[str, Any] = {"spec": {"containers": [{"name": "c", "image": "i"}]}}


def cluster(cores: int) -> Cluster:
    return Cluster([make_node("n", cpu=cores)])


def owned_by(obj: ApiObject, *owners: ApiObject) -> Any:
    """Return an object with owners, the last of which controls it."""
    references = tuple(reference(owner) for owner in owners)
    return replace(obj, metadata=replace(obj.metadata, owner_references=references))


def reference(owner: ApiObject) -> OwnerReference:
    kind, meta = kind_of(owner), owner.metadata
    version = f"{kind.group}/{kind.versions[0]}".removeprefix("/")
    return OwnerReference(kind.name, meta.name, meta.uid, version, controller=True)


def add(made: Cluster, obj: ApiObject) -> Any:
    """Create an object; return it with its UID."""
    made.add(obj)
    return made.api.get(type(obj), made.api.key_of(obj))


def job_set(counts: Mapping[str, int], **more: Any) -> ApiObject:
    jobs = [
        {
            "name": name,
            "template": {"spec": {"parallelism": n, "completions": n, "template": TEMPLATE}},
        }
        for name, n in counts.items()
    ]
    meta = {"name": "train", "annotations": more.pop("annotations", {})}
    spec = {"replicatedJobs": jobs, **more}
    return make_object(
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": spec}
    )


def job(name: str, **annotations: str) -> ApiObject:
    return make_object(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"parallelism": 3, "completions": 3, "template": TEMPLATE},
        }
    )


def start(made: Cluster, owner: ApiObject, counts: Mapping[str, int]) -> None:
    """Create the Jobs and the pods of a job set, as its controllers do."""
    above = add(made, owner)
    for name, count in counts.items():
        child = add(made, owned_by(job(f"train-{name}-0"), above))
        labels = {f"{JOBSET}/replicatedjob-name": name}
        for index in range(count):
            made.add(owned_by(make_pod(f"{name}-{index}", labels=labels), child))


COUNTS = {"driver": 1, "workers": 3}


@pytest.mark.parametrize(("cores", "placed"), [(3, 0), (4, 4)])
def test_the_pods_of_a_job_set_go_together(cores: int, placed: int) -> None:
    made = cluster(cores)
    start(made, job_set(COUNTS), COUNTS)
    assert len(made.schedule()) == placed


def test_a_gang_is_called_after_what_owns_it() -> None:
    made = cluster(3)
    start(made, job_set(COUNTS), COUNTS)
    made.schedule()
    assert 'Gang "default/JobSet:train": 3 of the 4 members' in made.message("driver-0")


def test_jobs_that_start_in_order_do_not_wait_for_each_other() -> None:
    made = cluster(3)
    policy = {"startupPolicyOrder": "InOrder"}
    start(made, job_set(COUNTS, startupPolicy=policy), {"driver": 1})
    assert made.schedule() == {"driver-0": "n"}


@pytest.mark.parametrize("place", ["owner", "job", "pod"])
def test_an_annotation_lets_pods_go_one_by_one(place: str) -> None:
    made, off = cluster(3), {GANG_ANNOTATION: "false"}
    above = add(made, job_set(COUNTS, annotations=off if place == "owner" else {}))
    child = add(made, owned_by(job("j", **(off if place == "job" else {})), above))
    for index in range(3):
        labels = {f"{JOBSET}/replicatedjob-name": "workers"}
        annotations = off if place == "pod" else {}
        pod = make_pod(f"p{index}", labels=labels, annotations=annotations)
        made.add(owned_by(pod, child))
    assert len(made.schedule()) == 3


def test_pods_that_kai_leaves_to_others_are_no_gang_of_their_owner() -> None:
    made = cluster(3)
    start(made, job_set(COUNTS, annotations={"kai.scheduler/skip-podgrouper": "true"}), COUNTS)
    assert len(made.schedule()) == 3


def test_an_annotation_sets_how_many_pods_are_enough() -> None:
    made = cluster(3)
    start(made, job_set(COUNTS, annotations={MINIMUM_ANNOTATION: "3"}), COUNTS)
    assert len(made.schedule()) == 3


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (GANG_ANNOTATION, "yes", 'expected "true" or "false", got "yes"'),
        (MINIMUM_ANNOTATION, "0", 'expected a whole number of 1 or more, got "0"'),
        (MINIMUM_ANNOTATION, "many", 'expected a whole number of 1 or more, got "many"'),
    ],
)
def test_a_wrong_annotation_keeps_the_gang_pending_and_says_why(
    name: str, value: str, expected: str
) -> None:
    made = cluster(4)
    start(made, job_set(COUNTS, annotations={name: value}), COUNTS)
    assert made.schedule() == {}
    assert f"JobSet default/train: annotation {name}: {expected}" in made.message("driver-0")


def with_pods(made: Cluster, owner: ApiObject, count: int) -> None:
    above = add(made, owner)
    for index in range(count):
        made.add(owned_by(make_pod(f"p{index}"), above))


@pytest.mark.parametrize(
    ("annotations", "placed"),
    [({}, 2), ({GANG_ANNOTATION: "true"}, 0), ({MINIMUM_ANNOTATION: "2"}, 2)],
)
def test_a_job_is_a_gang_where_it_asks(annotations: Mapping[str, str], placed: int) -> None:
    made = cluster(2)
    with_pods(made, job("j", **annotations), 3)
    assert len(made.schedule()) == placed


@pytest.mark.parametrize(("policy", "placed"), [("Parallel", 3), ("OrderedReady", 0)])
def test_a_set_that_makes_its_pods_one_after_the_other_is_told_that_it_is_no_gang(
    policy: str, placed: int
) -> None:
    made = cluster(3)
    selector = {"matchLabels": {"app": "s"}}
    template = {**TEMPLATE, "metadata": {"labels": {"app": "s"}}}
    spec = {"replicas": 3, "selector": selector, "template": template}
    meta = {"name": "s", "annotations": {GANG_ANNOTATION: "true"}}
    content = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta}
    owner = make_object({**content, "spec": {**spec, "podManagementPolicy": policy}})
    with_pods(made, owner, 3)
    assert len(made.schedule()) == placed
    if not placed:
        expected = "StatefulSet default/s: its pods are created one after the other"
        assert expected in made.message("p0")


def test_a_job_that_asks_later_is_a_gang_from_then_on() -> None:
    made = cluster(2)
    made.add(make_pod("other", cpu=1, node="n"))
    with_pods(made, job("j", **{MINIMUM_ANNOTATION: "3"}), 3)
    assert made.schedule() == {"other": "n"}
    known = made.api.get(type(job("j")), "default/j")
    assert known is not None
    meta = replace(known.metadata, annotations={GANG_ANNOTATION: "false"})
    made.api.update(replace(known, metadata=meta))
    made.api.deliver()
    assert len(made.schedule()) == 2


def test_where_someone_wrote_a_group_that_counts() -> None:
    made = cluster(3)
    made.add(make_gang("own", 2))
    above = add(made, job_set(COUNTS))
    child = add(made, owned_by(job("j"), above))
    for index in range(2):
        labels = {f"{JOBSET}/replicatedjob-name": "workers"}
        made.add(owned_by(make_pod(f"p{index}", gang="own", labels=labels), child))
    assert len(made.schedule()) == 2


def test_a_member_that_is_made_again_waits_for_nobody_and_a_job_made_again_for_all() -> None:
    made = cluster(4)
    start(made, job_set(COUNTS), COUNTS)
    assert len(made.schedule()) == 4
    known = made.api.get(Pod, "default/workers-1")
    assert known is not None
    made.remove("workers-1")
    again = replace(make_pod("again"), metadata=replace(known.metadata, name="again", uid=""))
    made.add(replace(again, metadata=replace(again.metadata, resource_version="")))
    assert "again" in made.schedule()
    for name in ("driver-0", "workers-0", "workers-2", "again"):
        made.remove(name)
    child = made.api.get(type(job("j")), "default/train-workers-0")
    assert child is not None
    labels = {f"{JOBSET}/replicatedjob-name": "workers"}
    for index in range(3):
        made.add(owned_by(make_pod(f"new-{index}", labels=labels), child))
    assert made.schedule() == {}


def test_who_is_made_again_does_not_wait_for_those_that_have_succeeded() -> None:
    made = cluster(4)
    start(made, job_set(COUNTS), COUNTS)
    assert len(made.schedule()) == 4

    def end(name: str, phase: str) -> None:
        pod = made.api.get(Pod, f"default/{name}")
        assert pod is not None
        made.api.update(replace(pod, status=replace(pod.status, phase=phase)))
        made.api.deliver()

    for name in ("driver-0", "workers-0", "workers-1"):
        end(name, "Succeeded")
    end("workers-2", "Failed")
    child = made.api.get(type(job("j")), "default/train-workers-0")
    assert child is not None
    labels = {f"{JOBSET}/replicatedjob-name": "workers"}
    made.add(owned_by(make_pod("again", labels=labels), child))
    assert "again" in made.schedule()
    # Another scheduler, that has only seen how it ended, places it as well.
    made.remove("again")
    made.add(owned_by(make_pod("third", labels=labels), child))
    other = Scheduler(made.api, default_profiles())
    made.api.deliver()
    while other.step():
        made.api.deliver()
    assert "third" in made.placements()


def test_a_job_set_that_is_deleted_leaves_no_gang() -> None:
    made = cluster(3)
    start(made, job_set(COUNTS), COUNTS)
    assert made.schedule() == {}
    made.api.delete(type(job_set(COUNTS)), "default/train")
    for name in ("driver-0", "workers-0", "workers-1", "workers-2"):
        made.remove(name)
    made.schedule()
    assert "default/JobSet:train" not in made.scheduler.gangs.all()


# What changes ------------------------------------------------------------------------------------


def workers(made: Cluster, child: ApiObject, *names: str, **annotations: str) -> None:
    labels = {f"{JOBSET}/replicatedjob-name": "workers"}
    made.add(*(owned_by(make_pod(n, labels=labels, annotations=annotations), child) for n in names))


def one_job(made: Cluster, count: int = 3) -> Any:
    """Create a job set and its only Job; return the Job."""
    above = add(made, job_set({"workers": count}))
    return add(made, owned_by(job("train-workers-0"), above))


@pytest.mark.parametrize("first", [0, 1, 2])
def test_pods_that_ask_for_different_minimums_are_told_so(first: int) -> None:
    made = cluster(3)
    child = one_job(made)
    for index in range(3):
        annotations = {MINIMUM_ANNOTATION: "1"} if index == first else {}
        workers(made, child, f"p{index}", **annotations)
    assert made.schedule() == {}
    assert "ask for different minimums" in made.message("p0")


def test_pods_that_lose_their_owner_are_placed_one_by_one() -> None:
    made = cluster(2)
    child = one_job(made)
    workers(made, child, "p0", "p1", "p2")
    assert made.schedule() == {}
    for name in ("p0", "p1", "p2"):
        pod = made.api.get(Pod, f"default/{name}")
        assert pod is not None
        made.api.update(replace(pod, metadata=replace(pod.metadata, owner_references=())))
    made.api.deliver()
    assert len(made.schedule()) == 2


def test_pods_that_are_adopted_are_a_gang_from_then_on() -> None:
    made = cluster(0)
    child = one_job(made)
    labels = {f"{JOBSET}/replicatedjob-name": "workers"}
    made.add(*(make_pod(f"p{index}", labels=labels) for index in range(3)))
    assert made.schedule() == {}
    for index in range(3):
        pod = made.api.get(Pod, f"default/p{index}")
        assert pod is not None
        made.api.update(owned_by(pod, child))
    made.add(make_node("m", cpu=2))
    assert made.schedule() == {}


def test_pods_made_again_while_the_old_ones_end_are_a_whole_gang() -> None:
    made = cluster(4)
    child = one_job(made)
    workers(made, child, "p0", "p1", "p2")
    assert len(made.schedule()) == 3
    for index in range(3):
        made.api.delete(Pod, f"default/p{index}", grace=30)
    workers(made, child, "q0", "q1", "q2")
    made.api.deliver()
    assert not {"q0", "q1", "q2"} & made.schedule().keys()
    made.advance(31)
    assert made.placements().keys() == {"q0", "q1", "q2"}


@pytest.mark.parametrize(
    "annotation", ["scheduling.k8s.io/group-name", "gang.scheduling.koordinator.sh/name"]
)
def test_nobody_joins_the_gang_of_an_owner_by_its_name(annotation: str) -> None:
    made = cluster(3)
    child = one_job(made)
    workers(made, child, "p0", "p1")
    made.add(make_pod("evil", annotations={annotation: "JobSet:train"}))
    assert made.schedule() == {}
    assert '"default/JobSet:train" is no name of a group' in made.message("evil")


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_pods_wait_for_no_owner_that_a_live_scheduler_does_not_follow(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryCluster, "in_order", False)
    made = cluster(2)
    template = {**TEMPLATE, "metadata": {"labels": {"app": "s"}}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "s"}}, "template": template}
    content = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "s"}}
    above = OwnerReference(kind, "d", "uid-d", "apps/v1", controller=True)
    owner = make_object({**content, "spec": spec})
    owner = replace(owner, metadata=replace(owner.metadata, owner_references=(above,)))
    with_pods(made, owner, 1)
    pod = make_pod("direct")
    made.add(replace(pod, metadata=replace(pod.metadata, owner_references=(above,))))
    assert len(made.schedule()) == 2


def test_mirror_pods_of_a_node_are_nothing_to_report(caplog: pytest.LogCaptureFixture) -> None:
    made = cluster(3)
    above = OwnerReference("Node", "n", "uid-n", "v1", controller=True)
    for index in range(3):
        pod = make_pod(f"p{index}")
        made.add(replace(pod, metadata=replace(pod.metadata, owner_references=(above,))))
    assert len(made.schedule()) == 3
    assert caplog.messages == []


@pytest.mark.parametrize(("cores", "placed"), [(3, 1), (4, 4)])
def test_executors_of_a_spark_driver_that_nobody_owns_are_a_gang_where_they_ask(
    cores: int, placed: int
) -> None:
    made = cluster(cores)
    driver = add(made, make_pod("driver", labels={"spark-role": "driver"}))
    asked = {MINIMUM_ANNOTATION: "3"}
    labels = {"spark-role": "executor"}
    pods = [make_pod(f"exec-{i}", labels=labels, annotations=asked) for i in range(3)]
    made.add(*(owned_by(pod, driver) for pod in pods))
    assert len(made.schedule()) == placed


# Kinds that nobody knows -------------------------------------------------------------------------


def of_unknown(name: str, kind: str = "Unheard", **annotations: str) -> Pod:
    group = "argoproj.io" if kind == "Workflow" else "of.example.com"
    owner = OwnerReference(kind, "t", "uid-t", f"{group}/v1", controller=True)
    pod = make_pod(name, annotations=annotations)
    return replace(pod, metadata=replace(pod.metadata, owner_references=(owner,)))


def test_pods_of_an_unknown_kind_are_a_gang_where_they_say_how_many_they_are() -> None:
    made = cluster(2)
    made.add(*(of_unknown(f"p{i}", **{MINIMUM_ANNOTATION: "3"}) for i in range(3)))
    assert made.schedule() == {}
    assert 'Gang "default/Unheard.of.example.com:t": 2 of the 3' in made.message("p0")
    for i in range(3):
        made.remove(f"p{i}")
    assert made.scheduler.gangs.all() == {}


def test_pods_of_an_unknown_kind_are_not_one_by_one_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = cluster(3)
    made.add(of_unknown("p0"))
    assert caplog.messages == []
    made.add(of_unknown("p1"), of_unknown("p2"))
    assert len(made.schedule()) == 3
    (message,) = caplog.messages
    assert message.startswith("pods of Unheard.of.example.com are placed one by one: no rule says")
    pod = made.api.get(Pod, "default/p0")
    assert pod is not None
    assert message in explain(made.scheduler, pod).notes


@pytest.mark.parametrize(
    ("kind", "annotations"), [("Workflow", {}), ("Unheard", {GANG_ANNOTATION: "false"})]
)
def test_nothing_is_said_of_pods_that_are_no_gang(
    kind: str, annotations: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    made = cluster(3)
    made.add(*(of_unknown(f"p{i}", kind, **annotations) for i in range(3)))
    assert len(made.schedule()) == 3
    assert caplog.messages == []


def test_a_gang_of_unknown_size_says_what_it_lacks() -> None:
    made = cluster(3)
    made.add(*(of_unknown(f"p{i}", **{GANG_ANNOTATION: "true"}) for i in range(3)))
    assert made.schedule() == {}
    assert "annotation bayplan.dev/min-member says it" in made.message("p0")


# Chains that lie -------------------------------------------------------------------------------


LIES = st.sampled_from(
    ["missing", "uid", "namespace", "kind", "group", "cycle", "deep", "not-controller", "self"]
)


def lying(made: Cluster, lie: str, number: int, victim: ApiObject) -> Iterable[ApiObject]:
    """Yield objects whose owners are not what they say they are; the last is a pod."""
    labels = {f"{JOBSET}/replicatedjob-name": "workers", f"{JOBSET}/jobset-name": "train"}
    pod = make_pod(f"evil-{number}", labels=labels)
    true = reference(victim)
    wrong = {
        "missing": replace(true, name="nobody"),
        "uid": replace(true, uid="0-0-0"),
        "namespace": true,
        "kind": replace(true, kind="JobSets"),
        "group": replace(true, api_version="jobset.example.com/v1alpha2"),
        "not-controller": replace(true, controller=False),
        "self": OwnerReference("Pod", f"evil-{number}", "", "v1", controller=True),
    }
    if lie in wrong:
        space = "elsewhere" if lie == "namespace" else "default"
        meta = replace(pod.metadata, owner_references=(wrong[lie],), namespace=space)
        yield replace(pod, metadata=meta)
        return
    levels = 2 if lie == "cycle" else 12
    above: OwnerReference = true
    if lie == "cycle":
        above = OwnerReference("Job", f"evil-{number}-1", "", "batch/v1", controller=True)
    for level in range(levels):
        one = job(f"evil-{number}-{level}")
        yield replace(one, metadata=replace(one.metadata, owner_references=(above,)))
        known = made.api.get(type(one), f"default/evil-{number}-{level}")
        assert known is not None, "created by the caller"
        above = reference(known)
    yield replace(pod, metadata=replace(pod.metadata, owner_references=(above,)))


@examples(40)
@given(st.lists(LIES, min_size=1, max_size=6))
def test_nobody_joins_the_gang_of_another_by_lying_about_its_owners(lies: list[str]) -> None:
    made = cluster(3 + len(lies))
    victim = add(made, job_set({"workers": 3}))
    child = add(made, owned_by(job("train-workers-0"), victim))
    for number, lie in enumerate(lies):
        for obj in lying(made, lie, number, victim):
            made.add(obj)
    made.schedule()
    gang = made.scheduler.gangs.all().get("default/JobSet:train")
    assert gang is None or not gang.present
    labels = {f"{JOBSET}/replicatedjob-name": "workers"}
    for index in range(3):
        made.add(owned_by(make_pod(f"mine-{index}", labels=labels), child))
    placed = made.schedule()
    assert {"mine-0", "mine-1", "mine-2"} <= placed.keys()


KAI_LEAST = "kai.scheduler/batch-min-member"


@pytest.mark.parametrize(("cores", "placed"), [(1, 0), (4, 4)])
def test_a_job_set_that_needs_only_some_of_its_jobs_runs_with_these(
    cores: int, placed: int
) -> None:
    counts = {"a": 2, "b": 2, "c": 2}
    made = cluster(cores)
    start(made, job_set(counts, annotations={KAI_LEAST: "2"}), counts)
    found = made.schedule()
    assert len(found) == placed
    assert len({name.partition("-")[0] for name in found}) == placed / 2


@pytest.mark.parametrize(("cores", "placed"), [(1, 0), (2, 2), (3, 3)])
def test_a_job_of_a_set_runs_with_as_many_pods_as_its_template_says(
    cores: int, placed: int
) -> None:
    template = {
        "metadata": {"annotations": {KAI_LEAST: "2"}},
        "spec": {"parallelism": 3, "completions": 3, "template": TEMPLATE},
    }
    made = cluster(cores)
    owner = make_object(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "train"},
            "spec": {"replicatedJobs": [{"name": "w", "template": template}]},
        }
    )
    child = add(made, owned_by(job("train-w-0"), add(made, owner)))
    labels = {f"{JOBSET}/replicatedjob-name": "w", f"{JOBSET}/job-index": "0"}
    made.add(*(owned_by(make_pod(f"w-{index}", labels=labels), child) for index in range(3)))
    assert len(made.schedule()) == placed


def test_the_pods_of_a_job_of_a_set_come_before_those_of_the_next_one() -> None:
    made = cluster(8)
    template = {"spec": {"parallelism": 2, "completions": 2, "template": TEMPLATE}}
    owner = make_object(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "train"},
            "spec": {"replicatedJobs": [{"name": "w", "replicas": 3, "template": template}]},
        }
    )
    parent = add(made, owner)
    for part in range(3):
        child = add(made, owned_by(job(f"train-w-{part}"), parent))
        for index in range(2):
            labels = {
                f"{JOBSET}/replicatedjob-name": "w",
                f"{JOBSET}/job-index": str(part),
                "batch.kubernetes.io/job-completion-index": str(index),
            }
            made.add(owned_by(make_pod(f"w-{part}-{index}", labels=labels), child))
    made.schedule()
    ranks = {pod.name: pod.rank for pod in made.snapshot.living.values()}
    assert ranks == {"w-0-0": 0, "w-0-1": 1, "w-1-0": 2, "w-1-1": 3, "w-2-0": 4, "w-2-1": 5}


def test_workers_stay_in_the_group_of_a_leader_that_is_gone_before_them() -> None:
    made = cluster(8)
    group = {"size": 2, "workerTemplate": TEMPLATE}
    owner = make_object(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "l"},
            "spec": {"replicas": 1, "leaderWorkerTemplate": group},
        }
    )
    parent = add(made, owner)
    labels = {f"{LWS}/name": "l", f"{LWS}/group-index": "0"}

    def stateful_set(name: str) -> ApiObject:
        template = {**TEMPLATE, "metadata": {"labels": labels}}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        queue = {"kueue.x-k8s.io/queue-name": "lq"}
        meta = {"name": name, "labels": queue}
        return make_object(
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec}
        )

    leaders = add(made, owned_by(stateful_set("l"), parent))
    lead = make_pod("l-0", labels={**labels, f"{LWS}/worker-index": "0"})
    leader = add(made, owned_by(lead, leaders))
    workers = add(made, owned_by(stateful_set("l-0"), leader))
    worker = owned_by(make_pod("l-0-1", labels={**labels, f"{LWS}/worker-index": "1"}), workers)
    made.add(worker)
    before = made.snapshot.living["default/l-0-1"]
    assert before.gang == "default/LeaderWorkerSet:l:0"
    made.remove("l-0")
    found = made.api.get(type(worker), "default/l-0-1")
    assert found is not None
    made.api.update(replace(found, metadata=replace(found.metadata, annotations={"a": "b"})))
    made.schedule()
    after = made.snapshot.living["default/l-0-1"]
    assert (after.gang, after.part) == (before.gang, before.part)


@pytest.mark.parametrize("value", ["0", "many"])
def test_a_number_of_jobs_that_is_none_holds_a_job_set(value: str) -> None:
    made = cluster(4)
    start(made, job_set(COUNTS, annotations={KAI_LEAST: value}), COUNTS)
    assert made.schedule() == {}
    assert f'{KAI_LEAST}: expected a whole number of 1 or more, got "{value}"' in made.message(
        "driver-0"
    )


@pytest.mark.parametrize(
    ("kind", "specs", "roles", "told"),
    [
        ("TFJob", "tfReplicaSpecs", {"PS": 0, "Worker": 1}, "PS.replicas: expected 1 or more"),
        ("XGBoostJob", "xgbReplicaSpecs", {"Master": 1}, "Worker.template: expected a template"),
    ],
)
def test_a_job_that_lacks_a_role_is_held_and_says_which(
    kind: str, specs: str, roles: dict[str, int], told: str
) -> None:
    replicas = {role: {"replicas": n, "template": TEMPLATE} for role, n in roles.items()}
    content = {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": "j"}}
    made = cluster(4)
    owner = add(made, make_object({**content, "spec": {specs: replicas}}))
    (pod,) = make_pods_of(owner)
    made.add(pod)
    assert made.schedule() == {}
    assert told in made.message(pod.metadata.name)
