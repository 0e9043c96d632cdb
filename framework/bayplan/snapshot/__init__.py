"""What the scheduler knows about the cluster: nodes as columns, pods on nodes, trials.

Plugins read nodes and placed pods from here. Every change that a cycle makes here goes through an
undo log, so that a trial leaves no trace.
"""

from bayplan.snapshot.affinity import AffinityTerm, compile_affinity_term
from bayplan.snapshot.listeners import Subscription
from bayplan.snapshot.node_problems import NodeProblem, problem_lines
from bayplan.snapshot.nodes import LabelColumn, NodeRow, NodeTable, NodeView
from bayplan.snapshot.podindex import PodIndex, PodQuery
from bayplan.snapshot.pods import PodInfo, SpecFacts
from bayplan.snapshot.snapshot import Snapshot, Trial

__all__ = [
    "AffinityTerm",
    "LabelColumn",
    "NodeProblem",
    "NodeRow",
    "NodeTable",
    "NodeView",
    "PodIndex",
    "PodInfo",
    "PodQuery",
    "Snapshot",
    "SpecFacts",
    "Subscription",
    "Trial",
    "compile_affinity_term",
    "problem_lines",
]
