"""bayplan: a topology-aware scheduling framework for AI clusters.

What a plugin needs is here, in ``bayplan.api`` and ``bayplan.testing``::

    from bayplan import Plugin, hookimpl

Names are imported when first used, so that ``bayplan --help`` does not load the scheduler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayplan.cluster.protocol import Event, PatchAnnotations, PatchStatus
    from bayplan.errors import BayplanError, InputError, PluginError
    from bayplan.gangs.directory import GangMembers
    from bayplan.plugin.base import (
        LATER,
        NOTES,
        SKIP,
        SUPPOSED,
        Args,
        CycleState,
        DeviceOpinion,
        DomainState,
        DomainTrial,
        Eviction,
        Later,
        NodeRefusals,
        NodeRequest,
        Normalize,
        Overdue,
        Placement,
        Placements,
        Preemption,
        PreemptionTrial,
        PreFilterResult,
        Preparation,
        Reads,
        Refusal,
        Reject,
        Remedy,
        Skip,
        StateKey,
        Supposed,
        Unit,
        Wait,
    )
    from bayplan.plugin.devices import NodeDevices
    from bayplan.plugin.events import ClusterEvent
    from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn, hookimpl
    from bayplan.plugin.plugin import Handle, Plugin
    from bayplan.plugin.queueing import Queueing
    from bayplan.snapshot import NodeRow, NodeView, PodInfo
    from bayplan.topology.network.tree import NetworkTree

__all__ = [
    "LATER",
    "NOTES",
    "SKIP",
    "SUPPOSED",
    "Args",
    "BayplanError",
    "BoolColumn",
    "ClusterEvent",
    "CycleState",
    "DeviceOpinion",
    "DomainState",
    "DomainTrial",
    "Event",
    "Eviction",
    "FloatColumn",
    "GangMembers",
    "Handle",
    "InputError",
    "IntColumn",
    "Later",
    "NetworkTree",
    "NodeDevices",
    "NodeRefusals",
    "NodeRequest",
    "NodeRow",
    "NodeView",
    "Normalize",
    "Overdue",
    "PatchAnnotations",
    "PatchStatus",
    "Placement",
    "Placements",
    "Plugin",
    "PluginError",
    "PodInfo",
    "PreFilterResult",
    "Preemption",
    "PreemptionTrial",
    "Preparation",
    "Queueing",
    "Reads",
    "Refusal",
    "Reject",
    "Remedy",
    "Skip",
    "StateKey",
    "Supposed",
    "Unit",
    "Wait",
    "hookimpl",
]

_HOMES = (
    "bayplan.errors",
    "bayplan.plugin.events",
    "bayplan.plugin.hookspecs",
    "bayplan.plugin.base",
    "bayplan.plugin.plugin",
    "bayplan.snapshot",
    "bayplan.plugin.queueing",
    "bayplan.plugin.devices",
    "bayplan.gangs.directory",
    "bayplan.cluster.protocol",
    "bayplan.topology.network.tree",
)


def __getattr__(name: str) -> object:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(home)
            if name in module.__all__:
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
