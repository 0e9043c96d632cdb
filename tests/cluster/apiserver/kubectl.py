"""kubectl, asking an embedded API server."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.apiserver.faces import Face

from bayplan.cluster.protocol import Bind

__all__ = ["PROGRAM", "Kubectl"]

PROGRAM = shutil.which("kubectl") or ""


class Kubectl:
    """Runs kubectl on a cluster of its own."""

    def __init__(self, face: Face, folder: Path) -> None:
        self.face = face
        self.kubeconfig = folder / "kubeconfig"
        face.server.write_kubeconfig(self.kubeconfig)
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "KUBECONFIG": str(self.kubeconfig),
            # It lives for a moment: what it collects takes a quarter of its CPU time.
            "GOGC": "off",
        }

    def run(self, *arguments: str, stdin: Any = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *arguments],
            input=None if stdin is None else yaml.safe_dump(stdin),
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def __call__(self, *arguments: str, stdin: Any = None) -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *arguments: str, stdin: Any = None) -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PROGRAM, *arguments], env=self._environment, stdout=subprocess.PIPE, text=True
        )

    def bind(self, *names: str) -> None:
        def act(server: Any) -> None:
            for name in names:
                server.cluster.submit(Bind(f"default/{name}", "", "n1"))

        self.face.do(act)
