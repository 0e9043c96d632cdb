"""The ``bayplan`` command."""

from bayplan.cli.commands import cli, main

__all__ = ["cli", "main"]
