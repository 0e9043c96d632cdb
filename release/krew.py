"""The kubectl plugin for krew: a program that starts bayplan, and the manifest of its archive.

https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

__all__ = ["manifest", "plugin_files"]

_PROGRAM = """\
#!/bin/sh
# bayplan is a Python package: krew brings this program only.
if ! command -v bayplan >/dev/null; then
  echo "bayplan is not installed: pip install bayplan=={version}" >&2
  exit 1
fi
exec bayplan "$@"
"""


def plugin_files(version: str, licence: bytes) -> Mapping[str, tuple[bytes, int]]:
    """Return the files of the plugin's archive, with their modes."""
    program = _PROGRAM.format(version=version).encode()
    return {"kubectl-bayplan": (program, 0o755), "LICENSE": (licence, 0o644)}


def manifest(version: str, url: str, archive: bytes) -> dict[str, Any]:
    """Return krew's manifest.

    :param url: where the archive is downloaded from.
    """
    systems = {"key": "os", "operator": "In", "values": ["darwin", "linux"]}
    platform = {
        "selector": {"matchExpressions": [systems]},
        "uri": url,
        "sha256": hashlib.sha256(archive).hexdigest(),
        "bin": "kubectl-bayplan",
        "files": [{"from": name, "to": "."} for name in ("kubectl-bayplan", "LICENSE")],
    }
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "bayplan"},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "Why jobs wait, queues, pools and drains of AI clusters",
            "description": "Asks the scheduler bayplan: kubectl bayplan why|top|queue|pool|drain.",
            "caveats": f"It starts bayplan, a Python package: pip install bayplan=={version}\n",
            "platforms": [platform],
        },
    }
