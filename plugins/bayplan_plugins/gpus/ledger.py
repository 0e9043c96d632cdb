"""Who holds which GPU of which node.

Every pod with GPUs on a node holds certain ones: those that were reserved for it, those that its
annotation names, or else the first free ones, on the NUMA nodes that a NodeResourceTopology has as
used. Such a guess gives way to a pod that names its GPUs later, and so does what was chosen for a
pod that is not bound yet: it is given other GPUs, and is not bound with those that it lost. The
ledger follows pods as they come and go, and rolls back with trials.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bayplan import PodInfo
from bayplan.api import Node, NodeResourceTopology
from bayplan.api.dra import DeviceId
from bayplan.api.gpus import GPU_RESOURCES, named_gpus
from bayplan.naming import counted
from bayplan.plugin.devices import CardHolder, NodeDevices
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import Snapshot
from bayplan.topology.machine.model import Machine
from bayplan_dra.allocator.pools import Pool
from bayplan_plugins.device_ledger.ledger import DeviceLedger
from bayplan_plugins.gpus.claims import gpus_by_name, gpus_of_devices
from bayplan_plugins.gpus.jobs import JobShares, PodShare, job_of
from bayplan_plugins.gpus.machines import NOT_PROMISED, NodeMachines, numa_nodes
from bayplan_plugins.gpus.published import (
    nics_by_name,
    nics_of_devices,
    published_devices,
)
from bayplan_plugins.gpus.resources import gpu_count, shares_gpus
from bayplan_plugins.shared.node_codes import NO_CODE, NodeCodes

__all__ = ["UNKNOWN", "GpuLedger", "GpuState", "NodeGpus"]

_UUIDS = "hami.io/vgpu-devices-allocated"
_TOPOLOGY = "GPU topology"
_MOST_REMEMBERED = 8192
UNKNOWN = NO_CODE
"""The code of a node whose machine is not known."""


@dataclass(frozen=True)
class GpuState:
    """A machine, its free GPUs by index, and the most that could ever be free.

    Nodes in equal states are equally good, except for pods that name their GPUs.
    """

    machine: Machine
    free: tuple[int, ...]
    most: tuple[int, ...]

    def on_numa_nodes(self, numbers: frozenset[int]) -> GpuState:
        """Return the state without the GPUs of other NUMA nodes."""
        own = self.machine.numa_of
        free = tuple(gpu for gpu in self.free if own[gpu] in numbers)
        most = tuple(gpu for gpu in self.most if own[gpu] in numbers)
        return GpuState(self.machine, free, most)


@dataclass
class NodeGpus:
    """The GPUs of one node, by the uid of the pod that holds them.

    ``offered`` is how many its device plugin has in all; ``guessed`` are the holders whose GPUs
    are not stated anywhere. ``devices`` are those that resource slices offer; ``elsewhere`` the
    GPUs that claims hold, or that only claims can get; ``shared`` those of which pods have shares.
    """

    machine: Machine
    offered: int
    held: dict[str, tuple[int, ...]] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)
    devices: Mapping[DeviceId, int] = field(default_factory=dict)
    elsewhere: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()

    def busy(self, but: str = "") -> set[int]:
        """Return the GPUs that pods hold, except those of the pod ``but``, by uid."""
        return {gpu for uid, gpus in self.held.items() if uid != but for gpu in gpus}

    def free(self, but: str = "") -> tuple[int, ...]:
        """Return the free GPUs; those of the pod ``but``, by uid, count as free."""
        busy = self.busy(but) | self.elsewhere | self.shared
        return tuple(gpu for gpu in self.machine.usable if gpu not in busy)

    def room(self, but: str = "") -> int:
        """Return how many more GPUs the device plugin can give; those of ``but`` count as free."""
        held = sum(len(gpus) for uid, gpus in self.held.items() if uid != but)
        return max(0, min(len(self.free(but)), self.offered - held))


class GpuLedger:
    """The GPUs of a cluster. All profiles of a scheduler share one.

    It and the ledger of devices inform each other of the GPUs in use.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.machines = snapshot.shared(NodeMachines, NodeMachines)
        self._nodes: dict[str, NodeGpus] = {}
        self._sources: dict[str, Node] = {}
        self._pods: dict[str, dict[str, PodInfo]] = {}
        self._remembered: dict[tuple[str, str], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._jobs = JobShares()
        self._devices = snapshot.shared(DeviceLedger, DeviceLedger)
        self._codes = NodeCodes(snapshot, self._code)
        self._states: list[GpuState] = []
        self._code_of: dict[tuple[bytes, tuple[int, ...]], int] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._left: set[str] = set()
        self._published: dict[str, tuple[Sequence[Pool], NodeDevices]] = {}
        snapshot.on_pod(self._on_pod)
        snapshot.on_object(NodeResourceTopology, self._on_report)
        self._devices.devices.on_change(self._on_devices)
        for pod, node in snapshot.placed.values():
            self._on_pod(pod, node, True)

    # Pods ------------------------------------------------------------------------------------

    def _on_pod(self, pod: PodInfo, node: str, placed: bool) -> None:
        if not pod.facts.wants_devices:
            return
        if not gpu_count(pod.requests) and not shares_gpus(pod.requests):
            return
        on_node = self._pods.setdefault(node, {})
        if placed:
            on_node[pod.uid] = pod
            gpus = self.node(node)
            if gpus is not None and pod.uid not in gpus.held:
                self._settle(pod, node, gpus)
            elif gpus is None:
                self._enter_job(pod, node, frozenset())
        else:
            on_node.pop(pod.uid, None)
            gpus = self._nodes.get(node)
            if gpus is not None:
                self._forget(pod, node, gpus)
            self._leave_job(pod)

    def _settle(self, pod: PodInfo, node: str, gpus: NodeGpus, lasting: bool = False) -> None:
        """Find out which GPUs a pod on a node holds, and guess where that is not stated.

        :param lasting: the node is read for the first time, which the end of a trial does not undo.
        """
        before, said = self._remembered.pop((pod.uid, node), ((), ()))
        stated = _stated(pod, gpus.machine)
        if shares_gpus(pod.requests):
            self._assign(pod, node, gpus, stated, lasting=lasting)
            self._move_yielding(pod, node, gpus, stated, lasting)
            return
        # What another scheduler or device plugin wrote since then wins.
        known = before if before and stated == said else stated
        taken = {
            gpu
            for uid, held in gpus.held.items()
            if uid != pod.uid and not self._yields(uid, pod, node, gpus)
            for gpu in held
        }
        if len(known) == gpu_count(pod.requests) and taken.isdisjoint(known):
            self._assign(pod, node, gpus, known, lasting=lasting)
            self._move_yielding(pod, node, gpus, known, lasting)
        else:
            guess = self._guess(pod, node, gpus)
            self._assign(pod, node, gpus, guess, guessed=True, lasting=lasting)

    def _yields(self, uid: str, to: PodInfo, node: str, gpus: NodeGpus) -> bool:
        """Tell whether a holder gives way to a pod whose GPUs are known: it has none for certain.

        What is only assumed gives way to what is bound.
        """
        if uid in gpus.guessed:
            return True
        holder = self._pods[node].get(uid)
        return holder is not None and bool(to.spec.node_name) and not holder.spec.node_name

    def _move_yielding(
        self, to: PodInfo, node: str, gpus: NodeGpus, known: Sequence[int], lasting: bool
    ) -> None:
        """Guess again for the pods that give way to a pod that turns out to hold their GPUs."""
        lost = set(known)
        found = [
            uid
            for uid, held in gpus.held.items()
            if uid != to.uid and not lost.isdisjoint(held) and self._yields(uid, to, node, gpus)
        ]
        for uid in found:
            pod = self._pods[node].get(uid)
            if pod is not None:
                guess = self._guess(pod, node, gpus)
                self._assign(pod, node, gpus, guess, guessed=True, lasting=lasting)

    def _guess(self, pod: PodInfo, node: str, gpus: NodeGpus) -> tuple[int, ...]:
        """Return the GPUs that a pod probably holds: the first free ones.

        NUMA nodes come first whose report has fewer free GPUs than are free here.
        """
        free = list(gpus.free(pod.uid))
        zones = self._snapshot.objects(NodeResourceTopology).get(node)
        reported = _free_in(zones) if zones is not None else {}
        numa = gpus.machine.numa_of
        more = Counter(numa[gpu] for gpu in free)
        more.subtract(reported)
        found: list[int] = []
        for _ in range(min(gpu_count(pod.requests), len(free))):
            gpu = max(free, key=lambda one: more[numa[one]]) if reported else free[0]
            free.remove(gpu)
            more[numa[gpu]] -= 1
            found.append(gpu)
        return tuple(found)

    def _guess_again(self, node: str, gpus: NodeGpus) -> None:
        """Guess again for all pods whose GPUs are not stated, from another report."""
        pods = [self._pods[node][uid] for uid in self._pods.get(node, {}) if uid in gpus.guessed]
        for pod in pods:
            self._assign(pod, node, gpus, None)
        for pod in pods:
            self._assign(pod, node, gpus, self._guess(pod, node, gpus), guessed=True)

    def hold(self, pod: PodInfo, node: str, chosen: Sequence[int]) -> None:
        """Give a pod certain GPUs of its node, instead of those it held."""
        self._assign(pod, node, self._nodes[node], tuple(chosen))

    def is_held(self, pod: PodInfo, node: str, chosen: Sequence[int]) -> bool:
        """Tell whether a pod still holds the GPUs that were chosen for it."""
        gpus = self._nodes.get(node)
        return gpus is not None and gpus.held.get(pod.uid) == tuple(chosen)

    def release(self, pod: PodInfo, node: str) -> None:
        """Release a pod's GPUs; it gets them again if it comes back to the node."""
        gpus = self._nodes.get(node)
        if gpus is not None:
            self._forget(pod, node, gpus)

    def _forget(self, pod: PodInfo, node: str, gpus: NodeGpus) -> None:
        if pod.uid not in gpus.held:
            return
        if pod.uid not in gpus.guessed:
            self._remembered[pod.uid, node] = gpus.held[pod.uid], _stated(pod, gpus.machine)
            if len(self._remembered) > _MOST_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
        self._assign(pod, node, gpus, None)

    def _assign(
        self,
        pod: PodInfo,
        node: str,
        gpus: NodeGpus,
        chosen: tuple[int, ...] | None,
        guessed: bool = False,
        lasting: bool = False,
    ) -> None:
        """Change what a pod holds (None: nothing); undone with the trial, unless it is lasting."""
        before, was_guessed = gpus.held.get(pod.uid), pod.uid in gpus.guessed

        def undo() -> None:
            if self._nodes.get(node) is gpus:
                self._assign(pod, node, gpus, before, was_guessed)

        if not lasting:
            self._snapshot.on_rollback(undo)
        gpus.guessed.discard(pod.uid)
        if chosen is None:
            gpus.held.pop(pod.uid, None)
            self._leave_job(pod)
        else:
            gpus.held[pod.uid] = chosen
            if guessed:
                gpus.guessed.add(pod.uid)
            self._enter_job(pod, node, _rails(gpus.machine, chosen))
        self._held_changed(node, gpus)

    # Devices of claims -----------------------------------------------------------------------

    def _on_devices(self, nodes: Iterable[str] | None) -> None:
        for name in self._nodes if nodes is None else nodes:
            self._refresh_devices(name)

    def set_shared(self, name: str, shared: frozenset[int]) -> None:
        """Record the GPUs of a node of which pods have shares; nobody gets them whole."""
        gpus = self._nodes.get(name)
        if gpus is not None and gpus.shared != shared:
            gpus.shared = shared
            self._held_changed(name, gpus)

    def leave(self, name: str, left: bool) -> None:
        """Leave the GPUs of a node to a plugin that chooses whole ones by rules of its own."""
        if left != (name in self._left):
            self._left.symmetric_difference_update((name,))
            self._sources.pop(name, None)
            self._codes.touch(name)

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with the name of each node whose free GPUs changed."""
        self._listeners.append(listener)

    def _refresh_devices(self, name: str) -> None:
        """Update which GPUs of a node resource slices offer, and which of them claims hold."""
        gpus = self._nodes.get(name)
        row = self._snapshot.nodes.row_of.get(name)
        if gpus is None or row is None:
            return
        node = self._snapshot.nodes.nodes[row]
        pools = self._devices.devices.pools(node)
        devices = gpus_of_devices(pools, gpus.machine) if pools else {}
        offered = frozenset(devices.values())
        claimed = {gpu for one, gpu in devices.items() if self._devices.usage.is_claimed(one, name)}
        # If the device plugin has more GPUs than slices leave out, both offer some of the same.
        apart = _plugin_gpus(node) <= len(set(gpus.machine.usable) - offered)
        elsewhere = offered if apart else frozenset(claimed)
        if devices != gpus.devices or elsewhere != gpus.elsewhere:
            gpus.devices, gpus.elsewhere = devices, elsewhere
            self._held_changed(name, gpus)

    def _held_changed(self, name: str, gpus: NodeGpus) -> None:
        """Report to the ledger of devices what pods hold without a claim."""
        self._codes.touch(name)
        for listener in self._listeners:
            listener(name)
        busy = gpus.busy() if gpus.devices else ()
        held = frozenset(one for one, gpu in gpus.devices.items() if gpu in busy)
        self._devices.usage.set_unclaimed(name, held)

    # Nodes -----------------------------------------------------------------------------------

    def _on_report(
        self, old: NodeResourceTopology | None, new: NodeResourceTopology | None
    ) -> None:
        obj = new or old
        assert obj is not None
        name = obj.metadata.name
        self._sources.pop(name, None)
        self._codes.touch(name)
        gpus = self._nodes.get(name)
        if gpus is not None and gpus.guessed:
            self._guess_again(name, gpus)

    def node(self, name: str) -> NodeGpus | None:
        """Return a node's GPUs.

        None if no device plugin has any, or if the machine is unknown (see ``problem``).
        """
        row = self._snapshot.nodes.row_of.get(name)
        if row is None:
            return None
        node = self._snapshot.nodes.nodes[row]
        if self._sources.get(name) is not node:
            self._sources[name] = node
            self._read_node(name, node)
        return self._nodes.get(name)

    def _read_node(self, name: str, node: Node) -> None:
        machine = self.machines.of(node)
        is_read = not isinstance(machine, str) or machine == NOT_PROMISED
        self._snapshot.set_problem(name, _TOPOLOGY, _problem(node, machine), assumed=is_read)
        known = self._nodes.get(name)
        if isinstance(machine, str) or not _plugin_gpus(node) or name in self._left:
            if self._nodes.pop(name, None) is not None:
                self._devices.usage.set_unclaimed(name, frozenset())
            return
        if known is not None and known.machine is machine:
            known.offered = _plugin_gpus(node)
            self._refresh_devices(name)
            return
        self._nodes[name] = NodeGpus(machine, _plugin_gpus(node))
        self._refresh_devices(name)
        self._settle_all(name, self._nodes[name], known)

    def describe(self, name: str) -> NodeDevices | None:
        """Return a node's machine, the GPUs of its pods, and the GPU behind each of its devices."""
        row = self._snapshot.nodes.row_of.get(name)
        if row is None:
            return None
        node = self._snapshot.nodes.nodes[row]
        machine = self.machines.of(node)
        listed = self._devices.devices.pools(node)
        if isinstance(machine, str):
            return self._published_of(name, listed) if listed else None
        gpus = self.node(name)
        pods = self._pods.get(name, {})
        guessed = gpus.guessed if gpus is not None else ()
        holders = [
            CardHolder(gpu, pods[uid].key, guessed=uid in guessed)
            for uid, held in (gpus.held.items() if gpus is not None else ())
            if uid in pods
            for gpu in held
        ]
        devices = gpus_of_devices(listed, machine) if listed else {}
        nics = nics_of_devices(listed, machine) if listed else {}
        return NodeDevices(machine, (), holders, devices, nics)

    def _published_of(self, name: str, pools: Sequence[Pool]) -> NodeDevices:
        """Return what drivers publish of a node, read once for the same pools."""
        known = self._published.get(name)
        if known is None or known[0] is not pools:
            if len(self._published) > 2 * len(self._snapshot.nodes.names):
                self._published.clear()
            known = self._published[name] = (pools, _as_published(pools))
        return known[1]

    def problem(self, name: str) -> str:
        """Return what is wrong with a node's description of its machine; "" for nothing."""
        return self._snapshot.problems.get((name, _TOPOLOGY), "")

    def _settle_all(self, name: str, gpus: NodeGpus, before: NodeGpus | None) -> None:
        """Find out what the pods of a node hold, after its machine changed."""
        pods = self._pods.get(name, {})
        for uid, pod in pods.items():
            held = before.held.get(uid, ()) if before is not None else ()
            if (
                before is None
                or uid in before.guessed
                or max(held, default=-1) >= len(gpus.machine)
            ):
                continue
            self._assign(pod, name, gpus, held, lasting=True)
        # Pods that name their GPUs come first; the others get what is left.
        for pod in sorted(pods.values(), key=lambda pod: not _stated(pod, gpus.machine)):
            if pod.uid not in gpus.held:
                self._settle(pod, name, gpus, lasting=True)

    # Jobs ------------------------------------------------------------------------------------

    def _enter_job(self, pod: PodInfo, node: str, rails: frozenset[int]) -> None:
        name, count = job_of(pod), gpu_count(pod.requests)
        if name and count:
            self._jobs.enter(name, pod.uid, PodShare(node, count, rails))

    def _leave_job(self, pod: PodInfo) -> None:
        self._jobs.leave(job_of(pod), pod.uid)

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
        by_node: dict[str, list[int]] = {}
        for uid, share in self._jobs.pods(job):
            gpus = self._nodes.get(share.node)
            if uid != but and gpus is not None and gpus.held.get(uid):
                by_node.setdefault(share.node, []).extend(gpus.held[uid])
        for node, held in by_node.items():
            yield node, self._nodes[node].machine, held

    # States ----------------------------------------------------------------------------------

    def codes(self) -> IntColumn:
        """Return, per node row, the number of its ``state``; UNKNOWN without a machine."""
        return self._codes.column()

    def any_machine(self) -> bool:
        """Tell whether the machine of any node with GPUs of a device plugin is known."""
        self._codes.read_new()
        return bool(self._nodes)

    def _code(self, name: str) -> int:
        gpus = self.node(name)
        if gpus is None:
            return UNKNOWN
        free = gpus.free()
        key = (gpus.machine.shape, free)
        code = self._code_of.get(key)
        if code is None:
            code = self._code_of[key] = len(self._states)
            self._states.append(GpuState(gpus.machine, free, gpus.machine.usable))
        return code

    def state(self, code: int) -> GpuState:
        """Return the state that a code stands for."""
        return self._states[code]


def _rails(machine: Machine, gpus: Iterable[int]) -> frozenset[int]:
    """Return the rails of the NICs near GPUs."""
    nics = (machine.nics[nic] for gpu in gpus for nic in machine.near_nics(gpu))
    return frozenset(nic.rail for nic in nics if nic.rail is not None)


def _as_published(pools: Sequence[Pool]) -> NodeDevices:
    """Return what drivers publish of a node whose machine nobody describes."""
    published, nics = published_devices(pools), nics_by_name(pools)
    return NodeDevices(devices=gpus_by_name(pools), nics=nics, published=published)


def _problem(node: Node, machine: Machine | str) -> str:
    """Return what could not be read, or was assumed, of a node's machine."""
    if isinstance(machine, str):
        return machine
    notes = list(machine.notes)
    offered = _plugin_gpus(node)
    if 0 < offered < len(machine.usable):
        most = counted(len(machine.usable), "GPU")
        notes.append(f"its device plugin offers {offered} of {most}; which of them is not known")
    return "; ".join(notes)


def _free_in(zones: NodeResourceTopology) -> dict[int, int]:
    """Return how many GPUs a report has as free, by NUMA node."""
    return {
        number: max(
            (r.available.units for r in zone.resources if r.name in GPU_RESOURCES), default=0
        )
        for number, zone in numa_nodes(zones).items()
    }


def _plugin_gpus(node: Node) -> int:
    """Return how many GPUs the node's device plugin has."""
    amounts = node.status.allocatable
    return max((amounts[name].units for name in GPU_RESOURCES if name in amounts), default=0)


def _stated(pod: PodInfo, machine: Machine) -> tuple[int, ...]:
    """Return the GPUs of the machine that a bound pod's annotations name.

    None if any is not on it, and none for a pod without a node: nobody can have given it GPUs.
    """
    if not pod.spec.node_name:
        return ()
    found = named_gpus(pod.annotations)
    if found:
        return found if found[-1] < len(machine) else ()
    theirs = pod.annotations.get(_UUIDS, "")
    uuids = {gpu.uuid: gpu.index for gpu in machine.gpus if gpu.uuid}
    named = {part.split(",")[0] for part in theirs.replace(";", ":").split(":") if part}
    return tuple(sorted(uuids[uuid] for uuid in named & uuids.keys()))
