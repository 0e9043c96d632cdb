"""The kubeconfig of a served cluster."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from bayplan.errors import InputError
from bayplan.inputs.limits import CONFIGURATION
from bayplan.inputs.yamltext import parse_yaml

__all__ = ["check_free", "is_ours", "is_served", "remove_kubeconfig", "write_kubeconfig"]

_MARK = "# Written by bayplan cluster up, and removed when it ends."


def write_kubeconfig(path: Path, url: str, token: str | None) -> None:
    """Write a kubeconfig for a server atomically, readable only by its owner.

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
            file.write(f"{_MARK}\n")
            yaml.safe_dump(content, file, sort_keys=False)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def is_ours(path: Path) -> bool:
    """Return whether a file is a kubeconfig written by this module."""
    try:
        return path.read_text(errors="replace").startswith(_MARK)
    except OSError:
        return False


def is_served(path: Path) -> bool:
    """Return whether the server of a kubeconfig written by this module still listens."""
    try:
        content = next(parse_yaml(path.read_text(), CONFIGURATION))
        address = urlsplit(content["clusters"][0]["cluster"]["server"])
        with socket.create_connection((address.hostname, address.port), timeout=1):
            return True
    except (OSError, ValueError, TypeError, KeyError, IndexError, StopIteration):
        return False


def check_free(path: Path) -> None:
    """Check that a kubeconfig may be written at a path.

    :raises InputError: when the file is foreign, or belongs to a running cluster.
    """
    if path.exists() and not is_ours(path):
        raise InputError(
            "exists and was not written by bayplan cluster up; choose another file", str(path)
        )
    if is_served(path):
        raise InputError(
            "is that of a cluster that runs; choose another file with --kubeconfig", str(path)
        )


def remove_kubeconfig(path: Path, token: str) -> None:
    """Remove a kubeconfig unless another server has replaced it.

    :raises OSError: when it cannot be removed.
    """
    if is_ours(path) and token in path.read_text():
        path.unlink()
