"""NCCL's environment for the GPUs of a job: what the topology proves, and nothing else.

NCCL finds its algorithms, levels and rings itself, and is right unless it cannot see the machine.
So no variable forces any of that; each one here says why it is set. Values as NCCL 2.30 reads them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bayplan.nccl.job import Member
from bayplan.topology.machine import Machine

__all__ = ["TOPOLOGY_PATH", "Variable", "environment"]

TOPOLOGY_PATH = "/etc/nccl-topo.xml"
"""Where the topology file is to be mounted."""
_WITH_RAILS = (2, 30, 5)
_MOST_HCAS = 32
_SHOWN_ONLY = re.compile(r"NIC\d+")


@dataclass(frozen=True, slots=True)
class Variable:
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
    version: tuple[int, ...] = (2, 30, 7),
) -> list[Variable]:
    """Return the variables for the pods of a job on one node.

    :param others: the job's GPUs on other nodes, or in other pods.
    :param spans_nodes: whether there will be others, though none has a place yet.
    :param version: NCCL's; before 2.30.5 NCCL_IB_HCA takes no rails.
    """
    found = []
    if others or spans_nodes:
        found += _hcas(member, version)
        found += _multi_node_nvlink([member, *others])
    if member.machine.platform.virtual:
        found.append(
            Variable(
                "NCCL_TOPO_FILE",
                TOPOLOGY_PATH,
                "the machine is virtual, so that /sys does not show its PCIe switches",
            )
        )
    return found


def _hcas(member: Member, version: tuple[int, ...]) -> list[Variable]:
    machine = member.machine
    nics = [machine.nics[index] for index in member.nics()]
    if not nics or len(nics) > _MOST_HCAS or any(_SHOWN_ONLY.fullmatch(nic.name) for nic in nics):
        return []
    parts = []
    for nic in nics:
        rail = nic.rail is not None and version >= _WITH_RAILS
        parts.append(f"{nic.name}:{nic.port}:{nic.rail}" if rail else f"{nic.name}:{nic.port}")
    left_out = [nic.name for nic in machine.nics if nic.index not in machine.compute_nics]
    why = f"the NICs at PIX or PXB of GPU {', '.join(str(gpu) for gpu in member.gpus)}"
    if left_out:
        why += f"; {', '.join(left_out)} {'are' if len(left_out) > 1 else 'is'} for other traffic"
    return [Variable("NCCL_IB_HCA", f"={','.join(parts)}", why)]


def _multi_node_nvlink(members: Sequence[Member]) -> list[Variable]:
    """Turn NVLink between nodes off where some of the GPUs have no NVLink domain to be in."""
    own = [_has_domain(member.machine, member.gpus) for member in members]
    if not any(own) or all(own):
        return []
    without = [member.node for member, has in zip(members, own, strict=True) if not has]
    return [
        Variable(
            "NCCL_MNNVL_ENABLE",
            "0",
            f"{', '.join(without)} {'are' if len(without) > 1 else 'is'} in no NVLink domain, "
            "others of the job are",
        )
    ]


def _has_domain(machine: Machine, gpus: Sequence[int]) -> bool:
    return all(machine.gpus[gpu].nvlink_domain for gpu in gpus)
