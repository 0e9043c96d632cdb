"""Stories with Kueue's manager, and with bayplan in its place: what a user does, and notices.

One control plane has all of them; each has a namespace, nodes, flavors and queues of its own.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.apiserver.faces import node
from tests.controlplane.installation import path_of
from tests.controlplane.live_cluster import Content
from tests.controlplane.plane import wait_until
from tests.controlplane.queue_builders import KUEUE, suspended_job
from tests.controlplane.story_builders import asking
from tests.peers.real_peers import SCHEDULER, Peers

__all__ = ["QUEUE", "Story", "admission", "condition", "quota", "story_of"]

QUEUE = "kueue.x-k8s.io/queue-name"
MANAGER = "Kueue's manager"
"""In what the log says of who admits."""
_STORY, _FLAVOR = "example.com/story", "example.com/flavor"
"""Labels of nodes."""
PRIORITY = "kueue.x-k8s.io/priority-class"
SECONDS = 60.0
"""After so long a wait is given up."""
_PREFIX = "story-"
_LONG_AGO = "2026-01-01T00:00:00Z"
_NAMESPACES = "/api/v1/namespaces"
_numbers = itertools.count()


@contextmanager
def admission(
    who: str, peers: Peers, folder: Path, others: Sequence[str] = (), **settings: Any
) -> Iterator[Peers]:
    """Have Kueue's manager or bayplan admit; bayplan places.

    :param others: controllers of other projects that run, too.
    :param settings: what both have in their configurations.
    """
    with ExitStack() as stack:
        # What a finalizer keeps would hold back whoever admits next.
        stack.callback(peers.cluster.clear)
        stack.enter_context(peers.running(*others))
        plugins = {"Queues": {"kueue": settings}} if settings else {}
        stack.enter_context(peers.scheduler(folder, expected=MANAGER, plugins=plugins))
        if who == "kueue":
            stack.enter_context(peers.running("kueue", KUEUE_CONFIG=_config(settings)))
        elif peers.cluster.client.get(f"/apis/{KUEUE}/workloads").code != 200:
            peers.define("kueue.x-k8s.io_*")
        stack.callback(_end, peers)
        yield peers


def _config(settings: Mapping[str, Any]) -> str:
    """Return the lines of Kueue's Configuration that say the same as arguments of bayplan."""
    found = dict(settings)
    rules = found.pop("preemptionStrategies", None)
    if found.pop("fairSharing", False):
        found["fairSharing"] = {"preemptionStrategies": rules}
    return "\n".join(f"{name}: {json.dumps(one)}" for name, one in found.items())


def _end(peers: Peers) -> None:
    """Let those who run clear up what the stories have deleted."""

    def is_over() -> bool:
        names = peers.cluster.client.names(_NAMESPACES)
        left = [name for name in names if name.startswith(_PREFIX)]
        for name in left:
            _let_pods_go(peers, f"{_NAMESPACES}/{name}/pods")
        return not left

    peers.wait(is_over, "no story is left")


def _let_pods_go(peers: Peers, path: str) -> None:
    """Take the finalizer from pods of groups whose Workload went before them."""
    for pod in peers.cluster.items(path):
        if "kueue.x-k8s.io/managed" in pod["metadata"].get("finalizers", ()):
            one = f"{path}/{pod['metadata']['name']}"
            peers.cluster.client.patch(one, {"metadata": {"finalizers": None}})


@contextmanager
def story_of(peers: Peers) -> Iterator[Story]:
    """Tell a story in a namespace of its own."""
    story = Story(peers, f"{_PREFIX}{next(_numbers)}")
    story.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": story.name}})
    try:
        yield story
    finally:
        story.end()


def quota(flavor: str, cpu: int, **limits: int) -> Content:
    """Return the quota of a flavor of a queue, in cores.

    :param limits: its ``borrowingLimit`` and ``lendingLimit``.
    """
    amounts = {name: str(one) for name, one in limits.items()}
    return {"name": flavor, "resources": [{"name": "cpu", "nominalQuota": str(cpu), **amounts}]}


class Story:
    """A namespace with queues, whose flavors have nodes of their own.

    What has no namespace is called by the name of the story and its own.
    """

    def __init__(self, peers: Peers, name: str) -> None:
        self._peers = peers
        self.client = peers.cluster.client
        self.name = name
        self._made: list[Content] = []
        self._jobs: set[str] = set()
        self._silent: set[str] = set()

    def add(self, *contents: Content) -> None:
        """Create objects; admission may learn a moment later of what they name."""
        for content in contents:
            path = path_of(content, name=False)

            def made(path: str = path, content: Content = content) -> bool:
                answer = self.client.post(path, content, fieldValidation="Strict")
                assert answer.code in (201, 403, 404, 500), answer
                return answer.code == 201

            self.wait(made, f"{path} takes {content['metadata']['name']}")
            if content["metadata"].get("labels", {}).get(QUEUE):
                self._jobs.add(path)
            if "namespace" not in content["metadata"]:
                self._made.append(content)
                if content["kind"] != "Namespace":
                    self._peers.cluster.used(content)

    def end(self) -> None:
        """Delete it all."""
        self._peers.kubelet.silent -= self._silent
        # Of a job that is there a Workload would be made again, in a namespace that goes.
        for kind in self._jobs:
            self.client.delete(kind, propagationPolicy="Background")
        for content in self._made:
            self.client.delete(path_of(content), propagationPolicy="Background")

    # Queues ------------------------------------------------------------------------------

    def of(self, name: str) -> str:
        """Return what an object without a namespace is called."""
        return f"{self.name}-{name}"

    def head(self, kind: str, name: str, namespaced: bool = False) -> Content:
        """Return an object of Kueue's, without a spec."""
        meta = {"name": name, "namespace": self.name} if namespaced else {"name": self.of(name)}
        return {"apiVersion": KUEUE, "kind": kind, "metadata": meta}

    def silence(self, *nodes: str) -> None:
        """Let the kubelets of nodes do nothing until the story ends."""
        self._silent.update(nodes)
        self._peers.kubelet.silent.update(nodes)

    def own(self, quota: Content) -> Content:
        """Return the quota of a flavor of this story."""
        return quota | {"name": self.of(quota["name"])}

    def labels(self, flavor: str) -> Mapping[str, str]:
        """Return the labels of a flavor's nodes."""
        return {_STORY: self.name, _FLAVOR: flavor}

    def flavor(self, name: str = "main", count: int = 2, **spec: Any) -> None:
        """Create a flavor and its nodes, of eight cores each."""
        spec = {"nodeLabels": self.labels(name), **spec}
        self.add(self.head("ResourceFlavor", name) | {"spec": spec})
        self.nodes(name, count)

    def nodes(self, flavor: str, count: int, **labels: str) -> list[str]:
        """Create nodes of a flavor; return their names."""
        names = [self.of(f"{flavor}-{next(_numbers)}") for _ in range(count)]
        for name in names:
            own = {"kubernetes.io/hostname": name, **self.labels(flavor), **labels}
            self.add(node(name, **own))
        return names

    def has(self, node: str, amounts: Mapping[str, str]) -> None:
        """Say what else a node has, as a device plugin does."""
        path = path_of({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        body = {"status": {"capacity": amounts, "allocatable": amounts}}
        self.changed(f"{path}/status", body)

    def queue(self, name: str, *quotas: Content, **spec: Any) -> None:
        """Create a ClusterQueue and its LocalQueue; by default it has six cores of ``main``."""
        flavors = [self.own(one) for one in quotas or (quota("main", 6),)]
        covered = [one["name"] for one in flavors[0]["resources"]]
        groups = [{"coveredResources": covered, "flavors": flavors}]
        if "cohortName" in spec:
            spec["cohortName"] = self.of(spec["cohortName"])
        given = {"namespaceSelector": {}, "resourceGroups": groups, **spec}
        self.add(
            self.head("ClusterQueue", name) | {"spec": given},
            self.head("LocalQueue", name, True) | {"spec": {"clusterQueue": self.of(name)}},
        )

    def priority(self, name: str, value: int) -> None:
        """Create a WorkloadPriorityClass."""
        self.add(self.head("WorkloadPriorityClass", name) | {"value": value})

    def topology(self, name: str, *levels: str) -> None:
        """Create a Topology of labels of nodes, the innermost of which is the host's name."""
        named = [{"nodeLabel": one} for one in (*levels, "kubernetes.io/hostname")]
        self.add(self.head("Topology", name) | {"spec": {"levels": named}})

    def check_kind(self, name: str, active: bool = True) -> None:
        """Create an AdmissionCheck of a controller that does what a story says."""
        spec = {"controllerName": "example.com/checks"}
        self.add(self.head("AdmissionCheck", name) | {"spec": spec})
        if active:
            self.activate(name)

    def activate(self, name: str) -> None:
        """Say that the controller of a check works."""
        stated = {"type": "Active", "status": "True", "reason": "R", "message": ""}
        path = f"{path_of(self.head('AdmissionCheck', name))}/status"
        self.changed(
            path, {"status": {"conditions": [{**stated, "lastTransitionTime": _LONG_AGO}]}}
        )

    def cluster_queue(self, name: str) -> Content:
        """Return a ClusterQueue as it is."""
        return self._get(self.head("ClusterQueue", name))

    def local_queue(self, name: str) -> Content:
        """Return a LocalQueue as it is."""
        return self._get(self.head("LocalQueue", name, True))

    def change(self, kind: str, name: str, body: Content) -> None:
        """Patch an object of Kueue's."""
        content = self.head(kind, name, kind in ("LocalQueue", "Workload"))
        self.changed(path_of(content), body)

    def changed(self, path: str, body: Content) -> None:
        """Patch an object."""
        answer = self.client.patch(path, body)
        assert answer.code == 200, answer

    def _get(self, content: Content) -> Content:
        found: Content = self.client.get(path_of(content)).json
        return found

    # Jobs --------------------------------------------------------------------------------

    def job(self, name: str, queue: str, count: int, **more: Any) -> Content:
        """Create a suspended job of pods of a core.

        :param more: the name of its ``priority`` class; its ``annotations`` and ``labels``; of its
            template, the ``notes`` (annotations), what else a container ``requests``, and what
            else its spec says.
        """
        (made,) = suspended_job(name, queue, count)
        made["metadata"]["namespace"] = self.name
        labels = made["metadata"]["labels"] | more.pop("labels", {})
        if "priority" in more:
            labels[PRIORITY] = self.of(more.pop("priority"))
        made["metadata"] |= {"labels": labels, "annotations": more.pop("annotations", {})}
        template = made["spec"]["template"]
        template["metadata"] = {"annotations": more.pop("notes", {})}
        resources = template["spec"]["containers"][0]["resources"]
        resources["limits"] = more.pop("requests", {})
        resources["requests"] |= resources["limits"]
        template["spec"] |= more
        self.add(made)
        return made

    def group(self, name: str, queue: str, count: int, total: int = 0, first: int = 0) -> None:
        """Create pods of a group, of a core each.

        :param total: how many pods the group has; by default all of them are created.
        :param first: the index of the first.
        """
        for index in range(first, first + count):
            pod = asking(f"{name}-{index}", schedulerName=SCHEDULER, restartPolicy="Never")
            pod["metadata"] |= {
                "namespace": self.name,
                "labels": {QUEUE: queue, "kueue.x-k8s.io/pod-group-name": name},
                "annotations": {"kueue.x-k8s.io/pod-group-total-count": str(total or count)},
            }
            self.add(pod)

    def of_group(self, name: str) -> list[Content]:
        """Return the pods of a group that have nodes."""
        return self.pods_of(name, "kueue.x-k8s.io/pod-group-name")

    def label(self, job: str, **labels: str) -> None:
        """Label a job."""
        self.changed(self.job_path(job), {"metadata": {"labels": labels}})

    def job_path(self, name: str) -> str:
        """Return the path of a job."""
        return f"/apis/batch/v1/namespaces/{self.name}/jobs/{name}"

    def object(self, path: str) -> Content:
        """Return an object by its path."""
        found: Content = self.client.get(path).json
        return found

    @property
    def pods(self) -> list[Content]:
        """The pods of the namespace."""
        return self._peers.cluster.items(f"/api/v1/namespaces/{self.name}/pods")

    def pods_of(self, name: str, label: str = "batch.kubernetes.io/job-name") -> list[Content]:
        """Return the pods of a job that have nodes."""
        return [
            pod
            for pod in self.pods
            if pod["metadata"].get("labels", {}).get(label) == name and "nodeName" in pod["spec"]
        ]

    def placed(self, name: str) -> int:
        """Return how many pods of a job have nodes."""
        return len(self.pods_of(name))

    def flavors_of(self, name: str) -> set[str]:
        """Return the flavors of the nodes that a job's pods have."""
        nodes = {pod["spec"]["nodeName"] for pod in self.pods_of(name)}
        return {one.removeprefix(f"{self.name}-").rpartition("-")[0] for one in nodes}

    def succeed(self, pods: Sequence[Content]) -> None:
        """Let pods end well, once they run."""
        for pod in pods:
            path = f"/api/v1/namespaces/{self.name}/pods/{pod['metadata']['name']}"

            def runs(path: str = path) -> bool:
                return bool(self.object(path)["status"]["phase"] != "Pending")

            self.wait(runs, f"{path} runs")
            self.changed(f"{path}/status", {"status": {"phase": "Succeeded"}})

    def finish(self, name: str) -> None:
        """Let all pods of a job succeed."""
        self.succeed(self.pods_of(name))

    # Workloads ---------------------------------------------------------------------------

    def workloads(self) -> dict[str, Content]:
        """Return the Workloads by their owners, the newest of each; by name without one."""
        path = path_of(self.head("Workload", "any", True), name=False)
        items = self._peers.cluster.items(path)
        items.sort(key=lambda one: (one["metadata"]["creationTimestamp"], _replaces(one)))
        return {name: one for one in items for name in _owners(one)}

    def slices(self, owner: str) -> list[Content]:
        """Return all Workloads of a job."""
        path = path_of(self.head("Workload", "any", True), name=False)
        return [one for one in self._peers.cluster.items(path) if owner in _owners(one)]

    def workload(self, owner: str) -> Content:
        """Return the Workload of a job, or nothing."""
        return self.workloads().get(owner, {"metadata": {}, "spec": {}, "status": {}})

    def condition(self, owner: str, type_: str) -> tuple[str, str, str]:
        """Return status, reason and message of a condition of a Workload; "" without it."""
        return condition(self.workload(owner), type_)

    def reason(self, owner: str, type_: str = "QuotaReserved") -> tuple[str, str]:
        """Return status and reason of a condition of a Workload."""
        return self.condition(owner, type_)[:2]

    def assigned(self, owner: str) -> list[tuple[str, int, Mapping[str, str]]]:
        """Return name, count and flavors of the pod sets of a Workload with quota."""
        admission = self.workload(owner).get("status", {}).get("admission", {})
        return [
            (
                one["name"],
                one["count"],
                {
                    name: flavor.removeprefix(f"{self.name}-")
                    for name, flavor in one.get("flavors", {}).items()
                },
            )
            for one in admission.get("podSetAssignments", ())
        ]

    def count(self, owner: str) -> int:
        """Return how many pods a Workload is for."""
        return sum(one["count"] for one in self.workload(owner)["spec"]["podSets"])

    def set_active(self, owner: str, active: bool) -> None:
        """Say whether a Workload may run."""
        name = self.workload(owner)["metadata"]["name"]
        self.change("Workload", name, {"spec": {"active": active}})

    def check(self, owner: str, name: str, state: str, **more: Any) -> None:
        """Say what an admission check has found, as its controller does."""
        found = self.workload(owner)
        stated = {"name": self.of(name), "state": state, "message": "", **more}
        stated["lastTransitionTime"] = _LONG_AGO
        path = f"{path_of(self.head('Workload', found['metadata']['name'], True))}/status"
        self.changed(path, {"status": {"admissionChecks": [stated]}})

    def checks(self, owner: str) -> dict[str, str]:
        """Return the states of the admission checks of a Workload."""
        stated = self.workload(owner).get("status", {}).get("admissionChecks", ())
        return {one["name"].removeprefix(f"{self.name}-"): one["state"] for one in stated}

    def evictions(self, owner: str) -> list[tuple[str, str, int]]:
        """Return why, with its cause, and how often a Workload was evicted."""
        stats = self.workload(owner).get("status", {}).get("schedulingStats", {})
        return [
            (one["reason"], one.get("underlyingCause", ""), one["count"])
            for one in stats.get("evictions", ())
        ]

    def events(self, name: str) -> list[str]:
        """Return the reasons of the events of an object, in order of their times."""
        items = self._peers.cluster.items(f"/api/v1/namespaces/{self.name}/events")
        return [one["reason"] for one in items if one["involvedObject"]["name"] == name]

    # Waiting -----------------------------------------------------------------------------

    def wait(self, true: Callable[[], Any], what: str) -> None:
        """Wait until a condition holds; shows what there is where it does not."""
        try:
            wait_until(true, what, SECONDS)
        except TimeoutError as exc:
            raise AssertionError(f"{exc}\n{self._shown()}") from None

    def wait_for_pods(self, **counts: int) -> None:
        """Wait until jobs have so many pods on nodes."""
        for name, count in counts.items():
            self.wait(lambda name=name, count=count: self.placed(name) == count, f"{name} {count}")

    def wait_for(self, owner: str, status: str, reason: str, type_: str = "QuotaReserved") -> None:
        """Wait until a condition of a Workload has a status and a reason."""
        stated = (status, reason)
        self.wait(lambda: self.reason(owner, type_) == stated, f"{owner}: {type_} is {stated}")

    @staticmethod
    def next_second() -> None:
        """Wait until what is created is newer than what there is."""
        time.sleep(1.1)

    def _shown(self) -> str:
        lines = [
            f"{owner}: {json.dumps(one['spec'].get('active'))} {json.dumps(one.get('status'))}"
            for owner, one in self.workloads().items()
        ]
        lines += [
            f"{one['metadata']['name']} {one['spec'].get('nodeName')} {one['status']}"
            for one in self.pods
        ]
        items = self._peers.cluster.items(f"/api/v1/namespaces/{self.name}/events")
        lines += [
            f"{one['involvedObject']['name']} {one['reason']}: {one['message']}" for one in items
        ]
        return "\n".join(lines)


def condition(content: Content, type_: str) -> tuple[str, str, str]:
    """Return status, reason and message of a condition of an object; "" without it."""
    for one in content.get("status", {}).get("conditions", ()):
        if one["type"] == type_:
            return one["status"], one["reason"], one["message"]
    return "", "", ""


def _owners(workload: Content) -> list[str]:
    meta = workload["metadata"]
    return [one["name"] for one in meta.get("ownerReferences", ())] or [meta["name"]]


def _replaces(workload: Content) -> bool:
    annotations = workload["metadata"].get("annotations", {})
    return "kueue.x-k8s.io/workload-slice-replacement-for" in annotations
