"""bayplan plugin: list, create and check plugins."""

from __future__ import annotations

import builtins
import importlib.util
import json
import keyword
import re
import sys
from pathlib import Path
from typing import Any

import click

import bayplan
from bayplan.cli import plugin_template
from bayplan.cli.options import output_option
from bayplan.dialects.koordinator.gangs import PLUGIN_NAMES
from bayplan.errors import InputError
from bayplan.plugin.contract import check_class, hooks_of
from bayplan.plugin.plugin import Plugin
from bayplan.profiles.finder import PluginFinder, load_file, plugin_files, plugins_in

__all__ = ["command"]


@click.group(name="plugin")
def command() -> None:
    """List, create and check plugins."""


@command.command(name="list")
@click.option(
    "--plugins-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder of single-file plugins to list, too.",
)
@output_option
def list_(plugins_dir: Path | None, output: str) -> None:
    """List the plugins that a profile can name, with their hooks and arguments.

    The JSON output includes the JSON schema of each plugin's arguments, for editors.
    """
    finder = PluginFinder(plugins_dir)
    sources = {name: point.value for name, point in finder.entry_points.items()}
    sources |= {name: str(plugins_dir) for name in finder.local()}
    found: list[dict[str, Any]] = []
    for name in sorted(sources):
        try:
            cls = finder.find(name)
        except InputError as exc:
            found.append({"name": name, "source": sources[name], "problem": str(exc)})
            continue
        found.append(
            {
                "name": name,
                "source": sources[name],
                "summary": (cls.__doc__ or "").strip().split("\n")[0],
                "hooks": _hooks(cls),
                "args": sorted(cls.Args.model_json_schema().get("properties", {})),
                "schema": cls.Args.model_json_schema(),
            }
        )
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    for plugin in found:
        click.echo(click.style(str(plugin["name"]), bold=True) + f"  {plugin['source']}")
        if "problem" in plugin:
            click.echo(f"  broken: {plugin['problem']}")
            continue
        click.echo(f"  {plugin['summary']}")
        click.echo(f"  hooks: {', '.join(plugin['hooks'])}")
        if plugin["args"]:
            click.echo(f"  args:  {', '.join(plugin['args'])}")


@command.command()
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("."),
    help="The folder to create it in.",
)
def new(name: str, into: Path) -> None:
    """Create a package with one plugin and passing tests. NAME is like SpreadByRack."""
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise InputError(f'"{name}" is not a plugin name; expected one like "SpreadByRack"')
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    taken = _taken(name, module)
    if taken:
        raise InputError(f'"{name}" cannot be the name of a new plugin: {taken}')
    folder = into / module.replace("_", "-")
    if folder.exists():
        raise InputError("already exists", str(folder))
    try:
        for path, text in plugin_template.files(name, module).items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(folder)) from None
    click.echo(f"{folder} holds the plugin {name}. Next:")
    click.echo(f"  cd {folder}")
    click.echo("  python -m pytest             # passes; change the rule, then the test")
    click.echo("  pip install -e .             # any profile can name it from now on")


@command.command()
@click.argument("path", type=click.Path(path_type=Path))
def check(path: Path) -> None:
    """Check on random clusters that the plugins of a file or folder keep the contract.

    Tests in the folder (test_*.py, *_test.py, conftest.py) are left out.
    """
    from bayplan.errors import PluginError
    from bayplan.testing import PluginCheckError, check_plugin

    if not path.exists():
        raise InputError("there is no such file", str(path))
    checked = False
    for file in plugin_files(path) if path.is_dir() else [path]:
        for name, cls in plugins_in(load_file(file)).items():
            check_class(name, cls, str(file))
            try:
                check_plugin(cls)
            except (PluginCheckError, PluginError) as exc:
                raise InputError(str(exc), str(file)) from None
            click.echo(f"{name}: ok ({', '.join(_hooks(cls))})")
            checked = True
    if not checked:
        raise InputError("defines no subclass of bayplan.Plugin", str(path))


def _taken(name: str, module: str) -> str:
    """Return why a plugin of this name and module would conflict with something, "" if not."""
    if name in PluginFinder().entry_points:
        return "a plugin of that name is installed"
    if name in PLUGIN_NAMES:
        return f'in profiles it means "{PLUGIN_NAMES[name]}"'
    if name in bayplan.__all__:
        return f"plugins import bayplan.{name}"
    for word in (name, module):
        if keyword.iskeyword(word):
            return f'"{word}" is a keyword of Python'
    if hasattr(builtins, name):
        return "Python has a class of that name"
    if module in sys.stdlib_module_names:
        return f'its module would hide "{module}" of Python\'s library'
    if _is_installed(module):
        return f'its module would hide the installed package "{module}"'
    return ""


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:
        # It is loaded, but its origin is unknown.
        return True


def _hooks(cls: type[Plugin[Any]]) -> list[str]:
    return hooks_of(cls)
