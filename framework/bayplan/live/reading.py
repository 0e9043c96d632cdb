"""What a process follows of a cluster, and the connection over which it does.

A server takes a while for its first lists. A process that asks for them first, and loads the rest
of itself meanwhile, is ready sooner: this module loads nothing that reading does not need.
"""

from __future__ import annotations

from pathlib import Path

from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.object_cache import ObjectCache
from bayplan.cluster.kubernetes.transport import Transport

__all__ = ["Reading"]

_NEW_ROLE_SECONDS = 5.0
"""How long a role that was just applied may take to work."""


class Reading:
    """A connection to an API server, and the objects that are followed there.

    :param kubeconfig: a kubeconfig's path; None for kubectl's, or the pod's service account.
    :param context: the kubeconfig's context; "" for its current one.
    """

    def __init__(self, kubeconfig: Path | None, context: str = "") -> None:
        self.credentials = Credentials(kubeconfig, context)
        self.transport = Transport(self.credentials, patience=_NEW_ROLE_SECONDS)
        self.cache = ObjectCache(self.transport)

    async def start(self) -> None:
        """Ask for every kind that is read as a whole.

        :raises InputError: when the credentials cannot be used.
        """
        await self.credentials.endpoint()
        await self.cache.start()

    async def close(self) -> None:
        """Follow nothing any more, and close the connection."""
        await self.cache.stop()
        await self.transport.close()
