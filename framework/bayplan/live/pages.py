"""All that a process shows over HTTP. It is loaded after the first decisions, as it takes long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from bayplan.api import Pod
from bayplan.cluster.kubernetes.object_cache import ObjectCache
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.live.address import Listener
from bayplan.live.loop import LiveScheduler
from bayplan.live.pod_token import AUDIENCE
from bayplan.live.token_reviews import TokenReviews
from bayplan.live.web import WebPage
from bayplan.page.feed import Feed
from bayplan.page.site import Site

if TYPE_CHECKING:
    from bayplan.live.bill_pages import Bills
    from bayplan.live.tenants import TenantAddress, TenantPage

__all__ = ["Pages"]


class Pages:
    """The pages of one process, for operators and, where asked for, for tenants.

    :param title: what they call the process.
    :param listener: listens already; its sockets are closed with the pages.
    :param ready: returns why the process is not ready, "" when it is.
    :param live: returns the scheduler's loop, None before all kinds are listed.
    :param bills: what costs are computed from, None to show none.
    :param tenants: where tenants are served, None for nowhere.
    """

    def __init__(
        self,
        title: str,
        listener: Listener,
        registry: CollectorRegistry,
        transport: Transport,
        cache: ObjectCache,
        ready: Callable[[], str],
        live: Callable[[], LiveScheduler | None],
        bills: Bills | None,
        tenants: TenantAddress | None,
    ) -> None:
        billed = {} if bills is None else {"bills": {"currency": bills.terms().prices.currency}}
        self._feed = Feed(title, wall=True, more=billed)
        reviews = TokenReviews(transport, AUDIENCE)
        self._web = WebPage(
            listener,
            registry,
            ready,
            live,
            lambda key: cache.get(Pod, key),
            lambda: cache.all(Pod),
            reviews.allows,
            reviews.allows_tenant,
            bills,
            Site(self._feed),
        )
        self.tenants = None if tenants is None else self._tenants(tenants, transport, bills)
        self._looking: asyncio.Task[None] | None = None

    def _tenants(
        self, address: TenantAddress, transport: Transport, bills: Bills | None
    ) -> TenantPage:
        from bayplan.live.tenants import TenantPage

        # Who guesses tokens there keeps nobody from the scheduler's own page.
        return TenantPage(address, TokenReviews(transport), self._feed, bills)

    async def start(self, live: LiveScheduler) -> None:
        """Follow a scheduler, and answer.

        :raises InputError: when the tenants' address or certificate cannot be used.
        """
        live.show(self._feed)
        self._looking = asyncio.create_task(self._feed.run())
        await self._web.start()
        if self.tenants is not None:
            await self.tenants.start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        await self._web.stop()
        if self.tenants is not None:
            await self.tenants.stop()
