"""Commands that run on a real cluster until they are stopped: their options, and how they run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from bayplan.errors import InputError
from bayplan.inputs.choices import OneOf

if TYPE_CHECKING:
    from bayplan.live.app import Options
    from bayplan.live.bill_pages import Bills
    from bayplan.live.reading import Reading
    from bayplan.live.tenants import TenantAddress
    from bayplan.live.visibility import VisibilityAddress
    from bayplan.metering.journal import Journal
    from bayplan.profiles.loading import ProfileSet

__all__ = ["Served", "serve", "serving_options"]

F = TypeVar("F", bound=Callable[..., object])
_FILE = click.Path(path_type=Path, dir_okay=False)

_OPTIONS = (
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        required=True,
        metavar="FILE",
        help="The profile file.",
    ),
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The cluster's kubeconfig. By default: the profile's, kubectl's, or the pod's service "
        "account.",
    ),
    click.option("--context", default="", metavar="NAME", help="The context in the kubeconfig."),
    click.option(
        "--plugins-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="A folder of single-file plugins for the profile.",
    ),
    click.option("--dry-run", is_flag=True, help="Make decisions, but write nothing."),
    click.option(
        "--leader-elect/--no-leader-elect",
        default=True,
        help="Schedule only while holding the profile's Lease.",
    ),
    click.option(
        "--bind-address",
        default="127.0.0.1:10259",
        show_default=True,
        metavar="HOST:PORT",
        help="The address of /healthz, /readyz, /metrics and /debug.",
    ),
    click.option(
        "--tls-cert-file",
        type=_FILE,
        metavar="FILE",
        help="The TLS certificate; required beyond loopback.",
    ),
    click.option(
        "--tls-private-key-file",
        type=_FILE,
        metavar="FILE",
        help="The private key of the TLS certificate.",
    ),
    click.option(
        "--token-file",
        type=_FILE,
        metavar="FILE",
        help="The bearer token for /metrics and /debug beyond loopback. Without it, the API server "
        "reviews the caller's token.",
    ),
    click.option(
        "--usage-journal",
        metavar="URL",
        help="Record usage in this journal: a file, or a PostgreSQL URL.",
    ),
    click.option(
        "--prices",
        "price_file",
        type=_FILE,
        metavar="FILE",
        help="The price list: serve /allocation, /invoice and /usage from the journal.",
    ),
    click.option(
        "--accounts",
        "accounts_file",
        type=_FILE,
        metavar="FILE",
        help="The accounts file: credits, opening balances and budgets.",
    ),
    click.option(
        "--traces-endpoint",
        default="",
        metavar="URL",
        help="Send a trace of each job to this collector (OTLP over HTTP), such as "
        "http://collector:4318/v1/traces.",
    ),
    click.option(
        "--log-format",
        type=OneOf(["console", "json"]),
        default="console",
        show_default=True,
        help="The format of the log.",
    ),
)


def serving_options(function: F) -> F:
    """Add the options of a command that runs on a cluster; they are the fields of ``Served``."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


class Served(msgspec.Struct, frozen=True):
    """What such a command was asked for."""

    config: Path
    kubeconfig: Path | None
    context: str
    plugins_dir: Path | None
    dry_run: bool
    leader_elect: bool
    bind_address: str
    tls_cert_file: Path | None
    tls_private_key_file: Path | None
    token_file: Path | None
    usage_journal: str | None
    price_file: Path | None
    accounts_file: Path | None
    traces_endpoint: str
    log_format: str
    visibility_address: str | None = None
    tenant_address: str | None = None
    tenant_proxy_ca_file: Path | None = None
    tenant_proxy_name: str | None = None
    tenant_user_header: str = ""
    tenant_groups_header: str = ""


def serve(asked: Served, binds: bool) -> None:
    """Run until a signal ends it; exit with status 1 if the lease was lost.

    :param binds: whether it binds pods; otherwise another scheduler does.
    :raises InputError: for options and files that do not fit.
    """
    certificate, key = asked.tls_cert_file, asked.tls_private_key_file
    if (certificate is None) != (key is None):
        raise InputError("--tls-cert-file and --tls-private-key-file belong together")
    _check_readable("--tls-cert-file", certificate)
    _check_readable("--tls-private-key-file", key)
    _check_readable("--token-file", asked.token_file)
    _address("--bind-address", asked.bind_address)
    from bayplan.logs import set_up_logging

    set_up_logging(asked.log_format)
    status = asyncio.run(_serve(asked, binds))
    if status:
        raise SystemExit(status)


def _check_readable(option: str, path: Path | None) -> None:
    """Check that a file which is needed later can be read.

    :raises InputError: naming the option, when the file is missing or cannot be read.
    """
    if path is None:
        return
    try:
        with path.open("rb"):
            pass
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), f"{option} {path}") from None


async def _serve(asked: Served, binds: bool) -> int:
    """Load what serves a cluster while its API server makes the first lists; return the status."""
    reading = await _begin(asked)
    try:
        options = await asyncio.to_thread(_options, asked, binds)
        from bayplan.live.app import run

        return await run(options, reading)
    finally:
        if reading is not None:
            await reading.close()


async def _begin(asked: Served) -> Reading | None:
    """Begin to read the cluster; None where something is wrong, which is said where it is used."""
    from bayplan.live.reading import Reading
    from bayplan.profiles.loading import load_workload_kinds

    try:
        connection = load_workload_kinds(asked.config)
        kubeconfig = asked.kubeconfig or connection.path
        reading = Reading(kubeconfig, asked.context)
        await reading.start()
    except InputError:
        return None
    return reading


def _options(asked: Served, binds: bool) -> Options:
    from bayplan.live.address import Address
    from bayplan.live.app import Options
    from bayplan.profiles.finder import PluginFinder
    from bayplan.profiles.loading import load_profiles

    def load() -> ProfileSet:
        return load_profiles(asked.config, PluginFinder(asked.plugins_dir))

    load()
    certificate, key = asked.tls_cert_file, asked.tls_private_key_file
    host, port = _address("--bind-address", asked.bind_address)
    journal = _journal(asked.usage_journal)
    return Options(
        load,
        asked.kubeconfig,
        asked.context,
        asked.dry_run,
        asked.leader_elect,
        Address(host, port, certificate, key, asked.token_file),
        bills=_bills(journal, asked.price_file, asked.accounts_file),
        journal=journal,
        binds=binds,
        visibility=_visibility(asked),
        tenants=_tenants(asked),
        traces_endpoint=_traces_endpoint(asked.traces_endpoint),
    )


def _address(option: str, text: str) -> tuple[str, int]:
    """Return the host and the port that an option names."""
    from bayplan.live.address import parse_address

    try:
        return parse_address(text)
    except ValueError as exc:
        raise InputError(str(exc), option) from None


def _journal(place: str | None) -> Journal | None:
    """Return the journal of usage, None without one: its database library is slow to load."""
    if place is None:
        return None
    from bayplan.metering.journal import Journal

    return Journal(place)


def _traces_endpoint(text: str) -> str:
    """Return the URL of a collector, "" for none."""
    if text and not text.startswith(("http://", "https://")):
        raise InputError(
            f'expected a URL such as http://collector:4318/v1/traces, got "{text}"',
            "--traces-endpoint",
        )
    return text


def _visibility(asked: Served) -> VisibilityAddress | None:
    """Return where the visibility API is served, None for nowhere."""
    if asked.visibility_address is None:
        return None
    from bayplan.live.visibility import VisibilityAddress

    host, port = _address("--visibility-address", asked.visibility_address)
    if asked.tls_cert_file is None or asked.tls_private_key_file is None:
        raise InputError(
            "needs --tls-cert-file and --tls-private-key-file: aggregators speak TLS",
            "--visibility-address",
        )
    return VisibilityAddress(host, port, asked.tls_cert_file, asked.tls_private_key_file)


def _tenants(asked: Served) -> TenantAddress | None:
    """Return where the page for tenants is served, None for nowhere."""
    authority, name = asked.tenant_proxy_ca_file, asked.tenant_proxy_name
    if (authority is None) != (name is None):
        raise InputError("--tenant-proxy-ca-file and --tenant-proxy-name belong together")
    if asked.tenant_address is None:
        if authority is not None:
            raise InputError("needs --tenant-address", "--tenant-proxy-ca-file")
        return None
    from bayplan.live.tenants import SignOn, TenantAddress

    host, port = _address("--tenant-address", asked.tenant_address)
    if asked.tls_cert_file is None or asked.tls_private_key_file is None:
        raise InputError(
            "needs --tls-cert-file and --tls-private-key-file: tokens are not sent in clear text",
            "--tenant-address",
        )
    sign_on = None
    if authority is not None and name is not None:
        _check_readable("--tenant-proxy-ca-file", authority)
        sign_on = SignOn(authority, name, asked.tenant_user_header, asked.tenant_groups_header)
    return TenantAddress(host, port, asked.tls_cert_file, asked.tls_private_key_file, sign_on)


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
    from bayplan.billing.terms import BillingTermsFiles
    from bayplan.live.bill_pages import Bills

    return Bills.of_journal(BillingTermsFiles(price_file, accounts_file), journal)
