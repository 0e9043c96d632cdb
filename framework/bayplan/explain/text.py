"""An explanation for people, on a terminal or as plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bayplan.api.queue import UNLIMITED
from bayplan.explain.explanation import (
    Explanation,
    JobExplanation,
    counted,
    domain_lines,
    short_key,
)
from bayplan.explain.options import Suggestion
from bayplan.plugin.base import PreemptionTrial
from bayplan.queues.held_jobs import WORKLOAD
from bayplan.queues.report import QueuePosition, ResourceReport, amount_text

__all__ = ["print_explanation", "print_job", "resource_line"]

_MANY_PODS = 8
_MANY_DOMAINS = 12
_MANY_NODES = 12


def print_explanation(console: Console, about: Explanation) -> None:
    """Print why a pod has its node, or why it has none and what would help."""
    if about.of > 1:
        _print_pods(console, about)
    _print_head(console, about)
    if about.cost:
        _line(console, 2, f"costs at list price: {about.cost}")
    if about.state in ("Running", "Ended") and not about.node:
        return
    if about.now:
        _line(console, 2, _as_of_now(about))
    if about.domain and about.domains:
        _heading(console, "Domain", f"of {about.unit}")
        for line in domain_lines(about.domains, about.members):
            _line(console, 2, line)
    if about.line is not None:
        _print_line(console, about.line)
    if about.state == "Pending":
        _print_refusals(console, about)
        if about.domains:
            _heading(console, "Domains")
            for line in domain_lines(about.domains, about.members):
                _line(console, 2, line)
        if about.bottleneck:
            _heading(console, "Bottleneck", about.bottleneck)
    if about.unread:
        _heading(console, "Could not be read")
        for text in about.unread:
            _line(console, 2, text)
    _print_preemption(console, about)
    for note in about.notes:
        _line(console, 2, note)
    if about.state == "Pending":
        _print_help(console, about)
    else:
        _print_refusals(console, about)
        _print_finalists(console, about)


def _print_pods(console: Console, about: Explanation) -> None:
    """Print where the pods are that the explained one stands for."""
    found = about.placement
    if found is None:
        console.print(f"the first of {counted(about.of, 'pod')}, those without a node first:")
        return
    inside = f" in {found.domain}" if found.domain else ""
    if found.placed < found.pods:
        said = f"{found.placed} of {counted(found.pods, 'pod')} have a node{inside}"
    elif found.together:
        verb = "would be" if about.simulated else "were"
        said = f"{counted(found.pods, 'pod')} {verb} placed together{inside}"
    else:
        said = f"all {counted(found.pods, 'pod')} have a node{inside}"
    console.print(escape(said))
    single = all(count == 1 for count in found.nodes.values())
    nodes = [name if single else f"{name} ({count})" for name, count in found.nodes.items()]
    hidden = len(nodes) - _MANY_NODES
    more = f" and {hidden} more nodes" if hidden > 1 else ""
    _line(console, 2, f"on {', '.join(nodes[:_MANY_NODES] if more else nodes)}{more}")
    pending = ", those without a node first" if found.placed < found.pods else ""
    console.print(f"the first of them{pending}:")


def print_job(console: Console, about: JobExplanation) -> None:
    """Print why a job has no pods yet, and what would admit it."""
    pods = ": it has no pods yet"
    if about.state == "Finished":
        pods = ""
    elif about.kind == WORKLOAD:
        pods = ": its pods come from a controller that bayplan does not follow"
    name = f"{about.kind} [bold]{escape(about.job)}[/bold]"
    colour = "green" if about.state in ("Admitted", "Finished") else "yellow"
    console.print(f"{name} is [{colour}]{about.state.lower()}[/{colour}]{pods}")
    if about.why:
        _line(console, 2, about.why)
    if about.line is not None:
        _print_line(console, about.line)
    if about.cost:
        _line(console, 2, f"will cost at list price: {about.cost}")
    if about.suggestions:
        _heading(console, "What would help")
    for one in about.suggestions:
        _line(console, 2, _suggestion("it", one))


def _line(console: Console, indent: int, text: str, style: str = "") -> None:
    """Print a line whose continuation keeps its indent."""
    for line in Text(text, style=style).wrap(console, max(20, console.width - indent)):
        line.rstrip()
        console.print(Text(" " * indent).append_text(line), soft_wrap=True)


def _heading(console: Console, title: str, more: str = "") -> None:
    tail = f"  {escape(more)}" if more else ""
    console.print(f"\n[bold]{title}[/bold]{tail}")


def _print_head(console: Console, about: Explanation) -> None:
    pod, node = f"[bold]{escape(about.pod)}[/bold]", escape(about.node)
    where = f"[bold green]{node}[/bold green]"
    if about.state == "Ended":
        place = f"; it was on {where}" if node else ""
        console.print(f"{pod} has ended ({about.phase}){place}")
    elif about.state == "Running":
        console.print(f"{pod} {'would be' if about.simulated else 'is'} on {where}")
        if not about.node_exists:
            _line(console, 2, "There is no such node.")
    elif about.awaited:
        console.print(f"{pod} is [yellow]waiting[/yellow] for its devices on {where}")
        for text in about.awaited:
            _line(console, 2, f"waits for {text}")
    elif about.state == "Waiting":
        plugins = " and ".join(about.waits_for) or "a plugin"
        console.print(f"{pod} is [yellow]waiting[/yellow] at Permit for {escape(plugins)}")
        _line(
            console,
            2,
            f"it is assumed on {about.node} until {round(about.waits_until or 0.0, 1):g} s at most",
        )
        _line(console, 2, about.message)
    else:
        console.print(f"{pod} is [yellow]pending[/yellow]")
        for text in filter(None, (about.why, about.message)):
            _line(console, 2, text)
        if about.nominated:
            _line(console, 2, f"nominated: {about.nominated}")
    if about.decided is not None:
        _line(console, 2, f"decided at {round(about.decided, 1):g} s in cycle {about.cycle}")


def _print_line(console: Console, line: QueuePosition) -> None:
    """Print the job's place in its queue, what the queue has, and what would admit the job."""
    queue = line.queue
    _heading(console, "Queue", f"{queue.name} ({queue.system}, {queue.policy})")
    if line.place:
        _line(console, 2, f"place {line.place} of {line.length} in the line")
    if line.ahead:
        _line(console, 2, f"after {_named(line.ahead)}")
    for name, one in queue.resources.items():
        if one.used or one.reserved or one.demand or one.deserved not in (0.0, UNLIMITED):
            _line(console, 2, f"{name}: {resource_line(name, one)}", "dim")
    if line.refusal:
        _line(console, 2, f"held back: {line.refusal}")
    for text in (*line.reclaims, *line.notes):
        _line(console, 2, text)
    for text in line.waits_for:
        _line(console, 2, f"waits for {text}")


def resource_line(name: str, one: ResourceReport) -> str:
    """Return what a queue has of one resource, in words."""

    def text(value: float) -> str:
        return amount_text(name, value)

    parts = [f"uses {text(one.used)} of {text(one.fair)} that it may have now"]
    if one.reserved > one.used:
        parts.append(f"reserves {text(one.reserved)}")
    parts.append(f"deserves {text(one.deserved)}")
    if one.borrowed:
        parts.append(f"borrows {text(one.borrowed)}")
    if one.lent:
        parts.append(f"lends {text(one.lent)}")
    if one.limit != UNLIMITED:
        parts.append(f"limit {text(one.limit)}")
    parts.append(f"asks for {text(one.demand)}")
    return ", ".join(parts)


def _as_of_now(about: Explanation) -> str:
    if about.decided is None:
        return "This process did not decide it. If it were decided now:"
    return "The scores of that time are not kept. If it were decided now:"


def _print_preemption(console: Console, about: Explanation) -> None:
    """Print what preempting pods would cost in each domain, the chosen one first."""
    if not about.preemption:
        return
    _heading(console, "Preemption")
    for trial in about.preemption[:_MANY_DOMAINS]:
        _line(console, 2, _preemption_line(trial))
    hidden = len(about.preemption) - _MANY_DOMAINS
    if hidden > 0:
        _line(console, 2, f"… {hidden} more")


def _preemption_line(trial: PreemptionTrial) -> str:
    if trial.refusal is not None:
        return f"not in {trial.domain}: {trial.refusal}"
    verb = "taken" if trial.chosen else "not taken"
    return f"{verb:9} {trial.domain}: would evict {_named(trial.victims)} ({trial.cost})"


def _named(keys: Sequence[str]) -> str:
    names = ", ".join(short_key(key) for key in keys[:_MANY_PODS])
    return f"{names} and {len(keys) - _MANY_PODS} more" if len(keys) > _MANY_PODS else names


def _print_refusals(console: Console, about: Explanation) -> None:
    if not about.filtered and about.pre_filter is None:
        return
    _heading(console, "Filtered", counted(about.nodes, "node"))
    if about.pre_filter is not None:
        plugin, reason = about.pre_filter
        _line(console, 2, f"all by {plugin}: {reason}")
    for one in about.filtered:
        _line(console, 2, f"{one.plugin} removed {one.removed}, {one.left} left")
        for count, reason in one.reasons:
            _line(console, 4, f"{count} {reason}", "dim")


def _print_finalists(console: Console, about: Explanation) -> None:
    if not about.finalists:
        return
    _heading(console, "Finalists", f"of {counted(about.feasible, 'feasible node')}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("  node")
    table.add_column("total", justify="right")
    plugins = list(about.finalists[0].scores)
    for plugin in plugins:
        table.add_column(plugin, justify="right", style="dim")
    for finalist in about.finalists:
        mark = "→ " if finalist.node == about.node else "  "
        scores = [f"{finalist.scores[plugin]:g}" for plugin in plugins]
        table.add_row(f"{mark}{finalist.node}", f"{finalist.total:g}", *scores)
    console.print(table)
    _line(console, 2, _rule(about), "dim")


def _rule(about: Explanation) -> str:
    """Say how the node was chosen among the finalists."""
    if about.node not in [finalist.node for finalist in about.finalists]:
        total = f"{about.total:g}" if about.total > float("-inf") else "no total: it is refused"
        if about.now:
            return f"{about.node} has {total}"
        return f"{about.node} has {total}; the gang's plan put it there"
    if about.domain and about.gang:
        return "Inside the domain the plan counts first, then the total."
    return "The highest total wins; among equals, the first name."


def _print_help(console: Console, about: Explanation) -> None:
    if about.broken_plugin:
        _heading(console, "What would help")
        _line(console, 2, f"fixing the plugin: {about.broken_plugin}")
        return
    _heading(console, "What would help")
    if not about.suggestions:
        _line(console, 2, "no change that bayplan knows of")
    for one in about.suggestions:
        _line(console, 2, _suggestion("the gang" if about.gang else "it", one))


def _suggestion(subject: str, one: Suggestion) -> str:
    """Return a change in a sentence about its subject."""
    # Where the text names them already, they are not named again.
    reported = set(re.findall(r"[\w./-]+", one.text))
    named = any(short_key(key) in reported for key in one.ends)
    cost = f"; {_named(one.ends)} would have to go" if one.ends and not named else ""
    return f"{subject} {one.text}{cost}"
