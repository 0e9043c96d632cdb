"""Which kubeconfig is meant, and which namespace, as kubectl finds them."""

from __future__ import annotations

import os
from pathlib import Path

from bayplan.errors import InputError
from bayplan.inputs.documents import parse_documents, read_text

__all__ = ["context_namespace", "find_kubeconfig", "pod_namespace", "runs_in_pod"]

_NAMESPACE = "default"
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def find_kubeconfig() -> Path | None:
    """Return the kubeconfig that kubectl would read, None when there is none."""
    named = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    candidates = [Path(path) for path in named] or [Path.home() / ".kube" / "config"]
    existing = next((path for path in candidates if path.exists()), None)
    # A named file is meant even if it does not exist.
    return existing or (candidates[0] if named else None)


def runs_in_pod() -> bool:
    """Whether the kubelet has given this process the address of its API server."""
    return "KUBERNETES_SERVICE_HOST" in os.environ


def pod_namespace() -> str:
    """Return the namespace of the pod in which this process runs, "" in other places."""
    try:
        return _OWN_NAMESPACE.read_text().strip()
    except (OSError, ValueError):
        return ""


def context_namespace(kubeconfig: Path | None, context: str = "") -> str:
    """Return the namespace that kubectl would use; "default" where nothing names one.

    What is wrong with the file is found once it is used.

    :param kubeconfig: a kubeconfig's path; None for kubectl's, or the pod's service account.
    :param context: the kubeconfig's context; "" for its current one.
    """
    path = kubeconfig or find_kubeconfig()
    try:
        if path is None:
            return pod_namespace() or _NAMESPACE
        (document, *_) = parse_documents(read_text(path), str(path))
        content = document.content
        wanted = context or content.get("current-context")
        own = next(one["context"] for one in content["contexts"] if one["name"] == wanted)
        return str(own.get("namespace") or _NAMESPACE)
    except (InputError, OSError, LookupError, TypeError, ValueError, AttributeError, StopIteration):
        return _NAMESPACE
