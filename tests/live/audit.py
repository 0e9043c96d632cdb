"""Roles that note which of their permissions are used, and what they did not allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace
from tests.live.deployed import DEPLOY, SCHEDULER, Content, documents, only

from bayplan.cluster.apiserver.rbac import Role, Rule

Permission = tuple[str, str, str]
"""A verb, an API group, and a resource or a part of it."""


@dataclass
class Audit:
    """What the scheduler asked for: permissions that it used, requests that nothing allowed."""

    used: set[Permission] = field(default_factory=set)
    refused: list[tuple[str, str, str, str, str]] = field(default_factory=list)

    def role(self, rules: list[Content], namespace: str = "", user: str = "") -> Role:
        """Return the role of these rules, every permission of them by itself."""
        plain = Role.of(
            user or f"system:serviceaccount:bayplan-system:{SCHEDULER}", rules, namespace
        )
        return Role(
            plain.user,
            tuple(_Noted(**msgspec.structs.asdict(one), audit=self) for one in _singles(plain)),
        )

    def deployed(self, *more: str) -> Role:
        """Return the scheduler's role as it is deployed, with those of more manifests."""
        own = self.role(only("ClusterRole")["rules"])
        own += self.role(only("Role")["rules"], only("Role")["metadata"]["namespace"])
        for name in more:
            own += self.role(only("ClusterRole", documents(DEPLOY / name))["rules"])
            for one in documents(DEPLOY / name):
                if one["kind"] == "Role":
                    own += self.role(one["rules"], one["metadata"]["namespace"])
        return own + self.refusing(own.user)

    def refusing(self, user: str) -> Role:
        """Return a role that notes what comes to it, because no role before it allows it."""
        return Role(user, (_Last(audit=self),))


def permissions(*rules: Content) -> set[Permission]:
    """Return the permissions that rules of manifests give."""
    return {_permission(one) for one in _singles(Role.of("", rules))}


def _singles(role: Role) -> Iterator[Rule]:
    for rule in role.rules:
        for group in rule.api_groups:
            for resource in rule.resources:
                for verb in rule.verbs:
                    yield replace(rule, api_groups=(group,), resources=(resource,), verbs=(verb,))


def _permission(rule: Rule) -> Permission:
    return rule.verbs[0], rule.api_groups[0], rule.resources[0]


class _Noted(Rule, frozen=True):
    """A single permission that notes its use."""

    audit: Audit = msgspec.field(default_factory=Audit)

    def allows(
        self, verb: str, group: str, resource: str, namespace: str = "", name: str = ""
    ) -> bool:
        found = super().allows(verb, group, resource, namespace, name)
        if found:
            self.audit.used.add(_permission(self))
        return found


class _Last(Rule, frozen=True):
    """Comes after all others, and is asked where none of them allows a request."""

    audit: Audit = msgspec.field(default_factory=Audit)

    def allows(
        self, verb: str, group: str, resource: str, namespace: str = "", name: str = ""
    ) -> bool:
        self.audit.refused.append((verb, group, resource, namespace, name))
        return False
