"""The command and its subcommands; a subcommand's module is imported when it is called."""

from __future__ import annotations

import importlib
import os
import sys

import click
from click.shell_completion import CompletionItem

from bayplan.errors import BayplanError, InputError, did_you_mean
from bayplan.garbage import expect_little_garbage

__all__ = ["cli", "main"]

_COMMANDS = {
    "demo": ("demo", "Show it: a cluster, jobs that come and go, and the page, in one command."),
    "simulate": ("simulate", "Place the pods of manifest files on an embedded cluster."),
    "sweep": ("sweep", "Run every profile on every trace, on all cores or a Dask cluster."),
    "explain": ("explain", "Explain why a pod is where it is, or why it is pending."),
    "jobs": ("jobs", "List the jobs of a namespace, as squeue does."),
    "top": ("top", "Show a cluster at one look: nodes, GPUs, queues, and who waits and why."),
    "pool": ("pool", "Show pools of accelerators: what is free, and who has the rest."),
    "queue": ("queue", "Show queues: who has what, who borrows, who waits."),
    "ui": ("ui", "Serve a page that shows a cluster, and why jobs wait."),
    "invoice": ("invoice", "Bill a tenant for a month."),
    "price": ("price", "Check price lists."),
    "usage": ("usage", "Show what was used, and what was idle."),
    "submit": ("submit", "Submit a batch script for Slurm as a job for Kubernetes."),
    "run": ("run", "Schedule a Kubernetes cluster."),
    "pool-controller": (
        "pool_controller",
        "Run pools alongside another scheduler: resize jobs, record usage.",
    ),
    "multikueue": ("multikueue", "Run jobs of a cluster in other clusters."),
    "drain": ("drain", "Announce maintenance, and say what becomes of the jobs there."),
    "snapshot": ("snapshot", "Save a cluster, as a scheduler sees it, to a file."),
    "crds": ("crds", "Install the kinds of other systems, where a cluster lacks them."),
    "admission": ("admission", "Defaults, refusals and warnings at creation, without a webhook."),
    "doctor": ("doctor", "Look at a cluster: what works, what does not, and what to do."),
    "migrate": ("migrate", "Move from another system, a namespace at a time, and back."),
    "topology": ("topology", "Show a machine: GPUs, NICs, NVLink, PCIe and NUMA."),
    "profile": ("profile", "Check profile files, and describe their format to editors."),
    "kind": ("kind", "Check how kinds of workloads become gangs."),
    "plugin": ("plugin", "List, create and check plugins."),
    "cluster": ("cluster", "Run an embedded cluster that kubectl can talk to."),
    "bench": ("bench", "Measure performance on this machine."),
}
_ELSEWHERE = {
    "dra-driver": "Publish a node's devices, and prepare them for the kubelet.",
    "remote-gpu-server": "Serve tensors to clients on other machines (a reference).",
}
"""Commands of other packages: entry points of the group bayplan.commands."""
_EXTRAS = {"dra-driver": "driver", "remote-gpu-server": "remote"}
"""The optional dependencies that these commands need."""
_FORMER = {"pools": "pool-controller"}
"""Former names of commands, which still run them."""
_TEXTS = {name: text for name, (_, text) in _COMMANDS.items()} | _ELSEWHERE


class _LazyGroup(click.Group):
    """A group that imports a command only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_TEXTS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _ELSEWHERE:
            return _loaded(cmd_name)
        if cmd_name not in _COMMANDS:
            return None
        # Only matrices of a few rows are multiplied here. Measured: a fifth of the CPU time of a
        # short command went to the threads that numpy's OpenBLAS starts, one a core.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        module = importlib.import_module(f"bayplan.cli.{_COMMANDS[cmd_name][0]}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands without importing them, and options."""
        names = [name for name in _TEXTS if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=_TEXTS[name]) for name in names]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_TEXTS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in _FORMER:
            name = _FORMER[args[0]]
            click.echo(f'"bayplan {args[0]}" is called "bayplan {name}" now', err=True)
            args = [name, *args[1:]]
        if args and args[0] not in _TEXTS and not args[0].startswith("-"):
            near = did_you_mean(args[0], _TEXTS)
            raise click.UsageError(f'There is no command "{args[0]}"{near}', ctx)
        return super().resolve_command(ctx, args)


def _loaded(name: str) -> click.Command:
    from importlib.metadata import entry_points

    (found,) = entry_points(group="bayplan.commands", name=name)
    try:
        command = found.load()
    except ModuleNotFoundError as exc:
        extra = _EXTRAS[name]
        raise InputError(f"{exc.name} is not installed: pip install 'bayplan[{extra}]'") from None
    assert isinstance(command, click.Command)
    return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="bayplan")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Schedule AI jobs by hardware and network topology."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    from bayplan.logs import print_notes

    print_notes()


def main() -> None:
    """Run the command line; errors that a user can fix end with a message and exit status 2."""
    expect_little_garbage()
    try:
        try:
            cli()
        finally:
            sys.stdout.flush()
    except BayplanError as exc:
        print(f"bayplan: {exc}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe.
        sys.stderr.close()
        sys.exit(0)
    except OSError as exc:
        print(f"bayplan: {exc.filename or 'standard output'}: {exc.strerror}", file=sys.stderr)
        # The rest of the buffer cannot be written either; Python would report that at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(2)
