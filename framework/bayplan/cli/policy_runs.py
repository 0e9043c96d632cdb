"""Runs of one policy on given work, as comparisons and sweeps need them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bayplan.cli.options import Look, simulate
from bayplan.simulation.comparison import IdleHistory, Run

if TYPE_CHECKING:
    from bayplan.cli.progress import Bars
    from bayplan.simulation.faults import Faults

__all__ = ["DEFAULT", "Work", "policy_name", "run_policy"]

DEFAULT = "default profile"


class Work(msgspec.Struct, frozen=True):
    """What is to be placed: manifests, jobs that arrive, the time to simulate, and the seeds.

    ``seed`` is for generated names; ``order`` shuffles which job arrives when, 0 does not; both say
    when faults happen.
    """

    paths: tuple[str, ...]
    plugins_dir: Path | None = None
    until: float | None = None
    seed: int = 0
    arrivals: Path | None = None
    order: int = 0
    node_groups: Path | None = None
    """A file of the node groups that an autoscaler adds nodes to."""
    faults: Faults | None = None
    """Which parts of the cluster fail; ``order`` says when."""
    added: str | None = None
    """A file or folder of manifests beside ``paths``, for a comparison with and without it."""


def policy_name(config: Path | None, added: str | None = None) -> str:
    """Return the name of a policy: its profile file, or the manifests that it adds to the first."""
    if added is not None:
        return f"with {added}"
    return DEFAULT if config is None else str(config)


def run_policy(
    config: Path | None, work: Work, bars: Bars | None = None, begun: Look | None = None
) -> Run:
    """Run some work under a policy, with a journal of its usage.

    :param begun: called before anything is created.
    :raises InputError: for input that cannot be used.
    """
    from bayplan.metering.journal import Journal

    journal, idle = Journal(), IdleHistory()
    simulation, _ = simulate(
        work.paths if work.added is None else (*work.paths, work.added),
        config,
        work.plugins_dir,
        work.until,
        work.seed,
        arrivals=work.arrivals,
        order=work.order,
        journal=journal,
        settled=idle.look,
        bars=bars,
        begun=begun,
        node_groups=work.node_groups,
        faults=work.faults,
    )
    return Run(policy_name(config, work.added), simulation, journal, idle)
