"""Credentials for an API server, found as kubectl does: kubeconfig, environment, service account.

The official client reads what is not plain, and runs exec plugins; this module decides when to read
again, because tokens rotate while the scheduler runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import ssl
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from bayplan.cluster.kubernetes.kubeconfig import find_kubeconfig
from bayplan.cluster.kubernetes.plain_credentials import Found, in_kubeconfig, of_service_account
from bayplan.errors import InputError, did_you_mean
from bayplan.inputs.documents import parse_documents, read_text, similar_path

if TYPE_CHECKING:
    # It takes a third of a second to load.
    from kubernetes.aio.client import Configuration

__all__ = ["Credentials", "Endpoint", "Tls"]

_ROTATION = 60.0
"""Seconds after which a token file is read again, as client-go does."""
_SKEW = 60.0
"""Seconds before a token expires at which its exec plugin runs again."""
_PLUGIN_SECONDS = 60.0

_log = logging.getLogger("bayplan.cluster")


@dataclass(frozen=True)
class Tls:
    """How to trust an API server and to be trusted by it.

    :param authorities: the certificate authorities (PEM); None for those of this machine.
    :param certificate: this client's certificate and its chain (PEM), None for none.
    :param key: the certificate's key (PEM), None when it is in the same text.
    :param verify: whether the server's certificate is checked.
    """

    authorities: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    verify: bool = True


class Endpoint(msgspec.Struct, frozen=True):
    """An API server's address and TLS settings; ``tls`` is None for plain HTTP."""

    url: str
    tls: Tls | None = None
    server_name: str | None = None
    proxy: str | None = None


class Credentials:
    """The endpoint of an API server and the ``Authorization`` header for it.

    :param kubeconfig: a kubeconfig's path; None for kubectl's, or the pod's service account.
    :param context: the kubeconfig's context; "" for its current one.
    """

    def __init__(self, kubeconfig: Path | None, context: str = "") -> None:
        self._path = kubeconfig or find_kubeconfig()
        self._context = context
        self._authorization: str | None = None
        self._fresh_until = 0.0
        self._endpoint: Endpoint | None = None
        self._lock = asyncio.Lock()

    @property
    def source(self) -> str:
        """Where the credentials come from, for messages."""
        return str(self._path) if self._path is not None else "the pod's service account"

    @property
    def of_pod(self) -> bool:
        """Whether they are those of the pod in which this process runs."""
        return self._path is None

    async def endpoint(self) -> Endpoint:
        """Return the API server's endpoint: the same object until it changes.

        :raises InputError: when the kubeconfig cannot be used, or there is none.
        """
        await self.authorization()
        assert self._endpoint is not None, "set by loading"
        return self._endpoint

    async def authorization(self, refused: str | None = None) -> str | None:
        """Return the header's value, None without a token; ``refused`` is a value not accepted.

        :raises InputError: when the credentials cannot be loaded.
        """
        if self._is_stale(refused):
            async with self._lock:
                # When many requests are refused at once, only the first reloads.
                if self._is_stale(refused):
                    await self._load_or_keep(refused)
        return self._authorization

    async def _load_or_keep(self, refused: str | None) -> None:
        """Load the credentials; keep the last good ones while new ones cannot be read."""
        try:
            await self._load()
        except InputError as exc:
            if self._endpoint is None or refused is not None:
                raise
            _log.warning("%s; keeping the last credentials", exc)
            self._fresh_until = time.monotonic() + _ROTATION

    def _is_stale(self, refused: str | None) -> bool:
        over = time.monotonic() >= self._fresh_until
        return over or (refused is not None and refused == self._authorization)

    async def _load(self) -> None:
        found, lasts = self._plain() or await self._by_client()
        self._authorization = found.authorization
        self._endpoint = self._made(found)
        self._fresh_until = time.monotonic() + lasts

    def _plain(self) -> tuple[Found, float] | None:
        """Return credentials that are plain, and the seconds until they are read again."""
        if self._path is None:
            found = of_service_account()
        elif self._path.exists():
            found = in_kubeconfig(self._path, self._context)
        else:
            found = None
        return (found, _ROTATION) if found is not None else None

    async def _by_client(self) -> tuple[Found, float]:
        """Let the official client read them; return them, and for how many seconds they are valid.

        :raises InputError: when it cannot.
        """
        from kubernetes.aio.client import Configuration
        from kubernetes.aio.config import ConfigException

        settings = Configuration()
        where = str(self._path) if self._path is not None else ""
        with _errors() as errors:
            try:
                # Not wait_for, which loses a cancellation that arrives together with the answer.
                async with asyncio.timeout(_PLUGIN_SECONDS):
                    lasts = await self._read(settings)
            except ConfigException as exc:
                raise InputError(self._reason(_short(str(exc))), where) from None
            except TimeoutError:
                raise InputError("its exec plugin does not answer", where) from None
            except yaml.YAMLError as exc:
                raise InputError(
                    f"is not a kubeconfig: not YAML: {_short(str(exc))}", where
                ) from None
            except (TypeError, KeyError, AttributeError):
                expected = "expected a mapping with clusters, contexts and users"
                raise InputError(self._reason(f"is not a kubeconfig: {expected}"), where) from None
            except (OSError, ValueError) as exc:
                raise InputError(
                    self._reason(f"is not a kubeconfig: {_short(str(exc))}"), where
                ) from None
        if errors:
            raise InputError(_short(errors[0]), where)
        return _of_client(settings, where), lasts

    def _reason(self, text: str) -> str:
        if self._context and f"with name {self._context} in" in text:
            near = did_you_mean(self._context, self._contexts())
            return f'there is no context "{self._context}"{near}'
        if self._path is None:
            return f"this process does not run in a cluster ({text}); give --kubeconfig FILE"
        return text if self._path.exists() else f"there is no such file{similar_path(self._path)}"

    def _contexts(self) -> list[str]:
        """Return the names of the contexts of the kubeconfig."""
        assert self._path is not None, "only a file has contexts"
        try:
            (document, *_) = parse_documents(read_text(self._path), str(self._path))
            return [str(one["name"]) for one in document.content["contexts"]]
        except (InputError, LookupError, TypeError, ValueError):
            return []

    async def _read(self, settings: Configuration) -> float:
        """Let the client fill its settings; return for how many seconds they are valid."""
        from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

        if self._path is None:
            load_incluster_config(settings, try_refresh_token=False)
            return _ROTATION
        if not self._path.exists():
            raise ConfigException("there is no such file")
        # The client's own reader has no limits.
        parse_documents(read_text(self._path), str(self._path))
        loader: Any = await load_kube_config(
            str(self._path), self._context or None, settings, persist_config=False
        )
        expiry = getattr(loader, "exec_plugin_expiry", None)
        if expiry is not None:
            left = expiry - datetime.datetime.now(datetime.UTC)
            return max(1.0, float(left.total_seconds()) - _SKEW)
        return _ROTATION

    def _made(self, found: Found) -> Endpoint:
        """Return what the connections need: the same object as long as they need the same."""
        where = str(self._path) if self._path is not None else ""
        if not found.server.startswith(("http://", "https://")):
            raise InputError(f'the server "{found.server}" is not an http(s) address', where)
        tls = None
        if found.server.startswith("https://"):
            tls = Tls(found.authorities, found.certificate, found.key, found.verify)
        made = Endpoint(found.server.rstrip("/"), tls, found.server_name, found.proxy)
        if made == self._endpoint:
            return self._endpoint
        if tls is not None:
            try:
                _check(tls)
            except (ssl.SSLError, OSError, ValueError) as exc:
                raise InputError(f"its certificates cannot be used: {exc}", where) from None
        return made


def _of_client(settings: Configuration, where: str) -> Found:
    """Return what the official client has read."""
    try:
        authorities, certificate, key = (
            Path(name).read_bytes() if name else None
            for name in (settings.ssl_ca_cert, settings.cert_file, settings.key_file)
        )
    except OSError as exc:
        raise InputError(f"its certificates cannot be used: {exc}", where) from None
    return Found(
        settings.host,
        settings.api_key.get("BearerToken"),
        authorities,
        certificate,
        key,
        bool(settings.verify_ssl),
        settings.tls_server_name,
        settings.proxy,
    )


def _check(tls: Tls) -> None:
    """Check that certificates and keys can be used.

    :raises ssl.SSLError: when they cannot.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls.authorities is not None:
        context.load_verify_locations(cadata=tls.authorities.decode("ascii", "replace"))
    if tls.certificate is None:
        return
    # Only files can be checked.
    with tempfile.NamedTemporaryFile() as certificate, tempfile.NamedTemporaryFile() as key:
        certificate.write(tls.certificate)
        certificate.flush()
        key.write(tls.key or tls.certificate)
        key.flush()
        context.load_cert_chain(certificate.name, key.name)


@contextlib.contextmanager
def _errors() -> Iterator[list[str]]:
    """Collect errors that the client only logs, such as a failing exec plugin."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger = logging.getLogger("kubernetes.aio.config.kube_config")
    collector = Collector(logging.ERROR)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(collector)
    try:
        yield found
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagate


def _short(text: str) -> str:
    return " ".join(text.split())[:500]
