"""``bayplan run``, ``pool-controller`` or ``multikueue`` as a process to be killed, and its log."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import yaml
from tests.forked import Forked
from tests.paths import ROOT

BAYPLAN = Path(sys.executable).with_name("bayplan")
PROFILE = ROOT / "configs" / "profiles" / "default.yaml"

_EXPECTED = re.compile(r"; retrying$|not followed for now")
"""What a server that is away, starts, or cannot reach etcd makes it say."""


class Scheduler:
    """One process after the other; by default it has the pods of schedulerName ``bayplan``."""

    def __init__(
        self,
        kubeconfig: Path,
        folder: Path,
        profile: Path = PROFILE,
        *more: str,
        command: str = "run",
    ) -> None:
        self.log = folder / "bayplan.log"
        # Only there it may follow the ConfigMaps of queues.
        content = yaml.safe_load(profile.read_text())
        content.setdefault("leaderElection", {}).setdefault("resourceNamespace", "bayplan-system")
        profile = folder / "process-profile.yaml"
        profile.write_text(yaml.safe_dump(content))
        self._arguments = [
            *(command, "--config", str(profile), "--kubeconfig", str(kubeconfig)),
            *(("--bind-address", "127.0.0.1:0") if command != "multikueue" else ()),
            *("--log-format", "json", "--no-leader-elect"),
            *more,
        ]
        self._process: Forked | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = Forked(*self._arguments, stderr=log, stdout=log)

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._process is not None, "started"
        assert self._process.poll() is None, f"it has ended:\n{self.log.read_text()[-2000:]}"
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it gracefully, if it runs; it has to say so."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            # One that has just begun does not handle the signal yet.
            assert self._process.wait(60) in (0, -signal.SIGTERM)

    def problems(self) -> list[str]:
        """Return the lines of the log that no fault explains."""
        return [line for line in self.log.read_text().splitlines() if not _is_expected(line)]


def _is_expected(line: str) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    if "exception" in entry or entry["level"] not in ("info", "warning"):
        return False
    return entry["level"] == "info" or bool(_EXPECTED.search(entry["msg"]))
