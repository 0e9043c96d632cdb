"""Delegated authentication and authorization: may a bearer token read a path of this process?"""

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
        self._known: OrderedDict[tuple[str, str], tuple[bool, float]] = OrderedDict()

    async def allows(self, token: str, path: str) -> bool:
        """Return whether the token's user may get a path; False when the API server cannot say."""
        now = time.monotonic()
        known = self._known.get((token, path))
        if known is not None and now - known[1] < _SECONDS:
            return known[0]
        if not self._rate.allows(now):
            # Guessing tokens must not load the API server.
            return False
        try:
            answer = await self._ask(token, path)
        except (ClusterError, InputError):
            return False
        self._known[token, path] = (answer, now)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return answer

    async def _ask(self, token: str, path: str) -> bool:
        who = await self._review("authentication.k8s.io", "TokenReview", {"token": token})
        if not who.get("authenticated"):
            return False
        user = who.get("user") or {}
        spec = {
            "user": user.get("username", ""),
            "groups": user.get("groups") or [],
            "uid": user.get("uid", ""),
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": path, "verb": "get"},
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
