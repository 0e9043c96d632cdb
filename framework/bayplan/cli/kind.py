"""bayplan kind: what the table of workload kinds says, and what it makes of manifests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bayplan.errors import InputError
from bayplan.naming import counted

if TYPE_CHECKING:
    from bayplan.api import ApiObject
    from bayplan.kinds import WorkloadKind

__all__ = ["command"]


@click.group(name="kind")
def command() -> None:
    """Check how workloads of other projects, or of your own, become gangs."""


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-f",
    "--filename",
    "paths",
    multiple=True,
    metavar="PATH",
    help="A manifest file, a folder of manifests, or - for standard input. Repeatable.",
)
def check(file: Path, paths: tuple[str, ...]) -> None:
    """Check the workloadKinds of a profile FILE, and show what they make of manifests.

    Each object of a kind of the table, the profile's own or bayplan's, is shown with its roles, the
    pods of each, and how many it needs. One that cannot be read ends it with exit status 2.
    """
    from bayplan.cluster.manifests import load_manifests
    from bayplan.kinds import KINDS_OF_WORKLOADS, rows_of_users
    from bayplan.profiles.loading import load_workload_kinds

    load_workload_kinds(file)
    for key, kind in rows_of_users().items():
        click.echo(f"{kind.name} of {key[0]}/{kind.versions[0]}")
        for line in _of_row(KINDS_OF_WORKLOADS[key]):
            click.echo(f"  {line}")
        click.echo(
            f"  the scheduler's role needs: apiGroups [{key[0]}], resources [{kind.plural}], "
            f"verbs [list, watch{', patch' if KINDS_OF_WORKLOADS[key].suspend else ''}]"
        )
    for obj in load_manifests(list(paths)).objects if paths else ():
        for line in _of_object(obj):
            click.echo(line)


def _of_row(row: WorkloadKind) -> Iterator[str]:
    for pods in row.pods:
        name = f"role {pods.role}" if pods.role else f"a role for each of {pods.each}"
        number = " x ".join(pods.count) or "1"
        yield f"{name}: {number} pods of {pods.template}"
    if row.minimum:
        yield f"minimum: {', else '.join(row.minimum)}, else all pods"
    if row.unit:
        yield f"a gang for each value of the label {row.unit}"
    if row.asked:
        yield "a gang only where an annotation asks for one"


def _of_object(obj: ApiObject) -> Iterator[str]:
    import msgspec

    from bayplan.api import kind_of
    from bayplan.api.object_key import object_key
    from bayplan.kinds import KINDS_OF_WORKLOADS, minimum_of, roles_of

    kind = kind_of(obj)
    row = KINDS_OF_WORKLOADS.get((kind.group, kind.name))
    if row is None:
        return
    content: dict[str, Any] = msgspec.to_builtins(obj, enc_hook=lambda quantity: quantity.text)
    yield f"{kind.name} {object_key(obj)}"
    try:
        roles, minimum = roles_of(row, content), minimum_of(row, content)
    except ValueError as exc:
        raise InputError(f"{kind.name} {object_key(obj)}: {exc}") from None
    for role in roles:
        marks = ", ".join(f"{key}={value}" for key, value in role.labels.items()) or "no label"
        needed = "" if role.least == role.count else f", {role.least} needed"
        apart = ", apart: they come once others run" if role.later else ""
        yield f"  {role.name}: {counted(role.count, 'pod')}{needed}, with {marks}{apart}"
    together = sum(role.least for role in roles if not role.later)
    if minimum is not None or together:
        least = minimum if minimum is not None else together
        yield f"  needs {counted(least, 'pod')} at once"
    if row.below:
        yield "  its pods are gangs of what it makes"
    elif not roles:
        yield "  no pods: no template was found"
