"""Print a simulation for people: the tree of nodes, gangs, devices, and pending pods."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from bayplan.api.gpus import named_gpus
from bayplan.cli.goodput import print_goodput
from bayplan.cli.queue_statistics import print_statistics
from bayplan.dialects.koordinator.reservations import reservation_of
from bayplan.explain.claims import claim_rows
from bayplan.explain.explanation import domain_lines
from bayplan.naming import counted, listed, short_key
from bayplan.plugin.decision import Decision
from bayplan.queues.held_jobs import HeldJob
from bayplan.simulation import Simulation, resource_use
from bayplan.snapshot import Snapshot
from bayplan.snapshot.networks import Networks
from bayplan.topology.network.tree import Domain

if TYPE_CHECKING:
    from bayplan.simulation.autoscaler import Autoscaler

__all__ = ["print_simulation", "stdout"]

_MANY_NODES = 64
"""In a larger cluster, only nodes with pods are shown."""
_MANY_PODS = 8
_MANY_PENDING = 20
_MANY_DOMAINS = 12
_MANY_CLAIMS = 32
_MANY_GANGS = 4
_BANDWIDTH = "gpu.topology/bandwidth"
_RELAXED = "gpu.topology/relaxed"


def stdout() -> Console:
    """Return a console on standard output; in a pipe, its lines are not cut."""
    return Console(width=None if sys.stdout.isatty() else 4096, highlight=False, emoji=False)


# simulate --------------------------------------------------------------------------------


def print_simulation(simulation: Simulation) -> None:
    """Print the tree of nodes and pods, why gangs are where they are, and the pending pods."""
    console = stdout()
    placements, pending = simulation.placements(), simulation.pending()
    snapshot = simulation.scheduler.snapshot
    snapshot.sync()
    console.print(_ClusterTree(simulation, placements).tree())
    decisions = simulation.scheduler.decisions.values()
    gangs = [d for d in decisions if d.parts or (d.domain and d.domains)]
    if gangs:
        console.print("\n[bold]Why there[/bold]")
        for decision in gangs:
            _print_domains(console, decision)
    _print_claims(console, simulation)
    _print_gpus(console, simulation)
    statistics = simulation.queue_statistics()
    if statistics is not None:
        print_statistics(console, statistics)
    if pending:
        console.print(f"\n[bold]Pending ({len(pending)})[/bold]")
        _print_pending(console, pending)
    held = simulation.held_jobs()
    if held:
        console.print(f"\n[bold]Held back ({len(held)})[/bold]  jobs without pods, until admitted")
        _print_held(console, held)
    refused = simulation.refused()
    if refused:
        console.print(f"\n[bold]Refused ({len(refused)})[/bold]  an API server would refuse these")
        _print_refused(console, refused)
    if simulation.autoscaler is not None:
        _print_autoscaling(console, simulation.autoscaler, simulation.cluster.now)
    if simulation.fault_play is not None:
        print_goodput(console, simulation.fault_play.report())
    seconds = simulation.wall_seconds
    console.print(
        f"\n{len(placements)} of {len(simulation.pods())} pods have a node; {_held_text(held)}"
        f"{counted(simulation.scheduler.statistics.cycles, 'cycle')} in {seconds:.3f} s, "
        f"{simulation.cluster.now:g} s of virtual time"
    )
    unplaced = [*pending, *map(str, held)]
    if unplaced:
        console.print(f"[dim]bayplan explain {unplaced[0]} -f ... shows what would help[/dim]")


def _print_autoscaling(console: Console, autoscaler: Autoscaler, now: float) -> None:
    """Print what was bought and removed of each node group, and what that cost."""
    console.print("\n[bold]Node groups[/bold]")
    table = Table(box=None, pad_edge=False)
    for name in ("group", "nodes", "bought", "removed", "node hours", "cost"):
        table.add_column(name, justify="left" if name == "group" else "right")
    for use in autoscaler.uses.values():
        table.add_row(
            use.group.name,
            f"{len(use.nodes)} of {use.group.most}",
            str(use.bought),
            str(use.removed),
            f"{use.node_hours(now):.2f}",
            f"{use.cost(now):.2f}",
        )
    console.print(table)
    console.print(f"{autoscaler.cost(now):.2f} in all")


def _held_text(held: Sequence[HeldJob]) -> str:
    """Return how many jobs are held back, and with how many pods."""
    if not held:
        return ""
    pods = counted(sum(job.pods for job in held), "pod")
    return (
        f"{counted(len(held), 'job')} with {pods} {'is' if len(held) == 1 else 'are'} held back; "
    )


def _print_held(console: Console, held: Sequence[HeldJob]) -> None:
    by_reason: dict[str, list[HeldJob]] = {}
    for job in held:
        by_reason.setdefault(job.why, []).append(job)
    for why, jobs in list(by_reason.items())[:_MANY_PENDING]:
        names = (f"{short_key(job.key)} ({counted(job.pods, 'pod')})" for job in jobs)
        console.print(f"  [yellow]{escape(listed(names, _MANY_PODS))}[/yellow]")
        console.print(f"    {escape(why)}")
    if len(by_reason) > _MANY_PENDING:
        console.print(f"  … {len(by_reason) - _MANY_PENDING} more reasons")


def _print_gpus(console: Console, simulation: Simulation) -> None:
    """Print the GPUs of each pod, and the bandwidth that they reach."""
    rows = []
    for pod in simulation.pods():
        gpus = named_gpus(pod.metadata.annotations)
        if gpus and pod.spec.node_name:
            bandwidth = pod.metadata.annotations.get(_BANDWIDTH, "")
            reach = f"{bandwidth} GB/s in rings" if bandwidth else ""
            relaxed = pod.metadata.annotations.get(_RELAXED, "")
            reach += f"; gave up: {relaxed}" if relaxed else ""
            names = ",".join(str(gpu) for gpu in gpus)
            rows.append((short_key(pod.key), f"GPU {names} of {pod.spec.node_name}", reach))
    if not rows:
        return
    console.print(f"\n[bold]GPUs[/bold]  of {counted(len(rows), 'pod')}")
    shown = rows[:_MANY_CLAIMS]
    users, chosen = (max(len(cells[column]) for cells in shown) for column in (0, 1))
    for user, gpus_of, reach in shown:
        line = f"  {user:{users}}  {gpus_of:{chosen}}"
        text = f"{escape(line)}  [dim]{escape(reach)}[/dim]" if reach else escape(line.rstrip())
        console.print(text)
    if len(rows) > _MANY_CLAIMS:
        console.print(f"  [dim]and {len(rows) - _MANY_CLAIMS} more; -o json has all[/dim]")


def _print_claims(console: Console, simulation: Simulation) -> None:
    rows = claim_rows(simulation.cluster)
    if not rows:
        return
    console.print(f"\n[bold]Devices[/bold]  of {counted(len(rows), 'claim')}")
    shown = [
        (
            ", ".join(short_key(pod) for pod in row.pods) or short_key(row.claim),
            row.devices,
            row.common,
        )
        for row in rows[:_MANY_CLAIMS]
    ]
    users, devices = (max(len(cells[column]) for cells in shown) for column in (0, 1))
    for user, given, common in shown:
        line = f"  {user:{users}}  {given:{devices}}"
        if common:
            console.print(f"{escape(line)}  [dim]{escape(common)}[/dim]")
        else:
            console.print(escape(line.rstrip()))
    if len(rows) > _MANY_CLAIMS:
        console.print(f"  [dim]and {len(rows) - _MANY_CLAIMS} more; -o json has all[/dim]")


class _ClusterTree:
    """The tree of network domains, nodes and pods, with slots and evicted pods.

    :param placements: the nodes of the bound pods; other pods on a node are nominated or waiting.
    """

    def __init__(self, simulation: Simulation, placements: Mapping[str, str]) -> None:
        self._scheduler = simulation.scheduler
        self._snapshot = simulation.scheduler.snapshot
        self._table = self._snapshot.nodes
        self._names = frozenset(self._table.names)
        self._placements = placements
        self._nominated = simulation.scheduler.nominator
        self._large = len(self._table) > _MANY_NODES
        self._pending = len(simulation.pending())
        self._victims: dict[str, list[str]] = {}
        for entry in simulation.timeline():
            if entry.kind == "Evicted":
                self._victims.setdefault(entry.node, []).append(entry.pod)
        self._slots: dict[str, list[str]] = {}
        gangs = [d for d in simulation.scheduler.decisions.values() if d.domains]
        for decision in gangs if len(gangs) <= _MANY_GANGS else ():
            for trial in decision.domains:
                if trial.offered is not None:
                    count = counted(trial.offered, "slot")
                    of = f" for {short_key(decision.unit)}" if len(gangs) > 1 else ""
                    self._slots.setdefault(trial.name, []).append(f"{count}{of}")

    def tree(self) -> Tree:
        """Return the tree."""
        pods = sum(len(on_node) for on_node in self._table.pods)
        nodes = counted(len(self._table), "node")
        waiting = f", {self._pending} pending" if self._pending else ""
        root = Tree(f"[bold]cluster[/bold]  {nodes}, {counted(pods, 'pod')}{waiting}")
        networks = Networks.of(self._snapshot)
        network = next(iter(networks.trees().values()), None)
        for name, problem in networks.problems.items():
            root.add(f"[yellow]network {escape(name)}: {escape(problem)}[/yellow]")
        self._add_lost(root)
        if network is None:
            self._add_nodes(root, range(len(self._table)))
            return root
        self._add_domains(root, network.root)
        for note in network.notes:
            root.add(f"[yellow]{escape(note)}[/yellow]")
        if len(network.outside):
            branch = root.add("[yellow]outside the network topology[/yellow]")
            self._add_nodes(branch, network.outside.tolist())
        return root

    def _add_lost(self, root: Tree) -> None:
        """Add the nodes that pods are bound to and that do not exist."""
        lost: dict[str, list[str]] = {}
        for key, node in self._placements.items():
            if node not in self._names:
                lost.setdefault(node, []).append(short_key(key))
        for node, pods in lost.items():
            shown = escape("  ".join(pods[:_MANY_PODS]))
            more = f"  … {len(pods) - _MANY_PODS} more" if len(pods) > _MANY_PODS else ""
            root.add(f"[yellow]{escape(node)} (no such node)[/yellow]  {shown}{more}")

    def _add_domains(self, branch: Tree, domain: Domain) -> None:
        for child in domain.children:
            pods = sum(len(self._table.pods[row]) for row in child.rows)
            style = "green" if pods else "dim"
            text = f"[{style}]{escape(child.name)}[/{style}] [dim]{escape(child.layer)}[/dim]"
            slots = self._slots.get(child.label)
            if slots:
                text += f"  [dim]{escape(', '.join(slots))}[/dim]"
            if self._large:
                text += f"  {counted(len(child.rows), 'node')}, {counted(pods, 'pod')}"
                if not pods:
                    continue
            self._add_domains(branch.add(text), child)
        if domain.own:
            self._add_nodes(branch, domain.rows[len(domain.rows) - domain.own :].tolist())

    def _add_nodes(self, branch: Tree, rows: Sequence[int]) -> None:
        hidden = 0
        for row in rows:
            pods = self._table.pods[row]
            victims = self._victims.get(self._table.names[row], ())
            if self._large and not pods and not victims:
                hidden += 1
                continue
            shown = "  ".join(self._pod(key) for key in sorted(pods)[:_MANY_PODS])
            if len(pods) > _MANY_PODS:
                shown += f"  … {len(pods) - _MANY_PODS} more"
            if victims:
                gone = listed(map(short_key, victims), _MANY_PODS)
                shown += f"{'  ' if shown else ''}[red]evicted {escape(gone)}[/red]"
            name = escape(self._table.names[row])
            text = f"{name}  [bold green]{shown}[/bold green]" if shown else f"[dim]{name}[/dim]"
            branch.add(f"{text}  [dim]{_use(self._snapshot, row)}[/dim]")
        if hidden:
            branch.add(f"[dim]… {counted(hidden, 'node')} without pods[/dim]")

    def _pod(self, key: str) -> str:
        name = escape(short_key(key))
        if key in self._nominated:
            return f"[yellow]{name} (nominated)[/yellow]"
        if key in self._placements:
            return name
        known = self._snapshot.placed.get(key)
        reservation = reservation_of(known[0].pod.metadata.annotations) if known else ""
        if reservation:
            return f"[cyan]{escape(reservation)} (reserved)[/cyan]"
        at_permit = self._scheduler.waiting(key) is not None
        return (
            f"[yellow]{name} ({'waits at Permit' if at_permit else 'waits to be bound'})[/yellow]"
        )


def _use(snapshot: Snapshot, row: int) -> str:
    return ", ".join(f"{name} {u}/{o}" for name, u, o in resource_use(snapshot.nodes, row))


def _print_domains(console: Console, decision: Decision) -> None:
    nodes = list(dict.fromkeys(p.node for p in decision.pods.values() if p.node))
    console.print(
        f"  {escape(decision.unit)}: {counted(len(decision.pods), 'pod')} in "
        f"[bold green]{escape(decision.domain or 'domains of their own')}[/bold green] "
        f"({escape(', '.join(nodes[:_MANY_PODS]))}{' …' if len(nodes) > _MANY_PODS else ''})"
    )
    for line in domain_lines(decision.domains, len(decision.pods)):
        console.print(f"    {escape(line)}")
    for part in decision.parts[:_MANY_DOMAINS]:
        console.print(f"    part      {escape(part.name)}")
    if len(decision.parts) > _MANY_DOMAINS:
        console.print(f"    … {len(decision.parts) - _MANY_DOMAINS} more parts")


def _print_refused(console: Console, refused: Mapping[str, str]) -> None:
    for name, message in list(refused.items())[:_MANY_PENDING]:
        console.print(f"  [yellow]{escape(name)}[/yellow]")
        console.print(f"    {escape(message)}")
    if len(refused) > _MANY_PENDING:
        console.print(f"  [dim]and {len(refused) - _MANY_PENDING} more; -o json has all[/dim]")


def _print_pending(console: Console, pending: Mapping[str, tuple[str, str | None]]) -> None:
    by_message: dict[str, list[str]] = {}
    for key, (message, _) in pending.items():
        by_message.setdefault(message, []).append(key)
    for message, keys in list(by_message.items())[:_MANY_PENDING]:
        console.print(f"  [yellow]{escape(listed(keys, _MANY_PODS))}[/yellow]")
        console.print(f"    {escape(message)}")
    if len(by_message) > _MANY_PENDING:
        console.print(f"  … {len(by_message) - _MANY_PENDING} more reasons")
