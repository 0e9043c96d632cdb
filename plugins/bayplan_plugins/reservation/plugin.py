"""Reservation: pods take what reservations keep for them, and reservations end.

A reservation holds its node as a pod that only the scheduler sees. Where an owner comes, that pod
gives way within the cycle, the owner is placed as any pod is, and what is left of the reservation
takes its place again. Rules: Koordinator v1.8 (pkg/scheduler/plugins/reservation).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import msgspec
import numpy as np
import pydantic
from msgspec.structs import replace

from bayplan import (
    NOTES,
    Args,
    ClusterEvent,
    CycleState,
    Eviction,
    Handle,
    NodeRow,
    Overdue,
    Placement,
    Placements,
    Plugin,
    PodInfo,
    Preparation,
    StateKey,
    Unit,
    hookimpl,
)
from bayplan.api import Container, Pod, Quantity
from bayplan.api import Reservation as ReservationObject
from bayplan.api.pod import ResourceRequirements
from bayplan.api.resources import amount_of
from bayplan.cluster.protocol import (
    CreateObject,
    DeleteObject,
    PatchFields,
    PatchStatus,
    annotation_field,
)
from bayplan.dialects.koordinator.elastic_quota import quantity_of
from bayplan.dialects.koordinator.reservations import (
    AFFINITY,
    ALLOCATED,
    EXACT_MATCH,
    ReservationAffinity,
    affinity_of,
    allocated_by,
    allocated_text,
    as_expired,
    exact_match_of,
    is_allocate_once,
    is_reserve_pod,
    requires_pre_allocation,
    reservation_of,
    with_owners,
)
from bayplan_plugins.reservation.ends import Ends, is_over
from bayplan_plugins.reservation.known import KnownReservations, Users
from bayplan_plugins.reservation.matching import Match, matches_of
from bayplan_plugins.reservation.moved import reservation_for
from bayplan_plugins.reservation.pre_allocation import (
    Adoption,
    PreAllocationArgs,
    adoptions,
    unsupported,
)

__all__ = ["Reservation", "ReservationArgs"]

_MOST_TRIED = 64
_NO_PODS = "node(s) no pod match reservation with pre allocation required"
_NO_MATCH = "node(s) no reservations match reservation affinity"


class ReservationArgs(Args):
    """Arguments of Reservation: when those that are over are deleted, and how some take over pods.

    With ``reserveForMovedPods`` a pod that is evicted because it fits elsewhere, as before a
    maintenance, by rebalancing or by repacking, gets a reservation there for what is made again.

    The others are Koordinator's; bayplan needs none of them.
    """

    gc_duration_seconds: int = pydantic.Field(default=86400, ge=0)
    disable_garbage_collection: bool = False
    pre_allocation_config: PreAllocationArgs = PreAllocationArgs()
    reserve_for_moved_pods: bool = False
    controller_workers: int = 1
    enable_preemption: bool = False
    gc_interval_seconds: int = 60
    min_candidate_nodes_absolute: int = 100
    min_candidate_nodes_percentage: int = 10
    resync_interval_seconds: int = 60


class _Taken(msgspec.Struct, frozen=True):
    """A reservation that gave way to a pod, as it stood in the snapshot before."""

    match: Match
    stand_in: PodInfo


_CHOSEN: StateKey[_Taken] = StateKey("reservation.chosen")
_ADOPTED: StateKey[Adoption] = StateKey("reservation.adopted")


class Reservation(Plugin[ReservationArgs]):
    """Let owners take what reservations keep for them, and end reservations in time."""

    Args = ReservationArgs
    requeue_on = ClusterEvent.POD | ClusterEvent.OBJECT_CHANGED
    places_single_pods = True

    def __init__(self, args: ReservationArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        snapshot = handle.snapshot
        self._known = KnownReservations()
        self._ends = Ends(None if args.disable_garbage_collection else args.gc_duration_seconds)
        self._came: set[str] = set()
        """Reservations, by name, that are new or changed since they were looked at."""
        self._epoch = -1
        """Of the nodes among which those of reservations were looked for."""
        self._given: dict[tuple[str, str], _Taken] = {}
        """What gave way within a cycle, by the keys of pod and node."""
        self._adopted: dict[tuple[str, str], Adoption] = {}
        """The pods that reservations take over within a cycle, likewise."""
        self._owners = Users()
        self._holding = Users()
        """The same with those that got a node and are not bound yet."""
        self._stale: set[str] = set()
        """Reservations, by name, whose use may have changed."""
        self._unreported: set[str] = set()
        """Those of which it has to be written."""
        snapshot.on_object(ReservationObject, self._on_reservation)
        snapshot.on_pod(self._on_pod)
        for pod, node in snapshot.placed.values():
            self._on_pod(pod, node, True)

    # Who uses what ---------------------------------------------------------------------------

    def _on_reservation(self, old: ReservationObject | None, new: ReservationObject | None) -> None:
        had_any = bool(self._known)
        self._follow(old, new)
        if bool(self._known) != had_any:
            self.handle.concerns_changed()

    def _follow(self, old: ReservationObject | None, new: ReservationObject | None) -> None:
        if new is not None:
            self._known.put(new)
            self._ends.put(new)
            self._came.add(new.key)
            said = new.status.allocated or new.status.current_owners
            if said or self._owners.of(new.metadata.uid):
                self._stale.add(new.key)
        elif old is not None:
            self._known.drop(old)
            self._ends.drop(old.key)
            self._owners.forget(old.metadata.uid)
            self._holding.forget(old.metadata.uid)

    def _on_pod(self, pod: PodInfo, node: str, placed: bool) -> None:
        if self.handle.snapshot.in_trial:
            return
        uid = allocated_by(pod.pod.metadata.annotations)
        if uid and placed:
            self._use(uid, pod)
        elif not placed:
            for used in self._owners.leave(pod) | self._holding.leave(pod):
                self._look_at(used)

    def _use(self, uid: str, pod: PodInfo) -> None:
        self._owners.add(uid, pod)
        self._holding.add(uid, pod)
        self._look_at(uid)

    def _look_at(self, uid: str) -> None:
        """Have a reservation looked at whose use may have changed."""
        one = self._known.of_uid(uid)
        if one is not None:
            self._stale.add(one.key)

    # Where owners go -------------------------------------------------------------------------

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods that ask for a reservation, and all while there are any."""
        return bool(self._known) or AFFINITY in pod.pod.metadata.annotations

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by what makes a pod an owner, and by which reservations it has to use."""
        meta = pod.pod.metadata
        if is_reserve_pod(meta.annotations) or not (self._known or AFFINITY in meta.annotations):
            return None
        name = meta.name if self._known.name_pods else ""
        notes = meta.annotations
        own = (notes.get(AFFINITY), notes.get(EXACT_MATCH))
        return (pod.labels_id, name, meta.owner_references, *own)

    @hookimpl
    def placement_generate(self, unit: Unit) -> Placements | None:
        """Offer the nodes of reservations for a unit of owners, before all others."""
        notes = unit.pods[0].pod.metadata.annotations if unit.pods else {}
        if not (self._known or AFFINITY in notes):
            return None
        if is_reserve_pod(notes):
            return self._pre_allocations(unit)
        try:
            affinity, _ = affinity_of(notes), exact_match_of(notes)
        except ValueError as exc:
            return Placements(reason=str(exc))
        if unit.gang is not None and (unit.parts or unit.gang.gather):
            # Where its network lets it go comes first.
            return None
        found = self._matches(unit.pods[0], affinity)
        rows = self.handle.snapshot.nodes.row_of
        offered = []
        if unit.gang is None:
            offered = [
                Placement(
                    f"reservation {match.found.key}",
                    np.array([rows[match.node]], dtype=np.intp),
                    plan=_Plan(self, [match]),
                    exact=True,
                )
                for match in found[:_MOST_TRIED]
            ]
        elif len(found) >= unit.min_placed:
            nodes = sorted({rows[match.node] for match in found})
            at = np.array(nodes, dtype=np.intp)
            plan = _Plan(self, found)
            offered = [Placement("reservations", at, plan=plan, exact=True)]
        if affinity is not None:
            return Placements(tuple(offered), reason="" if offered else self._unmatched())
        return Placements((*offered, Placement("", None))) if offered else None

    @hookimpl
    def requeue_hint(self, pod: PodInfo) -> bool:
        """Tell whether there is a reservation that the pod may use now."""
        notes = pod.pod.metadata.annotations
        try:
            return not is_reserve_pod(notes) and bool(self._matches(pod, affinity_of(notes)))
        except ValueError:
            return False

    def _unmatched(self) -> str:
        count = len(self.handle.snapshot.nodes)
        return f"0/{count} nodes are available: {count} {_NO_MATCH}."

    def _matches(self, pod: PodInfo, affinity: ReservationAffinity | None) -> list[Match]:
        """Return the reservations that a pod may use now, the best first."""
        placed = self.handle.snapshot.placed
        available = []
        for one in self._known.may_be_owned_by(pod.pod):
            if one.status.phase != "Available":
                continue
            if is_allocate_once(one) and self._holding.of(one.metadata.uid):
                continue
            key = _stands(one)
            if key in placed and placed[key][1] == one.status.node_name:
                available.append(Match(one, key))
        exact = exact_match_of(pod.pod.metadata.annotations)
        return matches_of(pod, available, affinity, exact)

    def _pre_allocations(self, unit: Unit) -> Placements | None:
        """Offer the nodes where a reservation may take over pods, if it is to."""
        pod = unit.pods[0]
        one = self._known.get(reservation_of(pod.pod.metadata.annotations))
        if unit.gang is not None or one is None or not one.spec.pre_allocation:
            return None
        args = self.args.pre_allocation_config
        snapshot, count = self.handle.snapshot, len(self.handle.snapshot.nodes)
        refusal = unsupported(one, args)
        if refusal:
            return Placements(reason=f"0/{count} nodes are available: {count} {refusal}.")
        found = [] if pod.facts.wants_devices else adoptions(one, pod.requests, snapshot, args)
        offered = [
            Placement(
                f"pods of {adoption.node}",
                np.array([snapshot.nodes.row_of[adoption.node]], dtype=np.intp),
                plan=_AdoptionPlan(self, adoption),
                exact=True,
            )
            for adoption in found[:_MOST_TRIED]
        ]
        if requires_pre_allocation(one):
            return Placements(
                tuple(offered),
                reason="" if offered else f"0/{count} nodes are available: {count} {_NO_PODS}.",
            )
        anywhere = Placement("", None)
        ordered = (
            (anywhere, *offered) if args.prefer_no_pre_allocated_pods else (*offered, anywhere)
        )
        return Placements(ordered) if offered else None

    def make_room(self, pod: PodInfo, adoption: Adoption) -> None:
        """Take pods that a reservation takes over out of the snapshot, within the running trial."""
        snapshot = self.handle.snapshot
        for one in adoption.pods:
            snapshot.remove_pod(one.key)
        key = (pod.key, adoption.node)
        self._adopted[key] = adoption
        snapshot.on_rollback(lambda: self._forget(key))

    def _forget(self, key: tuple[str, str]) -> None:
        self._adopted.pop(key, None)

    def _adopt(self, pod: PodInfo, adoption: Adoption, state: CycleState) -> None:
        """Put the pods back that a reservation takes over, and in it what they leave."""
        snapshot = self.handle.snapshot
        state[_ADOPTED] = adoption
        names = ", ".join(one.key for one in adoption.pods)
        state[NOTES] = (*(state.get(NOTES) or ()), f"takes over {names}")
        snapshot.remove_pod(pod.key)
        for one in adoption.pods:
            snapshot.add_pod(one, adoption.node)
        snapshot.add_pod(_with_requests(pod, adoption.left(pod.requests)), adoption.node)

    @hookimpl
    def pre_bind(self, pod: PodInfo, state: CycleState) -> Preparation | None:
        """Write on the pods that a reservation takes over that they use it."""
        adoption = state.get(_ADOPTED)
        one = self._known.get(reservation_of(pod.pod.metadata.annotations))
        if adoption is None or one is None:
            return None
        writes = []
        for adopted in adoption.pods:
            notes = adopted.pod.metadata.annotations
            fields = annotation_field(notes, ALLOCATED, allocated_text(one))
            writes.append(PatchFields(Pod, adopted.key, adopted.pod.metadata.uid, fields))
            self._use(one.metadata.uid, adopted)
        return Preparation(writes)

    def give_way(self, pod: PodInfo, match: Match) -> bool:
        """Take a reservation out of the snapshot for a pod, within the running trial."""
        snapshot = self.handle.snapshot
        stand_in = snapshot.remove_pod(match.stands)
        if stand_in is None:
            return False
        key = (pod.key, match.node)
        self._given[key] = _Taken(match, stand_in)
        snapshot.on_rollback(lambda: self._take_back(key))
        return True

    def _take_back(self, key: tuple[str, str]) -> None:
        self._given.pop(key, None)

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> None:
        """Put back what is left of the reservation that gave way to the pod."""
        adoption = self._adopted.pop((pod.key, node.name), None)
        if adoption is not None:
            self._adopt(pod, adoption, state)
            return
        taken = self._given.pop((pod.key, node.name), None)
        if taken is None:
            return
        state[_CHOSEN] = taken
        note = f"uses the reservation {taken.match.found.key}"
        state[NOTES] = (*(state.get(NOTES) or ()), note)
        uid = taken.match.found.metadata.uid
        self._holding.add(uid, pod)
        self.handle.snapshot.on_rollback(lambda: self._holding.remove(uid, pod))
        if not is_allocate_once(taken.match.found):
            left = {
                name: amount - pod.requests.get(name, 0)
                for name, amount in taken.stand_in.requests.items()
            }
            self.handle.snapshot.add_pod(_with_requests(taken.stand_in, left), node.name)

    @hookimpl
    def unreserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> None:
        """Put the whole reservation back, or let the pods go that one took over."""
        taken = state.get(_CHOSEN)
        snapshot = self.handle.snapshot
        if state.get(_ADOPTED) is not None:
            snapshot.remove_pod(pod.key)
            return
        if taken is None or self._known.get(taken.match.found.key) is None:
            return
        snapshot.remove_pod(taken.match.stands)
        if not snapshot.in_trial:
            uid = taken.match.found.metadata.uid
            self._owners.remove(uid, pod)
            self._holding.remove(uid, pod)
            self._stale.add(taken.match.found.key)
            if snapshot.is_living(taken.stand_in):
                snapshot.add_pod(taken.stand_in, node.name)

    @hookimpl
    def bind(self, pod: PodInfo, state: CycleState) -> dict[str, str] | None:
        """Write on the pod which reservation it uses."""
        taken = state.get(_CHOSEN)
        if taken is None:
            return None
        self._use(taken.match.found.metadata.uid, pod)
        return {ALLOCATED: allocated_text(taken.match.found)}

    @hookimpl
    def post_bind(self, state: CycleState) -> None:
        """Write that the pod uses the reservation."""
        taken = state.get(_CHOSEN)
        one = self._known.get(taken.match.found.key) if taken is not None else None
        if one is not None:
            self._report(one, self.handle.unix_time)

    @hookimpl
    def post_evict(self, pod: PodInfo, eviction: Eviction) -> None:
        """Keep the node where an evicted pod fits for the one that is made in its place."""
        if not self.args.reserve_for_moved_pods or not eviction.moves_to:
            return
        made = reservation_for(pod, eviction.moves_to)
        if made is not None:
            self.handle.submit(CreateObject(made))

    # When they end ---------------------------------------------------------------------------

    @hookimpl
    def admit(self) -> None:
        """Keep what owners left before others are placed."""
        stale, self._stale = self._stale, set()
        self._unreported |= stale
        for name in stale:
            one = self._known.get(name)
            if one is not None and one.status.phase == "Available":
                self._keep_rest(one)

    def _keep_rest(self, one: ReservationObject) -> None:
        """Let the pod that stands for a reservation hold what its users leave."""
        snapshot = self.handle.snapshot
        known = snapshot.placed.get(_stands(one))
        users = self._holding.of(one.metadata.uid)
        if known is None or (is_allocate_once(one) and users):
            return
        stand_in, node = known
        left = {
            name: amount_of(name, quantity)
            - sum(pod.requests.get(name, 0) for pod in users.values())
            for name, quantity in one.status.allocatable.items()
        }
        if {n: a for n, a in left.items() if a > 0} != {
            n: a for n, a in stand_in.requests.items() if a > 0
        }:
            snapshot.remove_pod(stand_in.key)
            snapshot.add_pod(_with_requests(stand_in, left), node)

    @hookimpl
    def overdue(self) -> Overdue | None:
        """Write who uses reservations; end those whose time is over, delete those long over."""
        changed, self._unreported = self._unreported | self._stale, set()
        now = self.handle.unix_time
        ended = set(self._ends.due(now)) | self._without_node()
        for name in sorted(ended | changed):
            one = self._known.get(name)
            if one is None:
                continue
            if is_over(one):
                if name in ended:
                    self.handle.submit(DeleteObject(ReservationObject, name, one.metadata.uid))
            elif name in ended:
                status = as_expired(one, now)
                self.handle.submit(PatchStatus(ReservationObject, name, status, awaited=True))
            else:
                self._report(one, now)
        again = self._ends.next
        if again is None:
            return None
        return Overdue(again=self.handle.now + max(0.0, again - now))

    def _without_node(self) -> set[str]:
        """Return the names of those whose node is gone, of all that may have changed."""
        snapshot = self.handle.snapshot
        came, self._came = self._came, set()
        looked = [one for name in came if (one := self._known.get(name)) is not None]
        if snapshot.nodes.epoch != self._epoch:
            self._epoch, looked = snapshot.nodes.epoch, self._known.all()
        return {
            one.key
            for one in looked
            if not is_over(one)
            and one.status.node_name
            and snapshot.node(one.status.node_name) is None
        }

    def _report(self, one: ReservationObject, now: float) -> None:
        """Write who uses a reservation that has a node."""
        if not one.status.node_name:
            return
        pods = [pod.pod for pod in self._owners.of(one.metadata.uid).values()]
        status = with_owners(one, pods, now)
        if status != one.status:
            self.handle.submit(PatchStatus(ReservationObject, one.key, status))


class _Plan:
    """Gives pods the nodes of reservations, one each, which give way to them."""

    def __init__(self, plugin: Reservation, matches: Sequence[Match]) -> None:
        self._plugin = plugin
        self._matches = matches

    def __call__(self, pods: Sequence[PodInfo], limits: Mapping[int, int]) -> Sequence[int]:
        rows = self._plugin.handle.snapshot.nodes.row_of
        found: list[int] = []
        left = [match for match in self._matches if rows[match.node] not in limits]
        for pod in pods:
            while left and not self._plugin.give_way(pod, left[0]):
                left.pop(0)
            if not left:
                break
            found.append(rows[left.pop(0).node])
        return found


class _AdoptionPlan:
    """Gives a reservation the node of the pods that it takes over."""

    def __init__(self, plugin: Reservation, adoption: Adoption) -> None:
        self._plugin = plugin
        self._adoption = adoption

    def __call__(self, pods: Sequence[PodInfo], limits: Mapping[int, int]) -> Sequence[int]:
        row = self._plugin.handle.snapshot.nodes.row_of[self._adoption.node]
        if row in limits or not pods:
            return []
        self._plugin.make_room(pods[0], self._adoption)
        return [row]


def _stands(one: ReservationObject) -> str:
    """Return the key of the pod that stands for a reservation."""
    space = one.spec.template.metadata.namespace if one.spec.template is not None else ""
    return f"{space or 'default'}/{one.metadata.uid or one.key}"


def _with_requests(stand_in: PodInfo, left: Mapping[str, int]) -> PodInfo:
    """Return the pod that stands for a reservation with what is left of it."""
    requests = {
        name: Quantity(quantity_of(name, amount)) for name, amount in left.items() if amount > 0
    }
    rest = Container("reserved", "", ResourceRequirements(requests))
    spec = replace(
        stand_in.pod.spec, containers=(rest,), init_containers=(), overhead={}, resources=None
    )
    return PodInfo(Pod(stand_in.pod.metadata, spec, stand_in.pod.status))
