"""Delegated authentication and authorization: what may a bearer token read of this process?"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import msgspec

from bayplan.cluster.kubernetes.rate_limiter import RateLimiter
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import ClusterError, InputError

__all__ = ["TokenReviews"]

_REMEMBERED = 256
_SECONDS = 10.0
_ASKED_PER_SECOND = 5.0
_BURST = 20


class TokenReviews:
    """Asks the API server about tokens; caches an answer for ten seconds."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._rate = RateLimiter(_ASKED_PER_SECOND, _BURST)
        self._known: OrderedDict[tuple[str, str, str], tuple[bool, float]] = OrderedDict()

    async def allows(self, token: str, path: str) -> bool:
        """Return whether the token's user may get a path; False when the API server cannot say."""
        return await self._answer(token, "path", path)

    async def allows_tenant(self, token: str, tenant: str) -> bool:
        """Return whether the token's user may get a tenant's bills, as ``allows`` does.

        The permission is the verb get on the resource ``tenants`` of the group bayplan.dev, with
        the tenant as the resource's name; there need not be such an object.
        """
        return await self._answer(token, "tenant", tenant)

    async def _answer(self, token: str, kind: str, name: str) -> bool:
        now = time.monotonic()
        asked = (token, kind, name)
        known = self._known.get(asked)
        if known is not None and now - known[1] < _SECONDS:
            return known[0]
        if not self._rate.allows(now):
            # Guessing tokens must not load the API server.
            return False
        try:
            answer = await self._ask(token, _attributes(kind, name))
        except (ClusterError, InputError):
            return False
        self._known[asked] = (answer, now)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return answer

    async def _ask(self, token: str, attributes: dict[str, Any]) -> bool:
        who = await self._review("authentication.k8s.io", "TokenReview", {"token": token})
        if not who.get("authenticated"):
            return False
        user = who.get("user") or {}
        spec = {
            "user": user.get("username", ""),
            "groups": user.get("groups") or [],
            "uid": user.get("uid", ""),
            "extra": user.get("extra") or {},
            **attributes,
        }
        answer = await self._review("authorization.k8s.io", "SubjectAccessReview", spec)
        return bool(answer.get("allowed"))

    async def _review(self, group: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        path = f"/apis/{group}/v1/{kind.lower()}s"
        content = await self._transport.request("POST", path, msgspec.json.encode(body))
        answer = msgspec.json.decode(content)
        status = answer.get("status") if isinstance(answer, dict) else None
        return status if isinstance(status, dict) else {}


def _attributes(kind: str, name: str) -> dict[str, Any]:
    """Return what a SubjectAccessReview asks about."""
    if kind == "path":
        return {"nonResourceAttributes": {"path": name, "verb": "get"}}
    resource = {"group": "bayplan.dev", "resource": "tenants", "name": name, "verb": "get"}
    return {"resourceAttributes": resource}
