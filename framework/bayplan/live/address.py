"""The address that a process serves: what users write, and the socket that listens there."""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
from pathlib import Path

import msgspec

from bayplan.errors import InputError
from bayplan.inputs.sockets import is_loopback

__all__ = ["Address", "Listener", "parse_address"]

_BACKLOG = 128


def parse_address(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; an IPv6 address is in brackets.

    :raises ValueError: for anything else.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f'expected HOST:PORT such as 127.0.0.1:10259, got "{text}"')
    return host, int(port)


class Address(msgspec.Struct, frozen=True):
    """Where to listen, and the paths of the certificate, its key and a token file."""

    host: str = "127.0.0.1"
    port: int = 10259
    certificate: Path | None = None
    key: Path | None = None
    token: Path | None = None

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    def read_token(self) -> bytes:
        """Return the token in the file, empty when it cannot be read."""
        try:
            return b"" if self.token is None else self.token.read_bytes().strip()
        except OSError:
            return b""


class Listener:
    """Listens at an address; whoever connects waits until a server takes over its sockets.

    ``tls`` is that of the certificate, None without one; ``fingerprint`` the certificate's SHA-256
    in hexadecimal digits, "" for none.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.port = address.port
        self.sockets: list[socket.socket] = []
        self.tls: ssl.SSLContext | None = None
        self.fingerprint = ""

    def open(self) -> None:
        """Start listening.

        :raises InputError: when the address cannot be used, or would need TLS.
        """
        address = self.address
        self.tls = self._read_certificate()
        if address.token is not None and not address.read_token():
            raise InputError("holds no bearer token", str(address.token))
        try:
            found = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, where in dict.fromkeys(found):
                # A name may have addresses of a family that this machine lacks.
                if family != socket.AF_INET6 or socket.has_dualstack_ipv6() or len(found) == 1:
                    self.sockets.append(_bound(family, where))
        except OSError as exc:
            self.close()
            raise InputError(
                "cannot listen: is it in use? choose another with --bind-address "
                f"({exc.strerror or exc})",
                f"{address.host}:{address.port}",
            ) from None
        self.port = self.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop listening."""
        while self.sockets:
            self.sockets.pop().close()

    @property
    def url(self) -> str:
        """The URL; when listening on all addresses, with that of the pod (``POD_IP``)."""
        host = self.address.host
        if host in ("0.0.0.0", "::"):  # noqa: S104 - asked for, not chosen
            host = os.environ.get("POD_IP", host)
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.address.certificate else 'http'}://{host}:{self.port}"

    def _read_certificate(self) -> ssl.SSLContext | None:
        address = self.address
        if address.certificate is None or address.key is None:
            if not address.on_loopback:
                raise InputError(
                    "is reached from outside of this machine: give --tls-cert-file and "
                    "--tls-private-key-file",
                    f"--bind-address {address.host}",
                )
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(address.certificate, address.key)
            self.fingerprint = _fingerprint_of(address.certificate)
        except (OSError, ssl.SSLError) as exc:
            where = f"{address.certificate} with {address.key}"
            raise InputError(f"cannot be used: {exc}", where) from None
        return context


def _bound(family: int, where: tuple[object, ...]) -> socket.socket:
    """Return a socket that listens.

    :raises OSError: when it cannot.
    """
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Its IPv4 twin has a socket of its own.
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _fingerprint_of(path: Path) -> str:
    """Return the SHA-256 of the first certificate of a chain (PEM), in hexadecimal digits."""
    _, start, rest = path.read_text(encoding="ascii", errors="replace").partition(ssl.PEM_HEADER)
    body, end, _ = rest.partition(ssl.PEM_FOOTER)
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(f"{start}{body}{end}")).hexdigest()
