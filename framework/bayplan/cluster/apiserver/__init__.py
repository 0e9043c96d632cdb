"""The embedded cluster as a Kubernetes API server, over HTTP on loopback."""

from bayplan.cluster.apiserver.assembly import start_all
from bayplan.cluster.apiserver.faults import ServerFaults, WatchFault
from bayplan.cluster.apiserver.rbac import Role, Rule
from bayplan.cluster.apiserver.server import ApiServer
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.wall_clock import WallClock
from bayplan.cluster.apiserver.watches import WatchSettings

__all__ = [
    "ApiServer",
    "Role",
    "Rule",
    "ServedCluster",
    "ServerFaults",
    "WallClock",
    "WatchFault",
    "WatchSettings",
    "start_all",
]
