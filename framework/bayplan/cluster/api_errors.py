"""API errors as Status objects, with the messages of the real API server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

__all__ = [
    "ApiError",
    "Cause",
    "already_exists",
    "bad_request",
    "conflict",
    "expired",
    "forbidden",
    "invalid",
    "method_not_allowed",
    "not_found",
    "precondition_failed",
    "success",
    "too_large_version",
    "too_many_requests",
    "unsupported_media_type",
]


class Cause(msgspec.Struct, frozen=True):
    """One reason why an object is invalid; ``field`` is a path such as ``spec.containers``."""

    reason: str
    message: str
    field: str = ""


class ApiError(Exception):
    """An error answer: HTTP status, reason, message and details."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})
        if retry_after is not None:
            self.details["retryAfterSeconds"] = retry_after
        self.retry_after = retry_after

    def status(self) -> dict[str, Any]:
        """Return the Status object."""
        content: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            content["reason"] = self.reason
        if self.details:
            content["details"] = self.details
        content["code"] = self.code
        return content


def success(details: Mapping[str, Any] | None = None, code: int = 200) -> dict[str, Any]:
    """Return the Status object of a success."""
    content: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
    }
    if details:
        content["details"] = dict(details)
    if code != 200:
        content["code"] = code
    return content


def qualified(group: str, plural: str) -> str:
    """Return a resource's name for messages: ``pods``, ``jobs.batch``."""
    return f"{plural}.{group}" if group else plural


def _details(group: str, plural: str, name: str) -> dict[str, Any]:
    details = {"name": name, "group": group, "kind": plural}
    return {key: value for key, value in details.items() if value}


def not_found(group: str, plural: str, name: str) -> ApiError:
    """Return the error for a missing object (404)."""
    text = f'{qualified(group, plural)} "{name}" not found'
    return ApiError(404, "NotFound", text, _details(group, plural, name))


def already_exists(group: str, plural: str, name: str) -> ApiError:
    """Return the error for a name that is taken (409)."""
    text = f'{qualified(group, plural)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", text, _details(group, plural, name))


def conflict(group: str, plural: str, name: str, why: str = "") -> ApiError:
    """Return the error for a changed object, or another reason not to write it now (409)."""
    why = why or (
        "the object has been modified; please apply your changes to the latest version and try "
        "again"
    )
    text = f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {why}'
    return ApiError(409, "Conflict", text, _details(group, plural, name))


def precondition_failed(
    plural: str, namespace: str, name: str, uid: str, found: str, what: str = "UID"
) -> ApiError:
    """Return the error for a write of another object than the client knows (409)."""
    place = f"{namespace}/{name}" if namespace else name
    why = (
        f"StorageError: invalid object, Code: 4, Key: /{plural}/{place}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: {what} in precondition: {uid}, {what} in object "
        f"meta: {found}"
    )
    return conflict("", plural, name, why)


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """Return the error for an invalid object, with its causes (422)."""
    shown = dict.fromkeys(f"{c.field}: {c.message}" if c.field else c.message for c in causes)
    messages = list(shown)
    text = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
    details = _details(group, kind, name)
    details["causes"] = [
        {"reason": c.reason, "message": c.message, **({"field": c.field} if c.field else {})}
        for c in causes
    ]
    return ApiError(
        422, "Invalid", f'{qualified(group, kind)} "{name}" is invalid: {text}', details
    )


def bad_request(message: str) -> ApiError:
    """Return the error for a malformed request (400)."""
    return ApiError(400, "BadRequest", message)


def forbidden(message: str, group: str = "", plural: str = "", name: str = "") -> ApiError:
    """Return the error for a forbidden request (403)."""
    return ApiError(403, "Forbidden", message, _details(group, plural, name))


def method_not_allowed() -> ApiError:
    """Return the error for a verb that a resource does not have (405)."""
    return ApiError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
    )


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    """Return the error for a content type that is not accepted (415)."""
    known = ", ".join(accepted)
    text = (
        f"the body of the request was in an unknown format - accepted media types include: {known}"
    )
    return ApiError(415, "UnsupportedMediaType", text)


def expired(message: str) -> ApiError:
    """Return the error for a resource version that is too old (410)."""
    return ApiError(410, "Expired", message)


def too_large_version(wanted: int, current: int) -> ApiError:
    """Return the error for a resource version in the future (504)."""
    text = f"Too large resource version: {wanted}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return ApiError(504, "Timeout", text, {"causes": [cause]}, retry_after=1)


def too_many_requests(message: str, retry_after: int | None, **details: Any) -> ApiError:
    """Return the error for a request to retry later (429)."""
    return ApiError(429, "TooManyRequests", message, details, retry_after)
