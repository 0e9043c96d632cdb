"""Authentication by bearer tokens and authorization by RBAC rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bayplan.cluster.api_errors import ApiError, forbidden

__all__ = ["Access", "Role", "Rule"]

_OPEN_PATHS = ("/api", "/apis", "/healthz", "/livez", "/openapi", "/readyz", "/version")


class Rule(msgspec.Struct, frozen=True):
    """One rule of a Role or ClusterRole; ``namespaces`` restricts it as a RoleBinding does."""

    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def allows(
        self, verb: str, group: str, resource: str, namespace: str = "", name: str = ""
    ) -> bool:
        """Return whether the rule allows a verb on a resource such as ``pods/binding``."""
        _, _, subresource = resource.partition("/")
        names = {resource, "*", f"*/{subresource}" if subresource else "*"}
        return (
            _has(self.verbs, verb)
            and _has(self.api_groups, group)
            and not names.isdisjoint(self.resources)
            and (not self.resource_names or name in self.resource_names)
            and (not self.namespaces or namespace in self.namespaces)
        )

    def allows_path(self, verb: str, path: str) -> bool:
        """Return whether the rule allows a verb on a non-resource path."""
        return _has(self.verbs, verb) and any(
            path == url or (url.endswith("*") and path.startswith(url[:-1]))
            for url in self.non_resource_urls
        )


class Role(msgspec.Struct, frozen=True):
    """A user and its rules."""

    user: str
    rules: tuple[Rule, ...] = ()

    @classmethod
    def of(cls, user: str, rules: Iterable[Mapping[str, Any]], namespace: str = "") -> Role:
        """Read the ``rules`` of a Role or ClusterRole manifest.

        :param namespace: where the rules apply; "" means everywhere.
        """
        return cls(
            user,
            tuple(
                Rule(
                    tuple(rule.get("apiGroups", ())),
                    tuple(rule.get("resources", ())),
                    tuple(rule.get("verbs", ())),
                    tuple(rule.get("resourceNames", ())),
                    tuple(rule.get("nonResourceURLs", ())),
                    (namespace,) if namespace else (),
                )
                for rule in rules
            ),
        )

    def __add__(self, other: Role) -> Role:
        return Role(self.user, self.rules + other.rules)


_ANY = ("*",)
_EVERYTHING = Role("bayplan:admin", (Rule(_ANY, _ANY, _ANY), Rule((), (), _ANY, (), _ANY)))


class Access:
    """The users of a server.

    :param tokens: roles by token, with None for an administrator; None instead of a mapping
        allows everybody everything.
    """

    def __init__(self, tokens: Mapping[str, Role | None] | None) -> None:
        self._tokens = tokens

    def user(self, token: str) -> Role:
        """Return the user with a token.

        :raises ApiError: 401, for an unknown token.
        """
        if self._tokens is None:
            return _EVERYTHING
        if token not in self._tokens:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return self._tokens[token] or _EVERYTHING

    def named(self, user: str) -> Role | None:
        """Return a user's role, None when there is no such user."""
        for role in (self._tokens or {}).values():
            if (role or _EVERYTHING).user == user:
                return role or _EVERYTHING
        return _EVERYTHING if user == _EVERYTHING.user else None


def authorize(role: Role, verb: str, group: str, resource: str, namespace: str, name: str) -> None:
    """Check that a user may use a verb on a resource.

    :raises ApiError: 403, otherwise.
    """
    if any(rule.allows(verb, group, resource, namespace, name) for rule in role.rules):
        return
    plural = resource.partition("/")[0]
    shown = f"{plural}.{group}" if group else plural
    shown = f'{shown} "{name}"' if name else shown
    scope = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    text = (
        f'{shown} is forbidden: User "{role.user}" cannot {verb} resource "{resource}" '
        f'in API group "{group}" {scope}'
    )
    raise forbidden(text, group, plural, name)


def authorize_path(role: Role, verb: str, path: str) -> None:
    """Check that a user may use a verb on a non-resource path.

    :raises ApiError: 403, otherwise.
    """
    if path == "/" or f"/{path.split('/')[1]}" in _OPEN_PATHS:
        return
    if not any(rule.allows_path(verb, path) for rule in role.rules):
        raise forbidden(f'forbidden: User "{role.user}" cannot {verb} path "{path}"')


def _has(values: tuple[str, ...], value: str) -> bool:
    return value in values or "*" in values
