"""The scheduler driven by hand: every watch event, every answer and the time are the tester's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from msgspec import structs
from msgspec.structs import replace

from bayplan import Args, Plugin, PodInfo, Preparation, hookimpl
from bayplan.api import ApiObject, PersistentVolume, Pod, PodGroup, ResourceClaim
from bayplan.api.podgroup import PodGroupStatus
from bayplan.cluster.protocol import (
    Bind,
    BindVolume,
    Done,
    PatchPodStatus,
    PatchStatus,
    ReserveClaim,
    WatchEvent,
    WatchHandler,
    WatchType,
    Write,
)
from bayplan.errors import BayplanError, ClusterError, Conflict, Forbidden, NotFound
from bayplan.profiles.loading import Profile, ProfileSet, default_profiles
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.scheduler import Scheduler
from bayplan.testing import make_gang, make_node, make_object, make_pod
from bayplan_plugins.device_ledger.ledger import DeviceLedger
from bayplan_plugins.gang.status import phase_of

W = TypeVar("W", bound=Write)


class Hand:
    """A cluster that does nothing by itself, and the scheduler on it."""

    def __init__(
        self,
        *objects: ApiObject,
        plugins: Sequence[type[Plugin[Any]]] = (),
        observer: Observer | None = None,
    ) -> None:
        self.now = 0.0
        self.asked: list[tuple[float, Write, Done | None]] = []
        self._handler: WatchHandler | None = None
        self.scheduler = Scheduler(self, profiles_with(plugins), observer=observer)
        self.add(*objects)

    @property
    def unix_time(self) -> float:
        return self.now

    @property
    def in_order(self) -> bool:
        return True

    def watch(self, handler: WatchHandler) -> None:
        self._handler = handler

    def submit(self, write: Write, done: Done | None = None) -> None:
        self.asked.append((self.now, write, done))

    # Events ------------------------------------------------------------------------------

    def add(self, *objects: ApiObject) -> None:
        self._tell(WatchType.ADDED, *objects)

    def change(self, *objects: ApiObject) -> None:
        self._tell(WatchType.MODIFIED, *objects)

    def remove(self, *objects: ApiObject) -> None:
        self._tell(WatchType.DELETED, *objects)

    def _tell(self, type_: WatchType, *objects: ApiObject) -> None:
        assert self._handler is not None
        for obj in objects:
            self._handler(WatchEvent(type_, obj))

    def recheck(self) -> None:
        """Have what is being prepared asked whether it is ready, by an event about a volume."""
        self.add(volume("any"))
        self.remove(volume("any"))

    # Time --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run cycles until nothing is left to try now."""
        self.scheduler.tick()
        while self.scheduler.step():
            pass

    def advance(self, seconds: int) -> None:
        """Let time pass, second by second."""
        for _ in range(seconds):
            self.now += 1
            self.run()

    # Answers -----------------------------------------------------------------------------

    def writes(self, kind: type[W]) -> list[W]:
        """Return what was asked for and not answered yet."""
        return [write for _, write, _ in self.asked if isinstance(write, kind)]

    def answer(self, kind: type[W], error: ClusterError | None = None) -> W:
        """Answer the oldest write of a kind."""
        for index, (_, write, done) in enumerate(self.asked):
            if isinstance(write, kind):
                del self.asked[index]
                if done is not None:
                    done(error)
                return write
        raise AssertionError(f"no {kind.__name__} was asked for")

    # What the scheduler believes ---------------------------------------------------------

    def node_of(self, pod: str) -> str | None:
        placed = self.scheduler.snapshot.placed.get(f"default/{pod}")
        return placed[1] if placed is not None else None

    def labels_of(self, pod: str) -> dict[str, str]:
        queued = self.scheduler.queue.pod(f"default/{pod}")
        assert queued is not None
        return dict(queued.labels)


def profiles_with(plugins: Sequence[type[Plugin[Any]]]) -> ProfileSet:
    """Return the default profiles with these plugins first at every hook."""
    profiles = default_profiles()
    named = {plugin.__name__: plugin for plugin in plugins}

    def add(profile: Profile) -> Profile:
        first = tuple((name, 1) for name in named)
        return replace(
            profile,
            plugins={**profile.plugins, **named},
            args={**profile.args, **{name: one.Args() for name, one in named.items()}},
            points={hook: (*first, *order) for hook, order in profile.points.items()},
        )

    return replace(profiles, profiles=tuple(add(one) for one in profiles.profiles))


def prepares(ready: Callable[[], bool | str]) -> type[Plugin[Any]]:
    """Return a plugin that has every pod wait until ``ready``."""

    class Prepares(Plugin[Args]):
        @hookimpl
        def pre_bind(self, pod: PodInfo) -> Preparation:
            return Preparation((), ready, 60.0)

    return Prepares


def new_pod(name: str, uid: str = "", **given: Any) -> Pod:
    pod = make_pod(name, **given)
    return structs.replace(pod, metadata=structs.replace(pod.metadata, uid=uid or f"of-{name}"))


def on(pod: Pod, node: str) -> Pod:
    return structs.replace(pod, spec=structs.replace(pod.spec, node_name=node))


def labelled(pod: Pod, **labels: str) -> Pod:
    return structs.replace(pod, metadata=structs.replace(pod.metadata, labels=labels))


# Nodes -----------------------------------------------------------------------------------


def test_a_node_that_changes_twice_between_two_cycles_is_what_it_was_last() -> None:
    hand = Hand(make_node("n", cpu=2))
    hand.run()
    hand.change(make_node("n", cpu=8), make_node("n", cpu=2))
    hand.add(new_pod("p", cpu=4))
    hand.run()
    assert hand.writes(Bind) == []
    hand.change(make_node("n", cpu=2, unschedulable=True), make_node("n", cpu=8))
    hand.advance(2)
    assert [write.node for write in hand.writes(Bind)] == ["n"]


def test_a_node_that_is_made_anew_between_two_cycles_is_used() -> None:
    hand = Hand(make_node("n", cpu=2))
    hand.run()
    hand.remove(make_node("n", cpu=2))
    hand.add(make_node("n", cpu=2), new_pod("p", cpu=2))
    hand.run()
    assert hand.answer(Bind).node == "n"


# Between the decision and the binding ----------------------------------------------------


def test_a_pod_that_another_scheduler_binds_while_it_is_prepared_stays_where_it_is() -> None:
    ready = False
    hand = Hand(make_node("n0"), make_node("n1"), plugins=[prepares(lambda: ready)])
    pod = new_pod("p")
    hand.add(pod)
    hand.run()
    other = {"n0": "n1", "n1": "n0"}[hand.node_of("p") or ""]
    hand.change(on(pod, other))
    ready = True
    hand.recheck()
    hand.advance(20)
    assert hand.writes(Bind) == []
    assert hand.node_of("p") == other
    assert "default/p" not in hand.scheduler.queue


def test_a_preparation_that_raises_gives_the_place_back_and_is_tried_again() -> None:
    broken = True

    def ready() -> bool:
        if broken:
            raise RuntimeError("boom")
        return True

    hand = Hand(make_node("n"), plugins=[prepares(ready)])
    hand.add(new_pod("p"))
    hand.run()
    assert hand.node_of("p") is None
    (told,) = hand.writes(PatchPodStatus)
    assert "boom" in told.condition.message
    broken = False
    hand.advance(20)
    assert [write.pod for write in hand.writes(Bind)] == ["default/p"]


def test_a_gang_that_joins_a_group_while_it_is_prepared_is_bound_with_the_group() -> None:
    ready = False
    hand = Hand(make_node("n"), plugins=[prepares(lambda: ready)])
    hand.add(make_gang("a", 1), make_gang("b", 1), new_pod("a0", gang="a"))
    hand.run()
    assert hand.node_of("a0") == "n"
    group = {"gang.scheduling.koordinator.sh/groups": '["default/a","default/b"]'}
    hand.change(make_gang("a", 1, annotations=group), make_gang("b", 1, annotations=group))
    hand.add(new_pod("b0", gang="b"))
    hand.run()
    ready = True
    hand.recheck()
    hand.advance(20)
    assert sorted(write.pod for write in hand.writes(Bind)) == ["default/a0", "default/b0"]


def test_labels_that_change_while_a_pod_is_prepared_are_not_lost() -> None:
    ready: bool | str = False
    hand = Hand(make_node("n"), plugins=[prepares(lambda: ready)])
    pod = new_pod("p")
    hand.add(pod)
    hand.run()
    hand.change(labelled(pod, a="b"))
    ready = "refused"
    hand.recheck()
    assert hand.labels_of("p") == {"a": "b"}


def test_labels_that_change_while_a_pod_is_being_bound_are_not_lost() -> None:
    hand = Hand(make_node("n"))
    pod = new_pod("p")
    hand.add(pod)
    hand.run()
    hand.change(labelled(pod, a="b"))
    hand.answer(Bind, Conflict("no"))
    assert hand.labels_of("p") == {"a": "b"}


# Answers to bindings ---------------------------------------------------------------------


def test_a_binding_that_is_refused_again_and_again_is_asked_for_ever_less_often() -> None:
    hand = Hand(make_node("n"), new_pod("p"))
    asked = []
    for _ in range(600):
        hand.advance(1)
        while hand.writes(Bind):
            hand.answer(Bind, Forbidden("no"))
            asked.append(hand.now)
            hand.run()
    gaps = [after - before for before, after in pairwise(asked)]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 10


def test_an_answer_about_a_pod_that_was_made_anew_changes_nothing_for_the_new_one() -> None:
    hand = Hand(make_node("n"))
    old, new = new_pod("p", "old"), new_pod("p", "new")
    hand.add(old)
    hand.run()
    hand.remove(old)
    hand.add(new)
    hand.run()
    assert hand.answer(Bind, NotFound("gone")).uid == "old"
    assert hand.node_of("p") == "n"
    hand.change(on(new, "n"))
    assert hand.answer(Bind).uid == "new"
    assert hand.scheduler.unconfirmed == 0


@pytest.mark.parametrize("answer", [None, NotFound("gone")], ids=["bound", "refused"])
def test_plugins_hear_once_that_a_pod_went_while_its_binding_was_under_way(
    answer: ClusterError | None,
) -> None:
    heard: list[str] = []

    class Listens(Plugin[Args]):
        @hookimpl
        def reserve(self, pod: PodInfo) -> None:
            heard.append("reserve")

        @hookimpl
        def unreserve(self, pod: PodInfo) -> None:
            heard.append("unreserve")

    pod = new_pod("p")
    hand = Hand(make_node("n"), pod, plugins=[Listens])
    hand.run()
    hand.remove(pod)
    hand.answer(Bind, answer)
    assert heard == ["reserve", "unreserve"]
    assert hand.node_of("p") is None


def test_a_cycle_that_raises_leaves_its_unit_in_the_queue() -> None:
    class FailsOnce(Observer):
        failed = False

        def begins(self) -> None:
            if not self.failed:
                self.failed = True
                raise BayplanError("the observer fails")

    hand = Hand(make_node("n"), new_pod("p"), observer=FailsOnce())
    with pytest.raises(BayplanError):
        hand.run()
    hand.advance(20)
    assert [write.pod for write in hand.writes(Bind)] == ["default/p"]


# Devices ---------------------------------------------------------------------------------


def gpus(node: str) -> list[ApiObject]:
    """One GPU of a node, and the class of all."""
    group = "resource.k8s.io/v1"
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d", "nodeName": node, "pool": pool, "devices": [{"name": "gpu"}]}
    meta = {"name": node}
    return [
        make_object(
            {"apiVersion": group, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
        ),
        make_object({"apiVersion": group, "kind": "ResourceSlice", "metadata": meta, "spec": spec}),
    ]


def gpu_claim(name: str, uid: str = "", **parameters: int) -> ResourceClaim:
    """One GPU is asked for; ``parameters`` are what its driver is told."""
    meta = {"namespace": "default", "name": name, "uid": uid or f"of-{name}"}
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    config = [{"opaque": {"driver": "d", "parameters": parameters}}] if parameters else []
    found = make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {**meta, "resourceVersion": "1"},
            "spec": {"devices": {"requests": [request], "config": config}},
        }
    )
    assert isinstance(found, ResourceClaim)
    return found


def claimant(name: str, claim: str) -> Pod:
    spec = {"resourceClaims": [{"name": "c", "resourceClaimName": claim}]}
    return new_pod(name, spec=spec)


def ledger_of(hand: Hand) -> DeviceLedger:
    ledger = hand.scheduler.snapshot.shared(DeviceLedger, DeviceLedger)
    assert isinstance(ledger, DeviceLedger)
    return ledger


def test_a_claim_that_is_gone_when_a_binding_is_refused_is_waited_for() -> None:
    claim = gpu_claim("k", "old")
    hand = Hand(make_node("n"), *gpus("n"), claim, claimant("p", "k"))
    hand.run()
    allocation = hand.answer(ReserveClaim).allocation
    claim = structs.replace(claim, status=structs.replace(claim.status, allocation=allocation))
    hand.change(claim)
    hand.remove(claim)
    hand.answer(Bind, Conflict("no"))
    hand.advance(20)
    hand.add(gpu_claim("k", "new"))
    hand.advance(20)
    assert hand.answer(ReserveClaim).uid == "new"


def test_devices_for_a_pod_that_another_scheduler_binds_are_free_again() -> None:
    pod = claimant("p", "k")
    hand = Hand(make_node("n0"), make_node("n1"), *gpus("n0"), gpu_claim("k"), pod)
    hand.run()
    assert hand.node_of("p") == "n0"
    hand.change(on(pod, "n1"))
    hand.answer(ReserveClaim)
    hand.run()
    assert hand.node_of("p") == "n1"
    assert not ledger_of(hand).in_flight
    assert not ledger_of(hand).state.devices


def test_specs_of_claims_that_are_gone_are_forgotten() -> None:
    hand = Hand(make_node("n"), *gpus("n"))
    for index in range(50):
        claim, pod = gpu_claim(f"k{index}", job=index), claimant(f"p{index}", f"k{index}")
        hand.add(claim, pod)
        hand.run()
        hand.remove(pod, claim)
        hand.run()
    assert len(ledger_of(hand).specs) < 20


def test_devices_of_nodes_that_are_gone_are_forgotten() -> None:
    hand = Hand(*gpus("n")[:1])
    for index in range(30):
        name = f"n{index}"
        node, slice_, claim, pod = (
            make_node(name),
            gpus(name)[1],
            gpu_claim(name),
            claimant(name, name),
        )
        hand.add(node, slice_, claim, pod)
        hand.run()
        hand.remove(pod, claim, slice_, node)
        hand.run()
    assert len(ledger_of(hand).devices) < 10


# Volumes ---------------------------------------------------------------------------------


def volume(name: str, claim: str = "") -> PersistentVolume:
    """A local volume, free or of a claim."""
    spec: dict[str, Any] = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
    }
    if claim:
        spec["claimRef"] = {"namespace": "default", "name": claim, "uid": f"of-{claim}"}
    found = make_object(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "uid": f"of-{name}", "resourceVersion": "1"},
            "spec": spec,
            "status": {"phase": "Bound" if claim else "Available"},
        }
    )
    assert isinstance(found, PersistentVolume)
    return found


def volume_claim(name: str, volume_name: str = "") -> ApiObject:
    done = {"pv.kubernetes.io/bind-completed": "yes"} if volume_name else {}
    meta = {"namespace": "default", "name": name, "uid": f"of-{name}", "annotations": done}
    return make_object(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {**meta, "resourceVersion": "1"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "local",
                "resources": {"requests": {"storage": "1Gi"}},
                "volumeName": volume_name,
            },
            "status": {"phase": "Bound" if volume_name else "Pending"},
        }
    )


def volume_user(name: str, claim: str) -> Pod:
    mounts = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
    return new_pod(name, spec={"volumes": mounts})


def local_class() -> ApiObject:
    return make_object(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "local"},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    )


def being_bound_with_a_volume() -> Hand:
    """The binding of p is under way; its claim k has the only volume."""
    hand = Hand(make_node("n"), local_class(), volume("v"), volume_claim("k"))
    hand.add(volume_user("p", "k"))
    hand.run()
    assert hand.answer(BindVolume).volume == "v"
    hand.change(volume("v", "k"), volume_claim("k", "v"))
    hand.run()
    assert hand.writes(Bind)
    return hand


def assert_the_volume_is_given_again(hand: Hand) -> None:
    hand.remove(volume_claim("k", "v"))
    hand.change(volume("v"))
    hand.add(volume_claim("k2"), volume_user("p2", "k2"))
    hand.run()
    write = hand.answer(BindVolume)
    assert (write.volume, write.claim) == ("v", "default/k2")


def test_a_volume_is_free_again_when_its_pod_goes_while_it_is_being_bound() -> None:
    hand = being_bound_with_a_volume()
    hand.remove(volume_user("p", "k"))
    hand.answer(Bind, NotFound("gone"))
    assert_the_volume_is_given_again(hand)


def test_a_volume_is_free_again_when_its_node_goes_while_its_pod_is_being_bound() -> None:
    hand = being_bound_with_a_volume()
    hand.remove(make_node("n"))
    hand.run()
    hand.answer(Bind)
    hand.remove(volume_user("p", "k"))
    hand.add(make_node("n1"))
    assert_the_volume_is_given_again(hand)


# Gangs -----------------------------------------------------------------------------------


def patient_gang(name: str, min_member: int, seconds: int) -> ApiObject:
    return make_object(
        {
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"minMember": min_member, "scheduleTimeoutSeconds": seconds},
        }
    )


def test_a_gang_that_is_made_anew_under_its_name_has_all_its_time_again() -> None:
    gang, pod = patient_gang("g", 2, seconds=10), new_pod("p", "old", gang="g")
    hand = Hand(make_node("n"), gang, pod)
    hand.advance(20)
    assert hand.scheduler.gangs["default/g"].overdue
    hand.remove(pod, gang)
    hand.advance(100)
    hand.add(gang, new_pod("p", "new", gang="g"))
    hand.advance(5)
    assert not hand.scheduler.gangs["default/g"].overdue
    hand.advance(10)
    assert hand.scheduler.gangs["default/g"].overdue


def test_members_that_come_one_by_one_are_told_at_most_once_a_second() -> None:
    size = 200
    hand = Hand(make_node("n", cpu=4), make_gang("g", size))
    for index in range(size - 1):
        hand.now += 0.05
        hand.add(new_pod(f"p{index}", gang="g"))
        hand.run()
    hand.advance(2)
    times: dict[str, list[float]] = defaultdict(list)
    last: dict[str, str] = {}
    for at, write, _ in hand.asked:
        if isinstance(write, PatchPodStatus):
            times[write.pod].append(at)
            last[write.pod] = write.condition.message
    gaps = [after - before for found in times.values() for before, after in pairwise(found)]
    assert min(gaps) == pytest.approx(1.0)
    # Everybody is told how it stands at last.
    assert len(last) == size - 1
    (message,) = set(last.values())
    assert "waiting for members: 199 of 200 exist" in message


def test_the_gates_of_a_large_gang_that_is_deleted_are_asked_once_and_not_for_every_pod() -> None:
    asked = 0

    class Counts(Plugin[Args]):
        @hookimpl
        def pre_enqueue(self, pod: PodInfo) -> str | None:
            nonlocal asked
            asked += 1
            return None

    size = 500
    hand = Hand(make_node("n", cpu=4), make_gang("g", size), plugins=[Counts])
    pods = [new_pod(f"p{index}", gang="g") for index in range(size)]
    hand.add(*pods)
    hand.run()
    asked = 0
    hand.remove(*pods[:-1])
    hand.run()
    assert asked <= 2 * size
    hand.remove(pods[-1])
    hand.run()
    assert not hand.scheduler.queue.units


def status_writes(hand: Hand) -> list[PodGroupStatus]:
    """Return the statuses of pod groups that were asked for, and answer them."""
    found = []
    while hand.writes(PatchStatus):
        status = hand.answer(PatchStatus).status
        assert isinstance(status, PodGroupStatus)
        found.append(status)
    return found


def show(hand: Hand, group: PodGroup, statuses: list[PodGroupStatus]) -> PodGroupStatus:
    """Show the writes on the watch, and what is written then; return what the server has last."""
    shown = group.status
    while statuses:
        for shown in statuses:
            hand.change(structs.replace(group, status=shown))
        hand.run()
        statuses = status_writes(hand)
    return shown


def test_a_status_that_goes_back_while_its_writes_are_not_seen_is_right_at_last() -> None:
    group = make_gang("g", 1)
    hand = Hand(make_node("n"), group)
    hand.run()
    first = show(hand, group, status_writes(hand))
    pod = new_pod("p", gang="g")
    hand.add(pod)
    hand.run()
    written = status_writes(hand)
    hand.answer(Bind)
    hand.change(on(pod, "n"))
    hand.remove(on(pod, "n"))
    hand.run()
    written += status_writes(hand)
    assert show(hand, group, written) == first


def test_a_status_tells_of_a_member_that_left_before_the_status_was_seen() -> None:
    group = make_gang("g", 2)
    hand = Hand(make_node("n"), group)
    first, second = new_pod("first", gang="g"), new_pod("second", gang="g")
    hand.add(first)
    hand.run()
    status = show(hand, group, status_writes(hand))
    hand.add(second)
    hand.run()
    written = status_writes(hand)
    hand.remove(second)
    hand.run()
    written += status_writes(hand)
    status = show(hand, structs.replace(group, status=status), written)
    members = hand.scheduler.gangs["default/g"]
    assert status.phase == phase_of(members)
    assert status.scheduled == len(members.bound)


# What is remembered ----------------------------------------------------------------------


def test_a_standby_does_not_remember_pods_that_are_gone() -> None:
    hand = Hand(make_node("n"))
    for index in range(100):
        pod = new_pod(f"p{index}", gang=f"g{index}")
        hand.add(pod)
        hand.change(on(pod, "n"))
        hand.remove(on(pod, "n"))
    waiting = new_pod("waiting", gang="g")
    hand.add(waiting)
    scheduler = hand.scheduler
    scheduler.stand_by()
    # The next leader reports what still waits.
    backlog = scheduler.backlog()
    assert (backlog["gates to record"], backlog["group statuses to write"]) == (1, 1)
    hand.remove(waiting)
    scheduler.stand_by()
    backlog = scheduler.backlog()
    assert (backlog["gates to record"], backlog["group statuses to write"]) == (0, 0)
    assert hand.asked == []


def test_gangs_that_ended_are_forgotten() -> None:
    hand = Hand(make_node("n"))
    for index in range(50):
        gang, pod = patient_gang(f"g{index}", 1, 10), new_pod(f"p{index}", gang=f"g{index}")
        hand.add(gang, pod)
        hand.run()
        bound = on(pod, "n")
        hand.change(bound)
        hand.answer(Bind)
        over = structs.replace(bound, status=structs.replace(bound.status, phase="Succeeded"))
        hand.change(over)
        hand.remove(over, gang)
        hand.advance(20)
    scheduler = hand.scheduler
    assert not scheduler.gangs.all()
    assert not scheduler.queue.units
    assert not any(scheduler.backlog().values())
