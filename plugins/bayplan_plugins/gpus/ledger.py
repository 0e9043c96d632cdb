"""Who holds what of which GPU of which node; a whole GPU is a share of all of it.

Every pod with GPUs on a node holds certain shares: those that were reserved for it, those that its
annotations name, or else a guess. Where the node's machine is known, a whole GPU is guessed at
once, because claims must not get it: the first free ones, on the NUMA nodes that a
NodeResourceTopology has as used. Other guesses are what the node's adapter would choose, made when
the state of the node is first read.

What is only guessed, or chosen for a pod that is not bound yet, gives way to a pod that names its
GPUs: a pod with whole GPUs gets others, and none is bound with what it lost. The ledger follows
pods as they come and go, and rolls back with trials.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from bayplan import PodInfo
from bayplan.api import Node, NodeResourceTopology
from bayplan.api.gpu_shares import OfferedGpu, Share
from bayplan.naming import counted
from bayplan.plugin.devices import GpuHolder, NodeDevices
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import Snapshot
from bayplan.topology.machine.model import Machine
from bayplan_plugins.device_ledger.ledger import DeviceLedger
from bayplan_plugins.gpus.claims import gpus_of_devices
from bayplan_plugins.gpus.columns import GpuColumns, gives_parts
from bayplan_plugins.gpus.fit import Fit, fits_again, is_overfull
from bayplan_plugins.gpus.jobs import JobShares, PodShare, job_of
from bayplan_plugins.gpus.machines import NOT_PROMISED, NodeMachines
from bayplan_plugins.gpus.namespace_use import NamespaceUse
from bayplan_plugins.gpus.node_gpus import NodeGpus
from bayplan_plugins.gpus.published import PublishedNodes, nics_of_devices
from bayplan_plugins.gpus.requests import GpuRequests, Requests, decides
from bayplan_plugins.gpus.resources import gpu_count, shares_gpus
from bayplan_plugins.gpus.vendors.adapter import (
    GpusInUse,
    NodeAwareAdapter,
    SourceAdapter,
    VendorAdapter,
)
from bayplan_plugins.gpus.vendors.adapters import ADAPTERS
from bayplan_plugins.gpus.vendors.hami.adapter import VirtualGpuAdapter
from bayplan_plugins.gpus.vendors.hami.settings import HamiArgs
from bayplan_plugins.gpus.vendors.koordinator.adapter import KoordinatorAdapter
from bayplan_plugins.gpus.vendors.koordinator.settings import KoordinatorArgs
from bayplan_plugins.gpus.vendors.nvidia import DevicePluginAdapter
from bayplan_plugins.gpus.whole_gpus import (
    GpuState,
    WholeGpus,
    first_free,
    plugin_gpus,
    rails,
    stated_gpus,
)
from bayplan_plugins.shared.node_codes import NO_CODE, NodeCodes
from bayplan_plugins.shared.stale_nodes import StaleNodes

__all__ = ["UNKNOWN", "GpuLedger"]

UNKNOWN = NO_CODE
"""The code of a node whose machine is not known."""
_GPUS = "GPUs"
_TOPOLOGY = "GPU topology"
_SPARE = 8
_MOST_REMEMBERED = 8192


class GpuLedger:
    """The GPUs of a cluster. All profiles of a scheduler share one.

    It and the ledger of devices inform each other of the GPUs in use.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.machines = snapshot.shared(NodeMachines, NodeMachines)
        self.adapters: tuple[VendorAdapter, ...] = tuple(make(snapshot) for make in ADAPTERS)
        self.code_of = {one.name: code for code, one in enumerate(self.adapters)}
        self._use = snapshot.shared(NamespaceUse, NamespaceUse)
        self._requests = GpuRequests(snapshot, self.adapters, self._use)
        self._node_aware = [one for one in self.adapters if isinstance(one, NodeAwareAdapter)]
        self._basis = [one.basis for one in self._node_aware]
        self._devices = snapshot.shared(DeviceLedger, DeviceLedger)
        self._published = PublishedNodes(snapshot)
        self._versions = itertools.count(1)
        self._nodes: dict[str, NodeGpus] = {}
        self._sources: dict[str, Node] = {}
        self._pods: dict[str, dict[str, PodInfo]] = {}
        self._remembered: dict[tuple[str, str], tuple[tuple[Share, ...], tuple[Share, ...]]] = {}
        self._jobs = JobShares()
        self._offered: set[str] = set()
        self._with_machine: set[str] = set()
        self._any_parts = False
        self._shares_are_given = False
        self._unread = StaleNodes(snapshot)
        self.columns = GpuColumns(snapshot, self._fill)
        self.fit = Fit(self.columns, self._settled)
        self._codes = NodeCodes(snapshot, self._code)
        self._states: list[GpuState] = []
        self._code_of: dict[tuple[bytes, tuple[int, ...]], int] = {}
        self._listeners: list[Callable[[str], None]] = []
        snapshot.on_pod(self._on_pod)
        snapshot.on_object(NodeResourceTopology, self._on_report)
        self._devices.devices.on_change(self._on_devices)
        self._devices.usage.on_read(self.read_nodes)
        for adapter in self.adapters:
            if isinstance(adapter, SourceAdapter):
                adapter.follow(self.refresh)
        for pod, node in snapshot.placed.values():
            self._on_pod(pod, node, True)

    def give_shares(self) -> None:
        """Let adapters choose GPUs by rules of their own: a plugin is there that writes them."""
        if not self._shares_are_given:
            self._shares_are_given = True
            self.refresh(None)

    def configure(
        self, koordinator: KoordinatorArgs, hami: HamiArgs, device_plugin_config_map: str
    ) -> None:
        """Set the arguments of adapters that have some."""
        for adapter in self.adapters:
            if isinstance(adapter, KoordinatorAdapter):
                adapter.use(koordinator)
            elif isinstance(adapter, VirtualGpuAdapter):
                adapter.use(hami)
            elif isinstance(adapter, DevicePluginAdapter):
                adapter.use(device_plugin_config_map)
        self._requests.forget()

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with the name of each node whose free whole GPUs changed."""
        self._listeners.append(listener)

    # What pods request -----------------------------------------------------------------------

    def concerns(self, pod: PodInfo) -> bool:
        """Tell whether a pod may ask for GPUs, by its spec and the names of its annotations."""
        return self._requests.concerns(pod)

    def requests(self, pod: PodInfo) -> Requests:
        """Return what a pod requests, by adapter; empty for a pod without GPUs."""
        return self._requests.of(pod)

    def decides(self, requests: Requests) -> bool:
        """Tell whether the GPUs of some node decide on a pod, more than their number does."""
        return decides(requests, self._offered)

    def read_nodes(self) -> None:
        """Read the GPUs of nodes that are new, which may change what a request means."""
        if self._unread.any_new:
            for name in self._unread.take().names:
                self._known(name)
            self._forget_nodes()

    def _forget_nodes(self) -> None:
        """Drop nodes that are gone without pods, once there are as many of them as others."""
        rows = self._snapshot.nodes.row_of
        if len(self._sources) <= 2 * len(rows) + _SPARE:
            return
        for name in [one for one in self._sources if one not in rows and not self._pods.get(one)]:
            for kept in (self._sources, self._nodes, self._pods):
                kept.pop(name, None)
            self._with_machine.discard(name)

    def any_parts(self) -> bool:
        """Tell whether any node gives out parts of GPUs, or has done so; no pod is counted."""
        self.read_nodes()
        return self._any_parts

    def prepare(self) -> None:
        """Read new nodes, and bring the columns up to date if any node has GPUs."""
        self.read_nodes()
        if self._offered:
            self.columns.arrays()

    # Pods ------------------------------------------------------------------------------------

    def _on_pod(self, pod: PodInfo, node: str, placed: bool) -> None:
        if not self.requests(pod):
            return
        if placed:
            self._pods.setdefault(node, {})[pod.uid] = pod
            known = self._known(node)
            if known is not None and pod.uid not in known.held:
                self._enter(pod, node, known)
            self._enter_job(pod, node, known)
        else:
            self._pods.get(node, {}).pop(pod.uid, None)
            known = self._nodes.get(node)
            if known is not None:
                self.release(pod, node)
                known.unsettled.pop(pod.uid, None)
            self._jobs.leave(job_of(pod), pod.uid)
            if not self._snapshot.in_trial:
                self._snapshot.set_problem(node, pod.key, "")

    def _enter(self, pod: PodInfo, node: str, known: NodeGpus, lasting: bool = False) -> None:
        """Find out what a pod on a node holds, and guess where nothing says so.

        :param lasting: the pod was there before this trial, whose end does not change it.
        """
        shares, said = self._remembered.pop((pod.uid, node), ((), ()))
        stated = self._stated(pod, node, known)
        whole = known.whole if _is_whole(pod, known) else None
        if stated and (not shares or stated != said):
            # What another scheduler or device plugin wrote since then wins.
            shares = stated
        elif whole is None and shares and not self._keeps_what_it_had(pod):
            # Others may have come while the pod was away: then it has to choose again.
            shares = shares if fits_again(known, shares) else ()
        if shares and (whole is None or self._may_have(pod, node, known, shares)):
            self._assign(pod, node, known, shares, lasting=lasting)
            if known.whole is not None:
                self._move_yielding(pod, node, known, shares, lasting)
        elif whole is not None:
            guess = self._first_free(pod, node, known, whole)
            self._assign(pod, node, known, guess, guessed=True, lasting=lasting)
        else:
            known.unsettled[pod.uid] = pod
            self.columns.touch(node)

    def _keeps_what_it_had(self, pod: PodInfo) -> bool:
        """Tell whether a pod has what it had on a node, whatever others have: it is bound."""
        return bool(pod.spec.node_name) or self._snapshot.undoing

    def _stated(self, pod: PodInfo, node: str, known: NodeGpus) -> tuple[Share, ...]:
        """Return what a pod's annotations say that it holds; nothing if they cannot be read."""
        adapter = known.adapter
        if adapter is not None and adapter.name in self.requests(pod):
            stated = adapter.held(pod, known.gpus)
            self._snapshot.set_problem(node, pod.key, stated if isinstance(stated, str) else "")
            if stated:
                return () if isinstance(stated, str) else stated
        if known.whole is None:
            return ()
        gpus = stated_gpus(pod, known.whole.machine)
        count = gpu_count(pod.requests)
        said = shares_gpus(pod.requests) or (count > 0 and len(gpus) == count)
        return known.whole_shares(gpus) if said else ()

    def _may_have(self, pod: PodInfo, node: str, known: NodeGpus, shares: Sequence[Share]) -> bool:
        """Tell whether nobody has GPUs of a pod for certain that are whole ones of its own."""
        taken = {
            share.gpu
            for uid, held in known.held.items()
            if uid != pod.uid and not self._yields(uid, pod, node, known)
            for share in held
        }
        return taken.isdisjoint(share.gpu for share in shares)

    def _yields(self, uid: str, to: PodInfo, node: str, known: NodeGpus) -> bool:
        """Tell whether a holder gives way to a pod whose GPUs are known: it has none for certain.

        What is only assumed gives way to what is bound.
        """
        if uid in known.guessed:
            return True
        holder = self._pods[node].get(uid)
        return holder is not None and bool(to.spec.node_name) and not holder.spec.node_name

    def _move_yielding(
        self, to: PodInfo, node: str, known: NodeGpus, shares: Sequence[Share], lasting: bool
    ) -> None:
        """Guess again for the pods that give way to a pod that turns out to hold their GPUs."""
        lost = {share.gpu for share in shares}
        found = [
            uid
            for uid, held in known.held.items()
            if uid != to.uid
            and not lost.isdisjoint(share.gpu for share in held)
            and self._yields(uid, to, node, known)
        ]
        for uid in found:
            pod = self._pods[node].get(uid)
            if pod is not None and known.whole is not None and _is_whole(pod, known):
                guess = self._first_free(pod, node, known, known.whole)
                self._assign(pod, node, known, guess, guessed=True, lasting=lasting)

    def _first_free(
        self, pod: PodInfo, node: str, known: NodeGpus, whole: WholeGpus
    ) -> tuple[Share, ...]:
        zones = self._snapshot.objects(NodeResourceTopology).get(node)
        return known.whole_shares(first_free(whole, pod.uid, gpu_count(pod.requests), zones))

    def _guess_again(self, node: str, known: NodeGpus, whole: WholeGpus) -> None:
        """Guess again for all pods with whole GPUs that nothing states, from another report."""
        own = self._pods.get(node, {})
        pods = [own[uid] for uid in own if uid in known.guessed and _is_whole(own[uid], known)]
        for pod in pods:
            self._assign(pod, node, known, None)
        for pod in pods:
            guess = self._first_free(pod, node, known, whole)
            self._assign(pod, node, known, guess, guessed=True)

    def _settle(self, node: str, known: NodeGpus) -> None:
        """Guess what the unsettled pods of a node hold."""
        while known.unsettled:
            uid, pod = next(iter(known.unsettled.items()))
            del known.unsettled[uid]
            self._snapshot.on_rollback(partial(self._unsettle, pod, node, known))
            self._assign(pod, node, known, self._guess(pod, known), guessed=True)

    def _unsettle(self, pod: PodInfo, node: str, known: NodeGpus) -> None:
        """Forget a guess that was made in a trial, if the pod is still there."""
        if pod.uid in self._pods.get(node, {}) and pod.uid not in known.held:
            known.unsettled[pod.uid] = pod
            self.columns.touch(node)

    def _guess(self, pod: PodInfo, known: NodeGpus) -> tuple[Share, ...]:
        adapter = known.adapter
        request = self.requests(pod).get(adapter.name) if adapter is not None else None
        if adapter is None or request is None or request.problem:
            return ()
        return adapter.choose(pod, request, known.state()).shares

    def hold(self, pod: PodInfo, node: str, shares: Sequence[Share]) -> None:
        """Give a pod certain shares on its node, instead of those it held."""
        known = self._nodes[node]
        known.unsettled.pop(pod.uid, None)
        if known.held.get(pod.uid) != tuple(shares) or pod.uid in known.guessed:
            self._assign(pod, node, known, tuple(shares))
            self._snapshot.touch((node,))

    def hold_gpus(self, pod: PodInfo, node: str, gpus: Sequence[int]) -> None:
        """Give a pod certain whole GPUs of its node, instead of what it held."""
        self.hold(pod, node, self._nodes[node].whole_shares(gpus))

    def holds_gpus(self, pod: PodInfo, node: str, gpus: Sequence[int]) -> bool:
        """Tell whether a pod still holds the GPUs that were chosen for it."""
        known = self._nodes.get(node)
        return known is not None and known.gpus_of(pod.uid) == tuple(gpus)

    def release(self, pod: PodInfo, node: str) -> None:
        """Release a pod's shares; it gets them again if it comes back while they are free."""
        known = self._nodes.get(node)
        if known is None or pod.uid not in known.held:
            return
        if pod.uid not in known.guessed:
            said = self._stated(pod, node, known)
            self._remembered[pod.uid, node] = known.held[pod.uid], said
            if len(self._remembered) > _MOST_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
        self._assign(pod, node, known, None)

    def _assign(
        self,
        pod: PodInfo,
        node: str,
        known: NodeGpus,
        shares: tuple[Share, ...] | None,
        guessed: bool = False,
        lasting: bool = False,
    ) -> None:
        """Change what a pod holds (None: nothing); undone with the trial, unless it is lasting."""
        before, was_guessed = known.held.get(pod.uid), pod.uid in known.guessed

        def undo() -> None:
            if self._nodes.get(node) is known:
                self._assign(pod, node, known, before, was_guessed)
                # What was computed from the trial's state is stale, though no pod moved.
                self._snapshot.touch((node,))

        if not lasting:
            self._snapshot.on_rollback(undo)
        known.version = next(self._versions)
        known.assign(pod.uid, shares, guessed)
        if known.adapter is not None:
            self._use.set(known.adapter.name, pod, shares or ())
        self.columns.touch(node)
        if known.whole is not None:
            if pod.uid in self._pods.get(node, {}):
                self._enter_job(pod, node, known)
            self._whole_changed(node, known.whole)

    # Devices of claims -----------------------------------------------------------------------

    def _on_devices(self, nodes: Iterable[str] | None) -> None:
        for name in self._with_machine if nodes is None else nodes:
            self._refresh_devices(name)

    def _refresh_devices(self, name: str) -> None:
        """Update which GPUs of a node resource slices offer, and which of them claims hold."""
        known = self._nodes.get(name)
        row = self._snapshot.nodes.row_of.get(name)
        gpus = known.whole if known is not None else None
        if gpus is None or row is None:
            return
        node = self._snapshot.nodes.nodes[row]
        pools = self._devices.devices.pools(node)
        devices = gpus_of_devices(pools, gpus.machine) if pools else {}
        offered = frozenset(devices.values())
        claimed = {gpu for one, gpu in devices.items() if self._devices.usage.is_claimed(one, name)}
        # If the device plugin has more GPUs than slices leave out, both offer some of the same.
        apart = plugin_gpus(node) <= len(set(gpus.machine.usable) - offered)
        elsewhere = offered if apart else frozenset(claimed)
        if devices != gpus.devices or elsewhere != gpus.elsewhere:
            gpus.devices, gpus.elsewhere = devices, elsewhere
            self._whole_changed(name, gpus)

    def _whole_changed(self, name: str, gpus: WholeGpus) -> None:
        """Report to the ledger of devices what pods hold without a claim."""
        self._codes.touch(name)
        for listener in self._listeners:
            listener(name)
        busy = gpus.busy() if gpus.devices else ()
        held = frozenset(one for one, gpu in gpus.devices.items() if gpu in busy)
        self._devices.usage.set_unclaimed(name, held)

    # Nodes -----------------------------------------------------------------------------------

    def refresh(self, node: str | None) -> None:
        """Read a node's GPUs again (None: all), as an object that describes them changed."""
        if node is None:
            self._sources.clear()
            self._snapshot.touch(None)
            return
        self._sources.pop(node, None)
        self._unread.touch(node)
        self.columns.touch(node)
        self._codes.touch(node)
        self._snapshot.touch((node,))

    def _on_report(
        self, old: NodeResourceTopology | None, new: NodeResourceTopology | None
    ) -> None:
        obj = new or old
        assert obj is not None
        name = obj.metadata.name
        self._sources.pop(name, None)
        self._unread.touch(name)
        self._codes.touch(name)
        known = self._nodes.get(name)
        if known is not None and known.whole is not None and known.guessed:
            self._guess_again(name, known, known.whole)

    def _known(self, name: str) -> NodeGpus | None:
        row = self._snapshot.nodes.row_of.get(name)
        if row is None:
            return None
        node = self._snapshot.nodes.nodes[row]
        if self._sources.get(name) is not node:
            self._sources[name] = node
            self._read(name, node)
        return self._nodes.get(name)

    def _read(self, name: str, node: Node) -> None:
        """Read which GPUs a node has; what pods hold of those that stay is kept."""
        before = self._nodes.get(name)
        adapter, gpus = self._offer(name, node)
        machine = self._machine(name, node, adapter, gpus)
        if before is not None and before.whole is not None and machine is None:
            self._with_machine.discard(name)
            self._codes.touch(name)
            self._devices.usage.set_unclaimed(name, frozenset())
        if not gpus:
            adapter = None
        if adapter is None and machine is None:
            self._nodes.pop(name, None)
            return
        if adapter is not None:
            self._offered.add(adapter.name)
            self._any_parts |= any(map(gives_parts, gpus))
        if before is not None and before.adapter is adapter and before.gpus == gpus:
            own = before.whole
            if own is None and machine is None:
                return
            if own is not None and own.machine is machine:
                own.offered = plugin_gpus(node)
                self._refresh_devices(name)
                return
        basis = [one.basis for one in self._node_aware]
        if basis != self._basis:
            self._basis = basis
            self._requests.forget()
        held: dict[str, tuple[Share, ...]] = {}
        whole = WholeGpus(machine, plugin_gpus(node), held=held) if machine is not None else None
        code = self.code_of[adapter.name] if adapter is not None else NO_CODE
        known = self._nodes[name] = NodeGpus(adapter, code, gpus, whole, held)
        known.version = next(self._versions)
        if machine is not None:
            self._with_machine.add(name)
            self._refresh_devices(name)
        self._read_pods(name, known, before)

    def _read_pods(self, name: str, known: NodeGpus, before: NodeGpus | None) -> None:
        """Find out what the pods of a node hold, after what it offers changed."""
        pods = self._pods.get(name, {}).values()
        stated = {pod.uid: self._stated(pod, name, known) for pod in pods}
        for pod in pods:
            shares = self._kept(pod, known, before, stated[pod.uid])
            if shares:
                guessed = before is not None and pod.uid in before.guessed
                guessed = guessed and not stated[pod.uid]
                self._assign(pod, name, known, shares, guessed, lasting=True)
        # Pods that name their GPUs come first; the others get what is left.
        for pod in sorted(pods, key=lambda pod: not stated[pod.uid]):
            if pod.uid not in known.held:
                self._enter(pod, name, known, lasting=True)

    def _kept(
        self, pod: PodInfo, known: NodeGpus, before: NodeGpus | None, stated: tuple[Share, ...]
    ) -> tuple[Share, ...]:
        """Return what a pod goes on holding of a node that offers other GPUs than before."""
        if before is None or pod.uid not in before.held:
            return ()
        if known.whole is not None and _is_whole(pod, known):
            gpus = before.gpus_of(pod.uid)
            is_there = all(0 <= gpu < len(known.whole.machine) for gpu in gpus)
            return known.whole_shares(gpus) if is_there and pod.uid not in before.guessed else ()
        # A GPU that has come back has the shares again that pods say they hold of it.
        return (stated or before.held[pod.uid]) if before.adapter is known.adapter else ()

    def _offer(self, name: str, node: Node) -> tuple[VendorAdapter | None, tuple[OfferedGpu, ...]]:
        for adapter in self.adapters:
            gpus = adapter.gpus(node)
            if isinstance(gpus, str):
                self._snapshot.set_problem(name, _GPUS, gpus)
                return None, ()
            if gpus is not None:
                self._snapshot.set_problem(name, _GPUS, "")
                return adapter, gpus
        return None, ()

    def _machine(
        self, name: str, node: Node, adapter: VendorAdapter | None, gpus: Sequence[OfferedGpu]
    ) -> Machine | None:
        """Return the machine by whose topology whole GPUs of a node are chosen; None without."""
        machine = self.machines.of(node)
        is_read = not isinstance(machine, str) or machine == NOT_PROMISED
        self._snapshot.set_problem(name, _TOPOLOGY, _problem(node, machine), assumed=is_read)
        if isinstance(machine, str) or not plugin_gpus(node):
            return None
        left = self._shares_are_given and _chooses_itself(adapter, gpus)
        return None if left else machine

    # States ----------------------------------------------------------------------------------

    def adapter(self, node: str) -> VendorAdapter | None:
        """Return the adapter by which a node offers GPUs; None where it has none."""
        known = self._known(node)
        return known.adapter if known is not None else None

    def gpus(self, node: str) -> tuple[OfferedGpu, ...]:
        """Return a node's GPUs."""
        known = self._known(node)
        return known.gpus if known is not None else ()

    def whole(self, node: str) -> WholeGpus | None:
        """Return a node's GPUs, of which whole ones are chosen by topology.

        None if no device plugin has any, or if the machine is unknown (see ``problem``).
        """
        known = self._known(node)
        return known.whole if known is not None else None

    def uids(self, node: str) -> frozenset[str]:
        """Return the pods on a node that ask for GPUs, by uid."""
        return frozenset(self._pods.get(node, ()))

    def shares(self, pod: PodInfo, node: str) -> tuple[Share, ...]:
        """Return what a pod holds on its node."""
        known = self._fill(node)
        return known.held.get(pod.uid, ()) if known is not None else ()

    def numa_nodes(self, pod: PodInfo, node: str) -> frozenset[int]:
        """Return the NUMA nodes of the GPUs and NICs that a pod holds on its node, where known."""
        known = self._fill(node)
        if known is None:
            return frozenset()
        numbers = {gpu.index: gpu.numa for gpu in known.gpus}
        if known.whole is not None:
            numbers |= dict(enumerate(known.whole.machine.numa_of))
        found = (numbers.get(share.gpu) for share in known.held.get(pod.uid, ()))
        return frozenset(number for number in found if number is not None)

    def is_reserved(self, pod: PodInfo, node: str) -> bool:
        """Tell whether a pod's shares are certain, not guessed."""
        known = self._known(node)
        return known is not None and pod.uid in known.held and pod.uid not in known.guessed

    def is_overfull(self, pod: PodInfo, node: str) -> bool:
        """Tell whether somebody else has been given what was chosen for a pod."""
        known = self._known(node)
        return known is not None and is_overfull(known, pod.uid)

    def version(self, node: str) -> int:
        """Return a number that changes with whatever ``state`` returns for a node."""
        known = self._fill(node)
        return known.version if known is not None else 0

    def state(self, node: str, but: str = "", only: int | None = None) -> GpusInUse | None:
        """Return a node's GPUs and their use, without that of the pod ``but``, by uid.

        :param only: the place of a GPU; the others are left out.
        """
        known = self._settled(node, but)
        if known is None or known.adapter is None:
            return None
        return known.state(but) if only is None else known.state_of(only, but)

    def _settled(self, node: str, but: str) -> NodeGpus | None:
        """Return a node's GPUs with all pods settled; ``but`` stays as it is."""
        known = self._known(node)
        if known is not None and known.unsettled:
            own = known.unsettled.pop(but, None)
            self._settle(node, known)
            if own is not None:
                known.unsettled[but] = own
        return known

    def _fill(self, name: str) -> NodeGpus | None:
        """Return a node's GPUs for the columns, with all pods settled."""
        known = self._known(name)
        if known is not None and known.unsettled:
            self._settle(name, known)
        return known

    def idle_gpu(self, pod: PodInfo, node: str) -> GpusInUse | None:
        """Return a node's first usable GPU that only this pod may use; None if there is none."""
        known = self._settled(node, pod.uid)
        return known.idle_gpu(pod.uid) if known is not None else None

    def codes(self) -> IntColumn:
        """Return, per node row, the place of its adapter in ``adapters``; -1 without GPUs."""
        return self.columns.arrays().adapter

    def whole_codes(self) -> IntColumn:
        """Return, per node row, the number of its ``whole_state``; UNKNOWN without a machine."""
        return self._codes.column()

    def whole_state(self, code: int) -> GpuState:
        """Return the state that a code stands for."""
        return self._states[code]

    def any_machine(self) -> bool:
        """Tell whether the machine of any node with GPUs of a device plugin is known."""
        self._codes.read_new()
        return bool(self._with_machine)

    def _code(self, name: str) -> int:
        gpus = self.whole(name)
        if gpus is None:
            return UNKNOWN
        free = gpus.free()
        key = (gpus.machine.shape, free)
        code = self._code_of.get(key)
        if code is None:
            code = self._code_of[key] = len(self._states)
            self._states.append(GpuState(gpus.machine, free, gpus.machine.usable))
        return code

    def problem(self, name: str) -> str:
        """Return what is wrong with a node's description of its machine; "" for nothing."""
        return self._snapshot.problems.get((name, _TOPOLOGY), "")

    # Jobs ------------------------------------------------------------------------------------

    def _enter_job(self, pod: PodInfo, node: str, known: NodeGpus | None) -> None:
        count = gpu_count(pod.requests)
        name = job_of(pod) if count else ""
        if name:
            near = frozenset[int]()
            if known is not None and known.whole is not None:
                near = rails(known.whole.machine, known.gpus_of(pod.uid))
            self._jobs.enter(name, pod.uid, PodShare(node, count, near))

    def job_nodes(self, job: str, but: str = "") -> Mapping[str, int]:
        """Return how many GPUs a job's pods hold by node, except the pod ``but``, by uid."""
        return self._jobs.nodes(job, but)

    def job_rails(self, job: str, but: str = "") -> frozenset[int]:
        """Return the rails of the NICs near a job's GPUs, except the pod ``but``, by uid."""
        return self._jobs.rails(job, but)

    def job_gpus(self, job: str, but: str = "") -> Iterable[tuple[str, Machine, Sequence[int]]]:
        """Yield a job's nodes with their machines and the GPUs that its pods hold there.

        The pod ``but``, by uid, is left out.
        """
        by_node: dict[str, tuple[Machine, list[int]]] = {}
        for uid, share in self._jobs.pods(job):
            known = self._known(share.node)
            if uid != but and known is not None and known.whole is not None:
                own = by_node.setdefault(share.node, (known.whole.machine, []))
                own[1].extend(known.gpus_of(uid))
        for node, (machine, held) in by_node.items():
            if held:
                yield node, machine, held

    # What there is ---------------------------------------------------------------------------

    def describe_shares(self, name: str) -> NodeDevices | None:
        """Return a node's GPUs, and what its pods have of them; None where it has none."""
        known = self._fill(name)
        if known is None or not known.gpus:
            return None
        return NodeDevices(None, known.gpus, self._holders(name, known))

    def describe_machine(self, name: str) -> NodeDevices | None:
        """Return a node's machine, the GPUs of its pods, and the GPU behind each of its devices."""
        row = self._snapshot.nodes.row_of.get(name)
        if row is None:
            return None
        node = self._snapshot.nodes.nodes[row]
        machine = self.machines.of(node)
        listed = self._devices.devices.pools(node)
        if isinstance(machine, str):
            return self._published.of(name, listed) if listed else None
        known = self._fill(name)
        holders = self._holders(name, known) if known is not None and known.whole else ()
        devices = gpus_of_devices(listed, machine) if listed else {}
        nics = nics_of_devices(listed, machine) if listed else {}
        return NodeDevices(machine, (), holders, devices, nics)

    def _holders(self, name: str, known: NodeGpus) -> Sequence[GpuHolder]:
        pods = self._pods.get(name, {})
        return [
            GpuHolder(
                share.gpu,
                pods[uid].key,
                share.compute,
                share.memory,
                share.partition.profile if share.partition is not None else "",
                uid in known.guessed,
            )
            for uid, shares in known.held.items()
            if uid in pods
            for share in shares
        ]


def _is_whole(pod: PodInfo, known: NodeGpus) -> bool:
    """Tell whether a pod gets whole GPUs of a node that are chosen by topology."""
    return known.whole is not None and gpu_count(pod.requests) > 0


def _problem(node: Node, machine: Machine | str) -> str:
    """Return what could not be read, or was assumed, of a node's machine."""
    if isinstance(machine, str):
        return machine
    notes = list(machine.notes)
    offered = plugin_gpus(node)
    if 0 < offered < len(machine.usable):
        most = counted(len(machine.usable), "GPU")
        notes.append(f"its device plugin offers {offered} of {most}; which of them is not known")
    return "; ".join(notes)


def _chooses_itself(adapter: VendorAdapter | None, gpus: Sequence[OfferedGpu]) -> bool:
    """Tell whether whole GPUs of a node are not given out by topology.

    Koordinator's rules choose them, or what the device plugin counts are replicas.
    """
    if isinstance(adapter, DevicePluginAdapter):
        return any(gpu.slots > 1 for gpu in gpus)
    return isinstance(adapter, KoordinatorAdapter)
