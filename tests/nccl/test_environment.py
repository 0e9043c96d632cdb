"""NCCL's environment: only what the topology proves, in the words that NCCL 2.30 reads."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.machine_builders import gb200_tray, machine_from_yaml
from tests.paths import SHARED

from bayplan.nccl import (
    Member,
    Variable,
    environment,
    needed_topology_file,
    topology_file,
)
from bayplan.topology.machine.bandwidth import inter_socket, nvlink, pcie
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.model import Gpu, Nic
from bayplan.topology.machine.readers.machinefile import known_machine, known_machines
from bayplan.topology.machine.readers.smi import read_smi

TABLES = SHARED / "fixtures" / "nvidia-smi-topo"
NEEDS_SHARED = pytest.mark.skipif(
    not TABLES.is_dir(), reason="the shared fixtures are not beside the project"
)
ELSEWHERE = Member("elsewhere", known_machine("dgx-h100"), (0,))

NEAR_AND_FAR = """
name: near-and-far
gpu: NVIDIA H100
numa:
- id: 0
  roots:
  - switches:
    - gpus: [0]
      nics: [{name: mlx5_1, rate: 400}, {name: mlx5_2, rate: 400, storage: true}]
  - switches:
    - switches:
      - gpus: [1]
      - nics: [{name: mlx5_10, rate: 400}]
  - gpus: [2]
    nics: [{name: mlx5_3, rate: 400}]
- id: 1
  socket: 1
  roots:
  - gpus: [3]
"""


def values(variables: list[Variable]) -> dict[str, str]:
    return {variable.name: variable.value for variable in variables}


def hcas(member: Member, version: tuple[int, ...] | None = (2, 30, 7)) -> set[str]:
    """Return the HCAs that NCCL_IB_HCA lists, which have to be matched exactly ("=")."""
    value = values(environment(member, [ELSEWHERE], version=version)).get("NCCL_IB_HCA")
    if value is None or value.startswith("^"):
        return set()
    assert value.startswith("="), "mlx5_1 would match mlx5_10, too"
    entries = value.removeprefix("=").split(",")
    assert len(set(entries)) == len(entries)
    return set(entries)


@pytest.mark.parametrize("name", known_machines())
def test_a_job_on_one_node_needs_nothing(name: str) -> None:
    found = known_machine(name)
    assert environment(Member("a", found, tuple(range(len(found))))) == []


def test_all_gpus_of_a_dgx_h100_use_the_nic_of_each_with_its_rail() -> None:
    names = [0, 3, 4, 5, 6, 9, 10, 11]
    want = {f"mlx5_{name}:1:{rail}" for rail, name in enumerate(names)}
    assert hcas(Member("a", known_machine("dgx-h100"), tuple(range(8)))) == want


def test_storage_ports_are_left_out_and_the_reason_names_them() -> None:
    member = Member("a", known_machine("dgx-h100"), (0, 4))
    (variable,) = environment(member, [ELSEWHERE])
    assert variable.value == "=mlx5_0:1,mlx5_6:1"
    assert "GPU 0, 4" in variable.why
    assert "mlx5_1, mlx5_2, mlx5_7, mlx5_8 are for other traffic" in variable.why


@pytest.mark.parametrize("version", [None, (2, 29, 3), (2, 30), (2, 30, 4)])
def test_only_an_nccl_known_to_read_rails_gets_them(version: tuple[int, ...] | None) -> None:
    member = Member("a", known_machine("dgx-h100"), (0, 7))
    assert hcas(member, version) == {"mlx5_0:1", "mlx5_11:1"}
    assert hcas(member, (2, 30, 5)) == {"mlx5_0:1:0", "mlx5_11:1:7"}


@pytest.mark.parametrize(
    ("gpus", "want"),
    [((0,), {"mlx5_1:1"}), ((1,), {"mlx5_10:1"}), ((0, 1, 2), {"mlx5_1:1", "mlx5_10:1"})],
    ids=["PIX", "PXB", "beyond PXB"],
)
def test_a_nic_counts_at_pix_and_pxb_and_not_beyond(gpus: tuple[int, ...], want: set[str]) -> None:
    assert hcas(Member("a", machine_from_yaml(NEAR_AND_FAR), gpus)) == want


@pytest.mark.parametrize("gpu", [2, 3])
def test_nothing_is_claimed_of_a_gpu_without_a_near_nic(gpu: int) -> None:
    member = Member("a", machine_from_yaml(NEAR_AND_FAR), (gpu,))
    assert hcas(member) == set()
    # Storage ports are not to be used all the same.
    assert values(environment(member, [ELSEWHERE])) == {"NCCL_IB_HCA": "^=mlx5_2"}


def test_where_every_nic_is_far_the_storage_ports_alone_are_left_out() -> None:
    tray = Member("a", known_machine("gb200-nvl72"), (0, 1, 2, 3))
    (variable,) = environment(tray, spans_nodes=True)
    assert str(variable) == "NCCL_IB_HCA=^=mlx5_2,mlx5_3,mlx5_6,mlx5_7"
    assert variable.why == "mlx5_2, mlx5_3, mlx5_6, mlx5_7 are for storage"


def test_another_pod_on_the_same_node_needs_no_nics() -> None:
    dgx = known_machine("dgx-h100")
    first, second = Member("a", dgx, (0, 1, 2, 3)), Member("a", dgx, (4, 5, 6, 7))
    assert environment(first, [second]) == []
    assert [one.name for one in environment(first, [second], spans_nodes=True)] == ["NCCL_IB_HCA"]
    assert environment(first, [second, ELSEWHERE]) == environment(first, [ELSEWHERE])


def test_a_port_that_is_down_and_a_virtual_function_are_left_out() -> None:
    builder = MachineBuilder("m", nvlink(4), inter_socket("amd"))
    builder.socket("socket 0")
    builder.numa("numa 0", "socket 0", 0)
    builder.root("root", "numa 0")
    builder.switch("switch", "root", pcie(5))
    builder.gpu(Gpu(0, numa=0), "switch", pcie(5))
    nics = [
        Nic(0, "mlx5_0", rate=400, port=2),
        Nic(1, "mlx5_1", rate=400, active=False),
        Nic(2, "mlx5_2", rate=400, parent="mlx5_0"),
    ]
    for nic in nics:
        builder.nic(nic, "switch", pcie(5))
    assert hcas(Member("a", builder.build(), (0,))) == {"mlx5_0:2"}


def test_more_hcas_than_nccl_takes_are_not_listed() -> None:
    def with_nics(count: int) -> Member:
        names = ", ".join(f"mlx5_{nic}" for nic in range(count))
        text = (
            "{name: m, gpu: H100, numa: [{id: 0, roots: "
            f"[{{switches: [{{gpus: [0], nics: [{names}]}}]}}]}}]}}"
        )
        return Member("a", machine_from_yaml(text), (0,))

    assert len(hcas(with_nics(32))) == 32
    assert hcas(with_nics(33)) == set()


@NEEDS_SHARED
@pytest.mark.parametrize(("gpu", "nic"), [*enumerate([4, 1, 0, 3, 6, 7, 5, 2])])
def test_nics_go_by_nearness_where_their_numbers_do_not_follow_the_gpus(gpu: int, nic: int) -> None:
    table = read_smi(TABLES / "h200_8gpu_8nic_scrambled.txt")
    assert hcas(Member("a", table, (gpu,))) == {f"mlx5_{nic}:1"}
    assert hcas(Member("a", known_machine("hgx-h200"), (gpu,))) == {f"mlx5_{nic}:1:{gpu}"}


@NEEDS_SHARED
def test_a_nic_whose_rdma_name_is_unknown_is_not_listed() -> None:
    table = read_smi(TABLES / "a100_sxm4_8gpu_4nic_half_without_nic.txt")
    assert hcas(Member("a", table, (0, 1))) == {"mlx5_0:1", "mlx5_1:1"}
    assert hcas(Member("a", table, (2, 3))) == set()
    assert hcas(Member("a", table, (4, 5, 6, 7))) == set()


@NEEDS_SHARED
def test_the_storage_ports_of_a_table_are_recognized_by_their_distance() -> None:
    table = read_smi(TABLES / "dgx_h200_8gpu_12nic.txt")
    want = {f"mlx5_{nic}:1" for nic in (0, 3, 4, 5, 6, 9, 10, 11)}
    assert hcas(Member("a", table, tuple(range(8)))) == want


def test_the_first_pod_of_a_job_that_will_span_nodes_gets_its_hcas_already() -> None:
    member = Member("a", known_machine("dgx-h100"), (0,))
    assert values(environment(member, spans_nodes=True)) == {"NCCL_IB_HCA": "=mlx5_0:1"}


# NVLink between nodes ---------------------------------------------------------------------------


def test_nvlink_between_nodes_is_turned_off_where_only_some_nodes_have_a_domain() -> None:
    inside = Member("inside", gb200_tray("uuid.1"), (0, 1))
    outside = Member("outside", known_machine("gb200-nvl72"), (0, 1))
    for member, other in ((inside, outside), (outside, inside)):
        (variable,) = (v for v in environment(member, [other]) if "HCA" not in v.name)
        assert str(variable) == "NCCL_MNNVL_ENABLE=0"
        assert "outside is in no NVLink domain" in variable.why


def test_of_many_nodes_without_a_domain_the_first_are_named() -> None:
    tray = known_machine("gb200-nvl72")
    others = [Member(f"n{index}", tray, (0,)) for index in range(1000) for _ in range(2)]
    found = environment(Member("inside", gb200_tray("uuid.1"), (0, 1)), others)
    why = next(one.why for one in found if one.name == "NCCL_MNNVL_ENABLE")
    assert why.startswith("n0, n1, n2, n3, n4, n5 and 994 more are in no NVLink domain")


@pytest.mark.parametrize(
    ("domain", "other"), [("uuid.1", "uuid.1"), ("uuid.1", "uuid.2"), ("", "")]
)
def test_nvlink_between_nodes_is_left_to_nccl_where_all_are_alike(domain: str, other: str) -> None:
    members = [Member("a", gb200_tray(domain), (0, 1)), Member("b", gb200_tray(other), (0, 1))]
    assert "NCCL_MNNVL_ENABLE" not in values(environment(members[0], members[1:]))


# The topology file, and what is never set -------------------------------------------------------


VIRTUAL = """
name: vm
gpu: NVIDIA H100
virtual: true
numa:
- id: 0
  roots:
  - gpus: [{index: 0, busId: "0001:00:00.0"}]
"""


@pytest.mark.parametrize("others", [(), (ELSEWHERE,)], ids=["one node", "two nodes"])
def test_a_topology_file_is_named_in_virtual_machines_alone(others: tuple[Member, ...]) -> None:
    virtual = machine_from_yaml(VIRTUAL)
    real = machine_from_yaml(VIRTUAL.replace("virtual: true", ""))
    assert "NCCL_TOPO_FILE" not in values(environment(Member("a", real, (0,)), others))
    found = environment(Member("a", virtual, (0,)), others)
    assert values(found)["NCCL_TOPO_FILE"].startswith("/")
    assert "virtual" in next(one.why for one in found if one.name == "NCCL_TOPO_FILE")
    assert needed_topology_file(virtual) == topology_file(virtual)
    assert needed_topology_file(real) == ""


def test_a_topology_file_that_cannot_be_made_is_not_named() -> None:
    unknown = machine_from_yaml(VIRTUAL.replace(', busId: "0001:00:00.0"', ""))
    assert environment(Member("a", unknown, (0,))) == []
    assert needed_topology_file(unknown) == ""


PROVABLE = {"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_TOPO_FILE", "NCCL_MNNVL_ENABLE"}
"""What a topology can prove; levels, algorithms and protocols NCCL chooses itself."""


@pytest.mark.parametrize("name", known_machines())
@pytest.mark.parametrize("virtual", [False, True])
def test_no_variable_forces_a_choice_and_each_says_why(name: str, virtual: bool) -> None:
    known = known_machine(name)
    found = replace(known, platform=replace(known.platform, virtual=virtual))
    for count in range(1, len(found) + 1):
        for variable in environment(Member("a", found, tuple(range(count))), [ELSEWHERE]):
            assert variable.name in PROVABLE
            assert variable.why
            assert str(variable) == f"{variable.name}={variable.value}"
            assert not set(variable.value) & set(" \t\n\"'")
            if variable.name == "NCCL_IB_HCA":
                assert variable.value.startswith(("=", "^="))
            if variable.name == "NCCL_MNNVL_ENABLE":
                assert variable.value == "0", "it is set to disable only"
