"""GPUTopology: which GPUs of a node a pod gets, and which node can give the best ones now.

:mod:`bayplan_plugins.gpus` knows who holds which GPU, :mod:`.selection` selects, and
:mod:`.job_limits` looks at the job's nodes together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec.structs import replace

from bayplan import (
    NOTES,
    SKIP,
    Args,
    ClusterEvent,
    CycleState,
    Handle,
    NodeRow,
    NodeView,
    Normalize,
    Plugin,
    PodInfo,
    Preparation,
    Reads,
    Refusal,
    Reject,
    Remedy,
    StateKey,
    hookimpl,
)
from bayplan.api.dra import Device, DeviceId
from bayplan.cluster.protocol import PutConfigMap
from bayplan.naming import counted, listed
from bayplan.plugin.devices import NodeDevices
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan.topology.machine.gpu_search import NO_CONSTRAINTS
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.select import RING, NoSelection, Selection, select_first
from bayplan_plugins.gpu_topology.advice import GpuAdvice
from bayplan_plugins.gpu_topology.annotations import RELAXED, gpu_annotations, selection_notes
from bayplan_plugins.gpu_topology.job_limits import JobLimits
from bayplan_plugins.gpu_topology.requests import (
    PodGpuRequest,
    asks_more_than_a_number,
    claim_request_of,
    has_hard_constraints,
    pod_request_of,
)
from bayplan_plugins.gpu_topology.selection import NOT_KNOWN, GpuSelector
from bayplan_plugins.gpus.claims import gpu_of_device
from bayplan_plugins.gpus.ledger import UNKNOWN, GpuLedger
from bayplan_plugins.gpus.whole_gpus import GpuState
from bayplan_plugins.numa.ledger import NumaLedger

if TYPE_CHECKING:
    from bayplan.nccl import Member

__all__ = ["GPUTopology", "GPUTopologyArgs"]

_CHOSEN: StateKey[Selection] = StateKey("gpu-topology.chosen")
_MOST_REQUESTS = 8192
_MOST_LISTED = 8
_GIVEN_UP: StateKey[str] = StateKey("gpu-topology.given-up")


class GPUTopologyArgs(Args):
    """Arguments of GPUTopology.

    ``nccl`` says where NCCL's environment is written: nowhere, into the pod's annotations, or into
    a ConfigMap ``<pod>-nccl``.
    """

    nccl: Literal["none", "annotations", "configMap"] = "none"


class GPUTopology(Plugin[GPUTopologyArgs]):
    """Choose the GPUs behind ``nvidia.com/gpu``, and prefer nodes that can give the best ones."""

    Args = GPUTopologyArgs
    reads = Reads.NODE | Reads.PODS
    normalize_scores = Normalize.MAX
    requeue_on = ClusterEvent.NODE | ClusterEvent.POD_REMOVED | ClusterEvent.OBJECT_CHANGED

    def __init__(self, args: GPUTopologyArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._ledger = handle.snapshot.shared(GpuLedger, GpuLedger)
        numa = handle.snapshot.shared(NumaLedger, NumaLedger)
        self._selector = GpuSelector(self._ledger, numa)
        self._limits = JobLimits(self._ledger)
        self._advice = GpuAdvice(self._ledger, self._selector, self._limits)
        self._requests: dict[int, PodGpuRequest | None] = {}
        self._count: Callable[[bool, bool, bool], None] | None = None

    def _request_of(self, pod: PodInfo) -> PodGpuRequest | None:
        """Return what a pod requests; kept, as most hooks ask for it."""
        try:
            return self._requests[pod.serial]
        except KeyError:
            if len(self._requests) >= _MOST_REQUESTS:
                self._requests.clear()
            found = self._requests[pod.serial] = pod_request_of(pod)
            return found

    def _tells_nodes_apart(self, request: PodGpuRequest) -> bool:
        """Tell whether nodes may differ: some machine is known, or more than a number is asked."""
        return self._ledger.any_machine() or asks_more_than_a_number(request.options)

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods that request GPUs, and pods of claims whose annotations may ask for more."""
        if not pod.facts.wants_devices:
            return False
        return bool(pod.annotations) or any("/" in name for name in pod.requests)

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the request, and by where the job's other pods are if that matters."""
        request = self._request_of(pod)
        if request is None:
            return claim_request_of(pod)
        if not self._tells_nodes_apart(request):
            return None
        used = self._limits.nodes(pod, request)
        job = frozenset(used.items()) if used else None
        attempts = self._selector.attempts(pod, request)
        return (request.of_any_job, job, attempts, self._selector.is_aligned())

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods to whom all nodes are alike; refuse annotations that cannot be read."""
        if not pod.facts.wants_devices:
            return SKIP
        request = self._request_of(pod)
        if request is None:
            of_claims = claim_request_of(pod)
            return of_claims.problem if of_claims is not None and of_claims.problem else SKIP
        if not self._tells_nodes_apart(request):
            return SKIP
        return request.options.problem or None

    # Which nodes -----------------------------------------------------------------------------

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes without a set of GPUs that meets the request, then by the job's limits."""
        request = self._request_of(pod)
        assert request is not None, "skipped"
        attempts = self._selector.attempts(pod, request)
        masks: dict[tuple[str, bool], BoolColumn] = {}
        for state, mask in self._selector.states(pod, request, nodes):
            refusal = self._selector.refusal(state, attempts, request)
            if refusal is not None:
                key = (refusal.reasons[0], refusal.resolvable)
                masks[key] = masks[key] | mask if key in masks else mask
        for (reason, resolvable), mask in masks.items():
            yield Reject(mask, reason, resolvable)
        yield from self._limits.rejects(pod, request, nodes)

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> Refusal | None:
        """Say why one node is refused."""
        request = self._request_of(pod)
        assert request is not None, "skipped"
        state = self._selector.state_at(pod, request, node)
        refusal = self._selector.refusal(state, self._selector.attempts(pod, request), request)
        if refusal is not None:
            return refusal
        for reject in self._limits.rejects(pod, request, _one(node)):
            if reject.mask[0]:
                return Refusal((reject.reason,), reject.resolvable)
        return None

    @hookimpl
    def slots(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Divide the free GPUs by what one pod requests."""
        request = self._request_of(pod)
        most = np.full(len(nodes), np.iinfo(np.int64).max, dtype=np.int64)
        if request is None:
            return most
        codes = nodes.pick(self._ledger.whole_codes())
        for code in np.unique(codes).tolist():
            if code != UNKNOWN:
                most[codes == code] = len(self._ledger.whole_state(code).free) // request.count
        return most

    # Which node is best ----------------------------------------------------------------------

    @hookimpl
    def pre_score(self, pod: PodInfo) -> object:
        """Skip pods to whom all nodes are alike."""
        request = self._request_of(pod)
        return None if request is not None and self._tells_nodes_apart(request) else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Rate every node by the best set of GPUs that it can give now."""
        request = self._request_of(pod)
        assert request is not None, "skipped"
        attempts = self._selector.attempts(pod, request)
        scores = np.full(len(nodes), NOT_KNOWN)
        for state, mask in self._selector.states(pod, request, nodes):
            if state is not None:
                scores[mask] = self._selector.select(state, attempts).points
        return self._limits.scaled(pod, request, nodes, scores)

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        """Rate one node."""
        request = self._request_of(pod)
        assert request is not None, "skipped"
        state = self._selector.state_at(pod, request, node)
        points = NOT_KNOWN
        if state is not None:
            points = self._selector.select(state, self._selector.attempts(pod, request)).points
        if request.options.node_order is None:
            return points
        return float(self._limits.scaled(pod, request, _one(node), np.array([points]))[0])

    # GPUs of claims --------------------------------------------------------------------------

    @hookimpl
    def device_score(
        self,
        pod: PodInfo,
        node: NodeRow,
        chosen: Sequence[tuple[str, DeviceId]],
        devices: Mapping[DeviceId, Device],
    ) -> float | None:
        """Rate the GPUs that claims would get, if the pod's annotations ask anything of them."""
        options = claim_request_of(pod)
        if options is None:
            return None
        machine = self._ledger.machines.of(node.node)
        if isinstance(machine, str):
            return -math.inf if has_hard_constraints(options) else None
        found = (gpu_of_device(devices[one], one.driver, machine) for _, one in chosen)
        gpus = tuple(sorted({gpu for gpu in found if gpu is not None}))
        if not gpus:
            return None
        request = PodGpuRequest(len(gpus), replace(options, policy=RING))
        attempts = self._selector.attempts(pod, request)
        result = self._selector.select(GpuState(machine, gpus, gpus), attempts)
        return result.points if isinstance(result.found, Selection) else -math.inf

    # On the node -----------------------------------------------------------------------------

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
        """Give the pod its GPUs."""
        request = self._request_of(pod)
        if request is None:
            return None
        now = self._selector.state_of_node(pod, request, node.name)
        attempts = self._selector.attempts(pod, request)
        if now is None:
            asked = attempts[0].constraints
            if asked != NO_CONSTRAINTS:
                text = f"gave up: {asked}, as the node's GPU topology is not known"
                state[NOTES] = (text, *(state.get(NOTES) or ()))
                state[_GIVEN_UP] = str(asked)
            return None
        found = select_first(now.machine, now.free, attempts)
        if isinstance(found, NoSelection):
            return found.reason
        self._ledger.hold_gpus(pod, node.name, found.gpus)
        state[_CHOSEN] = found
        state[_GIVEN_UP] = found.relaxed
        state[NOTES] = (*selection_notes(found), *(state.get(NOTES) or ()))
        return None

    @hookimpl
    def permit(self, pod: PodInfo, node: NodeRow) -> str | None:
        """Refuse a job with too few GPUs on a node, once all of its pods have a node."""
        request = self._request_of(pod)
        least = request.options.min_gpus_per_node if request is not None else None
        if request is None or least is None:
            return None
        own = self._ledger.job_nodes(request.job).get(node.name, request.count)
        if own >= least:
            return None
        own_gpus = counted(own, "GPU")
        return f"{node.name} would have {own_gpus} of the job, fewer than its minimum of {least}."

    @hookimpl
    def unreserve(self, pod: PodInfo, node: NodeRow) -> None:
        """Release the pod's GPUs."""
        self._ledger.release(pod, node.name)

    @hookimpl
    def bind(self, pod: PodInfo, node: NodeRow, state: CycleState) -> dict[str, str] | None:
        """Write the pod's GPUs and their ring into its annotations."""
        found = state.get(_CHOSEN)
        gpus = self._ledger.whole(node.name)
        given_up = state.get(_GIVEN_UP)
        relaxed = {RELAXED: given_up} if given_up else {}
        if found is None or gpus is None:
            return relaxed or None
        if not self._ledger.holds_gpus(pod, node.name, found.gpus):
            # They went to another pod while this one waited for its binding.
            return relaxed or None
        written = gpu_annotations(gpus.machine, found) | relaxed
        if self.args.nccl == "annotations":
            # Loaded late: few profiles need it, and it takes time.
            from bayplan_plugins.gpu_topology.nccl import annotations_of

            written |= annotations_of(*self._job(pod, node.name, gpus.machine, found))
        return written

    @hookimpl
    def pre_bind(self, pod: PodInfo, node: NodeRow, state: CycleState) -> Preparation | None:
        """Place the pod again if it lost its GPUs; write NCCL's environment into a ConfigMap."""
        found = state.get(_CHOSEN)
        gpus = self._ledger.whole(node.name)
        if found is None or gpus is None:
            return None
        if not self._ledger.holds_gpus(pod, node.name, found.gpus):
            chosen = listed(map(str, found.gpus), _MOST_LISTED)
            lost = f"the GPUs {chosen} of {node.name}, chosen for it, are no longer its own"
            # A pod whose preparation fails is tried again without waiting for an event.
            return Preparation(ready=lambda: lost)
        if self.args.nccl != "configMap":
            return None
        from bayplan_plugins.gpu_topology.nccl import config_map_of

        made = config_map_of(pod, *self._job(pod, node.name, gpus.machine, found))
        return Preparation((PutConfigMap(made),))

    def _job(
        self, pod: PodInfo, node: str, machine: Machine, found: Selection
    ) -> tuple[Member, Sequence[Member], bool]:
        """Return the pod's GPUs, those of the job's other pods, and whether it spans nodes."""
        from bayplan.nccl import Member

        request = self._request_of(pod)
        job = request.job if request is not None else ""
        others = [
            Member(name, known, tuple(held))
            for name, known, held in (self._ledger.job_gpus(job, pod.uid) if job else ())
        ]
        spans = request is not None and request.multi_node
        return Member(node, machine, found.gpus), others, spans

    def declare_metrics(self) -> None:
        """Create the ``gpu_scheduler_*`` series."""
        from bayplan_plugins.gpu_topology import metrics

        self._count = metrics.gpus_chosen

    @hookimpl
    def post_bind(self, pod: PodInfo, node: NodeRow, state: CycleState) -> None:
        """Count whether the preferences were met, and whether the GPUs are on one NUMA node."""
        if self._count is None or self._request_of(pod) is None:
            return
        found = state.get(_CHOSEN)
        gpus = self._ledger.whole(node.name)
        nodes: set[int | None] = set()
        if found is not None and gpus is not None:
            nodes = {gpus.machine.numa_of[gpu] for gpu in found.gpus}
        same_numa = len(nodes) == 1 and None not in nodes
        self._count(not state.get(_GIVEN_UP), same_numa, found is not None)

    # What there is ---------------------------------------------------------------------------

    @hookimpl
    def node_devices(self, node: str) -> NodeDevices | None:
        """Tell the machine, and which GPUs its pods have."""
        return self._ledger.describe_machine(node)

    # When no node is left --------------------------------------------------------------------

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Suggest which requirement to drop, and which machines to describe."""
        request = self._request_of(pod)
        if request is None or request.options.problem:
            return ()
        return self._advice.remedies(pod, request, nodes)


def _one(node: NodeRow) -> NodeView:
    return NodeView(node.table, np.array([node.row], dtype=np.intp))
