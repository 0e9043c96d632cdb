"""Where the driver listens, and where the kubelet looks for it.

Instances that overlap during a rolling update have separate sockets, named after their pods' UIDs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from bayplan.errors import BayplanError

__all__ = ["MOST_PATH", "Sockets"]

MOST_PATH = 107
"""Bytes that a unix socket's path may have: 108 with the terminating zero."""


class Sockets(msgspec.Struct, frozen=True):
    """The folders of the kubelet, and the UID of the driver's pod ("" outside of one)."""

    registry: Path = Path("/var/lib/kubelet/plugins_registry")
    plugins: Path = Path("/var/lib/kubelet/plugins")
    pod_uid: str = ""

    def folder(self, driver: str) -> Path:
        """Return the driver's own folder."""
        return self.plugins / driver

    def service(self, driver: str) -> Path:
        """Return the socket that serves claims.

        :raises BayplanError: when the path is too long.
        """
        names = ["dra.sock"]
        if self.pod_uid:
            names = [f"dra-{self.pod_uid}.sock", f"dra-{_hash(self.pod_uid, 8)}.sock"]
        return _short_enough(self.folder(driver), names)

    def registration(self, driver: str) -> Path:
        """Return the socket by which the kubelet finds the driver.

        :raises BayplanError: when the path is too long.
        """
        names = [f"{driver}-reg.sock"]
        if self.pod_uid:
            both = f"{driver}\0{self.pod_uid}"
            names = [
                f"{driver}-{self.pod_uid}-reg.sock",
                f"{driver}-{_hash(self.pod_uid, 8)}-reg.sock",
                f"dra-{_hash(both, 16)}-reg.sock",
            ]
        return _short_enough(self.registry, names)


def _hash(text: str, size: int) -> str:
    return hashlib.sha256(text.encode()).digest()[:size].hex()


def _short_enough(folder: Path, names: list[str]) -> Path:
    for name in names:
        path = folder / name
        if len(str(path).encode()) <= MOST_PATH:
            return path
    raise BayplanError(
        f"{folder / names[-1]}: a socket's path has at most {MOST_PATH} bytes, this has "
        f"{len(str(folder / names[-1]).encode())}; choose a shorter folder"
    )
