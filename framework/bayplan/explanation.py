"""Why a pod is where it is, or why it is pending and what would help: for people."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayplan.api import Pod
from bayplan.cycle import NOT_NEEDED
from bayplan.decision import Decision, PodDecision
from bayplan.diagnosis import Diagnosis
from bayplan.errors import PluginError
from bayplan.gangs import rank_order
from bayplan.plugin import Unit
from bayplan.scheduler import ProfileAtWork, Scheduler

__all__ = [
    "counted",
    "domain_lines",
    "pod_to_explain",
    "print_explanation",
    "short_key",
    "why_pending",
]

_MANY_PODS = 8
_MANY_DOMAINS = 12


def pod_to_explain(scheduler: Scheduler, get: Callable[[str], Pod | None], key: str) -> Pod | None:
    """Return the pod of a key, or the first member of the gang of that key, if any.

    :param get: returns a pod by its key.
    """
    found = get(key)
    gangs = scheduler.gangs.all()
    if found is not None or key not in gangs:
        return found
    # Those that wait come before those that run.
    members = gangs[key]
    pods = list(members.pending.values()) or [pod for pod, _ in members.bound.values()]
    first = min(pods, key=rank_order, default=None)
    return get(first.key) if first is not None else None


def why_pending(scheduler: Scheduler, pod: Pod) -> str:
    """Return what a pod without a node is told."""
    condition = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
    if condition is not None:
        return condition.message
    if scheduler.profile_of(pod) is None:
        return f'no profile schedules pods of schedulerName "{pod.spec.scheduler_name}"'
    return "not tried yet"


def print_explanation(console: Console, scheduler: Scheduler, pod: Pod) -> None:
    """Print why a pod has its node, or why it has none and what would help."""
    unit_key = _unit_of(scheduler, pod)
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
            console.print("  It was there before: this process did not decide it.")
            return
        _print_choice(console, decision, own)
        return
    if pod.status.phase in ("Succeeded", "Failed"):
        console.print(f"[bold]{pod.key}[/bold] has ended: {pod.status.phase}")
        return
    message, nominated = why_pending(scheduler, pod), pod.status.nominated_node_name
    console.print(f"[bold]{pod.key}[/bold] is [yellow]pending[/yellow]")
    console.print(f"  {escape(message)}")
    if nominated:
        console.print(f"  nominated: {nominated}")
    if own is not None:
        _print_refusals(console, own)
    if decision is not None and decision.domains:
        console.print("\n[bold]Domains[/bold]")
        for line in domain_lines(decision):
            console.print(f"  {escape(line)}")
    if decision is not None:
        _print_bottleneck(console, decision)
        _print_preemption(console, decision)
    profile = scheduler.profile_of(pod)
    if profile is not None:
        _print_help(console, scheduler, profile, unit_key)


def _print_bottleneck(console: Console, decision: Decision) -> None:
    """Print which member of a gang has the fewest nodes, where they differ."""
    tightest = min(decision.pods.values(), key=lambda own: own.feasible, default=None)
    if tightest is None or tightest.feasible == max(o.feasible for o in decision.pods.values()):
        return
    nodes = f"{tightest.feasible} of {counted(tightest.nodes, 'node')} take it"
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
        names = ", ".join(short_key(key) for key in trial.victims[:_MANY_PODS])
        more = f" and {len(trial.victims) - _MANY_PODS} more"
        names += more if len(trial.victims) > _MANY_PODS else ""
        verb = "taken" if trial.chosen else "not taken"
        console.print(f"  {verb:9} {name}: would evict {escape(names)} ({escape(trial.cost)})")
    hidden = len(decision.preemption) - _MANY_DOMAINS
    if hidden > 0:
        console.print(f"  … {hidden} more")


def _unit_of(scheduler: Scheduler, pod: Pod) -> str:
    for key, decision in scheduler.decisions.items():
        if pod.key in decision.pods:
            return key
    for key, unit in scheduler.queue.units.items():
        if pod.key in unit.pods:
            return key
    return pod.key


def _print_choice(console: Console, decision: Decision, own: PodDecision) -> None:
    console.print(f"  decided at {decision.at:g} s in cycle {decision.cycle}")
    if decision.domain:
        console.print(f"\n[bold]Domain[/bold]  of {escape(decision.unit)}")
        for line in domain_lines(decision):
            console.print(f"  {escape(line)}")
    _print_preemption(console, decision)
    for note in own.notes:
        console.print(f"  {escape(note)}")
    _print_refusals(console, own)
    if not own.finalists:
        return
    console.print(f"\n[bold]Finalists[/bold]  of {counted(own.feasible, 'feasible node')}")
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
    console.print(f"\n[bold]Filtered[/bold]  {counted(own.nodes, 'node')}")
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
    console: Console, scheduler: Scheduler, profile: ProfileAtWork, unit_key: str
) -> None:
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


def domain_lines(decision: Decision) -> list[str]:
    """Return a line for each domain that was weighed for a unit."""
    lines = []
    size = len(decision.pods)
    for trial in decision.domains:
        offers = "" if trial.offered is None else f"offers {counted(trial.offered, 'slot')}"
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


def short_key(key: str) -> str:
    """Return a pod's key without the namespace ``default``."""
    return key.removeprefix("default/")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it belongs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
