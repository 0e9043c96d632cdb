"""GPUTopology: which GPUs of a node a pod gets, and which node can give the best ones now."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

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
from bayplan.api.gpus import GPUS, GpuWish
from bayplan.cluster.protocol import PutConfigMap
from bayplan.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan.naming import counted
from bayplan.nccl import Member
from bayplan.topology.levels import Level
from bayplan.topology.machine import Machine
from bayplan.topology.search import Constraints
from bayplan.topology.select import RING, NoSelection, Request, Selection, select_first
from bayplan_plugins.gpus.claims import gpu_of_device
from bayplan_plugins.gpus.ledger import UNKNOWN, GpuLedger, State
from bayplan_plugins.gpus.nccl import annotations_of, config_map_of
from bayplan_plugins.gpus.wishes import PodWish, claim_wish_of, wish_of
from bayplan_plugins.node_numa.ledger import NumaLedger

__all__ = ["GPUTopology", "GPUTopologyArgs"]

CHOSEN: StateKey[Selection] = StateKey("gpu-topology.chosen")
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

    # What is asked ---------------------------------------------------------------------------

    def _wish(self, pod: PodInfo) -> PodWish | None:
        return wish_of(pod)

    def _request(self, pod: PodInfo, wish: PodWish) -> tuple[Request, ...]:
        """Return the requests to try, the strictest first."""
        asked = wish.wish
        hard = Constraints(asked.require_numa, asked.require_nvlink, asked.min_bandwidth)
        rails = self._rails(pod, wish) if wish.multi_node else frozenset()
        last = Request(
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

    def _rails(self, pod: PodInfo, wish: PodWish) -> frozenset[int]:
        """Return the rails that the job's other pods use."""
        found: set[int] = set()
        for _, machine, gpus in self._ledger.job_gpus(wish.job, pod.uid) if wish.job else ():
            nics = (machine.nics[nic] for gpu in gpus for nic in machine.near_nics(gpu))
            found |= {nic.rail for nic in nics if nic.rail is not None}
        return frozenset(found)

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
        return (replace(wish, job=""), job, self._request(pod, wish))

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
        codes = nodes.pick(self._ledger.codes())
        requests = self._request(pod, wish)
        aligned = self._aligned(nodes)
        for code in np.unique(codes).tolist():
            refusal = self._refusal(code, requests, wish)
            if refusal is not None:
                mask = (codes == code) & ~aligned
                yield Reject(mask, refusal.reasons[0], refusal.resolvable)
        for index in np.flatnonzero(aligned).tolist():
            refusal = self._refusal(int(codes[index]), requests, wish, (pod, nodes.names[index]))
            if refusal is not None:
                mask = np.arange(len(codes)) == index
                yield Reject(mask, refusal.reasons[0], refusal.resolvable)
        yield from self._beyond_job(pod, wish, nodes, codes)

    def _aligned(self, nodes: NodeView) -> BoolColumn:
        """Return the mask of nodes whose kubelet takes GPUs from certain NUMA nodes only."""
        mask = np.zeros(len(nodes.table), dtype=np.bool_)
        mask[self._numa.rows()] = True
        return nodes.pick(mask)

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> Refusal | None:
        """Say why one node is refused."""
        wish = self._wish(pod)
        assert wish is not None, "skipped"
        codes = self._ledger.codes()
        where = (pod, node.name)
        refusal = self._refusal(int(codes[node.row]), self._request(pod, wish), wish, where)
        if refusal is not None:
            return refusal
        for reject in self._beyond_job(pod, wish, _one(node), codes[[node.row]]):
            if reject.mask[0]:
                return Refusal((reject.reason,), reject.resolvable)
        return None

    def _refusal(
        self,
        code: int,
        requests: Sequence[Request],
        wish: PodWish,
        where: tuple[PodInfo, str] | None = None,
    ) -> Refusal | None:
        """Return why a node in some state is refused; ``where`` tells which, if that matters."""
        if code == UNKNOWN:
            wanted = wish.wish
            if wanted.require_nvlink or wanted.require_numa or wanted.min_bandwidth:
                return Refusal((_NO_MACHINE,), resolvable=False)
            return None
        state = self._ledger.state(code)
        if where is not None:
            state = self._as_aligned(state, *where)
        answer = self._answer(state, requests, wish.wish)
        if isinstance(answer.found, Selection):
            return None
        reason = f"node(s) where {answer.found.reason}"
        return Refusal((reason,), resolvable=not answer.hopeless)

    def _as_aligned(self, state: State, pod: PodInfo, name: str) -> State:
        """Return the state without the GPUs that the node's kubelet would not give the pod."""
        nodes = self._numa.allowed(pod, name)
        if nodes is None:
            return state
        own = state.machine.numa_of
        return State(state.machine, tuple(gpu for gpu in state.free if own[gpu] in nodes))

    def _beyond_job(
        self, pod: PodInfo, wish: PodWish, nodes: NodeView, codes: IntColumn
    ) -> Iterator[Reject]:
        """Refuse nodes that would make the job's nodes too many, or its part of one too small."""
        asked = wish.wish
        used = self._job_nodes(pod, wish)
        if asked.max_nodes is not None and len(used) >= asked.max_nodes:
            other = np.array([name not in used for name in nodes.names], dtype=np.bool_)
            reason = f"node(s) beyond the {len(used)} that the job has, which are its most"
            yield Reject(other, reason, resolvable=False)
        least = asked.min_gpus_per_node
        if least is not None and least > wish.count:
            short = np.zeros(len(nodes), dtype=np.bool_)
            for index, (name, code) in enumerate(zip(nodes.names, codes.tolist(), strict=True)):
                if code != UNKNOWN:
                    free = len(self._ledger.state(code).free) // wish.count * wish.count
                    short[index] = used.get(name, 0) + free < least
            reason = f"node(s) with fewer than {least} GPUs for the job, its least on each"
            yield Reject(short, reason)

    def _answer(self, state: State, requests: Sequence[Request], wish: GpuWish) -> _Answer:
        key = (state.machine.shape, state.free, *requests, _names(wish))
        # What depends on a GPU's own name is not shared by machines of one shape.
        known = self._answers.get(key) if not _names(wish) else None
        if known is None:
            known = self._answers[key] = self._solve(state, requests, wish)
            if len(self._answers) > 50_000:
                self._answers.clear()
        return known

    def _solve(self, state: State, requests: Sequence[Request], wish: GpuWish) -> _Answer:
        machine = state.machine
        free = _eligible(machine, state.free, wish)
        found = select_first(machine, free, requests)
        if isinstance(found, Selection):
            return _Answer(found, _points(machine, free, found))
        empty = select_first(machine, _eligible(machine, machine.usable, wish), requests)
        if len(free) < len(state.free) and len(free) < requests[0].count:
            found = NoSelection(f"{counted(len(free), 'free GPU')} of those that the pod may have")
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
        codes = nodes.pick(self._ledger.codes())
        requests = self._request(pod, wish)
        scores = np.zeros(len(codes))
        for code in np.unique(codes).tolist():
            if code != UNKNOWN:
                answer = self._answer(self._ledger.state(code), requests, wish.wish)
                scores[codes == code] = answer.points
        for index in np.flatnonzero(self._aligned(nodes)).tolist():
            scores[index] = self._points_of(int(codes[index]), requests, pod, nodes.names[index])
        return self._by_order(pod, wish, nodes.names, scores)

    def _points_of(self, code: int, requests: Sequence[Request], pod: PodInfo, name: str) -> float:
        if code == UNKNOWN:
            return 0.0
        wish = self._wish(pod)
        assert wish is not None, "skipped"
        state = self._as_aligned(self._ledger.state(code), pod, name)
        return self._answer(state, requests, wish.wish).points

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        """Rate one node."""
        wish = self._wish(pod)
        assert wish is not None, "skipped"
        code = int(self._ledger.codes()[node.row])
        points = self._points_of(code, self._request(pod, wish), pod, node.name)
        scores = np.array([points])
        return float(self._by_order(pod, wish, [node.name], scores)[0])

    def _by_order(
        self, pod: PodInfo, wish: PodWish, names: Sequence[str], scores: FloatColumn
    ) -> FloatColumn:
        """Prefer the nodes that the job has (pack), or others (spread)."""
        order = wish.wish.node_order
        used = self._job_nodes(pod, wish)
        if not used or order not in ("pack", "spread"):
            return scores
        mine = np.array([name in used for name in names], dtype=np.bool_)
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
            hard = wish.require_nvlink or wish.require_numa or wish.min_bandwidth
            return -math.inf if hard else None
        found = (gpu_of_device(devices[one], one.driver, machine) for _, one in chosen)
        gpus = tuple(sorted({gpu for gpu in found if gpu is not None}))
        if not gpus:
            return None
        requests = self._request(pod, PodWish(len(gpus), replace(wish, policy=RING)))
        answer = self._answer(State(machine, gpus), requests, wish)
        return answer.points if isinstance(answer.found, Selection) else -math.inf

    # On the node -----------------------------------------------------------------------------

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
        """Give the pod its GPUs."""
        wish = self._wish(pod)
        gpus = self._ledger.node(node.name) if wish is not None else None
        if wish is None or gpus is None:
            return None
        now = self._as_aligned(State(gpus.machine, gpus.free(pod.uid)), pod, node.name)
        free = _eligible(gpus.machine, now.free, wish.wish)
        found = select_first(gpus.machine, free, self._request(pod, wish))
        if isinstance(found, NoSelection):
            return found.reason
        self._ledger.hold(pod, node.name, found.gpus)
        state[CHOSEN] = found
        state[NOTES] = (*_notes(found), *(state.get(NOTES) or ()))
        return None

    @hookimpl
    def unreserve(self, pod: PodInfo, node: NodeRow) -> None:
        """Take the pod's GPUs back."""
        self._ledger.release(pod, node.name)

    @hookimpl
    def bind(self, pod: PodInfo, node: NodeRow, state: CycleState) -> dict[str, str] | None:
        """Write the GPUs to the pod, in the order of their ring."""
        found = state.get(CHOSEN)
        gpus = self._ledger.node(node.name)
        if found is None or gpus is None:
            return None
        from bayplan.topology.rings import ring_order

        order = ring_order(gpus.machine.bandwidth, found.gpus)
        written = {
            GPUS: ",".join(str(gpu) for gpu in found.gpus),
            _RING_ORDER: ",".join(str(gpu) for gpu in order),
        }
        if len(order) > 1:
            written[_BANDWIDTH] = f"{found.bottleneck:g}"
        if found.relaxed:
            written[_RELAXED] = found.relaxed
        if self.args.nccl == "annotations":
            written |= annotations_of(*self._job(pod, node.name, gpus.machine, found))
        return written

    @hookimpl
    def pre_bind(self, pod: PodInfo, node: NodeRow, state: CycleState) -> Preparation | None:
        """Write NCCL's environment into a ConfigMap, if the profile wants that."""
        found = state.get(CHOSEN)
        gpus = self._ledger.node(node.name)
        if self.args.nccl != "configMap" or found is None or gpus is None:
            return None
        made = config_map_of(pod, *self._job(pod, node.name, gpus.machine, found))
        return Preparation((PutConfigMap(made),))

    def _job(
        self, pod: PodInfo, node: str, machine: Machine, found: Selection
    ) -> tuple[Member, Sequence[Member], bool]:
        """Return the pod's GPUs, those of the job's other pods, and whether it spans nodes."""
        wish = self._wish(pod)
        job = wish.job if wish is not None else ""
        others = [
            Member(name, known, tuple(held))
            for name, known, held in (self._ledger.job_gpus(job, pod.uid) if job else ())
        ]
        spans = wish is not None and wish.multi_node
        return Member(node, machine, found.gpus), others, spans

    @hookimpl
    def post_bind(self, pod: PodInfo, node: NodeRow, state: CycleState) -> None:
        """Count how well GPUs were chosen."""
        found = state.get(CHOSEN)
        gpus = self._ledger.node(node.name)
        if found is not None and gpus is not None:
            from bayplan import metrics

            nodes = {gpus.machine.numa_of[gpu] for gpu in found.gpus}
            metrics.gpus_chosen(satisfied=not found.relaxed, same_numa=len(nodes) == 1)

    # When no node is left --------------------------------------------------------------------

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Tell which requirement a node would do without."""
        wish = self._wish(pod)
        if wish is None or wish.wish.problem:
            return
        codes = nodes.pick(self._ledger.codes())
        for node, code in zip(nodes, codes.tolist(), strict=True):
            if code == UNKNOWN:
                problem = self._ledger.problems.get(node.name)
                if problem:
                    yield Remedy(f"{node.name}: {problem}", node.row, 5.0)
                continue
            state = self._ledger.state(code)
            for name, weaker in _weaker(wish.wish):
                if isinstance(self._found(state, pod, wish), Selection):
                    break
                found = self._found(state, pod, replace(wish, wish=weaker))
                if isinstance(found, Selection):
                    reach = f"; {', '.join(f'GPU{g}' for g in found.gpus)} reach "
                    reach += f"{found.bottleneck:g} GB/s" if len(found.gpus) > 1 else "any"
                    text = f"would fit on {node.name} without {name}{reach}"
                    yield Remedy(text, node.row, 0.5 - found.bottleneck * 1e-6)

    def _found(self, state: State, pod: PodInfo, wish: PodWish) -> Selection | NoSelection:
        return self._answer(state, self._request(pod, wish), wish.wish).found


def _one(node: NodeRow) -> NodeView:
    return NodeView(node.table, np.array([node.row], dtype=np.intp))


def _names(wish: GpuWish) -> tuple[object, ...]:
    """Return what is said of certain GPUs, which nodes of one shape do not share."""
    named = (wish.uuids, wish.not_uuids, wish.models, wish.not_models)
    return named if any(named) else ()


def _eligible(machine: Machine, free: Sequence[int], wish: GpuWish) -> tuple[int, ...]:
    """Return the GPUs that the pod may have by their uuid and model."""
    if not _names(wish):
        return tuple(free)
    found = []
    for gpu in (machine.gpus[index] for index in free):
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


def _weaker(wish: GpuWish) -> Iterator[tuple[str, GpuWish]]:
    """Yield weaker wishes, each with the name of what it does without."""
    if wish.min_bandwidth:
        name = f"gpu.topology/min-bandwidth {wish.min_bandwidth:g}"
        yield name, replace(wish, min_bandwidth=0.0)
    if wish.require_nvlink:
        yield "gpu.topology/require-nvlink", replace(wish, require_nvlink=False)
    if wish.require_numa:
        yield "nvidia.com/numa-bind", replace(wish, require_numa=False)
