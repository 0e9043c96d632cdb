"""Real programs that tests run against where a machine has them: Kubernetes and its peers.

The scripts that start them stand beside the project, in ``../shared``. They look for the programs
in ``$KUBE_BIN``; what is missing is skipped, with a word.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from tests.paths import SHARED

CLUSTER = SHARED / "kubernetes" / "cluster"
"""Starts a control plane."""
NODE = SHARED / "kubernetes" / "node"
"""Has the scripts that start a kubelet with containerd."""
PEERS = SHARED / "peers" / "peers"
"""Starts controllers of other projects."""
PROGRAMS = Path(os.environ.get("KUBE_BIN") or Path.home() / ".cache" / "kubernetes-bin")
"""Has the programs."""
HELM = PROGRAMS / "helm"
"""Installs charts."""
CONTROL_PLANE, SCHEDULER, KUBELET = "control plane", "kube-scheduler", "kubelet"
_PEERS = (
    *("jobset", "lws", "kueue", "trainer", "volcano", "kuberay", "mpi"),
    *("autoscaler", "karpenter", "kwok"),
)

RAN: set[str] = set()
"""The real programs that this process has started."""


def missing(*programs: str) -> str:
    """Return why there is no control plane here, or none with more programs; "" if there is."""
    return _missing(CLUSTER, programs)


def missing_helm() -> str:
    """Return why no chart can be rendered here; "" if one can."""
    return "" if HELM.exists() else f"there is no {HELM}"


def missing_peers(*names: str) -> str:
    """Return why peers cannot be started here; "" if they can."""
    return missing() or _missing(PEERS, names)


def report(ran: Iterable[str]) -> str:
    """Return a line that names the real programs of a run, and those that are not here."""
    absent = [CONTROL_PLANE] * bool(missing())
    absent += [name for name in (SCHEDULER, KUBELET) if missing(name) and not missing()]
    absent += [HELM.name] * bool(missing_helm())
    absent += [name for name in _PEERS if _missing(PEERS, (name,))]
    line = f"real programs of this run: {', '.join(sorted(ran)) or 'none'}"
    return f"{line}; not on this machine: {', '.join(absent)}" if absent else line


def environment(folder: Path, ports: range, **variables: str) -> Mapping[str, str]:
    """Return the environment of the scripts.

    :param folder: of the control plane.
    :param ports: the first is the API server's.
    """
    own = {"KCP": str(folder), "PORT": str(ports[0]), "KUBE_BIN": str(PROGRAMS)}
    return {**os.environ, **own, **variables}


@cache
def _missing(script: Path, names: tuple[str, ...]) -> str:
    if not script.exists():
        return f"there is no {script.name} script beside the project"
    command = [str(script), "have", *names]
    asked = subprocess.run(
        command, env={**os.environ, "KUBE_BIN": str(PROGRAMS)}, capture_output=True
    )
    return (
        "" if asked.returncode == 0 else asked.stderr.decode().strip() or f"{script} have: failed"
    )
