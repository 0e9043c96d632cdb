"""bayplan multikueue: jobs of one cluster run in others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from bayplan.cli.options import MANAGER_NAME, NAMESPACE_NAME, Duration
from bayplan.inputs.choices import OneOf

__all__ = ["command"]


@click.command(name="multikueue")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The profile file of the schedulers of the other clusters, for forecasts.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The manager's kubeconfig. By default: kubectl's, or the pod's service account.",
)
@click.option("--context", default="", metavar="NAME", help="The context in the kubeconfig.")
@click.option(
    "--namespace",
    type=NAMESPACE_NAME,
    default="kueue-system",
    show_default=True,
    help="Where the Secrets with the kubeconfigs of the other clusters are.",
)
@click.option(
    "--origin",
    type=MANAGER_NAME,
    default="multikueue",
    show_default=True,
    metavar="NAME",
    help="The name of this manager, a label of all jobs that it creates.",
)
@click.option(
    "--worker-lost-timeout",
    type=Duration(),
    default="15m",
    show_default=True,
    help="When the jobs of a cluster that does not answer go to another one; 0 for never.",
)
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    help="Act only while holding the Lease bayplan-multikueue.",
)
@click.option(
    "--log-format",
    type=OneOf(["console", "json"]),
    default="console",
    show_default=True,
    help="The format of the log.",
)
def command(
    config: Path,
    kubeconfig: Path | None,
    context: str,
    namespace: str,
    origin: str,
    worker_lost_timeout: float,
    leader_elect: bool,
    log_format: str,
) -> None:
    """Run jobs of this cluster in other clusters.

    Kueue's MultiKueueCluster, MultiKueueConfig and AdmissionCheck say which queues send their jobs
    to which clusters. A job with quota goes to the cluster where it starts first and evicts least,
    which a simulation on what is seen of each tells. Its status comes back.
    """
    from bayplan.cli.options import profiles
    from bayplan.live.multikueue.app import Options, run
    from bayplan.live.multikueue.controller import Settings
    from bayplan.logs import set_up_logging

    settings = Settings(origin, worker_lost_timeout or None)
    options = Options(
        profiles(config, None), kubeconfig, context, namespace, leader_elect, settings
    )
    set_up_logging(log_format)
    status = asyncio.run(run(options))
    if status:
        raise SystemExit(status)
