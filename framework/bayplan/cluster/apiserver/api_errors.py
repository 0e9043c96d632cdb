"""API errors as Status objects, with the messages of the real API server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    "success",
    "too_large_version",
    "too_many_requests",
    "unsupported_media_type",
]


@dataclass(frozen=True)
class Cause:
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
    """Say that there is no such object."""
    text = f'{qualified(group, plural)} "{name}" not found'
    return ApiError(404, "NotFound", text, _details(group, plural, name))


def already_exists(group: str, plural: str, name: str) -> ApiError:
    """Say that the name is taken."""
    text = f'{qualified(group, plural)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", text, _details(group, plural, name))


def conflict(group: str, plural: str, name: str, why: str = "") -> ApiError:
    """Say that the object changed meanwhile, or why else it cannot be written now."""
    why = why or (
        "the object has been modified; please apply your changes to the latest version and try "
        "again"
    )
    text = f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {why}'
    return ApiError(409, "Conflict", text, _details(group, plural, name))


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """Say what is wrong with an object."""
    messages = [f"{c.field}: {c.message}" if c.field else c.message for c in causes]
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
    """Say that a request makes no sense."""
    return ApiError(400, "BadRequest", message)


def forbidden(message: str, group: str = "", plural: str = "", name: str = "") -> ApiError:
    """Say that somebody may not do this."""
    return ApiError(403, "Forbidden", message, _details(group, plural, name))


def method_not_allowed() -> ApiError:
    """Say that a resource knows no such verb."""
    return ApiError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
    )


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    """Say which content types would do."""
    known = ", ".join(accepted)
    text = (
        f"the body of the request was in an unknown format - accepted media types include: {known}"
    )
    return ApiError(415, "UnsupportedMediaType", text)


def expired(message: str) -> ApiError:
    """Say that a version is too old to be known."""
    return ApiError(410, "Expired", message)


def too_large_version(wanted: int, current: int) -> ApiError:
    """Say that a version has not come yet."""
    text = f"Too large resource version: {wanted}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return ApiError(504, "Timeout", text, {"causes": [cause]}, retry_after=1)


def too_many_requests(message: str, retry_after: int | None, **details: Any) -> ApiError:
    """Say that it may be tried again later."""
    return ApiError(429, "TooManyRequests", message, details, retry_after)
