"""GPUFragmentation: rate nodes, and choose the GPU of a share, by what would become useless.

The policies are in modules of their own; this one keeps what is known of each kind of pod on each
node up to date, and takes the GPU that the policy names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
import pydantic
from pydantic import Field

from bayplan import (
    NOTES,
    SKIP,
    Args,
    CycleState,
    Handle,
    NodeRow,
    NodeView,
    Normalize,
    Overdue,
    Plugin,
    PodInfo,
    Reads,
    StateKey,
    hookimpl,
)
from bayplan.api import Quantity
from bayplan.api.gpu_shares import WHOLE
from bayplan.api.resources import amount_of
from bayplan.dialects.kai.shares import is_reservation
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn
from bayplan_plugins.gpu_fragmentation import simple
from bayplan_plugins.gpu_fragmentation.fragments import FragmentationGradient
from bayplan_plugins.gpu_fragmentation.pod_classes import (
    LearnedWorkload,
    PodClass,
    WeightedClass,
    choice_of_models,
    class_of,
    weighted,
)
from bayplan_plugins.gpu_fragmentation.policy import FIRST, Policy, Rated
from bayplan_plugins.gpu_fragmentation.repacking import RepackArgs, Repacking
from bayplan_plugins.gpu_fragmentation.states import StateSource
from bayplan_plugins.gpu_fragmentation.stranded import LeastStranded
from bayplan_plugins.gpus.columns import NO_GPU
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.gpus.requests import Requests
from bayplan_plugins.gpus.vendors.adapter import GpusInUse
from bayplan_plugins.shared.moved_pods import ToCome

__all__ = ["GPUFragmentation", "GPUFragmentationArgs"]

PolicyName = Literal[
    "LeastStranded", "FGD", "BestFit", "DotProd", "GpuPacking", "GpuClustering", "Random"
]
_CLASS: StateKey[PodClass] = StateKey("gpu-fragmentation.class")
_MOST_CLASSES = 512
_MOST_PODS = 1e9
_MOVED_HERE = 1e6
_LAST: StateKey[BoolColumn] = StateKey("gpu-fragmentation.last")
"""The nodes that are the last choice for the pod: they give out parts of GPUs."""
_LEAST_OF_OTHERS = 50.0
"""The least score of the other nodes; those of the last choice have 0."""


class TypicalPod(Args):
    """Pods of the workload: their CPU, GPUs, thousandths of each, and on which models they run."""

    cpu: str = "0"
    gpus: int = Field(default=0, ge=0, le=64)
    gpu_milli: int = Field(default=WHOLE, ge=0, le=WHOLE)
    models: tuple[str, ...] = ()
    count: float = Field(gt=0, le=_MOST_PODS)

    @pydantic.field_validator("cpu")
    @classmethod
    def _is_amount(cls, value: str) -> str:
        amount_of("cpu", Quantity(value))
        if Quantity(value).units < 0:
            raise ValueError("expected an amount of 0 or more")
        return value


class GPUFragmentationArgs(Args):
    """Arguments of GPUFragmentation.

    ``packs`` says for whom nodes are rated: for all pods as soon as some ask for shares (Shares),
    or always, and for pods with GPUs only (GPUs).
    ``workload`` are the pods that will come; without it, it is learned from the pods that arrive.
    ``modelLabel`` is the node label that ``models`` are values of. ``seed`` is for Random.
    ``repack`` moves pods that run, by the measure of LeastStranded.
    """

    policy: PolicyName = "LeastStranded"
    packs: Literal["Shares", "GPUs"] = "Shares"
    workload: tuple[TypicalPod, ...] = ()
    model_label: str = Field(default="nvidia.com/gpu.product", min_length=1)
    seed: Annotated[int, Field(ge=0)] = 0
    repack: RepackArgs = RepackArgs()

    @pydantic.model_validator(mode="after")
    def _repacks_by_its_measure(self) -> GPUFragmentationArgs:
        if self.repack.moves_per_hour and self.policy != "LeastStranded":
            raise ValueError("repack needs the policy LeastStranded")
        return self


class _Known(msgspec.Struct):
    """What a policy said of one pod class, up to a position in the node table's list of changes."""

    rated: Rated
    position: int


class GPUFragmentation(Plugin[GPUFragmentationArgs]):
    """Prefer the node and the GPU where a share leaves the least that nobody can use."""

    Args = GPUFragmentationArgs
    reads = Reads.CLUSTER
    normalize_scores = Normalize.HOOK

    def __init__(self, args: GPUFragmentationArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        snapshot = handle.snapshot
        self._ledger = snapshot.shared(GpuLedger, GpuLedger)
        self._ledger.give_shares()
        self._source = StateSource(snapshot, self._ledger)
        self._shared = self._source.shared
        self._policy = _policy(args, self._source)
        self._learned = None if args.workload else LearnedWorkload(self._source.most)
        self._workload = _given(args)
        self._has_shares = _has_shares(self._workload)
        self._packs_all = args.packs == "GPUs"
        self._policy.forget(self._workload)
        if args.policy == "FGD" and args.workload:
            # A node's score, from 0 to 100, follows from the node and the pod alone.
            self.reads, self.normalize_scores = Reads.NODE | Reads.PODS, Normalize.NONE
        self._known: OrderedDict[PodClass, _Known] = OrderedDict()
        self._classes: dict[Hashable, PodClass] = {}
        self._version: object = None
        self._latest: list[WeightedClass] | None = None
        self._seen = 0
        self._repacking = self._repacks()
        if self._learned is not None:
            snapshot.on_living(self._learn)
            for pod in snapshot.living.values():
                self._learn(pod, True)

    def _repacks(self) -> Repacking | None:
        if not self.args.repack.moves_per_hour:
            return None
        assert isinstance(self._policy, LeastStranded), "checked with the arguments"
        return Repacking(
            self.args.repack,
            self.handle,
            self._source,
            self._policy,
            self._class_of,
            self._rated,
        )

    # Keeping up to date ----------------------------------------------------------------------

    def _learn(self, pod: PodInfo, added: bool) -> None:
        assert self._learned is not None, "the workload is not given"
        if not added or is_reservation(pod.pod):
            return
        requests = self._shared.requests(pod)
        if self._learned.see(pod, requests, self._source.gpu_memory()):
            if self._workload is not self._learned.in_use:
                self._workload = self._learned.in_use
                self._has_shares = _has_shares(self._workload)
                self._version = None

    def _refresh(self) -> None:
        """Tell the policy which nodes changed since the last call."""
        table = self.handle.snapshot.nodes
        self._ledger.columns.arrays()
        version = (table.epoch, table.label_version)
        changes = table.changed_since(self._seen)
        if version != self._version or changes is None:
            self._version = version
            if self._learned is not None and not self._learned.latest and self._packs_all:
                self._workload = self._learned.unseen()
            self._policy.forget(self._workload)
            self._latest = None
        elif changes:
            self._policy.changed(sorted(set(changes)))
        latest = self._learned.latest if self._learned is not None else []
        latest = latest or self._workload
        if self._latest is not latest:
            if self._learned is not None:
                self._policy.learn(latest)
            self._latest = latest
            self._known.clear()
        self._seen = table.position

    def _rated(self, pod_class: PodClass) -> Rated:
        """Return what is known of a pod class on all nodes."""
        self._refresh()
        table = self.handle.snapshot.nodes
        known = self._known.pop(pod_class, None)
        changes = table.changed_since(known.position) if known is not None else None
        if known is None or changes is None:
            size = len(table)
            known = _Known(
                self._policy.rate(pod_class, self._source.of(np.arange(size))), self._seen
            )
        elif known.position < self._seen:
            rows = np.array(sorted(set(changes)), dtype=np.intp)
            if not self._policy.renew(pod_class, rows, known.rated):
                known.rated.update(rows, self._policy.rate(pod_class, self._source.of(rows)))
            known.position = self._seen
        self._known[pod_class] = known
        if len(self._known) > _MOST_CLASSES:
            self._known.popitem(last=False)
        return known.rated

    def _class_of(self, pod: PodInfo) -> PodClass:
        return self._class_for(pod, self._shared.requests(pod))

    def _class_for(self, pod: PodInfo, requests: Requests) -> PodClass:
        memory = self._source.gpu_memory()
        key = (pod.facts, tuple(requests.values()), memory)
        found = self._classes.get(key)
        if found is None:
            if len(self._classes) >= _MOST_CLASSES:
                self._classes.clear()
            found = self._classes[key] = class_of(pod, requests, memory)
        return found

    # Which node is best ----------------------------------------------------------------------

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Leave pods alone that cannot ask for GPUs, where only such are rated."""
        return not self._packs_all or self._repacking is not None or self._shared.concerns(pod)

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by what the pod asks of GPUs, and by where it was moved."""
        moved = self._moved(pod)
        node = moved.node if moved is not None else ""
        return (tuple(self._ledger.requests(pod).values()), node)

    @hookimpl
    def pre_score(self, pod: PodInfo) -> object:
        """Skip pods that are not to be rated, and to whom no node is the last choice."""
        requests = self._shared.requests(pod)
        if self._moved(pod) is not None or self._is_rated(requests):
            return None
        return None if self._last_choice(pod, requests) is not None else SKIP

    def _is_rated(self, requests: Requests) -> bool:
        return bool(requests) if self._packs_all else self._has_shares

    def _last_choice(self, pod: PodInfo, requests: Requests) -> BoolColumn | None:
        """Return which nodes a pod gets last: for whole GPUs, those that give out parts.

        None where no node is preferred to them. The policies of others stay as they are published.
        """
        if self.args.policy != "LeastStranded" or not requests or not self._ledger.any_parts():
            return None
        arrays = self._ledger.columns.arrays()
        if not arrays.shared.any() or not self._class_for(pod, requests).whole:
            return None
        others = ~arrays.shared & (arrays.adapter != NO_GPU)
        return arrays.shared if others.any() else None

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView, state: CycleState) -> FloatColumn:
        """Rate every node by what would become useless with the pod on it.

        A pod that was moved goes where its move was found to help: the pod before it may still be
        on its way out.
        """
        requests = self._shared.requests(pod)
        pod_class = state[_CLASS] = self._class_for(pod, requests)
        scores = np.zeros(len(nodes.table))
        moved = self._moved(pod)
        if moved is not None and moved.node in nodes.table.row_of:
            scores[nodes.table.row_of[moved.node]] = _MOVED_HERE
            return nodes.pick(scores)
        if self._is_rated(requests):
            scores = self._policy.scores(pod_class, self._rated(pod_class))
        last = self._last_choice(pod, requests)
        if last is not None:
            state[_LAST] = last
        return nodes.pick(scores)

    def _moved(self, pod: PodInfo) -> ToCome | None:
        return self._repacking.to_come(pod) if self._repacking is not None else None

    @hookimpl
    def normalize(self, scores: FloatColumn, nodes: NodeView, state: CycleState) -> FloatColumn:
        """Bring the policy's scores to 0 to 100; the last choice comes below all others."""
        found = self._policy.normalized(scores)
        last = state.get(_LAST)
        if last is None:
            return found
        is_last = nodes.pick(last)
        if is_last.all():
            return found
        others = _LEAST_OF_OTHERS + found * (1 - _LEAST_OF_OTHERS / 100)
        return np.where(is_last, 0.0, others)

    # Repacking -------------------------------------------------------------------------------

    @hookimpl
    def overdue(self) -> Overdue | None:
        """Move pods so that GPUs become of use again, if the profile says so."""
        if self._repacking is None:
            return None
        self._refresh()
        return self._repacking.overdue()

    @hookimpl
    def post_bind(self, pod: PodInfo, node: NodeRow) -> None:
        """Take note that a moved pod has arrived."""
        if self._repacking is not None:
            self._repacking.arrived(pod, node.name)

    def declare_metrics(self) -> None:
        """Create the ``bayplan_repack_*`` series."""
        if self._repacking is not None:
            from bayplan_plugins.gpu_fragmentation import metrics

            self._repacking.moved = metrics.moved

    # On the node -----------------------------------------------------------------------------

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
        """Take the GPU that the policy names, if the adapter lets anybody choose."""
        moved = self._moved(pod)
        if moved is not None and moved.node == node.name:
            state[NOTES] = (*(state.get(NOTES) or ()), moved.reported)
        adapter = self._ledger.adapter(node.name)
        request = self._ledger.requests(pod).get(adapter.name) if adapter is not None else None
        if adapter is None or request is None or request.counted:
            return None
        if not request.simple or request.gpus != 1:
            return None
        # All idle GPUs are alike for a pod that takes a whole one.
        if request.whole:
            own = self._ledger.idle_gpu(pod, node.name)
        else:
            own = self._best_gpu(pod, node, state.get(_CLASS))
        if own is None:
            return None
        choice = adapter.choose(pod, request, own)
        if choice.shares:
            self._ledger.hold(pod, node.name, choice.shares)
        return None

    @hookimpl
    def unreserve(self, pod: PodInfo, node: NodeRow) -> None:
        """Release the pod's shares."""
        self._ledger.release(pod, node.name)

    def _best_gpu(
        self, pod: PodInfo, node: NodeRow, pod_class: PodClass | None
    ) -> GpusInUse | None:
        """Return the GPU that was the best one when the node was rated; None if any will do."""
        known = self._known.get(pod_class) if pod_class is not None else None
        place = int(known.rated.gpus[node.row]) if known is not None else FIRST
        if place == FIRST or place >= len(self._ledger.gpus(node.name)):
            return None
        return self._ledger.state(node.name, pod.uid, only=place)


def _has_shares(workload: Sequence[WeightedClass]) -> bool:
    return any(one.pod_class.gpus > 0 and not one.pod_class.whole for one in workload)


def _policy(args: GPUFragmentationArgs, source: StateSource) -> Policy:
    if args.policy == "LeastStranded":
        return LeastStranded(source)
    if args.policy == "FGD":
        return FragmentationGradient(source)
    if args.policy == "Random":
        return simple.ByChance(args.seed)
    formula = {
        "BestFit": simple.best_fit_score,
        "DotProd": simple.dot_product,
        "GpuPacking": simple.packing,
        "GpuClustering": simple.clustering,
    }[args.policy]
    return simple.SimplePolicy(source, formula, spread=args.policy == "BestFit")


def _given(args: GPUFragmentationArgs) -> list[WeightedClass]:
    if not args.workload:
        return []
    return weighted(
        (
            PodClass(
                amount_of("cpu", Quantity(one.cpu)),
                one.gpus,
                one.gpu_milli if one.gpus else 0,
                choice_of_models(args.model_label, one.models),
            ),
            one.count,
        )
        for one in args.workload
    )
