"""The HTTP face of the embedded cluster: a Kubernetes API server on loopback."""

from bayplan.cluster.apiserver.access import Role, Rule
from bayplan.cluster.apiserver.assembly import start_all
from bayplan.cluster.apiserver.faults import Faults, WatchFault
from bayplan.cluster.apiserver.server import ApiServer
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.wallclock import WallClock
from bayplan.cluster.apiserver.watches import WatchSettings

__all__ = [
    "ApiServer",
    "Faults",
    "Role",
    "Rule",
    "ServedCluster",
    "WallClock",
    "WatchFault",
    "WatchSettings",
    "start_all",
]
