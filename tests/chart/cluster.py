"""The definitions of a cluster of its own, on which nobody has installed anything."""

from __future__ import annotations

from tests.cluster.apiserver.faces import Client
from tests.controlplane.plane import wait_until
from tests.live.deployed import Content

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PODS = "/api/v1/namespaces/default/pods"


def definitions(client: Client) -> list[Content]:
    """Return all of them."""
    return list(client.get(DEFINITIONS).json["items"])


def clear_definitions(client: Client) -> None:
    """Delete all of them, with their objects."""
    for one in definitions(client):
        client.delete(f"{DEFINITIONS}/{one['metadata']['name']}")
    wait_until(lambda: not definitions(client), "kinds are gone")
