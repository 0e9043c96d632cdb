"""Processes that share a GPU: limits for clients of MPS, and the length of time slices."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bayplan.api import Quantity
from bayplan.errors import BayplanError, InputError
from bayplan_dra.driver.config import SharingConfig
from bayplan_dra.driver.prepare.cdi import Edits
from bayplan_dra.driver.publish.devices import NodeDevice

__all__ = ["GpuShare", "TimeSlices", "mps_edits"]

_PIPE = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks in the container
_SHM = "/dev/shm"  # noqa: S108 - where MPS has its segments
_MEBIBYTE = 1 << 20
_INTERVALS = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
_SECONDS = 20.0


class GpuShare(msgspec.Struct, frozen=True):
    """A GPU of a claim, and what the claim consumes of it; empty for the whole GPU."""

    device: NodeDevice
    consumed: Mapping[str, Quantity]


def mps_edits(gpus: Sequence[GpuShare], sharing: SharingConfig | None, root: str) -> Edits:
    """Return what makes a container a client of the node's MPS daemon, with the claim's limits.

    Without a strategy, shares get MPS where the node has it, as nothing else keeps a process to
    its share.

    :param root: the folder of the daemon, with pipe/ and shm/; "" where there is none.
    :raises InputError: when the claim wants MPS, and the node has none.
    """
    wanted = sharing is not None and sharing.strategy == "MPS"
    if wanted and not root:
        raise InputError("the node has no MPS control daemon (--mps-root)", "sharing.strategy")
    implied = sharing is None and any(one.consumed for one in gpus)
    if not root or not (wanted or implied) or any(not one.device.whole for one in gpus):
        return Edits()
    found = {"CUDA_MPS_PIPE_DIRECTORY": _PIPE}
    limits = _memory_limits(gpus, sharing)
    if limits:
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(
            f"{index}={amount // _MEBIBYTE}M" for index, amount in sorted(limits.items())
        )
    cores = [one.consumed["cores"].units for one in gpus if "cores" in one.consumed]
    threads = min([one for one in cores if one > 0], default=0)
    if sharing is not None and not threads:
        threads = sharing.mps_config.default_active_thread_percentage or 0
    if threads:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(threads)
    return Edits(found, (), {}, {f"{root}/pipe": _PIPE, f"{root}/shm": _SHM})


def _memory_limits(gpus: Sequence[GpuShare], sharing: SharingConfig | None) -> dict[int, int]:
    """Return the limits in bytes, by the index of the GPU in the container."""
    config = sharing.mps_config if sharing is not None else None
    limits: dict[int, int] = {}
    for index, one in enumerate(sorted(gpus, key=lambda one: one.device.gpu or 0)):
        uuid = one.device.device.attributes.get("uuid")
        names = (str(index), uuid.string if uuid is not None else "")
        own = config.default_per_device_pinned_memory_limit if config is not None else {}
        stated = [Quantity(own[name]) for name in names if name in own]
        if not stated and config is not None and config.default_pinned_device_memory_limit:
            stated = [Quantity(config.default_pinned_device_memory_limit)]
        amounts = [quantity.units for quantity in stated]
        if "memory" in one.consumed:
            amounts.append(one.consumed["memory"].units)
        if amounts:
            limits[index] = min(amounts)
    return limits


class TimeSlices:
    """Sets how long a process has a GPU before the next one, with nvidia-smi.

    :param program: nvidia-smi; "" for a simulated machine, where nothing is set.
    """

    def __init__(self, program: str | Path = "") -> None:
        self._program = str(program)

    def set(self, uuid: str, interval: str) -> None:
        """Set the interval of a GPU: Default, Short, Medium or Long.

        :raises BayplanError: when that fails.
        """
        if not self._program:
            return
        arguments = ["compute-policy", "-i", uuid, "--set-timeslice", str(_INTERVALS[interval])]
        try:
            done = subprocess.run(  # noqa: S603 - the program is the operator's
                [self._program, *arguments], capture_output=True, text=True, timeout=_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise BayplanError(f"cannot set the time slice of GPU {uuid}: {exc}") from None
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[:200]
            raise BayplanError(f"cannot set the time slice of GPU {uuid}: {said}")
