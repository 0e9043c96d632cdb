"""DeviceShare: which GPUs of a node a pod shares, and which nodes have enough left of theirs.

:mod:`bayplan_plugins.gpus.ledger` knows who holds what; the adapters of vendors say what pods ask
for, how GPUs of a node are chosen, and what the runtime reads.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial

import numpy as np
import pydantic
from msgspec import structs

from bayplan import (
    SKIP,
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
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.dialects.hami.systems import HAMI, VOLCANO
from bayplan.dialects.koordinator.requests import OWN_RESOURCES
from bayplan.plugin.base import Skip
from bayplan.plugin.devices import NodeDevices
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan_plugins.device_share.advice import (
    counted_that_would_fit,
    gpus_that_could_be_used,
    what_would_fit,
    whole_gpus_that_would_fit,
)
from bayplan_plugins.gpus.columns import NO_GPU
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.gpus.per_node import PerNode
from bayplan_plugins.gpus.vendors.adapter import (
    Choice,
    ScoringAdapter,
    ShareRequest,
    VendorAdapter,
    Written,
)
from bayplan_plugins.gpus.vendors.hami.settings import ConfigMapKey, HamiArgs
from bayplan_plugins.gpus.vendors.kai.requests import word_of_kai
from bayplan_plugins.gpus.vendors.koordinator.settings import KoordinatorArgs

__all__ = ["DeviceShare", "DeviceShareArgs"]


_SHARES = OWN_RESOURCES.union(HAMI.resources.names[1:], VOLCANO.resources.names)
_LOST = "went to another pod"
_WRITTEN: StateKey[Written] = StateKey("device-share.written")
_NEIGHBOURS: StateKey[frozenset[str]] = StateKey("device-share.neighbours")
"""The pods with GPUs that were on the node, by uid, when the pod's shares were chosen."""


class DeviceShareArgs(KoordinatorArgs):
    """Arguments of DeviceShare: Koordinator's, and ``hami`` with the settings of HAMi.

    ``devicePluginConfigMap`` is that of NVIDIA's device plugin ("namespace/name"). Of several
    profiles, the last one's count.
    """

    hami: HamiArgs = HamiArgs()
    device_plugin_config_map: ConfigMapKey = pydantic.Field(
        default="", alias="devicePluginConfigMap"
    )

    @property
    def config_maps(self) -> Sequence[str]:
        """The ConfigMaps that the profile names."""
        named = (self.hami.device_config_map, self.device_plugin_config_map)
        return [key for key in named if key]


class DeviceShare(Plugin[DeviceShareArgs]):
    """Give pods shares of GPUs, and keep them off nodes whose GPUs have too little left."""

    Args = DeviceShareArgs
    reads = Reads.NODE | Reads.PODS
    locks_nodes = True
    normalize_scores = Normalize.MAX
    requeue_on = ClusterEvent.NODE | ClusterEvent.POD_REMOVED | ClusterEvent.OBJECT_CHANGED

    def __init__(self, args: DeviceShareArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._ledger = handle.snapshot.shared(GpuLedger, GpuLedger)
        self._ledger.give_shares()
        if args.model_fields_set:
            self._ledger.configure(args, args.hami, args.device_plugin_config_map)
        self._scoring = {
            one.name: one for one in self._ledger.adapters if isinstance(one, ScoringAdapter)
        }
        self._names = tuple(one.name for one in self._ledger.adapters)
        self._fit = self._ledger.fit
        self._scores: PerNode[float] = PerNode()

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods that ask for devices, or say something of GPUs in annotations."""
        return self._ledger.concerns(pod)

    @hookimpl
    def prepare(self) -> None:
        """Read the GPUs of nodes that are new."""
        self._ledger.prepare()

    @hookimpl
    def serves(self, pod: PodInfo) -> frozenset[str]:
        """Serve what describes a share of a GPU; device plugins offer none or few of these."""
        return _SHARES.intersection(pod.requests)

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by what the pod requests, if anything but a number decides on it."""
        self._ledger.read_nodes()
        requests = self._ledger.requests(pod)
        return tuple(requests.values()) if self._ledger.decides(requests) else None

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods without GPUs; refuse what cannot be read, and shares of two systems."""
        self._ledger.read_nodes()
        requests = self._ledger.requests(pod)
        if not requests:
            return SKIP
        for request in requests.values():
            if request.problem:
                return request.problem
        words = {name: one.word for name, one in requests.items() if not one.implicit}
        of_kai = word_of_kai(pod)
        if of_kai:
            words["KAI"] = of_kai
        if len(words) > 1:
            found = " and ".join(f"{word} ({name})" for name, word in words.items())
            return f"expected shares of GPUs in the words of one system, got {found}"
        return None if self._ledger.decides(requests) else SKIP

    # Which nodes -----------------------------------------------------------------------------

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes that offer no GPUs in the pod's words, then those with too little left."""
        arrays = self._ledger.columns.arrays()
        requests = self._ledger.requests(pod)
        codes = nodes.pick(arrays.adapter)
        named = next((one.adapter for one in requests.values() if not one.implicit), None)
        if named is not None:
            other = codes != self._ledger.code_of[named]
            if np.count_nonzero(other):
                yield Reject(other, f"no GPUs for shares by {named}", resolvable=False)
        for name, request in requests.items():
            if request.counted:
                continue
            own = codes == self._ledger.code_of[name]
            if request.implicit:
                own &= ~_counted_out(pod, nodes)
            if named not in (None, name) or not np.count_nonzero(own):
                continue
            rows = own.nonzero()[0]
            table_rows = rows if nodes.rows is None else nodes.rows[rows]
            yield from self._refused(pod, request, rows, table_rows, len(nodes))

    def _refused(
        self,
        pod: PodInfo,
        request: ShareRequest,
        rows: IntColumn,
        table_rows: IntColumn,
        size: int,
    ) -> Iterator[Reject]:
        """Yield the nodes of one adapter that have too little, of all that ``rows`` names.

        ``rows`` are places in the masks, ``table_rows`` the same nodes' rows in the table.
        """
        now = self._fit.now(request, table_rows)
        if np.count_nonzero(now) < len(now):
            ever = self._fit.if_empty(request)[table_rows]
            reason = _too_little(request)
            if np.count_nonzero(ever) < len(ever):
                yield Reject(_mask(rows[~ever], size), reason, resolvable=False)
            yield Reject(_mask(rows[ever & ~now], size), reason)
        if request.simple:
            return
        refused: dict[tuple[str, bool], list[int]] = {}
        for place, row in zip(rows[now].tolist(), table_rows[now].tolist(), strict=True):
            node = self.handle.snapshot.nodes.names[row]
            choice = self._fit.choice(pod, request, node)
            if not choice.shares:
                refused.setdefault((choice.reason, choice.resolvable), []).append(place)
        for (text, resolvable), places in refused.items():
            yield Reject(_mask(np.array(places), size), text, resolvable)

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> Refusal | None:
        """Say why one node is refused."""
        requests = self._ledger.requests(pod)
        if len(requests) == 1 or all(one.implicit for one in requests.values()):
            arrays = self._ledger.columns.arrays()
            code = arrays.adapter.item(node.row)
            request = requests.get(self._names[code]) if code != NO_GPU else None
            if request is not None and request.counted:
                return None
            if request is not None and request.simple:
                if self._fit.fits(request, node.row):
                    return None
                return self._refusal(request, pod, node)
        view = NodeView(node.table, np.array([node.row], dtype=np.intp))
        for reject in self.filter(pod, view):
            if reject.mask[0]:
                return Refusal((reject.reason,), reject.resolvable)
        return None

    def _refusal(self, request: ShareRequest, pod: PodInfo, node: NodeRow) -> Refusal | None:
        """Say why a simple request of the node's adapter does not fit."""
        if request.implicit and any(
            node.free(resource) < pod.requests.get(resource, 0) for resource in GPU_RESOURCES
        ):
            return None
        return Refusal((_too_little(request),), bool(self._fit.if_empty(request).item(node.row)))

    @hookimpl
    def slots(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Return how many pods equal to this one the GPUs of each node have left."""
        most = np.full(len(nodes), np.iinfo(np.int64).max, dtype=np.int64)
        arrays = self._ledger.columns.arrays()
        codes = nodes.pick(arrays.adapter)
        for name, request in self._ledger.requests(pod).items():
            rows = np.flatnonzero(codes == self._ledger.code_of[name])
            if len(rows):
                table_rows = rows if nodes.rows is None else nodes.rows[rows]
                most[rows] = self._fit.slots(request, table_rows)
        return most

    # Why not ---------------------------------------------------------------------------------

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterator[Remedy]:
        """Suggest what would have to be free on a node's GPUs."""
        arrays = self._ledger.columns.arrays()
        codes = nodes.pick(arrays.adapter)
        for name, request in self._ledger.requests(pod).items():
            own = np.flatnonzero(codes == self._ledger.code_of[name])
            if request.whole and not request.problem:
                resource = next((one for one in GPU_RESOURCES if one in pod.requests), "")
                yield from whole_gpus_that_would_fit(request, arrays, nodes, own, resource)
                yield from gpus_that_could_be_used(request, nodes, own, self._ledger.gpus)
            elif request.counted_elsewhere:
                asked = {name: count for name, count in pod.requests.items() if "/" in name}
                yield from counted_that_would_fit(asked, nodes, own)
                yield from self._what_would_be_chosen(pod, request, nodes, own)
            elif not request.problem:
                yield from what_would_fit(request, arrays, nodes, own, self._divides)
                yield from gpus_that_could_be_used(request, nodes, own, self._ledger.gpus)
                if not request.simple:
                    yield from self._what_would_be_chosen(pod, request, nodes, own)

    def _divides(self, node: str) -> bool:
        return any(gpu.profiles for gpu in self._ledger.gpus(node))

    def _what_would_be_chosen(
        self, pod: PodInfo, request: ShareRequest, nodes: NodeView, own: IntColumn
    ) -> Iterator[Remedy]:
        """Suggest nodes whose GPUs have enough left, but not in the form that the pod needs."""
        rows = own if nodes.rows is None else nodes.rows[own]
        for row in rows[self._fit.now(request, rows)].tolist():
            node = nodes.table.names[row]
            choice = self._fit.choice(pod, request, node)
            if choice.shares:
                continue
            if choice.advice:
                yield Remedy(f"would fit on {node} {choice.advice}", row, 0.5)
            elif choice.resolvable and not request.counted_elsewhere:
                text = f"would fit on {node} if pods left its GPUs ({choice.reason})"
                yield Remedy(text, row, 1.0, frees=True)

    # Which is best ---------------------------------------------------------------------------

    @hookimpl
    def pre_score(self, pod: PodInfo) -> Skip | None:
        """Skip pods whose adapters prefer no node."""
        named = self._ledger.requests(pod)
        rated = {name for name, request in named.items() if request.rated}
        return SKIP if self._scoring.keys().isdisjoint(rated) else None

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Score nodes by their adapters; nodes of adapters that prefer none have 0."""
        scores = np.zeros(len(nodes))
        codes = nodes.pick(self._ledger.codes())
        names = self.handle.snapshot.nodes.names
        for name, request in self._ledger.requests(pod).items():
            adapter = self._scoring.get(name)
            if adapter is None or not request.rated:
                continue
            for place in np.flatnonzero(codes == self._ledger.code_of[name]).tolist():
                node = names[place if nodes.rows is None else nodes.rows[place]]
                rate = partial(self._score, adapter, pod, request, node)
                scores[place] = self._scores.get(request, node, self._ledger.version(node), rate)
        return scores

    def _score(
        self, adapter: ScoringAdapter, pod: PodInfo, request: ShareRequest, node: str
    ) -> float:
        state = self._ledger.state(node, pod.uid)
        return adapter.score(request, state) if state is not None else 0.0

    # On the node -----------------------------------------------------------------------------

    def _choice(self, pod: PodInfo, request: ShareRequest, node: str) -> Choice:
        adapter, state = self._ledger.adapter(node), self._ledger.state(node, pod.uid)
        assert adapter is not None, "the node has GPUs"
        assert state is not None, "the node has GPUs"
        return adapter.choose(pod, request, state)

    def _own(self, pod: PodInfo, node: str) -> tuple[VendorAdapter, ShareRequest] | None:
        """Return by which adapter a pod gets GPUs on a node; None if nobody chooses any."""
        requests = self._ledger.requests(pod)
        adapter = self._ledger.adapter(node) if requests else None
        request = requests.get(adapter.name) if adapter is not None else None
        if adapter is None or request is None or request.counted:
            return None
        return adapter, request

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
        """Give the pod its shares, unless another plugin has chosen them."""
        own = self._own(pod, node.name)
        if own is None:
            return None
        state[_NEIGHBOURS] = self._ledger.uids(node.name)
        if self._ledger.is_reserved(pod, node.name):
            return None
        choice = self._choice(pod, own[1], node.name)
        if not choice.shares:
            return choice.reason
        self._ledger.hold(pod, node.name, choice.shares)
        return None

    @hookimpl
    def unreserve(self, pod: PodInfo, node: NodeRow) -> None:
        """Release the pod's shares."""
        self._ledger.release(pod, node.name)

    def _written(self, pod: PodInfo, node: NodeRow) -> Written:
        own = self._own(pod, node.name)
        shares = self._ledger.shares(pod, node.name) if own is not None else ()
        if own is None or not shares:
            return Written()
        gpus = self._ledger.gpus(node.name)
        return own[0].written(pod, node.node, gpus, shares, self.handle.unix_time)

    @hookimpl
    def pre_bind(self, pod: PodInfo, node: NodeRow, state: CycleState) -> Preparation | None:
        """Say which lock and labels the binding needs.

        A pod whose shares went to another one meanwhile is placed again.
        """
        if self._ledger.requests(pod) and self._ledger.is_overfull(pod, node.name):
            # A pod whose preparation fails is tried again without waiting for an event.
            return Preparation(ready=lambda: f"its shares of GPUs of {node.name} {_LOST}")
        written = state[_WRITTEN] = self._written(pod, node)
        lock = written.lock
        if not written.labels and lock is None:
            return None
        if lock is not None:
            # Whoever came after the choice was not counted in it, even if it is known by now.
            lock = structs.replace(lock, known=state.get(_NEIGHBOURS) or frozenset())
        return Preparation(lock=lock, labels=dict(written.labels))

    @hookimpl
    def bind(self, pod: PodInfo, node: NodeRow, state: CycleState) -> dict[str, str] | None:
        """Write the pod's shares into its annotations, in its adapter's words."""
        written = state.get(_WRITTEN) or self._written(pod, node)
        return dict(written.annotations) or None

    # What there is ---------------------------------------------------------------------------

    @hookimpl
    def node_devices(self, node: str) -> NodeDevices | None:
        """Tell the GPUs of a node, and what its pods have of them."""
        return self._ledger.describe_shares(node)


def _counted_out(pod: PodInfo, nodes: NodeView) -> BoolColumn:
    """Return the nodes with too few GPUs by their number, which NodeResourcesFit refuses."""
    short = np.zeros(len(nodes), dtype=np.bool_)
    for resource in GPU_RESOURCES:
        need = pod.requests.get(resource, 0)
        if need:
            short |= nodes.free(resource) < need
    return short


def _mask(places: IntColumn, size: int) -> BoolColumn:
    mask = np.zeros(size, dtype=np.bool_)
    mask[places] = True
    return mask


def _too_little(request: ShareRequest) -> str:
    return f"Insufficient {'free GPUs' if request.whole else 'shares of GPUs'}"
