"""The options of requests: parameters such as dryRun, fieldManager and resourceVersionMatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bayplan.cluster.api_errors import (
    Cause,
    bad_request,
    invalid,
    unsupported_media_type,
)
from bayplan.cluster.apiserver.protobuf import MEDIA_TYPE
from bayplan.cluster.apiserver.validation.formats import forbidden, too_long, unsupported, wrong

__all__ = ["APPLY_PATCH", "check_body_type", "check_deletion", "check_options"]

APPLY_PATCH = "application/apply-patch+yaml"
_BODIES = ("application/json", "application/yaml", MEDIA_TYPE)
_OPTIONS = {
    "create": "CreateOptions",
    "delete": "DeleteOptions",
    "deletecollection": "DeleteOptions",
    "list": "ListOptions",
    "patch": "PatchOptions",
    "update": "UpdateOptions",
    "watch": "ListOptions",
}
_NUMBERS = ("limit", "timeoutSeconds")
_PROPAGATION = ("Foreground", "Background", "Orphan")
_LONGEST_MANAGER = 128


def check_body_type(content_type: str) -> None:
    """Refuse a body of a create or an update in a format that is not read.

    :raises ApiError: 415.
    """
    media = content_type.partition(";")[0].strip().lower()
    if media and media not in _BODIES:
        raise unsupported_media_type(_BODIES)


def check_options(verb: str, params: Mapping[str, str], content_type: str = "") -> None:
    """Refuse invalid options of a request.

    :raises ApiError: 400 or 422.
    """
    for name in _NUMBERS:
        text = params.get(name, "")
        if text and not text.removeprefix("-").isdecimal():
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    causes = list(_problems(verb, params, content_type))
    if causes:
        raise invalid("meta.k8s.io", _OPTIONS[verb], "", causes)


def _problems(verb: str, params: Mapping[str, str], content_type: str) -> Iterator[Cause]:
    if verb in ("list", "watch"):
        yield from _match(params)
        return
    if params.get("dryRun", "") not in ("", "All"):
        yield unsupported("dryRun", [params["dryRun"]], ("All",))
    if verb in ("create", "update", "patch"):
        yield from _manager(params.get("fieldManager", ""))
    if verb == "patch" and params.get("force") and content_type != APPLY_PATCH:
        yield forbidden("force", "may not be specified for non-apply patch")


def _manager(name: str) -> Iterator[Cause]:
    if len(name.encode()) > _LONGEST_MANAGER:
        yield too_long("fieldManager", _LONGEST_MANAGER)
    for position, character in enumerate(name):
        if not character.isprintable():
            why = f"invalid character U+{ord(character):04X} (at position {position})"
            yield wrong("fieldManager", name, why)
            return


def _match(params: Mapping[str, str]) -> Iterator[Cause]:
    match, version = params.get("resourceVersionMatch", ""), params.get("resourceVersion", "")
    if not match or params.get("sendInitialEvents"):
        return
    path = "resourceVersionMatch"
    if not version:
        yield forbidden(
            path, "resourceVersionMatch is forbidden unless resourceVersion is provided"
        )
    elif match not in ("Exact", "NotOlderThan"):
        yield unsupported(path, match, ("Exact", "NotOlderThan", ""))
    elif match == "Exact" and version == "0":
        why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        yield forbidden(path, why)


def check_deletion(policy: str, orphan: bool | None) -> None:
    """Refuse an unknown propagation policy, and two of them.

    :param orphan: the older option orphanDependents.
    :raises ApiError: 422.
    """
    error: Cause | None = None
    if policy and orphan is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        error = wrong("propagationPolicy", policy, why)
    elif policy and policy not in _PROPAGATION:
        error = unsupported("propagationPolicy", policy, (*_PROPAGATION, "nil"))
    if error is not None:
        raise invalid("meta.k8s.io", "DeleteOptions", "", [error])
