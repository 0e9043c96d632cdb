"""What a container runtime makes of CDI files, as containerd does it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class CannotCreate(Exception):
    """The runtime cannot create a container."""


@dataclass
class Container:
    """What a process in a container finds.

    :ivar devices: the names of the CDI devices that it was created with.
    :ivar mounts: by the path inside, the host's.
    """

    devices: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    mounts: dict[str, str] = field(default_factory=dict)

    def _edit(self, edits: dict[str, Any]) -> None:
        for line in edits.get("env", ()):
            name, _, value = line.partition("=")
            self.environment[name] = value
        self.files += [one["path"] for one in edits.get("deviceNodes", ())]
        for mount in edits.get("mounts", ()):
            self.mounts[mount["containerPath"]] = mount["hostPath"]


def create(cdi: Path, names: Iterable[str]) -> Container:
    """Create a container with CDI devices, each once: in their order, after their file's own edits.

    :raises CannotCreate: for an unknown device, one that two files define, or one without edits.
    """
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    twice = set()
    for spec in _specs(cdi):
        for device in spec["devices"]:
            name = f"{spec['kind']}={device['name']}"
            if name in found:
                twice.add(name)
            found[name] = spec, device
    made = Container(tuple(dict.fromkeys(names)))
    edited: list[dict[str, Any]] = []
    for name in made.devices:
        if name not in found or name in twice:
            raise CannotCreate(f"unresolvable CDI devices {name}")
        spec, device = found[name]
        if spec not in edited:
            edited.append(spec)
            made._edit(spec.get("containerEdits", {}))
        made._edit(device["containerEdits"])
    return made


def _specs(cdi: Path) -> list[dict[str, Any]]:
    """Return the valid files; one that is not affects only its own devices."""
    found = []
    for path in sorted(cdi.glob("*.json")):
        try:
            spec = json.loads(path.read_text())
        except (ValueError, FileNotFoundError):
            continue
        if spec.get("kind") and all(one.get("containerEdits") for one in spec["devices"]):
            found.append(spec)
    return found
