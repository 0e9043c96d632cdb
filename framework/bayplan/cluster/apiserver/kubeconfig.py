"""The file that tells kubectl where the server is and who asks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import yaml

__all__ = ["write_kubeconfig"]


def write_kubeconfig(path: Path, url: str, token: str | None) -> None:
    """Write a kubeconfig for a server, readable by nobody else, at once or not at all.

    :raises OSError: when it cannot be written.
    """
    user = {"token": token} if token is not None else {}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bayplan",
        "contexts": [{"name": "bayplan", "context": {"cluster": "bayplan", "user": "bayplan"}}],
        "clusters": [{"name": "bayplan", "cluster": {"server": url}}],
        "users": [{"name": "bayplan", "user": user}],
    }
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            yaml.safe_dump(content, file, sort_keys=False)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
