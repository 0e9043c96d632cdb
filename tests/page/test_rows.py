"""What the page shows of a simulation: nodes, GPUs, jobs, and what happened when."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.page.reading import data_of, shown, simulated
from tests.paths import ROOT

from bayplan.api import (
    ApiObject,
    Node,
    ObjectMeta,
    OwnerReference,
    Pod,
    ResourceClaim,
    ResourceSlice,
)
from bayplan.api.dra import Device, DeviceAttribute, ResourcePool, ResourceSliceSpec
from bayplan.cli import cli
from bayplan.cli.report import Recording
from bayplan.cluster.manifests import load_manifests
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.page import history
from bayplan.page.cluster_view import ClusterView
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_gang, make_node, make_object, make_pod

EXAMPLES = ROOT / "configs" / "examples"


def example(name: str) -> dict[str, object]:
    return shown(load_manifests((str(EXAMPLES / name),)).objects)


def gpu_node(name: str, gpus: int = 4):
    return make_node(name, cpu=8, **{"nvidia.com/gpu": gpus})


def gpu_pod(name: str, gpus: int = 1, **more):
    return make_pod(name, cpu=1, **{"nvidia.com/gpu": gpus}, **more)


def everything(simulation: Simulation) -> list[ApiObject]:
    found: list[ApiObject] = []
    for kind in (Node, Pod, ResourceClaim):
        found += simulation.cluster.list(kind)
    return found


def test_gpus_of_unknown_machines_are_drawn_by_their_number() -> None:
    page = shown([gpu_node("n"), gpu_pod("a", 2), gpu_pod("b", 1)])
    assert page["nodes"]["n"]["cards"] == 4
    held = {key: page["pods"][key]["stints"][-1][3] for key in ("default/a", "default/b")}
    gpus = [gpu[0] for own in held.values() for gpu in own]
    assert sorted(gpus) == [0, 1, 2]


def test_a_pods_time_on_a_node_begins_with_its_binding_and_ends_with_it() -> None:
    short = gpu_pod("short", annotations={"bayplan.dev/duration": "90s"})
    page = shown([gpu_node("n"), short], [(30.0, gpu_pod("later"))])
    ((node, since, until, _),) = page["pods"]["default/short"]["stints"]
    assert (node, since, until) == ("n", 0.0, 90.0)
    ((_, since, until, _),) = page["pods"]["default/later"]["stints"]
    assert (since, until) == (30.0, None)
    kinds = [(at, kind) for at, kind, about, *_ in page["events"] if about == "default/short"]
    assert (90.0, "Succeeded") in kinds
    assert (0.0, "Bound") in kinds


def test_the_network_and_the_jobs_of_an_example_are_there() -> None:
    page = example("must-gather-preempt")
    assert page["floor"]["layers"] == ["SpineLayer", "BlockLayer"]
    domains = page["floor"]["domains"]
    node = page["nodes"]["node-5"]
    block = domains[node["domain"]]
    assert domains[block["parent"]]["name"] == "spine-1"
    job = page["units"]["default/high-priority-training"]
    assert (job["gang"], job["members"], job["outcome"]) == (True, 4, "Placed")
    assert page["samples"][-1][7] == 1, "one eviction"


def test_the_time_line_says_what_an_eviction_cost() -> None:
    low, high = gpu_pod("low", 4, priority=1), gpu_pod("high", 4, priority=9)
    page = shown([gpu_node("n"), low], [(7200.0, high)], until=7300.0)
    ((_, _, about, _, why),) = [one for one in page["events"] if one[1] == "Evicted"]
    assert (about, why) == ("default/low", "for default/high; 8.0 GPU hours of work lost")


def test_the_replicas_of_one_owner_are_one_job() -> None:
    page = shown(
        [
            gpu_node("n"),
            *(gpu_pod(f"web-{i}", 2, owner="ReplicaSet/web") for i in range(3)),
            *(gpu_pod(f"static-{i}", 0, owner="Node/n") for i in range(2)),
        ]
    )
    assert sorted(page["units"]) == ["default/static-0", "default/static-1", "default/web"]
    web = page["units"]["default/web"]
    assert (web["members"], web["outcome"]) == (3, "Unschedulable")
    assert "Insufficient nvidia.com/gpu" in web["message"]
    assert "why" not in web
    assert [key for key, pod in page["pods"].items() if pod["unit"] == "default/web"]


def test_what_pods_hold_never_exceeds_a_gpu() -> None:
    page = example("shared-gpus")
    taken: dict[tuple[str, int], int] = {}
    for pod in page["pods"].values():
        for node, _, until, gpus in pod.get("stints", ()):
            for gpu, compute, *_ in gpus if until is None else ():
                taken[node, gpu] = taken.get((node, gpu), 0) + compute
    assert taken
    assert max(taken.values()) <= 1000


def test_a_pending_job_says_what_would_help_and_which_nodes_it_would_get() -> None:
    page = example("pending")
    about = page["details"]["default/training"]
    assert about["state"] == "Pending"
    first = about["suggestions"][0]
    assert first["text"] == "would fit without MustGather at RackLayer"
    assert set(first["places"]) == {f"default/training-{i}" for i in range(3)}


def test_devices_of_claims_are_gpus_where_no_machine_is_described() -> None:
    page = example("gpu-nic-pcie-root")
    assert page["nodes"]["dgx-1"]["cards"] == 8
    gpus = [
        gpu[0]
        for pod in page["pods"].values()
        for node, _, _, own in pod["stints"]
        for gpu in own
        if node == "dgx-1"
    ]
    assert sorted(gpus) == list(range(-8, 8)), "GPUs from 0, NICs down from -1"
    parts = example("partitionable-gpus")["pods"]["default/small-0"]["stints"][0][3]
    assert parts[0][1] == 0, "a partition of a size that is not known"


def test_a_job_that_a_gate_holds_back_says_so() -> None:
    pod = make_pod("p", spec={"schedulingGates": [{"name": "example.com/wait"}]})
    page = shown([make_node("n"), pod])
    assert "example.com/wait" in page["units"]["default/p"]["message"]
    assert [event[1] for event in page["events"]] == ["Created", "Gated"]


def test_the_same_simulation_makes_the_same_page() -> None:
    assert json.dumps(example("pending")) == json.dumps(example("pending"))


def test_samples_get_sparser_instead_of_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_SAMPLES", 100)
    pods = [(float(10 * i), make_pod(f"p{i}")) for i in range(300)]
    nodes = [make_node(f"n{i}", cpu=200, memory="4Ti", pods=110) for i in range(30)]
    page = shown(nodes, pods)
    times = [sample[0] for sample in page["samples"]]
    assert 50 < len(times) <= 101
    assert times == sorted(times)
    assert times[-1] == page["now"]


def test_a_broken_watch_loses_nothing() -> None:
    recording, simulation = simulated([gpu_node("n"), gpu_pod("a"), gpu_pod("b")])
    cluster_view = recording.cluster_view
    before = cluster_view.as_json()
    objects = [obj for obj in everything(simulation) if getattr(obj, "key", "") != "default/b"]
    cluster_view.handle(WatchEvent(WatchType.RESYNC, objects=objects))
    cluster_view.look()
    after = cluster_view.as_json()
    assert after["pods"]["default/a"] == before["pods"]["default/a"]
    assert after["pods"]["default/b"]["stints"][-1][2] is not None, "it has gone meanwhile"


def test_a_look_without_events_finds_no_change() -> None:
    recording, _ = simulated([gpu_node("n"), gpu_pod("a")])
    recording.cluster_view.look()
    assert not recording.cluster_view.look()


def test_rows_by_changes_equal_rows_made_at_once() -> None:
    """The incremental path against the plain one, at every instant."""
    objects = load_manifests((str(EXAMPLES / "must-gather-preempt"),)).objects

    def check(simulation) -> None:
        recording.cluster_view.look()
        fresh = ClusterView(simulation.scheduler)
        for obj in everything(simulation):
            fresh.handle(WatchEvent(WatchType.ADDED, obj))
        fresh.look()
        mine, plain = recording.cluster_view.as_json(), fresh.as_json()
        assert mine["nodes"] == plain["nodes"]
        for key, pod in plain["pods"].items():
            now = [stint for stint in pod.get("stints", ()) if stint[2] is None]
            own = [stint for stint in mine["pods"][key].get("stints", ()) if stint[2] is None]
            assert [one[0] for one in own] == [one[0] for one in now]
            assert [one[3] for one in own] == [one[3] for one in now]

    simulation = Simulation(default_profiles())
    recording = Recording("test")
    recording(simulation)
    simulation.on_settled(check)
    simulation.create(objects)
    simulation.run()


def test_the_page_without_a_script_says_what_came_out() -> None:
    recording, simulation = simulated([gpu_node("n"), gpu_pod("a"), gpu_pod("b", 9)])
    page = recording.page(simulation)
    assert "<noscript><h1>bayplan: test</h1><p>1 of 2 pods have a node, 1 pending" in page
    assert data_of(page)["details"]["default/b"]["state"] == "Pending"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir()))
def test_every_example_has_a_page(name: str) -> None:
    page = example(name)
    assert page["format"] == 1
    assert len(json.dumps(page)) < 2_000_000


def test_what_slices_state_of_a_node_is_drawn_without_a_description_of_its_machine() -> None:
    page = example("gpu-nic-pcie-root")
    (machine,) = page["machines"]
    assert page["nodes"]["dgx-1"]["machine"] == page["nodes"]["dgx-2"]["machine"] == 0
    assert page["nodes"]["dgx-1"]["nvlink"] == ["dgx-1"]
    assert [(gpu["numa"], gpu["root"]) for gpu in machine["gpus"][:2]] == [
        (0, "pci0000:15"),
        (0, "pci0000:37"),
    ]
    assert {gpu["domain"] for gpu in machine["gpus"]} == {0}
    assert machine["gpus"][0]["model"] == "NVIDIA H100 80GB HBM3"
    assert machine["links"] == [], "slices do not say which NVLinks there are"
    assert machine["nics"][0]["name"] == "mlx5_0"
    job = next(pod for key, pod in page["pods"].items() if key.startswith("default/train-0"))
    assert job["stints"][-1][3] == [[0, 1000, "gpu-0"], [-1, 1000, "nic-0"]]
    assert page["nodes"]["dgx-1"]["cards"] == 8
    assert page["samples"][-1][2] == 8, "NICs are no GPUs in use"


def published(name: str, driver: str = "gpu.example.com", **attributes: object) -> Device:
    found = {}
    for key, value in attributes.items():
        domain = "resource.kubernetes.io/" if key in ("pcieRoot", "numaNode") else ""
        kind = {"integer": value} if isinstance(value, int) else {"string": value}
        found[domain + key] = DeviceAttribute(**kind)
    return Device(name, found)


def slice_of(*devices: Device) -> ResourceSlice:
    spec = ResourceSliceSpec("gpu.example.com", ResourcePool("n", 1, 1), "n", devices=devices)
    return ResourceSlice(metadata=ObjectMeta(name="n-gpu"), spec=spec)


def test_gpus_of_several_nvlink_domains_are_told_apart() -> None:
    devices = [published(f"gpu-{i}", numaNode=i, nvlinkDomain=f"clique-{i // 2}") for i in range(4)]
    page = shown([make_node("n", cpu=8), slice_of(*devices)])
    assert [gpu["domain"] for gpu in page["machines"][0]["gpus"]] == [0, 0, 1, 1]
    assert page["nodes"]["n"]["nvlink"] == ["clique-0", "clique-1"]


def test_a_gpu_that_is_published_in_parts_is_drawn_once() -> None:
    parts = [published(f"gpu-0-mig-1g-{i}", numaNode=0, pcieRoot="pci0000:15") for i in range(2)]
    page = shown([make_node("n", cpu=8), slice_of(*parts, published("gpu-1", numaNode=1))])
    assert [gpu["numa"] for gpu in page["machines"][0]["gpus"]] == [0, 1]
    assert page["nodes"]["n"]["cards"] == 2


def test_slices_that_state_no_place_are_gpus_alone() -> None:
    page = shown([make_node("n", cpu=8), slice_of(published("gpu-0"), published("gpu-1"))])
    assert page["machines"] == []
    assert page["nodes"]["n"]["cards"] == 2


@pytest.mark.parametrize(("again", "created"), [(40.0, 0.0), (3600.0, 3600.0)])
def test_a_pod_that_is_made_again_at_once_is_the_one_that_was_there(
    again: float, created: float
) -> None:
    recording, simulation = simulated([make_node("n", cpu=4), make_pod("p", cpu=1)])
    simulation.cluster.delete(Pod, "default/p")
    simulation.outlast(again)
    simulation.create([make_pod("p", cpu=1)])
    simulation.run()
    row = recording.cluster_view.pods["default/p"]
    assert row.created == created
    assert [(stint.since, stint.until) for stint in row.stints] == [(0.0, 30.0), (again, None)]


# Growth ----------------------------------------------------------------------------------------


def test_what_asks_for_nodes_is_listed_and_what_its_queue_holds_back_is_not() -> None:
    limits = {"maxCapacity": "{cpu: 4}"}
    queue = make_object(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": "lab",
                "namespace": "bayplan-system",
                "labels": {"bayplan.dev/queue": "lab"},
            },
            "data": limits,
        }
    )
    labels = {"bayplan.dev/queue": "lab"}
    data = shown(
        [
            queue,
            make_node("small", cpu="1"),
            make_gang("pair", 2),
            *(make_pod(f"pair-{n}", gang="pair", cpu="3") for n in range(2)),
            make_pod("within", cpu="3", labels=labels),
            make_pod("beyond", cpu="5", labels=labels),
        ]
    )
    assert sorted((one["unit"], one["pods"]) for one in data["nodeRequests"]) == [
        ("default/pair", 2),
        ("default/within", 1),
    ]


def test_a_simulation_with_node_groups_shows_what_was_bought_for_whom(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    growing, groups = "configs/examples/growing", "configs/node-groups/gpus.yaml"
    profile = "configs/profiles/autoscaling.yaml"
    arguments = ["-f", growing, "--config", profile, "--node-groups", groups, "--until", "1m"]
    result = CliRunner().invoke(cli, ["simulate", *arguments, "--report", str(page)])
    assert result.exit_code == 0, result.output
    data = data_of(page.read_text())
    bought = [one for one in data["autoscaling"]["nodes"] if one["change"] == "bought"]
    assert {one["group"] for one in bought} == {"gpu-a", "single"}
    assert any("ProvisioningRequest default/train-" in one["why"] for one in bought)
    (train,) = [one for one in data["nodeRequests"] if one["unit"] == "default/train"]
    assert train["pods"] == 4
    assert "is provisioned: its nodes are coming" in train["text"]


def test_pods_that_no_rule_groups_are_told_on_the_page() -> None:
    owner = OwnerReference("Unheard", "t", "uid-t", "of.example.com/v1", controller=True)
    pods = [make_pod(f"p{index}") for index in range(2)]
    owned = [replace(p, metadata=replace(p.metadata, owner_references=(owner,))) for p in pods]
    (note,) = shown([make_node("n"), *owned])["notes"]
    assert note.startswith("pods of Unheard.of.example.com are placed one by one")
