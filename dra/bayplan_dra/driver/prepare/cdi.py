"""CDI files: what a container runtime adds to a container that gets a device.

There is one file for each claim, so that no two claims share a name (Container Device Interface,
version 0.6.0). It has a CDI device for every device of the claim; one for every request, with what
a container gets that names this request; and, if there are several requests, one for the whole
claim, with what a container gets that names none. CDI applies them in order, and of a variable the
last value counts, so the one for the whole claim comes last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan_dra.driver.files import TEMPORARY, folder, remove, write_atomically

__all__ = ["CdiFolder", "Edits", "device_name", "joint_name", "qualified", "spec_text"]

_VERSION = "0.6.0"


class Edits(msgspec.Struct, frozen=True):
    """What is added to a container: environment, device files, mounts (host: inside).

    ``mounts`` are read-only, ``writable`` are not.
    """

    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    device_files: Sequence[str] = ()
    mounts: Mapping[str, str] = msgspec.field(default_factory=dict)
    writable: Mapping[str, str] = msgspec.field(default_factory=dict)

    def plus(self, other: Edits) -> Edits:
        """Return both together."""
        return Edits(
            {**self.environment, **other.environment},
            (*self.device_files, *other.device_files),
            {**self.mounts, **other.mounts},
            {**self.writable, **other.writable},
        )

    def content(self) -> dict[str, Any]:
        """Return the edits as CDI's containerEdits."""
        found: dict[str, Any] = {}
        if self.environment:
            found["env"] = [f"{name}={value}" for name, value in sorted(self.environment.items())]
        if self.device_files:
            found["deviceNodes"] = [{"path": path} for path in self.device_files]
        mounts = [(host, inside, "ro") for host, inside in sorted(self.mounts.items())]
        mounts += [(host, inside, "rw") for host, inside in sorted(self.writable.items())]
        if mounts:
            found["mounts"] = [
                {
                    "hostPath": host,
                    "containerPath": inside,
                    "options": [access, "nosuid", "nodev", "bind"],
                }
                for host, inside, access in mounts
            ]
        return found


def device_name(uid: str, device: str) -> str:
    """Return the CDI name of a device of a claim."""
    return f"{uid}-{device}"


def joint_name(uid: str, request: str) -> str:
    """Return the CDI name of what the devices of a request have in common; "" for all of them."""
    return f"{uid}.{request}" if request else uid


def qualified(driver: str, name: str) -> str:
    """Return the name by which the runtime finds a CDI device."""
    return f"{driver}/claim={name}"


def spec_text(
    driver: str, uid: str, devices: Mapping[str, Edits], joint: Mapping[str, Edits]
) -> str:
    """Return the text of a claim's CDI file.

    :param devices: what a container gets with each device, by its name.
    :param joint: what it gets with all devices of a request, by its name; "" for all requests.
    """
    content = {
        "cdiVersion": _VERSION,
        "kind": f"{driver}/claim",
        "devices": [
            *(
                {"name": device_name(uid, name), "containerEdits": _marked(name, edits)}
                for name, edits in devices.items()
            ),
            *(
                {"name": joint_name(uid, request), "containerEdits": edits.content()}
                for request, edits in joint.items()
            ),
        ],
    }
    return json.dumps(content, indent=1)


def _marked(name: str, edits: Edits) -> dict[str, Any]:
    """Return a device's edits with its name: runtimes refuse a device that edits nothing."""
    variable = f"BAYPLAN_DEVICE_{name.upper().replace('-', '_')}"
    return replace(edits, environment={**edits.environment, variable: name}).content()


class CdiFolder:
    """The CDI files of a driver, in a folder that other drivers use, too."""

    def __init__(self, path: Path, driver: str) -> None:
        self._path = folder(path, 0o755)
        self._prefix = f"{driver}-claim_"

    def write(self, uid: str, text: str) -> None:
        """Write a claim's file, unless it is already there."""
        path = self._file(uid)
        content = text.encode()
        if not path.exists() or path.read_bytes() != content:
            # After a crash of the machine, it is written again from the checkpoint.
            write_atomically(path, content, 0o644, durable=False)

    def remove(self, uid: str) -> None:
        """Remove a claim's file; a missing file is fine."""
        remove(self._file(uid))

    def keep_only(self, uids: Iterable[str]) -> None:
        """Remove the files of all other claims, and incomplete ones."""
        kept = {self._file(uid) for uid in uids}
        for path in self._path.glob(f"{self._prefix}*"):
            if path not in kept and path.name.endswith((".json", TEMPORARY)):
                remove(path)

    def _file(self, uid: str) -> Path:
        return self._path / f"{self._prefix}{uid}.json"
