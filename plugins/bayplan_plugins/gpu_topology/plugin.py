"""GPUTopology: which GPUs of a node a pod gets, and which node can give the best ones now."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

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
from bayplan.api.gpus import GPUS, GpuRequest
from bayplan.cluster.protocol import PutConfigMap
from bayplan.naming import counted
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan.topology.machine.gpu_search import NO_CONSTRAINTS, Constraints
from bayplan.topology.machine.levels import Level
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.select import (
    RING,
    NoSelection,
    Selection,
    SelectionRequest,
    select_first,
)
from bayplan_plugins.gpu_topology.claims import gpu_of_device
from bayplan_plugins.gpu_topology.ledger import UNKNOWN, GpuLedger, State
from bayplan_plugins.gpu_topology.machines import MACHINE
from bayplan_plugins.gpu_topology.requests import PodWish, claim_wish_of, wish_of
from bayplan_plugins.node_numa.ledger import UNALIGNED, NumaLedger

if TYPE_CHECKING:
    from bayplan.nccl import Member

__all__ = ["GPUTopology", "GPUTopologyArgs"]

CHOSEN: StateKey[Selection] = StateKey("gpu-topology.chosen")
GIVEN_UP: StateKey[str] = StateKey("gpu-topology.given-up")
_RING_ORDER = "gpu.topology/ring-order"
_BANDWIDTH = "gpu.topology/bandwidth"
_RELAXED = "gpu.topology/relaxed"
_NO_MACHINE = "node(s) whose GPU topology is not known"
_SINGLE = 1.0
"""The bandwidth that one GPU counts with: there is none to compare."""


class GPUTopologyArgs(Args):
    """Arguments of GPUTopology.

    ``nccl`` says where NCCL's environment for a pod goes: nowhere, into the pod's annotations, or
    into a ConfigMap named after the pod.
    """

    nccl: Literal["none", "annotations", "configMap"] = "none"


@dataclass(frozen=True)
class _Answer:
    """What a node in some state can give: a choice or a refusal, and how good it is."""

    found: Selection | NoSelection
    points: float = 0.0
    hopeless: bool = False


class GPUTopology(Plugin[GPUTopologyArgs]):
    """Choose GPUs for ``nvidia.com/gpu``, and nodes by what they can give."""

    Args = GPUTopologyArgs
    reads = Reads.NODE | Reads.PODS
    normalize_scores = Normalize.MAX
    requeue_on = ClusterEvent.NODE | ClusterEvent.POD_REMOVED | ClusterEvent.OBJECT_CHANGED

    def __init__(self, args: GPUTopologyArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._ledger = handle.snapshot.shared(GpuLedger, GpuLedger)
        self._numa = handle.snapshot.shared(NumaLedger, NumaLedger)
        self._answers: dict[tuple[object, ...], _Answer] = {}
        self._latest: tuple[PodInfo | None, PodWish | None] = (None, None)

    # What is asked ---------------------------------------------------------------------------

    def _wish(self, pod: PodInfo) -> PodWish | None:
        """Return what a pod asks for; the hooks of one cycle ask for the same pod."""
        if self._latest[0] is not pod:
            self._latest = (pod, wish_of(pod))
        return self._latest[1]

    def _request(self, pod: PodInfo, wish: PodWish) -> tuple[SelectionRequest, ...]:
        """Return the requests to try, the strictest first."""
        asked = wish.wish
        hard = Constraints(asked.require_numa, asked.require_nvlink, asked.min_bandwidth)
        rails: frozenset[int] = frozenset()
        if wish.multi_node and wish.job:
            rails = self._ledger.job_rails(wish.job, pod.uid)
        last = SelectionRequest(
            wish.count,
            constraints=hard,
            policy=asked.policy,
            rails=rails,
            multi_node=wish.multi_node,
        )
        strict = replace(
            hard,
            same_numa=hard.same_numa or asked.prefer_numa,
            nvlink=hard.nvlink or asked.prefer_nvlink,
        )
        return (last,) if strict == hard else (replace(last, constraints=strict), last)

    def _job_nodes(self, pod: PodInfo, wish: PodWish) -> Mapping[str, int]:
        if not wish.job or not wish.wish.spans_nodes:
            return {}
        return self._ledger.job_nodes(wish.job, pod.uid)

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """All that is asked, and where the pods of the job are as far as that matters."""
        wish = self._wish(pod)
        if wish is None:
            return claim_wish_of(pod)
        job = frozenset(self._job_nodes(pod, wish).items())
        aligned = pod.facts if (self._numa.codes() != UNALIGNED).any() else None
        return (replace(wish, job=""), job, self._request(pod, wish), aligned)

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods without GPUs; refuse annotations that cannot be read."""
        if not pod.facts.wants_devices:
            return SKIP
        # A pod with claims is not to get what pods hold that have not been looked at yet.
        self._ledger.codes()
        wish = self._wish(pod)
        if wish is None:
            claims = claim_wish_of(pod)
            return claims.problem if claims is not None and claims.problem else SKIP
        return wish.wish.problem or None

    # Which nodes -----------------------------------------------------------------------------

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes that have no set of GPUs as it is asked for, and those beyond the job's."""
        wish = self._wish(pod)
        assert wish is not None, "skipped"
        requests = self._request(pod, wish)
        masks: dict[tuple[str, bool], BoolColumn] = {}
        for state, mask in self._states(pod, wish, nodes):
            refusal = self._refusal(state, requests, wish)
            if refusal is not None:
                key = (refusal.reasons[0], refusal.resolvable)
                masks[key] = masks[key] | mask if key in masks else mask
        for (reason, resolvable), mask in masks.items():
            yield Reject(mask, reason, resolvable)
        yield from self._beyond_job(pod, wish, nodes)

    def _states(
        self, pod: PodInfo, wish: PodWish, nodes: NodeView
    ) -> Iterator[tuple[State | None, BoolColumn]]:
        """Yield the states of nodes, as far as the pod may use their GPUs; None for unknown ones.

        Where neither names nor the kubelet's alignment matter, nodes of one code are of one state.
        """
        codes = nodes.pick(self._ledger.codes())
        numa = nodes.pick(self._numa.codes())
        if not _names(wish.wish):
            width = self._numa.kinds + 1
            pairs = (codes + 1) * width + (numa + 1)
            for pair in np.unique(pairs).tolist():
                state = self._state_of(pod, pair // width - 1, pair % width - 1)
                yield state, pairs == pair
            return
        found: dict[tuple[object, ...], tuple[State | None, list[int]]] = {}
        for index, name in enumerate(nodes.names):
            state = self._state_for(pod, wish, name)
            key = (state.machine.shape, state.free, state.most) if state is not None else ()
            found.setdefault(key, (state, []))[1].append(index)
        for state, places in found.values():
            mask = np.zeros(len(nodes), dtype=np.bool_)
            mask[places] = True
            yield state, mask

    def _state_at(self, pod: PodInfo, wish: PodWish, node: NodeRow) -> State | None:
        """Return one node's state, as far as the pod may use its GPUs; None for an unknown one."""
        if _names(wish.wish):
            return self._state_for(pod, wish, node.name)
        code, aligned = self._ledger.codes()[node.row], self._numa.codes()[node.row]
        return self._state_of(pod, int(code), int(aligned))

    def _state_of(self, pod: PodInfo, code: int, aligned: int) -> State | None:
        """Return a state without the GPUs that the kubelet would not give the pod."""
        if code == UNKNOWN:
            return None
        state = self._ledger.state(code)
        nodes = self._numa.allowed_by(aligned, pod) if aligned != UNALIGNED else None
        return state if nodes is None else _within(state, nodes)

    def _state_for(self, pod: PodInfo, wish: PodWish, name: str) -> State | None:
        """Return a node's state without the GPUs that the pod may not have."""
        gpus = self._ledger.node(name)
        if gpus is None:
            return None
        machine = gpus.machine
        most = _eligible(machine, wish.wish)
        state = State(machine, tuple(g for g in gpus.free(pod.uid) if g in most), most)
        aligned = self._numa.allowed(pod, name)
        return state if aligned is None else _within(state, aligned)

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> Refusal | None:
        """Say why one node is refused."""
        wish = self._wish(pod)
        assert wish is not None, "skipped"
        state = self._state_at(pod, wish, node)
        refusal = self._refusal(state, self._request(pod, wish), wish)
        if refusal is not None:
            return refusal
        for reject in self._beyond_job(pod, wish, _one(node)):
            if reject.mask[0]:
                return Refusal((reject.reason,), reject.resolvable)
        return None

    def _refusal(
        self, state: State | None, requests: Sequence[SelectionRequest], wish: PodWish
    ) -> Refusal | None:
        """Return why nodes in some state are refused."""
        if state is None:
            return Refusal((_NO_MACHINE,), resolvable=False) if _is_hard(wish.wish) else None
        answer = self._answer(state, requests)
        if isinstance(answer.found, Selection):
            return None
        reason = f"node(s) where {answer.found.reason}"
        apart = len(state.machine.usable) - len(state.most)
        if apart and len(state.free) < wish.count:
            why = _named(wish.wish) or "the kubelet's NUMA alignment"
            reason = (
                f"node(s) where {counted(len(state.free), 'GPU')} of those that {why} leaves "
                f"{'is' if len(state.free) == 1 else 'are'} free, {wish.count} asked for"
            )
        return Refusal((reason,), resolvable=not answer.hopeless)

    def _beyond_job(self, pod: PodInfo, wish: PodWish, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes that would make the job's nodes too many, or its part of one too small."""
        asked = wish.wish
        used = self._job_nodes(pod, wish)
        if asked.max_nodes is not None and len(used) >= asked.max_nodes:
            other = np.array([name not in used for name in nodes.names], dtype=np.bool_)
            most = counted(asked.max_nodes, "node")
            yield Reject(other, f"node(s) beyond gpu.topology/max-nodes: {most}", resolvable=False)
        least = asked.min_gpus_per_node
        if least is None:
            return
        # A node that the job has begun comes first, until its part of it is large enough.
        begun = {name for name, count in used.items() if count < least}
        short = np.zeros(len(nodes), dtype=np.bool_)
        for index, name in enumerate(nodes.names):
            gpus = self._ledger.node(name)
            if gpus is not None:
                room = gpus.room(pod.uid) // wish.count * wish.count
                short[index] = used.get(name, 0) + room < least
        yield Reject(short, f"node(s) without {counted(least, 'GPU')} for the job")
        if begun:
            other = np.array([name not in begun for name in nodes.names], dtype=np.bool_)
            where = ", ".join(sorted(begun))
            reason = f"node(s) other than {where}, where the job has fewer than {least} GPUs yet"
            yield Reject(other, reason, resolvable=False)

    def _answer(self, state: State, requests: Sequence[SelectionRequest]) -> _Answer:
        key = (state.machine.shape, state.free, state.most, *requests)
        known = self._answers.get(key)
        if known is None:
            known = self._answers[key] = self._solve(state, requests)
            if len(self._answers) > 50_000:
                self._answers.clear()
        return known

    def _solve(self, state: State, requests: Sequence[SelectionRequest]) -> _Answer:
        found = select_first(state.machine, state.free, requests)
        if isinstance(found, Selection):
            return _Answer(found, _points(state.machine, state.free, found))
        empty = select_first(state.machine, state.most, requests)
        return _Answer(found, hopeless=isinstance(empty, NoSelection))

    @hookimpl
    def slots(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Divide the free GPUs by what one pod asks for."""
        wish = self._wish(pod)
        most = np.full(len(nodes), np.iinfo(np.int64).max, dtype=np.int64)
        if wish is None:
            return most
        codes = nodes.pick(self._ledger.codes())
        for code in np.unique(codes).tolist():
            if code != UNKNOWN:
                most[codes == code] = len(self._ledger.state(code).free) // wish.count
        return most

    # Which node is best ----------------------------------------------------------------------

    @hookimpl
    def pre_score(self, pod: PodInfo) -> object:
        """Skip pods without GPUs."""
        return SKIP if self._wish(pod) is None else None

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Rate every node by the best set that it can give now."""
        wish = self._wish(pod)
        assert wish is not None, "skipped"
        requests = self._request(pod, wish)
        scores = np.zeros(len(nodes))
        for state, mask in self._states(pod, wish, nodes):
            if state is not None:
                scores[mask] = self._answer(state, requests).points
        return self._by_order(pod, wish, nodes, scores)

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        """Rate one node."""
        wish = self._wish(pod)
        assert wish is not None, "skipped"
        state = self._state_at(pod, wish, node)
        points = self._answer(state, self._request(pod, wish)).points if state is not None else 0.0
        if wish.wish.node_order is None:
            return points
        return float(self._by_order(pod, wish, _one(node), np.array([points]))[0])

    def _by_order(
        self, pod: PodInfo, wish: PodWish, nodes: NodeView, scores: FloatColumn
    ) -> FloatColumn:
        """Prefer the nodes that the job has (pack), others (spread), or the fullest (best-fit)."""
        order = wish.wish.node_order
        if order == "best-fit":
            free = [len(g.free()) if (g := self._ledger.node(n)) else 0 for n in nodes.names]
            left = np.maximum(np.array(free, dtype=np.float64) - wish.count, 0.0)
            packed: FloatColumn = scores / (1.0 + left)
            return packed
        used = self._job_nodes(pod, wish)
        if not used or order is None:
            return scores
        mine = np.array([name in used for name in nodes.names], dtype=np.bool_)
        return np.where(mine == (order == "pack"), scores, scores / 2)

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
        wish = claim_wish_of(pod)
        if wish is None:
            return None
        machine = self._ledger.machines.of(node.node)
        if isinstance(machine, str):
            return -math.inf if _is_hard(wish) else None
        found = (gpu_of_device(devices[one], one.driver, machine) for _, one in chosen)
        gpus = tuple(sorted({gpu for gpu in found if gpu is not None}))
        if not gpus:
            return None
        requests = self._request(pod, PodWish(len(gpus), replace(wish, policy=RING)))
        answer = self._answer(State(machine, gpus, gpus), requests)
        return answer.points if isinstance(answer.found, Selection) else -math.inf

    # On the node -----------------------------------------------------------------------------

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
        """Give the pod its GPUs."""
        wish = self._wish(pod)
        if wish is None:
            return None
        now = self._state_for(pod, wish, node.name)
        if now is None:
            asked = self._request(pod, wish)[0].constraints
            if asked != NO_CONSTRAINTS:
                text = f"gave up: {asked}, as the node's GPU topology is not known"
                state[NOTES] = (text, *(state.get(NOTES) or ()))
                state[GIVEN_UP] = str(asked)
            return None
        found = select_first(now.machine, now.free, self._request(pod, wish))
        if isinstance(found, NoSelection):
            return found.reason
        self._ledger.hold(pod, node.name, found.gpus)
        state[CHOSEN] = found
        state[GIVEN_UP] = found.relaxed
        state[NOTES] = (*_notes(found), *(state.get(NOTES) or ()))
        return None

    @hookimpl
    def permit(self, pod: PodInfo, node: NodeRow) -> str | None:
        """Refuse a job that would have too few GPUs on a node, once all of its pods have one."""
        wish = self._wish(pod)
        least = wish.wish.min_gpus_per_node if wish is not None else None
        if wish is None or least is None:
            return None
        own = self._ledger.job_nodes(wish.job).get(node.name, wish.count)
        if own >= least:
            return None
        own_gpus = counted(own, "GPU")
        return f"{node.name} would have {own_gpus} of the job, fewer than its least, {least}."

    @hookimpl
    def unreserve(self, pod: PodInfo, node: NodeRow) -> None:
        """Take the pod's GPUs back."""
        self._ledger.release(pod, node.name)

    @hookimpl
    def bind(self, pod: PodInfo, node: NodeRow, state: CycleState) -> dict[str, str] | None:
        """Write the GPUs to the pod, in the order of their ring."""
        found = state.get(CHOSEN)
        gpus = self._ledger.node(node.name)
        given_up = state.get(GIVEN_UP)
        relaxed = {_RELAXED: given_up} if given_up else {}
        if found is None or gpus is None:
            return relaxed or None
        from bayplan.topology.machine.rings import ring_order

        order = ring_order(gpus.machine.bandwidth, found.gpus)
        written = {
            GPUS: ",".join(str(gpu) for gpu in found.gpus),
            _RING_ORDER: ",".join(str(gpu) for gpu in order),
        }
        if len(order) > 1:
            written[_BANDWIDTH] = f"{found.bottleneck:g}"
        written |= relaxed
        if self.args.nccl == "annotations":
            # Late, as few profiles ask for it, and it takes time to load.
            from bayplan_plugins.gpu_topology.nccl import annotations_of

            written |= annotations_of(*self._job(pod, node.name, gpus.machine, found))
        return written

    @hookimpl
    def pre_bind(self, pod: PodInfo, node: NodeRow, state: CycleState) -> Preparation | None:
        """Write NCCL's environment into a ConfigMap, if the profile wants that."""
        found = state.get(CHOSEN)
        gpus = self._ledger.node(node.name)
        if self.args.nccl != "configMap" or found is None or gpus is None:
            return None
        from bayplan_plugins.gpu_topology.nccl import config_map_of

        made = config_map_of(pod, *self._job(pod, node.name, gpus.machine, found))
        return Preparation((PutConfigMap(made),))

    def _job(
        self, pod: PodInfo, node: str, machine: Machine, found: Selection
    ) -> tuple[Member, Sequence[Member], bool]:
        """Return the pod's GPUs, those of the job's other pods, and whether it spans nodes."""
        from bayplan.nccl import Member

        wish = self._wish(pod)
        job = wish.job if wish is not None else ""
        others = [
            Member(name, known, tuple(held))
            for name, known, held in (self._ledger.job_gpus(job, pod.uid) if job else ())
        ]
        spans = wish is not None and wish.multi_node
        return Member(node, machine, found.gpus), others, spans

    def declare_metrics(self) -> None:
        """Create the ``gpu_scheduler_*`` series."""
        import bayplan_plugins.gpu_topology.metrics  # noqa: F401 - it creates them

    @hookimpl
    def post_bind(self, pod: PodInfo, node: NodeRow, state: CycleState) -> None:
        """Count how well GPUs were chosen."""
        if self._wish(pod) is None:
            return
        from bayplan_plugins.gpu_topology import metrics

        found = state.get(CHOSEN)
        gpus = self._ledger.node(node.name)
        nodes: set[int | None] = set()
        if found is not None and gpus is not None:
            nodes = {gpus.machine.numa_of[gpu] for gpu in found.gpus}
        same_numa = len(nodes) == 1 and None not in nodes
        metrics.gpus_chosen(
            satisfied=not state.get(GIVEN_UP), same_numa=same_numa, known=found is not None
        )

    # When no node is left --------------------------------------------------------------------

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Tell which requirement nodes would do without, and which topologies cannot be read."""
        wish = self._wish(pod)
        if wish is None or wish.wish.problem:
            return
        for state, mask in self._states(pod, wish, nodes):
            if self._refusal(state, self._request(pod, wish), wish) is None:
                continue
            for node in _rows(nodes, mask):
                if state is not None:
                    yield from self._without(pod, wish, node)
                    continue
                problem = self._ledger.problem(node.name)
                text = f"could fit on {node.name} if it said which machine it is ({MACHINE})"
                if problem:
                    text = f"could fit on {node.name} if its machine could be read: {problem}"
                yield Remedy(text, node.row, 2.0)
        yield from self._job_remedies(pod, wish, nodes)

    def _without(self, pod: PodInfo, wish: PodWish, node: NodeRow) -> Iterator[Remedy]:
        """Tell which requirement a node would do without."""
        for name, weaker in _weaker(wish.wish):
            asked = replace(wish, wish=weaker)
            state = self._state_for(pod, asked, node.name)
            found = self._answer(state, self._request(pod, asked)).found if state else None
            if isinstance(found, Selection):
                text = f"would fit on {node.name} without {name}"
                if len(found.gpus) > 1:
                    names = ", ".join(f"GPU{gpu}" for gpu in found.gpus)
                    text += f"; {names} reach {found.bottleneck:g} GB/s"
                effort = 0.5 - min(found.bottleneck, 1e5) * 1e-6
                yield Remedy(text, node.row, effort)

    def _job_remedies(self, pod: PodInfo, wish: PodWish, nodes: NodeView) -> Iterator[Remedy]:
        """Tell where the job could go on without the limits over its nodes."""
        if all(not reject.mask.any() for reject in self._beyond_job(pod, wish, nodes)):
            return
        name = "max-nodes" if wish.wish.max_nodes is not None else "min-gpus-per-node"
        free = replace(wish, wish=replace(wish.wish, max_nodes=None, min_gpus_per_node=None))
        for state, mask in self._states(pod, free, nodes):
            if self._refusal(state, self._request(pod, free), free) is None:
                for node in _rows(nodes, mask):
                    text = f"could fit on {node.name} without gpu.topology/{name}"
                    yield Remedy(text, node.row, 0.6)


def _rows(nodes: NodeView, mask: BoolColumn) -> Iterator[NodeRow]:
    """Yield the nodes of a mask."""
    rows = np.flatnonzero(mask) if nodes.rows is None else np.asarray(nodes.rows)[mask]
    return (NodeRow(nodes.table, int(row)) for row in rows)


def _one(node: NodeRow) -> NodeView:
    return NodeView(node.table, np.array([node.row], dtype=np.intp))


def _within(state: State, nodes: frozenset[int]) -> State:
    """Return a state without the GPUs of other NUMA nodes."""
    own = state.machine.numa_of
    free, most = (
        tuple(gpu for gpu in gpus if own[gpu] in nodes) for gpus in (state.free, state.most)
    )
    return State(state.machine, free, most)


def _is_hard(wish: GpuRequest) -> bool:
    """Tell whether anything is asked that a node of an unknown machine cannot be known to have."""
    asked = (wish.require_nvlink, wish.require_numa, wish.min_bandwidth, *_names(wish))
    return any(asked)


def _names(wish: GpuRequest) -> tuple[object, ...]:
    """Return what is said of certain GPUs, which nodes of one shape do not share."""
    named = (wish.uuids, wish.not_uuids, wish.models, wish.not_models)
    return named if any(named) else ()


def _named(wish: GpuRequest) -> str:
    """Return the annotations that say which GPUs may be taken."""
    return ", ".join(name for name, weaker in _weaker(wish) if _names(weaker) != _names(wish))


def _eligible(machine: Machine, wish: GpuRequest) -> tuple[int, ...]:
    """Return the usable GPUs that the pod may have by their uuid and model."""
    if not _names(wish):
        return machine.usable
    found = []
    for gpu in (machine.gpus[index] for index in machine.usable):
        model = gpu.model.upper()
        if wish.uuids and gpu.uuid not in wish.uuids:
            continue
        if wish.models and not any(name.upper() in model for name in wish.models):
            continue
        if gpu.uuid in wish.not_uuids or any(n.upper() in model for n in wish.not_models):
            continue
        found.append(gpu.index)
    return tuple(found)


def _points(machine: Machine, free: Sequence[int], found: Selection) -> float:
    """Rate a choice: its bandwidth, then near NICs, then how little of the node is left broken."""
    speed = min(found.bottleneck, 1e6) if len(found.gpus) > 1 else _SINGLE
    near = sum(machine.nic_distance(gpu) <= Level.PXB for gpu in found.gpus) / len(found.gpus)
    left = (len(free) - len(found.gpus)) / max(1, len(machine))
    given_up = 0.5 if found.relaxed else 1.0
    return float(speed * given_up * (1 + 0.1 * near + 0.1 * (1 - left)))


def _notes(found: Selection) -> Iterator[str]:
    names = ", ".join(f"GPU{gpu}" for gpu in found.gpus)
    yield f"gets {names}: {'; '.join(found.why)}"
    if found.relaxed:
        yield f"gave up: {found.relaxed}"


def _weaker(wish: GpuRequest) -> Iterator[tuple[str, GpuRequest]]:
    """Yield weaker wishes, each with the name of what it does without."""
    if wish.min_bandwidth:
        name = f"gpu.topology/min-bandwidth {wish.min_bandwidth:g}"
        yield name, replace(wish, min_bandwidth=0.0)
    if wish.require_nvlink:
        yield "gpu.topology/require-nvlink", replace(wish, require_nvlink=False)
    if wish.require_numa:
        yield "nvidia.com/numa-bind", replace(wish, require_numa=False)
    if wish.uuids:
        yield "nvidia.com/use-gpuuuid", replace(wish, uuids=frozenset())
    if wish.not_uuids:
        yield "nvidia.com/nouse-gpuuuid", replace(wish, not_uuids=frozenset())
    if wish.models:
        yield "nvidia.com/use-gputype", replace(wish, models=())
    if wish.not_models:
        yield "nvidia.com/nouse-gputype", replace(wish, not_models=())
