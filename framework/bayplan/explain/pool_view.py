"""Compute pools for people and programs: one look at one of them, or at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bayplan.api import AiComputePool, ComputePool
from bayplan.errors import InputError, did_you_mean
from bayplan.explain.pools import FIELDS, PoolReport, pool_reports
from bayplan.explain.queue_text import print_queues
from bayplan.queues.devices import WHOLE, is_device
from bayplan.queues.gpus import is_gpu_count
from bayplan.queues.pools import PoolAmounts
from bayplan.queues.report import amount_text
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["PoolView"]


class PoolView(msgspec.Struct, frozen=True):
    """One look at the pools; without a ``name`` at all of them.

    ``as_json`` and ``print`` raise InputError when there is no such pool, or none at all.
    """

    name: str = ""

    page: ClassVar[str] = "/debug/pools"

    @property
    def asked(self) -> dict[str, str]:
        """The query of the page."""
        return {"name": self.name}

    def exists(self, scheduler: Scheduler) -> bool:
        """Tell whether there is any pool yet."""
        return any(map(scheduler.snapshot.objects, (ComputePool, AiComputePool)))

    def _found(self, scheduler: Scheduler) -> list[PoolReport]:
        reports = pool_reports(scheduler)
        if not reports:
            raise InputError("there is no ComputePool")
        if not self.name:
            return reports
        own = [one for one in reports if one.name == self.name]
        if not own:
            near = did_you_mean(self.name, {one.name for one in reports})
            raise InputError(f'there is no ComputePool "{self.name}"{near}')
        return own

    def as_json(self, scheduler: Scheduler) -> dict[str, Any]:
        """Return the pools as one JSON object, with the cluster's time in seconds as ``at``."""
        pools = [one.as_json() for one in self._found(scheduler)]
        return {"at": round(scheduler.now, 3), "pools": pools}

    def print(self, console: Console, scheduler: Scheduler) -> None:
        """Print the pools for people."""
        found = self._found(scheduler)
        if self.name:
            _print_pool(console, found[0])
        else:
            _print_pools(console, found)


def _print_pools(console: Console, reports: Sequence[PoolReport]) -> None:
    table = _table("pool", "type", "nodes", "resource")
    for one in reports:
        rows = _rows(one)
        for index, row in enumerate(rows or [("-", *("-" for _ in FIELDS))]):
            head = (escape(one.name), one.pool.spec.pool_type, str(len(one.account.nodes)))
            table.add_row(*(head if not index else ("", "", "")), *row)
    console.print(table)
    for one in reports:
        if one.problem:
            text = f'pool "{one.name}" takes no jobs: {one.problem}'
            console.print(Text(text, style="red"), soft_wrap=True)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name)
    for name in FIELDS:
        table.add_column(name, justify="right")
    return table


def _rows(one: PoolReport) -> list[tuple[str, ...]]:
    """Return a row for each device, or for CPU and memory where there is none."""
    amounts = {name: found for name, found in one.account.amounts.items() if found.total}
    devices = {n: found for n, found in amounts.items() if "/" in n or is_device(n)}
    shown = devices or {name: amounts[name] for name in ("cpu", "memory") if name in amounts}
    return [(name, *_texts(name, found)) for name, found in shown.items()]


def _texts(resource: str, amounts: PoolAmounts) -> list[str]:
    values = (getattr(amounts, name) for name in FIELDS)
    if is_device(resource) or is_gpu_count(resource):
        values = (value / WHOLE for value in values)
    return [amount_text(resource, value) if value else "-" for value in values]


def _print_pool(console: Console, one: PoolReport) -> None:
    spec = one.pool.spec
    selector = ",".join(f"{key}={value}" for key, value in spec.node_selector.items())
    nodes = f"nodes {selector}" if selector else "all nodes"
    devices = " ".join(spec.device_selector.split())
    about = [spec.pool_type, nodes, *([f"devices {devices}"] if devices else [])]
    text = f"[bold]{escape(one.name)}[/bold]  {escape(', '.join(about))}"
    console.print(text, soft_wrap=True)
    if one.problem:
        console.print(Text(f"  takes no jobs: {one.problem}", style="red"), soft_wrap=True)
    table = _table("resource", "model")
    for name, found in one.account.amounts.items():
        if found.total:
            table.add_row(name, "", *_texts(name, found))
        for (resource, model), part in sorted(one.account.models.items()):
            if resource == name:
                table.add_row("", escape(model), *_texts(name, part))
    console.print(table)
    console.print("\n[bold]Tenants[/bold]")
    print_queues(console, one.queues[1:])
