"""Faults in virtual time: what fails and when, and what becomes of jobs and of all GPU hours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.console import bayplan
from tests.examples import examples
from tests.paths import ROOT

from bayplan.api import ApiObject, Job, Node, Pod
from bayplan.api.node import NodeCondition
from bayplan.api.node_state import NodeState, state_of
from bayplan.cluster.manifests import load_manifests
from bayplan.errors import InputError
from bayplan.profiles.loading import ProfileSet, default_profiles, load_profiles
from bayplan.simulation import Simulation
from bayplan.simulation.faults import FaultRule, Faults, load_faults
from bayplan.simulation.goodput import GoodputReport
from bayplan.testing import make_gang, make_network, make_node, make_object, make_pod

Content = dict[str, Any]
GPU = "nvidia.com/gpu"
HOUR = 3600.0
PROFILE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins: {multiPoint: {enabled: [{name: Recovery}]}}
  pluginConfig: [{name: Recovery, args: {spares: [{nodes: %d}]}}]
"""


def file_of(folder: Path, *rules: Content, **more: Any) -> Path:
    path = folder / "faults.yaml"
    kind = {"apiVersion": "bayplan.dev/v1alpha1", "kind": "Faults"}
    path.write_text(yaml.safe_dump({**kind, "faults": list(rules), **more}))
    return path


def faults_of(folder: Path, *rules: Content, **more: Any) -> Faults:
    return load_faults(file_of(folder, *rules, **more))


def recovery(folder: Path, spares: int = 0) -> ProfileSet:
    path = folder / "profile.yaml"
    path.write_text(PROFILE % spares)
    return load_profiles(path)


def job(
    name: str, pods: int, duration: str, gang: bool = True, gpus: int = 8, **spec: Any
) -> list[ApiObject]:
    """Return an indexed Job, whose pods take a node each and are placed together."""
    main = {"name": "main", "image": "x", "resources": {"limits": {GPU: str(gpus)}}}
    labels = {"pod-group.scheduling.sigs.k8s.io": name} if gang else {}
    meta = {"labels": labels, "annotations": {"bayplan.dev/duration": duration}}
    pod = {"containers": [main], "restartPolicy": "Never"}
    content = {"parallelism": pods, "completions": pods, "backoffLimit": 1000, **spec}
    content["template"] = {"metadata": meta, "spec": pod}
    head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
    made = make_object(head | {"spec": {"completionMode": "Indexed", **content}})
    return [make_gang(name, pods), made] if gang else [made]


def run(
    faults: Faults,
    *objects: ApiObject,
    profiles: ProfileSet | None = None,
    until: float | None = None,
    seed: int = 1,
) -> Simulation:
    simulation = Simulation(profiles or default_profiles(), until=until)
    simulation.play_faults(faults, seed)
    simulation.create(objects)
    simulation.run()
    return simulation


def report_of(simulation: Simulation) -> GoodputReport:
    assert simulation.fault_play is not None
    return simulation.fault_play.report()


def nodes(count: int, **labels: str) -> list[ApiObject]:
    return [make_node(f"n{number}", gpu=8, labels=labels) for number in range(count)]


# What jobs lose ----------------------------------------------------------------------------------


def test_a_job_falls_back_to_its_checkpoint_and_goes_on_on_another_node(tmp_path: Path) -> None:
    faults = faults_of(
        tmp_path,
        {"of": "node", "name": "n0", "at": "150m", "downFor": "24h"},
        checkpointEvery="1h",
        restart="5m",
    )
    done = run(faults, *nodes(5), *job("train", 4, "6h"), profiles=recovery(tmp_path))
    found = report_of(done)
    # Thirty seconds until the member is evicted, and five minutes to load the checkpoint.
    assert found.by_faults.count == 1
    assert found.by_faults.median == 330
    assert found.lost == pytest.approx(0.5 * 32)
    assert found.useful == pytest.approx(6 * 32)
    assert found.restarting == pytest.approx(32 * 300 / HOUR)
    # It had two hours of work at its checkpoint, and four more to do.
    assert done.ended_at == pytest.approx(2.5 * HOUR + 330 + 4 * HOUR)
    assert found.faults == {"node": 1}


def test_without_checkpoints_all_is_lost(tmp_path: Path) -> None:
    rule = {"of": "node", "name": "n0", "at": "5h", "downFor": "24h"}
    faults = faults_of(tmp_path, rule, checkpointEvery=0, restart=0)
    found = report_of(run(faults, *nodes(2), *job("train", 1, "6h", gang=False)))
    assert found.lost == pytest.approx(5 * 8)
    assert found.useful == pytest.approx(6 * 8)


def test_the_next_pod_of_a_deployment_takes_up_the_work_of_the_last(tmp_path: Path) -> None:
    template = {
        "metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": "m", "resources": {"limits": {GPU: "8"}}}]},
    }
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    head = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}}
    rule = {"of": "gpu", "name": "n0/3", "at": "90m", "downFor": "30m"}
    faults = faults_of(tmp_path, rule, restart=0)
    done = run(faults, *nodes(3), make_object({**head, "spec": spec}), until=6 * HOUR)
    found = report_of(done)
    assert found.by_faults.count == 1
    assert found.by_faults.waiting == 0
    assert found.lost == pytest.approx(0.5 * 8)
    # The failed pod was replaced at once, beside the other one.
    assert found.useful + found.lost == pytest.approx(12 * 8)


def test_a_pod_takes_up_the_work_of_one_that_still_ends_on_a_silent_node(tmp_path: Path) -> None:
    rule = {"of": "node", "name": "n0", "at": "5h", "downFor": "40h"}
    (made,) = job("train", 1, "9h", gang=False, completionMode="NonIndexed")
    done = run(faults_of(tmp_path, rule), *nodes(2), made)
    # Its controller makes another one after five minutes, and that loads the checkpoint.
    assert done.ended_at == pytest.approx(5 * HOUR + 300 + 300 + 4 * HOUR)
    assert report_of(done).useful == pytest.approx(9 * 8)
    assert report_of(done).by_faults.waiting == 0


def test_an_eviction_is_not_taken_for_a_fault(tmp_path: Path) -> None:
    low = job("low", 1, "6h", gang=False)
    simulation = Simulation(default_profiles(), until=8 * HOUR)
    simulation.play_faults(faults_of(tmp_path), 0)
    simulation.create([*nodes(1), *low])
    simulation.arrive([(HOUR * 1.5, make_pod("urgent", gpu=8, priority=10))])
    simulation.run()
    found = report_of(simulation)
    assert found.by_faults.count == 0
    assert found.by_evictions.count == 1
    assert found.by_evictions.waiting == 1
    assert found.lost == pytest.approx(0.5 * 8)


def test_who_has_notice_of_an_eviction_loses_nothing(tmp_path: Path) -> None:
    low = make_pod("low", gpu=8, annotations={"bayplan.dev/checkpoint-seconds": "600"})
    simulation = Simulation(default_profiles(), until=3 * HOUR)
    simulation.play_faults(faults_of(tmp_path), 0)
    simulation.create([*nodes(1), low])
    simulation.arrive([(HOUR * 1.5, make_pod("urgent", gpu=8, priority=10))])
    simulation.run()
    found = report_of(simulation)
    assert found.lost == 0
    assert found.by_evictions.count == 1
    # It worked until ten minutes after it was chosen.
    assert found.useful == pytest.approx(3 * 8, rel=0.01)


def test_a_reserve_beats_no_reserve(tmp_path: Path) -> None:
    """A firm job would take the place that the gang needs when it loses a node."""
    rule = {"of": "node", "name": "n0", "at": "1h", "downFor": "12h"}
    objects = [*nodes(5), *job("train", 4, "12h"), *job("tune", 1, "12h", gang=False)]
    figures = [
        report_of(
            run(
                faults_of(tmp_path, rule),
                *objects,
                profiles=recovery(tmp_path, spares),
                until=12 * HOUR,
            )
        )
        for spares in (0, 1)
    ]
    assert figures[1].goodput > 1.5 * figures[0].goodput
    assert figures[0].spare == 0
    assert figures[1].spare == pytest.approx(8 + 8 * 30 / HOUR)


def test_each_pod_of_a_gang_does_its_own_work(tmp_path: Path) -> None:
    """Three pods, one after another at eight GPUs, though one is enough for their gang."""
    group, made = job("g", 3, "6h", gpus=4)
    assert hasattr(group, "spec")
    small = replace(group, spec=replace(group.spec, min_member=1))
    done = run(faults_of(tmp_path), *nodes(1), small, made)
    assert done.ended_at == pytest.approx(12 * HOUR)
    assert report_of(done).useful == pytest.approx(3 * 6 * 4)


def test_what_joined_late_loses_no_more_than_it_did(tmp_path: Path) -> None:
    rule = {"of": "node", "name": "n0", "at": "10h", "downFor": "24h"}
    group, made = job("g", 4, "20h")
    assert hasattr(group, "spec")
    small = replace(group, spec=replace(group.spec, min_member=1))
    simulation = Simulation(default_profiles(), until=10 * HOUR + 1)
    simulation.play_faults(faults_of(tmp_path, rule, checkpointEvery=0), 0)
    simulation.create([*nodes(1), small, made])
    simulation.arrive([(9.5 * HOUR, make_node(f"m{number}", gpu=8)) for number in range(3)])
    simulation.run()
    found = report_of(simulation)
    assert found.lost == pytest.approx(10 * 8 + 3 * 0.5 * 8)
    assert found.useful == pytest.approx(0, abs=0.01)


def test_gpus_that_come_later_are_not_mixed_with_cores(tmp_path: Path) -> None:
    simulation = Simulation(default_profiles(), until=20 * HOUR)
    simulation.play_faults(faults_of(tmp_path), 0)
    simulation.create([make_node("c", cpu="100"), make_pod("p", cpu="50")])
    simulation.arrive([(10 * HOUR, make_node("g", gpu=8))])
    simulation.run()
    found = report_of(simulation)
    assert found.total == pytest.approx(80)
    assert found.idle == pytest.approx(80)


@pytest.mark.parametrize("name", ["partitionable-gpus", "gpu-fractions", "virtual-gpus", "growing"])
def test_hours_of_shared_gpus_add_up(tmp_path: Path, name: str) -> None:
    objects = load_manifests((str(ROOT / "configs" / "examples" / name),)).objects
    rule = {"of": "node", "meanTimeBetween": "5h", "downFor": "1h"}
    found = report_of(run(faults_of(tmp_path, rule), *objects, until=60 * HOUR))
    assert sum(found.parts().values()) == pytest.approx(found.total)
    assert all(hours > -1e-6 for hours in found.parts().values()), found


def test_a_pod_that_survived_a_fault_may_be_evicted_later(tmp_path: Path) -> None:
    rule = {"of": "node", "name": "n0", "at": "1h", "downFor": "1m"}
    simulation = Simulation(default_profiles(), until=8 * HOUR)
    simulation.play_faults(faults_of(tmp_path, rule), 0)
    simulation.create([*nodes(1), make_pod("low", gpu=8)])
    simulation.arrive([(6 * HOUR, make_pod("urgent", gpu=8, priority=10))])
    simulation.run()
    found = report_of(simulation)
    assert (found.by_faults.count, found.by_evictions.count) == (1, 1)


# What fails --------------------------------------------------------------------------------------


def test_a_gpu_that_fails_ends_its_pod_and_is_offered_no_more(tmp_path: Path) -> None:
    rule = {"of": "gpu", "name": "n0/5", "at": "1h", "downFor": "10h"}
    pods = [make_pod(f"p{number}", gpu=4) for number in range(2)]
    done = run(faults_of(tmp_path, rule), *nodes(1), *pods, until=2 * HOUR)
    node = done.cluster.get(Node, "n0")
    assert node is not None
    assert node.status.allocatable[GPU].text == "7"
    phases = {pod.metadata.name: pod.status.phase for pod in done.cluster.list(Pod)}
    assert phases == {"p0": "Running", "p1": "Failed"}
    found = report_of(done)
    assert found.down == pytest.approx(1)
    assert found.faults == {"gpu": 1}


def test_a_device_that_fails_is_tainted_and_its_pods_are_evicted(tmp_path: Path) -> None:
    folder = ROOT / "configs" / "examples" / "gpus-on-one-numa-node"
    objects = load_manifests((str(folder),)).objects
    placed = Simulation(default_profiles())
    placed.create(objects)
    placed.run()
    (used, *_) = (one for found in placed.devices().values() for one in found)
    rule = {"of": "gpu", "name": f"{used['pool']}/{used['device']}", "at": "1h", "downFor": "1h"}
    done = run(faults_of(tmp_path, rule), *objects, until=3 * HOUR)
    assert report_of(done).by_faults.count == 1
    marks = [entry for entry in done.timeline() if "DeviceTaint" in entry.kind]
    assert marks or len(done.placements()) < len(placed.placements())


def test_a_nic_that_fails_cordons_its_node_and_ends_members_of_gangs(
    tmp_path: Path,
) -> None:
    rule = {"of": "nic", "name": "n1", "at": "1h", "downFor": "1h"}
    alone = make_pod("alone", gpu=0, node="n1")
    done = run(
        faults_of(tmp_path, rule), *nodes(3), alone, *job("train", 2, "9h"), until=1.5 * HOUR
    )
    node = done.cluster.get(Node, "n1")
    assert node is not None
    assert node.spec.unschedulable
    phases = {pod.metadata.name: pod.status.phase for pod in done.cluster.list(Pod)}
    assert phases["alone"] == "Running"
    assert set(done.placements().values()) == {"n0", "n1", "n2"}
    done.outlast(3 * HOUR)
    repaired = done.cluster.get(Node, "n1")
    assert repaired is not None
    assert not repaired.spec.unschedulable


def test_a_layer_fails_with_all_nodes_of_a_domain(tmp_path: Path) -> None:
    racks = [make_node(f"{rack}{n}", gpu=8, labels={"rack": rack}) for rack in "ab" for n in (1, 2)]
    rules = [
        {"layer": "rack", "name": "rack/a", "at": "1h", "downFor": "2h"},
        {"of": "node", "name": "a1", "at": "90m", "downFor": "3h"},
    ]
    network = make_network(rack="rack")

    def down(until: float) -> set[str]:
        done = run(faults_of(tmp_path, *rules), *racks, network, make_pod("p"), until=until)
        states = {node.metadata.name: state_of(node) for node in done.cluster.list(Node)}
        return {name for name, state in states.items() if state is NodeState.FAILED}

    assert down(2 * HOUR) == {"a1", "a2"}
    # The node's own fault lasts longer than that of its rack.
    assert down(4 * HOUR) == {"a1"}
    assert down(5 * HOUR) == set()


def test_the_same_gpu_fails_once_however_many_faults_it_has(tmp_path: Path) -> None:
    rules = [{"of": "gpu", "name": "n0/0", "at": f"{at}h", "downFor": "10h"} for at in (1, 2)]

    def offered(until: float) -> str:
        done = run(faults_of(tmp_path, *rules), *nodes(1), make_pod("p"), until=until)
        (node,) = done.cluster.list(Node)
        return str(node.status.allocatable[GPU].text)

    assert [offered(hours * HOUR) for hours in (3, 11.5, 13)] == ["7", "7", "8"]


def test_a_fault_repairs_nothing_else(tmp_path: Path) -> None:
    """A node that was not ready before is not ready after, one that was cordoned stays so."""
    rules = [
        {"of": "node", "name": "a", "at": "1h", "downFor": "1h"},
        {"of": "nic", "name": "b", "at": "1h", "downFor": "1h"},
    ]
    bad = make_node("a", gpu=8)
    status = replace(bad.status, conditions=(NodeCondition("Ready", "False"),))
    cordoned = make_node("b", gpu=8)
    kept = replace(cordoned, spec=replace(cordoned.spec, unschedulable=True))
    done = run(faults_of(tmp_path, *rules), replace(bad, status=status), kept, until=3 * HOUR)
    states = {node.metadata.name: state_of(node) for node in done.cluster.list(Node)}
    assert states == {"a": NodeState.FAILED, "b": NodeState.MAINTENANCE}


def test_a_rule_by_which_nothing_fails_is_reported(tmp_path: Path) -> None:
    done = run(faults_of(tmp_path, {"of": "gpu", "meanTimeBetween": "1h"}), make_node("n"))
    assert done.problems() == ["faults.0: there was no gpu that could fail"]


def test_faults_do_not_depend_on_what_is_scheduled(tmp_path: Path) -> None:
    faults = faults_of(tmp_path, {"of": "node", "meanTimeBetween": "50h", "downFor": "5h"})
    busy = run(faults, *nodes(4), *job("train", 3, "200h"), until=200 * HOUR)
    idle = run(faults, *nodes(4), make_pod("p"), until=200 * HOUR)
    other = run(faults, *nodes(4), make_pod("p"), until=200 * HOUR, seed=2)

    def times(simulation: Simulation) -> float:
        return report_of(simulation).down

    assert report_of(busy).faults == report_of(idle).faults
    assert times(busy) == pytest.approx(times(idle))
    assert times(other) != pytest.approx(times(idle))


def test_each_part_fails_as_often_as_its_rule_says(tmp_path: Path) -> None:
    faults = faults_of(tmp_path, {"of": "node", "meanTimeBetween": "100h", "downFor": 1})
    done = run(faults, *nodes(20), make_pod("p"), until=2000 * HOUR)
    # 400 in the mean; a fifth more or less is four standard deviations.
    assert 320 < report_of(done).faults["node"] < 480


@examples(15)
@given(data=st.data())
def test_hours_add_up_and_jobs_do_all_of_their_work(data: st.DataObject) -> None:
    """Whatever fails: a job that ends has done its work once, and every hour became something."""
    jobs = data.draw(
        st.lists(
            st.tuples(
                st.integers(1, 3), st.integers(1, 30), st.booleans(), st.sampled_from((2, 8))
            ),
            min_size=1,
            max_size=4,
        )
    )
    mean = data.draw(st.integers(20, 200))
    kinds = data.draw(st.sets(st.sampled_from(("node", "gpu", "nic")), min_size=1))
    rules = [
        {"of": kind, "meanTimeBetween": f"{mean}h", "downFor": f"{data.draw(st.integers(1, 8))}h"}
        for kind in sorted(kinds)
    ]
    content = {
        "faults": rules,
        "checkpointEvery": data.draw(st.sampled_from((0, 600, 3600))),
        "restart": data.draw(st.sampled_from((0, 300))),
    }
    faults = Faults(
        tuple(FaultRule.model_validate(rule) for rule in rules),
        content["checkpointEvery"],
        content["restart"],
    )
    objects = nodes(4)
    for number, (pods, hours, gang, gpus) in enumerate(jobs):
        objects += job(f"j{number}", pods, f"{hours}h", gang=gang, gpus=gpus)
    done = run(faults, *objects, until=400 * HOUR, seed=data.draw(st.integers(0, 99)))
    found = report_of(done)
    assert sum(found.parts().values()) == pytest.approx(found.total)
    assert found.total == pytest.approx(400 * 32)
    assert all(hours > -1e-6 for hours in found.parts().values()), found
    finished = [
        (pods, hours, gpus)
        for number, (pods, hours, _, gpus) in enumerate(jobs)
        if all_succeeded(done, f"j{number}", pods)
    ]
    work = sum(pods * hours * gpus for pods, hours, gpus in finished)
    if len(finished) == len(jobs):
        assert found.useful == pytest.approx(work)
    else:
        assert found.useful >= work - 1e-6


def all_succeeded(done: Simulation, name: str, pods: int) -> bool:
    of = [pod for pod in done.cluster.list(Pod) if pod.metadata.name.startswith(f"{name}-")]
    return sum(pod.status.phase == "Succeeded" for pod in of) == pods


# Files and commands ------------------------------------------------------------------------------


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text("- a\n")
    with pytest.raises(InputError, match=r"faults\.yaml:1:1: expected a mapping"):
        load_faults(path)


def test_a_pod_that_still_ends_does_not_work(tmp_path: Path) -> None:
    group, made = job("a", 2, duration="10h")
    assert isinstance(made, Job)
    template = made.spec.template
    template = replace(template, spec=replace(template.spec, termination_grace_period_seconds=3600))
    made = replace(made, spec=replace(made.spec, template=template))
    faults = faults_of(tmp_path, {"of": "node", "name": "n0", "at": "30m", "downFor": "30m"})
    done = run(faults, *nodes(3), group, made, profiles=recovery(tmp_path), until=2 * HOUR)
    found = report_of(done)
    # Its successor works meanwhile; what still ends on the node that is back only holds GPUs.
    assert found.useful + found.lost + found.restarting <= 2 * 8 * 2
    assert found.waiting == pytest.approx(8 * 1.0, abs=0.3)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"at": "1h", "name": "n0"}, "expected either of: node, gpu or nic, or layer"),
        ({"of": "node", "layer": "rack", "at": 1, "name": "a"}, "expected either of"),
        ({"of": "node"}, "expected either meanTimeBetween, or at"),
        ({"of": "node", "at": 1, "meanTimeBetween": "1h", "name": "a"}, "expected either mean"),
        ({"of": "node", "at": "1h"}, "at: expected the name of what fails then"),
        ({"of": "node", "meanTimeBetween": 0}, "faults.0.meanTimeBetween"),
        ({"of": "node", "meanTimeBetween": "soon"}, "expected a duration"),
        ({"of": "node", "meanTimeBetween": float("nan")}, "faults.0.meanTimeBetween"),
        ({"of": "disk", "meanTimeBetween": "1h"}, "faults.0.of"),
        ({"of": "node", "meanTimeBetween": "1h", "downFor": -1}, "faults.0.downFor"),
        ({"of": "node", "meanTimeBetween": "1h", "down": "1h"}, "faults.0.down"),
        ({"of": "node", "meanTimeBetween": "1h", "downFor": 0}, "faults.0.downFor"),
    ],
)
def test_a_bad_rule_is_named(tmp_path: Path, rule: Content, message: str) -> None:
    with pytest.raises(InputError, match=r"faults\.yaml") as caught:
        faults_of(tmp_path, rule)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"of": "node", "name": "n9", "at": 1}, 'faults.0.name: there is no node "n9"'),
        ({"of": "gpu", "name": "n0/8", "at": 1}, 'faults.0.name: there is no gpu "n0/8"'),
        ({"layer": "row", "meanTimeBetween": "1h"}, "faults.0.layer: "),
    ],
)
def test_what_the_cluster_does_not_have_is_named(
    tmp_path: Path, rule: Content, message: str
) -> None:
    manifest = tmp_path / "cluster.yaml"
    manifest.write_text(
        "apiVersion: v1\nkind: Node\nmetadata: {name: n0}\n"
        "status: {allocatable: {cpu: 1, nvidia.com/gpu: 8}}\n"
    )
    path = str(file_of(tmp_path, rule))
    result = bayplan("simulate", "-f", str(manifest), "--faults", path)
    assert result.status == 2
    assert message in result.stderr
    assert f"{path}:" in result.stderr
    assert "Traceback" not in result.stderr


EXAMPLE = ("-f", "configs/examples/two-node-training", "--until", "100h")


def test_the_command_shows_goodput_and_json_has_it() -> None:
    shown = bayplan("simulate", *EXAMPLE, "--mtbf", "20")
    assert shown.status == 0, shown.stderr
    assert "Goodput" in shown.stdout
    assert "node faults" in shown.stdout
    found = json.loads(bayplan("simulate", *EXAMPLE, "--mtbf", "20", "-o", "json").stdout)
    hours = found["goodput"]["hours"]
    assert sum(hours.values()) - hours["total"] == pytest.approx(hours["total"], rel=1e-4)
    again = json.loads(bayplan("simulate", *EXAMPLE, "--mtbf", "20h", "-o", "json").stdout)
    assert again["goodput"] == found["goodput"]


def test_policies_are_compared_under_the_same_faults(tmp_path: Path) -> None:
    recovery(tmp_path, 1)
    options = ("--mtbf", "20", "--compare", str(tmp_path / "profile.yaml"))
    result = bayplan("simulate", *EXAMPLE, *options)
    assert result.status == 0, result.stderr
    assert "goodput" in result.stdout
    options = ("--mtbf", "20", "--seed", "1", "--seed", "2", "--processes", "1")
    swept = bayplan("sweep", *EXAMPLE, *options)
    assert swept.status == 0, swept.stderr
    assert "recovery p50" in swept.stdout


@pytest.mark.parametrize("text", ["0", "-1", "nan", "soon", "1e9", "99999999"])
def test_a_bad_mean_time_is_refused(text: str) -> None:
    result = bayplan("simulate", *EXAMPLE, "--mtbf", text)
    assert result.status == 2
    assert "--mtbf" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_and_a_mean_time_are_not_given_together(tmp_path: Path) -> None:
    path = file_of(tmp_path, {"of": "node", "meanTimeBetween": "1h"})
    result = bayplan("simulate", *EXAMPLE, "--mtbf", "20", "--faults", str(path))
    assert result.status == 2
    assert "either --faults or --mtbf" in result.stderr
