"""The metrics of budgets: how much of its month's budget each tenant has spent, and will have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from bayplan.billing.budgets import Budgets, BudgetStatus
from bayplan.errors import BayplanError
from bayplan.live.gauges import Gauges

__all__ = ["BudgetMetrics"]

_log = logging.getLogger("bayplan.live")
_SPENT = "The part of its budget that a tenant has spent this month; 1 is all of it."
_FORECAST = (
    "The part of its budget that a tenant will have spent at the end of the month if what holds "
    "resources now goes on and nothing begins."
)


class BudgetMetrics(Collector):
    """Exports budgets as they were at the last scrape: what is new is computed after it.

    :param now: returns milliseconds since 1970.
    :param beside: computes beside the scheduler, by default in a thread of its own.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        budgets: Budgets,
        now: Callable[[], int],
        beside: Executor | None = None,
    ) -> None:
        self._budgets = budgets
        self._now = now
        self._beside = beside or ThreadPoolExecutor(1, thread_name_prefix="budgets")
        self._known: Sequence[BudgetStatus] = ()
        self._asked: Future[Sequence[BudgetStatus]] | None = None
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Yield nothing: without budgets there is nothing to export."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges of all budgets, and ask for new ones."""
        if self._asked is None or self._asked.done():
            self._take(self._asked)
            self._asked = self._beside.submit(lambda: list(self._budgets.all(self._now())))
        gauges = Gauges()
        for one in self._known:
            of = (one.tenant,)
            gauges.add("bayplan_budget_spent_ratio", _SPENT, ("tenant",), of, one.share)
            forecast = float(one.forecast / one.budget.per_month)
            gauges.add("bayplan_budget_forecast_ratio", _FORECAST, ("tenant",), of, forecast)
        return gauges.families()

    def _take(self, answer: Future[Sequence[BudgetStatus]] | None) -> None:
        if answer is None:
            return
        try:
            self._known = answer.result()
        except BayplanError as exc:
            _log.warning("budgets: %s", exc)
