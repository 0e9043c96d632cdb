"""bayplan submit: batch scripts for Slurm as jobs for Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from bayplan.cli.options import NAMESPACE_NAME, SCHEDULER_NAME, cluster_options, own_namespace
from bayplan.errors import AlreadyExists
from bayplan.inputs.choices import OneOf
from bayplan.submission import KINDS_OF_JOBS, OPTIONS

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., object])


def _sbatch_options(function: F) -> F:
    """Add the options of sbatch; those without a counterpart are not listed."""
    for one in reversed([*OPTIONS.values()]):
        names = [f"--{one.name}", *([f"-{one.short}"] if one.short else ())]
        kind: dict[str, Any] = {"is_flag": True} if one.is_switch else {"metavar": "VALUE"}
        hidden = bool(one.refused or one.note)
        option = click.option(*names, _parameter(one.name), help=one.help, hidden=hidden, **kind)
        function = option(function)
    return function


def _parameter(name: str) -> str:
    return f"sbatch_{name.replace('-', '_')}"


@click.command(name="submit", context_settings={"allow_interspersed_args": False})
@_sbatch_options
@click.option("--image", required=True, metavar="IMAGE", help="The container's image; it has bash.")
@click.option(
    "--kind",
    type=OneOf(list(KINDS_OF_JOBS)),
    default="Job",
    show_default=True,
    help="The kind of the job; PyTorchJobs need Kubeflow's Training Operator.",
)
@click.option(
    "--namespace",
    type=NAMESPACE_NAME,
    metavar="NAME",
    help="The namespace. By default: that of the kubeconfig's context.",
)
@click.option(
    "--scheduler",
    type=SCHEDULER_NAME,
    default="bayplan",
    show_default=True,
    metavar="NAME",
    help="The schedulerName of its pods.",
)
@click.option("--dry-run", is_flag=True, help="Print the manifests, and create nothing.")
@cluster_options
@click.argument("script", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("arguments", nargs=-1)
def command(
    image: str,
    kind: str,
    namespace: str | None,
    scheduler: str,
    dry_run: bool,
    kubeconfig: Path | None,
    context: str,
    script: Path,
    arguments: tuple[str, ...],
    **given: Any,
) -> None:
    """Submit a batch SCRIPT for Slurm, with ARGUMENTS, as a job for Kubernetes.

    Its #SBATCH lines count, and before them the options here. A pod runs on each node, all at once
    or none; srun starts the tasks of each. The server checks everything before it keeps anything.
    """
    import asyncio

    from bayplan.inputs.documents import read_text
    from bayplan.live.client import create_objects
    from bayplan.submission import objects_of, read_batch

    texts = {
        name: "" if option.is_switch else str(value)
        for name, option in OPTIONS.items()
        if (value := given[_parameter(name)])
    }
    batch = read_batch(read_text(script), str(script), texts, arguments)
    namespace = own_namespace(namespace, kubeconfig, context)
    contents = objects_of(batch, kind, image, namespace, scheduler)
    for note in batch.notes:
        click.echo(f"note: {note}", err=True)
    if dry_run:
        click.echo(_manifests(contents), nl=False)
        return
    try:
        asyncio.run(create_objects(kubeconfig, context, contents))
    except AlreadyExists as exc:
        raise AlreadyExists(f"{exc}; name it otherwise by --job-name") from None
    click.echo(f"Submitted {kind} {namespace}/{batch.name}")


def _manifests(contents: Iterable[Any]) -> str:
    """Return manifests in which scripts are blocks of lines."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as such."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump_all(contents, Dumper=Dumper, sort_keys=False, width=100)
