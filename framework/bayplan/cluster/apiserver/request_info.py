"""Request info: the verb and the resource of an API request."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

import msgspec

from bayplan.cluster.api_errors import bad_request, method_not_allowed
from bayplan.cluster.apiserver.field_validation import FieldValidation, type_of
from bayplan.cluster.apiserver.resources import Resource, Resources
from bayplan.schemas import RecordType

__all__ = ["PathNotFound", "RequestInfo", "parse_request"]

_WITH_NAME = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_WITHOUT_NAME = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}


class PathNotFound(Exception):
    """Nothing is at this path; the real server answers 404 in plain text."""


_BY_NAME = "metadata.name="


class RequestInfo(msgspec.Struct, frozen=True):
    """A request for a verb on a resource, one of its objects, or a subresource.

    :param fields: checks the fields of the body.
    """

    verb: str
    resource: Resource
    group: str
    version: str
    params: Mapping[str, str]
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    fields: FieldValidation = msgspec.field(default_factory=FieldValidation)

    @property
    def api_version(self) -> str:
        """The group and version of the request's path, as apiVersion has it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def target(self) -> str:
        """The resource as RBAC names it: ``pods`` or ``pods/binding``."""
        return (
            f"{self.resource.plural}/{self.subresource}"
            if self.subresource
            else self.resource.plural
        )

    @property
    def target_name(self) -> str:
        """The name that RBAC compares: the object's, or that of a list or watch of one object.

        As in Kubernetes, ``fieldSelector=metadata.name=NAME`` names it.
        """
        if self.name or self.verb not in ("list", "watch"):
            return self.name
        selector = self.params.get("fieldSelector", "")
        return selector.removeprefix(_BY_NAME) if selector.startswith(_BY_NAME) else ""

    @property
    def schema(self) -> RecordType | None:
        """The type of the resource's objects in this version, None when it is not known."""
        return type_of(self.resource, self.api_version)

    @property
    def dry_run(self) -> bool:
        """Whether the request is a dry run, which stores nothing."""
        return self.params.get("dryRun") == "All"

    def number(self, name: str) -> int:
        """Return a parameter that is a number, 0 when it is missing.

        :raises ApiError: 400, when it is invalid.
        """
        text = self.params.get(name, "")
        if text and not text.removeprefix("-").isdecimal():
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
        return max(int(text or 0), 0)

    def truth(self, name: str) -> bool:
        """Return a boolean parameter, False when it is missing."""
        return self.params.get(name, "") in ("1", "true")


def parse_request(
    resources: Resources, method: str, path: str, params: Mapping[str, str]
) -> RequestInfo:
    """Parse a request under /api or /apis.

    :raises PathNotFound: when nothing is at the path.
    :raises ApiError: 405, for a method that the path does not allow.
    """
    steps = [unquote(step) for step in path.strip("/").split("/")]
    group, version, rest = ("", steps[1], steps[2:]) if steps[0] == "api" else _grouped(steps)
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3:
        raise PathNotFound
    resource = resources.find(group, version, rest[0])
    if (group, version, rest[0]) == ("", "v1", "bindings"):
        resource, rest = resources.find(group, version, "pods"), ["pods", "", "binding"]
    if resource is None or (namespace and not resource.namespaced):
        raise PathNotFound
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if name and resource.namespaced and not namespace:
        raise PathNotFound
    verb = _verb(method, name, subresource, params)
    if verb == "create" and resource.namespaced and not namespace:
        raise method_not_allowed()
    return RequestInfo(verb, resource, group, version, params, namespace, name, subresource)


def _grouped(steps: list[str]) -> tuple[str, str, list[str]]:
    if len(steps) < 4:
        raise PathNotFound
    return steps[1], steps[2], steps[3:]


def _verb(method: str, name: str, subresource: str, params: Mapping[str, str]) -> str:
    if subresource and method == "POST":
        return "create"
    verb = (_WITH_NAME if name else _WITHOUT_NAME).get(method)
    if verb is None:
        raise method_not_allowed()
    if verb in ("list", "get") and params.get("watch", "") in ("1", "true"):
        return "watch"
    return verb
