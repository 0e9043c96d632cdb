"""Queues for people, on a terminal or as plain text: a table, the tree, or one in detail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from bayplan.api.queue import UNLIMITED
from bayplan.explain.queues import QueueDetail
from bayplan.explain.text import resource_line
from bayplan.naming import counted, short_key
from bayplan.queues.report import PendingJob, QueueReport, ResourceReport, amount_text

__all__ = ["print_queue", "print_queues", "print_tree"]

_MANY_JOBS = 50
_AMOUNTS = ("used", "reserved", "fair", "deserved", "limit", "borrowed", "lent")
_TITLES = {"borrowed": "borrows", "lent": "lends"}


def print_queues(console: Console, reports: Sequence[QueueReport]) -> None:
    """Print a table of queues, with a row for each resource that matters to them."""
    several = len({one.system for one in reports}) > 1
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("queue", *(("system",) if several else ()), "state"):
        table.add_column(name)
    table.add_column("share", justify="right")
    table.add_column("resource")
    amounts = [name for name in _AMOUNTS if name != "reserved" or _reserve(reports)]
    for name in amounts:
        table.add_column(_TITLES.get(name, name), justify="right")
    for name in ("waiting", "running"):
        table.add_column(name, justify="right")
    for one in reports:
        _add_queue(table, one, several, amounts)
    console.print(table)
    _print_problems(console, reports)


def _reserve(reports: Iterable[QueueReport]) -> bool:
    """Tell whether jobs hold more of any queue than they use."""
    return any(f.reserved > f.used for one in reports for f in one.resources.values())


def _add_queue(table: Table, one: QueueReport, several: bool, amounts: Sequence[str]) -> None:
    system = (escape(one.system),) if several else ()
    head = (escape(one.name), *system, _state(one), share_text(one.share))
    counts = (str(one.waiting), str(one.running))
    rows = [(name, *_amounts(name, found, amounts)) for name, found in relevant(one).items()]
    rows = rows or [("-", *("-" for _ in amounts))]
    for index, row in enumerate(rows):
        first = index == 0
        cells = [*(head if first else [""] * len(head)), *row, *(counts if first else ("", ""))]
        table.add_row(*cells)


def _amounts(resource: str, found: ResourceReport, amounts: Iterable[str]) -> list[str]:
    texts = []
    for name in amounts:
        value: float = getattr(found, name)
        nothing = value == UNLIMITED or (not value and name in ("borrowed", "lent"))
        texts.append("-" if nothing else amount_text(resource, value))
    return texts


def _state(one: QueueReport) -> str:
    if one.problem:
        return "[red]Invalid[/red]"
    return one.state if one.state == "Open" else f"[yellow]{escape(one.state)}[/yellow]"


def share_text(share: float) -> str:
    """Return a share in percent; ∞ for a queue that may have nothing of what it uses."""
    return "∞" if share == UNLIMITED else f"{share:.0%}"


def relevant(one: QueueReport) -> Mapping[str, ResourceReport]:
    """Return the resources that a queue uses, asks for, or has rules about."""
    return {
        name: found
        for name, found in one.resources.items()
        if found.used
        or found.reserved
        or found.demand
        or found.guaranteed
        or found.deserved not in (0.0, UNLIMITED)
        or found.limit not in (0.0, UNLIMITED)
    }


def _print_problems(console: Console, reports: Iterable[QueueReport]) -> None:
    for one in reports:
        if one.problem:
            text = f'queue "{one.name}" cannot be used: {one.problem}'
            console.print(Text(text, style="red"), soft_wrap=True)
        for note in one.notes:
            console.print(Text(f'queue "{one.name}": {note}', style="yellow"), soft_wrap=True)


# Tree ------------------------------------------------------------------------------------


def print_tree(console: Console, reports: Sequence[QueueReport]) -> None:
    """Print the hierarchy of each system."""
    for system in dict.fromkeys(one.system for one in reports):
        own = [one for one in reports if one.system == system]
        root = Tree(f"[bold]{escape(system)}[/bold]  [dim]{escape(own[0].policy)}[/dim]")
        branches: dict[str, Tree] = {}
        for one in own:
            above = branches.get(one.parent, root)
            branches[one.name] = above.add(_tree_line(one))
        console.print(root)
    _print_problems(console, reports)


def _tree_line(one: QueueReport) -> str:
    used = ", ".join(
        f"{name} {amount_text(name, found.used)}/{_most(name, found)}"
        for name, found in relevant(one).items()
    )
    jobs = [f"{one.waiting} waiting"] if one.waiting else []
    jobs += [f"{one.running} running"] if one.running else []
    state = "" if _state(one) == "Open" else f"  {_state(one)}"
    tail = f"  {', '.join(jobs)}" if jobs else ""
    share = share_text(one.share)
    return f"[bold]{escape(one.name)}[/bold]{state}  {share}  [dim]{escape(used)}[/dim]{tail}"


def _most(resource: str, found: ResourceReport) -> str:
    """Return what the queue may have now, "-" where nothing bounds it."""
    return "-" if found.fair == UNLIMITED else amount_text(resource, found.fair)


# One queue -------------------------------------------------------------------------------


def print_queue(console: Console, detail: QueueDetail) -> None:
    """Print a queue, its ancestors and children, and its line."""
    queue = detail.queue
    about = f"{queue.system}, {queue.policy}"
    console.print(f"[bold]{escape(queue.name)}[/bold]  {_state(queue)}  {escape(about)}")
    facts = f"share {share_text(queue.share)}, weight {queue.weight:g}, priority {queue.priority}"
    console.print(f"  {facts}, {queue.waiting} waiting, {queue.running} running")
    if queue.problem:
        console.print(Text(f"  cannot be used: {queue.problem}", style="red"), soft_wrap=True)
    for note in queue.notes:
        console.print(Text(f"  {note}", style="yellow"), soft_wrap=True)
    for name, found in relevant(queue).items():
        console.print(Text(f"  {name}: {resource_line(name, found)}"), soft_wrap=True)
    for title, reports in (("Ancestors", detail.ancestors), ("Children", detail.children)):
        if reports:
            console.print(f"\n[bold]{title}[/bold]")
            print_queues(console, reports)
    _print_line(console, detail.line)


def _print_line(console: Console, line: Sequence[PendingJob]) -> None:
    if not line:
        console.print("\n[bold]Line[/bold]  no job waits")
        return
    console.print(f"\n[bold]Line[/bold]  {counted(len(line), 'job')}")
    width = max(len(short_key(job.job)) for job in line[:_MANY_JOBS])
    for job in line[:_MANY_JOBS]:
        place = f"{job.place}." if job.place else "held"
        facts = f"{counted(job.pods, 'pod')}, priority {job.priority}, waits {job.waits:.0f} s"
        console.print(Text(f"  {place:>4} {short_key(job.job):{width}}  {facts}"), soft_wrap=True)
        console.print(Text(f"       {job.why or 'not tried yet'}", style="dim"), soft_wrap=True)
    if len(line) > _MANY_JOBS:
        console.print(f"  and {len(line) - _MANY_JOBS} more; -o json has all")
