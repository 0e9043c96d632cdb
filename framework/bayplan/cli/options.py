"""Options that several commands share, and functions that evaluate them."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from bayplan.api import ApiObject
from bayplan.cluster.archive import is_archive
from bayplan.cluster.manifests import Manifests, load_manifests
from bayplan.errors import InputError
from bayplan.inputs.choices import OneOf
from bayplan.inputs.durations import parse_duration
from bayplan.profiles.finder import PluginFinder
from bayplan.profiles.loading import (
    ProfileSet,
    default_profiles,
    load_leader_election,
    load_profiles,
)
from bayplan.profiles.settings import LeaderElection
from bayplan.simulation import Simulation
from bayplan.simulation.arrivals import split_by_arrival

if TYPE_CHECKING:
    from bayplan.cli.progress import Bars
    from bayplan.cycle.evaluator import Trace
    from bayplan.live.leases import SchedulerLease
    from bayplan.metering.journal import Journal
    from bayplan.simulation.faults import Faults

__all__ = [
    "MANAGER_NAME",
    "NAMESPACE_NAME",
    "RESOURCE_NAME",
    "SCHEDULER_NAME",
    "Duration",
    "Name",
    "check_source",
    "cluster_options",
    "compared_input_options",
    "faults_options",
    "lease_of",
    "loaded_faults",
    "optional_input_options",
    "output_option",
    "own_namespace",
    "placed",
    "profiles",
    "settled",
    "simulate",
    "simulate_objects",
    "unscheduled",
]

F = TypeVar("F", bound=Callable[..., object])
Look = Callable[[Simulation], None]


class Duration(click.ParamType[float]):
    """A duration such as 90s or 1h30m, in seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the duration in seconds."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(str(value))
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_RESOURCE = rf"({_SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"


class Name(click.ParamType[str]):
    """A name as Kubernetes takes it, since it becomes part of expressions and paths."""

    name = "name"

    def __init__(self, of: str, pattern: str) -> None:
        self._of, self._pattern = of, re.compile(pattern, re.ASCII)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the name."""
        if not self._pattern.fullmatch(text := str(value)):
            self.fail(f'"{text}" is not the name of a {self._of}', param, ctx)
        return text


NAMESPACE_NAME = Name("namespace", _LABEL)
SCHEDULER_NAME = Name("scheduler", _SUBDOMAIN)
RESOURCE_NAME = Name("resource", _RESOURCE)
MANAGER_NAME = Name("manager", _LABEL)


def own_namespace(namespace: str | None, kubeconfig: Path | None, context: str) -> str:
    """Return the namespace that was given, or else that of the kubeconfig's context.

    :raises click.BadParameter: when that is no name.
    """
    from bayplan.cluster.kubernetes.kubeconfig import context_namespace

    found = namespace or context_namespace(kubeconfig, context)
    return NAMESPACE_NAME.convert(found, None, click.get_current_context())


def compared_input_options(function: F) -> F:
    """Add -f (required), --config (repeatable), --plugins-dir, --until and --seed."""
    return _with_input(
        function,
        required=True,
        config=click.option(
            "--config",
            "configs",
            type=click.Path(path_type=Path),
            multiple=True,
            metavar="FILE",
            help="The profile file. Without it, every pod is placed, whatever its schedulerName. "
            "Repeat it to compare what several make of the same work.",
        ),
    )


def optional_input_options(function: F) -> F:
    """Add -f, --config, --plugins-dir, --until and --seed, all of them optional."""
    return _with_input(
        function,
        required=False,
        config=click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="The profile file. Without it, every pod is placed, whatever its schedulerName.",
        ),
    )


def cluster_options(function: F) -> F:
    """Add --kubeconfig and --context."""
    kubeconfig = click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The cluster's kubeconfig. By default: kubectl's, or the pod's service account.",
    )
    context = click.option(
        "--context", default="", metavar="NAME", help="The context in the kubeconfig."
    )
    return kubeconfig(context(function))


def _with_input(function: F, required: bool, config: Callable[[F], F]) -> F:
    options: list[Callable[[F], F]] = [
        click.option(
            "-f",
            "--filename",
            "paths",
            multiple=True,
            required=required,
            metavar="PATH",
            help="A manifest file, a folder of manifests, or - for standard input. Repeatable.",
        ),
        config,
        click.option(
            "--plugins-dir",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="A folder of single-file plugins for the profile.",
        ),
        click.option(
            "--until",
            type=Duration(),
            help="The virtual time to simulate. By default: 10m, or to the end of what arrives.",
        ),
        click.option("--seed", type=int, default=0, help="The seed for generated names."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def output_option(function: F) -> F:
    """Add -o table|json."""
    return click.option(
        "-o",
        "--output",
        type=OneOf(["table", "json"]),
        default="table",
        show_default=True,
        help="The output format.",
    )(function)


class Hours(Duration):
    """A number of hours, or a duration such as 90d; in seconds."""

    name = "hours"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the time in seconds."""
        if isinstance(value, int | float):
            return float(value)
        text = str(value)
        seconds = super().convert(f"{text}h" if _is_number(text) else text, param, ctx)
        if seconds < 1:
            self.fail(f'expected a second or more, got "{text}"', param, ctx)
        return seconds


def _is_number(text: str) -> bool:
    return text.isascii() and text.replace(".", "", 1).isdigit()


def faults_options(function: F) -> F:
    """Add --faults and --mtbf."""
    faults = click.option(
        "--faults",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Let parts of the cluster fail by the rules of this file, and show what becomes of "
        "all GPU hours.",
    )
    mtbf = click.option(
        "--mtbf",
        type=Hours(),
        metavar="HOURS",
        help="Let each node fail so many hours apart in the mean, for 4 hours each time.",
    )
    return faults(mtbf(function))


def loaded_faults(path: Path | None, mtbf: float | None) -> Faults | None:
    """Return the faults that --faults and --mtbf ask for, None without either.

    :raises InputError: for both, and for a file that cannot be used.
    """
    if path is None and mtbf is None:
        return None
    from bayplan.simulation.faults import faults_by_mtbf, load_faults

    if path is None:
        return faults_by_mtbf(mtbf or 0.0)
    if mtbf is not None:
        raise InputError("give either --faults or --mtbf")
    return load_faults(path)


def check_source(paths: Sequence[str], kubeconfig: Path | None, context: str) -> None:
    """Check that there is one source to look at.

    :raises InputError: for manifests and a cluster, and for neither.
    """
    if paths and (kubeconfig is not None or context):
        raise InputError("-f and --kubeconfig exclude each other")
    if paths:
        return
    from bayplan.cluster.kubernetes.kubeconfig import find_kubeconfig, runs_in_pod

    named = kubeconfig is not None or bool(context)
    if not named and find_kubeconfig() is None and not runs_in_pod():
        raise InputError("give manifests with -f, or a cluster with --kubeconfig")


def profiles(
    config: Path | None, plugins_dir: Path | None, leases: Sequence[SchedulerLease] = ()
) -> ProfileSet:
    """Return the profiles of a file, or the default profile.

    :param leases: of the schedulers of a cluster: without a file, theirs are the pods of the
        default profile, and the queues beside the first.
    :raises InputError: for a profile that cannot be loaded.
    """
    finder = PluginFinder(plugins_dir)
    if config is not None:
        return load_profiles(config, finder)
    names = dict.fromkeys(name for lease in leases for name in lease.scheduler_names)
    found = default_profiles(finder, tuple(names))
    if not leases:
        return found
    first = LeaderElection(resource_namespace=leases[0].namespace, resource_name=leases[0].name)
    return msgspec.structs.replace(found, leader_election=first)


def lease_of(config: Path | None) -> LeaderElection | None:
    """Return the Lease that a profile file names, None without a file: any of bayplan's.

    :raises InputError: for a file that cannot be used; its plugins need not be installed.
    """
    return None if config is None else load_leader_election(config)


def simulate(
    paths: tuple[str, ...],
    config: Path | None,
    plugins_dir: Path | None,
    until: float | None,
    seed: int,
    record: frozenset[str] = frozenset(),
    bars: Bars | None = None,
    trace: str | None = None,
    settled: Look | None = None,
    arrivals: Path | None = None,
    order: int = 0,
    journal: Journal | None = None,
    begun: Look | None = None,
    node_groups: Path | None = None,
    faults: Faults | None = None,
) -> tuple[Simulation, Manifests]:
    """Load profiles and manifests, and run the simulation.

    :param until: the virtual time to simulate, in seconds; None for the default.
    :param record: the keys of the pods for which the best nodes and their scores are kept.
    :param bars: makes bars that show how far it is.
    :param trace: the key of a pod whose hooks are printed.
    :param arrivals: a file of jobs that arrive over time.
    :param order: the seed that shuffles which of these jobs arrives when, 0 for as they are; with
        ``seed`` it says when faults happen.
    :param settled: called at each instant, when nothing is left to do at it.
    :param journal: where usage is recorded.
    :param begun: called before anything is created.
    :param node_groups: a file of the node groups that an autoscaler adds nodes to.
    :param faults: which parts of the cluster fail.
    :raises InputError: for input that cannot be used.
    """
    # Plugins may print; keep that out of the answer on standard output.
    with _plugins_print_to_stderr() as answers:
        loaded = profiles(config, plugins_dir)
        manifests = load_manifests(paths, report=bars("loading") if bars is not None else None)
        simulation = Simulation(loaded, seed, until, record, _traced(trace), journal)
        if begun is not None:
            begun(simulation)
        if settled is not None:
            simulation.on_settled(answers(settled))
        if faults is not None:
            simulation.play_faults(faults, seed + order)
        # A snapshot shows the work of one moment, whenever it was created.
        saved = any(is_archive(Path(path)) for path in paths)
        start, later = (manifests.objects, []) if saved else split_by_arrival(manifests.objects)
        if arrivals is not None:
            from bayplan.simulation.trace import read_trace, shuffled
            from bayplan.simulation.trace_objects import arrivals_of_trace

            jobs = shuffled(read_trace(arrivals), order)
            later += arrivals_of_trace(jobs, manifests.objects, loaded.usual_name)
        simulation.create(start)
        simulation.arrive(later)
        simulation.change_nodes(manifests.changes)
        if node_groups is not None:
            from bayplan.simulation.node_groups import load_node_groups

            simulation.autoscale(load_node_groups(node_groups))
        simulation.run(bars("pods placed") if bars is not None else None)
        _check_admitted(simulation, record)
    return simulation, manifests


def _traced(key: str | None) -> Trace | None:
    if key is None:
        return None
    from bayplan.cycle.evaluator import Trace

    return Trace(key, lambda line: click.echo(line, err=True))


@contextlib.contextmanager
def _plugins_print_to_stderr() -> Iterator[Callable[[Look], Look]]:
    """Send what plugins print to standard error; yield what lets a callback print its answer."""
    out = sys.stdout

    def answers(look: Look) -> Look:
        def answer(simulation: Simulation) -> None:
            with contextlib.redirect_stdout(out):
                look(simulation)

        return answer

    with contextlib.redirect_stdout(sys.stderr):
        yield answers


def _check_admitted(simulation: Simulation, pods: frozenset[str]) -> None:
    """Raise InputError for recorded pods that an API server would refuse."""
    refused = simulation.refused()
    for key in sorted(pods):
        if f"Pod {key}" in refused:
            raise InputError(f"an API server refuses it: {refused[f'Pod {key}']}", f"Pod {key}")


def simulate_objects(
    objects: Iterable[ApiObject],
    loaded: ProfileSet,
    until: float | None,
    record: frozenset[str],
) -> Simulation:
    """Simulate the objects of a cluster from now on; see ``simulate`` for the parameters.

    :raises InputError: for input that cannot be used.
    """
    with _plugins_print_to_stderr():
        simulation = Simulation(loaded, until=until, explained=record, start=datetime.now(UTC))
        simulation.create(objects, restore=True)
        simulation.run()
        _check_admitted(simulation, record)
    return simulation


def placed(paths: tuple[str, ...], loaded: ProfileSet, seed: int) -> Simulation:
    """Return the objects of manifests, with all pods placed that can be at once.

    :raises InputError: for input that cannot be used.
    """
    with _plugins_print_to_stderr():
        simulation = Simulation(loaded, seed)
        simulation.create(load_manifests(paths).objects)
        simulation.outlast(0.0)
    return simulation


def settled(objects: Iterable[ApiObject], loaded: ProfileSet) -> Simulation:
    """Return the objects of a cluster from now on, with all pods placed that can be at once.

    :raises InputError: for input that cannot be used.
    """
    simulation = unscheduled(objects, loaded)
    with _plugins_print_to_stderr():
        simulation.outlast(0.0)
    return simulation


def unscheduled(objects: Iterable[ApiObject], loaded: ProfileSet) -> Simulation:
    """Return the objects of a cluster as a scheduler sees them now that has not decided anything.

    :raises InputError: for input that cannot be used.
    """
    with _plugins_print_to_stderr():
        simulation = Simulation(loaded, start=datetime.now(UTC))
        simulation.create(objects, restore=True)
        simulation.observe()
    return simulation
