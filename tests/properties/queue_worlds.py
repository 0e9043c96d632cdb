"""Worlds of queues for properties: one strategy, and how each system spells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import strategies as st
from tests.plugins.queues.koordinator.quota_builders import PREFIX, quota
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, cohort, flavor, local_queue
from tests.plugins.queues.volcano import volcano_worlds

from bayplan.api import ApiObject, Pod
from bayplan.testing import make_gang, make_object, make_pod

__all__ = ["DIALECTS", "GPU", "Dialect", "Job", "Team", "World", "worlds"]

GPU = "nvidia.com/gpu"
MANY = 1000


@dataclass(frozen=True)
class Team:
    """A queue: what it is owed, the most that it may have, and its place; amounts in GPUs.

    ``kept`` is the part of what it is owed that nobody may borrow, where a system has that.
    """

    name: str
    owed: int
    limit: int | None = None
    parent: str = ""
    weight: int = 1
    priority: int = 0
    kept: int = 0
    has_children: bool = False


@dataclass(frozen=True)
class Job:
    """Equal pods of one queue; with ``least`` above 0 a gang of at least so many of them."""

    name: str
    team: str
    pods: int = 1
    least: int = 0
    gpu: int = 1
    priority: int = 0
    late: bool = False


@dataclass(frozen=True)
class World:
    """Nodes by their GPUs, queues with parents first, and jobs."""

    nodes: tuple[int, ...]
    teams: tuple[Team, ...]
    jobs: tuple[Job, ...]

    def team(self, name: str) -> Team:
        """Return a queue by its name."""
        return next(one for one in self.teams if one.name == name)

    def path(self, name: str) -> list[Team]:
        """Return a queue and its ancestors."""
        found = [self.team(name)]
        while found[-1].parent:
            found.append(self.team(found[-1].parent))
        return found


@st.composite
def worlds(draw: st.DrawFn, trees: bool, alone: bool = False) -> World:
    """Draw a world whose queues are owed no more than its nodes have.

    :param trees: whether queues may have parents.
    :param alone: whether all pods are alone and ask for one GPU, so that every free GPU serves.
    """
    nodes = tuple(draw(st.lists(st.sampled_from((2, 4, 8)), min_size=1, max_size=3)))
    names = [f"q{index}" for index in range(draw(st.integers(2, 4)))]
    parents = ("left", "right") if trees and draw(st.booleans()) else ()
    rest, leaves = sum(nodes), []
    for index, name in enumerate(names):
        owed = draw(st.integers(0, rest))
        rest -= owed
        leaves.append(
            Team(
                name,
                owed,
                draw(st.none() | st.integers(max(1, owed), owed + 6)),
                parents[index % 2] if parents else "",
                draw(st.integers(1, 3)),
                draw(st.integers(0, 1)),
                draw(st.just(0) | st.integers(0, owed)),
            )
        )
    teams = []
    for name in parents:
        owed = sum(leaf.owed for leaf in leaves if leaf.parent == name)
        limit = draw(st.none() | st.integers(max(1, owed), owed + 4))
        teams.append(Team(name, owed, limit, has_children=True))
    jobs = [_job(draw, f"j{n}", names, alone) for n in range(draw(st.integers(2, 8)))]
    return World(nodes, (*teams, *leaves), tuple(jobs))


def _job(draw: st.DrawFn, name: str, teams: Sequence[str], alone: bool) -> Job:
    count = draw(st.integers(1, 4))
    return Job(
        name,
        draw(st.sampled_from(teams)),
        count,
        0 if alone else draw(st.integers(0, count)),
        1 if alone else draw(st.sampled_from((1, 1, 1, 2, 4))),
        draw(st.integers(0, 1)),
        draw(st.booleans()),
    )


# Spellings -------------------------------------------------------------------------------

Owes = str
"""What a queue gets back whenever it asks: "deserved", "fair" by its policy, or "nothing"."""


@dataclass(frozen=True)
class Dialect:
    """How one system spells a world, and what its policy promises.

    ``owes`` is what a queue gets back whenever it asks. ``whole`` says that a gang is placed with
    all of its pods or not at all. ``bounded_by_fair`` says that a queue may never have more than
    its policy divides it, ``limited_by`` what bounds it else: its "limit", what it is "owed", or
    "nothing". ``keeps`` says that nobody borrows what is kept, ``reserves`` that what was admitted
    stays so, whatever its pods use.
    """

    system: str
    args: Mapping[str, Any]
    queues: Callable[[World], list[ApiObject]]
    pod: Callable[[str, Job], Pod]
    group: Callable[[Job], list[ApiObject]]
    owes: Owes
    trees: bool = False
    whole: bool = False
    bounded_by_fair: bool = False
    keeps: bool = False
    reserves: bool = False
    limited_by: str = "limit"

    def most(self, team: Team) -> int | None:
        """Return the most that a queue may have; None for no limit."""
        return {"limit": team.limit, "owed": team.owed, "nothing": None}[self.limited_by]

    def made(self, job: Job) -> list[ApiObject]:
        """Return the objects of a job; those that are no pods first."""
        pods = [self.pod(f"{job.name}-{index}", job) for index in range(job.pods)]
        return [*self.group(job), *pods]


def _volcano_queues(world: World) -> list[ApiObject]:
    tree = world.teams[0].has_children
    found = [volcano_worlds.queue("root")] if tree else []
    for team in world.teams:
        more = {"parent": team.parent} if team.parent else {}
        found.append(
            volcano_worlds.queue(
                team.name,
                deserved={"gpu": team.owed},
                guarantee=None if tree else {"gpu": team.kept},
                capability=None if team.limit is None else {"gpu": team.limit},
                weight=team.weight,
                priority=team.priority,
                **more,
            )
        )
    return found


def _volcano_pod(name: str, job: Job) -> Pod:
    named = {"scheduling.k8s.io/group-name": job.name}
    return make_pod(name, None, None, annotations=named, priority=job.priority, gpu=job.gpu)


def _volcano(policy: Mapping[str, Any], owes: Owes, **more: Any) -> Dialect:
    return Dialect(
        "volcano",
        {"volcano": policy},
        _volcano_queues,
        _volcano_pod,
        lambda job: [volcano_worlds.group(job.name, job.team, job.least)],
        owes,
        **more,
    )


def _kai_queues(world: World) -> list[ApiObject]:
    free = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    return [
        make_object(
            {
                "apiVersion": "scheduling.run.ai/v2",
                "kind": "Queue",
                "metadata": {"name": team.name},
                "spec": {
                    "parentQueue": team.parent,
                    "priority": team.priority,
                    "resources": {
                        "gpu": {
                            "quota": team.owed,
                            "limit": -1 if team.limit is None else team.limit,
                            "overQuotaWeight": team.weight,
                        },
                        "cpu": free,
                        "memory": free,
                    },
                },
            }
        )
        for team in world.teams
    ]


def _kai_pod(name: str, job: Job) -> Pod:
    if not job.least:
        labels = {"kai.scheduler/queue": job.team}
        return make_pod(name, None, None, labels, priority=job.priority, gpu=job.gpu)
    named = {"pod-group-name": job.name}
    return make_pod(name, None, None, annotations=named, priority=job.priority, gpu=job.gpu)


def _kai_group(job: Job) -> list[ApiObject]:
    if not job.least:
        return []
    content = {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": job.name, "namespace": "default"},
        "spec": {"queue": job.team, "minMember": job.least},
    }
    return [make_object(content)]


def _quotas(world: World) -> list[ApiObject]:
    return [
        quota(
            team.name,
            team.owed,
            MANY if team.limit is None else team.limit,
            team.parent,
            labels={"is-parent": "true"} if team.has_children else {},
        )
        for team in world.teams
    ]


def _labelled(label: str) -> Callable[[str, Job], Pod]:
    def pod(name: str, job: Job) -> Pod:
        gang = job.name if job.least else None
        labels = {label: job.team}
        return make_pod(name, None, None, labels, gang=gang, priority=job.priority, gpu=job.gpu)

    return pod


def _gang(job: Job) -> list[ApiObject]:
    return [make_gang(job.name, job.least)] if job.least else []


def _kueue_queues(world: World) -> list[ApiObject]:
    spare = sum(world.nodes) - sum(team.owed for team in world.teams if not team.has_children)
    found: list[ApiObject] = [flavor("f"), cohort("org", flavors={"f": {GPU: spare}})]
    for team in world.teams:
        home = team.parent or "org"
        most = None if team.limit is None else team.limit - team.owed
        if team.has_children:
            found.append(cohort(team.name, home, {"f": {GPU: (0, most, None)}}))
            continue
        own = {"f": {GPU: (team.owed, most, None)}}
        taken_back = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
        found.append(cluster_queue(team.name, own, home, preemption=taken_back))
        found.append(local_queue(team.name, team.name))
    return found


def _kueue_gang(job: Job) -> list[ApiObject]:
    return [make_gang(job.name, job.pods)] if job.least else []


def _config_maps(world: World) -> list[ApiObject]:
    found = []
    for team in world.teams:
        data = {
            "weight": str(team.weight),
            "priority": str(team.priority),
            "guaranteedCapacity": f"{{{GPU}: {team.owed}}}",
        }
        if team.limit is not None:
            data["maxCapacity"] = f"{{{GPU}: {team.limit}}}"
        if team.parent:
            data["parent"] = team.parent
        meta = {
            "name": team.name,
            "namespace": "queues",
            "labels": {"bayplan.dev/queue": team.name},
        }
        content = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
        found.append(make_object(content))
    return found


def _plain(policy: str, owes: Owes) -> Dialect:
    args = {"configmap": {"policy": policy}}
    pod = _labelled("bayplan.dev/queue")
    return Dialect("configmap", args, _config_maps, pod, _gang, owes, trees=True)


def _resource_quotas(world: World) -> list[ApiObject]:
    return [
        make_object(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "quota", "namespace": team.name},
                "spec": {"hard": {f"requests.{GPU}": str(team.owed)}},
            }
        )
        for team in world.teams
    ]


def _pod_of_namespace(name: str, job: Job) -> Pod:
    gang = job.name if job.least else None
    return make_pod(
        name, None, None, namespace=job.team, gang=gang, priority=job.priority, gpu=job.gpu
    )


def _gang_of_namespace(job: Job) -> list[ApiObject]:
    found: list[ApiObject] = []
    if job.least:
        gang = make_gang(job.name, job.least)
        meta = msgspec.structs.replace(gang.metadata, namespace=job.team)
        found.append(msgspec.structs.replace(gang, metadata=meta))
    return found


_TREE = {
    "actions": "enqueue, allocate, reclaim",
    "tiers": [
        {
            "plugins": [
                {"name": "gang", "enableReclaimable": False},
                {"name": "capacity", "enableHierarchy": True},
            ]
        }
    ],
}

DIALECTS: Mapping[str, Dialect] = {
    "volcano capacity": _volcano({"policy": "capacity"}, "deserved", keeps=True),
    "volcano capacity, tree": _volcano(_TREE, "deserved", trees=True),
    "volcano proportion": _volcano(
        {"policy": "proportion"}, "fair", keeps=True, bounded_by_fair=True
    ),
    "volcano drf": _volcano({"policy": "drf"}, "nothing", limited_by="nothing"),
    "kai fair-share": Dialect(
        "kai", {"kai": {}}, _kai_queues, _kai_pod, _kai_group, "fair", trees=True
    ),
    "koordinator elastic-quota": Dialect(
        "koordinator",
        {"koordinator": {"enableCheckParentQuota": True}},
        _quotas,
        _labelled(f"{PREFIX}name"),
        _gang,
        "fair",
        trees=True,
        bounded_by_fair=True,
    ),
    "kueue cluster-queue": Dialect(
        "kueue",
        {"kueue": {}},
        _kueue_queues,
        _labelled("kueue.x-k8s.io/queue-name"),
        _kueue_gang,
        "deserved",
        trees=True,
        whole=True,
        reserves=True,
    ),
    "plain fifo": _plain("fifo", "nothing"),
    "plain priority": _plain("priority", "nothing"),
    "plain fair_share": _plain("fair_share", "fair"),
    "plain capacity": _plain("capacity", "deserved"),
    "namespaces": Dialect(
        "namespaces",
        {"namespaces": {}},
        _resource_quotas,
        _pod_of_namespace,
        _gang_of_namespace,
        "fair",
        limited_by="owed",
    ),
}
