"""VolumeZone: volumes with zone or region labels are used from there only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.plugins.volumes.volume_builders import (
    LOCAL,
    ZONE,
    bound,
    claim,
    nodes,
    pod,
    storage_class,
    volume,
)

from bayplan.testing import (
    Cluster,
    make_node,
    refusals,
)
from bayplan_plugins.volume_zone import VolumeZone

ELSEWHERE = "node(s) had no available volume zone"
BETA = "failure-domain.beta.kubernetes.io/zone"


@pytest.mark.parametrize(
    ("labels", "refused"),
    [
        ({ZONE: "x"}, ["b"]),
        ({ZONE: "x__y"}, []),
        ({ZONE: "x__"}, []),
        ({BETA: "y"}, ["a"]),
        ({"topology.kubernetes.io/region": "r"}, ["a", "b"]),
        ({}, []),
    ],
    ids=["zone", "two zones", "nonsense", "the old label", "region", "no label"],
)
def test_a_volume_with_zone_labels_is_used_from_there(
    labels: Mapping[str, str], refused: list[str]
) -> None:
    bare = make_node("c")
    pv = volume("pv", metadata={"labels": dict(labels)})
    cluster = Cluster([*nodes("a", "b", a="x", b="y"), bare, pv, bound("data", to="pv")])
    expected = dict.fromkeys(refused, ELSEWHERE)
    assert refusals(VolumeZone, pod("p", "data"), cluster) == expected


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ([], 'persistentvolumeclaim "data" not found'),
        ([bound("data", to="pv")], 'persistentvolume "pv" not found'),
        (
            [claim("data", cls="")],
            "PersistentVolumeClaim had no pv name and storageClass name",
        ),
        ([claim("data", cls="gone")], 'storageclass.storage.k8s.io "gone" not found'),
        ([claim("data", cls="now")], "PersistentVolume had no name"),
    ],
)
def test_claims_without_volumes_have_no_known_zone(made: list[Any], reason: str) -> None:
    cluster = Cluster([*nodes("a"), storage_class("now", delayed=False), *made])
    assert refusals(VolumeZone, pod("p", "data"), cluster) == {"a": reason}


def test_a_claim_that_is_bound_later_has_no_zone_yet() -> None:
    cluster = Cluster([*nodes("a"), LOCAL, claim("data")])
    assert refusals(VolumeZone, pod("p", "data"), cluster) == {}
