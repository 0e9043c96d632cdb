"""Certificates for TLS tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def certificates(folder: Path, *names: str) -> None:
    """Make an authority, a certificate for 127.0.0.1 and more names, and one for a client."""
    own = ",".join(("IP:127.0.0.1", *(f"DNS:{name}" for name in names)))

    def openssl(*arguments: str) -> None:
        command = ["/usr/bin/env", "openssl", *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)

    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    usage = ("-addext", "keyUsage=critical,keyCertSign,digitalSignature")
    openssl(*new, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca", *usage)
    for name, more in (
        ("server", ("-addext", f"subjectAltName={own}")),
        ("client", ("-addext", "extendedKeyUsage=clientAuth")),
    ):
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key")
        openssl(
            *new,
            *signed,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.crt",
            *more,
            "-subj",
            f"/CN={name}",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        )


needs_openssl = pytest.mark.skipif(
    subprocess.run(
        ["/bin/sh", "-c", "openssl version | grep -q 'OpenSSL 3'"], check=False
    ).returncode
    != 0,
    reason="openssl 3 is not on this machine",
)
