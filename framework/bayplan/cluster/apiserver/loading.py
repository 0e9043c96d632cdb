"""Load manifest files into a served cluster, with all their fields."""

from __future__ import annotations

from typing import Any

from bayplan.api import ApiObject, Namespace, ObjectMeta
from bayplan.cluster.api_errors import ApiError
from bayplan.cluster.apiserver.field_validation import pruned, type_of
from bayplan.cluster.apiserver.resources import Resource
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.validation.metadata import metadata_problems
from bayplan.cluster.apiserver.workload_defaults import with_defaults
from bayplan.cluster.apiserver.writes import decode, without_nulls
from bayplan.cluster.embedded.assembly import place_of
from bayplan.cluster.manifests import FullObject, Manifests
from bayplan.errors import AlreadyExists, InputError
from bayplan.schemas.problems import record_problems

__all__ = ["load_into"]

_CRD = "CustomResourceDefinition"


def load_into(cluster: ServedCluster, manifests: Manifests) -> dict[str, int]:
    """Create the objects of manifests, and their namespaces.

    :param manifests: loaded in full.
    :return: kinds that the cluster does not serve, with counts.
    :raises InputError: for an object that the cluster refuses.
    """
    contents = manifests.contents or []
    ignored: dict[str, int] = {}
    for one in sorted(contents, key=_place):
        resource = _resource_of(cluster, one)
        if resource is None:
            assert one.content is not None
            label = f"{one.content['kind']} ({one.content['apiVersion']})"
            ignored[label] = ignored.get(label, 0) + 1
            continue
        try:
            _create(cluster, resource, one)
        except (AlreadyExists, ApiError) as exc:
            raise InputError(str(exc), one.where) from None
        except InputError as exc:
            raise InputError(exc.message, one.where) from None
        cluster.settle()
    return ignored


def _place(one: FullObject) -> tuple[bool, int]:
    definition = one.content is not None and one.content.get("kind") == _CRD
    return not definition, place_of(type(one.obj))


def _resource_of(cluster: ServedCluster, one: FullObject) -> Resource | None:
    if one.obj is not None and cluster.resources.knows(type(one.obj)):
        return cluster.resources.of(type(one.obj))
    if one.content is None:
        return None
    group, _, version = str(one.content["apiVersion"]).rpartition("/")
    resource = cluster.resources.of_kind(group, str(one.content["kind"]))
    return resource if resource is not None and version in resource.versions else None


def _create(cluster: ServedCluster, resource: Resource, one: FullObject) -> None:
    if one.content is None:
        assert one.obj is not None
        _ensure_namespace(cluster, resource, one.obj.metadata.namespace)
        cluster.create(one.obj)
        return
    if one.obj is None:
        _check_fields(resource, one)
    stored = _stored(resource, one.content)
    content = with_defaults(resource, stored)
    # Manifests may leave out what only a kubelet needs, such as images.
    obj = decode(resource, content, list(metadata_problems(resource, content)))
    _ensure_namespace(cluster, resource, obj.metadata.namespace)
    _store(cluster, content, obj)


def _check_fields(resource: Resource, one: FullObject) -> None:
    """Check the fields of a kind that is served but that bayplan does not read.

    :raises InputError: for misspelled fields and values of the wrong type.
    """
    assert one.content is not None
    schema = type_of(resource, str(one.content["apiVersion"]))
    for problem in record_problems(schema, one.content) if schema is not None else ():
        if problem.certain:
            raise InputError(f"{resource.kind}: {problem.path}: {problem.message}", one.where)


def _stored(resource: Resource, content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a manifest in the stored version."""
    content = without_nulls(content)
    content = pruned(type_of(resource, str(content["apiVersion"])), content)
    convert = resource.incoming(str(content["apiVersion"]).rpartition("/")[2])
    content = convert(content) if convert is not None else content
    meta = content.get("metadata")
    meta = dict(meta) if isinstance(meta, dict) else {}
    if resource.namespaced:
        meta.setdefault("namespace", "default")
    return {**content, "metadata": meta}


def _store(cluster: ServedCluster, content: dict[str, Any], obj: ApiObject) -> None:
    known = isinstance(obj, Namespace) and cluster.get(Namespace, obj.metadata.name) is not None
    if not known:
        with cluster.carrying(content, obj):
            cluster.create(obj)


def _ensure_namespace(cluster: ServedCluster, resource: Resource, name: str) -> None:
    if resource.namespaced and cluster.get(Namespace, name) is None:
        cluster.create(Namespace(ObjectMeta(name=name)))
