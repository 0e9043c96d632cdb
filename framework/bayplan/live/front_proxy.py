"""The API server as a front proxy: how it says for whom it asks an aggregated API server.

It shows a client certificate and names its caller in headers; a ConfigMap says which authority
signs that certificate, and which headers those are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace
from multidict import CIMultiDictProxy

from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import InputError
from bayplan.live.token_reviews import Caller

__all__ = ["AUTHENTICATED", "CONFIG_MAP", "FrontProxy", "as_authenticated", "front_proxy"]

CONFIG_MAP = "kube-system/extension-apiserver-authentication"
AUTHENTICATED = "system:authenticated"
"""The group of everybody whose name is known."""
_ANONYMOUS = "system:anonymous"
_PATH = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


class FrontProxy(msgspec.Struct, frozen=True):
    """What the ConfigMap says.

    :param authority: certificates that sign the proxy's, in PEM; "" where there is no proxy.
    :param names: the common names that it may have; any, if there are none.
    :param users: headers with the caller's name, of which the first that is there counts.
    :param extras: prefixes of headers with what else is known of the caller.
    """

    authority: str = ""
    names: Sequence[str] = ()
    users: Sequence[str] = ()
    uids: Sequence[str] = ()
    groups: Sequence[str] = ()
    extras: Sequence[str] = ()

    def caller(
        self, certificate: Mapping[str, Any] | None, headers: CIMultiDictProxy[str]
    ) -> Caller | None:
        """Return for whom the proxy asks; None where it is not the proxy that asks.

        :param certificate: of the client, verified by ``authority``, as ``ssl`` returns it.
        """
        if not certificate or not self.authority:
            return None
        if self.names and _common_name(certificate) not in self.names:
            return None
        name = _first(self.users, headers)
        if not name:
            return None
        groups = [value for header in self.groups for value in headers.getall(header, ())]
        return Caller(name, _first(self.uids, headers), tuple(groups), self._extra(headers))

    def _extra(self, headers: CIMultiDictProxy[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
        found: dict[str, list[str]] = {}
        for header, value in headers.items():
            for prefix in self.extras:
                if prefix and header.lower().startswith(prefix.lower()):
                    # Keys have characters that headers may not have.
                    found.setdefault(unquote(header[len(prefix) :].lower()), []).append(value)
        return tuple(sorted((key, tuple(values)) for key, values in found.items()))


def as_authenticated(caller: Caller) -> Caller:
    """Return a caller for whom a proxy asks with the group that Kubernetes' own servers add.

    The aggregator asks in a name without groups, and has its rights by this one.
    """
    if caller.name == _ANONYMOUS or AUTHENTICATED in caller.groups:
        return caller
    return replace(caller, groups=(*caller.groups, AUTHENTICATED))


async def front_proxy(transport: Transport) -> FrontProxy:
    """Read the ConfigMap.

    :raises ClusterError: when it cannot be read.
    :raises InputError: when it is not what an API server writes.
    """
    content = await transport.request("GET", _PATH)
    try:
        data = msgspec.json.decode(content, type=_ConfigMap).data
        lists = {
            field: msgspec.json.decode(data.get(f"requestheader-{name}", "[]"), type=list[str])
            for field, name in _FIELDS.items()
        }
    except msgspec.MsgspecError as exc:
        raise InputError(f"is not what an API server writes: {exc}", CONFIG_MAP) from None
    return FrontProxy(data.get("requestheader-client-ca-file", ""), **lists)


_FIELDS = {
    "names": "allowed-names",
    "users": "username-headers",
    "uids": "uid-headers",
    "groups": "group-headers",
    "extras": "extra-headers-prefix",
}


def _first(names: Sequence[str], headers: CIMultiDictProxy[str]) -> str:
    return next((value for name in names if (value := headers.get(name))), "")


def _common_name(certificate: Mapping[str, Any]) -> str:
    parts = (pair for part in certificate.get("subject", ()) for pair in part)
    return next((value for name, value in parts if name == "commonName"), "")
