"""The GPU ledger in a cluster whose nodes come and go."""

from __future__ import annotations

from bayplan.api import Node
from bayplan.testing import Cluster, make_node, make_pod
from bayplan_plugins.gpus.ledger import GpuLedger


def test_nodes_that_are_gone_are_forgotten() -> None:
    cluster = Cluster([make_node("stays", gpu=8)])
    ledger = cluster.snapshot.shared(GpuLedger, GpuLedger)
    for index in range(60):
        cluster.add(make_node(f"n{index}", gpu=8))
        assert cluster.advance(1) is not None
        cluster.api.delete(Node, f"n{index}")
        cluster.advance(1)
    assert len(ledger._sources) < 20
    cluster.add(make_pod("a", gpu=8))
    assert cluster.advance(1)["a"] == "stays"
