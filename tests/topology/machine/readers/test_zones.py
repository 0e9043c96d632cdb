"""Nodes of which only NUMA zones are known: the number of GPUs in each."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api import Node, NodeResourceTopology, ObjectMeta
from bayplan.cluster.manifests import load_manifests
from bayplan.errors import InputError
from bayplan.snapshot import Snapshot
from bayplan.testing import make_object
from bayplan.topology.machine.levels import Level
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.readers.zones import machine_from_zones
from bayplan.topology.machine.select import (
    Constraints,
    NoSelection,
    Selection,
    SelectionRequest,
    select,
)
from bayplan_plugins.gpus.machines import NodeMachines, numa_nodes


def zone(name: str, type_: str = "Node", **resources: str) -> dict[str, Any]:
    amounts = [
        {"name": key, "capacity": value, "allocatable": value, "available": "0"}
        for key, value in {"cpu": "64", **resources}.items()
    ]
    return {"name": name, "type": type_, "resources": amounts}


def reported(*zones: dict[str, Any], name: str = "n") -> NodeResourceTopology:
    found = make_object(
        {
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": name},
            "zones": list(zones),
        }
    )
    assert isinstance(found, NodeResourceTopology)
    return found


def of_node(*zones: dict[str, Any], name: str = "n") -> Machine | str:
    """Return the machine of node "n", given what an agent reports of the node ``name``."""
    snapshot = Snapshot()
    snapshot.set_object(name, reported(*zones, name=name))
    return NodeMachines(snapshot).of(Node(ObjectMeta(name="n")))


def gpus(count: int | str) -> dict[str, str]:
    return {"nvidia.com/gpu": str(count)}


# The machine ------------------------------------------------------------------------------------


def test_gpus_are_numbered_zone_by_zone() -> None:
    machine = machine_from_zones("n", {1: 2, 0: 3})
    assert len(machine) == 5
    assert machine.numa_of == (0, 0, 0, 1, 1)
    assert [gpu.name for gpu in machine.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3", "GPU4"]


def test_gpus_of_one_zone_are_nearer_than_those_of_two() -> None:
    machine = machine_from_zones("n", {0: 2, 1: 2})
    assert machine.level(0, 1) is Level.NODE
    assert machine.level(0, 2) is Level.SYS
    assert machine.bandwidth[0, 1] > machine.bandwidth[0, 2] > 0


def test_nvlinks_nics_and_names_are_not_made_up_and_assumptions_are_noted() -> None:
    machine = machine_from_zones("n", {0: 4, 1: 4})
    assert not machine.nvlinks.any()
    assert machine.nics == ()
    assert {(gpu.uuid, gpu.bus_id, gpu.model) for gpu in machine.gpus} == {("", "", "")}
    (note,) = machine.notes
    assert "only the NUMA node of each GPU is known" in note
    assert "assumed: PCIe 3, no NVLink, 10 GB/s between sockets" in note


@pytest.mark.parametrize("zones", [{}, {0: 0, 1: 0}])
def test_zones_without_gpus_are_a_machine_without_gpus(zones: dict[int, int]) -> None:
    assert len(machine_from_zones("n", zones)) == 0


def test_a_job_gets_gpus_of_one_zone_and_is_refused_what_is_not_known() -> None:
    machine = machine_from_zones("n", {0: 2, 1: 4})
    found = select(machine, range(6), SelectionRequest(3))
    assert isinstance(found, Selection)
    assert {machine.numa_of[gpu] for gpu in found.gpus} == {1}
    refused = select(machine, range(6), SelectionRequest(2, constraints=Constraints(nvlink=True)))
    assert refused == NoSelection("no 2 of 6 free GPUs are connected by NVLink alone")


@pytest.mark.parametrize("zones", [{0: 1025}, {0: 1000, 1: 25}, {0: 10**9}])
def test_more_gpus_than_any_machine_has_are_refused_at_once(zones: dict[int, int]) -> None:
    with pytest.raises(ValueError, match=f"expected 1024 GPUs or fewer, got {sum(zones.values())}"):
        machine_from_zones("n", zones)


def test_a_report_of_too_many_gpus_is_an_answer() -> None:
    found = of_node(zone("node-0", **gpus("1G")))
    assert isinstance(found, str)
    assert "expected 1024 GPUs or fewer, got 1000000000" in found


# The object -------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["node-{}", "zone-{}", "numa-{}", "node{}"])
def test_a_zone_is_a_numa_node_by_its_name(spelling: str) -> None:
    topology = reported(zone(spelling.format(0)), zone(spelling.format(12)))
    assert set(numa_nodes(topology)) == {0, 12}


@pytest.mark.parametrize(
    "one", [zone("node-0", "Core"), zone("socket-0"), zone("node-"), zone("node-a"), zone("")]
)
def test_other_zones_are_ignored(one: dict[str, Any]) -> None:
    assert numa_nodes(reported(one)) == {}


def test_a_node_gets_its_gpus_out_of_its_zones() -> None:
    found = of_node(zone("node-0", **gpus(2)), zone("node-1", **gpus(4)), zone("node-2"))
    assert isinstance(found, Machine)
    assert found.numa_of == (0, 0, 1, 1, 1, 1)


def test_all_gpus_count_though_pods_have_some_of_them() -> None:
    # What is available changes with every pod; the machine does not.
    found = of_node(zone("node-0", **gpus(8)))
    assert isinstance(found, Machine)
    assert len(found) == 8


def test_zones_without_gpus_describe_no_machine() -> None:
    assert of_node(zone("node-0"), zone("node-1")) == ""
    assert of_node(zone("node-0", **gpus(0))) == ""
    assert of_node() == ""


def test_zones_of_another_node_are_ignored() -> None:
    assert of_node(zone("node-0", **gpus(8)), name="other") == ""


def test_a_new_report_replaces_the_old_one() -> None:
    snapshot = Snapshot()
    machines = NodeMachines(snapshot)
    node = Node(ObjectMeta(name="n"))
    snapshot.set_object("n", reported(zone("node-0", **gpus(2))))
    first = machines.of(node)
    snapshot.set_object("n", reported(zone("node-0", **gpus(2)), zone("node-1", **gpus(2))))
    second = machines.of(node)
    assert isinstance(first, Machine)
    assert isinstance(second, Machine)
    assert (len(first), len(second)) == (2, 4)


def test_the_nodes_own_description_takes_precedence() -> None:
    snapshot = Snapshot()
    snapshot.set_object("n", reported(zone("node-0", **gpus(2))))
    node = Node(ObjectMeta(name="n", labels={"bayplan.dev/machine": "dgx-h100"}))
    found = NodeMachines(snapshot).of(node)
    assert isinstance(found, Machine)
    assert found.name == "dgx-h100"


# Malformed --------------------------------------------------------------------------------------

HEAD = """\
apiVersion: topology.node.k8s.io/v1alpha2
kind: NodeResourceTopology
metadata: {name: n}
"""


@pytest.mark.parametrize(
    ("zones", "parts"),
    [
        ("zones: 8", ["zones"]),
        ("zones: [{type: Node}]", ["zones", "name"]),
        ("zones: [{name: node-0, resources: [{capacity: 1}]}]", ["resources", "name"]),
        (
            "zones: [{name: node-0, resources: [{name: nvidia.com/gpu, capacity: many}]}]",
            ["many", "capacity"],
        ),
        ("zones: [{name: node-0, costs: [{name: node-1, value: far}]}]", ["costs", "value"]),
    ],
)
def test_a_bad_object_is_refused_with_file_and_path(
    tmp_path: Any, zones: str, parts: list[str]
) -> None:
    path = tmp_path / "nrt.yaml"
    path.write_text(HEAD + zones)
    with pytest.raises(InputError) as caught:
        load_manifests([str(path)])
    assert str(path) in str(caught.value)
    for part in parts:
        assert part in str(caught.value)
