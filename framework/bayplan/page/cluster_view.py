"""What the page shows of a cluster, kept current by its watch.

Rows are made only for what has changed since the last look, so that a look costs what happened.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import Node, Pod, ResourceClaim, ResourceSlice
from bayplan.api.node_state import NodeState, model_of, state_of
from bayplan.api.object_key import controller_key
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.dialects.kai.shares import is_reservation
from bayplan.explain.explanation import shortfall
from bayplan.naming import natural_key
from bayplan.page.floor import Floor, floor_of
from bayplan.page.history import History
from bayplan.page.machines import Machines, nvlink_domains
from bayplan.page.node_gpus import MOST_GPUS, GpusOfNode, PodGpu, gpu_count, gpus_of_node
from bayplan.page.pod_times import PodTimes
from bayplan.page.queue_log import QueueLog
from bayplan.page.rows import NodeTile, PodRow, Stint, UnitRow
from bayplan.plugin.base import Unit
from bayplan.plugin.decision import Decision
from bayplan.queues.amounts import base_resource
from bayplan.queues.held_jobs import HeldJob, HeldJobs
from bayplan.queues.lost_work import gpu_hours
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import PodInfo
from bayplan.snapshot.nvlink import NvlinkDomains

__all__ = ["Changes", "ClusterView"]

_ENDED = ("Succeeded", "Failed")
_CLAIMS = "resource.kubernetes.io/pod-claim-name"
MOST_ENDED = 20_000
"""How many pods that are gone are kept for looking back."""
_MOST_STINTS = 50
_MADE_AGAIN = 60.0
"""Within how many seconds after its end a pod of the same name is the same one, made again."""
_WHOLE = 1000


def _job_of(pod: Pod) -> str:
    """Return the job of a pod of no gang: what its controller made is one, else it is its own."""
    owners = pod.metadata.owner_references
    of_node = any(one.controller and one.kind == "Node" for one in owners)
    return pod.key if of_node else controller_key(pod.metadata) or pod.key


class Changes(msgspec.Struct):
    """What is not as it was at the last look; ``floor`` is None if that is as it was."""

    nodes: dict[str, NodeTile | None] = msgspec.field(default_factory=dict)
    pods: dict[str, PodRow | None] = msgspec.field(default_factory=dict)
    units: dict[str, UnitRow | None] = msgspec.field(default_factory=dict)
    floor: Floor | None = None

    def __bool__(self) -> bool:
        return bool(self.nodes or self.pods or self.units or self.floor is not None)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; null for a row that is gone."""
        plain: dict[str, Any] = {
            name: {key: row.as_json() if row is not None else None for key, row in rows.items()}
            for name, rows in (("nodes", self.nodes), ("pods", self.pods), ("units", self.units))
        }
        if self.floor is not None:
            plain["floor"] = self.floor.as_json()
        return plain


class ClusterView:
    """The rows of one cluster, as one scheduler sees them.

    Call ``handle`` with every event of the watch, and ``look`` when there is nothing left to do.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.nodes: dict[str, NodeTile] = {}
        self.pods: dict[str, PodRow] = {}
        self.units: dict[str, UnitRow] = {}
        self.floor = Floor()
        self.machines = Machines()
        self.history = History()
        self.queue_log = QueueLog(scheduler)
        self._alive: dict[str, Pod] = {}
        self._on_node: dict[str, set[str]] = {}
        self._claims: dict[str, dict[str, ResourceClaim]] = {}
        self._of_unit: dict[str, set[str]] = {}
        self._gone: deque[str] = deque()
        self._waiting: set[str] = set()
        self._running: set[str] = set()
        self._changed_nodes: set[str] = set()
        self._changed_pods: set[str] = set()
        self._changed_units: set[str] = set()
        self._every_node = True
        self._tree: object = None
        self._decided = -1
        self._evicted: tuple[str, float] | None = None
        self._held_jobs: dict[str, HeldJob] = {}
        self._released: dict[str, tuple[float, float]] = {}
        """Of jobs that were just admitted: since when they waited, and when that was."""
        self._follow_held()

    def follow(self, scheduler: Scheduler) -> None:
        """Follow another scheduler of the same cluster, after its profiles were read again."""
        self.scheduler = scheduler
        self.queue_log.follow(scheduler)
        self._follow_held()
        self._decided = -1
        self._every_node = True

    def _follow_held(self) -> None:
        self._held = HeldJobs(self.scheduler.snapshot, self._held_changed)
        self._changed_units |= self._held_jobs.keys()
        self._held_jobs = {job.key: job for job in self._held.all()}
        self._changed_units |= self._held_jobs.keys()

    def _held_changed(self, key: tuple[str, str]) -> None:
        """Note that a job is held back in another way, or no more."""
        name, now = key[1], self.scheduler.now
        before, held = self._held_jobs.pop(name, None), self._held.get(key)
        if held is not None:
            self._held_jobs[name] = held
        elif before is not None:
            latest = self._released.items()
            self._released = {one: at for one, at in latest if now - at[1] <= _MADE_AGAIN}
            self._released[name] = (self._since(before), now)
        self._changed_units.add(name)

    def _since(self, held: HeldJob) -> float:
        """Return since when a job is held back, in seconds of the cluster."""
        return self.scheduler.now - max(0.0, self.scheduler.unix_time - held.since)

    # The watch -------------------------------------------------------------------------------

    @property
    def time(self) -> PodTimes:
        """The time now."""
        return PodTimes(self.scheduler.now, self.scheduler.unix_time)

    def handle(self, event: WatchEvent, at: PodTimes | None = None) -> None:
        """Note what an event changes.

        :param at: when it came; None for now.
        """
        at = at or self.time
        if event.type is WatchType.RESYNC:
            self._resync(event.objects, at)
            return
        obj, deleted = event.obj, event.type is WatchType.DELETED
        if isinstance(obj, Pod):
            self._on_pod(obj, deleted, at)
        elif isinstance(obj, Node):
            self._changed_nodes.add(obj.metadata.name)
        elif isinstance(obj, ResourceClaim):
            self._on_claim(obj, deleted)
        elif isinstance(obj, ResourceSlice):
            if obj.spec.node_name:
                self._changed_nodes.add(obj.spec.node_name)
            else:
                self._every_node = True

    def _resync(self, objects: Iterable[object], at: PodTimes) -> None:
        there = list(objects)
        keys = {one.key for one in there if isinstance(one, Pod)}
        for key in [key for key in self._alive if key not in keys]:
            self._on_pod(self._alive[key], deleted=True, at=at)
        self._claims.clear()
        for one in there:
            if isinstance(one, Pod):
                self._on_pod(one, deleted=False, at=at)
            elif isinstance(one, ResourceClaim):
                self._on_claim(one, deleted=False)
        self._every_node = True

    def _on_pod(self, pod: Pod, deleted: bool, at: PodTimes) -> None:
        key, now = pod.key, at.now
        row = self.pods.get(key)
        old = self._alive.get(key)
        if row is None or (old is None and not deleted):
            # A pod of the same name that was made again is another one.
            row = self._new_row(pod, row, at)
        gone = deleted or pod.status.phase in _ENDED
        node = pod.spec.node_name
        # What was seen to change changes now; what is seen for the first time says when it did.
        times = at if old is None else None
        if node and not row.node and (not gone or old is None):
            row.node = node
            since = now if times is None else times.bound(pod)
            row.stints.append(Stint(node, since))
            self.history.add(since, "Bound", key, node)
            if times is None:
                self.queue_log.started(pod)
        if gone and row.ended is None:
            row.ended = now if times is None else times.ended(pod)
            if row.stints and row.stints[-1].until is None:
                row.stints[-1].until = row.ended
            self.history.add(row.ended, "Deleted" if deleted else pod.status.phase, key, row.node)
        if deleted:
            self._alive.pop(key, None)
            self._claims.pop(key, None)
            self._forget_oldest(key)
        else:
            self._alive[key] = pod
        nominated = "" if node else pod.status.nominated_node_name
        if nominated and nominated != row.nominated:
            self.history.add(now, "Nominated", key, nominated)
        row.nominated = nominated
        if row.node:
            self._changed_nodes.add(row.node)
            there = self._on_node.setdefault(row.node, set())
            (there.discard if gone else there.add)(key)
        (self._waiting.discard if gone or node else self._waiting.add)(key)
        (self._running.add if node and not gone else self._running.discard)(key)
        self._changed_pods.add(key)
        self._changed_units.add(row.unit)

    def _new_row(self, pod: Pod, before: PodRow | None, at: PodTimes) -> PodRow:
        info = self.scheduler.snapshot.living.get(pod.key) or PodInfo(pod)
        unit = info.gang or _job_of(pod)
        requests = info.requests
        created = at.created(pod)
        # A pod that holds a GPU for those that share it has none of its own.
        gpus = 0 if is_reservation(pod) else gpu_count(requests)
        row = PodRow(unit, created, requests.get("cpu", 0), gpus)
        for job in (unit, controller_key(pod.metadata)):
            if job in self._released and created - self._released[job][1] <= _MADE_AGAIN:
                # It waited as long as its job.
                row.created = min(created, self._released[job][0])
        if before is not None:
            row.stints = before.stints[-_MOST_STINTS:]
            if before.ended is not None and created - before.ended <= _MADE_AGAIN:
                # Its controller made it again: an evicted pod goes on to wait.
                row.created = before.created
            self._of_unit.get(before.unit, set()).discard(pod.key)
        self.pods[pod.key] = row
        self._of_unit.setdefault(unit, set()).add(pod.key)
        self.history.add(created, "Created", pod.key, "")
        return row

    def _forget_oldest(self, key: str) -> None:
        """Count a pod that is gone; forget the oldest of them when they are too many."""
        self._gone.append(key)
        if len(self._gone) <= MOST_ENDED:
            return
        oldest = self._gone.popleft()
        if oldest in self._alive or oldest not in self.pods:
            return
        unit = self.pods.pop(oldest).unit
        self._of_unit.get(unit, set()).discard(oldest)
        self._changed_pods.add(oldest)
        self._changed_units.add(unit)

    def _on_claim(self, claim: ResourceClaim, deleted: bool) -> None:
        space = claim.metadata.namespace
        users = {f"{space}/{one.name}" for one in claim.status.reserved_for}
        gone = deleted or claim.status.allocation is None
        for key, own in list(self._claims.items()):
            if claim.key in own and (gone or key not in users):
                del own[claim.key]
                self._touch(key)
        if not gone:
            for key in users:
                self._claims.setdefault(key, {})[claim.key] = claim
                self._touch(key)

    def _touch(self, key: str) -> None:
        row = self.pods.get(key)
        if row is not None and row.node:
            self._changed_nodes.add(row.node)

    # Looking ---------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether something has changed that no look has seen."""
        changed = self._changed_nodes or self._changed_pods or self._changed_units
        return bool(changed) or self._every_node

    def look(self, most: int | None = None) -> Changes:
        """Make the rows of what has changed since the last look, and take a sample of the whole.

        :param most: of how many nodes, pods and jobs at most; the others are left to later looks.
            None for all.
        :raises PluginError: when a plugin raises.
        """
        changes = Changes()
        snapshot = self.scheduler.snapshot
        if most is None:
            snapshot.sync()
        tree = self._network()
        if tree is not self._tree:
            self._tree = tree
            self.floor = changes.floor = floor_of(tree, snapshot.nodes)
            self._every_node = True
        if self._every_node:
            self._changed_nodes |= self.nodes.keys() | set(snapshot.nodes.names)
            self._every_node = False
        for name in sorted(_taken(self._changed_nodes, most), key=natural_key):
            self._look_at_node(name, changes)
        self._look_at_decisions()
        for key in _taken(self._changed_pods, most):
            changes.pods[key] = self.pods.get(key)
        for key in _taken(self._changed_units, most):
            unit = self._unit(key)
            if unit is None:
                self.units.pop(key, None)
            else:
                self.units[key] = unit
            changes.units[key] = unit
        self.sample()
        return changes

    def sample(self, last: bool = False) -> None:
        """Take a sample of the whole cluster; as the last one, in any case."""
        self.history.sample(self.scheduler.now, self.counts, self._shares, last)

    def _shares(self) -> dict[str, float]:
        """Return what each queue uses as a part of the cluster, of the resource it has most of."""
        table = self.scheduler.snapshot.nodes
        offered: dict[str, float] = {}
        found = {}
        for report in self.scheduler.queues.reports():
            used: dict[str, float] = {}
            for name, one in report.resources.items():
                # Kueue counts each flavor apart.
                resource = base_resource(name)
                if resource not in offered:
                    offered[resource] = float(table.allocatable(resource).sum(dtype=float))
                if offered[resource]:
                    used[resource] = used.get(resource, 0.0) + one.used / offered[resource]
            found[f"{report.system}/{report.name}"] = min(1.0, max(used.values(), default=0.0))
        return found

    def _network(self) -> Any:
        for profile in self.scheduler.profiles.values():
            for call in profile.runtime["network_tree"]:
                tree = call()
                if tree is not None:
                    return tree
        return None

    def _look_at_node(self, name: str, changes: Changes) -> None:
        table = self.scheduler.snapshot.nodes
        row = table.row_of.get(name)
        before = self.nodes.pop(name, None)
        if row is None:
            changes.nodes[name] = None
            self.history.count(before, None)
            return
        node = table.nodes[row]
        pods = {
            key: placed[0]
            for key in self._on_node.get(name, ())
            if (placed := self.scheduler.snapshot.placed.get(key)) is not None
        }
        offered = {
            resource: int(column[row]) for resource, column in table.allocatable_columns.items()
        }
        claims = {key: own.values() for key in pods if (own := self._claims.get(key))}
        gpus = gpus_of_node(self.scheduler, name, min(MOST_GPUS, gpu_count(offered)), pods, claims)
        self._keep_gpus(gpus, pods)
        tile = self._tile(node, row, gpus)
        self.nodes[name] = tile
        self.history.count(before, tile)
        if tile != before:
            changes.nodes[name] = tile

    def _keep_gpus(self, gpus: GpusOfNode, pods: Iterable[str]) -> None:
        for key in pods:
            own = self._in_ring(gpus, gpus.of_pod.get(key, ()))
            stints = self.pods[key].stints
            if stints and stints[-1].until is None and tuple(stints[-1].gpus) != own:
                stints[-1].gpus = own
                self._changed_pods.add(key)

    def _in_ring(self, gpus: GpusOfNode, own: Sequence[PodGpu]) -> tuple[PodGpu, ...]:
        """Return a pod's GPUs in the order of their ring, whole GPUs of a known machine."""
        machine = gpus.machine
        whole = [one for one in own if one.gpu >= 0]
        own_gpus = tuple(sorted({one.gpu for one in whole}))
        if machine is None or not 2 <= len(whole) == len(own_gpus) or own_gpus[-1] >= len(machine):
            return tuple(own)
        by_gpu = {one.gpu: one for one in whole}
        nics = [one for one in own if one.gpu < 0]
        return (*(by_gpu[one] for one in self.machines.ring(machine, own_gpus)), *nics)

    def _tile(self, node: Node, row: int, gpus: GpusOfNode) -> NodeTile:
        table = self.scheduler.snapshot.nodes
        name = node.metadata.name
        taken: dict[int, int] = {}
        for own in gpus.of_pod.values():
            for one in own:
                taken[one.gpu] = min(_WHOLE, taken.get(one.gpu, 0) + (one.compute or _WHOLE))
        used = [amount for gpu, amount in taken.items() if 0 <= gpu < gpus.count]
        model = model_of(node, "nvidia.com/gpu") or model_of(node, "amd.com/gpu")
        models = gpus.models if any(gpus.models) else [model] if model else []
        machine = None
        if gpus.machine is not None:
            machine = self.machines.number(gpus.machine)
        elif gpus.published:
            machine = self.machines.number_published(gpus.published)
        if machine is not None:
            models = []
        nvlink = self.scheduler.snapshot.shared(NvlinkDomains, NvlinkDomains).of(node)
        domains = [nvlink] if nvlink else nvlink_domains(gpus.published)
        state = state_of(node)
        return NodeTile(
            self.floor.domain_of.get(name),
            machine,
            gpus.count,
            sum(used),
            gpus.count - len(used) if state is NodeState.IN_SERVICE else 0,
            models,
            (int(table.used("cpu")[row]), int(table.allocatable("cpu")[row])),
            (int(table.used("memory")[row]), int(table.allocatable("memory")[row])),
            state.value,
            domains,
        )

    # Units -----------------------------------------------------------------------------------

    def _look_at_decisions(self) -> None:
        """Take in the decisions since the last look; the latest are the last."""
        latest = self._decided
        fresh: list[Decision] = []
        for decision in reversed(self.scheduler.decisions.values()):
            if decision.cycle <= self._decided:
                break
            fresh.append(decision)
            latest = max(latest, decision.cycle)
        self._decided = latest
        for decision in reversed(fresh):
            row = self.pods.get(decision.unit)
            job = decision.unit if row is None else row.unit
            self._changed_units.add(job)
            known = self.units.get(job)
            message = decision.message or next(
                (own.message for own in decision.pods.values() if own.message), ""
            )
            if known is None or known.message != message or known.outcome != decision.outcome.value:
                self.history.add(decision.at, decision.outcome.value, job, "", message)
        for eviction in self._new_evictions():
            for_whom = f"for {eviction.unit}" if eviction.unit else eviction.reason
            if eviction.lost:
                for_whom += f"; {gpu_hours(eviction.lost):,.1f} GPU hours of work lost"
            row = self.pods.get(eviction.pod)
            node = row.stints[-1].node if row is not None and row.stints else ""
            self.history.add(eviction.at, "Evicted", eviction.pod, node, for_whom)
            self.history.evictions += 1

    def _new_evictions(self) -> list[Any]:
        found: list[Any] = []
        for one in reversed(self.scheduler.evictor.evicted):
            if (one.pod, one.at) == self._evicted:
                break
            found.append(one)
        if found:
            self._evicted = (found[0].pod, found[0].at)
        return found[::-1]

    def _unit(self, key: str) -> UnitRow | None:
        members = self._of_unit.get(key, set())
        held = self._held_jobs.get(key)
        if not members:
            self._of_unit.pop(key, None)
            return None if held is None else self._held_unit(UnitRow(), held)
        known = self.units.get(key, UnitRow())
        alive = next((self._alive[one] for one in sorted(members) if one in self._alive), None)
        row = replace(
            known,
            gang=known.gang or key in self.scheduler.gangs.all(),
            members=len(members),
            held=None,
        )
        if held is not None:
            return self._held_unit(row, held)
        if alive is not None:
            queue = self._queue_of(alive) or known.queue
            row = replace(row, priority=alive.spec.priority or 0, queue=queue)
        decision = self._decision(key, members)
        gated = self._gated(key, members)
        if gated and gated != known.message:
            self.history.add(self.scheduler.now, "Gated", key, "", gated)
        if decision is None:
            why = gated or ("" if alive is None else self._status_of(alive))
            return replace(row, message=why) if why else row
        own = next((one.message for one in decision.pods.values() if one.message), "")
        return replace(
            row,
            outcome=decision.outcome.value,
            message=decision.message or own,
            why=shortfall(decision.domains) if members & self._waiting else "",
            domain=decision.domain or "",
            decided=decision.at,
        )

    def _held_unit(self, row: UnitRow, held: HeldJob) -> UnitRow:
        """Return the row of a job that waits suspended."""
        return replace(
            row,
            queue=held.queue or row.queue,
            gang=held.pods > 1,
            message=held.why,
            held=(self._since(held), held.pods),
        )

    def held_job(self, unit: str) -> HeldJob | None:
        """Return a job that has no pods yet, None for any other unit."""
        return self._held_jobs.get(unit)

    def held_jobs(self) -> list[HeldJob]:
        """Return the jobs that have no pods yet, by name."""
        return [self._held_jobs[key] for key in sorted(self._held_jobs, key=natural_key)]

    def _decision(self, key: str, members: Iterable[str]) -> Decision | None:
        """Return the latest decision on a job: on pods of their own, on one that waits if any."""
        decisions = self.scheduler.decisions
        found = decisions.get(key)
        if found is not None:
            return found
        decided = [one for one in members if one in decisions]
        last = max(
            decided, key=lambda one: (one in self._waiting, decisions[one].cycle), default=""
        )
        return decisions.get(last)

    def _gated(self, key: str, members: Iterable[str]) -> str:
        """Return what holds back a job that has no pod to try, "" for nothing."""
        units = self.scheduler.queue.units
        queued = [units[one] for one in (key, *members) if one in units]
        if any(one.ready for one in queued):
            return ""
        return next((reason for one in queued for _, reason in one.gated.values()), "")

    def _status_of(self, pod: Pod) -> str:
        """Return what a pod says that this scheduler does not decide on, "" if it says nothing."""
        if pod.spec.node_name or pod.status.phase in _ENDED:
            return ""
        reported = (one for one in pod.status.conditions if one.type == "PodScheduled")
        why = next((one.message for one in reported if one.status == "False"), "")
        if not why and self.scheduler.profile_of(pod) is None:
            why = f'waits for another scheduler, "{pod.spec.scheduler_name}"'
        return why

    def _queue_of(self, pod: Pod) -> str:
        info = self.scheduler.snapshot.living.get(pod.key)
        if info is None:
            return ""
        return self.scheduler.queues.of(Unit(info.gang or info.key, [info])) or ""

    def pod_of(self, unit: str) -> Pod | None:
        """Return a pod that stands for a unit: one that waits, if any, and not one that ended."""
        members = sorted(self._of_unit.get(unit, ()))
        alive = [self._alive[key] for key in members if key in self._alive]
        alive.sort(key=lambda pod: (pod.status.phase in _ENDED, bool(pod.spec.node_name)))
        return alive[0] if alive else None

    @property
    def counts(self) -> tuple[int, int]:
        """How many pods wait for a node or are yet to come, and how many have one."""
        to_come = sum(job.pods for job in self._held_jobs.values())
        return len(self._waiting) + to_come, len(self._running)

    def as_json(self) -> dict[str, Any]:
        """Return all rows as one JSON object."""
        everything = Changes(
            {name: self.nodes[name] for name in sorted(self.nodes, key=natural_key)},
            {key: self.pods[key] for key in sorted(self.pods, key=natural_key)},
            {key: self.units[key] for key in sorted(self.units, key=natural_key)},
            self.floor,
        )
        return {**everything.as_json(), "machines": self.machines.rows}


def _taken(changed: set[str], most: int | None) -> set[str]:
    """Take at most so many names out of a set; return them."""
    taken = set(changed) if most is None else set(itertools.islice(changed, most))
    changed -= taken
    return taken
