"""A look at a node as a new operator needs it: GPUs, NVLinks, fabric, kubelet's policies, NCCL.

Paths are those of the node: in a pod, ``/var/lib/kubelet`` and ``/etc`` have to be mounted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bayplan.errors import InputError
from bayplan.inputs.documents import parse_documents, read_text
from bayplan.live.doctor import Finding, Level
from bayplan.naming import counted, listed
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.readers.discovery import discover
from bayplan.topology.machine.readers.machinefile import known_machine

__all__ = [
    "examine_node",
    "fabric_findings",
    "kubelet_findings",
    "machine_findings",
    "nccl_findings",
]

KUBELET = Path("/var/lib/kubelet/config.yaml")
NCCL = Path("/etc/nccl.conf")
CHANNELS = Path("/dev/nvidia-caps-imex-channels")
_SHOWN = 4
_POLICIES = {
    "topologyManagerPolicy": ("none", ("restricted", "single-numa-node", "best-effort")),
    "cpuManagerPolicy": ("none", ("static",)),
    "memoryManagerPolicy": ("None", ("Static",)),
}
"""The kubelet's default, and what keeps the CPUs and the memory of a pod beside its GPUs."""
_SLOW = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NVLS_DISABLE")


def examine_node(name: str) -> Iterator[Finding]:
    """Yield what is found on the node that this process runs on.

    :param name: the machine of the catalog that it should be, "" for none.
    :raises InputError: when the catalog has no such machine.
    """
    expected = known_machine(name) if name else None
    try:
        machine = discover()
    except InputError as exc:
        remedy = "install NVIDIA's driver; in a container: its runtime, or a claim for a GPU"
        # What follows the first sentence is about options of another command.
        yield Finding("failure", "GPUs", str(exc).partition(". ")[0], remedy)
    else:
        yield from machine_findings(machine, expected)
    try:
        text = read_text(KUBELET)
        found = parse_documents(text, str(KUBELET))[0].content
        yield from kubelet_findings(found if isinstance(found, dict) else {})
    except InputError as exc:
        yield Finding("warning", "kubelet", str(exc), "run it on the node, or mount the file")
    yield from nccl_findings(os.environ, NCCL.read_text() if NCCL.is_file() else "")


def machine_findings(machine: Machine, expected: Machine | None) -> Iterator[Finding]:
    """Yield how the GPUs are connected, and what is not as the catalog says.

    :param expected: the machine of the catalog, None for none.
    """
    models = listed(sorted({gpu.model or "unknown" for gpu in machine.gpus}), _SHOWN)
    lost = [gpu.name for gpu in machine.gpus if gpu.lost]
    level: Level = "failure" if lost else "ok"
    gone = f"; {listed(lost, _SHOWN)} cannot be used" if lost else ""
    remedy = "look at the kernel's log for Xid errors; reset the GPU, or drain the node"
    yield Finding(level, "GPUs", f"{len(machine)} of {models}{gone}", remedy if lost else "")
    links = machine.nvlinks[~np.eye(len(machine), dtype=bool)]
    uneven = machine.asymmetric
    if uneven:
        pairs = listed([f"GPU{a}-GPU{b}" for a, b in sorted(uneven)], _SHOWN)
        yield Finding("warning", "NVLink", f"seen from one side only: {pairs}", remedy)
    elif links.any():
        low, high = int(links.min()), int(links.max())
        span = f"{low}" if low == high else f"{low} to {high}"
        yield Finding("ok", "NVLink", f"{span} links between two GPUs")
    else:
        yield Finding("ok", "NVLink", "none between GPUs")
    yield from fabric_findings(machine, CHANNELS)
    for note in machine.notes:
        yield Finding("warning", "machine", note)
    if expected is not None:
        yield from _compared(machine, expected)


def fabric_findings(machine: Machine, channels: Path) -> Iterator[Finding]:
    """Yield whether the GPUs are in one NVLink domain with other machines; nothing without one.

    :param channels: the folder of IMEX channels, by which pods share memory with other machines.
    """
    usable = [gpu for gpu in machine.gpus if not gpu.lost]
    domains = sorted({gpu.nvlink_domain for gpu in usable} - {""})
    outside = [gpu.name for gpu in usable if not gpu.nvlink_domain]
    if not domains:
        return
    if len(domains) > 1 or outside:
        text = f"GPUs are in {counted(len(domains), 'NVLink domain')}: {listed(domains, _SHOWN)}"
        alone = f"; {listed(outside, _SHOWN)} in none" if outside else ""
        remedy = "see Fabric in nvidia-smi -q; reset the GPUs, or restart the fabric manager"
        yield Finding("failure", "fabric", f"{text}{alone}", remedy)
        return
    yield Finding("ok", "fabric", f"all GPUs are in the NVLink domain {domains[0]}")
    if not channels.is_dir():
        remedy = "install nvidia-imex and the driver of compute domains, or nvidia-modprobe -c 0"
        yield Finding("warning", "fabric", f"no IMEX channels in {channels}", remedy)


def _compared(machine: Machine, expected: Machine) -> Iterator[Finding]:
    remedy = "look for a GPU, a link or a NIC that failed; the scheduler counts on what is there"
    about = f"as {expected.name}"
    wrong = []
    if len(machine) != len(expected):
        wrong.append(f"{counted(len(machine), 'GPU')} in the place of {len(expected)}")
    else:
        fewer = np.argwhere(np.triu(machine.nvlinks != expected.nvlinks))
        if len(fewer):
            first, second = map(int, fewer[0])
            has, should = machine.nvlinks[first, second], expected.nvlinks[first, second]
            wrong.append(
                f"NVLinks of {counted(len(fewer), 'pair')} of GPUs differ, such as "
                f"GPU{first}-GPU{second}: {has} in the place of {should}"
            )
        if machine.numa_of != expected.numa_of:
            wrong.append(f"NUMA nodes of GPUs are {list(machine.numa_of)}")
    if len(machine.nics) != len(expected.nics):
        wrong.append(f"{counted(len(machine.nics), 'NIC')} in the place of {len(expected.nics)}")
    for text in wrong:
        yield Finding("failure", about, text, remedy)
    if not wrong:
        yield Finding("ok", about, "GPUs, NVLinks, NUMA nodes and NICs are as the catalog says")


def kubelet_findings(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the kubelet keeps CPUs and memory beside GPUs (KubeletConfiguration)."""
    for name, (default, good) in _POLICIES.items():
        policy = config.get(name) or default
        if policy in good:
            yield Finding("ok", "kubelet", f"{name} {policy}")
            continue
        remedy = f"{name}: {good[0]} keeps a pod's CPUs and memory near its GPUs"
        yield Finding("warning", "kubelet", f"{name} {policy}", remedy)


def nccl_findings(environment: Mapping[str, str], config: str) -> Iterator[Finding]:
    """Yield which settings of NCCL turn a fast way off.

    :param config: the text of ``/etc/nccl.conf``, "" without one.
    """
    lines = (line.partition("#")[0].partition("=") for line in config.splitlines())
    given = {name.strip(): value.strip() for name, _, value in lines if name.strip()}
    given |= {name: value for name, value in environment.items() if name.startswith("NCCL_")}
    off = [name for name in _SLOW if given.get(name, "0") not in ("", "0")]
    for name in off:
        yield Finding("warning", "NCCL", f"{name}={given[name]}", f"remove {name} from {NCCL}")
    if not off:
        shown = listed(sorted(f"{name}={value}" for name, value in given.items()), _SHOWN)
        yield Finding("ok", "NCCL", shown or "no settings on this node")
