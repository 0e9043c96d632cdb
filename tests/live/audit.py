"""Roles that note which of their permissions are used, and what they did not allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from deployed import DEPLOY, SCHEDULER, Content, documents, only

from bayplan.cluster.apiserver.access import Role, Rule

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
        return Role(plain.user, tuple(_Noted(self, one) for one in _singles(plain)))

    def deployed(self, *more: str) -> Role:
        """Return the scheduler's role as it is deployed, with those of more manifests."""
        own = self.role(only("ClusterRole")["rules"])
        own += self.role(only("Role")["rules"], only("Role")["metadata"]["namespace"])
        for name in more:
            own += self.role(only("ClusterRole", documents(DEPLOY / name))["rules"])
        return own + Role(own.user, (_Last(self),))


def permissions(*rules: Content) -> set[Permission]:
    """Return the permissions that rules of manifests give."""
    return {_permission(one) for one in _singles(Role.of("", rules))}


def _singles(role: Role) -> Iterator[Rule]:
    for rule in role.rules:
        for group in rule.api_groups:
            for resource in rule.resources:
                for verb in rule.verbs:
                    yield Rule(
                        (group,),
                        (resource,),
                        (verb,),
                        rule.resource_names,
                        namespaces=rule.namespaces,
                    )


def _permission(rule: Rule) -> Permission:
    return rule.verbs[0], rule.api_groups[0], rule.resources[0]


class _Noted(Rule):
    def __init__(self, audit: Audit, rule: Rule) -> None:
        super().__init__(
            rule.api_groups,
            rule.resources,
            rule.verbs,
            rule.resource_names,
            namespaces=rule.namespaces,
        )
        object.__setattr__(self, "_audit", audit)

    def allows(
        self, verb: str, group: str, resource: str, namespace: str = "", name: str = ""
    ) -> bool:
        found = super().allows(verb, group, resource, namespace, name)
        if found:
            self._audit.used.add(_permission(self))  # type: ignore[attr-defined]
        return found


class _Last(Rule):
    """Comes after all others, and is asked where none of them allows a request."""

    def __init__(self, audit: Audit) -> None:
        super().__init__()
        object.__setattr__(self, "_audit", audit)

    def allows(
        self, verb: str, group: str, resource: str, namespace: str = "", name: str = ""
    ) -> bool:
        request = (verb, group, resource, namespace, name)
        self._audit.refused.append(request)  # type: ignore[attr-defined]
        return False
