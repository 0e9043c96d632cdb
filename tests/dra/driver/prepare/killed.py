"""A program that prepares and unprepares claims in a child, and kills it at random moments.

Usage: killed.py FOLDER SEED KILLS CALLS, with the least number of kills and of answered calls.
Prints one JSON object with what it saw; ``wrong`` should be empty.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

from bayplan.api import ResourceClaim
from bayplan.testing import make_object
from bayplan.topology.machine.readers.machinefile import known_machine
from bayplan_dra.driver.prepare.edits import DeviceFiles
from bayplan_dra.driver.prepare.preparer import Folders, PrepareError, Preparer
from bayplan_dra.driver.publish.devices import DRIVER, inventory_of

INVENTORY = inventory_of(known_machine("dgx-h100"))
CLAIMS = 12
"""Claims 0 to 3 and 8 to 11 have the same devices."""


class Claims:
    """An API server whose claims are all allocated."""

    def claim(self, namespace: str, name: str) -> ResourceClaim:
        number = int(name)
        result = {"request": "gpu", "driver": DRIVER, "pool": "n", "device": f"gpu-{number % 8}"}
        found = make_object(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{number}"},
                "spec": {},
                "status": {"allocation": {"devices": {"results": [result]}}},
            }
        )
        assert isinstance(found, ResourceClaim)
        return found


def make_preparer(root: Path) -> Preparer:
    folders = Folders(root / "plugin", root / "cdi")
    return Preparer(DRIVER, "n", folders, lambda: INVENTORY, Claims(), DeviceFiles(None))


def work(root: Path, seed: int, out: int) -> None:
    """Prepare and unprepare until killed; write a line before and after each call."""
    draw = random.Random(seed)
    preparer = make_preparer(root)
    preparer.recover()
    while True:
        number = draw.randrange(CLAIMS)
        prepares = draw.random() < 0.5
        word = "prepare" if prepares else "unprepare"
        os.write(out, f"begin {word} {number}\n".encode())
        try:
            if prepares:
                preparer.prepare("default", str(number), f"uid-{number}")
            else:
                preparer.unprepare(f"uid-{number}")
        except PrepareError:
            word = "refuse"
        os.write(out, f"end {word} {number}\n".encode())


def killed_at_random(root: Path, seed: int, after: float) -> list[str]:
    """Let a child work, kill it ``after`` seconds from its first line, and return its lines."""
    inward, outward = os.pipe()
    child = os.fork()
    if not child:
        os.close(inward)
        work(root, seed, outward)
    os.close(outward)
    select.select([inward], [], [])
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(inward) as stream:
        return stream.read().splitlines()


def main() -> None:
    root = Path(sys.argv[1])
    seed, kills, least = (int(text) for text in sys.argv[2:5])
    draw = random.Random(seed)
    prepared: dict[str, bool | None] = {}
    wrong: list[str] = []
    calls = 0
    in_flight = 0
    (root / "plugin").mkdir(parents=True)
    turn = 0
    while turn < kills or calls < least:
        turn += 1
        pending = ""
        for line in killed_at_random(root, draw.randrange(2**32), draw.uniform(0, 0.02)):
            when, word, number = line.split()
            pending = number if when == "begin" else ""
            calls += when == "end"
            if when == "end" and word != "refuse":
                prepared[f"uid-{number}"] = word == "prepare"
        if pending:
            in_flight += 1
            prepared[f"uid-{pending}"] = None
        preparer = make_preparer(root)
        wrong += [f"turn {turn}: damaged {text}" for text in preparer.recover()]
        wrong += [f"turn {turn}: {text}" for text in disagreements(root, preparer, prepared)]
    print(json.dumps({"kills": turn, "calls": calls, "inFlight": in_flight, "wrong": wrong}))


def disagreements(root: Path, preparer: Preparer, prepared: dict[str, bool | None]) -> list[str]:
    """Compare the disk with the answers; a call without an answer may have either result."""
    claims = preparer.checkpoint.claims()
    found = []
    for uid, expected in prepared.items():
        if expected is not None and expected != (uid in claims):
            found.append(f"{uid} is {'lost' if expected else 'there again'}")
        prepared[uid] = uid in claims
    files = {path.name.partition("_")[2].removesuffix(".json") for path in (root / "cdi").iterdir()}
    if files != set(claims):
        found.append(f"CDI files {sorted(files)}, claims {sorted(claims)}")
    devices = [device.name for claim in claims.values() for device in claim.devices]
    if len(devices) != len(set(devices)):
        found.append(f"devices twice: {sorted(devices)}")
    left = [path.name for path in (root / "plugin" / "claims").iterdir() if path.suffix != ".json"]
    return found + [f"{name} is left over" for name in left]


if __name__ == "__main__":
    main()
