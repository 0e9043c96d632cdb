"""DaemonSets: a pod on every node that may have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bayplan.api import (
    KINDS,
    ControllerRevision,
    DaemonSet,
    Node,
    Pod,
    Taint,
)
from bayplan.api.node import NodeCondition, NodeStatus
from bayplan.cluster.archive import write_archive
from bayplan.cluster.manifests import load_manifests
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_object

Content = dict[str, Any]


def daemon_set(image: str = "one", grace: int = 0, spec: Content | None = None, **more: Any) -> Any:
    container = {"name": "c", "image": image, "resources": {"requests": {"cpu": "1"}}}
    return make_object(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "agent"},
            "spec": {
                "selector": {"matchLabels": {"app": "agent"}},
                "template": {
                    "metadata": {"labels": {"app": "agent"}},
                    "spec": {
                        "terminationGracePeriodSeconds": grace,
                        "containers": [container],
                        **(spec or {}),
                    },
                },
                **more,
            },
        }
    )


def simulation(*objects: Any, nodes: int = 3, until: float = 3600) -> Simulation:
    made = Simulation(default_profiles(), until=until)
    made.create([*(make_node(f"n{i}", cpu=8) for i in range(nodes)), *objects])
    made.run()
    return made


def placed(made: Simulation) -> list[str]:
    return sorted(p.spec.node_name for p in made.pods() if not p.metadata.deletion_timestamp)


def images(made: Simulation) -> dict[str, str]:
    return {p.spec.node_name: p.spec.containers[0].image for p in made.pods()}


def change(made: Simulation, obj: Any) -> None:
    (current,) = made.cluster.list(DaemonSet)
    made.cluster.update(replace(current, spec=obj.spec))
    made.run()


def taint(made: Simulation, name: str, *taints: Taint) -> None:
    node = made.cluster.get(Node, name)
    assert node is not None
    made.cluster.update(replace(node, spec=replace(node.spec, taints=taints)))
    made.run()


def test_every_node_has_a_pod_that_is_made_for_it() -> None:
    made = simulation(daemon_set())
    assert placed(made) == ["n0", "n1", "n2"]
    for pod in made.pods():
        assert pod.spec.affinity is not None
        assert pod.spec.affinity.node_affinity is not None
        required = pod.spec.affinity.node_affinity.required
        assert required is not None
        (term,) = required.node_selector_terms
        assert [(f.key, f.values) for f in term.match_fields] == [
            ("metadata.name", (pod.spec.node_name,))
        ]
    (owner,) = made.cluster.list(DaemonSet)
    status = owner.status
    assert (status.desired_number_scheduled, status.number_available) == (3, 3)
    assert status.number_unavailable is None


def test_nodes_come_and_go() -> None:
    made = simulation(daemon_set())
    made.cluster.create(make_node("n9"))
    made.run()
    assert placed(made) == ["n0", "n1", "n2", "n9"]
    made.cluster.delete(Node, "n1")
    made.run()
    assert placed(made) == ["n0", "n2", "n9"]


def test_only_nodes_that_the_template_means_count() -> None:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
                ]
            }
        }
    }
    nodes = [make_node("a", labels={"disk": "ssd"}), make_node("b", labels={"disk": "hdd"})]
    for spec in ({"nodeSelector": {"disk": "ssd"}}, {"affinity": affinity}):
        made = simulation(*nodes, daemon_set(spec=spec), nodes=0)
        assert placed(made) == ["a"]
        node = made.cluster.get(Node, "b")
        assert node is not None
        labels = replace(node.metadata, labels={"disk": "ssd"})
        made.cluster.update(replace(node, metadata=labels))
        made.run()
        assert placed(made) == ["a", "b"]


def unwell(made: Simulation, *conditions: NodeCondition) -> None:
    """Cordon the node, and let it have conditions."""
    node = made.cluster.get(Node, "n0")
    assert node is not None
    made.cluster.update(
        replace(
            node,
            spec=replace(node.spec, unschedulable=True),
            status=NodeStatus(node.status.capacity, node.status.allocatable, conditions),
        )
    )
    made.run()


def test_daemons_come_to_nodes_that_are_cordoned_or_full() -> None:
    made = simulation(daemon_set(), nodes=1)
    unwell(made, NodeCondition("DiskPressure", "True"))
    assert placed(made) == ["n0"]
    made.cluster.delete(Pod, made.pods()[0].key)
    made.run()
    assert placed(made) == ["n0"]


def test_daemons_stay_on_nodes_that_fail() -> None:
    made = simulation(daemon_set(), nodes=1, until=1000)
    unwell(made, NodeCondition("Ready", "Unknown"))
    made.cluster.clock.advance(999)
    made.run()
    assert placed(made) == ["n0"]


def test_taints_keep_daemons_away_and_drive_them_out() -> None:
    tainted = make_node("t", taints=["a:NoSchedule"])
    made = simulation(tainted, daemon_set())
    assert placed(made) == ["n0", "n1", "n2"]
    taint(made, "n0", Taint("a", "NoSchedule"))
    # No new pod would come, but the one that is there may stay.
    assert placed(made) == ["n0", "n1", "n2"]
    (owner,) = made.cluster.list(DaemonSet)
    assert owner.status.number_misscheduled == 1
    taint(made, "n0", Taint("a", "NoExecute"))
    assert placed(made) == ["n1", "n2"]


def test_a_rollout_replaces_one_pod_after_the_other() -> None:
    made = simulation(daemon_set(grace=10))
    change(made, daemon_set("two", grace=10))
    assert set(images(made).values()) == {"two"}
    assert made.cluster.now == 30
    (owner,) = made.cluster.list(DaemonSet)
    assert owner.status.updated_number_scheduled == 3
    assert len(made.cluster.list(ControllerRevision)) == 2


def test_a_rollout_replaces_as_many_pods_as_may_be_missing() -> None:
    strategy: Content = {"rollingUpdate": {"maxUnavailable": "60%"}}
    made = simulation(daemon_set(grace=10, updateStrategy=strategy))
    change(made, daemon_set("two", grace=10, updateStrategy=strategy))
    assert set(images(made).values()) == {"two"}
    # 60 % of three nodes are two, rounded up.
    assert made.cluster.now == 20


def test_a_surge_has_the_new_pod_before_the_old_one_goes() -> None:
    strategy: Content = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    made = simulation(daemon_set(updateStrategy=strategy))
    least = 3

    def count(_: object) -> None:
        nonlocal least
        running = {p.spec.node_name for p in made.pods() if p.status.phase == "Running"}
        least = min(least, len(running))

    made.cluster.watch(count)
    change(made, daemon_set("two", updateStrategy=strategy))
    assert set(images(made).values()) == {"two"}
    assert placed(made) == ["n0", "n1", "n2"]
    assert least == 3


def test_on_delete_waits_for_somebody_who_deletes() -> None:
    strategy: Content = {"type": "OnDelete"}
    made = simulation(daemon_set(updateStrategy=strategy))
    change(made, daemon_set("two", updateStrategy=strategy))
    assert set(images(made).values()) == {"one"}
    made.cluster.delete(Pod, next(p.key for p in made.pods() if p.spec.node_name == "n1"))
    made.run()
    assert images(made) == {"n0": "one", "n1": "two", "n2": "one"}


def test_a_pod_that_fails_is_made_anew_later_each_time() -> None:
    made = simulation(daemon_set(), nodes=1)
    for seconds in (1, 3, 7):
        (pod,) = made.pods()
        made.cluster.update(replace(pod, status=replace(pod.status, phase="Failed")))
        made.run()
        (fresh,) = made.pods()
        assert fresh.metadata.uid != pod.metadata.uid
        assert fresh.status.phase == "Running"
        assert made.cluster.now == seconds


def test_a_daemon_set_ends_with_its_pods_and_revisions() -> None:
    made = simulation(daemon_set())
    made.cluster.delete(DaemonSet, "default/agent")
    made.run()
    assert made.pods() == []
    assert made.cluster.list(ControllerRevision) == []


def test_daemon_sets_of_manifests_and_snapshots_are_read(tmp_path: Path) -> None:
    here = Path(__file__).parent / "daemons.yaml"
    objects = load_manifests([str(here)]).objects
    assert {type(obj).__name__ for obj in objects} == {"DaemonSet", "Deployment"}
    made = simulation(*objects)
    agents = [p for p in made.pods() if p.metadata.labels["app"] == "agent"]
    assert sorted(p.spec.node_name for p in agents) == ["n0", "n1", "n2"]
    file = tmp_path / "cluster.zip"
    kinds = [KINDS["apps", "DaemonSet"], KINDS["", "Pod"], KINDS["", "Node"]]
    contents: dict[Any, Any] = {kind: made.cluster.list(kind.type) for kind in kinds}
    assert write_archive(file, contents, {})["DaemonSet"] == 1
    again = Simulation(default_profiles())
    again.create(load_manifests([str(file)]).objects)
    again.run()
    before = {p.metadata.uid for p in made.pods()}
    assert {p.metadata.uid for p in again.pods()} == before
    # A node that is added gets its daemon.
    again.cluster.create(make_node("n9"))
    again.run()
    assert "n9" in {p.spec.node_name for p in again.pods()}
