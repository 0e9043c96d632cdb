"""What the commands print for people: trees and tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.tree import Tree

from bayplan.api import Pod
from bayplan.api.gpus import named_gpus
from bayplan.claimtable import claim_rows
from bayplan.cycle import NOT_NEEDED
from bayplan.decision import Decision, PodDecision
from bayplan.diagnosis import Diagnosis
from bayplan.errors import PluginError
from bayplan.networks import Networks
from bayplan.plugin import Unit
from bayplan.scheduler import ProfileAtWork
from bayplan.simulation import Progress, Simulation, resource_use
from bayplan.snapshot import Snapshot
from bayplan.topology.network import Domain

__all__ = ["print_explanation", "print_simulation", "progress"]

_MANY_NODES = 64
"""Clusters larger than this show only the nodes that hold pods."""
_MANY_PODS = 8
_MANY_PENDING = 20
_MANY_DOMAINS = 12
_MANY_CLAIMS = 32
_MANY_GANGS = 4
_BANDWIDTH = "gpu.topology/bandwidth"
_RELAXED = "gpu.topology/relaxed"


def _console() -> Console:
    # A pipe gets plain lines that are not cut.
    return Console(width=None if sys.stdout.isatty() else 4096, highlight=False, emoji=False)


@contextmanager
def progress() -> Iterator[Progress | None]:
    """Show a bar on a terminal, nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("pods placed")
        yield lambda done, total: bar.update(task, completed=done, total=total)


# simulate --------------------------------------------------------------------------------


def print_simulation(simulation: Simulation) -> None:
    """Print the tree of nodes with their pods, why gangs are where they are, and who waits."""
    console = _console()
    placements, pending = simulation.placements(), simulation.pending()
    snapshot = simulation.scheduler.snapshot
    snapshot.sync()
    console.print(_ClusterTree(simulation, frozenset(placements)).tree())
    decisions = simulation.scheduler.decisions.values()
    gangs = [d for d in decisions if d.parts or (d.domain and d.domains)]
    if gangs:
        console.print("\n[bold]Why there[/bold]")
        for decision in gangs:
            _print_domains(console, decision)
    _print_claims(console, simulation)
    _print_gpus(console, simulation)
    if pending:
        console.print(f"\n[bold]Pending ({len(pending)})[/bold]")
        _print_pending(console, pending)
    seconds = simulation.wall_seconds
    console.print(
        f"\n{len(placements)} of {len(simulation.pods())} pods have a node; "
        f"{_count(simulation.scheduler.statistics.cycles, 'cycle')} in {seconds:.3f} s, "
        f"{simulation.cluster.now:g} s of virtual time"
    )
    if pending:
        key = next(iter(pending))
        console.print(f"[dim]bayplan explain {key} -f ... says what would help[/dim]")


def _print_gpus(console: Console, simulation: Simulation) -> None:
    """Print which GPUs were chosen for whom, and what they reach."""
    rows = []
    for pod in simulation.pods():
        gpus = named_gpus(pod.metadata.annotations)
        if gpus and pod.spec.node_name:
            bandwidth = pod.metadata.annotations.get(_BANDWIDTH, "")
            reach = f"{bandwidth} GB/s in rings" if bandwidth else ""
            relaxed = pod.metadata.annotations.get(_RELAXED, "")
            reach += f"; gave up: {relaxed}" if relaxed else ""
            names = ",".join(str(gpu) for gpu in gpus)
            rows.append((_short(pod.key), f"GPU {names} of {pod.spec.node_name}", reach))
    if not rows:
        return
    console.print(f"\n[bold]GPUs[/bold]  of {_count(len(rows), 'pod')}")
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
    console.print(f"\n[bold]Devices[/bold]  of {_count(len(rows), 'claim')}")
    shown = [
        (", ".join(_short(pod) for pod in row.pods) or _short(row.claim), row.devices, row.common)
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
    """The nodes under their network domains, with slots, the pods on them, and who had to go.

    :param bound: keys of the pods that are bound; others hold their place and wait.
    """

    def __init__(self, simulation: Simulation, bound: frozenset[str]) -> None:
        self._snapshot = simulation.scheduler.snapshot
        self._table = self._snapshot.nodes
        self._bound = bound
        self._held = simulation.scheduler.holds
        self._large = len(self._table) > _MANY_NODES
        self._victims: dict[str, list[str]] = {}
        for entry in simulation.timeline():
            if entry.kind == "Evicted":
                self._victims.setdefault(entry.node, []).append(entry.pod)
        self._slots: dict[str, list[str]] = {}
        gangs = [d for d in simulation.scheduler.decisions.values() if d.domains]
        for decision in gangs if len(gangs) <= _MANY_GANGS else ():
            for trial in decision.domains:
                if trial.offered is not None:
                    count = _count(trial.offered, "slot")
                    of = f" for {_short(decision.unit)}" if len(gangs) > 1 else ""
                    self._slots.setdefault(trial.name, []).append(f"{count}{of}")

    def tree(self) -> Tree:
        """Return the tree."""
        pods = sum(len(on_node) for on_node in self._table.pods)
        nodes = _count(len(self._table), "node")
        root = Tree(f"[bold]cluster[/bold]  {nodes}, {_count(pods, 'pod')}")
        networks = Networks(self._snapshot)
        network = next(iter(networks.trees().values()), None)
        for name, problem in networks.problems.items():
            root.add(f"[yellow]network {escape(name)}: {escape(problem)}[/yellow]")
        if network is None:
            self._add_nodes(root, range(len(self._table)))
            return root
        self._add_domains(root, network.root)
        for note in network.notes:
            root.add(f"[yellow]{escape(note)}[/yellow]")
        if len(network.outside):
            branch = root.add("[yellow]outside of the network topology[/yellow]")
            self._add_nodes(branch, network.outside.tolist())
        return root

    def _add_domains(self, branch: Tree, domain: Domain) -> None:
        for child in domain.children:
            pods = sum(len(self._table.pods[row]) for row in child.rows)
            style = "green" if pods else "dim"
            text = f"[{style}]{escape(child.name)}[/{style}] [dim]{escape(child.layer)}[/dim]"
            slots = self._slots.get(child.label)
            if slots:
                text += f"  [dim]{escape(', '.join(slots))}[/dim]"
            if self._large:
                text += f"  {_count(len(child.rows), 'node')}, {_count(pods, 'pod')}"
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
                gone = ", ".join(_short(key) for key in victims[:_MANY_PODS])
                more = f" and {len(victims) - _MANY_PODS} more" if len(victims) > _MANY_PODS else ""
                shown += f"{'  ' if shown else ''}[red]evicted {escape(gone)}{more}[/red]"
            name = escape(self._table.names[row])
            text = f"{name}  [bold green]{shown}[/bold green]" if shown else f"[dim]{name}[/dim]"
            branch.add(f"{text}  [dim]{_use(self._snapshot, row)}[/dim]")
        if hidden:
            branch.add(f"[dim]… {_count(hidden, 'node')} without pods[/dim]")

    def _pod(self, key: str) -> str:
        name = escape(_short(key))
        if key in self._held:
            return f"[yellow]{name} (held for it)[/yellow]"
        return name if key in self._bound else f"[yellow]{name} (waits at Permit)[/yellow]"


def _use(snapshot: Snapshot, row: int) -> str:
    return ", ".join(f"{name} {u}/{o}" for name, u, o in resource_use(snapshot.nodes, row))


def _print_domains(console: Console, decision: Decision) -> None:
    nodes = list(dict.fromkeys(p.node for p in decision.pods.values() if p.node))
    console.print(
        f"  {escape(decision.unit)}: {_count(len(decision.pods), 'pod')} in "
        f"[bold green]{escape(decision.domain or 'domains of their own')}[/bold green] "
        f"({escape(', '.join(nodes[:_MANY_PODS]))}{' …' if len(nodes) > _MANY_PODS else ''})"
    )
    for line in _domain_lines(decision):
        console.print(f"    {escape(line)}")
    for part in decision.parts[:_MANY_DOMAINS]:
        console.print(f"    part      {escape(part.name)}")
    if len(decision.parts) > _MANY_DOMAINS:
        console.print(f"    … {len(decision.parts) - _MANY_DOMAINS} more parts")


def _domain_lines(decision: Decision) -> list[str]:
    lines = []
    size = len(decision.pods)
    for trial in decision.domains:
        offers = "" if trial.offered is None else f"offers {_count(trial.offered, 'slot')}"
        over = f"{max(0, (trial.offered or size) - size)} left over"
        if trial.refusal is None:
            lines.append(f"chosen    {trial.name}: {offers}, {over}")
        elif trial.refusal == NOT_NEEDED:
            lines.append(f"not used  {trial.name}: {offers}, {over}")
        elif trial.refusal.startswith("offers"):
            lines.append(f"refused   {trial.name}: {trial.refusal}")
        else:
            lines.append(f"refused   {trial.name}: {offers}{', ' * bool(offers)}{trial.refusal}")
    hidden = len(lines) - _MANY_DOMAINS
    if hidden > 1:
        lines = [*lines[:_MANY_DOMAINS], f"… {hidden} more domains"]
    return lines


def _print_pending(console: Console, pending: Mapping[str, tuple[str, str | None]]) -> None:
    by_message: dict[str, list[str]] = {}
    for key, (message, _) in pending.items():
        by_message.setdefault(message, []).append(key)
    for message, keys in list(by_message.items())[:_MANY_PENDING]:
        shown = ", ".join(keys[:_MANY_PODS])
        more = f" and {len(keys) - _MANY_PODS} more" if len(keys) > _MANY_PODS else ""
        console.print(f"  [yellow]{escape(shown)}{more}[/yellow]")
        console.print(f"    {escape(message)}")
    if len(by_message) > _MANY_PENDING:
        console.print(f"  … {len(by_message) - _MANY_PENDING} more reasons")


# explain ---------------------------------------------------------------------------------


def print_explanation(simulation: Simulation, pod: Pod) -> None:
    """Print why a pod has its node, or why it has none and what would help."""
    console = _console()
    scheduler = simulation.scheduler
    unit_key = _unit_of(simulation, pod)
    decision = scheduler.decisions.get(unit_key)
    own = decision.pods.get(pod.key) if decision is not None else None
    if pod.spec.node_name:
        over = pod.status.phase in ("Succeeded", "Failed")
        verb = f"has ended ({pod.status.phase}); it was" if over else "is"
        where = escape(pod.spec.node_name)
        console.print(f"[bold]{pod.key}[/bold] {verb} on [bold green]{where}[/bold green]")
        if pod.spec.node_name not in scheduler.snapshot.nodes.row_of:
            console.print("  There is no such node.")
        if decision is None or own is None or own.node is None:
            console.print("  It was there from the beginning; bayplan did not decide it.")
            return
        _print_choice(console, decision, own)
        return
    if pod.status.phase in ("Succeeded", "Failed"):
        console.print(f"[bold]{pod.key}[/bold] has ended: {pod.status.phase}")
        return
    message, nominated = simulation.pending().get(pod.key, (f"is {pod.status.phase}", None))
    console.print(f"[bold]{pod.key}[/bold] is [yellow]pending[/yellow]")
    console.print(f"  {escape(message)}")
    if nominated:
        console.print(f"  nominated: {nominated}")
    if own is not None:
        _print_refusals(console, own)
    if decision is not None and decision.domains:
        console.print("\n[bold]Domains[/bold]")
        for line in _domain_lines(decision):
            console.print(f"  {escape(line)}")
    if decision is not None:
        _print_bottleneck(console, decision)
        _print_preemption(console, decision)
    profile = scheduler.profile_of(pod)
    if profile is not None:
        _print_help(console, simulation, profile, unit_key)


def _print_bottleneck(console: Console, decision: Decision) -> None:
    """Print which member of a gang has the fewest nodes, where they differ."""
    tightest = min(decision.pods.values(), key=lambda own: own.feasible, default=None)
    if tightest is None or tightest.feasible == max(o.feasible for o in decision.pods.values()):
        return
    nodes = f"{tightest.feasible} of {_count(tightest.nodes, 'node')} take it"
    console.print(f"\n[bold]Bottleneck[/bold]  {escape(tightest.pod)}: {nodes}")


def _print_preemption(console: Console, decision: Decision) -> None:
    """Print what making room would cost in each domain, the one that was taken first."""
    if not decision.preemption:
        return
    console.print("\n[bold]Preemption[/bold]")
    for trial in decision.preemption[:_MANY_DOMAINS]:
        name = escape(trial.domain)
        if trial.refusal is not None:
            console.print(f"  not in {name}: {escape(trial.refusal)}")
            continue
        names = ", ".join(_short(key) for key in trial.victims[:_MANY_PODS])
        more = f" and {len(trial.victims) - _MANY_PODS} more"
        names += more if len(trial.victims) > _MANY_PODS else ""
        verb = "taken" if trial.chosen else "not taken"
        console.print(f"  {verb:9} {name}: would evict {escape(names)} ({escape(trial.cost)})")
    hidden = len(decision.preemption) - _MANY_DOMAINS
    if hidden > 0:
        console.print(f"  … {hidden} more")


def _unit_of(simulation: Simulation, pod: Pod) -> str:
    for key, decision in simulation.scheduler.decisions.items():
        if pod.key in decision.pods:
            return key
    for key, unit in simulation.scheduler.queue.units.items():
        if pod.key in unit.pods:
            return key
    return pod.key


def _print_choice(console: Console, decision: Decision, own: PodDecision) -> None:
    console.print(f"  decided at {decision.at:g} s in cycle {decision.cycle}")
    if decision.domain:
        console.print(f"\n[bold]Domain[/bold]  of {escape(decision.unit)}")
        for line in _domain_lines(decision):
            console.print(f"  {escape(line)}")
    _print_preemption(console, decision)
    for note in own.notes:
        console.print(f"  {escape(note)}")
    _print_refusals(console, own)
    if not own.finalists:
        return
    console.print(f"\n[bold]Finalists[/bold]  of {_count(own.feasible, 'feasible node')}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("  node")
    table.add_column("total", justify="right")
    plugins = list(own.finalists[0].scores)
    for plugin in plugins:
        table.add_column(plugin, justify="right", style="dim")
    for finalist in own.finalists:
        mark = "→ " if finalist.node == own.node else "  "
        scores = [f"{finalist.scores[plugin]:g}" for plugin in plugins]
        table.add_row(f"{mark}{finalist.node}", f"{finalist.total:g}", *scores)
    console.print(table)
    if own.node not in [finalist.node for finalist in own.finalists]:
        console.print(f"  {own.node} has {own.total:g}; the gang's plan put it there")
    elif decision.domain:
        console.print("  [dim]Inside the domain the plan counts first, then the total.[/dim]")
    else:
        console.print("  [dim]The highest total wins; among equals, the first name.[/dim]")


def _print_refusals(console: Console, own: PodDecision) -> None:
    if not own.removed and own.pre_filter is None:
        return
    console.print(f"\n[bold]Filtered[/bold]  {_count(own.nodes, 'node')}")
    if own.pre_filter is not None:
        console.print(f"  all by {own.pre_filter[0]}: {escape(own.pre_filter[1])}")
    left = own.nodes
    for plugin, removed in own.removed:
        left -= removed
        console.print(f"  {plugin} took out {removed}, {left} left")
        for by, reason, count in own.refused:
            if by == plugin:
                console.print(f"    [dim]{count}[/dim] {escape(reason)}")


def _print_help(
    console: Console, simulation: Simulation, profile: ProfileAtWork, unit_key: str
) -> None:
    scheduler = simulation.scheduler
    unit = scheduler.pending_unit(unit_key)
    if unit is None:
        return
    diagnosis = Diagnosis(profile.runtime, profile.evaluator, profile.cycle, scheduler.snapshot)
    console.print("\n[bold]What would help[/bold]")
    try:
        advice = diagnosis.suggest(unit, scheduler.now)
    except PluginError as exc:
        console.print(f"  mending the plugin: {escape(str(exc))}")
        return
    if not advice:
        console.print("  no single change that bayplan knows of")
    for text in advice:
        console.print(f"  {escape(_subject(unit, text))}")


def _subject(unit: Unit, text: str) -> str:
    return f"the gang {text}" if unit.gang is not None else f"it {text}"


def _short(key: str) -> str:
    return key.removeprefix("default/")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
