"""What happens to queues in a world, and what has to hold of them at any time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
from tests.properties.queue_worlds import GPU, Dialect, Job, Team, World

from bayplan.api import Node, Pod
from bayplan.api.object_key import object_key
from bayplan.cluster.protocol import Bind, CreateObject, Evict, PatchFields, PatchStatus
from bayplan.errors import Conflict, Transient
from bayplan.profiles.loading import ProfileSet, default_profiles
from bayplan.queues.tree import EPSILON
from bayplan.testing import Cluster, make_node
from bayplan_plugins.queues.policy import Policy

__all__ = ["Happens", "Story", "told"]

Happens = tuple[str, int, int]
"""An event, a number that chooses among what it may be about, and the seconds that pass then."""

PLUGINS = (
    *("SchedulingGates", "PrioritySort", "Gang", "Queues", "NodeUnschedulable"),
    *("NodeResourcesFit", "NetworkGather", "DefaultPreemption"),
)

_WRITES = (Bind, Evict, PatchStatus, PatchFields, CreateObject)


@cache
def profiles() -> ProfileSet:
    """Return the default profile without the plugins that have nothing to say in these worlds."""
    whole = default_profiles().profiles[0]
    few = msgspec.structs.replace(
        whole,
        plugins={name: whole.plugins[name] for name in PLUGINS},
        args={name: args for name, args in whole.args.items() if name in PLUGINS},
        points={
            hook: tuple(pair for pair in order if pair[0] in PLUGINS)
            for hook, order in whole.points.items()
        },
    )
    return ProfileSet((few,), any_scheduler=True)


class Story:
    """A cluster whose queues one system defines; evicted pods end, and are made again."""

    def __init__(self, dialect: Dialect, world: World, cached: bool = True) -> None:
        self.dialect = dialect
        self.world = world
        self.pods: dict[str, tuple[Job, Pod]] = {}
        self._made = 0
        self._blind = False
        self._evicted: list[str] = []
        """The pods that schedulers evicted which are dead."""
        nodes = [self._node(gpus) for gpus in world.nodes]
        args = {"Queues": dialect.args}
        self.cluster = Cluster(
            [*nodes, *dialect.queues(world)], profiles(), plugins=args, cached=cached
        )
        self._most = {team.name: self._limit(team) for team in world.teams}

    def _node(self, gpus: int) -> Node:
        self._made += 1
        return make_node(f"n{self._made}", gpu=gpus)

    def _limit(self, team: Team) -> float:
        most = self.dialect.most(team)
        return np.inf if most is None else most

    @property
    def policy(self) -> Policy:
        """The policy of the world's system."""
        queues = self.cluster.profile.runtime.plugins["Queues"]
        policies: list[Policy] = queues.policies  # type: ignore[attr-defined]
        return next(one for one in policies if one.system == self.dialect.system)

    # What happens ------------------------------------------------------------------------

    def come(self, jobs: Iterable[Job]) -> None:
        """Let jobs come."""
        for job in jobs:
            found = self.dialect.made(job)
            self.pods |= {one.key: (job, one) for one in found if isinstance(one, Pod)}
            self.cluster.add(*found)

    def leave(self, number: int) -> None:
        """Let a pod end for good, one of those that there are."""
        there = sorted(self.pods)
        if there:
            key = there[number % len(there)]
            del self.pods[key]
            if self.cluster.api.get(Pod, key) is not None:
                self.cluster.remove(key)

    def add_node(self, gpus: int) -> None:
        """Add a node."""
        self.cluster.add(self._node(gpus))

    def lose_node(self, number: int) -> None:
        """Lose a node, with its pods; these are made again."""
        nodes = sorted(node.metadata.name for node in self.cluster.api.list(Node))
        if len(nodes) > 1:
            self.cluster.api.vanish_node(nodes[number % len(nodes)])

    def limit(self, number: int, more: int) -> None:
        """Change a queue's limit, to at least what it is owed."""
        teams = list(self.world.teams)
        index = number % len(teams)
        teams[index] = replace(teams[index], limit=max(1, teams[index].owed + more))
        self.world = replace(self.world, teams=tuple(teams))
        for one in self.dialect.queues(self.world):
            known = self.cluster.api.get(type(one), object_key(one))
            said = "spec" if hasattr(one, "spec") else "data"
            if getattr(known, said) != getattr(one, said):
                self.cluster.api.update(
                    msgspec.structs.replace(known, **{said: getattr(one, said)})
                )
        self.cluster.api.deliver()

    def break_watch(self) -> None:
        """Let the scheduler see nothing for a while."""
        self._blind = True
        self.cluster.api.break_watch()

    def resume_watch(self) -> None:
        """Let the scheduler see again what is there."""
        self._blind = False
        self.cluster.api.resume_watch()

    def crash(self, steps: int) -> None:
        """Let the scheduler die after a few steps, and another one begin."""
        for _ in range(steps):
            self.cluster.api.deliver()
            self.cluster.scheduler.step()
        self._evicted = self.evicted()
        self.resume_watch()
        self.cluster.restart()

    def refuse(self, number: int) -> None:
        """Have the API server refuse the next write of a kind."""
        error = (Conflict("changed meanwhile"), Transient("the server is busy"))[number % 2]
        self.cluster.api.faults.fail_next(_WRITES[number % len(_WRITES)], error)

    def evicted(self) -> list[str]:
        """Return the keys of all pods that were evicted, in order."""
        return [*self._evicted, *(one.pod for one in self.cluster.scheduler.evictor.evicted)]

    def make_again(self) -> None:
        """Let what was evicted end, and make again what has gone."""
        present = {pod.key: pod for pod in self.cluster.api.list(Pod)}
        for key, pod in present.items():
            if pod.metadata.deletion_timestamp is not None:
                self.cluster.remove(key)
        for key, (_, pod) in self.pods.items():
            if key not in present:
                self.cluster.add(pod)

    def settle(self, rounds: int = 40) -> None:
        """Let time pass until nobody is evicted any more.

        :raises AssertionError: when evictions do not end.
        """
        for _ in range(rounds):
            before = len(self.evicted())
            self.cluster.advance(20)
            self.make_again()
            self.cluster.advance(20)
            self.make_again()
            self.cluster.advance(20)
            if len(self.evicted()) == before:
                return
        raise AssertionError(f"evictions do not end: {self.evicted()[-20:]}")

    # What is seen ------------------------------------------------------------------------

    def used(self, team: str) -> int:
        """Return the GPUs of a queue's pods on nodes that are not leaving, from the API's pods."""
        total = 0
        for pod in self.cluster.api.list(Pod):
            if pod.spec.node_name and pod.metadata.deletion_timestamp is None:
                job = self.pods[pod.key][0]
                if any(one.name == team for one in self.world.path(job.team)):
                    total += job.gpu
        return total

    def demand(self, team: str) -> int:
        """Return the GPUs that all pods of a queue ask for."""
        return sum(job.gpu for job, _ in self.pods.values() if job.team == team)

    def free(self) -> list[int]:
        """Return what is free on each node."""
        left = {
            node.metadata.name: int(node.status.allocatable[GPU].amount)
            for node in self.cluster.api.list(Node)
        }
        for pod in self.cluster.api.list(Pod):
            if pod.spec.node_name:
                left[pod.spec.node_name] -= self.pods[pod.key][0].gpu
        return list(left.values())

    def fair(self, team: str) -> float:
        """Return what the policy lets a queue have now."""
        policy = self.policy
        fair, tree = policy.fair(), policy.ledger.tree
        # Kueue's columns are those of flavors, and its cohorts have names of their own.
        row = tree.row_of[team] if team in tree.row_of else tree.row_of[f"cohort/{team}"]
        columns = [at for name, at in tree.column_of.items() if name.endswith(GPU)]
        return float(fair[row, columns].sum())

    # What has to hold --------------------------------------------------------------------

    def check_limits(self) -> None:
        """No queue has more than its limit, or than it had when the limit was lowered."""
        for team in self.world.teams:
            used, limit = self.used(team.name), self._limit(team)
            most = max(self._most[team.name], limit)
            assert used <= most, f"{team.name} has {used} of {most}"
            if not self._blind:
                held = max(used, self.fair(team.name)) if self.dialect.reserves else used
                self._most[team.name] = max(limit, min(most, held))

    def check_ledger(self) -> None:
        """What is followed is what is counted from nothing."""
        ledger = self.policy.ledger
        tree, plain = ledger.tree, ledger.recounted()
        assert [one.name for one in tree.queues] == [one.name for one in plain.queues]
        for column in ("used", "fixed", "demand"):
            followed, counted = getattr(tree, column), getattr(plain, column)
            for name, at in plain.column_of.items():
                own = followed[:, tree.column_of[name]]
                assert np.allclose(own, counted[:, at]), f"{column} of {name}"

    def check_lending(self) -> None:
        """What is lent is idle, borrowed by others, and still owed."""
        reports = self.cluster.scheduler.queues.reports()
        for parent in {one.parent for one in reports}:
            siblings = [one for one in reports if one.parent == parent]
            for name in {name for one in siblings for name in one.resources}:
                own = [one.resources[name] for one in siblings if name in one.resources]
                lent = sum(one.lent for one in own)
                assert lent <= sum(one.borrowed for one in own) + EPSILON
                for one in own:
                    assert one.lent <= max(0.0, one.deserved - one.used) + EPSILON

    def check_conservation(self) -> None:
        """No job waits that fits, unless a limit of its queue says so."""
        free = self.free()
        for job in {job.name: job for job, _ in self.pods.values()}.values():
            need = self._lacks(job)
            fits = sum(gpus // job.gpu for gpus in free) >= need
            assert not (need and fits) or self._is_bounded(job, need * job.gpu), (
                f"{job.name} of {job.team} lacks {need} pods, and {free} are free: "
                f"{self._message(job)}"
            )

    def _message(self, job: Job) -> str:
        keys = [key for key, (own, _) in self.pods.items() if own.name == job.name]
        return "; ".join(self.cluster.message(key) for key in keys)

    def _lacks(self, job: Job) -> int:
        """Return how many pods of a job would be placed next, together."""
        keys = [key for key, (own, _) in self.pods.items() if own.name == job.name]
        placed = sum(key.removeprefix("default/") in self.cluster.placements() for key in keys)
        if placed == len(keys):
            return 0
        least = job.pods if self.dialect.whole and job.least else job.least
        if len(keys) < least:
            return 0
        return max(1, least - placed)

    def _is_bounded(self, job: Job, more: int) -> bool:
        for team in self.world.path(job.team):
            bound = self._limit(team)
            if self.dialect.bounded_by_fair:
                bound = min(bound, self.fair(team.name))
            if self.dialect.keeps:
                others = sum(one.kept for one in self.world.teams if one != team)
                bound = min(bound, sum(self.world.nodes) - others)
            if self.used(team.name) + more > bound + EPSILON:
                return True
        return False

    def check_owed(self) -> None:
        """Every queue whose pods fit anywhere has what it is owed, as far as it asks for it."""
        owed = {
            team.name: min(self._owed(team), self.demand(team.name))
            for team in self.world.teams
            if not team.has_children
        }
        if sum(owed.values()) > sum(self.world.nodes):
            # Volcano's proportion raises queues to their guarantees after all has been divided.
            return
        for name, amount in owed.items():
            assert self.used(name) >= amount, f"{name} has {self.used(name)} and is owed {amount}"

    def _owed(self, team: Team) -> int:
        if self.dialect.owes == "nothing":
            return 0
        return team.owed if self.dialect.owes == "deserved" else int(self.fair(team.name))


def _take(story: Story, event: str, number: int) -> None:
    """Let one thing happen."""
    if event == "leave":
        story.leave(number)
    elif event == "add_node":
        story.add_node(2 + number % 3)
    elif event == "lose_node":
        story.lose_node(number)
    elif event == "limit":
        story.limit(number, number % 4)
    elif event == "break":
        story.break_watch()
    elif event == "crash":
        story.crash(number)
    elif event == "refuse":
        story.refuse(number)
    else:
        story.resume_watch()


def told(story: Story, events: Iterable[Happens]) -> list[str]:
    """Tell a story, checking after each event; return where pods were at the end, and who left."""
    jobs = list(story.world.jobs)
    for event, number, seconds in [("resume", 0, 0), *events]:
        _take(story, event, number)
        story.come([jobs.pop(0) for _ in range(min(len(jobs), 1 + number % 3))])
        story.cluster.advance(seconds)
        story.check_limits()
        story.check_ledger()
        story.check_lending()
        story.make_again()
    story.resume_watch()
    story.come(jobs)
    story.settle()
    story.check_limits()
    story.check_ledger()
    story.check_lending()
    placed = [f"{key} on {node}" for key, node in sorted(story.cluster.placements().items())]
    return [*placed, *story.evicted()]
