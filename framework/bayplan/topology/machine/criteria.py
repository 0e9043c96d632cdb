"""The criteria that compare sets of GPUs: keys for many sets at once, larger is better.

Sets are rows of 0 and 1 over the GPUs of a machine. A criterion takes sets, shape (sets, GPUs), and
returns shape (sets, columns); columns are compared from left to right. No criterion depends on the
numbering of the GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bayplan.topology.machine.levels import UNKNOWN, Level
from bayplan.topology.machine.model import Machine

__all__ = ["Criteria", "Criterion", "Rows", "as_rows"]

Rows: TypeAlias = npt.NDArray[np.float64]
"""Sets of GPUs, shape (sets, GPUs): 1.0 for a GPU in the set, else 0.0."""
Criterion: TypeAlias = Callable[[Rows], npt.NDArray[np.float64]]


def as_rows(sets: Sequence[Sequence[int]] | npt.NDArray[np.intp], size: int) -> Rows:
    """Return sets of GPU indices as rows.

    :param sets: sets of one size.
    :param size: the number of GPUs of the machine.
    """
    rows = np.zeros((len(sets), size))
    members = np.array(sets, dtype=np.intp).reshape(len(sets), -1)
    np.put_along_axis(rows, members, 1.0, axis=1)
    return rows


class Criteria:
    """The criteria for one machine; what depends on the machine alone is computed once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        size = len(machine)
        levels = machine.levels[:size, :size]
        distances = [machine.nic_distance(gpu) for gpu in range(size)]
        self.nic_distance = np.array(distances, dtype=np.float64)
        self._without_nic = (self.nic_distance > Level.PXB).astype(np.float64)
        self.near_nics = [
            machine.near_nics(gpu) if distances[gpu] <= Level.PXB else () for gpu in range(size)
        ]
        nics = len(machine.nics)
        self._has_nic = np.zeros((size, nics))
        for gpu, own in enumerate(self.near_nics):
            self._has_nic[gpu, list(own)] = 1.0
        self._rates = np.array([nic.rate or 1.0 for nic in machine.nics])
        self.numa = [-1 if node is None else node for node in machine.numa_of]
        self._numa = _one_hot(self.numa)
        self._unknown_numa = np.array([float(node < 0) for node in self.numa])
        near = (levels != UNKNOWN) & (levels <= Level.PXB)
        self._switches = _one_hot([int(np.flatnonzero(row)[0]) for row in near])
        self.linked = machine.nvlinks > 0
        self._islands = _islands(self.linked)
        self._direct = machine.direct.astype(np.float64)
        # An unknown level counts as the farthest.
        plain = np.where(levels == UNKNOWN, np.int8(Level.SYS), levels)
        fabric = np.where(machine.direct > 0, np.int8(Level.NVL), np.int8(Level.NVS))
        self._levels = np.where(self.linked, fabric, plain).astype(np.float64)

    def rails_of(self, gpu: int) -> frozenset[int]:
        """Return the rails that a GPU reaches through its near NICs."""
        nics = (self._machine.nics[nic] for nic in self.near_nics[gpu])
        return frozenset(nic.rail for nic in nics if nic.rail is not None)

    # Constraints -------------------------------------------------------------------------

    def on_one_numa(self, sets: Rows) -> npt.NDArray[np.bool_]:
        """Return a mask of the sets that are known to be on one NUMA node."""
        one: npt.NDArray[np.bool_] = ((sets @ self._numa) > 0).sum(axis=1) == 1
        known: npt.NDArray[np.bool_] = sets @ self._unknown_numa == 0
        return one & known

    def within(self, sets: Rows, worst: Level) -> npt.NDArray[np.bool_]:
        """Return a mask of the sets in which no two GPUs are farther apart than ``worst``."""
        far = (self._levels > worst).astype(np.float64)
        result: npt.NDArray[np.bool_] = ((sets @ far) * sets).sum(axis=1) == 0
        return result

    # Criteria ----------------------------------------------------------------------------

    def nics(self, sets: Rows) -> npt.NDArray[np.float64]:
        """Prefer GPUs with a NIC at PXB or nearer, which can read their memory (GPUDirect)."""
        return -(sets @ self._without_nic)[:, None]

    def nic_distances(self, sets: Rows) -> npt.NDArray[np.float64]:
        """Prefer the nearest NICs; this decides when all or none can read the GPUs' memory."""
        return -(sets @ self.nic_distance)[:, None]

    def rails(self, wanted: frozenset[int]) -> Criterion:
        """Return the criterion that prefers GPUs with NICs on the wanted rails."""
        on_rails = np.array(
            [float(bool(self.rails_of(gpu) & wanted)) for gpu in range(len(self._machine))]
        )
        return lambda sets: (sets @ on_rails)[:, None]

    def nic_bandwidth(self, sets: Rows) -> npt.NDArray[np.float64]:
        """Prefer a high total rate of the distinct NICs near the GPUs."""
        used = (sets @ self._has_nic) > 0
        bandwidth: npt.NDArray[np.float64] = used @ self._rates
        return bandwidth[:, None]

    def numa_nodes(self, sets: Rows) -> npt.NDArray[np.float64]:
        """Prefer few NUMA nodes."""
        count: npt.NDArray[np.float64] = ((sets @ self._numa) > 0).sum(axis=1).astype(np.float64)
        return -count[:, None]

    def left(self, free: npt.NDArray[np.float64]) -> Criterion:
        """Return the criterion that prefers sets after which the other free GPUs stay together.

        It compares the sizes of the groups that remain, the largest first: GPUs connected by
        NVLink, then direct NVLinks, NUMA nodes, and PCIe switches.

        :param free: the free GPUs as a row.
        """

        def criterion(sets: Rows) -> npt.NDArray[np.float64]:
            rest = free - sets
            links = (rest @ self._direct * rest).sum(axis=1)[:, None]
            return np.concatenate(
                [
                    self._island_sizes(rest),
                    links,
                    _sizes(rest @ self._numa),
                    _sizes(rest @ self._switches),
                ],
                axis=1,
            )

        return criterion

    def locality(self, sets: Rows) -> npt.NDArray[np.float64]:
        """Prefer GPUs near each other: the nearest worst level, then the lowest sum of levels."""
        sums = (sets @ self._levels * sets).sum(axis=1)
        worst = np.zeros(len(sets))
        for level in np.unique(self._levels):
            here = ((sets @ (self._levels >= level).astype(np.float64)) * sets).sum(axis=1) > 0
            worst[here] = level
        return -np.stack([worst, sums], axis=1)

    def _island_sizes(self, rest: Rows) -> npt.NDArray[np.float64]:
        if self._islands is not None:
            return _sizes(rest @ self._islands)
        sizes = np.zeros((len(rest), len(self._machine)))
        masks = [sum(1 << int(other) for other in np.flatnonzero(row)) for row in self.linked]
        for row, members in enumerate(rest):
            left = sum(1 << int(gpu) for gpu in np.flatnonzero(members))
            found = sorted(_components(left, masks), reverse=True)
            sizes[row, : len(found)] = found
        return sizes


def _one_hot(groups: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the membership matrix, shape (members, groups); groups are in rising order."""
    names = sorted(set(groups))
    matrix = np.zeros((len(groups), len(names)))
    for member, group in enumerate(groups):
        matrix[member, names.index(group)] = 1.0
    return matrix


def _sizes(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return each row sorted in falling order."""
    result: npt.NDArray[np.float64] = -np.sort(-counts, axis=1)
    return result


def _islands(linked: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64] | None:
    """Return the membership matrix of NVLink groups, None if a group is not fully connected."""
    near = linked | np.eye(len(linked), dtype=np.bool_)
    first = [int(np.flatnonzero(row)[0]) for row in near]
    for gpu, row in enumerate(near):
        if (row != near[first[gpu]]).any():
            return None
    return _one_hot(first)


def _components(left: int, masks: Sequence[int]) -> list[int]:
    """Return the sizes of the connected components of a set of GPUs.

    :param left: the set, as a bit mask.
    :param masks: the neighbours of each GPU, as bit masks.
    """
    sizes = []
    while left:
        part = frontier = left & -left
        while frontier:
            low = frontier & -frontier
            frontier ^= low
            new = masks[low.bit_length() - 1] & left & ~part
            part |= new
            frontier |= new
        sizes.append(part.bit_count())
        left &= ~part
    return sizes
