"""HAMi's annotations of a node: what is read of GPUs and scores, and what stays unknown."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.paths import SHARED

from bayplan.api import Node, ObjectMeta
from bayplan.api.gpu_shares import MEBIBYTE, PartitionProfile
from bayplan.snapshot import Snapshot
from bayplan.topology.machine.levels import Level
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.policies import pair_scores
from bayplan.topology.machine.readers.hami import SCORE, machine_from_scores, read_scores
from bayplan.topology.machine.readers.hami_register import (
    REGISTER,
    RegisteredGpu,
    read_register,
    read_volcano_register,
)
from bayplan_plugins.gpus.machines import NodeMachines

CASES = SHARED / "fixtures" / "pair_score_cases.json"
NEEDS_SHARED = pytest.mark.skipif(
    not CASES.is_file(), reason="the shared fixtures are not beside the project"
)

V100 = "NVIDIA-Tesla V100-SXM2-32GB"
A100 = "NVIDIA-NVIDIA A100-SXM4-80GB"


SOCKETS = "assumed: 10 GB/s between sockets, as of Skylake"


def device(index: int, **more: Any) -> dict[str, Any]:
    """Return an entry of the register as HAMi's device plugin writes it."""
    own = {"id": f"GPU-{index}", "index": index, "count": 10, "devmem": 32768, "devcore": 100}
    return {**own, "type": V100, "numa": 1, "mode": "hami-core", "health": True, **more}


def registered(count: int, model: str, numa: int | None = 0) -> list[RegisteredGpu]:
    return [RegisteredGpu(f"GPU-{gpu}", gpu, model, numa) for gpu in range(count)]


def scores_of(matrix: Mapping[tuple[int, int], int]) -> dict[str, dict[str, int]]:
    """Return the scores of these pairs, each in both directions."""
    found: dict[str, dict[str, int]] = {}
    for (a, b), score in matrix.items():
        found.setdefault(f"GPU-{a}", {})[f"GPU-{b}"] = score
        found.setdefault(f"GPU-{b}", {})[f"GPU-{a}"] = score
    return found


def everybody(size: int, score: int) -> dict[str, dict[str, int]]:
    return scores_of(dict.fromkeys(itertools.combinations(range(size), 2), score))


def of_node(**annotations: str) -> Machine | str:
    names = {"score": SCORE, "register": REGISTER}
    meta = ObjectMeta(name="n", annotations={names[key]: text for key, text in annotations.items()})
    return NodeMachines(Snapshot()).of(Node(meta))


# The register -----------------------------------------------------------------------------------


def test_devices_are_read_with_model_numa_node_and_health() -> None:
    text = json.dumps([device(1), device(2, health=False, type=A100), device(3, numa=3)])
    assert read_register(text) == [
        RegisteredGpu("GPU-1", 1, V100, 1, True, 10, 32768, 100, "hami-core"),
        RegisteredGpu("GPU-2", 2, A100, 1, False, 10, 32768, 100, "hami-core"),
        RegisteredGpu("GPU-3", 3, V100, 3, True, 10, 32768, 100, "hami-core"),
    ]


def test_fields_that_hami_omits_are_0_or_false() -> None:
    # HAMi's JSON has no entry for an index or NUMA node of 0, nor for a device that is not healthy.
    (gpu,) = read_register('[{"id":"GPU-0","count":10,"devmem":32768,"type":"NVIDIA-A40"}]')
    assert gpu == RegisteredGpu("GPU-0", 0, "NVIDIA-A40", 0, False, 10, 32768)


def test_devices_without_an_index_keep_their_order() -> None:
    text = '[{"id":"GPU-10","health":true},{"id":"GPU-2","health":true},{"id":"a","index":1}]'
    machine = machine_from_scores("n", read_register(text), {})
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-10", "GPU-2", "a"]
    assert machine.usable == (0, 1)


def test_a_negative_numa_node_is_unknown() -> None:
    (gpu,) = read_register(json.dumps([device(0, numa=-1)]))
    assert gpu.numa is None


@pytest.mark.parametrize("numa", ["1", 1.5, True])
def test_a_numa_node_that_is_no_integer_is_told(numa: object) -> None:
    with pytest.raises(ValueError, match="numa: expected an integer"):
        read_register(json.dumps([device(0, numa=numa)]))


def test_the_older_list_of_fields_is_read() -> None:
    text = (
        "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
        "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,1,true:"
    )
    one, two = read_register(text)
    assert one == RegisteredGpu(
        "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec",
        0,
        "NVIDIA-Tesla V100-PCIE-32GB",
        0,
        slots=10,
        memory=32768,
        cores=100,
    )
    assert (two.uuid, two.index, two.numa) == ("GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448", 0, 1)
    assert one.healthy


def test_the_older_list_has_health_index_and_an_unknown_numa_node() -> None:
    text = "GPU-a,10,32768,100,NVIDIA-A40,-1,true,1,hami-core:GPU-b,10,1,100,,2,false,0,mig:"
    found = read_register(text)
    assert found == [
        RegisteredGpu("GPU-a", 1, "NVIDIA-A40", None, True, 10, 32768, 100, "hami-core"),
        RegisteredGpu("GPU-b", 0, "", 2, False, 10, 1, 100, "mig"),
    ]
    machine = machine_from_scores("n", found, {})
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-b", "GPU-a"]
    assert machine.usable == (1,)


def test_an_empty_register_has_no_devices() -> None:
    assert read_register("[]") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not JSON"),
        ("[" * 100_000, "nested more than 20 deep"),
        ("", "expected a JSON list of devices"),
        ("{}", "expected a JSON list of devices"),
        ("GPU-0", "expected a JSON list of devices"),
        ("GPU-0,10,32768:", "expected a JSON list of devices"),
        ("a,10,1,100,b,0:", "expected a JSON list of devices"),
        ("a,10,1,100,b,0,true,1:", "expected a JSON list of devices"),
        ("a,10,1,100,b,zero,true:", "'a': expected a NUMA node, and true or false for its health"),
        ("a,10,1,100,b,0,well:", "'a': expected a NUMA node, and true or false for its health"),
        ("a,10,1,100,b,0,true,first,hami-core:", "'a': expected a whole number .* for its index"),
        ("a,10,1,100,b,0,true,-1,hami-core:", "'a': expected a whole number .* for its index"),
        ('[{"id": "a", "index": "1"}]', r"\[0\]\.index: expected a whole number"),
        ('[{"id": "a", "index": -110}]', r"\[0\]\.index: expected a whole number"),
        ("[1]", r"\[0\]: expected a device with an id"),
        ('[{"id": "GPU-0"}, {"index": 1}]', r"\[1\]: expected a device with an id"),
        ('[{"id": 7}]', r"\[0\]: expected a device with an id"),
        ('[{"id": "a,b"}]', r'\[0\]: expected an id without , : or ;, got "a,b"'),
        ('[{"id": "a", "devmem": "80Gi"}]', r"\[0\]\.devmem: expected a whole number from 0"),
        ('[{"id": "a", "count": -1}]', r"\[0\]\.count: expected a whole number from 0"),
        ('[{"id": "a", "devcore": 4294967296}]', r"\[0\]\.devcore: expected a whole number"),
        ("a,10,1Gi,100,b,0,true:", "'a': expected a whole number .* for its memory, got \"1Gi\""),
        ('[{"id": "a", "migProfiles": {}}]', r"\[0\]\.migProfiles: expected a list of 64"),
        ('[{"id": "a", "migProfiles": [1]}]', r"migProfiles\[0\]: expected a profile with a name"),
        (
            '[{"id": "a", "migProfiles": [{"name": "1g", "placements": [{"start": 9}]}]}]',
            r"placements\[0\]: expected a start below 64 and a size from 1 on",
        ),
        (
            '[{"id": "a", "migProfiles": [{"name": "1g", "placements": '
            '[{"start": 0, "size": 1}, {"start": 1, "size": 2}]}]}]',
            r"placements: expected one size, got \[1, 2\]",
        ),
        (
            '[{"id": "a", "migProfiles": [{"name": "1g"}, {"name": "1g"}]}]',
            r'migProfiles: expected different profiles, got "1g" twice',
        ),
    ],
)
def test_a_register_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_register(text)


def test_partitions_are_read_with_their_places() -> None:
    text = json.dumps(
        [
            device(
                0,
                mode="mig",
                migProfiles=[
                    {
                        "name": "2g.10gb",
                        "memoryMB": 10240,
                        "core": 28,
                        "sliceCount": 2,
                        "placements": [{"start": 0, "size": 2}, {"start": 2, "size": 2}],
                    }
                ],
            )
        ]
    )
    (gpu,) = read_register(text)
    assert gpu.mode == "mig"
    assert gpu.profiles == (PartitionProfile("2g.10gb", 10240 * MEBIBYTE, 280, 2, (0, 2), 2),)


def test_volcanos_older_list_has_neither_cores_nor_numa_node() -> None:
    text = "GPU-a,10,8192,NVIDIA-A40,true:GPU-b,4,1126,NVIDIA-V100,false,mig:"
    assert read_volcano_register(text) == [
        RegisteredGpu("GPU-a", 0, "NVIDIA-A40", None, True, 10, 8192, 100),
        RegisteredGpu("GPU-b", 0, "NVIDIA-V100", None, False, 4, 1126, 100, "mig"),
    ]
    with pytest.raises(ValueError, match="expected a JSON list of devices"):
        read_volcano_register("GPU-a,10,8192,NVIDIA-A40:")
    with pytest.raises(ValueError, match='expected true or false for its health, got "yes"'):
        read_volcano_register("GPU-a,10,8192,NVIDIA-A40,yes:")


# The scores -------------------------------------------------------------------------------------


def test_scores_are_read_by_uuid_and_uuid() -> None:
    text = '[{"uuid":"GPU-0","score":{"GPU-1":100}},{"uuid":"GPU-1","score":{"GPU-0":100}}]'
    assert read_scores(text) == {"GPU-0": {"GPU-1": 100}, "GPU-1": {"GPU-0": 100}}
    assert read_scores("[]") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "nested more than 20 deep"),
        ("null", "expected a list of devices with their scores"),
        ('{"GPU-0": {}}', "expected a list of devices with their scores"),
        ("[[]]", r"\[0\]: expected a uuid and its scores"),
        ('[{"score": {}}]', r"\[0\]: expected a uuid and its scores"),
        ('[{"uuid": "a", "score": {}}, {"uuid": "b", "score": [1]}]', r"\[1\]: expected a uuid"),
        ('[{"uuid": "a", "score": {"b": 1.5}}]', r"\[0\]\.score\['b'\]: expected an integer"),
        ('[{"uuid": "a", "score": {"b": true}}]', r"\[0\]\.score\['b'\]: expected an integer"),
        ('[{"uuid": "a", "score": {"b": "9"}}]', r"\[0\]\.score\['b'\]: expected an integer"),
    ],
)
def test_scores_that_cannot_be_read_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_scores(text)


# Together ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "links", "level"),
    [
        (10, 0, Level.SYS),
        (20, 0, Level.NODE),
        (30, 0, Level.PHB),
        (40, 0, Level.PXB),
        (50, 0, Level.PIX),
        (60, 0, Level.PIX),
        (110, 1, Level.SYS),
        (230, 2, Level.PHB),
        (1250, 12, Level.PIX),
    ],
)
def test_a_score_gives_nvlinks_and_the_pcie_level(score: int, links: int, level: Level) -> None:
    machine = machine_from_scores("n", registered(2, A100), scores_of({(0, 1): score}))
    assert machine.nvlinks[0, 1] == machine.nvlinks[1, 0] == links
    assert machine.levels[0, 1] == machine.levels[1, 0] == level


def test_a_score_of_nvlinks_alone_leaves_the_pcie_level_unknown() -> None:
    machine = machine_from_scores("n", registered(2, A100), scores_of({(0, 1): 400}))
    assert machine.label(0, 1) == "NV4"
    without = machine_from_scores("n", registered(2, A100), {})
    assert without.level(0, 1) is None
    assert without.label(0, 1) == "?"


@NEEDS_SHARED
@pytest.mark.parametrize(("name", "model"), [("dgx1_volta", V100), ("dgx1_pascal", "Tesla P100")])
def test_a_cube_mesh_comes_back_out_of_its_scores(name: str, model: str) -> None:
    node = json.loads(CASES.read_text())["nodes"][name]
    matrix = np.array(node["pair_score"])
    pairs = {(a, b): int(matrix[a, b]) for a, b in itertools.combinations(range(8), 2)}
    machine = machine_from_scores("n", registered(8, model), scores_of(pairs))
    found = {f"{a}-{b}": int(machine.nvlinks[a, b]) for a, b in pairs if machine.nvlinks[a, b]}
    assert found == node["nvlinks"]
    assert (machine.direct == machine.nvlinks).all()
    assert (pair_scores(machine) == matrix).all()
    assert machine.notes == (SOCKETS,)


@pytest.mark.parametrize(
    ("model", "links", "bandwidth"),
    [(A100, 12, 300), ("NVIDIA-NVIDIA H100 80GB HBM3", 18, 450), ("NVIDIA-NVIDIA B200", 18, 900)],
)
def test_more_links_than_a_gpu_has_lead_to_switches(
    model: str, links: int, bandwidth: float
) -> None:
    machine = machine_from_scores("n", registered(8, model), everybody(8, links * 100 + 10))
    off = ~np.eye(8, dtype=bool)
    assert (machine.nvlinks[off] == links).all()
    assert not machine.direct.any()
    assert (machine.bandwidth[off] == bandwidth).all()


def test_a_gpu_that_lost_its_nvlinks_falls_back_to_pcie() -> None:
    scores = everybody(8, 1810)
    for other in range(8):
        if other != 2:
            scores["GPU-2"][f"GPU-{other}"] = scores[f"GPU-{other}"]["GPU-2"] = 20
    machine = machine_from_scores("n", registered(8, "NVIDIA B200"), scores)
    assert machine.label(0, 1) == "NV18"
    assert {machine.label(2, other) for other in range(8) if other != 2} == {"NODE"}


def test_an_asymmetric_pair_is_ignored_and_noted() -> None:
    scores = {"GPU-0": {"GPU-1": 420, "GPU-2": 20}, "GPU-1": {"GPU-0": 20}, "GPU-2": {"GPU-0": 20}}
    machine = machine_from_scores("n", registered(3, V100), scores)
    assert machine.nvlinks[0, 1] == 0
    assert machine.level(0, 1) is None
    assert machine.label(0, 2) == "NODE"
    assert any("GPU0 to GPU1 has scores 420 and 20" in note for note in machine.notes)
    assert pair_scores(machine)[0].tolist() == [0, 0, 20]


@pytest.mark.parametrize("score", [1910, 100_000, 10**24])
def test_more_nvlinks_than_a_gpu_has_are_ignored(score: int) -> None:
    machine = machine_from_scores("n", registered(3, V100), scores_of({(0, 1): score, (0, 2): 210}))
    assert machine.nvlinks[0].tolist() == [0, 0, 2]
    assert "GPU0 to GPU1 has a score of more than 18 NVLinks: these are ignored" in machine.notes


@pytest.mark.parametrize("score", [0, -5])
def test_a_score_of_0_says_nothing(score: int) -> None:
    machine = machine_from_scores("n", registered(2, V100), scores_of({(0, 1): score}))
    assert not machine.nvlinks.any()
    assert machine.level(0, 1) is None


def test_gpus_are_in_the_order_of_their_indices_with_what_is_registered() -> None:
    text = json.dumps([device(2, numa=-1), device(1, health=False), device(3, numa=2)])
    machine = machine_from_scores("n", read_register(text), scores_of({(1, 3): 130}))
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-1", "GPU-2", "GPU-3"]
    assert machine.numa_of == (1, None, 2)
    assert machine.gpus[0].model == V100
    assert "unhealthy" in machine.gpus[0].lost
    assert machine.usable == (1, 2)
    assert machine.label(0, 2) == "NV1"


def test_facts_without_an_annotation_are_not_made_up() -> None:
    machine = machine_from_scores("n", registered(4, V100), everybody(4, 30))
    assert machine.nics == ()
    assert {gpu.bus_id for gpu in machine.gpus} == {""}
    assert {gpu.nvlink_domain for gpu in machine.gpus} == {""}
    assert machine.near_nics(0) == ()


def test_scores_of_gpus_that_are_not_registered_are_ignored() -> None:
    scores = scores_of({(0, 1): 110, (0, 9): 1810, (9, 8): 1810})
    machine = machine_from_scores("n", registered(2, V100), scores)
    assert len(machine) == 2
    assert machine.nvlinks.max() == 1


def test_without_a_register_the_gpus_are_those_with_scores_in_their_order() -> None:
    machine = machine_from_scores("n", [], scores_of({(2, 10): 250}))
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-2", "GPU-10"]
    assert machine.numa_of == (None, None)
    assert machine.label(0, 1) == "NV2"
    assert any(note.startswith("assumed: NVLink 3 (25 GB/s a link)") for note in machine.notes)


def test_an_unknown_model_with_nvlinks_says_what_is_assumed() -> None:
    machine = machine_from_scores("n", registered(2, "NVIDIA-Mystery"), scores_of({(0, 1): 210}))
    assert machine.notes == (
        SOCKETS,
        "assumed: PCIe 3",
        "assumed: NVLink 3 (25 GB/s a link)",
    )
    known = machine_from_scores("n", registered(2, V100), scores_of({(0, 1): 210}))
    assert known.notes == (SOCKETS,)


def test_a_cordoned_gpu_is_not_for_new_pods() -> None:
    scores = scores_of({(0, 1): 210})
    machine = machine_from_scores("n", registered(3, V100), scores, "GPU-1, GPU-2,GPU-9,")
    assert machine.usable == (0,)
    assert machine.gpus[1].lost == "cordoned by hami.io/device-cordon"
    assert machine.label(0, 1) == "NV2"


def test_more_gpus_than_any_machine_has_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="expected 1024 GPUs or fewer, got 1025"):
        machine_from_scores("n", registered(1025, V100), {})


# Of a node --------------------------------------------------------------------------------------


def test_a_node_is_known_by_either_annotation() -> None:
    text = '[{"uuid":"GPU-0","score":{"GPU-1":250}},{"uuid":"GPU-1","score":{"GPU-0":250}}]'
    register = json.dumps([device(0), device(1)])
    both, scores, alone = (
        of_node(score=text, register=register),
        of_node(score=text),
        of_node(register=register),
    )
    assert isinstance(both, Machine)
    assert isinstance(scores, Machine)
    assert isinstance(alone, Machine)
    assert (both.label(0, 1), both.numa_of) == ("NV2", (1, 1))
    assert (scores.label(0, 1), scores.numa_of) == ("NV2", (None, None))
    assert (alone.label(0, 1), alone.numa_of) == ("?", (1, 1))
    assert of_node() == ""


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"score": "[{]"}, "not JSON"),
        ({"score": '[{"uuid": "a"}]'}, "[0]: expected a uuid and its scores"),
        ({"register": "eight of them"}, "expected a JSON list of devices"),
        ({"score": "[]", "register": "[{}]"}, "[0]: expected a device with an id"),
    ],
)
def test_a_bad_annotation_is_an_answer_that_names_it(
    annotations: dict[str, str], message: str
) -> None:
    found = of_node(**annotations)
    assert isinstance(found, str)
    assert found.startswith("annotations of HAMi: hami.io/node-nvidia-")
    assert message in found
