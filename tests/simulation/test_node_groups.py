"""An autoscaler in virtual time: what it buys, removes and answers, and what that costs."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.paths import ROOT

from bayplan.api import ApiObject, Node
from bayplan.api.objects import decode_part
from bayplan.api.provisioning import ProvisioningRequest
from bayplan.api.workloads import StoredPodTemplate
from bayplan.cli.explain import command as explain
from bayplan.cli.simulate import command
from bayplan.errors import InputError
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.simulation.node_groups import load_node_groups
from bayplan.testing import make_node, make_pod

Content = dict[str, Any]
TEMPLATE: Content = {
    "metadata": {"labels": {"kind": "gpu"}},
    "status": {"allocatable": {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8", "pods": "110"}},
}


def file_of(folder: Path, *groups: Content, **more: Any) -> Path:
    path = folder / "groups.yaml"
    own = [{"max": 4, "template": TEMPLATE, **one} for one in groups]
    kind = {"apiVersion": "bayplan.dev/v1alpha1", "kind": "NodeGroups"}
    path.write_text(yaml.safe_dump({**kind, "nodeGroups": own, **more}))
    return path


def run(
    folder: Path, *groups: Content, objects: list[ApiObject], until: float = 7200, **more: Any
) -> Simulation:
    simulation = Simulation(default_profiles(), until=until)
    simulation.create(objects)
    simulation.autoscale(load_node_groups(file_of(folder, *groups, **more)))
    simulation.run()
    return simulation


def gpu_pods(count: int, seconds: int = 0, **more: Any) -> list[ApiObject]:
    said = {"bayplan.dev/duration": f"{seconds}s"} if seconds else {}
    return [make_pod(f"p{i}", gpu=8, annotations=said, **more) for i in range(count)]


def figures(simulation: Simulation) -> dict[str, Any]:
    assert simulation.autoscaler is not None
    found = simulation.autoscaler.as_json()
    return {one["name"]: one for one in found["groups"]}


def test_nodes_come_after_their_start_up_time_and_go_once_they_are_empty(tmp_path: Path) -> None:
    group = {"name": "a", "startup": "5m", "pricePerHour": 12}
    simulation = run(tmp_path, group, objects=gpu_pods(2, 3600))
    assert simulation.autoscaler is not None
    events = [(one.at, one.change) for one in simulation.autoscaler.events]
    assert events == [
        (10.0, "bought"),
        (10.0, "bought"),
        (310.0, "ready"),
        (310.0, "ready"),
        (310.0 + 3600 + 600, "removed"),
        (310.0 + 3600 + 600, "removed"),
    ]
    found = figures(simulation)["a"]
    assert (found["nodes"], found["bought"], found["removed"]) == (0, 2, 2)
    # 4,500 seconds of two nodes for 12 an hour.
    assert found["cost"] == "30.00"
    assert simulation.cluster.list(Node) == []


def test_the_group_that_costs_least_for_each_pod_is_bought(tmp_path: Path) -> None:
    groups = [
        {"name": "dear", "pricePerHour": 10},
        {"name": "cheap", "pricePerHour": 3, "max": 2},
    ]
    simulation = run(tmp_path, *groups, objects=gpu_pods(3))
    found = figures(simulation)
    assert (found["cheap"]["bought"], found["dear"]["bought"]) == (2, 1)


def test_a_group_is_brought_to_its_minimum_and_stays_there(tmp_path: Path) -> None:
    simulation = run(tmp_path, {"name": "a", "min": 2}, objects=[])
    assert [node.metadata.name for node in simulation.cluster.list(Node)] == ["a-1", "a-2"]


def test_nodes_that_are_there_are_used_first(tmp_path: Path) -> None:
    objects = [make_node("old", gpu=8), *gpu_pods(2)]
    simulation = run(tmp_path, {"name": "a"}, objects=objects)
    assert figures(simulation)["a"]["bought"] == 1


def test_pods_that_fit_no_group_buy_nothing_and_hear_why(tmp_path: Path) -> None:
    objects = gpu_pods(1, spec={"nodeSelector": {"kind": "tpu"}})
    simulation = run(tmp_path, {"name": "a"}, {"name": "full", "max": 0}, objects=objects)
    assert figures(simulation)["a"]["bought"] == 0
    (text,) = {e.message for e in simulation.timeline() if e.kind == "NotTriggerScaleUp"}
    assert text == (
        "pod didn't trigger scale-up: 1 group at its maximum (full); "
        "the pod would not fit on nodes of a"
    )


def request(class_name: str, count: int, **parameters: str) -> list[ApiObject]:
    limits = {"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": "8"}}
    template = {"spec": {"containers": [{"name": "c", "resources": limits}]}}
    meta = {"name": "t", "namespace": "default"}
    sets = [{"podTemplateRef": {"name": "t"}, "count": count}]
    spec = {"podSets": sets, "provisioningClassName": class_name, "parameters": parameters}
    own = {"metadata": {"name": "r", "namespace": "default"}, "spec": spec}
    return [
        decode_part(StoredPodTemplate, {"metadata": meta, "template": template}),
        decode_part(ProvisioningRequest, own),
    ]


def answers(simulation: Simulation) -> dict[str, tuple[str, str]]:
    (found,) = simulation.cluster.list(ProvisioningRequest)
    return {one.type: (one.status, one.reason) for one in found.status.conditions}


CHECK = "check-capacity.autoscaling.x-k8s.io"
ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"


def test_capacity_is_provisioned_as_a_whole_and_booked_for_a_while(tmp_path: Path) -> None:
    simulation = run(tmp_path, {"name": "a"}, objects=request(ATOMIC, 3), until=300)
    assert answers(simulation)["Provisioned"] == ("True", "CapacityIsProvisioned")
    assert figures(simulation)["a"]["nodes"] == 3
    simulation = run(tmp_path, {"name": "a"}, objects=request(ATOMIC, 3), until=3600)
    assert answers(simulation)["BookingExpired"][0] == "True"
    assert figures(simulation)["a"]["nodes"] == 0


@pytest.mark.parametrize(("class_name", "count"), [(ATOMIC, 5), (CHECK, 1)])
def test_what_no_group_can_hold_or_is_only_asked_buys_nothing(
    tmp_path: Path, class_name: str, count: int
) -> None:
    simulation = run(tmp_path, {"name": "a"}, objects=request(class_name, count))
    assert answers(simulation)["Provisioned"] == ("False", "CapacityIsNotFound")
    assert figures(simulation)["a"]["bought"] == 0


def test_a_request_may_want_no_second_try(tmp_path: Path) -> None:
    simulation = run(tmp_path, {"name": "a"}, objects=request(CHECK, 1, noRetry="true"))
    assert answers(simulation)["Failed"] == ("True", "CapacityIsNotFound")


def test_capacity_that_is_there_is_found(tmp_path: Path) -> None:
    objects = [make_node("old", gpu=8), *request(CHECK, 1)]
    simulation = run(tmp_path, {"name": "a"}, objects=objects, until=60)
    assert answers(simulation)["Provisioned"] == ("True", "CapacityIsFound")


def test_a_request_without_its_template_fails(tmp_path: Path) -> None:
    simulation = run(tmp_path, {"name": "a"}, objects=request(ATOMIC, 1)[1:])
    assert answers(simulation)["Failed"] == ("True", "FailedToCreatePods")


# The file --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ({"name": "a", "max": -1}, "nodeGroups.0.max: "),
        ({"name": "a", "startup": "soon"}, 'expected a duration such as "90s" or "1h30m"'),
        ({"name": "a", "min": 9}, "nodeGroups.0.min: 9 is more than max, 4"),
        ({"name": "a", "template": {}}, "expected what its nodes offer"),
        ({"name": "a", "tmplate": {}}, '"tmplate" is not known here'),
        ({"name": "A b"}, "nodeGroups.0.name"),
        ({"name": "a", "pricePerHour": "cheap"}, "expected a number such as 2.50"),
        (
            {"name": "a", "template": {"status": {"allocatable": {"cpu": "lots"}}}},
            'expected a quantity such as "8"',
        ),
        ({"name": "a", "template": {"metadata": 7}}, "template.metadata: expected a mapping"),
    ],
)
def test_a_bad_file_is_reported(tmp_path: Path, group: Content, expected: str) -> None:
    path = file_of(tmp_path, group)
    with pytest.raises(InputError) as caught:
        load_node_groups(path)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_two_groups_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='two groups are named "a"'):
        load_node_groups(file_of(tmp_path, {"name": "a"}, {"name": "a"}))


def test_prices_are_exact(tmp_path: Path) -> None:
    groups = load_node_groups(file_of(tmp_path, {"name": "a", "pricePerHour": 0.1})).groups
    assert groups[0].price == Decimal("0.1")


# The command -----------------------------------------------------------------------------------


def test_the_command_shows_what_each_group_costs(tmp_path: Path) -> None:
    groups = file_of(tmp_path, {"name": "a", "pricePerHour": 6, "startup": "1m"})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {"bayplan.dev/duration": "30m"}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
    }
    work = tmp_path / "work.yaml"
    work.write_text(yaml.safe_dump(pod))
    arguments = ["-f", str(work), "--node-groups", str(groups), "--until", "2h"]
    shown = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert shown.exit_code == 0
    assert "Node groups" in shown.output
    # A minute to start, half an hour of work, and ten minutes of waiting.
    assert "4.10 in all" in shown.output
    plain = CliRunner().invoke(command, [*arguments, "-o", "json"], catch_exceptions=False)
    found = json.loads(plain.output)["autoscaling"]
    assert found["cost"] == "4.10"
    assert [one["change"] for one in found["nodes"]] == ["bought", "ready", "removed"]


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "node-groups").iterdir()))
def test_the_files_of_configs_can_be_used(path: Path) -> None:
    assert load_node_groups(path).groups


def explained(*arguments: str) -> str:
    done = CliRunner().invoke(explain, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_explain_says_which_nodes_would_help(tmp_path: Path) -> None:
    configs = ROOT / "configs"
    profile = tmp_path / "profile.yaml"
    plugins = {"multiPoint": {"enabled": [{"name": "Autoscaling"}]}}
    kind = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
    }
    profile.write_text(yaml.safe_dump({**kind, "profiles": [{"plugins": plugins}]}))
    own = ("-f", str(configs / "examples" / "growing"), "--config", str(profile))
    groups = ("--node-groups", str(configs / "node-groups" / "gpus.yaml"))
    said = explained("podgroup/train", *own, *groups, "--until", "1m")
    assert "would run with 4 more nodes of gpu-a or 4 more nodes of gpu-b" in said
    said = explained("job/notebooks", *own, *groups, "--until", "1m")
    assert "would run with 1 more node of gpu-a or 1 more node of gpu-b or 1 more node" in said
    small = file_of(tmp_path, {"name": "small", "max": 1})
    said = explained("podgroup/train", *own, "--node-groups", str(small), "--until", "1m")
    assert "no node group would help" in said


def test_an_empty_node_goes_once_its_group_has_more_than_its_minimum(tmp_path: Path) -> None:
    objects = gpu_pods(1, spec={"nodeSelector": {"kubernetes.io/hostname": "a-2"}})
    later = [(3600.0, objects[0])]
    simulation = Simulation(default_profiles(), until=7200)
    groups = load_node_groups(file_of(tmp_path, {"name": "a", "min": 1}))
    simulation.autoscale(groups)
    simulation.arrive(later)
    simulation.run()
    assert [node.metadata.name for node in simulation.cluster.list(Node)] == ["a-2"]


def test_policies_are_compared_by_what_their_nodes_cost(tmp_path: Path) -> None:
    configs = ROOT / "configs"
    paths = (
        *("-f", str(configs / "examples" / "growing")),
        *("--config", str(configs / "profiles" / "autoscaling.yaml")),
        *("--compare", str(configs / "profiles" / "default-scheduler.yaml")),
        *("--node-groups", str(configs / "node-groups" / "gpus.yaml"), "--until", "30m"),
    )
    shown = CliRunner().invoke(command, paths, catch_exceptions=False)
    rows = {line.split("  ")[0]: line.split()[-2:] for line in shown.output.splitlines() if line}
    # Without the plugin the halves of GPUs ask as if they needed no GPU.
    assert rows["nodes bought"] == ["6", "7"]
    assert float(rows["cost of nodes"][0]) < float(rows["cost of nodes"][1])


@pytest.mark.parametrize("most", [1, 2, 3])
def test_booked_capacity_that_could_move_does_not_keep_the_autoscaler_looking(
    tmp_path: Path, most: int
) -> None:
    """A gang has booked the nodes on which other pods could go, were it on the new ones."""
    groups = (ROOT / "configs/node-groups/gpus.yaml").read_text()
    path = tmp_path / "groups.yaml"
    path.write_text(groups.replace("  max: 8\n", f"  max: {most}\n", 1))
    profile = str(ROOT / "configs/profiles/autoscaling.yaml")
    given = ["-f", str(ROOT / "configs/examples/growing"), "--config", profile]
    options = ["--node-groups", str(path), "--until", "30m", "-o", "json"]
    done = CliRunner().invoke(command, [*given, *options])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["placements"]) >= 4
