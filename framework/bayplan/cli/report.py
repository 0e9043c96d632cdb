"""The result of a simulation as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from bayplan.errors import InputError
from bayplan.inputs.durations import duration_text
from bayplan.plugin.base import DomainState, DomainTrial
from bayplan.plugin.decision import Decision
from bayplan.simulation import Simulation, resource_use
from bayplan.simulation.queue_statistics import QueueStatistics, Statistics

__all__ = ["report_page", "write_report"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
  padding: 0 1rem; color: #1d2733 }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid #e3e8ee }
.bar { background: #e3e8ee; height: .7rem; width: 8rem; border-radius: 3px }
.bar i { background: #2f7d5b; display: block; height: 100%; border-radius: 3px }
.pod { background: #e4f2ea; border-radius: 3px; padding: 0 .4rem; margin-right: .3rem;
  display: inline-block }
.share { background: #f3f6f9; width: 16rem; height: 1.6rem; display: block }
.share path { fill: #2f7d5b }
td:first-child { white-space: nowrap }
.no { color: #8a5a00 } .dim { color: #6b7785 }
"""
_MOST_ROWS = 2000


def write_report(simulation: Simulation, path: Path) -> None:
    """Write the page to a file.

    :raises InputError: when the file cannot be written.
    """
    page = report_page(simulation)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), f"--report {path}") from None


def report_page(simulation: Simulation) -> str:
    """Return the result of a simulation as an HTML page."""
    placements, pending = simulation.placements(), simulation.pending()
    summary = (
        f"{len(placements)} of {len(simulation.pods())} pods have a node, "
        f"{len(pending)} pending, after {simulation.cluster.now:g} s of virtual time."
    )
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>bayplan</title>",
        f"<style>{_STYLE}</style><h1>bayplan simulate</h1><p>{summary}</p>",
        _nodes(simulation),
        _queues(simulation.queue_statistics()),
        _gangs(simulation),
        _pending(pending),
        _refused(simulation.refused()),
        _timeline(simulation),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _nodes(simulation: Simulation) -> str:
    simulation.scheduler.snapshot.sync()
    table = simulation.scheduler.snapshot.nodes
    rows = []
    for row, name in enumerate(table.names[:_MOST_ROWS]):
        offered, used = table.allocatable("cpu")[row], table.used("cpu")[row]
        share = min(100.0, 100.0 * used / offered) if offered else 0.0
        pods = "".join(f"<span class=pod>{escape(key)}</span>" for key in sorted(table.pods[row]))
        bar = f"<div class=bar><i style='width:{share:.0f}%'></i></div>"
        amounts = ", ".join(f"{r} {u}/{o}" for r, u, o in resource_use(table, row))
        rows.append(_row(escape(name), bar, escape(amounts), pods))
    return _table("Nodes", ("node", "cpu", "used", "pods"), rows, len(table))


def _queues(statistics: Statistics | None) -> str:
    """Return the queues with their shares over time, waits and evictions; "" without queues."""
    if statistics is None:
        return ""
    queues = statistics.queues
    most = max((share for one in queues for _, share in one.share), default=0.0)
    rows = [_queue(one, statistics.until, most) for one in queues[:_MOST_ROWS]]
    heads = ("queue", "share over time", "mean", "of deserved", "started", "waiting")
    waits = ("wait p50", "p95", "max", "evicted")
    table = _table("Queues", (*heads, *waits), rows, len(queues))
    used = ", ".join(f"{name} {part:.0%}" for name, part in statistics.utilisation.items())
    fair = "" if statistics.jain is None else f"; fairness {statistics.jain:.2f} (Jain)"
    text = (
        f"Over {duration_text(statistics.until)}; the highest share is {most:.0%} of the cluster. "
        f"Cluster used: {used}{fair}."
    )
    return f"{table}<p class=dim>{escape(text)}</p>"


def _queue(one: QueueStatistics, until: float, most: float) -> str:
    waits = one.waits
    times = (waits.p50, waits.p95, waits.longest)
    return _row(
        escape(one.name),
        _share(one.share, until, most),
        f"{one.mean_share:.0%}",
        "-" if one.utilisation is None else f"{one.utilisation:.0%}",
        str(waits.started),
        str(waits.waiting),
        *("-" if wait is None else duration_text(wait) for wait in times),
        str(one.evictions),
    )


def _share(series: Sequence[tuple[float, float]], until: float, most: float) -> str:
    """Return a picture of a share over time, from 0 to ``until`` and up to ``most``."""
    if until <= 0 or most <= 0:
        return ""
    path, last = "M0 100", 0.0
    for at, share in series:
        x = 1000 * at / until
        path += f"L{x:.1f} {100 - last:.1f}L{x:.1f} {100 - 100 * share / most:.1f}"
        last = 100 * share / most
    path += f"L1000 {100 - last:.1f}L1000 100Z"
    return (
        f"<svg class=share viewBox='0 0 1000 100' preserveAspectRatio=none><path d='{path}'/></svg>"
    )


def _gangs(simulation: Simulation) -> str:
    rows = [
        row
        for decision in simulation.scheduler.decisions.values()
        if decision.domains
        for row in _domains(decision)
    ]
    if not rows:
        return ""
    return _table("Domains of gangs", ("gang", "domain", "slots", ""), rows, len(rows))


def _domains(decision: Decision) -> list[str]:
    return [
        _row(
            escape(decision.unit),
            escape(trial.name),
            "" if trial.offered is None else str(trial.offered),
            _verdict(trial),
        )
        for trial in decision.domains
    ]


def _verdict(trial: DomainTrial) -> str:
    if trial.state is DomainState.CHOSEN:
        return "<b>chosen</b>"
    return escape(trial.refusal or trial.state.value)


def _pending(pending: dict[str, tuple[str, str | None]]) -> str:
    rows = [
        _row(escape(key), f"<span class=no>{escape(message)}</span>")
        for key, (message, _) in list(pending.items())[:_MOST_ROWS]
    ]
    return _table("Pending", ("pod", "why"), rows, len(pending)) if rows else ""


def _refused(refused: dict[str, str]) -> str:
    rows = [
        _row(escape(name), f"<span class=no>{escape(message)}</span>")
        for name, message in list(refused.items())[:_MOST_ROWS]
    ]
    return _table("Refused", ("object", "why"), rows, len(refused)) if rows else ""


def _timeline(simulation: Simulation) -> str:
    entries = simulation.timeline()
    rows = [
        _row(f"{e.at:g} s", escape(e.kind), escape(e.pod), escape(e.node), escape(e.message))
        for e in entries[:_MOST_ROWS]
    ]
    return _table("Timeline", ("at", "", "pod", "node", "message"), rows, len(entries))


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _table(title: str, heads: tuple[str, ...], rows: list[str], total: int) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    more = f"<p class=dim>… {total - len(rows)} more</p>" if total > len(rows) else ""
    return f"<h2>{title}</h2><table><tr>{head}</tr>{''.join(rows)}</table>{more}"
