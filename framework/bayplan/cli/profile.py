"""bayplan profile: check a profile file, and describe its format to editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bayplan.naming import counted

if TYPE_CHECKING:
    from bayplan.profiles.loading import Profile

__all__ = ["command"]

_PLUGINS_DIR = click.option(
    "--plugins-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder of single-file plugins that the profile may name, too.",
)


@click.group(name="profile")
def command() -> None:
    """Check profile files, and describe their format to editors."""


@command.command()
@_PLUGINS_DIR
def schema(plugins_dir: Path | None) -> None:
    """Print the JSON Schema of profile files, with the plugins that are installed."""
    from bayplan.profiles.finder import PluginFinder
    from bayplan.profiles.schema import profile_schema

    click.echo(json.dumps(profile_schema(PluginFinder(plugins_dir)), indent=2, ensure_ascii=False))


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@_PLUGINS_DIR
def check(file: Path, plugins_dir: Path | None) -> None:
    """Check a profile file, and print how its profiles differ from the default.

    The first error is reported with file, line and column; the exit status is 2.
    """
    from bayplan.cli.options import profiles

    found = profiles(file, plugins_dir).profiles
    default = profiles(None, None).profiles[0]
    for profile in found:
        for note in profile.notes:
            click.echo(f"note: {note}", err=True)
    click.echo(f"{file}: {counted(len(found), 'profile')}, all in order")
    for profile in found:
        click.echo(f"{profile.scheduler_name}: {counted(len(profile.plugins), 'plugin')}")
        for line in _changes(profile, default):
            click.echo(f"  {line}")


def _changes(profile: Profile, default: Profile) -> list[str]:
    """Return what a profile does otherwise than the default one, a line each."""
    added = [name for name in profile.plugins if name not in default.plugins]
    gone = [name for name in default.plugins if name not in profile.plugins]
    given = [name for name, args in profile.args.items() if args.model_fields_set]
    texts = (("with", added), ("without", gone), ("with arguments of", given))
    return [f"{what} {', '.join(names)}" for what, names in texts if names]
