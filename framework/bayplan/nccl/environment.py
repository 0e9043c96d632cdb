"""NCCL's environment variables for the GPUs of a job: only what the topology proves.

NCCL chooses algorithms, levels and rings itself, and it is right unless it cannot see the machine.
So no variable forces any of these; every variable says why it is set. Values are as in NCCL 2.30.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from bayplan.naming import listed
from bayplan.nccl.job import Member
from bayplan.nccl.topofile import needed_topology_file
from bayplan.topology.machine.model import Machine, Nic

__all__ = ["TOPOLOGY_PATH", "Variable", "environment"]

TOPOLOGY_PATH = "/etc/nccl-topo.xml"
"""The path in the container where the topology file has to be mounted."""
_WITH_RAILS = (2, 30, 5)
_MOST_HCAS = 32
_MOST_NAMES = 6
_SHOWN_ONLY = re.compile(r"NIC\d+")


class Variable(msgspec.Struct, frozen=True):
    """An environment variable, and why it is set."""

    name: str
    value: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


def environment(
    member: Member,
    others: Sequence[Member] = (),
    spans_nodes: bool = False,
    version: tuple[int, ...] | None = None,
) -> list[Variable]:
    """Return the variables for the pods of a job on one node.

    :param others: the job's GPUs on other nodes, or in other pods.
    :param spans_nodes: whether the job will have pods on other nodes, even if none is placed yet.
    :param version: the version of NCCL, None if unknown; before 2.30.5 NCCL_IB_HCA takes no rails.
    """
    found = []
    if spans_nodes or any(other.node != member.node for other in others):
        found += _hcas(member, version)
        found += _multi_node_nvlink([member, *others])
    if needed_topology_file(member.machine):
        found.append(
            Variable(
                "NCCL_TOPO_FILE",
                TOPOLOGY_PATH,
                "the machine is virtual, so /sys does not show its PCIe switches",
            )
        )
    return found


def _hcas(member: Member, version: tuple[int, ...] | None) -> list[Variable]:
    """Name the NICs to use; if none is near, exclude at least those for storage."""
    machine = member.machine
    near = [machine.nics[index] for index in member.nics()]
    if _can_be_named(near):
        rails = version is not None and version >= _WITH_RAILS
        names = [
            f"{nic.name}:{nic.port}:{nic.rail}"
            if rails and nic.rail is not None
            else f"{nic.name}:{nic.port}"
            for nic in near
        ]
        left_out = [nic.name for nic in machine.nics if nic.index not in machine.compute_nics]
        why = f"the NICs at PIX or PXB of GPU {', '.join(str(gpu) for gpu in member.gpus)}"
        if left_out:
            why += f"; {_are(left_out)} for other traffic"
        return [Variable("NCCL_IB_HCA", f"={','.join(names)}", why)]
    storage = [nic for nic in machine.nics if nic.storage]
    if not near and _can_be_named(storage):
        names = [nic.name for nic in storage]
        return [Variable("NCCL_IB_HCA", f"^={','.join(names)}", f"{_are(names)} for storage")]
    return []


def _can_be_named(nics: Sequence[Nic]) -> bool:
    shown_only = any(_SHOWN_ONLY.fullmatch(nic.name) for nic in nics)
    return 0 < len(nics) <= _MOST_HCAS and not shown_only


def _multi_node_nvlink(members: Sequence[Member]) -> list[Variable]:
    """Turn off NVLink between nodes if some of the GPUs are in no NVLink domain."""
    # Most nodes of a job are alike: each kind is checked once.
    kinds = {(member.machine, member.gpus) for member in members}
    inside = {kind for kind in kinds if _has_domain(*kind)}
    if not inside or inside == kinds:
        return []
    without = [one.node for one in members if (one.machine, one.gpus) not in inside]
    why = f"{_are(list(dict.fromkeys(without)))} in no NVLink domain, others of the job are"
    return [Variable("NCCL_MNNVL_ENABLE", "0", why)]


def _are(names: Sequence[str]) -> str:
    """Return "a is", "a, b are" or "a, b and 3 more are"."""
    return f"{listed(names, _MOST_NAMES)} {'are' if len(names) > 1 else 'is'}"


def _has_domain(machine: Machine, gpus: Sequence[int]) -> bool:
    return all(machine.gpus[gpu].nvlink_domain for gpu in gpus)
