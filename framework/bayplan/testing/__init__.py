"""For plugin authors: build a cluster, run one plugin or a whole cycle, check the contract.

from bayplan.testing import Cluster, check_plugin, make_node, make_pod, refusals

def test_refuses_small_nodes():
    cluster = Cluster([make_node("small", cpu="2"), make_node("large", cpu="64")])
    assert refusals(MyPlugin, make_pod("p"), cluster) == {"small": "too small"}

def test_keeps_the_contract():
    check_plugin(MyPlugin)
"""

from bayplan.testing.builders import (
    make_gang,
    make_network,
    make_node,
    make_object,
    make_pod,
    make_pods_of,
)
from bayplan.testing.cluster import Cluster, assert_pending, assert_placed, refusals, scores
from bayplan.testing.contract_check import PluginCheckError, check_plugin
from bayplan.testing.random_clusters import random_cluster, random_pod

__all__ = [
    "Cluster",
    "PluginCheckError",
    "assert_pending",
    "assert_placed",
    "check_plugin",
    "make_gang",
    "make_network",
    "make_node",
    "make_object",
    "make_pod",
    "make_pods_of",
    "random_cluster",
    "random_pod",
    "refusals",
    "scores",
]
