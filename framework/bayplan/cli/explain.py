"""bayplan explain: why a pod is on its node, or why it is pending and what would help."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Container, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from bayplan.cli.options import (
    NAMESPACE_NAME,
    check_source,
    cluster_options,
    lease_of,
    optional_input_options,
    output_option,
    own_namespace,
    profiles,
    simulate,
    simulate_objects,
)
from bayplan.cli.progress import progress_bars
from bayplan.cli.watching import again_and_again, check_watchable, watch_option
from bayplan.errors import InputError

if TYPE_CHECKING:
    from bayplan.api import Pod
    from bayplan.billing.prices import PriceList
    from bayplan.explain.target import Target
    from bayplan.live.client import Reply
    from bayplan.profiles.loading import ProfileSet
    from bayplan.simulation import Simulation

__all__ = ["command"]


@click.command(name="explain")
@click.argument("target", metavar="[KIND/][NAMESPACE/]NAME")
@click.option(
    "-n",
    "--namespace",
    type=NAMESPACE_NAME,
    metavar="NAME",
    help="The namespace, if the target names none. By default: that of the kubeconfig's context.",
)
@optional_input_options
@cluster_options
@click.option(
    "--prices",
    "price_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A price list: show what the pods cost. On a cluster, the answer is then simulated.",
)
@click.option(
    "--node-groups",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With -f: say which more nodes of these groups would help.",
)
@output_option
@watch_option("Explain it again: when the files change, or every 2 s on a cluster.")
def command(watch: bool, paths: tuple[str, ...], **given: Any) -> None:
    """Explain why a pod or gang is where it is, or why it is pending and what would help.

    KIND is pod, podgroup, what makes pods, such as deploy, sts, job, vcjob, jobset or lws, or
    workload: Kueue's.

    With -f, the answer comes from a simulation of manifests. With --kubeconfig, it comes from the
    running scheduler, or, if that does not answer, from a simulation of the cluster.
    """
    if not watch:
        _explain(paths=paths, **given)
        return
    check_watchable(paths)
    more = (given["config"], given["plugins_dir"], given["price_file"], given["node_groups"])
    files = [*map(Path, paths), *(path for path in more if path is not None)]
    again_and_again(lambda: _explain(paths=paths, **given), files, always=not paths)


def _explain(
    target: str,
    namespace: str | None,
    paths: tuple[str, ...],
    config: Path | None,
    plugins_dir: Path | None,
    until: float | None,
    seed: int,
    kubeconfig: Path | None,
    context: str,
    price_file: Path | None,
    node_groups: Path | None,
    output: str,
) -> None:
    from bayplan.explain.target import target_of
    from bayplan.profiles.loading import load_workload_kinds

    if config is not None:
        # They may be the target's.
        load_workload_kinds(config)
    wanted = target_of(target, namespace or _usual_namespace(paths, kubeconfig, context))
    prices = _prices(price_file)
    if node_groups is not None and not paths:
        raise InputError("is for manifests: give some with -f", "--node-groups")
    check_source(paths, kubeconfig, context)
    if paths:
        record = frozenset((wanted.key,))
        with progress_bars() as bars:
            simulation, manifests = simulate(
                paths, config, plugins_dir, until, seed, record, bars=bars
            )
        for note in manifests.notes():
            click.echo(f"note: {note}", err=True)
        said = _helping_nodes(simulation, node_groups) if node_groups is not None else None
        _print(simulation, wanted, output, prices=prices, said=said)
        return
    reply = _ask(wanted, config, kubeconfig, context, output)
    # What a scheduler answers has no prices.
    if reply.text is not None and prices is None:
        _print_reply(reply.text, wanted, config, kubeconfig, context, output)
        return
    loaded = profiles(config, plugins_dir, reply.leases)
    _explain_simulated(wanted, loaded, until, kubeconfig, context, output, prices)


def _usual_namespace(paths: tuple[str, ...], kubeconfig: Path | None, context: str) -> str:
    """Return the namespace of the kubeconfig's context; "default" where none is read."""
    from bayplan.cluster.kubernetes.kubeconfig import find_kubeconfig

    if paths or (kubeconfig or find_kubeconfig()) is None:
        # In a pod, that would be bayplan's own.
        return "default"
    return own_namespace(None, kubeconfig, context)


def _helping_nodes(simulation: Simulation, path: Path) -> Callable[[str], Sequence[str]]:
    """Return what says which nodes of groups would help the unit of a pod."""
    from bayplan.simulation.node_groups import load_node_groups

    groups = load_node_groups(path)

    def said(pod: str) -> Sequence[str]:
        info = simulation.scheduler.snapshot.living.get(pod)
        unit = simulation.scheduler.pending_unit((info.gang if info else None) or pod)
        pods = {one.key for one in unit.pods} if unit is not None else {pod}
        help_ = simulation.would_help(groups, pods)
        return [f"would run with {' or '.join(help_)}"] if help_ else ["no node group would help"]

    return said


def _prices(path: Path | None) -> PriceList | None:
    if path is None:
        return None
    from bayplan.billing.prices import load_prices

    return load_prices(path)


def _ask(
    wanted: Target, config: Path | None, kubeconfig: Path | None, context: str, output: str
) -> Reply:
    """Return the answer of the running scheduler, and print the notes about it."""
    from bayplan.live.client import Question, ask_scheduler

    pod = f"{wanted.kind.lower()}/{wanted.key}" if wanted.kind else wanted.key
    question = Question("/debug/explain", {"pod": pod}, output, ["explain", pod])
    reply = asyncio.run(ask_scheduler(kubeconfig, context, question, lease_of(config)))
    for note in reply.notes:
        click.echo(f"note: {note}", err=True)
    return reply


def _print_reply(
    text: str,
    wanted: Target,
    config: Path | None,
    kubeconfig: Path | None,
    context: str,
    output: str,
) -> None:
    """Print what the scheduler answers, and what an autoscaler says of the pod."""
    plain = text if output == "json" else _ask(wanted, config, kubeconfig, context, "json").text
    about = json.loads(plain) if plain is not None else {}
    said: Sequence[str] = ()
    if about.get("state") == "Pending":
        said = _autoscaler(about["pod"], kubeconfig, context)
    if output == "json":
        click.echo(json.dumps(_with_lines(about, said), indent=2))
        return
    click.echo(text.rstrip("\n"))
    _print_autoscaler(said)


def _autoscaler(pod: str, kubeconfig: Path | None, context: str) -> Sequence[str]:
    from bayplan.live.autoscaler import read_autoscaler

    return asyncio.run(read_autoscaler(kubeconfig, context, pod, time.time()))


def _with_lines(about: dict[str, Any], said: Sequence[str]) -> dict[str, Any]:
    return {**about, "autoscaler": list(said)} if said else about


def _print_autoscaler(said: Sequence[str]) -> None:
    if said:
        click.echo("\nAutoscaler")
    for line in said:
        click.echo(f"  {line}")


def _explain_simulated(
    wanted: Target,
    loaded: ProfileSet,
    until: float | None,
    kubeconfig: Path | None,
    context: str,
    output: str,
    prices: PriceList | None,
) -> None:
    from bayplan.api import Pod
    from bayplan.live.client import read_cluster

    view = asyncio.run(read_cluster(kubeconfig, context, loaded))
    for note in view.left_out:
        click.echo(f"note: left out: {note}", err=True)
    objects = [obj for found in view.objects.values() for obj in found]
    record = frozenset((wanted.key,))
    simulation = simulate_objects(objects, loaded, until, record)
    placed = {obj.key for obj in objects if isinstance(obj, Pod) and obj.spec.node_name}
    whose = "; every pod is placed, as no scheduler of bayplan has led here yet"
    whose = whose if loaded.any_scheduler else ""
    head = f"Simulated: what bayplan would do with the cluster as it is now{whose}:"
    said = partial(_autoscaler, kubeconfig=kubeconfig, context=context)
    _print(simulation, wanted, output, head, prices, placed, said)


def _print(
    simulation: Simulation,
    wanted: Target,
    output: str,
    head: str = "",
    prices: PriceList | None = None,
    placed: Container[str] | None = None,
    said: Callable[[str], Sequence[str]] | None = None,
) -> None:
    """Print the explanation of a simulation.

    :param placed: the pods that really have a node.
    :param said: returns what an autoscaler says of a pod, or could do for it.
    """
    from bayplan.api import Pod
    from bayplan.cli import render
    from bayplan.explain.explanation import explain, explain_job
    from bayplan.explain.target import nearest, pods_of, what_has
    from bayplan.explain.text import print_explanation, print_job
    from bayplan.queues.held_jobs import WORKLOAD

    def get(of: str) -> Pod | None:
        return simulation.cluster.get(Pod, of)

    scheduler = simulation.scheduler
    wanted = what_has(scheduler, wanted)
    found = pods_of(scheduler, simulation.pods(), get, wanted)
    job = None if found else explain_job(scheduler, wanted.kind, wanted.key)
    if job is not None:
        if prices is not None:
            from bayplan.explain.cost import pods_to_come

            to_come = pods_to_come(scheduler.snapshot, job.kind, job.job)
            job = replace(job, cost=_cost(to_come, simulation, prices))
        if output == "json":
            click.echo(json.dumps(job.as_json(), indent=2))
        else:
            print_job(render.stdout(), job)
        return
    if not found:
        near = nearest(wanted, simulation.pods(), scheduler)
        what = "pods of" if wanted.makes_pods and wanted.kind != WORKLOAD else ""
        verb = "are no" if what else "is no"
        raise InputError(f"there {verb} {what} {wanted} at the end{near}".replace("  ", " "))
    about = explain(scheduler, found[0], found)
    if placed is not None and found[0].key not in placed:
        about = replace(about, simulated=True)
    if prices is not None:
        about = replace(about, cost=_cost(found, simulation, prices))
    for note in simulation.problems():
        if note not in about.unread:
            click.echo(f"note: {note}", err=True)
    lines = said(about.pod) if said is not None and about.state == "Pending" else ()
    if output == "json":
        click.echo(json.dumps(_with_lines(about.as_json(), lines), indent=2))
        return
    if head:
        click.echo(head)
    print_explanation(render.stdout(), about)
    _print_autoscaler(lines)


def _cost(pods: Sequence[Pod], simulation: Simulation, prices: PriceList) -> str:
    """Return what pods cost together, "" for none."""
    from bayplan.api import ComputePool
    from bayplan.explain.cost import cost_text

    scheduler = simulation.scheduler
    nodes, pools = scheduler.snapshot.nodes.nodes, simulation.cluster.list(ComputePool)
    return cost_text(pods, nodes, pools, prices, scheduler.unix_time) if pods else ""
