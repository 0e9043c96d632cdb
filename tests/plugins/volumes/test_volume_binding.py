"""VolumeBinding: where pods with volumes may run, and who gets which volume."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.plugins.volumes.volume_builders import (
    AFFINITY,
    DRIVER,
    FAST,
    HOST,
    LOCAL,
    NO_STORAGE,
    NO_VOLUMES,
    SELECTED,
    ZONE,
    bound,
    claim,
    csi_node,
    disk,
    exclusive,
    live,
    nodes,
    on,
    phase,
    pod,
    storage,
    storage_class,
    volume,
    volumes_of,
    with_scratch,
)

from bayplan import PodInfo
from bayplan.api import PersistentVolume, PersistentVolumeClaim, Pod
from bayplan.api.volumes import is_bound
from bayplan.cluster.embedded.volumes import VolumeController
from bayplan.cluster.protocol import BindVolume, SelectNode
from bayplan.errors import Conflict, InputError
from bayplan.explain.suggestions import Diagnosis
from bayplan.profiles.loading import load_profiles
from bayplan.testing import (
    Cluster,
    assert_pending,
    assert_placed,
    make_gang,
    make_pod,
    refusals,
)
from bayplan_plugins.volume_binding import VolumeBinding
from bayplan_plugins.volume_binding.finder import VolumeFinder
from bayplan_plugins.volume_binding.ledger import VolumeLedger

# Claims that no node can serve ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ([], 'persistentvolumeclaim "data" not found'),
        ([claim("data", cls="now")], "pod has unbound immediate PersistentVolumeClaims"),
        ([claim("data", cls="missing")], "pod has unbound immediate PersistentVolumeClaims"),
        (
            [claim("data", volumeName="pv")],
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            [bound("data", to="pv"), claim("other", cls="now")],
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "pv"',
        ),
    ],
    ids=["missing", "immediate", "class missing", "volume named", "lost"],
)
def test_a_claim_that_cannot_be_used_keeps_the_pod_pending(claims: list[Any], reason: str) -> None:
    cluster = Cluster([*nodes("a", "b"), storage_class("now", delayed=False), LOCAL])
    for one in claims:
        lost = one.metadata.name == "data" and is_bound(one)
        cluster.add(replace(one, status=replace(one.status, phase="Lost")) if lost else one)
    cluster.add(pod("p", "data"))
    assert_pending(cluster, "p", f"0/2 nodes are available: {reason}.")


def test_a_claim_that_is_being_deleted_is_not_used() -> None:
    cluster = Cluster([*nodes("a"), LOCAL, volume("pv")])
    cluster.add(claim("data", metadata={"finalizers": ["kubernetes.io/pvc-protection"]}))
    cluster.api.delete(PersistentVolumeClaim, "default/data")
    cluster.add(pod("p", "data"))
    assert_pending(cluster, "p", 'persistentvolumeclaim "data" is being deleted')


def test_the_claim_of_an_ephemeral_volume_is_waited_for() -> None:
    cluster = Cluster([*nodes("a"), FAST, with_scratch("p")])
    text = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-scratch"'
    assert_pending(cluster, "p", text)


def test_a_claim_that_was_not_made_for_the_pod_is_not_its_ephemeral_volume() -> None:
    cluster = Cluster([*nodes("a"), FAST, claim("p-scratch", cls="fast"), with_scratch("p")])
    text = "PVC default/p-scratch was not created for pod default/p (pod is not owner)"
    assert_pending(cluster, "p", text)


def test_a_pod_is_tried_again_when_its_claim_comes() -> None:
    cluster = live(*nodes("a"), LOCAL, volume("pv"), pod("p", "data"))
    cluster.schedule()
    cluster.add(claim("data"))
    assert cluster.advance(2) == {"p": "a"}


# Bound volumes -------------------------------------------------------------------------------


def test_a_pod_runs_where_its_volume_can_be_reached() -> None:
    cluster = Cluster([*nodes("a", "b"), LOCAL, volume("pv", "b"), bound("data", to="pv")])
    assert refusals(VolumeBinding, pod("p", "data"), cluster) == {"a": AFFINITY}
    cluster.add(pod("p", "data"))
    assert_placed(cluster, p="b")


def test_affinity_may_take_several_terms_and_operators() -> None:
    terms = [
        {"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["x", "y"]}]},
        {"matchExpressions": [{"key": HOST, "operator": "In", "values": ["a"]}]},
    ]
    affinity = {"required": {"nodeSelectorTerms": terms}}
    made = nodes("a", "b", "c", a="x", b="y", c="z")
    cluster = Cluster([*made, volume("pv", nodeAffinity=affinity), bound("data", to="pv")])
    assert refusals(VolumeBinding, pod("p", "data"), cluster) == {"b": AFFINITY}


def test_a_claim_whose_volume_is_gone_refuses_the_nodes() -> None:
    cluster = Cluster([*nodes("a"), bound("data", to="pv")])
    gone = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
    assert refusals(VolumeBinding, pod("p", "data"), cluster) == {"a": gone}


# Volumes that exist --------------------------------------------------------------------------


def test_the_smallest_volume_that_is_large_enough_is_taken() -> None:
    sizes = [("pv-1", "5Gi"), ("pv-2", "50Gi"), ("pv-3", "20Gi")]
    made = [volume(name, "a", size) for name, size in sizes]
    cluster = live(*nodes("a"), LOCAL, *made, claim("data"), pod("p", "data"))
    assert_placed(cluster, p="a")
    assert volumes_of(cluster) == {"data": "pv-3"}
    assert phase(cluster, "p") == "Running"


@pytest.mark.parametrize(
    ("other", "wanted"),
    [
        ({"size": "9Gi"}, {}),
        ({"cls": "slow"}, {}),
        ({"accessModes": ["ReadOnlyMany"]}, {}),
        ({"volumeMode": "Block"}, {}),
        ({"volumeAttributesClassName": "gold"}, {}),
        ({"claimRef": {"namespace": "default", "name": "somebody"}}, {}),
        ({}, {"selector": {"matchLabels": {"disk": "ssd"}}}),
        ({}, {"volumeMode": "Block"}),
    ],
    ids=lambda content: ", ".join(content) or "-",
)
def test_a_volume_has_to_suit_the_claim(other: dict[str, Any], wanted: dict[str, Any]) -> None:
    cluster = Cluster([*nodes("a"), LOCAL, volume("pv", "a", **other), claim("data", **wanted)])
    assert refusals(VolumeBinding, pod("p", "data"), cluster) == {"a": NO_VOLUMES}


@pytest.mark.parametrize("state", ["Released", "Failed", "Bound", "Pending"])
def test_only_an_available_volume_is_taken(state: str) -> None:
    made = volume("pv", "a")
    made = replace(made, status=replace(made.status, phase=state))
    cluster = Cluster([*nodes("a"), LOCAL, made, claim("data")])
    assert refusals(VolumeBinding, pod("p", "data"), cluster) == {"a": NO_VOLUMES}


def test_a_volume_that_is_kept_for_a_claim_is_its() -> None:
    kept = volume("large", "b", "100Gi", claimRef={"namespace": "default", "name": "data"})
    cluster = live(*nodes("a", "b"), LOCAL, volume("small", "a"), kept)
    cluster.add(claim("other"), claim("data"), pod("p", "data"), pod("q", "other"))
    assert_placed(cluster, p="b", q="a")
    assert volumes_of(cluster) == {"data": "large", "other": "small"}


def test_two_claims_of_a_pod_get_two_volumes_of_one_node() -> None:
    made = [volume("a1", "a"), volume("b1", "b", "20Gi"), volume("b2", "b", "30Gi")]
    cluster = live(*nodes("a", "b"), LOCAL, *made, claim("one", "15Gi"), claim("two", "1Gi"))
    cluster.add(pod("p", "one", "two"))
    assert_placed(cluster, p="b")
    assert volumes_of(cluster) == {"two": "b1", "one": "b2"}


def test_pods_do_not_get_the_same_volume() -> None:
    made = [volume(f"pv-{index}", "a") for index in range(2)]
    claims = [claim(f"data-{index}") for index in range(3)]
    cluster = live(*nodes("a"), LOCAL, *made, *claims)
    cluster.add(*(pod(f"p{index}", f"data-{index}") for index in range(3)))
    cluster.schedule()
    assert sorted(cluster.placements()) == ["p0", "p1"]
    assert_pending(cluster, "p2", f"1 {NO_VOLUMES}")


def gang_of(size: int, volumes: int, **options: Any) -> Cluster:
    names = [f"n{index}" for index in range(4)]
    made = [volume(f"pv-{index}", names[index % 4]) for index in range(volumes)]
    cluster = live(*nodes(*names), LOCAL, *made, make_gang("g", size), **options)
    cluster.add(*(claim(f"data-{index}") for index in range(size)))
    cluster.add(*(pod(f"m-{index}", f"data-{index}", gang="g") for index in range(size)))
    return cluster


@pytest.mark.parametrize("cached", [True, False])
def test_the_pods_of_a_gang_never_share_a_volume(cached: bool) -> None:
    cluster = gang_of(8, 8, cached=cached)
    placed = cluster.schedule()
    assert Counter(placed.values()) == {f"n{index}": 2 for index in range(4)}
    assert sorted(volumes_of(cluster).values()) == [f"pv-{index}" for index in range(8)]


def test_a_gang_without_enough_volumes_takes_none() -> None:
    cluster = gang_of(8, 7)
    assert_pending(cluster, "m-0", f"4 {NO_VOLUMES}", "7 of the 8 members")
    assert volumes_of(cluster) == {}
    cluster.add(claim("single"), pod("q", "single"))
    assert "q" in cluster.schedule()


def test_the_pods_of_a_gang_may_share_a_claim() -> None:
    shared = {"accessModes": ["ReadWriteMany"]}
    made = volume("pv", nodeAffinity=on(ZONE, "x"), **shared)
    cluster = live(*nodes("a", "b", "c", a="y", b="x", c="x"), LOCAL, made)
    cluster.add(claim("data", **shared), make_gang("g", 2))
    cluster.add(*(pod(f"m-{index}", "data", gang="g", cpu="5") for index in range(2)))
    assert sorted(cluster.schedule().values()) == ["b", "c"]
    assert volumes_of(cluster) == {"data": "pv"}


def test_no_volume_is_made_beside_one_that_is_kept_for_a_claim() -> None:
    kept = volume("pv", "b", cls="fast", claimRef={"namespace": "default", "name": "data"})
    cluster = Cluster([*nodes("a", "b"), FAST, kept, claim("data", cls="fast")])
    assert refusals(VolumeBinding, pod("p", "data"), cluster) == {"a": NO_VOLUMES}


def test_a_claim_that_is_made_anew_gets_a_volume_of_its_own() -> None:
    made = [volume("pv-1", "a"), volume("pv-2", "a")]
    cluster = Cluster([*nodes("a"), LOCAL, *made, claim("data"), pod("p", "data")])
    cluster.schedule()
    cluster.api.delete(PersistentVolumeClaim, "default/data")
    cluster.remove("p")
    cluster.add(claim("data"), pod("q", "data"))
    VolumeController(cluster.api)
    assert cluster.advance(2) == {"q": "a"}
    assert volumes_of(cluster) == {"data": "pv-2"}


# Volumes that are made -----------------------------------------------------------------------


def test_a_volume_is_made_where_the_pod_runs() -> None:
    cluster = live(*nodes("a", "b"), FAST, csi_node("a", keys=(ZONE,)), claim("data", cls="fast"))
    cluster.add(pod("p", "data", spec={"nodeSelector": {HOST: "a"}}))
    assert_placed(cluster, p="a")
    (made,) = cluster.api.list(PersistentVolume)
    assert made.affinity is not None
    assert made.affinity.node_selector_terms[0].match_expressions[0].key == ZONE
    assert phase(cluster, "p") == "Running"


def test_ephemeral_volumes_are_made_and_go_with_their_pods() -> None:
    cluster = live(*nodes("a"), FAST, with_scratch("p"), with_scratch("q"))
    assert_placed(cluster, p="a", q="a")
    assert sorted(volumes_of(cluster)) == ["p-scratch", "q-scratch"]
    cluster.remove("p")
    assert sorted(volumes_of(cluster)) == ["q-scratch"]
    assert len(cluster.api.list(PersistentVolume)) == 1


def test_a_class_may_be_limited_to_zones() -> None:
    allowed = [{"matchLabelExpressions": [{"key": ZONE, "values": ["x"]}]}]
    zoned = storage_class("zoned", allowedTopologies=allowed)
    cluster = Cluster([*nodes("a", "b", a="x", b="y"), zoned, claim("data", cls="zoned")])
    assert refusals(VolumeBinding, pod("p", "data"), cluster) == {"b": NO_VOLUMES}


def room(name: str, size: str, **labels: str) -> Any:
    topology = {"matchLabels": labels}
    return storage(
        "CSIStorageCapacity", name, storageClassName="fast", capacity=size, nodeTopology=topology
    )


def test_a_driver_may_publish_how_much_room_there_is() -> None:
    driver = storage("CSIDriver", DRIVER, spec={"storageCapacity": True})
    made = nodes("a", "b", "c", a="x", b="y", c="z")
    capacities = [room("x", "100Gi", **{ZONE: "x"}), room("y", "5Gi", **{ZONE: "y"})]
    cluster = Cluster([*made, FAST, driver, *capacities, claim("data", cls="fast")])
    expected = {"b": NO_STORAGE, "c": NO_STORAGE}
    assert refusals(VolumeBinding, pod("p", "data"), cluster) == expected
    largest = replace(capacities[0], maximum_volume_size=capacities[1].capacity)
    cluster.api.update(largest)
    assert "a" in refusals(VolumeBinding, pod("p", "data"), cluster)


def test_room_does_not_matter_where_the_driver_does_not_publish_it() -> None:
    cluster = Cluster([*nodes("a"), FAST, claim("data", cls="fast"), room("x", "1Gi")])
    assert refusals(VolumeBinding, pod("p", "data"), cluster) == {}


def test_a_volume_that_exists_comes_before_one_to_be_made() -> None:
    cluster = live(*nodes("a"), FAST, volume("pv", cls="fast"), claim("data", cls="fast"))
    cluster.add(pod("p", "data"))
    assert_placed(cluster, p="a")
    assert volumes_of(cluster) == {"data": "pv"}


def test_a_gang_shares_a_volume_to_be_made_where_it_will_be_reached() -> None:
    made = nodes("a", "b", "c", a="x", b="x", c="y")
    drivers = [csi_node(name, keys=(ZONE,)) for name in "abc"]
    cluster = live(*made, FAST, *drivers, make_gang("g", 2))
    cluster.add(claim("data", cls="fast", accessModes=["ReadWriteMany"]))
    cluster.add(*(pod(f"m-{index}", "data", gang="g", cpu="5") for index in range(2)))
    assert sorted(cluster.schedule().values()) == ["a", "b"]


def test_without_a_driver_a_volume_to_be_made_binds_a_gang_to_one_node() -> None:
    cluster = live(*nodes("a", "b"), FAST, make_gang("g", 2), claim("data", cls="fast"))
    cluster.add(*(pod(f"m-{index}", "data", gang="g", cpu="5") for index in range(2)))
    assert_pending(cluster, "m-0", "1 of the 2 members")


# Between decision and binding ----------------------------------------------------------------


def test_a_pod_is_bound_only_when_its_claims_are() -> None:
    cluster = Cluster([*nodes("a"), LOCAL, volume("pv"), claim("data"), pod("p", "data")])
    assert cluster.schedule() == {}
    taken = cluster.api.get(PersistentVolume, "pv")
    assert taken is not None
    assert taken.spec.claim_ref is not None
    assert taken.spec.claim_ref.key == "default/data"
    VolumeController(cluster.api)
    assert cluster.schedule() == {"p": "a"}


def annotate(cluster: Cluster, name: str, node: str | None) -> None:
    found = cluster.api.get(PersistentVolumeClaim, f"default/{name}")
    assert found is not None
    annotations = {SELECTED: node} if node else {}
    meta = replace(found.metadata, annotations=annotations)
    cluster.api.update(replace(found, metadata=meta))


def selected_node(cluster: Cluster, name: str) -> str | None:
    found = cluster.api.get(PersistentVolumeClaim, f"default/{name}")
    assert found is not None
    return found.metadata.annotations.get(SELECTED)


def test_a_provisioner_that_gives_up_lets_the_pod_go_elsewhere() -> None:
    cluster = Cluster([*nodes("a", "b"), FAST, claim("data", cls="fast"), pod("p", "data")])
    cluster.schedule()
    assert selected_node(cluster, "data") == "a"
    annotate(cluster, "data", None)
    cluster.schedule()
    assert cluster.message("p") == 'binding volumes: provisioning failed for PVC "data"'
    cluster.advance(1)
    assert selected_node(cluster, "data") == "a"
    VolumeController(cluster.api)
    assert cluster.schedule() == {"p": "a"}


def test_a_claim_for_which_a_node_is_selected_waits_for_that_node() -> None:
    chosen = claim("data", cls="fast", metadata={"annotations": {SELECTED: "b"}})
    cluster = Cluster([*nodes("a", "b"), FAST, volume("pv", "a", cls="fast"), chosen])
    assert refusals(VolumeBinding, pod("p", "data"), cluster) == {"a": NO_VOLUMES}


def test_a_claim_that_is_not_bound_in_time_gives_the_pod_back() -> None:
    cluster = Cluster([*nodes("a"), LOCAL, volume("pv"), claim("data"), pod("p", "data")])
    cluster.schedule()
    cluster.advance(599)
    assert cluster.message("p") == ""
    cluster.advance(1)
    assert "was not ready to be bound in time" in cluster.message("p")


def test_how_long_to_wait_is_an_argument(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(
        "kind: KubeSchedulerConfiguration\n"
        "profiles:\n"
        "- pluginConfig: [{name: VolumeBinding, args: {bindTimeoutSeconds: 5}}]\n"
    )
    cluster = Cluster([*nodes("a"), LOCAL, volume("pv"), claim("data")], load_profiles(profile))
    cluster.add(pod("p", "data"))
    cluster.advance(5)
    assert "was not ready to be bound in time" in cluster.message("p")


def test_a_wait_that_cannot_be_is_refused(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(
        "kind: KubeSchedulerConfiguration\n"
        "profiles:\n"
        "- pluginConfig: [{name: VolumeBinding, args: {bindTimeoutSeconds: -5}}]\n"
    )
    with pytest.raises(InputError, match=r"profile\.yaml:3.*bindTimeoutSeconds"):
        load_profiles(profile)


def test_a_volume_that_turns_out_to_be_elsewhere_gives_the_pod_back() -> None:
    cluster = Cluster([*nodes("a", "b"), FAST, claim("data", cls="fast"), pod("p", "data")])
    cluster.schedule()
    made = volume("pv", "b", cls="fast", claimRef={"namespace": "default", "name": "data"})
    cluster.add(made)
    VolumeController(cluster.api)
    cluster.schedule()
    assert 'pv "pv" node affinity doesn\'t match node "a"' in cluster.message("p")
    assert cluster.advance(2) == {"p": "b"}


def test_a_volume_that_vanishes_gives_the_pod_back() -> None:
    cluster = Cluster([*nodes("a"), LOCAL, volume("pv"), claim("data"), pod("p", "data")])
    cluster.schedule()
    cluster.api.delete(PersistentVolume, "pv")
    assert_pending(cluster, "p", 'binding volumes: persistentvolume "pv" is gone')


def test_a_volume_that_is_taken_away_gives_the_pod_back() -> None:
    cluster = Cluster([*nodes("a"), LOCAL, volume("pv"), claim("data"), pod("p", "data")])
    cluster.schedule()
    found = cluster.api.get(PersistentVolume, "pv")
    assert found is not None
    cluster.api.update(replace(found, spec=replace(found.spec, claim_ref=None)))
    assert_pending(cluster, "p", 'ClaimRef got reset for pv "pv"')


@pytest.mark.parametrize("write", [BindVolume, SelectNode])
def test_a_write_that_is_refused_is_tried_again(write: type) -> None:
    made = [FAST, claim("data", cls="fast")]
    if write is BindVolume:
        made = [LOCAL, volume("pv"), claim("data")]
    cluster = live(*nodes("a"), *made)
    cluster.api.faults.fail_next(write, Conflict("changed meanwhile"))
    cluster.add(pod("p", "data"))
    assert cluster.schedule() == {}
    assert cluster.advance(2) == {"p": "a"}


def test_a_volume_that_somebody_took_meanwhile_is_left_to_them() -> None:
    cluster = live(*nodes("a"), LOCAL, volume("pv-1"), volume("pv-2"), claim("data"))
    cluster.api.break_watch()
    found = cluster.api.get(PersistentVolume, "pv-1")
    assert found is not None
    theirs = volume("x", claimRef={"namespace": "default", "name": "theirs"}).spec.claim_ref
    cluster.api.update(replace(found, spec=replace(found.spec, claim_ref=theirs)))
    cluster.api.resume_watch()
    cluster.add(pod("p", "data"))
    cluster.advance(2)
    assert volumes_of(cluster) == {"data": "pv-2"}


# What would help -----------------------------------------------------------------------------


def advice(cluster: Cluster, unit: str) -> list[str]:
    cluster.schedule()
    profile = next(iter(cluster.scheduler.profiles.values()))
    diagnosis = Diagnosis(profile.runtime, profile.evaluator, profile.cycle, cluster.snapshot)
    found = cluster.scheduler.pending_unit(f"default/{unit}")
    assert found is not None
    return [one.text for one in diagnosis.suggest(found, cluster.api.now)]


def full_cluster() -> Cluster:
    disks = [one for index in range(2) for one in disk(f"d{index}")]
    cluster = Cluster([*nodes("a"), csi_node("a", 1), *disks])
    cluster.add(pod("first", "d0", node="a"), pod("p", "d1"))
    return cluster


def far_cluster(**pv: Any) -> Cluster:
    made = volume("pv", **pv)
    full = make_pod("full", "8", node="b")
    return Cluster([*nodes("a", "b", a="x", b="y"), made, bound("data", to="pv"), full])


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        (
            Cluster([*nodes("a"), LOCAL, claim("data", "5Gi")]),
            "would fit on a with a persistent volume of 5Gi of class local there",
        ),
        (
            Cluster(
                [
                    *nodes("a"),
                    FAST,
                    storage("CSIDriver", DRIVER, spec={"storageCapacity": True}),
                    claim("data", "5Gi", cls="fast"),
                ]
            ),
            "would fit on a if storage of 5Gi of class fast were free there",
        ),
        (far_cluster(node="b"), "would fit on a if volume pv could be reached from there"),
        (
            far_cluster(metadata={"labels": {ZONE: "y"}}),
            "would fit on a if that node were in zone y, as volume pv is",
        ),
        (
            exclusive(pod("first", "data", node="b")),
            "would fit when default/first has ended, which uses default/data",
        ),
    ],
    ids=["no volume", "no storage", "affinity", "zone", "in use"],
)
def test_what_would_help_is_said(cluster: Cluster, text: str) -> None:
    cluster.add(pod("p", "data"))
    assert text in advice(cluster, "p")


def test_how_many_volumes_are_too_many_is_said() -> None:
    text = f"would fit on a if 1 volume of {DRIVER} fewer was in use there"
    assert advice(full_cluster(), "p") == [text]


def test_a_node_that_lacks_two_things_is_told_both() -> None:
    cluster = far_cluster(node="b")
    cluster.add(LOCAL, claim("other", "500Gi"), pod("p", "data", "other"))
    assert advice(cluster, "p") == [
        "would fit if 1 CPU was freed on b and with a persistent volume of 500Gi of class local "
        "there"
    ]


# What always holds ---------------------------------------------------------------------------


class Disks:
    """A random cluster with volumes and claims of a few classes."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        draw = self.draw
        names = [f"n{index}" for index in range(5)]
        zones = {name: draw.choice("xy") for name in names}
        self.objects: list[Any] = [*nodes(*names, **zones), LOCAL, FAST]
        for index in range(draw.randint(0, 10)):
            where: dict[str, Any] = {}
            if draw.random() < 0.3:
                where = {"nodeAffinity": on(ZONE, draw.choice("xy"))}
            node = draw.choice(["", *names]) if not where else ""
            size = f"{draw.randint(1, 4)}Gi"
            self.objects.append(volume(f"pv-{index}", node, size, draw.choice(CLASSES), **where))
        self.claims = [f"c{index}" for index in range(draw.randint(1, 10))]
        for name in self.claims:
            size = f"{draw.randint(1, 4)}Gi"
            self.objects.append(claim(name, size, draw.choice(CLASSES)))

    def pods(self) -> list[Any]:
        made: list[Any] = []
        for index in range(self.draw.randint(1, 6)):
            size = self.draw.choice([1, 1, 2, 3])
            if size > 1:
                made.append(make_gang(f"g{index}", size))
            for member in range(size):
                wanted = self.draw.sample(
                    self.claims, min(len(self.claims), self.draw.choice([1, 2]))
                )
                gang = f"g{index}" if size > 1 else None
                made.append(pod(f"p{index}-{member}", *wanted, gang=gang, cpu="2"))
        return made


CLASSES = ["local", "local", "fast"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_no_volume_is_given_to_two_claims(seed: int, cached: bool) -> None:
    disks = Disks(seed)
    cluster = live(*disks.objects, cached=cached)
    for one in disks.pods():
        cluster.add(one)
        if disks.draw.random() < 0.5:
            cluster.schedule()
    cluster.advance(30)
    bound_to = volumes_of(cluster)
    assert len(set(bound_to.values())) == len(bound_to)
    found = {v.metadata.name: v for v in cluster.api.list(PersistentVolume)}
    for name, one in bound_to.items():
        reference = found[one].spec.claim_ref
        assert reference is not None
        assert reference.name == name
    for placed in cluster.placements():
        assert phase(cluster, placed) == "Running"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_kept_answers_place_pods_as_fresh_ones_do(seed: int) -> None:
    ends = []
    for cached in (True, False):
        disks = Disks(seed)
        cluster = live(*disks.objects, cached=cached)
        for one in disks.pods():
            cluster.add(one)
            cluster.schedule()
        ends.append((cluster.advance(30), volumes_of(cluster)))
    assert ends[0] == ends[1]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_all_nodes_at_once_and_one_by_one_agree(seed: int) -> None:
    disks = Disks(seed)
    cluster = Cluster(disks.objects)
    snapshot = cluster.snapshot
    ledger = snapshot.shared(VolumeLedger, VolumeLedger)
    finder = VolumeFinder(snapshot, ledger)
    for one in (PodInfo(o) for o in disks.pods() if isinstance(o, Pod)):
        volumes = finder.volumes_of(one)
        refused = np.zeros(len(snapshot.nodes), dtype=np.bool_)
        for _, mask in finder.refused(volumes):
            refused |= mask
        for row in range(len(snapshot.nodes)):
            choices = finder.choose(volumes, row)
            assert isinstance(choices, str) == refused[row]
        before = finder.key(volumes)[:2], [finder.choose(volumes, row) for row in range(5)]
        good = np.flatnonzero(~refused)
        if len(good):
            choices = finder.choose(volumes, int(good[0]))
            assert not isinstance(choices, str)
            ledger.take(one, choices)
            if disks.draw.random() < 0.5:
                ledger.leave(one)
                again = finder.volumes_of(one)
                after = finder.key(again)[:2], [finder.choose(again, row) for row in range(5)]
                assert after == before


def test_pods_of_one_template_share_their_answers() -> None:
    """What makes ephemeral volumes of large jobs cheap."""
    cluster = live(*nodes("a", "b"), FAST, *(with_scratch(f"p{index}") for index in range(2)))
    cluster.api.deliver()
    finder = VolumeFinder(cluster.snapshot, cluster.snapshot.shared(VolumeLedger, VolumeLedger))
    keys = {finder.key(finder.volumes_of(PodInfo(one))) for one in cluster.api.list(Pod)}
    assert len(keys) == 1
