"""What happens over HTTP is what happens in memory: placements, devices, conditions, events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.live.stage import stage
from tests.paths import ROOT

from bayplan.api import ApiObject, Pod, ResourceClaim
from bayplan.cluster.apiserver import ServedCluster
from bayplan.cluster.manifests import load_manifests
from bayplan.profiles.finder import PluginFinder
from bayplan.profiles.loading import ProfileSet, default_profiles, load_profiles
from bayplan.simulation import Simulation
from bayplan.simulation.queue_history import QueueHistory

CASES = ROOT / "tests" / "scenarios" / "cases"
EXAMPLES = ROOT / "configs" / "examples"


def in_memory(objects: list[ApiObject], profiles: ProfileSet) -> Simulation:
    simulation = Simulation(profiles)
    simulation.create(objects)
    simulation.run()
    return simulation


def outcome(simulation: Simulation) -> dict[str, Any]:
    """Return what a user would notice."""
    answer = simulation.result()
    told = sorted({(e["pod"], e["kind"], e["message"]) for e in answer["timeline"]})
    found = {
        "placements": answer["placements"],
        "devices": answer["devices"],
        "annotations": answer["annotations"],
        "pending": answer["pending"],
        "evicted": sorted(entry["pod"] for entry in answer["evicted"]),
        "told": told,
    }
    text = json.dumps(found)
    # Names that were made up come from another chance; they keep their order.
    made_up = [*simulation.cluster.list(ResourceClaim), *simulation.cluster.list(Pod)]
    for index, obj in enumerate(made_up):
        if obj.metadata.generate_name:
            text = text.replace(obj.metadata.name, f"{obj.metadata.generate_name}#{index}")
    answer = json.loads(text)
    answer["told"].sort()
    return answer


async def over_http(objects: list[ApiObject], profiles: ProfileSet) -> dict[str, Any]:
    async with stage(objects) as made:
        app = await made.start(profiles)
        await made.run_out()
        assert app.live is not None
        seen = Simulation.__new__(Simulation)
        seen.cluster, seen.scheduler = made.cluster, app.live.scheduler
        seen.wall_seconds = 0.0
        seen._queues = QueueHistory()
        made.cluster.events = _events(made.cluster, made.events())
        return outcome(seen)


def _events(cluster: ServedCluster, written: list[dict[str, Any]]) -> list[tuple[float, Any]]:
    from bayplan.cluster.protocol import Event

    return [
        (
            0.0,
            Event(
                f"{event['involvedObject']['namespace']}/{event['involvedObject']['name']}",
                event["type"],
                event["reason"],
                event["message"],
                about=event["involvedObject"]["kind"],
            ),
        )
        for event in written
        for _ in range(event.get("count", 1))
    ]


REFUSED_LATER = "kubernetes-budget-refuses"
"""Over HTTP an eviction is refused after the pod was told of it, so the last word is another."""
TOLD_MORE = ("kubernetes-volume-zones", "koordinator-reservation", "queues-kueue")
"""Over HTTP a pod may be tried before the volume is there that its neighbour waits for, too, or
before what was written of a reservation, or of an admission, has come back."""
TOLD_LESS = ("remote-gpus", "tensor-fusion-shares")
"""Over HTTP a client is tried only after its worker is there."""


async def check(paths: list[str], profile: Path | None) -> None:
    objects = load_manifests(paths).objects
    profiles = load_profiles(profile, PluginFinder()) if profile else default_profiles()
    expected = outcome(in_memory(objects, profiles))
    got = await over_http(objects, profiles)
    name = Path(paths[0]).parent.name
    if name == REFUSED_LATER:
        assert [*got.pop("pending")] == [*expected.pop("pending")]
        found, wanted = (
            {(pod, kind) for pod, kind, _ in one.pop("told")} for one in (got, expected)
        )
        assert found == wanted
    if {name, Path(paths[0]).name} & set(TOLD_MORE):
        assert {*map(tuple, expected.pop("told"))} <= {*map(tuple, got.pop("told"))}
    if Path(paths[0]).name in TOLD_LESS:
        assert {*map(tuple, got.pop("told"))} <= {*map(tuple, expected.pop("told"))}
    assert got == expected


AT_THEIR_TIME = (
    "kinds",
    "pooled-training",
    "queues-arrivals",
    "queues-elastic-jobs",
    "queues-fair-share",
    "queues-suspended-jobs",
    "workloads",
)
"""Which of equal nodes a pod gets depends on when its controller made it, or when it arrives."""

NOT_FOLLOWED = "queues-plain-"
"""Their queues are ConfigMaps, of which a live scheduler follows those beside its Lease."""

FROM_FILES = "shared-gpus"
"""The device plugin's ConfigMap is read from files; a live scheduler reads a label instead."""

BY_UID = "gpu-fractions"
"""Reservation pods have names made of uids, which differ."""

EXAMPLES_HERE = sorted(
    path.name
    for path in EXAMPLES.iterdir()
    if any(path.glob("*.yaml"))
    and path.name not in ("koordinator-profile", FROM_FILES, BY_UID, *AT_THEIR_TIME)
    and not path.name.startswith(NOT_FOLLOWED)
)


@pytest.mark.parametrize("name", EXAMPLES_HERE)
async def test_an_example_ends_over_http_as_it_does_in_memory(name: str) -> None:
    await check([str(EXAMPLES / name)], None)


async def test_all_workloads_get_their_pods_and_these_their_nodes() -> None:
    objects = load_manifests([str(EXAMPLES / "workloads")]).objects
    expected = outcome(in_memory(objects, default_profiles()))
    got = await over_http(objects, default_profiles())
    # Which of equal nodes a pod gets depends on when its controller made it.
    assert sorted(got["placements"]) == sorted(expected["placements"])
    assert got["pending"] == expected["pending"] == {}


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.iterdir()))
async def test_a_case_ends_over_http_as_it_does_in_memory(name: str) -> None:
    profile = CASES / name / "profile.yaml"
    await check([str(CASES / name / "manifests.yaml")], profile if profile.exists() else None)
