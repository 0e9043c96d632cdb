"""``bayplan remote-gpu-server``: serve tensors to clients on other machines."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from bayplan.errors import BayplanError, InputError

__all__ = ["command"]

_LAST_PORT = 65_535
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(name="remote-gpu-server")
@click.option("--listen", default="127.0.0.1:50051", show_default=True, metavar="HOST:PORT")
@click.option("--authority", type=_FILE, required=True, help="Who signs both sides (PEM).")
@click.option("--certificate", type=_FILE, required=True, help="Of this server (PEM).")
@click.option("--key", type=_FILE, required=True, help="Of this server; only its owner reads it.")
def command(listen: str, authority: Path, certificate: Path, key: Path) -> None:
    """Serve clients with a certificate of the same authority, until SIGTERM.

    A reference for the calls between a client and its worker: it computes on the CPU.
    """
    try:
        from bayplan_remote.certificates import Certificates
        from bayplan_remote.server import RemoteGpuServer
    except ModuleNotFoundError as exc:
        raise InputError(f"{exc.name} is not installed: pip install 'bayplan[remote]'") from None
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) <= _LAST_PORT):
        raise InputError(f'expected HOST:PORT with a port up to {_LAST_PORT}, got "{listen[:80]}"')
    server = RemoteGpuServer(listen, Certificates(authority, certificate, key))
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    server.start()
    click.echo(f"serving on {host}:{server.port}")
    over.wait()
    server.stop(grace=1.0)
    if len(server.sessions):
        raise BayplanError("sessions were left open")
