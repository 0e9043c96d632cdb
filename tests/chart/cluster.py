"""The definitions of a cluster of its own, on which nobody has installed anything."""

from __future__ import annotations

import time

from tests.cluster.apiserver.faces import Client
from tests.controlplane.plane import wait_until
from tests.live.deployed import Content

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PODS = "/api/v1/namespaces/default/pods"


def definitions(client: Client) -> list[Content]:
    """Return all of them."""
    return list(client.get(DEFINITIONS).json["items"])


def clear_definitions(client: Client) -> None:
    """Delete all of them, with their objects.

    The API server cannot yet list the objects of a kind that it has just begun to serve. It may
    then overlook the deletion for minutes, until the definition changes.
    """
    for one in definitions(client):
        client.delete(_path(one))
    wait_until(lambda: not _reminded(client), "kinds are gone")


def _reminded(client: Client) -> list[Content]:
    """Change the definitions that are still there; returns them."""
    for one in (left := definitions(client)):
        annotations = {"reminded": str(time.monotonic())}
        client.patch(_path(one), {"metadata": {"annotations": annotations}})
    time.sleep(bool(left))
    return left


def _path(definition: Content) -> str:
    return f"{DEFINITIONS}/{definition['metadata']['name']}"
