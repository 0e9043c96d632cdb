"""An overview of a cluster for people: bars, and tables of nodes, queues and pending jobs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bayplan.api.node_state import NodeState
from bayplan.explain.overview import Amount, BusyQueue, FullNode, Overview, PendingJob
from bayplan.inputs.durations import duration_text
from bayplan.naming import counted, short_key
from bayplan.queues.report import amount_text

__all__ = ["drawn"]

_WIDTH = 24
_STATES = {
    NodeState.IN_SERVICE.value: "",
    NodeState.MAINTENANCE.value: "[yellow]cordoned[/yellow]",
    NodeState.FAILED.value: "[red]not ready[/red]",
}


def drawn(found: Overview, rows: int, named: str = "") -> RenderableType:
    """Return the picture of an overview.

    :param rows: the most rows of each table.
    :param named: what is before the counts, such as the time of day.
    """
    parts: list[RenderableType] = [_head(found, named), _bars(found.amounts)]
    if found.nodes:
        parts += ["", *_nodes(found, rows)]
    if found.queues:
        parts += ["", *_queues(found, rows)]
    if found.pending:
        parts += ["", *_pending(found, rows)]
    return Group(*parts)


def _head(found: Overview, named: str) -> Text:
    counts = [counted(found.node_count, "node")]
    counts += [f"[yellow]{found.maintenance} cordoned[/yellow]"] if found.maintenance else []
    counts += [f"[red]{found.failed} not ready[/red]"] if found.failed else []
    counts.append(f"{counted(found.placed, 'pod')} on nodes")
    if found.waiting:
        jobs = counted(found.waiting_jobs, "job")
        counts.append(f"[yellow]{found.waiting} pending of {jobs}[/yellow]")
    head = f"[bold]{escape(named)}[/bold]  " if named else ""
    return Text.from_markup(head + ", ".join(counts), emoji=False)


def _bars(amounts: Sequence[Amount]) -> Table:
    table = _table()
    for name in ("", "", "", ""):
        table.add_column(name)
    for one in amounts:
        if one.offered:
            table.add_row(escape(one.resource), _bar(one.part), f"{one.part:.0%}", _use(one))
    return table


def _bar(part: float) -> str:
    full = round(part * _WIDTH)
    colour = "green" if part < 0.75 else "yellow" if part < 0.95 else "red"
    return f"[{colour}]{'█' * full}[/{colour}][dim]{'░' * (_WIDTH - full)}[/dim]"


def _use(one: Amount) -> str:
    offered = "∞" if one.offered is None else amount_text(one.resource, one.offered)
    return f"{amount_text(one.resource, one.used)}/{offered}"


def _nodes(found: Overview, rows: int) -> list[RenderableType]:
    shown = found.nodes[:rows]
    names = [one.resource for one in shown[0].amounts]
    states = any(_STATES[one.state] for one in shown)
    table = _table("node", *(("state",) if states else ()), *names, "pods", right=(*names, "pods"))
    for one in shown:
        table.add_row(*_node(one, states))
    return [table, *_more(found.node_count - len(shown), "node")]


def _node(one: FullNode, states: bool) -> list[str]:
    state = [_STATES[one.state]] if states else []
    uses = [_use(amount) if amount.offered else "-" for amount in one.amounts]
    return [escape(one.name), *state, *uses, str(one.pods)]


def _queues(found: Overview, rows: int) -> list[RenderableType]:
    shown = found.queues[:rows]
    numbers = ("share", "used", "deserved", "waiting", "running")
    table = _table("queue", "state", "resource", *numbers, right=numbers)
    for one in shown:
        table.add_row(*_queue(one))
    return [table, *_more(found.queue_count - len(shown), "queue")]


def _queue(one: BusyQueue) -> list[str]:
    state = escape(one.state) if one.state == "Open" else f"[yellow]{escape(one.state)}[/yellow]"
    share = "∞" if one.share is None else f"{one.share:.0%}"
    cells = ["-", "-", "-"]
    if one.amount is not None:
        name = one.amount.resource
        deserved = "-" if one.deserved is None else amount_text(name, one.deserved)
        cells = [escape(name), _use(one.amount), deserved]
    resource, used, deserved = cells
    counts = [str(one.waiting), str(one.running)]
    return [escape(one.name), state, resource, share, used, deserved, *counts]


def _pending(found: Overview, rows: int) -> list[RenderableType]:
    shown = found.pending[:rows]
    table = _table("pending", "pods", "waits", "why", right=("pods", "waits"))
    for one in shown:
        table.add_row(*_job(one))
    return [table, *_more(found.waiting_jobs - len(shown), "job")]


def _job(one: PendingJob) -> list[str]:
    name = f"[yellow]{escape(short_key(one.job))}[/yellow]"
    return [name, str(one.pods), duration_text(one.waits), escape(one.why)]


def _table(*names: str, right: Sequence[str] = ()) -> Table:
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
        show_header=bool(names),
    )
    for name in names:
        table.add_column(escape(name), justify="right" if name in right else "left")
    return table


def _more(number: int, noun: str) -> list[RenderableType]:
    return [Text(f"and {counted(number, f'more {noun}')}", style="dim")] if number > 0 else []
