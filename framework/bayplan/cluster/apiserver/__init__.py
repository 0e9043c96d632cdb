"""The HTTP face of the embedded cluster: a Kubernetes API server on loopback."""

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
