"""The driver's requests to a Kubernetes API server, through the official client.

The client does authentication (kubeconfig, tokens, certificates, exec plugins, in-cluster) and
HTTP; objects are bayplan's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import msgspec
import urllib3

from bayplan.api import ResourceClaim, ResourceSlice
from bayplan.api.dra import ResourcePool, ResourceSliceSpec
from bayplan.api.meta import ObjectMeta
from bayplan.api.objects import KINDS, DecodeError, decode_object
from bayplan.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    InputError,
    NotFound,
    Transient,
    Unauthorized,
)
from bayplan.schemas import field_problems
from bayplan_dra.driver.publish.publisher import Owner, SliceChange

__all__ = ["KubernetesApi"]

_GROUP = "/apis/resource.k8s.io/v1"
_SECONDS = 10.0
_WATCH_SECONDS = 50
_PAGE = 500


class KubernetesApi:
    """Implements ``app.DriverApi`` over HTTP; every method raises ``ClusterError`` on failure.

    :param kubeconfig: the path of a kubeconfig; None inside a cluster.
    :param context: the context of the kubeconfig; "" for its current one.
    :raises InputError: when the kubeconfig cannot be used, or this is no pod of a cluster.
    """

    def __init__(self, kubeconfig: Path | None, context: str = "") -> None:
        try:
            self._client = _client(kubeconfig, context)
        except (kubernetes.config.ConfigException, OSError, ValueError, TypeError) as exc:
            text = _short(str(exc))
            if kubeconfig is None:
                raise InputError(
                    f"this process does not run in a cluster ({text}); give --kubeconfig FILE"
                ) from None
            reason = text if kubeconfig.exists() else "there is no such file"
            raise InputError(reason, str(kubeconfig)) from None

    def owner(self, node: str) -> Owner:
        """Return a node's name and uid.

        :raises NotFound: when the node does not exist.
        """
        content = self._call("GET", f"/api/v1/nodes/{node}")
        return Owner(node, content["metadata"]["uid"])

    def slices(self, driver: str, node: str) -> list[ResourceSlice]:
        """Return the slices of a driver on a node."""
        query = {"fieldSelector": f"spec.driver={driver},spec.nodeName={node}", "limit": _PAGE}
        found: list[ResourceSlice] = []
        while True:
            page = self._call("GET", f"{_GROUP}/resourceslices", query=query)
            found += (_slice(item) for item in page.get("items") or ())
            more = page.get("metadata", {}).get("continue")
            if not more:
                return found
            query["continue"] = more

    def follow(self, driver: str, node: str) -> Iterator[SliceChange]:
        """Yield each change of a driver's slices on a node; end after a minute.

        Yields ``STARTED`` first: changes from then on are seen.
        """
        selector = f"spec.driver={driver},spec.nodeName={node}"
        query = {"fieldSelector": selector, "watch": "true", "timeoutSeconds": _WATCH_SECONDS}
        what, path = "WATCH", f"{_GROUP}/resourceslices"
        answer = self._sent(f"{what} {path}", "GET", path, None, query, 2.0 * _WATCH_SECONDS)
        try:
            if answer.status != 200:
                raise _error(f"{what} {path}", answer.status, _json_object(answer.read()))
            yield SliceChange.STARTED
            for line in answer.response:
                kind = _json_object(line).get("type")
                if kind == "ERROR":
                    return
                # A watch without a version first adds what is there.
                if kind in ("MODIFIED", "DELETED"):
                    yield SliceChange(kind)
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise Transient(f"{what} {path}: {_short(str(exc))}") from None
        finally:
            answer.response.close()

    def create(self, obj: ResourceSlice) -> ResourceSlice:
        """Create a slice."""
        return _slice(self._call("POST", f"{_GROUP}/resourceslices", _content(obj)))

    def update(self, obj: ResourceSlice) -> ResourceSlice:
        """Replace a slice.

        :raises Conflict: when it changed meanwhile.
        """
        path = f"{_GROUP}/resourceslices/{obj.metadata.name}"
        return _slice(self._call("PUT", path, _content(obj)))

    def delete(self, obj: ResourceSlice) -> None:
        """Delete a slice.

        :raises Conflict: when another one has its name now, or it changed meanwhile.
        """
        meta = obj.metadata
        body = {"preconditions": {"uid": meta.uid, "resourceVersion": meta.resource_version}}
        self._call("DELETE", f"{_GROUP}/resourceslices/{meta.name}", body)

    def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return a claim, None if it does not exist."""
        try:
            path = f"{_GROUP}/namespaces/{namespace}/resourceclaims/{name}"
            content = self._call("GET", path)
        except NotFound:
            return None
        try:
            found = decode_object(KINDS["resource.k8s.io", "ResourceClaim"], content)
        except (DecodeError, RecursionError) as exc:
            raise ClusterError(f"claim {namespace}/{name} cannot be read: {exc}") from None
        assert isinstance(found, ResourceClaim)
        return found

    def _call(
        self, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        what = f"{method} {path}"
        answer = self._sent(what, method, path, body, query, _SECONDS)
        try:
            content = json.loads(answer.read() or b"{}")
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise Transient(f"{what}: {_short(str(exc))}") from None
        except (ValueError, RecursionError):
            raise ClusterError(f"{what}: the answer is not JSON ({answer.status})") from None
        if not isinstance(content, dict):
            raise ClusterError(f"{what}: the answer is not a JSON object ({answer.status})")
        if not 200 <= answer.status < 300:
            raise _error(what, answer.status, content)
        return content

    def _sent(
        self,
        what: str,
        method: str,
        path: str,
        body: Any,
        query: dict[str, Any] | None,
        seconds: float,
    ) -> Any:
        """Send a request; return the answer before its body is read."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        try:
            request = self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            return self._client.call_api(*request, _request_timeout=seconds)
        except kubernetes.client.ApiException as exc:
            raise ClusterError(f"{what}: {_short(str(exc.reason))}") from None
        except kubernetes.config.ConfigException as exc:
            raise ClusterError(f"{what}: {_short(str(exc))}") from None
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise Transient(f"{what}: {_short(str(exc))}") from None


def _client(kubeconfig: Path | None, context: str) -> Any:
    settings = kubernetes.client.Configuration()
    if kubeconfig is None:
        kubernetes.config.load_incluster_config(settings)
    else:
        kubernetes.config.load_kube_config(str(kubeconfig), context or None, settings)
    settings.retries = False
    return kubernetes.client.ApiClient(settings)


def _content(obj: ResourceSlice) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(obj, enc_hook=lambda quantity: quantity.text)
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **plain}


def _slice(content: dict[str, Any]) -> ResourceSlice:
    # Items of a list do not say what they are.
    whole = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **content}
    try:
        found = decode_object(KINDS["resource.k8s.io", "ResourceSlice"], whole)
    except (DecodeError, RecursionError):
        return _unreadable(content)
    assert isinstance(found, ResourceSlice)
    problems = field_problems(whole["apiVersion"], whole["kind"], whole)
    strange = any(problem.unknown and problem.steps[0] == "spec" for problem in problems)
    return _unreadable(content) if strange else found


def _unreadable(content: dict[str, Any]) -> ResourceSlice:
    """Return a slice without the fields that a newer API server, or another client, added.

    It then differs from what is wanted, so the publisher writes it again.
    """
    kept = ("name", "uid", "resourceVersion", "ownerReferences")
    meta = {key: value for key, value in content["metadata"].items() if key in kept}
    pool = content["spec"].get("pool") or {}
    generation = pool.get("generation")
    spec = ResourceSliceSpec(
        str(content["spec"].get("driver", "")),
        ResourcePool(
            str(pool.get("name", "")), generation if isinstance(generation, int) else 0, 0
        ),
        str(content["spec"].get("nodeName", "")),
    )
    return ResourceSlice(spec, msgspec.convert(meta, ObjectMeta))


def _error(what: str, code: int, status: dict[str, Any]) -> ClusterError:
    """Return the error for an API server's answer."""
    text = f"{what}: {_short(str(status.get('message') or 'no reason given'))} ({code})"
    if code == 404:
        return NotFound(text)
    if code == 409:
        known = status.get("reason") == "AlreadyExists"
        return AlreadyExists(text) if known else Conflict(text)
    if code == 401:
        return Unauthorized(text)
    if code == 403:
        return Forbidden(f"{text}; the role in configs/deploy/dra-driver.yaml allows it")
    return Transient(text) if code == 429 or code >= 500 else ClusterError(text)


def _json_object(text: bytes) -> dict[str, Any]:
    """Return a JSON object, an empty one for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _short(text: str) -> str:
    return " ".join(text.split())[:500]
