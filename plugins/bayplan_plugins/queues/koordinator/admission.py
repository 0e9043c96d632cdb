"""What may be written: changes of quotas that are admitted, refused or completed.

The rules and most texts: koordinator-sh/koordinator, pkg/webhook/elasticquota
(quota_topology.go, quota_topology_check.go). Nothing here depends on usage or on nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from bayplan.api import ElasticQuota
from bayplan.api.elastic_quota import QUOTA_PREFIX, amounts_in, names_in
from bayplan.api.resources import amount_of
from bayplan.dialects.koordinator.elastic_quota import (
    BUILTIN_QUOTAS,
    ROOT_QUOTA,
    SYSTEM_QUOTA,
    QuotaDefinition,
    ResourceList,
    definition_of,
    quantity_of,
)
from bayplan_plugins.queues.koordinator.features import QuotaFeatures
from bayplan_plugins.queues.koordinator.resource_lists import added, at_least, within

__all__ = ["QuotaRefused", "QuotaTopology"]

_SHOWN_PODS = 2


class QuotaRefused(ValueError):
    """A change of a quota is refused; the text says why."""


class QuotaTopology:
    """The quotas that exist, against which changes are checked.

    :param features: the gates that are on.
    """

    def __init__(self, features: QuotaFeatures | None = None) -> None:
        self._features = features if features is not None else QuotaFeatures()
        self.quotas: dict[str, QuotaDefinition] = {}
        self.children: dict[str, set[str]] = {ROOT_QUOTA: set()}
        self._bound: dict[str, str] = {}
        """The quota that lists a namespace."""

    # What has happened -------------------------------------------------------------------

    def put(self, quota: ElasticQuota) -> None:
        """Take over a quota that exists, or exists otherwise than before; nothing is checked."""
        self._store(definition_of(quota))

    def drop(self, name: str) -> None:
        """Forget a quota that no longer exists."""
        known = self.quotas.pop(name, None)
        self.children.pop(name, None)
        if known is not None:
            self.children.get(known.parent, set()).discard(name)
            self._unbind(known)

    def _store(self, definition: QuotaDefinition) -> None:
        known = self.quotas.get(definition.name)
        if known is not None:
            self._unbind(known)
            if known.parent != definition.parent:
                self.children.get(known.parent, set()).discard(known.name)
        self.quotas[definition.name] = definition
        self.children.setdefault(definition.name, set())
        self.children.setdefault(definition.parent, set()).add(definition.name)
        for namespace in definition.namespaces:
            self._bound.setdefault(namespace, definition.name)

    def _unbind(self, definition: QuotaDefinition) -> None:
        for namespace in definition.namespaces:
            if self._bound.get(namespace) == definition.name:
                del self._bound[namespace]

    # What is to happen -------------------------------------------------------------------

    def completed(self, quota: ElasticQuota) -> ElasticQuota:
        """Return a quota with its defaults: the root as parent, the parent's tree, max as weight.

        :raises QuotaRefused: for a parent that does not exist, or a weight that is not amounts.
        """
        meta = quota.metadata
        if meta.name == ROOT_QUOTA:
            return quota
        labels, annotations = dict(meta.labels), dict(meta.annotations)
        parent = labels.get(f"{QUOTA_PREFIX}parent") or ROOT_QUOTA
        labels[f"{QUOTA_PREFIX}parent"] = parent
        if not labels.get(f"{QUOTA_PREFIX}tree-id") and parent != ROOT_QUOTA:
            if parent not in self.quotas:
                raise QuotaRefused(f"fill quota {meta.name} failed, parent not exist")
            if self.quotas[parent].tree:
                labels[f"{QUOTA_PREFIX}tree-id"] = self.quotas[parent].tree
        annotations[f"{QUOTA_PREFIX}shared-weight"] = _weight(quota)
        meta = msgspec.structs.replace(meta, labels=labels, annotations=annotations)
        return msgspec.structs.replace(quota, metadata=meta)

    def add(self, quota: ElasticQuota) -> None:
        """Admit a new quota.

        :raises QuotaRefused: with the reason.
        """
        own = definition_of(quota)
        if own.name in self.quotas:
            raise QuotaRefused(f"AddQuota quota already exist:{own.name}")
        for namespace in own.namespaces:
            if namespace in self._bound:
                raise QuotaRefused(
                    f"AddQuota quota {own.name}'s annotation namespace {namespace} is already "
                    f"bound to quota {self._bound[namespace]}"
                )
        check_amounts(quota)
        self._check_place(None, own, ())
        self._store(own)

    def update(self, old: ElasticQuota, new: ElasticQuota, pods: Sequence[str] = ()) -> None:
        """Admit the change of a quota.

        :param pods: the names of the pods that belong to it.
        :raises QuotaRefused: with the reason.
        """
        before, own = definition_of(old), definition_of(new)
        if _what_counts(before) == _what_counts(own):
            return
        if own.name in (ROOT_QUOTA, SYSTEM_QUOTA):
            raise QuotaRefused(f"invalid quota {own.name}")
        for namespace in own.namespaces:
            bound = self._bound.get(namespace, own.name)
            if bound != own.name:
                raise QuotaRefused(
                    f"UpdateQuota, quota {own.name} update namespaces, but namespace {namespace} "
                    f"is already bound to quota {bound}"
                )
        if own.name not in self.quotas:
            raise QuotaRefused(f"UpdateQuota quota not exist in quotaInfoMap:{own.name}")
        check_amounts(new)
        self._check_place(self.quotas[own.name], own, pods)
        self._store(own)

    def delete(self, name: str, pods: Sequence[str] = ()) -> None:
        """Admit the deletion of a quota, which has to be empty.

        :param pods: the names of the pods that belong to it.
        :raises QuotaRefused: with the reason.
        """
        if name in BUILTIN_QUOTAS:
            raise QuotaRefused(f"can not delete quotaGroup :{name}")
        if name not in self.quotas:
            raise QuotaRefused(f"not found quota:{name}")
        if name not in self.children:
            raise QuotaRefused(_lost(name))
        if self.children[name]:
            count = len(self.children[name])
            raise QuotaRefused(f"delete quota failed, quota {name} has {count} child quotas")
        if pods:
            shown = [*pods[:_SHOWN_PODS], *(["..."] if len(pods) > _SHOWN_PODS else [])]
            raise QuotaRefused(
                f"delete quota failed, quota {name} has {len(pods)} child pods: {', '.join(shown)}"
            )
        self.drop(name)

    def add_pod(self, pod: str, name: str) -> None:
        """Admit a pod, by name, to a quota.

        :raises QuotaRefused: for a quota that has children; its runtime is theirs.
        """
        if name in self.quotas and name not in BUILTIN_QUOTAS and self.quotas[name].is_parent:
            raise QuotaRefused(
                f"pod can not be linked to a parentQuotaGroup,quota:{name}, pod:{pod}"
            )

    # Checks ------------------------------------------------------------------------------

    def _check_place(
        self, before: QuotaDefinition | None, own: QuotaDefinition, pods: Sequence[str]
    ) -> None:
        if own.name == ROOT_QUOTA:
            return
        if before is not None and before.is_parent != own.is_parent:
            if self.children.get(own.name) and not own.is_parent:
                raise QuotaRefused(
                    "quota has children, isParent is forbidden to modify as false, "
                    f"quotaName:{own.name}"
                )
            if pods and own.is_parent:
                raise QuotaRefused(
                    "quota has bound pods, isParent is forbidden to modify as true, "
                    f"quotaName: {own.name}"
                )
        self.check_tree(before, own)
        if own.parent == ROOT_QUOTA and not own.is_parent:
            return
        self.check_parent(own.name, own.parent)
        self.check_resources(own)
        self.check_mins(own)
        if self._features.guarantee:
            self.check_guarantee(own)

    def check_tree(self, before: QuotaDefinition | None, own: QuotaDefinition) -> None:
        """Refuse a quota in another tree than before, than its parent, or than its children."""
        if before is not None and before.tree != own.tree:
            raise QuotaRefused(f"{own.name} tree id changed [{before.tree}] vs [{own.tree}]")
        near = [("child", name) for name in sorted(self.children.get(own.name, ()))]
        if own.parent != ROOT_QUOTA:
            near.insert(0, ("parent", own.parent))
        for relation, name in near:
            if name in self.quotas and self.quotas[name].tree != own.tree:
                raise QuotaRefused(
                    f"{own.name} tree id is different from {relation} {name}, "
                    f"[{own.tree}] vs [{self.quotas[name].tree}]"
                )

    def check_parent(self, name: str, parent: str) -> None:
        """Refuse a parent that does not exist, is not one, or is the quota itself or below it."""
        if parent == ROOT_QUOTA:
            return
        if parent not in self.quotas:
            raise QuotaRefused(
                f"{name} has parentName {parent} but not find parentInfo in quotaInfoMap"
            )
        if parent not in self.children:
            raise QuotaRefused(
                f"{name} has parentName {parent} but not find parentInfo in quotaHierarchyInfo"
            )
        if not self.quotas[parent].is_parent:
            raise QuotaRefused(
                f"{name} has parentName {parent} but the parentQuotaInfo's IsParent is false"
            )
        above = [parent]
        while above[-1] in self.quotas and self.quotas[above[-1]].parent not in above:
            if above[-1] == name:
                raise QuotaRefused(f"{name} has parentName {parent}, which is below {name}")
            above.append(self.quotas[above[-1]].parent)

    def check_resources(self, own: QuotaDefinition, fewer: bool | None = None) -> None:
        """Refuse a quota whose max or min names other resources than its parent or children.

        :param fewer: a child's max may name fewer resources; None asks the gate.
        """
        fewer = self._features.fewer_resources if fewer is None else fewer
        if own.parent != ROOT_QUOTA:
            _check_keys(self._known(own.parent), own, fewer)
        for child in sorted(self.children.get(own.name, ())):
            _check_keys(own, self._known(child), fewer)

    def check_mins(self, own: QuotaDefinition) -> None:
        """Refuse a quota whose min its parent cannot keep, or that cannot keep its children's."""
        if own.forced or own.is_tree_root:
            return
        if own.parent != ROOT_QUOTA:
            mins = added(self._mins(own.parent, own.name), own.minimum)
            if not within(mins, self._known(own.parent).minimum):
                raise QuotaRefused(
                    f"checkMinQuotaSum all brothers' MinQuota > parent MinQuota, "
                    f"parent: {own.parent}"
                )
        if not within(self._mins(own.name), own.minimum):
            raise QuotaRefused(
                f"checkMinQuotaSum all children's MinQuota > current MinQuota, current: {own.name}"
            )

    def check_guarantee(self, own: QuotaDefinition) -> None:
        """Refuse a min that no quota above can guarantee, up to the root of the tree."""
        if own.forced or own.is_tree_root or not own.tree:
            return
        if within(own.minimum, own.guaranteed):
            return
        name, parent = own.name, own.parent
        wanted = at_least(own.minimum, own.guaranteed)
        while parent != ROOT_QUOTA:
            above = self._known(parent)
            for child in self.children.get(parent, ()):
                if child != name:
                    wanted = added(wanted, self._known(child).guaranteed)
            wanted = at_least(above.minimum, wanted)
            if within(wanted, above.guaranteed):
                return
            name, parent = above.name, above.parent
        raise QuotaRefused(f"tree root quota {name} can't guarantee for min")

    def _mins(self, parent: str, but: str = "") -> ResourceList:
        total: ResourceList = {}
        for child in self.children.get(parent, ()):
            if child != but:
                total = added(total, self._known(child).minimum)
        return total

    def _known(self, name: str) -> QuotaDefinition:
        if name not in self.quotas:
            raise QuotaRefused(_lost(name))
        return self.quotas[name]


def check_amounts(quota: ElasticQuota) -> None:
    """Refuse a quota whose own amounts contradict each other.

    :raises QuotaRefused: with the reason.
    """
    own = definition_of(quota)
    weights = _read(quota, "shared-weight")
    for field, amounts in (("Max", own.maximum), ("Min", own.minimum)):
        if below := _negative(amounts):
            raise QuotaRefused(
                f"{own.name} quota.Spec.{field}'s value < 0, in dimensions :[{' '.join(below)}]"
            )
    if below := _negative(weights):
        raise QuotaRefused(
            f"{own.name} quota.Annotation[{QUOTA_PREFIX}shared-weight]'s value < 0, "
            f"in dimension :[{' '.join(below)}]"
        )
    for name, amount in sorted(own.minimum.items()):
        most = own.maximum.get(name)
        if most is None:
            raise QuotaRefused(
                f"resourceKey {name} of quota {own.name} is included in min, "
                "which is not included in max"
            )
        if amount > most:
            texts = quantity_of(name, amount), quantity_of(name, most)
            raise QuotaRefused(
                f"resourceKey {name} of quota {own.name} min {texts[0]} > max {texts[1]}"
            )
    _check_used(quota, own)


def _check_used(quota: ElasticQuota, own: QuotaDefinition) -> None:
    text = quota.metadata.annotations.get(f"{QUOTA_PREFIX}max-strict-check-resource-keys", "")
    try:
        names = names_in(text) if text else []
    except ValueError as exc:
        raise QuotaRefused(
            f"{own.name} quota.Annotation[{QUOTA_PREFIX}max-strict-check-resource-keys]'s value "
            f"is invalid: {exc}"
        ) from None
    for name in names:
        used = own.used.get(name)
        if used is None:
            continue
        most = own.maximum.get(name)
        if most is None:
            raise QuotaRefused(
                f"resourceKey {name} of quota {own.name} is included in used, which is not "
                "included in max but should check max >= used"
            )
        if used > most:
            texts = quantity_of(name, most), quantity_of(name, used)
            raise QuotaRefused(
                f"resourceKey {name} of quota {own.name} max {texts[0]} < used {texts[1]}"
            )


def _what_counts(own: QuotaDefinition) -> tuple[object, ...]:
    """Return what an update is checked for; the scheduler itself writes the rest."""
    place = own.parent, own.is_parent, own.tree, own.namespaces
    return *place, own.minimum, own.maximum, own.weight


def _check_keys(parent: QuotaDefinition, child: QuotaDefinition, fewer: bool) -> None:
    most, least = child.maximum.keys(), child.minimum.keys()
    if fewer and not most <= parent.maximum.keys():
        raise QuotaRefused(
            f"checkSubAndParentGroupQuotaKey failed: {child.name}'s max keys are not all included "
            f"in {parent.name}'s"
        )
    if not fewer and most != parent.maximum.keys():
        raise QuotaRefused(
            f"checkSubAndParentGroupQuotaKey failed: {child.name}'s max keys are not the same "
            f"with {parent.name}'s"
        )
    if not least <= parent.minimum.keys():
        raise QuotaRefused(
            f"checkSubAndParentGroupQuotaKey failed: {child.name}'s min keys are not all included "
            f"in {parent.name}'s"
        )


def _weight(quota: ElasticQuota) -> str:
    """Return the shared weight with exactly the resources of max, by default the amounts of max."""
    maximum = definition_of(quota).maximum
    weights = _read(quota, "shared-weight")
    if quota.metadata.annotations.get(f"{QUOTA_PREFIX}shared-weight") and (
        weights.keys() == maximum.keys()
    ):
        return quota.metadata.annotations[f"{QUOTA_PREFIX}shared-weight"]
    texts = {
        name: quantity_of(name, weights.get(name, amount))
        for name, amount in sorted(maximum.items())
    }
    return json.dumps(texts, separators=(",", ":"))


def _read(quota: ElasticQuota, key: str) -> Mapping[str, int]:
    text = quota.metadata.annotations.get(QUOTA_PREFIX + key, "")
    try:
        found = amounts_in(text) if text else {}
        return {name: amount_of(name, quantity) for name, quantity in found.items()}
    except ValueError as exc:
        raise QuotaRefused(
            f"{quota.metadata.name} quota.Annotation[{QUOTA_PREFIX}{key}]: {exc}"
        ) from None


def _negative(amounts: Mapping[str, int]) -> list[str]:
    return sorted(name for name, amount in amounts.items() if amount < 0)


def _lost(name: str) -> str:
    return f"quota {name} is known by its place in the tree only"
