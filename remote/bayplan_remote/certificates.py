"""Certificates for mutual TLS: who may call, and who answers."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

import grpc
import msgspec

from bayplan.errors import InputError

__all__ = ["Certificates"]

_MOST = 1 << 20


class Certificates(msgspec.Struct, frozen=True):
    """The authority that signs both sides, and one side's own certificate and key (PEM files)."""

    authority: Path
    certificate: Path
    key: Path

    def for_server(self) -> grpc.ServerCredentials:
        """Return what a server shows, and that it answers only clients of the authority.

        :raises InputError: when a file cannot be used, or others than its owner can read the key.
        """
        authority, certificate, key = self._read()
        return grpc.ssl_server_credentials(
            [(key, certificate)], root_certificates=authority, require_client_auth=True
        )

    def for_client(self) -> grpc.ChannelCredentials:
        """Return what a client shows, and that it calls only servers of the authority.

        :raises InputError: when a file cannot be used, or others than its owner can read the key.
        """
        authority, certificate, key = self._read()
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def _read(self) -> tuple[bytes, bytes, bytes]:
        found = _pem(self.authority), _pem(self.certificate), _pem(self.key, private=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_verify_locations(self.authority)
        except (ssl.SSLError, OSError):
            raise InputError("expected the certificate of an authority", f"{self.authority}") from (
                None
            )
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, OSError):
            text = f"expected a certificate whose key is {self.key}"
            raise InputError(text, f"{self.certificate}") from None
        return found


def _pem(path: Path, private: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MOST + 1)
    except OSError as exc:
        raise InputError(f"{exc.strerror}", f"{path}") from None
    if private and mode & (stat.S_IRWXG | stat.S_IRWXO):
        found = f"{stat.S_IMODE(mode):04o}"
        raise InputError(
            f"expected a key that only its owner can read (0600), got {found}", str(path)
        )
    if len(content) > _MOST or b"-----BEGIN " not in content:
        raise InputError("expected a PEM file", str(path))
    return content
