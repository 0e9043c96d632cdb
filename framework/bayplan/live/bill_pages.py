"""The pages of costs: /allocation in OpenCost's shape, /invoice and /usage.

They always want a bearer token, on loopback as well. A token that may get the path sees all
tenants. Any other sees one tenant, which it has to name, and only if it may get that tenant (see
``TokenReviews.allows_tenant``); whether there is such a tenant, it does not learn otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from aiohttp import web

from bayplan.billing.allocation import allocations
from bayplan.billing.allocation_query import parse_query
from bayplan.billing.exports import invoice_csv, invoice_html, invoice_json
from bayplan.billing.invoice import Invoice, make_invoice
from bayplan.billing.month import Month
from bayplan.billing.terms import BillingTerms, BillingTermsFiles
from bayplan.billing.usage_source import UsageSource
from bayplan.billing.usage_totals import usage_totals
from bayplan.errors import BayplanError
from bayplan.live.token_reviews import bearer_token

if TYPE_CHECKING:
    from bayplan.metering.journal import Journal

__all__ = ["BillPages", "Bills", "Computing", "costs", "hours"]

_AT_ONCE = 2
"""How many answers are computed at a time, beside the scheduler."""
_LONGEST_NAME = 253
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
}

T = TypeVar("T")
Allows = Callable[[str, str], Awaitable[bool]]


def _now() -> int:
    return int(time.time() * 1000)


class Bills(msgspec.Struct, frozen=True):
    """What costs are computed from.

    :param terms: returns the prices and accounts of now.
    :param now: returns milliseconds since 1970.
    :param known: returns until when usage is known, which may be before now.
    :param files: where the price list comes from, to be read again when they change.
    """

    terms: Callable[[], BillingTerms]
    source: UsageSource
    now: Callable[[], int]
    known: Callable[[], int]
    files: BillingTermsFiles | None = None

    @classmethod
    def of_journal(cls, files: BillingTermsFiles, journal: Journal) -> Bills:
        """Return what bills of a journal are computed from."""

        def known() -> int:
            return min(journal.heartbeat, _now())

        return cls(files.terms, journal, _now, known, files)


class Computing:
    """Computes answers beside the event loop, which schedules."""

    def __init__(self) -> None:
        self._beside = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="bills")

    def close(self) -> None:
        """Compute no more answers."""
        self._beside.shutdown(wait=False, cancel_futures=True)

    async def result(self, compute: Callable[[], T]) -> T:
        """Return what a function returns.

        :raises web.HTTPException: when it cannot be computed.
        """
        # An answer that nobody waits for anymore keeps its thread until it is done.
        try:
            return await asyncio.get_running_loop().run_in_executor(self._beside, compute)
        except ValueError as exc:
            raise web.HTTPBadRequest(text=f"{exc}\n") from None
        except BayplanError as exc:
            # Without the place: a tenant is not shown paths of this machine.
            message = getattr(exc, "message", str(exc))
            raise web.HTTPInternalServerError(text=f"{message}\n") from None


async def costs(
    computing: Computing, bills: Bills, asked: Mapping[str, str], tenant: str | None = None
) -> web.Response:
    """Return what was used at list price, in OpenCost's shape.

    :param asked: the parameters of the request.
    :param tenant: whose usage, None for all.
    """

    def compute() -> list[dict[str, Any]]:
        query = parse_query(asked, bills.now(), tenant)
        return allocations(query, bills.terms().prices, bills.source, bills.known())

    body = {"code": 200, "status": "success", "data": await computing.result(compute)}
    return web.json_response(body, headers=_HEADERS)


async def hours(
    computing: Computing, bills: Bills, asked: Mapping[str, str], tenant: str | None = None
) -> web.Response:
    """Return the hours of what was used, without prices; parameters as those of ``costs``."""

    def compute() -> list[dict[str, Any]]:
        query = parse_query({"aggregate": "tenant"} | dict(asked), bills.now(), tenant)
        return usage_totals(query, bills.source, bills.known())

    return web.json_response({"usage": await computing.result(compute)}, headers=_HEADERS)


class BillPages:
    """Serves the pages of costs.

    :param allows_path: whether a token may get a path, and so see all tenants.
    :param allows_tenant: whether a token may see a tenant.
    """

    PATHS = ("/allocation", "/allocation/compute", "/invoice", "/usage")

    def __init__(self, bills: Bills, allows_path: Allows, allows_tenant: Allows) -> None:
        self._bills = bills
        self._allows_path = allows_path
        self._allows_tenant = allows_tenant
        self._computing = Computing()

    def close(self) -> None:
        """Compute no more answers."""
        self._computing.close()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of all pages."""
        allocation, compute, invoice, usage = self.PATHS
        return [
            web.get(allocation, self._allocation),
            web.get(compute, self._allocation),
            web.get(invoice, self._invoice),
            web.get(usage, self._usage),
        ]

    async def _tenant(self, request: web.Request) -> str | None:
        """Return the tenant that an answer is limited to, None for all.

        :raises web.HTTPException: when the caller may not see it.
        """
        token = bearer_token(request)
        if not token:
            raise web.HTTPUnauthorized(text="a bearer token is needed\n")
        tenant = request.query.get("tenant", "")
        if len(tenant) > _LONGEST_NAME:
            raise web.HTTPBadRequest(text=f"expected a tenant of at most {_LONGEST_NAME} letters\n")
        if await self._allows_path(token, request.path):
            return tenant or None
        if tenant and await self._allows_tenant(token, tenant):
            return tenant
        raise web.HTTPForbidden(
            text=f"this token may not get {request.path}; "
            "name a tenant that it may see with ?tenant=NAME\n"
        )

    async def _allocation(self, request: web.Request) -> web.Response:
        tenant = await self._tenant(request)
        return await costs(self._computing, self._bills, request.query, tenant)

    async def _usage(self, request: web.Request) -> web.Response:
        tenant = await self._tenant(request)
        return await hours(self._computing, self._bills, request.query, tenant)

    async def _invoice(self, request: web.Request) -> web.Response:
        tenant = await self._tenant(request)
        if tenant is None:
            raise web.HTTPBadRequest(text="give ?tenant=NAME\n")
        bills = self._bills

        def compute() -> Invoice:
            now = bills.now()
            text = request.query.get("month")
            month = Month.at(now) if text is None else Month.parse(text)
            terms = bills.terms()
            account = terms.accounts.by_tenant.get(tenant) if terms.accounts else None
            return make_invoice(tenant, month, terms.prices, bills.source, bills.known(), account)

        return _response(await self._computing.result(compute), request.query.get("output", "json"))


def _response(invoice: Invoice, output: str) -> web.Response:
    if output == "html":
        page = invoice_html(invoice)
        return web.Response(text=page, content_type="text/html", headers=_HEADERS)
    if output == "csv":
        name = f'attachment; filename="invoice-{invoice.month}.csv"'
        headers = _HEADERS | {"Content-Disposition": name}
        return web.Response(text=invoice_csv(invoice), content_type="text/csv", headers=headers)
    if output == "json":
        return web.json_response(invoice_json(invoice), headers=_HEADERS)
    raise web.HTTPBadRequest(text="give ?output=json|csv|html\n")
