"""A scheduler that serves bills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.billing.bills import Records, at, offered, prices, used
from tests.live.stage import Stage

from bayplan.billing.prices import PriceList
from bayplan.billing.terms import BillingTerms
from bayplan.cluster.apiserver import Role, Rule
from bayplan.live.bill_pages import Bills

__all__ = ["HOURS", "TENANT", "TOKENS", "bills", "opened"]

HOURS = ("2026-01-05 10:00", "2026-01-05 14:00")


TENANT = Rule(
    api_groups=("bayplan.dev",),
    resources=("tenants",),
    verbs=("get",),
    resource_names=("lab",),
)


TOKENS = {
    "admin": None,
    "lab": Role("lab", (TENANT,)),
    "reader": Role("reader", (Rule(verbs=("get",), non_resource_urls=("/metrics",)),)),
    "costs": Role("costs", (Rule(verbs=("get",), non_resource_urls=("/allocation",)),)),
}


def bills(price_list: PriceList) -> Bills:
    source = Records(
        [used(*HOURS, 2), used(*HOURS, 3, tenant="rival", namespace="secret")],
        [offered("2026-01-01", None, 8)],
    )

    def now() -> int:
        return at("2026-02-01")

    book = BillingTerms(price_list)
    return Bills(lambda: book, source, now, now)


async def opened(made: Stage, folder: Path, **more: Any) -> str:
    app = await made.start(bills=bills(prices(folder)), **more)
    return app.listener.url.replace("0.0.0.0", "127.0.0.1")
