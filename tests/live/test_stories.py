"""Random stories of a cluster in trouble; when it is quiet again, the scheduler knows what is so.

A story is a list of steps, drawn from its seed: users, other schedulers, nodes, the server and the
scheduler's own process do what they like. At the end everything works again for a minute, and what
the scheduler believes is compared with the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from tests.live.stage import Stage, stage

from bayplan.api import ApiObject, Node, Pod, PodGroup, ResourceClaim
from bayplan.cluster.apiserver import ServerFaults, WatchFault
from bayplan.cluster.protocol import Bind, WatchEvent
from bayplan.errors import BayplanError
from bayplan.live.app import LiveApp
from bayplan.profiles.loading import ProfileSet, default_profiles
from bayplan.profiles.settings import LeaderElection
from bayplan.scheduler.queued_unit import Place
from bayplan.testing import make_gang, make_node, make_object, make_pod
from bayplan_plugins.device_ledger.ledger import DeviceLedger

NODES, CPU, GPUS, NAMES, GANGS, STEPS = 4, 6, 3, 12, 3, 40
CALM = 45.0
"""Seconds without trouble after which everything has to be right; shorter than any flush."""


# The world -----------------------------------------------------------------------------------


def dra(kind: str, name: str, spec: dict[str, Any]) -> ApiObject:
    meta = {"name": name, **({"namespace": "default"} if "Claim" in kind else {})}
    version = "resource.k8s.io/v1"
    return make_object({"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec})


GROUPS = "gang.scheduling.koordinator.sh/groups"
CLAIM = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}


def world() -> list[ApiObject]:
    found: list[ApiObject] = [
        dra("DeviceClass", "gpu", {}),
        dra("ResourceClaimTemplate", "one", {"spec": CLAIM}),
    ]
    for index in range(NODES):
        name = f"n{index}"
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        devices = [{"name": f"gpu{gpu}"} for gpu in range(GPUS)]
        spec = {"driver": "gpu.example.com", "nodeName": name, "pool": pool, "devices": devices}
        found += [make_node(name, CPU, "64Gi"), dra("ResourceSlice", f"slice-{name}", spec)]
    return found


def electing(profiles: ProfileSet) -> ProfileSet:
    lease = LeaderElection(resource_name="story", resource_namespace="kube-system")
    return replace(profiles, leader_election=lease)


# The story -----------------------------------------------------------------------------------


class Story:
    """One seed's steps on one stage; ``told`` lists what was done, for whoever has to mend it."""

    def __init__(self, made: Stage, seed: int, elects: bool, foreign: bool) -> None:
        self.made = made
        self.cluster = made.cluster
        self.draw = random.Random(seed)
        self.elects = elects
        self.told: list[str] = []
        self.steps: list[Callable[[], Awaitable[None] | None]] = [
            *[self.create_pod] * 8,
            *[self.delete_pod] * 3,
            *[self.recreate_pod] * 3,
            self.label_pod,
            *[self.create_gang] * 2,
            self.delete_gang,
            self.change_gang,
            self.flip_node,
            self.delete_node,
            self.return_node,
            *[self.change_shared_claim] * 2,
            *[self.hold_back] * 2,
            self.end_watches,
            self.forget_history,
            *[self.trouble] * 3,
            self.calm,
            self.kill,
            self.stop,
            self.reload,
        ]
        if foreign:
            self.steps += [self.bind_elsewhere] * 2

    async def play(self, steps: int) -> None:
        """Begin, do as many steps, mend everything, and wait until it is quiet."""
        for _ in range(2 if self.elects else 1):
            await self.begin()
        for _ in range(steps):
            done = self.draw.choice(self.steps)()
            if done is not None:
                await done
            self.cluster.settle()
            await asyncio.sleep(self.draw.choice((0.0, 0.0, 0.001, 0.005, 0.05, 1.5)))
        self.calm()
        for index in range(NODES):
            self.return_node(f"n{index}")
        # A process that lost its lease has ended by then, and the next one may need all of it.
        await asyncio.sleep(1)
        await self.replace_ended()
        await asyncio.sleep(CALM)

    def tell(self, text: str) -> None:
        self.told.append(f"{asyncio.get_running_loop().time():.3f} {text}")

    # The scheduler's process

    async def begin(self) -> None:
        profiles = default_profiles()
        if self.elects:
            profiles = electing(profiles)
        app = self.made.make(
            profiles, leader_elect=self.elects, clock=asyncio.get_running_loop().time
        )
        self.made.run(app)
        await asyncio.sleep(0.01)

    async def replace_ended(self) -> None:
        """Start a process anew that has ended, as a Deployment would."""
        for app in list(self.made.apps):
            if self.made.has_ended(app):
                self.tell(f"a process ended: {await self.made.exit_status(app)}")
                await self.begin()

    async def kill(self) -> None:
        self.tell("kill")
        await self.replace_ended()
        await self.made.kill(self.draw.choice(self.made.apps))
        await self.begin()

    async def stop(self) -> None:
        self.tell("stop")
        await self.replace_ended()
        await self.made.stop(self.draw.choice(self.made.apps))
        await self.begin()

    def reload(self) -> None:
        self.tell("reload")
        for app in self.made.apps:
            app.reload()

    # Users

    def name(self) -> str:
        return f"p{self.draw.randrange(NAMES)}"

    def create_pod(self, name: str = "") -> None:
        name = name or self.name()
        if self.cluster.get(Pod, f"default/{name}") is not None:
            return
        cpu = self.draw.choice((1, 1, 2, 3, 5))
        gang = self.draw.choice((None, None, None, "g0", "g1", "g2"))
        priority = self.draw.choice((0, 0, 0, 0, 10))
        spec: dict[str, Any] = {}
        uses = self.draw.choice(("", "", "", "", "one", "one", "shared"))
        if uses:
            how = "resourceClaimName" if uses == "shared" else "resourceClaimTemplateName"
            spec["resourceClaims"] = [{"name": "gpu", how: uses}]
        self.tell(f"create {name} cpu={cpu} gang={gang} priority={priority} {uses}")
        self.cluster.create(make_pod(name, cpu, gang=gang, priority=priority, spec=spec))

    def delete_pod(self, name: str = "") -> None:
        pods = sorted(self.made.pods())
        if not pods:
            return
        key = f"default/{name}" if name else self.draw.choice(pods)
        self.tell(f"delete {key}")
        with contextlib.suppress(BayplanError):
            self.cluster.delete(Pod, key, grace=self.draw.choice((0, 0, 1)))

    def recreate_pod(self) -> None:
        """The same name, another pod, at the same instant."""
        pods = sorted(self.made.pods())
        if pods:
            key = self.draw.choice(pods)
            self.tell(f"recreate {key}")
            self.cluster.delete(Pod, key, grace=0)
            self.create_pod(key.partition("/")[2])

    def label_pod(self) -> None:
        key = f"default/{self.name()}"
        pod = self.cluster.get(Pod, key)
        if pod is not None:
            self.tell(f"label {key}")
            labels = {**pod.metadata.labels, "story": str(self.draw.randrange(3))}
            self.cluster.update(replace(pod, metadata=replace(pod.metadata, labels=labels)))

    def create_gang(self) -> None:
        name, least = f"g{self.draw.randrange(GANGS)}", self.draw.choice((1, 2, 3))
        if self.cluster.get(PodGroup, f"default/{name}") is None:
            self.tell(f"gang {name} {least}")
            self.cluster.create(make_gang(name, least))

    def delete_gang(self) -> None:
        name = f"g{self.draw.randrange(GANGS)}"
        if self.cluster.get(PodGroup, f"default/{name}") is not None:
            self.tell(f"delete gang {name}")
            self.cluster.delete(PodGroup, f"default/{name}")

    def change_gang(self) -> None:
        gang = self.cluster.get(PodGroup, f"default/g{self.draw.randrange(GANGS)}")
        if gang is not None:
            least = self.draw.choice((1, 2))
            group = self.draw.choice(("", '["default/g0", "default/g1"]'))
            self.tell(f"gang {gang.metadata.name} has {least}, group {group}")
            annotations = {GROUPS: group} if group else {}
            meta = replace(gang.metadata, annotations=annotations)
            spec = replace(gang.spec, min_member=least)
            self.cluster.update(replace(gang, metadata=meta, spec=spec))

    def change_shared_claim(self) -> None:
        """Make the claim that several pods name, or delete it."""
        if self.cluster.get(ResourceClaim, "default/shared") is None:
            self.tell("create claim shared")
            self.cluster.create(dra("ResourceClaim", "shared", CLAIM))
        else:
            self.tell("delete claim shared")
            self.cluster.delete(ResourceClaim, "default/shared")

    def hold_back(self) -> None:
        """What one kind's watch tells comes late."""
        app = self.draw.choice(self.made.apps)
        kind = self.draw.choice((Pod, Pod, Node, ResourceClaim, PodGroup))
        seconds = self.draw.choice((0.02, 0.1, 1.0))
        reflector = next(one for one in app.cache.reflectors if one.kind.type is kind)
        if reflector._deliver != app.cache._received:
            return
        self.tell(f"{kind.__name__}s are told {seconds} s late")
        late: list[WatchEvent] = []
        reflector._deliver = late.append

        def flush() -> None:
            reflector._deliver = app.cache._received
            for event in late:
                reflector._deliver(event)

        asyncio.get_running_loop().call_later(seconds, flush)

    def bind_elsewhere(self) -> None:
        """Another scheduler is quicker."""
        waiting = [pod for pod in self.made.pods().values() if not pod.spec.node_name]
        if waiting:
            pod, node = self.draw.choice(waiting), f"n{self.draw.randrange(NODES)}"
            self.tell(f"another scheduler binds {pod.key} to {node}")
            self.cluster.submit(Bind(pod.key, pod.metadata.uid, node))

    # Nodes

    def flip_node(self) -> None:
        """Cordon a node, and (mostly) think better of it at once."""
        node = self.cluster.get(Node, f"n{self.draw.randrange(NODES)}")
        if node is None:
            return
        back = self.draw.random() < 0.7
        self.tell(f"cordon {node.metadata.name} {'and back' * back}")
        self.cluster.update(replace(node, spec=replace(node.spec, unschedulable=True)))
        if back:
            again = self.cluster.get(Node, node.metadata.name)
            assert again is not None
            self.cluster.update(replace(again, spec=replace(again.spec, unschedulable=False)))

    def delete_node(self) -> None:
        name = f"n{self.draw.randrange(NODES)}"
        node = self.cluster.get(Node, name)
        if node is not None:
            self.tell(f"delete {name}")
            self.cluster.delete(Node, name)
            if self.draw.random() < 0.5:
                self.return_node(name)

    def return_node(self, name: str = "") -> None:
        name = name or f"n{self.draw.randrange(NODES)}"
        node = self.cluster.get(Node, name)
        if node is None:
            self.tell(f"return {name}")
            self.cluster.create(make_node(name, CPU, "64Gi"))
        elif node.spec.unschedulable:
            self.tell(f"uncordon {name}")
            self.cluster.update(replace(node, spec=replace(node.spec, unschedulable=False)))

    # The server

    def end_watches(self) -> None:
        fault = self.draw.choice(list(WatchFault))
        self.tell(f"watches end: {fault.value}")
        self.made.server.end_watches(fault)

    def forget_history(self) -> None:
        self.tell("history forgotten")
        self.made.server.compact()
        self.made.server.end_watches()

    def trouble(self) -> None:
        faults = self.made.server.faults
        verb = self.draw.choice(("create", "patch", "get", "list"))
        what = self.draw.choice(("409", "500", "429", "before", "after", "slow"))
        times = self.draw.randrange(1, 5)
        self.tell(f"trouble: {verb} {what} {times} times")
        if what == "slow":
            faults.latency = 0.01
        elif what in ("before", "after"):
            faults.close(times, verb, after=what == "after")
        elif not (what == "409" and verb in ("get", "list")):
            faults.fail(times, verb, code=int(what), retry_after=1 if what == "429" else None)

    def calm(self) -> None:
        self.tell("calm")
        self.made.server.faults.clear()


# What has to be so in the end ----------------------------------------------------------------


def leader(made: Stage) -> LiveApp:
    leading = [app for app in made.apps if app.live is not None and app.live.leads()]
    assert leading, "nobody leads"
    return leading[0]


def violations(made: Stage, foreign: bool) -> Iterator[str]:
    """Yield what is not as it should be."""
    live = leader(made).live
    assert live is not None
    scheduler, pods = live.scheduler, made.pods()
    alive = {k: p for k, p in pods.items() if p.status.phase in ("Pending", "Running")}
    placed = {key: pod.spec.node_name for key, pod in alive.items() if pod.spec.node_name}
    waiting = {key: pod for key, pod in alive.items() if key not in placed}

    seen = {key: node for key, (_, node) in scheduler.snapshot.placed.items()}
    held = {pod.key for hold in scheduler.nominator.all() for pod in hold.pods}
    seen = {key: node for key, node in seen.items() if key not in held}
    if seen != placed:
        yield f"placed: {set(seen.items()) ^ set(placed.items())}"
    for key, (info, _) in scheduler.snapshot.placed.items():
        if key in pods and info.uid != pods[key].metadata.uid:
            yield f"{key}: the snapshot has another pod of that name"
        if key in pods and dict(info.labels) != dict(pods[key].metadata.labels):
            yield f"{key}: placed with labels {info.labels}, has {pods[key].metadata.labels}"
    queued = {key: pod for unit in scheduler.queue.units.values() for key, pod in unit.pods.items()}
    if queued.keys() != waiting.keys():
        yield f"queued: {queued.keys() ^ waiting.keys()}"
    for key in queued.keys() & waiting.keys():
        if queued[key].uid != waiting[key].metadata.uid:
            yield f"{key}: another pod of that name is queued"
        if dict(queued[key].labels) != dict(waiting[key].metadata.labels):
            yield f"{key}: queued with old labels"
    for unit in scheduler.queue.units.values():
        if unit.place is Place.IN_FLIGHT:
            yield f"{unit.key}: in flight for ever"
    backlog = scheduler.backlog()
    unfinished = {what: backlog[what] for what in ("assumed", "at Permit", "being prepared")}
    unfinished["being written"] = leader(made).cluster.writing
    for what, number in unfinished.items():
        if number:
            yield f"{what}: {number}"
    yield from _nodes_are_known(made, scheduler)
    yield from _gangs_are_known(scheduler, placed, waiting)
    yield from _devices_are_counted(made, scheduler, pods)
    yield from _pods_are_told(made, scheduler, waiting, placed)
    try:
        made.check_nodes()
    except AssertionError as exc:
        yield f"over-committed: {exc}"
    if not foreign:
        yield from (
            f"{key}: {pod.status.reason}"
            for key, pod in pods.items()
            if pod.status.reason.startswith("OutOf")
        )


def _nodes_are_known(made: Stage, scheduler: Any) -> Iterator[str]:
    scheduler.snapshot.sync()
    table = scheduler.snapshot.nodes
    nodes = {node.metadata.name: node for node in made.cluster.list(Node)}
    if set(table.row_of) != set(nodes):
        yield f"nodes: {set(table.row_of) ^ set(nodes)}"
    for name in set(table.row_of) & set(nodes):
        known = table.nodes[table.row_of[name]]
        if known.spec.unschedulable != nodes[name].spec.unschedulable:
            yield f"node {name}: known as {known.spec}, is {nodes[name].spec}"
        if known.spec.taints != nodes[name].spec.taints:
            yield f"node {name}: known taints {known.spec.taints}, is {nodes[name].spec.taints}"


def _gangs_are_known(
    scheduler: Any, placed: dict[str, str], waiting: dict[str, Pod]
) -> Iterator[str]:
    for gang, members in scheduler.gangs.all().items():
        for key in members.pending:
            if key not in waiting:
                yield f"gang {gang}: {key} does not wait"
        for key, (_, node) in members.bound.items():
            if placed.get(key) != node:
                yield f"gang {gang}: {key} is not on {node}"
        if sum(members.owners.values()) != len(members.pending) + len(members.bound):
            yield f"gang {gang}: counts its owners wrongly"


def _devices_are_counted(made: Stage, scheduler: Any, pods: dict[str, Pod]) -> Iterator[str]:
    ledger = scheduler.snapshot.shared(DeviceLedger, DeviceLedger)
    taken = {
        (one.driver, one.pool, one.device)
        for claim in made.cluster.list(ResourceClaim)
        if claim.status.allocation is not None
        for one in claim.status.allocation.devices.results
    }
    counted = {(one.driver, one.pool, one.device) for one in ledger.state.devices}
    if counted != taken and not list(scheduler.nominator.all()):
        yield f"devices: {counted ^ taken}"
    if ledger.in_flight:
        yield f"in flight: {[one.uid for one in ledger.in_flight]}"
    uids = {pod.metadata.uid for pod in pods.values()}
    for claim in made.cluster.list(ResourceClaim):
        for user in claim.status.reserved_for:
            if user.uid not in uids:
                yield f"claim {claim.key} is reserved for a pod that is gone: {user.name}"
    for profile in scheduler.profiles.values():
        gone = set(profile.runtime.plugins["DynamicResources"].writer.pods) - uids
        if gone:
            yield f"DynamicResources remembers pods that are gone: {sorted(gone)}"


def _pods_are_told(
    made: Stage, scheduler: Any, waiting: dict[str, Pod], placed: dict[str, str]
) -> Iterator[str]:
    used = Counter[str]()
    for key, node in placed.items():
        used[node] += made.pods()[key].spec.containers[0].resources.requests["cpu"].milli
    free = max(CPU * 1000 - used[f"n{index}"] for index in range(NODES))
    for key, pod in waiting.items():
        condition = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
        if condition is None or condition.status != "False" or not condition.message:
            yield f"{key}: its condition is {condition}"
            continue
        plain = not pod.spec.resource_claims and len(pod.metadata.labels.keys() - {"story"}) == 0
        asked = pod.spec.containers[0].resources.requests["cpu"].milli
        if plain and asked <= free and not list(scheduler.nominator.all()):
            yield f"{key}: waits ({condition.message}), though a node has room"


# The tests -----------------------------------------------------------------------------------


@asynccontextmanager
async def ticking(seed: int) -> AsyncIterator[Stage]:
    async with stage(world(), faults=ServerFaults(seed)) as made:
        ticker = asyncio.create_task(made.tick())
        try:
            yield made
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)


async def run_story(
    seed: int, steps: int = STEPS, elects: bool = False, foreign: bool = False
) -> None:
    """Play a story and check how it ends; the message of a failure tells the story."""
    before = asyncio.all_tasks()
    async with ticking(seed) as made:
        story = Story(made, seed, elects, foreign)
        try:
            await story.play(steps)
            found = list(violations(made, foreign))
        except Exception as exc:
            story.tell(f"!!! {exc!r}")
            print("\n".join(story.told))
            raise
    names = [task.get_name() for task in asyncio.all_tasks() - before]
    found += [f"a task was left: {name}" for name in names if name.startswith("follow")]
    assert not found, "\n".join([f"seed {seed}:", *found, "the story:", *story.told])


@pytest.mark.parametrize("seed", range(4))
async def test_after_any_trouble_the_scheduler_knows_what_is_and_has_told_what_waits(
    seed: int,
) -> None:
    await run_story(seed)


@pytest.mark.parametrize("seed", range(3))
async def test_another_scheduler_that_binds_the_same_pods_confuses_nobody(seed: int) -> None:
    await run_story(seed, foreign=True)


@pytest.mark.parametrize("seed", range(3))
async def test_processes_that_come_and_go_hand_the_cluster_over_as_it_is(seed: int) -> None:
    await run_story(seed, elects=True)
