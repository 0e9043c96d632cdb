"""VolcanoBinpack: pods go to the nodes that they fill most, as with Volcano's plugin binpack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from bayplan import Args, NodeView, Plugin, PodInfo, Reads, hookimpl
from bayplan.plugin.hookspecs import FloatColumn
from bayplan_plugins.queues.volcano.filling import Strategy, filling, requested

__all__ = ["VolcanoBinpack", "VolcanoBinpackArgs"]


class VolcanoBinpackArgs(Args):
    """Arguments of VolcanoBinpack: the weights of resources; others do not count.

    ``binpack.weight`` of Volcano's configuration is the weight of the plugin in the profile.
    """

    resources: Mapping[str, Annotated[int, Field(ge=0, le=10_000)]] = {"cpu": 1, "memory": 1}


class VolcanoBinpack(Plugin[VolcanoBinpackArgs]):
    """Prefer nodes that the pod's requests fill most, by the weighted mean over resources."""

    Args = VolcanoBinpackArgs
    reads = Reads.NODE | Reads.PODS
    by_spec = True

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Score every node by how full it would be."""
        weights = self.args.resources
        return filling(
            nodes,
            (
                (name, amount, Strategy(weights[name], packs=True))
                for name, amount in requested(pod).items()
                if name in weights
            ),
        )
