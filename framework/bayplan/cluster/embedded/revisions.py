"""ControllerRevisions: the template history of StatefulSets and DaemonSets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import ControllerRevision, DaemonSet, ObjectMeta, StatefulSet
from bayplan.api.objects import decode_part
from bayplan.api.pod import PodTemplate
from bayplan.cluster.embedded.children import Children, Template, template_of
from bayplan.cluster.embedded.owner_references import reference_to
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.errors import AlreadyExists

__all__ = ["REVISION_LABEL", "Revisions", "digest_of", "template_in"]

REVISION_LABEL = "controller-revision-hash"
_HASH_LABEL = "controller.kubernetes.io/hash"
_DIRECTIVE = "$patch"
_COPIED_NOT = ("kubectl.kubernetes.io/last-applied-configuration",)

Owner = StatefulSet | DaemonSet
Content = dict[str, Any]


def digest_of(template: Content, collisions: int = 0) -> str:
    """Return a template's hash, ten hexadecimal digits."""
    content = msgspec.json.encode(template)
    if collisions:
        content += str(collisions).encode()
    return hashlib.sha256(content).hexdigest()[:10]


def template_in(revision: ControllerRevision, cluster: MemoryCluster) -> Template:
    """Return the template in a revision."""
    held = revision.data.get("spec", {}).get("template", {})
    content = {key: value for key, value in held.items() if key != _DIRECTIVE}
    typed = decode_part(PodTemplate, content)
    return Template(typed, content if cluster.content_of(revision) is not None else None)


class Revisions:
    """Keeps the template history of StatefulSets and DaemonSets."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children

    def sync(self, owner: Owner, adopted: str = "") -> ControllerRevision:
        """Return the revision of the current template, created or made the newest.

        :param adopted: the hash in the labels of existing pods; used for the first revision, so
            that they are not replaced.
        """
        data = _data_of(template_of(self._cluster, owner))
        known = self._children.revisions(owner)
        newest = known[-1].revision if known else 0
        same = next((one for one in reversed(known) if one.data == data), None)
        if same is None:
            return self._create(owner, data, newest + 1, adopted if not known else "")
        if same.revision < newest:
            same = self._cluster.update(replace(same, revision=newest + 1))
            self._children.keep(same)
        return same

    def truncate(self, owner: Owner, used: Iterable[str]) -> None:
        """Delete the oldest unused revisions beyond the history limit."""
        kept = set(used)
        old = [one for one in self._children.revisions(owner) if one.metadata.name not in kept]
        for one in old[: max(0, len(old) - owner.spec.revision_history_limit)]:
            self._cluster.delete(ControllerRevision, self._cluster.key_of(one))

    def _create(self, owner: Owner, data: Content, number: int, adopted: str) -> ControllerRevision:
        collisions = 0
        while True:
            digest = adopted or digest_of(data, collisions)
            meta = self._meta(owner, digest)
            try:
                made = self._cluster.create(ControllerRevision(meta, number, data))
            except AlreadyExists:
                collisions, adopted = collisions + 1, ""
                continue
            self._children.keep(made)
            return made

    def _meta(self, owner: Owner, digest: str) -> ObjectMeta:
        label = REVISION_LABEL if isinstance(owner, DaemonSet) else _HASH_LABEL
        annotations = owner.metadata.annotations
        return ObjectMeta(
            name=f"{owner.metadata.name}-{digest}",
            namespace=owner.metadata.namespace,
            labels={**owner.spec.template.metadata.labels, label: digest},
            annotations={k: v for k, v in annotations.items() if k not in _COPIED_NOT},
            owner_references=(reference_to(owner, "apps/v1"),),
        )


def _data_of(template: Template) -> Content:
    """Return the patch that restores a template."""
    return {"spec": {"template": {**template.json(), _DIRECTIVE: "replace"}}}
