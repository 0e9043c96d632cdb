"""Credentials that are plain to read: tokens and certificates in files or in the kubeconfig itself.

The official client takes a third of a second to load; it reads everything else (exec plugins, auth
providers, passwords), and says what is wrong with what cannot be read here.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayplan.inputs.documents import parse_documents, read_text

__all__ = ["Found", "in_kubeconfig", "of_service_account"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts a pod's token and the cluster's authorities."""

_CLUSTER = frozenset(
    (
        *("server", "certificate-authority", "certificate-authority-data", "extensions"),
        *("insecure-skip-tls-verify", "tls-server-name", "proxy-url"),
    )
)
_USER = frozenset(
    (
        *("token", "tokenFile", "extensions"),
        *("client-certificate", "client-certificate-data", "client-key", "client-key-data"),
    )
)


@dataclass(frozen=True)
class Found:
    """What credentials say of an API server.

    :param server: its address.
    :param authorization: the header's value, None without one.
    :param authorities: the certificate authorities (PEM); None for those of this machine.
    :param certificate: this client's certificate (PEM), None for none.
    """

    server: str
    authorization: str | None = field(default=None, repr=False)
    authorities: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None
    proxy: str | None = None


class _NotPlain(Exception):
    """The official client has to read it."""


def of_service_account() -> Found | None:
    """Return the credentials of the pod in which this process runs; None where it finds none."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    try:
        token = (SERVICE_ACCOUNT / "token").read_text()
        authorities = (SERVICE_ACCOUNT / "ca.crt").read_bytes()
    except OSError:
        return None
    if not (host and port and token and authorities):
        return None
    at = f"[{host}]" if ":" in host else host
    return Found(f"https://{at}:{port}", f"bearer {token}", authorities)


def in_kubeconfig(path: Path, context: str = "") -> Found | None:
    """Return what a kubeconfig says of a context; None where it is not plain, or not right.

    :param context: the context's name; "" for the current one.
    :raises InputError: when the file cannot be read, or is not YAML.
    """
    (document, *more) = parse_documents(read_text(path), str(path)) or (None,)
    if document is None or more:
        return None
    try:
        return _of_context(document.content, context, path.parent.resolve())
    except (_NotPlain, LookupError, TypeError, ValueError, OSError):
        return None


def _of_context(content: Any, name: str, folder: Path) -> Found:
    context = _named(content["contexts"], name or content["current-context"])["context"]
    cluster = _mapping(_named(content["clusters"], context["cluster"])["cluster"], _CLUSTER)
    user: Mapping[str, Any] = {}
    if context.get("user"):
        user = _mapping(_named(content["users"], context["user"])["user"], _USER)
    server = _text(cluster["server"]).rstrip("/")
    secure = server.startswith("https")
    token = _token(user, folder)
    return Found(
        server,
        f"Bearer {token}" if token else None,
        _pem(cluster, "certificate-authority", folder) if secure else None,
        _pem(user, "client-certificate", folder) if secure else None,
        _pem(user, "client-key", folder) if secure else None,
        not cluster.get("insecure-skip-tls-verify", False),
        _optional(cluster, "tls-server-name"),
        _optional(cluster, "proxy-url"),
    )


def _named(entries: Any, name: Any) -> Mapping[str, Any]:
    """Return the only entry of a name.

    :raises _NotPlain: when there is none, or another.
    """
    found = [one for one in entries if one["name"] == name]
    if not isinstance(name, str) or len(found) != 1:
        raise _NotPlain
    return dict(found[0])


def _mapping(value: Any, known: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not value.keys() <= known:
        raise _NotPlain
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _NotPlain
    return value


def _optional(values: Mapping[str, Any], key: str) -> str | None:
    return _text(values[key]) if key in values else None


def _token(user: Mapping[str, Any], folder: Path) -> str:
    """Return the token; one in the kubeconfig comes before one in a file."""
    if "token" in user:
        return _text(user["token"])
    if "tokenFile" in user:
        return (folder / _text(user["tokenFile"])).read_text()
    return ""


def _pem(values: Mapping[str, Any], key: str, folder: Path) -> bytes | None:
    """Return a certificate or key; one in the kubeconfig comes before one in a file."""
    if f"{key}-data" in values:
        try:
            return base64.standard_b64decode(_text(values[f"{key}-data"])) or None
        except binascii.Error:
            raise _NotPlain from None
    if key in values:
        return (folder / _text(values[key])).read_bytes()
    return None
