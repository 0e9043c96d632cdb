"""bayplan run: schedule a real cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bayplan.errors import InputError

if TYPE_CHECKING:
    from bayplan.live.bill_pages import Bills
    from bayplan.metering.journal import Journal

__all__ = ["command"]

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(name="run")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The profile file.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The cluster's kubeconfig. By default: the profile's, kubectl's, or the pod's service "
    "account.",
)
@click.option("--context", default="", metavar="NAME", help="The context in the kubeconfig.")
@click.option(
    "--plugins-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder of single-file plugins for the profile.",
)
@click.option("--dry-run", is_flag=True, help="Make decisions, but write nothing.")
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    help="Schedule only while holding the profile's Lease.",
)
@click.option(
    "--bind-address",
    default="127.0.0.1:10259",
    show_default=True,
    metavar="HOST:PORT",
    help="The address of /healthz, /readyz, /metrics and /debug.",
)
@click.option(
    "--tls-cert-file",
    type=_FILE,
    metavar="FILE",
    help="The TLS certificate; required beyond loopback.",
)
@click.option(
    "--tls-private-key-file",
    type=_FILE,
    metavar="FILE",
    help="The private key of the TLS certificate.",
)
@click.option(
    "--token-file",
    type=_FILE,
    metavar="FILE",
    help="The bearer token for /metrics and /debug beyond loopback. Without it, the API server "
    "reviews the caller's token.",
)
@click.option(
    "--usage-journal",
    metavar="URL",
    help="Record usage in this journal: a file, or a PostgreSQL URL.",
)
@click.option(
    "--prices",
    "price_file",
    type=_FILE,
    metavar="FILE",
    help="The price list: serve /allocation, /invoice and /usage from the journal.",
)
@click.option(
    "--accounts",
    "accounts_file",
    type=_FILE,
    metavar="FILE",
    help="The accounts file: credits, opening balances and budgets.",
)
@click.option(
    "--log-format",
    type=click.Choice(["console", "json"]),
    default="console",
    show_default=True,
    help="The format of the log.",
)
def command(
    config: Path,
    kubeconfig: Path | None,
    context: str,
    plugins_dir: Path | None,
    dry_run: bool,
    leader_elect: bool,
    bind_address: str,
    tls_cert_file: Path | None,
    tls_private_key_file: Path | None,
    token_file: Path | None,
    usage_journal: str | None,
    price_file: Path | None,
    accounts_file: Path | None,
    log_format: str,
) -> None:
    """Schedule the pods of a Kubernetes cluster that name one of the profiles.

    SIGTERM stops it after pending bindings are done; SIGHUP reloads the profiles. Prices and
    accounts are reloaded when they change.
    """
    from bayplan.cli.options import check_readable, profiles
    from bayplan.live.app import Options, run
    from bayplan.live.web import Address, parse_address
    from bayplan.logs import set_up_logging
    from bayplan.metering.journal import Journal

    if (tls_cert_file is None) != (tls_private_key_file is None):
        raise InputError("--tls-cert-file and --tls-private-key-file belong together")
    check_readable("--tls-cert-file", tls_cert_file)
    check_readable("--tls-private-key-file", tls_private_key_file)
    check_readable("--token-file", token_file)
    try:
        host, port = parse_address(bind_address)
    except ValueError as exc:
        raise InputError(str(exc), "--bind-address") from None
    journal = Journal(usage_journal) if usage_journal is not None else None
    options = Options(
        lambda: profiles(config, plugins_dir),
        kubeconfig,
        context,
        dry_run,
        leader_elect,
        Address(host, port, tls_cert_file, tls_private_key_file, token_file),
        bills=_bills(journal, price_file, accounts_file),
        journal=journal,
    )
    set_up_logging(log_format)
    status = asyncio.run(run(options))
    if status:
        raise SystemExit(status)


def _bills(
    journal: Journal | None, price_file: Path | None, accounts_file: Path | None
) -> Bills | None:
    """Return what the pages of costs are computed from, None where no prices are given."""
    if price_file is None:
        if accounts_file is not None:
            raise InputError("needs --prices", "--accounts")
        return None
    if journal is None:
        raise InputError("needs --usage-journal", "--prices")
    from bayplan.billing.book import BookFiles
    from bayplan.live.bill_pages import Bills

    return Bills.of_journal(BookFiles(price_file, accounts_file), journal)
