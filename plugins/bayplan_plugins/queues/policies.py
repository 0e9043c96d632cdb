"""The policies of all systems, each active while the cluster has queues of its system."""

from __future__ import annotations

from bayplan import Args, Handle
from bayplan.dialects.koordinator.elastic_quota import KoordinatorQueueArgs
from bayplan_plugins.queues.kai.args import KaiQueueArgs
from bayplan_plugins.queues.kai.policy import KaiPolicy
from bayplan_plugins.queues.koordinator.policy import KoordinatorPolicy
from bayplan_plugins.queues.kueue.policy import KueueArgs, KueuePolicy
from bayplan_plugins.queues.plain.policy import PlainArgs
from bayplan_plugins.queues.plain.pools import PoolArgs, PoolPolicy
from bayplan_plugins.queues.plain.sources import config_map_queues, namespace_queues
from bayplan_plugins.queues.policy import Policy
from bayplan_plugins.queues.volcano.configuration import VolcanoArgs
from bayplan_plugins.queues.volcano.policy import VolcanoPolicy

__all__ = ["QueuesArgs", "make_policies"]


class QueuesArgs(Args):
    """Arguments of Queues: those of each system's policy.

    Namespaces with a ResourceQuota are queues only where ``namespaces`` is given. With ``kueue:
    null`` admission is left to Kueue's own controllers.
    """

    volcano: VolcanoArgs = VolcanoArgs()
    kai: KaiQueueArgs = KaiQueueArgs()
    koordinator: KoordinatorQueueArgs = KoordinatorQueueArgs()
    kueue: KueueArgs | None = KueueArgs()
    configmap: PlainArgs = PlainArgs()
    pools: PoolArgs = PoolArgs()
    namespaces: PlainArgs | None = None


def make_policies(args: QueuesArgs, handle: Handle) -> list[Policy]:
    """Return the policies of all systems."""
    policies: list[Policy] = [
        VolcanoPolicy(args.volcano, handle),
        KaiPolicy(args.kai, handle),
        KoordinatorPolicy(args.koordinator, handle),
        config_map_queues(args.configmap, handle),
        PoolPolicy(args.pools, handle),
        KueuePolicy(args.kueue, handle),
    ]
    if args.namespaces is not None:
        policies.append(namespace_queues(args.namespaces, handle))
    return policies
