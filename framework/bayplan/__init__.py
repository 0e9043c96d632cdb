"""bayplan: a topology-aware scheduling framework for AI clusters.

What a plugin needs is here::

    from bayplan import Plugin, hookimpl
"""

from bayplan.errors import BayplanError, InputError, PluginError
from bayplan.events import ClusterEvent
from bayplan.hookspecs import hookimpl
from bayplan.plugin import (
    SKIP,
    Args,
    CycleState,
    DomainTrial,
    Handle,
    Normalize,
    Placement,
    Placements,
    Plugin,
    Reads,
    Refusal,
    Reject,
    Remedy,
    StateKey,
    Unit,
    Wait,
)
from bayplan.snapshot import NodeRow, NodeView, PodInfo

__all__ = [
    "SKIP",
    "Args",
    "BayplanError",
    "ClusterEvent",
    "CycleState",
    "DomainTrial",
    "Handle",
    "InputError",
    "NodeRow",
    "NodeView",
    "Normalize",
    "Placement",
    "Placements",
    "Plugin",
    "PluginError",
    "PodInfo",
    "Reads",
    "Refusal",
    "Reject",
    "Remedy",
    "StateKey",
    "Unit",
    "Wait",
    "hookimpl",
]
