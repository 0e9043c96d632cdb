"""The embedded cluster binds and makes volumes as the controllers of Kubernetes do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import (
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageClass,
)
from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.embedded.volumes import VolumeController
from bayplan.cluster.manifests import load_manifests
from bayplan.cluster.protocol import Bind, BindVolume, SelectNode, Write
from bayplan.errors import ClusterError, Conflict, InputError, NotFound
from bayplan.testing import make_node, make_object, make_pod

Content = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"
SELECTED = "volume.kubernetes.io/selected-node"


def obj(kind: str, name: str, version: str = "v1", **content: Any) -> Any:
    meta = {"name": name, **content.pop("metadata", {})}
    return make_object({"apiVersion": version, "kind": kind, "metadata": meta, **content})


def a_class(name: str, provisioner: str = "disks", mode: str = "Immediate", **more: Any) -> Any:
    content = {"provisioner": provisioner, "volumeBindingMode": mode, **more}
    return obj("StorageClass", name, "storage.k8s.io/v1", **content)


def a_volume(name: str, size: str = "10Gi", **spec: Any) -> Any:
    content = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], **spec}
    return obj("PersistentVolume", name, spec=content)


def a_claim(name: str, cls: str | None = "", metadata: Content | None = None, **spec: Any) -> Any:
    content: Content = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "5Gi"}},
        **({"storageClassName": cls} if cls is not None else {}),
        **spec,
    }
    return obj("PersistentVolumeClaim", name, spec=content, metadata=metadata or {})


def made(*objects: Any) -> MemoryCluster:
    cluster = MemoryCluster()
    VolumeController(cluster)
    for one in objects:
        cluster.create(one)
    cluster.deliver()
    return cluster


def claim_of(cluster: MemoryCluster, name: str) -> PersistentVolumeClaim:
    found = cluster.get(PersistentVolumeClaim, f"default/{name}")
    assert found is not None
    return found


def volume_of(cluster: MemoryCluster, name: str) -> PersistentVolume:
    found = cluster.get(PersistentVolume, name)
    assert found is not None
    return found


def submit(cluster: MemoryCluster, write: Write) -> ClusterError | None:
    answers: list[ClusterError | None] = []
    cluster.submit(write, answers.append)
    cluster.deliver()
    return answers[0]


# Binding -------------------------------------------------------------------------------------


def test_a_claim_and_the_smallest_volume_that_suits_are_bound_to_each_other() -> None:
    cluster = made(a_volume("large", "100Gi"), a_volume("small", "1Gi"), a_volume("right"))
    cluster.create(a_claim("data"))
    cluster.deliver()
    claim, volume = claim_of(cluster, "data"), volume_of(cluster, "right")
    assert (claim.spec.volume_name, claim.status.phase) == ("right", "Bound")
    assert claim.metadata.annotations["pv.kubernetes.io/bind-completed"] == "yes"
    assert volume.spec.claim_ref is not None
    assert volume.spec.claim_ref.uid == claim.metadata.uid
    assert volume.status.phase == "Bound"
    assert volume_of(cluster, "large").status.phase == "Available"


def test_a_claim_waits_for_a_volume() -> None:
    cluster = made(a_claim("first"), a_claim("second"))
    assert claim_of(cluster, "first").status.phase == "Pending"
    cluster.create(a_volume("pv"))
    cluster.deliver()
    assert claim_of(cluster, "first").spec.volume_name == "pv"
    assert claim_of(cluster, "second").status.phase == "Pending"


def test_a_claim_may_name_its_volume_and_a_volume_its_claim() -> None:
    kept = {"namespace": "default", "name": "kept"}
    cluster = made(a_volume("one"), a_volume("two"), a_volume("three", claimRef=kept))
    cluster.create(a_claim("named", volumeName="two"))
    cluster.create(a_claim("kept"))
    cluster.deliver()
    assert claim_of(cluster, "named").spec.volume_name == "two"
    assert claim_of(cluster, "kept").spec.volume_name == "three"


def test_a_delayed_claim_waits_for_a_node() -> None:
    cluster = made(a_class("late", mode="WaitForFirstConsumer"), make_node("a"))
    cluster.create(a_volume("pv", storageClassName="late"))
    cluster.create(a_claim("data", "late"))
    cluster.deliver()
    assert claim_of(cluster, "data").spec.volume_name == ""


def test_a_claim_without_a_class_gets_the_default_one() -> None:
    mark = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    cluster = made(a_class("usual", metadata=mark), a_class("other"))
    cluster.create(a_claim("data", cls=None))
    cluster.deliver()
    assert claim_of(cluster, "data").spec.storage_class_name == "usual"
    assert claim_of(cluster, "data").status.phase == "Bound"


def test_a_lost_watch_is_made_up_for() -> None:
    cluster = made()
    cluster.break_watch()
    cluster.create(a_volume("pv"))
    cluster.create(a_claim("data"))
    cluster.resume_watch()
    cluster.deliver()
    assert claim_of(cluster, "data").spec.volume_name == "pv"


# Making --------------------------------------------------------------------------------------


def test_a_class_makes_volumes() -> None:
    cluster = made(a_class("fast"), a_claim("data", "fast"))
    claim = claim_of(cluster, "data")
    volume = volume_of(cluster, claim.spec.volume_name)
    assert volume.spec.capacity == claim.spec.resources.requests
    assert volume.spec.csi is not None
    assert volume.spec.csi.driver == "disks"
    assert volume.affinity is None


def test_a_class_that_comes_later_makes_volumes_for_those_who_wait() -> None:
    cluster = made(a_claim("data", "fast"))
    assert claim_of(cluster, "data").spec.volume_name == ""
    cluster.create(a_class("fast"))
    cluster.deliver()
    assert claim_of(cluster, "data").status.phase == "Bound"


def test_a_class_without_a_provisioner_makes_none() -> None:
    cluster = made(a_class("manual", "kubernetes.io/no-provisioner"), a_claim("data", "manual"))
    assert claim_of(cluster, "data").status.phase == "Pending"


def reach(cluster: MemoryCluster, name: str) -> dict[str, tuple[str, ...]]:
    affinity = volume_of(cluster, claim_of(cluster, name).spec.volume_name).affinity
    terms = affinity.node_selector_terms if affinity is not None else ()
    return {one.key: one.values for term in terms for one in term.match_expressions}


@pytest.mark.parametrize(
    ("drivers", "expected"),
    [
        (None, {"kubernetes.io/hostname": ("a",)}),
        ([{"name": "disks", "nodeID": "a", "topologyKeys": [ZONE]}], {ZONE: ("x",)}),
        ([{"name": "disks", "nodeID": "a"}], {}),
    ],
    ids=["no driver", "by zone", "everywhere"],
)
def test_a_delayed_volume_is_made_where_the_node_reaches_it(
    drivers: list[Content] | None, expected: dict[str, tuple[str, ...]]
) -> None:
    cluster = made(a_class("late", mode="WaitForFirstConsumer"), a_claim("data", "late"))
    cluster.create(make_node("a", labels={ZONE: "x"}))
    if drivers is not None:
        cluster.create(obj("CSINode", "a", "storage.k8s.io/v1", spec={"drivers": drivers}))
    assert submit(cluster, SelectNode("default/data", "", "a")) is None
    assert reach(cluster, "data") == expected


def test_an_immediate_volume_is_made_in_the_first_topology_that_is_allowed() -> None:
    allowed = [{"matchLabelExpressions": [{"key": ZONE, "values": ["x", "y"]}]}]
    cluster = made(a_class("zoned", allowedTopologies=allowed), a_claim("data", "zoned"))
    assert reach(cluster, "data") == {ZONE: ("x", "y")}


def test_a_selected_node_that_is_gone_is_taken_back() -> None:
    cluster = made(a_class("late", mode="WaitForFirstConsumer"), make_node("a"))
    cluster.create(a_claim("data", "late"))
    cluster.delete(Node, "a")
    submit(cluster, SelectNode("default/data", "", "a"))
    assert SELECTED not in claim_of(cluster, "data").metadata.annotations


# Giving back ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "phase"), [("Retain", "Released"), ("Delete", None)])
def test_a_deleted_claim_leaves_its_volume_as_the_policy_says(
    policy: str, phase: str | None
) -> None:
    cluster = made(a_volume("pv", persistentVolumeReclaimPolicy=policy), a_claim("data"))
    cluster.delete(PersistentVolumeClaim, "default/data")
    cluster.deliver()
    found = cluster.get(PersistentVolume, "pv")
    assert (found.status.phase if found is not None else None) == phase
    cluster.create(a_claim("data"))
    cluster.deliver()
    assert claim_of(cluster, "data").status.phase == "Pending"


def test_a_claim_whose_volume_is_gone_is_lost() -> None:
    cluster = made(a_volume("pv"), a_claim("data"))
    cluster.delete(PersistentVolume, "pv")
    cluster.deliver()
    assert claim_of(cluster, "data").status.phase == "Lost"


# What a scheduler writes ---------------------------------------------------------------------


def late(*objects: Any) -> MemoryCluster:
    cluster = made(a_class("late", mode="WaitForFirstConsumer"), *objects)
    cluster.create(a_volume("pv", storageClassName="late"))
    cluster.create(a_claim("data", "late"))
    cluster.deliver()
    return cluster


def test_a_volume_that_is_kept_for_a_claim_is_bound_to_it() -> None:
    cluster = late()
    write = BindVolume("pv", "default/data", claim_of(cluster, "data").metadata.uid)
    assert submit(cluster, write) is None
    assert claim_of(cluster, "data").spec.volume_name == "pv"
    assert submit(cluster, write) is None


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (BindVolume("pv", "default/data", "other"), Conflict),
        (BindVolume("pv", "default/nothing", ""), NotFound),
        (BindVolume("nothing", "default/data", ""), NotFound),
        (BindVolume("theirs", "default/data", ""), Conflict),
        (BindVolume("pv", "default/going", ""), Conflict),
        (BindVolume("pv", "default/bound", ""), Conflict),
        (SelectNode("default/data", "other", "a"), Conflict),
        (SelectNode("default/nothing", "", "a"), NotFound),
        (SelectNode("default/going", "", "a"), Conflict),
        (SelectNode("default/bound", "", "a"), Conflict),
        (SelectNode("default/chosen", "", "b"), Conflict),
    ],
)
def test_a_write_that_comes_too_late_is_refused(write: Write, error: type[ClusterError]) -> None:
    somebody = {"namespace": "default", "name": "somebody", "uid": "u"}
    marked = {"finalizers": ["kubernetes.io/pvc-protection"]}
    cluster = MemoryCluster()
    for one in (
        a_volume("pv"),
        a_volume("theirs", claimRef=somebody),
        a_claim("data"),
        a_claim("going", metadata=marked),
        a_claim("bound", volumeName="theirs"),
        a_claim("chosen", metadata={"annotations": {SELECTED: "a"}}),
    ):
        cluster.create(one)
    cluster.delete(PersistentVolumeClaim, "default/going")
    assert isinstance(submit(cluster, write), error)


def test_a_selected_node_can_be_selected_again_and_taken_back() -> None:
    cluster = MemoryCluster()
    cluster.create(a_claim("data"))
    for node in ("a", "a", "", "", "b"):
        assert submit(cluster, SelectNode("default/data", "", node)) is None
        assert claim_of(cluster, "data").metadata.annotations.get(SELECTED, "") == node


# Pods ----------------------------------------------------------------------------------------


def scratch(cls: str) -> Content:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": cls,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    template = {"metadata": {"labels": {"app": "x"}}, "spec": spec}
    return {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}


def test_a_claim_is_made_for_an_ephemeral_volume_and_goes_with_its_pod() -> None:
    cluster = made(a_class("fast"), make_pod("p", spec={"volumes": [scratch("fast")]}))
    claim = claim_of(cluster, "p-scratch")
    (owner,) = claim.metadata.owner_references
    assert (owner.kind, owner.name, owner.controller) == ("Pod", "p", True)
    assert claim.metadata.labels == {"app": "x"}
    assert claim.status.phase == "Bound"
    cluster.delete(Pod, "default/p", grace=0)
    cluster.deliver()
    assert cluster.list(PersistentVolumeClaim) == []
    assert cluster.list(PersistentVolume) == []


def test_a_pod_starts_when_its_claims_are_bound() -> None:
    data = {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}
    cluster = made(make_node("a"))
    VirtualKubelet(cluster)
    pod = cluster.create(make_pod("p", spec={"volumes": [data]}))
    assert submit(cluster, Bind(pod.key, pod.metadata.uid, "a")) is None
    assert _phase(cluster) == "Pending"
    cluster.create(a_claim("data"))
    cluster.deliver()
    assert _phase(cluster) == "Pending"
    cluster.create(a_volume("pv"))
    cluster.deliver()
    assert _phase(cluster) == "Running"
    told = [event.message for _, event in cluster.events if event.reason == "FailedMount"]
    assert told == [
        'persistentvolumeclaim "data" not found',
        'persistentvolumeclaim "data" is not bound',
    ]


def _phase(cluster: MemoryCluster) -> str:
    pod = cluster.get(Pod, "default/p")
    assert pod is not None
    return pod.status.phase


def test_the_class_of_a_claim_does_not_change_with_the_default() -> None:
    cluster = made(a_class("fast"), a_claim("data", cls=""))
    mark = {"storageclass.kubernetes.io/is-default-class": "true"}
    (found,) = cluster.list(StorageClass)
    cluster.update(replace(found, metadata=replace(found.metadata, annotations=mark)))
    cluster.deliver()
    assert claim_of(cluster, "data").spec.storage_class_name == ""


# Bad input -----------------------------------------------------------------------------------

CLAIM = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [%s]
  resources: {requests: {%s}}
"""
VOLUME = """\
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec:
  capacity: {%s}
  accessModes: [ReadWriteOnce]
  %s
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: c}]
  volumes: [%s]
"""
CLASS = """\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
%s
"""
REQUIRED = (
    "{required: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: []}]}]}}"
)


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (CLAIM % ("ReadWriteOnce", ""), "$.spec.resources.requests", '"storage" is missing'),
        (CLAIM % ("ReadWriteOnce", "storage: much"), '["storage"]', "expected a quantity"),
        (CLAIM % ("ReadWriteOnce", "storage: -1Gi"), '["storage"]', "0 or more"),
        (CLAIM % ("", "storage: 1Gi"), "$.spec.accessModes", "one access mode or more"),
        (CLAIM % ("Always", "storage: 1Gi"), "$.spec.accessModes[0]", "not one of the allowed"),
        (
            CLAIM % ("ReadWriteOncePod, ReadWriteOnce", "storage: 1Gi"),
            "$.spec.accessModes",
            "goes with no other",
        ),
        (VOLUME % ("", ""), "$.spec.capacity", '"storage" is missing'),
        (VOLUME % ("storage: 1Gi", "csi: {driver: d}"), "$.spec.csi", '"volumeHandle" is missing'),
        (
            VOLUME % ("storage: 1Gi", f"nodeAffinity: {REQUIRED}"),
            "$.spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values",
            "one value or more",
        ),
        (POD % "{name: v, ephemeral: {}}", "volumes[0].ephemeral", '"volumeClaimTemplate"'),
        (
            POD % "{name: v, persistentVolumeClaim: {claimName: ''}}",
            "$.spec.volumes[0].persistentVolumeClaim.claimName",
            "must not be empty",
        ),
        (POD % "{name: v}, {name: v}", "$.spec.volumes[1].name", "two volumes are named"),
        (
            POD % "{name: v, ephemeral: {volumeClaimTemplate: {spec: {}}}}",
            "$.spec.volumes[0].ephemeral.volumeClaimTemplate.spec",
            '"storage" is missing',
        ),
        (CLASS % "", "$", '"provisioner" is missing'),
        (
            CLASS % "provisioner: x\nvolumeBindingMode: Later",
            "$.volumeBindingMode",
            "Immediate, WaitForFirstConsumer",
        ),
    ],
)
def test_a_mistake_names_file_and_path(tmp_path: Path, text: str, path: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        load_manifests([str(file)])
    assert "bad.yaml:" in str(caught.value)
    assert path in str(caught.value)
    assert message in str(caught.value)
