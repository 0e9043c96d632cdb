"""Kubeconfigs of clusters that a ClusterProfile describes (multicluster.x-k8s.io).

A profile says where a cluster is. Kueue gets credentials from programs that its configuration
names; here none is run. What the project's own two programs do is done here: they read a Secret.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from bayplan.errors import InputError
from bayplan.inputs.documents import parse_documents

__all__ = ["ReadSecret", "kubeconfig_of", "path_of_profile"]

Content = Mapping[str, Any]
ReadSecret = Callable[[str, str], Awaitable[bytes]]
"""Returns what a Secret, by its name, has under a key."""

_TOKEN, _KUBECONFIG = "secretreader", "kubeconfig-secretreader"
"""The names of the access providers whose credentials are in Secrets."""
_EXTENSION = "client.authentication.k8s.io/exec"
_OF_CLUSTER = ("server", "certificate-authority-data", "tls-server-name")
_OF_USER = ("token", "client-certificate-data", "client-key-data")


def path_of_profile(namespace: str, name: str) -> str:
    """Return where a ClusterProfile is in the API."""
    group = "/apis/multicluster.x-k8s.io/v1alpha1"
    return f"{group}/namespaces/{namespace}/clusterprofiles/{name}"


async def kubeconfig_of(profile: Content, source: str, namespace: str, read: ReadSecret) -> bytes:
    """Return a kubeconfig for a cluster.

    :param profile: its ClusterProfile, as JSON.
    :param source: what to call that in messages; :param namespace: that of the Secrets.
    :raises InputError: where its credentials are in no Secret.
    :raises ClusterError: when the Secret cannot be read.
    """
    providers = {str(one.get("name")): one for one in _providers(profile)}
    for name, user_of in ((_TOKEN, _user_by_token), (_KUBECONFIG, _user_by_kubeconfig)):
        if name in providers:
            cluster = providers[name].get("cluster") or {}
            details, where = _details(cluster), f"{source}: {name}"
            if details.get("namespace", namespace) != namespace:
                raise InputError(f"expected a Secret of the namespace {namespace}", where)
            user = await user_of(details, where, read)
            return _written(cluster, user)
    named = ", ".join(providers) or "none"
    raise InputError(
        f"credentials of its access providers ({named}) come from programs, which are never run: "
        f"give it the provider {_TOKEN} or {_KUBECONFIG}, or the cluster a kubeConfig",
        source,
    )


def _providers(profile: Content) -> Iterator[Content]:
    """Yield how to reach a cluster; of one name the last counts."""
    status = profile.get("status") or {}
    for field in ("credentialProviders", "accessProviders"):
        yield from (one for one in status.get(field) or () if isinstance(one, Mapping))


def _details(cluster: Content) -> Content:
    """Return what a provider's program would get to know of a cluster."""
    for one in cluster.get("extensions") or ():
        if one.get("name") == _EXTENSION and isinstance(one.get("extension"), Mapping):
            found: Content = one["extension"]
            return found
    return {}


async def _user_by_token(details: Content, source: str, read: ReadSecret) -> Content:
    name = details.get("clusterName")
    if not isinstance(name, str):
        raise InputError(f"expected clusterName in the extension {_EXTENSION}", source)
    token = await read(name, "token")
    return {"token": token.decode(errors="replace").strip()}


async def _user_by_kubeconfig(details: Content, source: str, read: ReadSecret) -> Content:
    name, key = details.get("name"), details.get("key")
    if not isinstance(name, str) or not isinstance(key, str):
        raise InputError(f"expected name and key in the extension {_EXTENSION}", source)
    text = (await read(name, key)).decode(errors="replace")
    documents = parse_documents(text, source)
    content = documents[0].content if len(documents) == 1 else None
    if not isinstance(content, dict):
        raise InputError("expected a kubeconfig", source)
    users = {one.get("name"): one.get("user") or {} for one in content.get("users") or ()}
    contexts = {one.get("name"): one.get("context") or {} for one in content.get("contexts") or ()}
    context = details.get("context") or content.get("current-context")
    user = users.get(contexts.get(context, {}).get("user"), {})
    found = {field: user[field] for field in _OF_USER if user.get(field)}
    if not found:
        raise InputError(f"its kubeconfig has no {', '.join(_OF_USER)}", source)
    return found


def _written(cluster: Content, user: Content) -> bytes:
    """Return a kubeconfig of one cluster, and one user; whatever else they have is left out."""
    own = {field: cluster[field] for field in _OF_CLUSTER if cluster.get(field)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": own}],
        "users": [{"name": "u", "user": dict(user)}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    return json.dumps(content).encode()
