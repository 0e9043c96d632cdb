"""Where a storage class can provision volumes, and from where they are reached."""

from __future__ import annotations

import numpy as np

from bayplan.api import CSIDriver, CSINode, CSIStorageCapacity, StorageClass
from bayplan.api.volumes import NO_PROVISIONER, ClaimNeeds
from bayplan.plugin.hookspecs import BoolColumn
from bayplan.snapshot import Snapshot
from bayplan_plugins.shared.volumes.labels import LabelRows

__all__ = ["Provisioning"]


class Provisioning:
    """Returns columns over all nodes."""

    def __init__(self, snapshot: Snapshot, labels: LabelRows) -> None:
        self._snapshot = snapshot
        self._labels = labels

    def is_possible(self, storage_class: str) -> BoolColumn:
        """Return the nodes for which the class provisions volumes."""
        found = self._snapshot.objects(StorageClass).get(storage_class)
        nodes = self._snapshot.view()
        if found is None or found.provisioner in ("", NO_PROVISIONER):
            return np.zeros(len(nodes), dtype=np.bool_)
        if not found.allowed_topologies:
            return np.ones(len(nodes), dtype=np.bool_)
        allowed = np.zeros(len(nodes), dtype=np.bool_)
        for term in found.allowed_topologies:
            here = np.ones(len(nodes), dtype=np.bool_)
            for requirement in term.match_label_expressions:
                here &= nodes.label_in(requirement.key, requirement.values)
            # A term without requirements allows nothing.
            allowed |= here if term.match_label_expressions else False
        return allowed

    def has_room(self, needs: ClaimNeeds) -> BoolColumn:
        """Return the nodes that reach enough storage, if the driver publishes its capacity."""
        everywhere = np.ones(len(self._snapshot.nodes), dtype=np.bool_)
        found = self._snapshot.objects(StorageClass).get(needs.storage_class)
        driver = self._snapshot.objects(CSIDriver).get(found.provisioner) if found else None
        if driver is None or not driver.spec.storage_capacity or not needs.size:
            return everywhere
        room = ~everywhere
        for capacity in self._snapshot.objects(CSIStorageCapacity).values():
            if capacity.storage_class_name != needs.storage_class:
                continue
            largest = capacity.largest
            if largest is None or largest.amount < needs.size or capacity.node_topology is None:
                continue
            room[self._labels.labelled(capacity.node_topology)] = True
        return room

    def reaches(self, storage_class: str, node: str) -> BoolColumn:
        """Return the nodes that will reach a volume provisioned for one node.

        These are the nodes with the same topology, by the driver's keys on that node; only the node
        itself if the driver has none.
        """
        table = self._snapshot.nodes
        reached = np.zeros(len(table), dtype=np.bool_)
        row = table.row_of.get(node)
        if row is None:
            return reached
        reached[row] = True
        found = self._snapshot.objects(StorageClass).get(storage_class)
        csi_node = self._snapshot.objects(CSINode).get(node)
        driver = csi_node.driver(found.provisioner) if csi_node and found else None
        labels = table.nodes[row].metadata.labels
        if driver is None or any(key not in labels for key in driver.topology_keys):
            return reached
        same = np.ones(len(table), dtype=np.bool_)
        for key in driver.topology_keys:
            same &= self._snapshot.view().label_in(key, (labels[key],))
        return same
