"""The workload controllers of the embedded cluster, and which one reacts to which change.

They name, label, replace and roll out pods as kube-controller-manager does, as far as a scheduler
and its users can see.
"""

from __future__ import annotations

from bayplan.api import (
    AiElasticJob,
    DaemonSet,
    Deployment,
    ElasticJob,
    Job,
    JobSet,
    Node,
    ObjectMeta,
    OwnerReference,
    Pod,
    PyTorchJob,
    RayCluster,
    RayJob,
    ReplicaSet,
    StatefulSet,
)
from bayplan.api.operated import (
    ClusterTrainingRuntime,
    OperatedObject,
    RayService,
    TrainingRuntime,
    TrainJob,
    Workflow,
)
from bayplan.cluster.embedded.children import Child, Children, Operated, Owner
from bayplan.cluster.embedded.crash_loops import CrashLoops
from bayplan.cluster.embedded.daemonsets import DaemonSetController
from bayplan.cluster.embedded.deployments import DeploymentController
from bayplan.cluster.embedded.elastic_jobs import ElasticJobController
from bayplan.cluster.embedded.jobs import JobController
from bayplan.cluster.embedded.jobsets import JobSetController, set_of
from bayplan.cluster.embedded.made_objects import MadeObjectsController
from bayplan.cluster.embedded.object_sets import ObjectSetsController, holder
from bayplan.cluster.embedded.operated_pods import OperatedPodsController, operated
from bayplan.cluster.embedded.pytorch_jobs import PyTorchJobController
from bayplan.cluster.embedded.ray_clusters import RayClusterController
from bayplan.cluster.embedded.ray_jobs import RayJobController
from bayplan.cluster.embedded.replicasets import ReplicaSetController
from bayplan.cluster.embedded.statefulsets import StatefulSetController
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.embedded.workflows import WorkflowController
from bayplan.cluster.protocol import WatchEvent, WatchType

__all__ = ["WorkloadControllers"]

_KINDS: dict[str, type[Owner | Operated]] = {
    "Job": Job,
    "ReplicaSet": ReplicaSet,
    "StatefulSet": StatefulSet,
    "Deployment": Deployment,
    "DaemonSet": DaemonSet,
    "JobSet": JobSet,
    "PyTorchJob": PyTorchJob,
    "RayJob": RayJob,
    "RayCluster": RayCluster,
    "RayService": RayService,
    "TrainJob": TrainJob,
    "Workflow": Workflow,
    "ElasticJob": ElasticJob,
}
_GROUPS = (
    "apps",
    "argoproj.io",
    "batch",
    "bayplan.dev",
    "jobset.x-k8s.io",
    "kubeflow.org",
    "ray.io",
    "trainer.kubeflow.org",
)


class WorkloadControllers:
    """Creates, replaces and rolls out the pods of all workloads."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._children = Children(cluster)
        self._jobs = JobController(cluster, self._children)
        self._replica_sets = ReplicaSetController(cluster, self._children)
        self._stateful_sets = StatefulSetController(cluster, self._children)
        self._daemon_sets = DaemonSetController(cluster, self._children)
        self._deployments = DeploymentController(cluster, self._children)
        self._job_sets = JobSetController(cluster, self._children)
        self._pytorch_jobs = PyTorchJobController(cluster, self._children)
        self._ray_jobs = RayJobController(cluster, self._children)
        self._ray_clusters = RayClusterController(cluster, self._children)
        self._operated_pods = OperatedPodsController(cluster, self._children)
        self._made_objects = MadeObjectsController(cluster, self._children)
        self._object_sets = ObjectSetsController(cluster, self._children)
        self._workflows = WorkflowController(cluster, self._children)
        self._elastic_jobs = ElasticJobController(cluster, self._children)
        self._crash_loops = CrashLoops(cluster)
        self._dirty: dict[str, tuple[type[Owner | Operated], str]] = {}
        self._alarms: dict[str, float] = {}
        self._met: set[str] = set()
        self._nodes: dict[str, object] = {}
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Reconcile a workload after it or one of its objects changed."""
        obj, gone = event.obj, event.type is WatchType.DELETED
        if isinstance(obj, Node):
            self._node_changed(obj, gone)
        if isinstance(obj, TrainingRuntime | ClusterTrainingRuntime):
            for job in self._made_objects.runtime_changed():
                self._request(TrainJob, self._cluster.key_of(job), job.metadata.uid)
            return
        if isinstance(obj, Pod) and gone:
            self._request_job_set(obj)
        if isinstance(obj, Child):
            owner = self._children.changed(obj, gone)
            if owner is not None:
                self._crash_loops.see(owner, obj, gone)
                self._request_owner(owner, obj.metadata)
        if isinstance(obj, Owner | Operated):
            if gone:
                self._delete_children(obj)
            else:
                self._request(type(obj), self._cluster.key_of(obj), obj.metadata.uid)

    def _request_job_set(self, pod: Pod) -> None:
        """Reconcile the job set that may wait for a pod of its last attempt to go."""
        place = set_of(pod)
        if place is not None:
            self._request(JobSet, *place)

    def _node_changed(self, node: Node, gone: bool) -> None:
        """Reconcile all DaemonSets when a node's labels or taints changed."""
        matters = None if gone else (node.metadata.labels, node.spec.taints)
        if self._nodes.get(node.metadata.name) == matters:
            return
        self._nodes[node.metadata.name] = matters
        for owner in self._cluster.list(DaemonSet):
            self._request(DaemonSet, self._cluster.key_of(owner), owner.metadata.uid)

    def _request_owner(self, owner: OwnerReference, meta: ObjectMeta) -> None:
        group = owner.api_version.partition("/")[0]
        kind = _KINDS.get(owner.kind)
        if group == "ai.example.com" and kind is ElasticJob:
            kind = AiElasticJob
        elif kind is None or (group and group not in _GROUPS):
            kind = operated(group, owner.kind) or holder(group, owner.kind)
        if kind is not None:
            self._request(kind, f"{meta.namespace}/{owner.name}", owner.uid)

    def _request(self, kind: type[Owner | Operated], key: str, uid: str) -> None:
        """Reconcile a workload after all events of this instant, or once its crash loop lets it."""
        until = self._crash_loops.until(uid)
        if until > self._cluster.now:
            self._look_at(kind, key, uid, until, self._crash_loops.is_hopeless(uid))
            return
        if not self._dirty:
            self._cluster.clock.call_later(0, self._reconcile_all)
        self._dirty[uid] = (kind, key)

    def _reconcile_all(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for uid, (kind, key) in dirty.items():
            owner = self._cluster.get(kind, key)
            if owner is not None and owner.metadata.uid == uid:
                if owner.metadata.deletion_timestamp is None:
                    if isinstance(owner, Operated):
                        self._operate(owner, key)
                    else:
                        self._reconcile(owner, key)

    def _operate(self, owner: Operated, key: str) -> None:
        """Reconcile an object of a kind that an operator brings."""
        if isinstance(owner, JobSet):
            self._job_sets.reconcile(owner)
        elif isinstance(owner, PyTorchJob):
            self._pytorch_jobs.reconcile(owner)
        elif isinstance(owner, RayCluster):
            self._ray_clusters.reconcile(owner)
        elif isinstance(owner, ElasticJob):
            self._elastic_jobs.reconcile(owner)
        elif isinstance(owner, TrainJob | RayService):
            self._made_objects.reconcile(owner)
        elif isinstance(owner, Workflow):
            self._workflows.reconcile(owner)
        elif isinstance(owner, ObjectSetsController.types):
            self._object_sets.reconcile(owner)
        elif isinstance(owner, OperatedObject):
            self._operated_pods.reconcile(owner)
        else:
            again = self._ray_jobs.reconcile(owner)
            if again is not None:
                self._look_at(type(owner), key, owner.metadata.uid, again, False)

    def _reconcile(self, owner: Owner, key: str) -> None:
        if owner.metadata.uid not in self._met:
            self._met.add(owner.metadata.uid)
            self._children.adopt(owner)
        again: float | None = None
        idle = False
        if isinstance(owner, Deployment):
            # A missed progress deadline only sets a condition.
            again, idle = self._deployments.reconcile(owner), True
        elif isinstance(owner, Job):
            self._jobs.reconcile(owner)
        elif isinstance(owner, ReplicaSet):
            again = self._replica_sets.reconcile(owner)
        elif isinstance(owner, DaemonSet):
            again = self._daemon_sets.reconcile(owner)
            idle = self._daemon_sets.is_hopeless(owner)
        else:
            again = self._stateful_sets.reconcile(owner)
        if again is not None:
            self._look_at(type(owner), key, owner.metadata.uid, again, idle)

    def _look_at(
        self, kind: type[Owner | Operated], key: str, uid: str, at: float, idle: bool
    ) -> None:
        """Reconcile a workload again at a time; equal requests are merged."""
        if self._alarms.get(uid) == at:
            return
        self._alarms[uid] = at

        def look() -> None:
            if self._alarms.get(uid) == at:
                del self._alarms[uid]
                self._request(kind, key, uid)

        self._cluster.clock.call_at(at, look, idle)

    def _delete_children(self, owner: Owner | Operated) -> None:
        """Delete the objects of a deleted workload."""
        self._alarms.pop(owner.metadata.uid, None)
        self._met.discard(owner.metadata.uid)
        self._crash_loops.forget(owner.metadata.uid)
        if isinstance(owner, Job):
            self._jobs.forget(owner)
        elif isinstance(owner, ElasticJob):
            self._elastic_jobs.forget(owner)
        elif isinstance(owner, PyTorchJob):
            self._pytorch_jobs.delete_group(owner)
        for child in self._children.all(owner):
            if child.metadata.deletion_timestamp is None:
                self._cluster.delete(type(child), self._cluster.key_of(child))
