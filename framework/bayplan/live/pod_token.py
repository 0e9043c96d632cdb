"""The token with which bayplan's own pods ask each other, and which nothing else accepts."""

from __future__ import annotations

from pathlib import Path

__all__ = ["AUDIENCE", "pod_token"]

AUDIENCE = "bayplan.dev"
"""For whom the token is. The API server, whose audience is another, refuses it."""
_PATH = Path("/var/run/secrets/bayplan.dev/token")


def pod_token() -> str:
    """Return the token that the kubelet gives to a pod of bayplan, "" in other places."""
    try:
        return _PATH.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
