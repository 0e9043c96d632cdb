"""Delegated authentication and authorization: who has a bearer token, and what may somebody do?"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from bayplan.cluster.kubernetes.rate_limiter import RateLimiter
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import ClusterError, InputError

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["Caller", "TokenReviews", "bearer_token"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_REMEMBERED = 256
_SECONDS = 10.0
_ASKED_PER_SECOND = 5.0
_BURST = 20


def bearer_token(request: web.Request) -> str:
    """Return the bearer token of a request, "" when it has none."""
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else ""


class Caller(msgspec.Struct, frozen=True):
    """Who sent a request, in the words of a SubjectAccessReview."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def spec(self) -> dict[str, Any]:
        """Return the part of a SubjectAccessReview's spec that says who."""
        extra = {name: list(values) for name, values in self.extra}
        return {"user": self.name, "uid": self.uid, "groups": list(self.groups), "extra": extra}


class _Answers(Generic[K, V]):
    """The latest answers, for as long as they count."""

    def __init__(self) -> None:
        self._known: OrderedDict[K, tuple[V, float]] = OrderedDict()

    def get(self, asked: K) -> tuple[V] | None:
        known = self._known.get(asked)
        fresh = known is not None and time.monotonic() - known[1] < _SECONDS
        return (known[0],) if known is not None and fresh else None

    def put(self, asked: K, answer: V) -> V:
        self._known[asked] = (answer, time.monotonic())
        self._known.move_to_end(asked)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return answer


class TokenReviews:
    """Asks the API server about tokens and callers; caches an answer for ten seconds.

    What the API server cannot say counts as a refusal.

    :param audience: whose tokens count beside those of the API server; "" for no others.
    """

    def __init__(self, transport: Transport, audience: str = "") -> None:
        self._transport = transport
        self._audience = audience
        self._rate = RateLimiter(_ASKED_PER_SECOND, _BURST)
        self._callers: _Answers[str, Caller | None] = _Answers()
        self._permits: _Answers[tuple[Caller, bytes], bool] = _Answers()

    async def allows(self, token: str, path: str) -> bool:
        """Return whether the token's user may get a path."""
        return await self._allows(token, {"nonResourceAttributes": {"path": path, "verb": "get"}})

    async def allows_tenant(self, token: str, tenant: str) -> bool:
        """Return whether the token's user may get a tenant's bills.

        The permission is the verb get on the resource ``tenants`` of the group bayplan.dev, with
        the tenant as the resource's name; there need not be such an object.
        """
        asked = {"group": "bayplan.dev", "resource": "tenants", "name": tenant, "verb": "get"}
        return await self._allows(token, {"resourceAttributes": asked})

    async def _allows(self, token: str, attributes: Mapping[str, Any]) -> bool:
        caller = await self.caller_of(token)
        return caller is not None and await self.permits(caller, attributes)

    async def caller_of(self, token: str) -> Caller | None:
        """Return whose token it is, None if it is nobody's."""
        known = self._callers.get(token)
        if known is not None:
            return known[0]
        if not self._rate.allows(time.monotonic()):
            # Guessing tokens must not load the API server.
            return None
        try:
            caller = await self._known(token)
            if caller is None and self._audience:
                caller = await self._known(token, self._audience)
        except (ClusterError, InputError):
            return None
        return self._callers.put(token, caller)

    async def _known(self, token: str, audience: str = "") -> Caller | None:
        """Return whose token for an audience it is; "" is the API server's own."""
        spec = {"token": token, **({"audiences": [audience]} if audience else {})}
        status = await self._review("authentication.k8s.io", "TokenReview", spec)
        # A server that does not know of audiences would take any token.
        if audience and audience not in (status.get("audiences") or ()):
            return None
        return _caller(status)

    async def permits(self, caller: Caller, attributes: Mapping[str, Any]) -> bool:
        """Return whether somebody may do something.

        :param attributes: ``resourceAttributes`` or ``nonResourceAttributes``, as in the spec of a
            SubjectAccessReview.
        """
        asked = caller, msgspec.json.encode(attributes, order="sorted")
        known = self._permits.get(asked)
        if known is not None:
            return known[0]
        spec = {**caller.spec(), **attributes}
        try:
            answer = await self._review("authorization.k8s.io", "SubjectAccessReview", spec)
        except (ClusterError, InputError):
            return False
        return self._permits.put(asked, bool(answer.get("allowed")))

    async def _review(self, group: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        path = f"/apis/{group}/v1/{kind.lower()}s"
        content = await self._transport.request("POST", path, msgspec.json.encode(body))
        answer = msgspec.json.decode(content)
        status = answer.get("status") if isinstance(answer, dict) else None
        return status if isinstance(status, dict) else {}


def _caller(status: Mapping[str, Any]) -> Caller | None:
    """Return who a TokenReview says that it is."""
    if not status.get("authenticated"):
        return None
    user = status.get("user") or {}
    extra = sorted((name, tuple(values)) for name, values in (user.get("extra") or {}).items())
    groups = tuple(user.get("groups") or ())
    return Caller(user.get("username", ""), user.get("uid", ""), groups, tuple(extra))
