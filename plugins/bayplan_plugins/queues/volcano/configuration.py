"""Volcano's own scheduler configuration, as arguments: actions, tiers of plugins and switches.

Names, spellings and defaults as in volcano-sh/volcano's ``volcano-scheduler.conf``. What is left
out has Volcano's built-in value; ``policy`` is a shorthand for a usual configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pydantic

from bayplan import Args
from bayplan.errors import did_you_mean

__all__ = ["ActionArgs", "PluginArgs", "TierArgs", "VolcanoArgs"]

_ACTIONS = (
    *("enqueue", "allocate", "backfill", "preempt", "reclaim"),
    *("gangpreempt", "gangreclaim", "shuffle"),
)
PLUGIN_NAMES = frozenset(
    (
        *("binpack", "capacity", "cdp", "conformance", "deviceshare", "drf", "extender", "gang"),
        *("network-topology-aware", "nodegroup", "nodeorder", "numaaware", "overcommit", "pdb"),
        *("predicates", "priority", "proportion", "rescheduling", "resource-strategy-fit"),
        *("resourcequota", "sla", "task-topology", "tdm", "usage"),
    )
)
"""The plugins of Volcano; those that choose nodes have no vote here."""
_PREEMPTING = ("reclaim", "preempt", "gangreclaim", "gangpreempt")


class PluginArgs(Args):
    """One plugin of a tier, with the switches of its hooks; what is not given is on.

    ``enableHierarchy`` alone is off unless given.
    """

    name: str
    arguments: Mapping[str, Any] = {}
    enable_job_order: bool = True
    enable_job_ready: bool = True
    enable_job_pipelined: bool = True
    enable_job_enqueued: bool = True
    enable_job_starving: bool = True
    enable_task_order: bool = True
    enable_preemptable: bool = True
    enable_reclaimable: bool = True
    enable_preemptive: bool = True
    enable_queue_order: bool = True
    enabled_cluster_order: bool = False
    enable_predicate: bool = True
    enable_best_node: bool = True
    enable_node_order: bool = True
    enable_target_job: bool = True
    enable_reserved_nodes: bool = True
    enabled_victim: bool = True
    enabled_overused: bool = True
    enabled_allocatable: bool = True
    enabled_hyper_node_order: bool = True
    enabled_sub_job_ready: bool = True
    enabled_sub_job_pipelined: bool = True
    enabled_sub_job_order: bool = True
    enabled_hyper_node_gradient: bool = True
    enable_hierarchy: bool = False

    @pydantic.field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in PLUGIN_NAMES:
            near = did_you_mean(value, sorted(PLUGIN_NAMES))
            raise ValueError(f'Volcano has no plugin "{value}"{near}')
        return value


class TierArgs(Args):
    """Plugins that decide together; a later tier decides where no plugin of this one does."""

    plugins: tuple[PluginArgs, ...] = ()


class ActionArgs(Args):
    """Arguments of one action, by its name."""

    name: str
    arguments: Mapping[str, Any] = {}


class VolcanoArgs(Args):
    """Arguments of Volcano's policy: its scheduler configuration.

    ``policy`` stands for a configuration with the plugin of that name, the actions that preempt,
    and the plugins that protect jobs; ``actions`` and ``tiers`` go before it.
    """

    policy: Literal["", "capacity", "proportion", "drf"] = ""
    actions: str = ""
    tiers: tuple[TierArgs, ...] = ()
    configurations: tuple[ActionArgs, ...] = ()
    metrics: Mapping[str, Any] = {}

    @pydantic.field_validator("actions")
    @classmethod
    def _known_actions(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",") if name.strip()]
        for name in names:
            if name not in _ACTIONS:
                raise ValueError(f'"{name}" is no action: expected some of {", ".join(_ACTIONS)}')
        return value

    @pydantic.model_validator(mode="after")
    def _no_two_hierarchies(self) -> VolcanoArgs:
        for tier in self.tiers:
            by_name = {one.name: one for one in tier.plugins}
            if "proportion" in by_name and "drf" in by_name and by_name["drf"].enable_hierarchy:
                raise ValueError("drf with enableHierarchy and proportion exclude each other")
        return self

    @property
    def action_names(self) -> Sequence[str]:
        """The actions, in order."""
        if self.actions:
            return [name.strip() for name in self.actions.split(",") if name.strip()]
        usual = ["enqueue", "allocate", "backfill"]
        return [*usual, "reclaim", "preempt"] if self.policy else usual

    @property
    def preempting_actions(self) -> Sequence[str]:
        """The actions that preempt, in order."""
        return [name for name in self.action_names if name in _PREEMPTING]

    @property
    def all_tiers(self) -> Sequence[Sequence[PluginArgs]]:
        """The plugins by tier: those given, those of the shorthand, or Volcano's own."""
        if self.tiers:
            return [tier.plugins for tier in self.tiers]
        if self.policy:
            # Jobs lose what is beyond their minimum first, then all that they have, so that the
            # gang plugin need not keep every job at its minimum for ever.
            gang = PluginArgs(name="gang", enable_preemptable=False, enable_reclaimable=False)
            others = _named("conformance", *_of_policy(self.policy))
            return [[*_named("priority"), gang, *others]]
        own = ("overcommit", "drf", "predicates", "proportion", "nodeorder")
        return [_named("priority", "gang", "conformance"), _named(*own)]


def _of_policy(policy: str) -> Sequence[str]:
    # With drf alone queues have no shares, so that nothing is reclaimed.
    return ("drf",) if policy == "drf" else ("overcommit", policy)


def _named(*names: str) -> Sequence[PluginArgs]:
    return [PluginArgs(name=name) for name in names]
