"""Manifests: loaded in linear time, with places only for errors; snapshots with changes on top."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan.api import KINDS, Deployment, Job, Pod, ReplicaSet
from bayplan.cluster.archive import write_archive
from bayplan.cluster.manifests import Manifests, load_manifests
from bayplan.errors import InputError
from bayplan.inputs import documents as yamlfile
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation

Content = dict[str, Any]


def pod(name: str, **spec: Any) -> Content:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": containers, **spec},
    }


def listed(items: list[Content]) -> Content:
    return {"apiVersion": "v1", "kind": "List", "items": items}


def loaded(*paths: Path) -> Manifests:
    return load_manifests([str(path) for path in paths])


# Places -----------------------------------------------------------------------------------------


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the texts in which a place was looked up."""
    found: list[int] = []
    plain = yamlfile.positions

    def places(text: str) -> Any:
        found.append(len(text))
        return plain(text)

    monkeypatch.setattr(yamlfile, "positions", places)
    return found


@pytest.mark.parametrize("form", ["documents", "list", "json"])
def test_no_place_is_looked_up_where_all_is_well(
    tmp_path: Path, looked_up: list[int], form: str
) -> None:
    pods = [pod(f"p{index}") for index in range(50)]
    texts = {
        "documents": yaml.safe_dump_all(pods),
        "list": yaml.safe_dump(listed(pods)),
        "json": json.dumps(listed(pods)),
    }
    path = tmp_path / "pods.yaml"
    path.write_text(texts[form])
    assert len(loaded(path).objects) == 50
    assert looked_up == []


def test_places_of_many_notes_are_looked_up_at_once(tmp_path: Path, looked_up: list[int]) -> None:
    path = tmp_path / "pods.yaml"
    odd = [pod(f"p{index}", **{f"quux{index}zz": 1}) for index in range(20)]
    path.write_text(yaml.safe_dump_all(odd))
    assert len(loaded(path).notes()) == 20
    assert len(looked_up) == 1


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: 1\n---\nkind: Pod\napiVersion: v1\nmetadata: {name: P}\n", "f.yaml:5:18 (document 2)"),
        ('{"apiVersion": "v1", "kind": "Pod",\n "metadata": {"name": 3}}', "f.yaml:2:23"),
        ("apiVersion: v1\nkind: List\nitems:\n- {kind: Pod, apiVersion: v1}\n", "f.yaml:4:3"),
    ],
)
def test_an_error_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text(
        text.replace(
            "a: 1",
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c}]}}",
        )
    )
    with pytest.raises(InputError) as caught:
        load_manifests(["f.yaml"])
    assert str(caught.value).startswith(where)


def test_a_json_file_with_a_key_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "pod.json"
    path.write_text(
        '{"apiVersion": "v1", "kind": "Pod",\n "metadata": {"name": "a",\n "name": "b"}}'
    )
    with pytest.raises(InputError, match=r':3:2: not YAML: the key "name" appears twice'):
        loaded(path)


# A snapshot with changes on top -----------------------------------------------------------------

NODE: Content = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n"},
    "status": {"allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"}},
}


def workload(kind: str, cpu: str = "1", **spec: Any) -> Content:
    containers = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
    template: Content = {"spec": {"containers": containers}}
    if kind == "Deployment":
        template["metadata"] = {"labels": {"app": "web"}}
        spec = {"selector": {"matchLabels": {"app": "web"}}, **spec}
    else:
        template["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "apps/v1" if kind == "Deployment" else "batch/v1",
        "kind": kind,
        "metadata": {"name": "web"},
        "spec": {**spec, "template": template},
    }


def simulated(*paths: Path) -> Simulation:
    simulation = Simulation(default_profiles())
    simulation.create(loaded(*paths).objects)
    simulation.run()
    return simulation


@pytest.fixture
def snapshot(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The snapshot of a cluster that runs a workload."""
    before = tmp_path / "before.yaml"
    before.write_text(yaml.safe_dump_all([NODE, request.param]))
    done = simulated(before)
    path = tmp_path / "cluster.zip"
    kinds = [kind for kind in KINDS.values() if done.cluster.list(kind.type)]
    write_archive(path, {kind: done.cluster.list(kind.type) for kind in kinds}, {})
    return path


def changed(tmp_path: Path, content: Content) -> Path:
    path = tmp_path / "changed.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def cpus(simulation: Simulation) -> list[str]:
    """The CPUs of the pods on the node."""
    return sorted(
        one.spec.containers[0].resources.requests["cpu"].text
        for one in simulation.pods()
        if one.spec.node_name
    )


DEPLOYMENT = workload("Deployment", replicas=3)
JOB = workload("Job", parallelism=2, completions=2)


@pytest.mark.parametrize("snapshot", [DEPLOYMENT, JOB], indirect=True)
def test_a_snapshot_alone_keeps_its_pods(snapshot: Path) -> None:
    assert cpus(simulated(snapshot)) in (["1", "1", "1"], ["1", "1"])


@pytest.mark.parametrize("snapshot", [DEPLOYMENT], indirect=True)
@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_a_deployment_is_scaled_by_what_is_applied(
    tmp_path: Path, snapshot: Path, replicas: int
) -> None:
    after = changed(tmp_path, workload("Deployment", replicas=replicas))
    assert cpus(simulated(snapshot, after)) == ["1"] * replicas
    # The order of the files does not matter.
    assert cpus(simulated(after, snapshot)) == ["1"] * replicas


@pytest.mark.parametrize("snapshot", [DEPLOYMENT], indirect=True)
def test_a_deployment_whose_template_changes_rolls_out(tmp_path: Path, snapshot: Path) -> None:
    after = changed(tmp_path, workload("Deployment", cpu="2", replicas=3))
    done = simulated(snapshot, after)
    assert cpus(done) == ["2", "2", "2"]
    assert len(done.cluster.list(Deployment)) == 1
    assert sum(one.spec.replicas for one in done.cluster.list(ReplicaSet)) == 3


@pytest.mark.parametrize("snapshot", [JOB], indirect=True)
def test_a_job_that_cannot_change_is_replaced_with_its_pods(tmp_path: Path, snapshot: Path) -> None:
    after = changed(tmp_path, workload("Job", cpu="4", parallelism=2, completions=2))
    assert cpus(simulated(snapshot, after)) == ["4", "4"]
    assert loaded(snapshot, after).notes() == [
        "Job default/web cannot change like this: it was replaced, and so were its pods"
    ]
    assert len([one for one in loaded(snapshot, after).objects if isinstance(one, Job)]) == 1


@pytest.mark.parametrize("snapshot", [pod("p")], indirect=True)
def test_a_pod_that_is_applied_unchanged_keeps_its_node(tmp_path: Path, snapshot: Path) -> None:
    found = loaded(snapshot, changed(tmp_path, pod("p"))).objects
    (one,) = (obj for obj in found if isinstance(obj, Pod))
    assert one.spec.node_name == "n"


@pytest.mark.parametrize("snapshot", [pod("p")], indirect=True)
def test_a_node_is_changed_in_place(tmp_path: Path, snapshot: Path) -> None:
    node = {**NODE, "spec": {"unschedulable": True}}
    done = simulated(snapshot, changed(tmp_path, node))
    assert done.cluster.list(KINDS["", "Node"].type)[0].spec.unschedulable  # type: ignore[union-attr]
    assert cpus(done) == ["1"]


@pytest.mark.parametrize("snapshot", [pod("p")], indirect=True)
def test_two_files_that_change_the_same_object_are_refused(tmp_path: Path, snapshot: Path) -> None:
    first = changed(tmp_path, pod("p"))
    second = tmp_path / "again.yaml"
    second.write_text(first.read_text())
    with pytest.raises(InputError, match="is defined twice; first in"):
        loaded(snapshot, first, second)


PICKY = pod("p", nodeSelector={"disk": "none"})


@pytest.mark.parametrize("snapshot", [PICKY], indirect=True)
def test_a_constraint_that_the_file_drops_is_gone(tmp_path: Path, snapshot: Path) -> None:
    assert cpus(simulated(snapshot)) == []
    assert cpus(simulated(snapshot, changed(tmp_path, pod("p")))) == ["1"]


@pytest.mark.parametrize("snapshot", [pod("p")], indirect=True)
def test_a_pods_image_changes_in_place(tmp_path: Path, snapshot: Path) -> None:
    after = pod("p")
    after["spec"]["containers"][0]["image"] = "other"
    found = loaded(snapshot, changed(tmp_path, after))
    assert not found.notes()
    assert [one.spec.node_name for one in found.objects if isinstance(one, Pod)] == ["n"]


STATEFUL: Content = {
    **workload("Deployment", replicas=2, serviceName="web"),
    "kind": "StatefulSet",
}


@pytest.mark.parametrize("snapshot", [STATEFUL], indirect=True)
def test_a_stateful_set_whose_template_changes_has_new_pods(tmp_path: Path, snapshot: Path) -> None:
    after = {**workload("Deployment", cpu="2", replicas=2, serviceName="web")}
    assert cpus(simulated(snapshot, changed(tmp_path, {**after, "kind": "StatefulSet"}))) == [
        "2",
        "2",
    ]


# Damage -----------------------------------------------------------------------------------------


def test_a_damaged_archive_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "cluster.zip"
    write_archive(path, {KINDS["", "Pod"]: loaded_pods(tmp_path)}, {})
    content = bytearray(path.read_bytes())
    for place in range(60, len(content) // 2, 7):
        content[place] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"cluster\.zip"):
        loaded(path)


def loaded_pods(tmp_path: Path) -> list[Pod]:
    found = loaded(changed(tmp_path, listed([pod(f"p{index}") for index in range(50)])))
    return [one for one in found.objects if isinstance(one, Pod)]


@pytest.mark.parametrize("meta", ['labels: {"": 3}', 'annotations: {"": {}}'])
def test_an_empty_key_is_named(tmp_path: Path, meta: str) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p, {meta}}}\n"
        "spec: {containers: [{name: c}]}\n"
    )
    with pytest.raises(InputError, match=r"pod\.yaml:3:"):
        loaded(path)


@pytest.mark.parametrize("kind", ["CronJob", "Job"])
def test_a_kind_that_is_not_read_does_not_end_the_rest(tmp_path: Path, kind: str) -> None:
    other = {"apiVersion": "batch/v1" if kind == "CronJob" else "batch.volcano.sh/v1alpha1"}
    other |= {"kind": "CronJob", "metadata": {"name": "c"}, "spec": {}}
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([pod("p"), other]))
    found = loaded(path)
    assert len(found.objects) == 1
    assert list(found.ignored) == [f"CronJob ({other['apiVersion']})"]


def test_objects_one_after_the_other_in_json_are_all_read(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_text("\n".join(json.dumps(pod(name), indent=2) for name in ("a", "b", "c")))
    assert [one.metadata.name for one in loaded(path).objects] == ["a", "b", "c"]
