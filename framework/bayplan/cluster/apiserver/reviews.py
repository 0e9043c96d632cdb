"""TokenReviews and access reviews, answered from the server's tokens and roles."""

from __future__ import annotations

from typing import Any

from bayplan.cluster.api_errors import ApiError, bad_request
from bayplan.cluster.apiserver.rbac import Access, Role, authorize, authorize_path

__all__ = ["REVIEWS", "review"]

Content = dict[str, Any]

_AUTHORIZATION, _AUTHENTICATION = "authorization.k8s.io/v1", "authentication.k8s.io/v1"
_AUDIENCE = "https://kubernetes.default.svc"
"""For whom tokens are, as the API server of most clusters calls itself."""
REVIEWS = {
    f"/apis/{_AUTHORIZATION}/selfsubjectaccessreviews": "SelfSubjectAccessReview",
    f"/apis/{_AUTHORIZATION}/selfsubjectrulesreviews": "SelfSubjectRulesReview",
    f"/apis/{_AUTHORIZATION}/subjectaccessreviews": "SubjectAccessReview",
    f"/apis/{_AUTHENTICATION}/selfsubjectreviews": "SelfSubjectReview",
    f"/apis/{_AUTHENTICATION}/tokenreviews": "TokenReview",
}
"""The kinds of reviews by the path to which they are posted."""


def review(access: Access, user: Role, kind: str, body: Any) -> Content:
    """Answer a review.

    :raises ApiError: 400 for an invalid body, 403 for a forbidden review of another user.
    """
    spec = body.get("spec") or {} if isinstance(body, dict) else None
    if not isinstance(spec, dict) or not _plain(spec):
        raise bad_request(f"expected a {kind}")
    group = _AUTHENTICATION if kind in ("TokenReview", "SelfSubjectReview") else _AUTHORIZATION
    if not kind.startswith("Self"):
        resource = f"{kind.lower()}s"
        authorize(user, "create", group.partition("/")[0], resource, "", "")
    status: Content
    if kind == "TokenReview":
        status = _authenticated(access, str(spec.get("token", "")), spec.get("audiences"))
    elif kind == "SelfSubjectReview":
        status = {"userInfo": _info(user)}
    elif kind == "SelfSubjectRulesReview":
        status = _rules(user)
    else:
        about = user if kind.startswith("Self") else access.named(str(spec.get("user", "")))
        status = _allowed(about, spec)
    return {
        "kind": kind,
        "apiVersion": group,
        "metadata": {"creationTimestamp": None},
        "spec": spec,
        "status": status,
    }


def _plain(spec: Content) -> bool:
    """Return whether all attributes of a review are strings."""
    parts = (spec.get("resourceAttributes") or {}, spec.get("nonResourceAttributes") or {})
    return all(
        isinstance(part, dict)
        and all(isinstance(v, str) for k, v in part.items() if not k.endswith("Selector"))
        for part in parts
    )


def _info(user: Role) -> Content:
    return {"username": user.user, "groups": ["system:authenticated"]}


def _authenticated(access: Access, token: str, audiences: Any) -> Content:
    """Say whose token it is; all tokens are for this server."""
    if audiences and _AUDIENCE not in audiences:
        return {"authenticated": False, "error": "the token is for another audience"}
    try:
        user = _info(access.user(token))
    except ApiError:
        return {"authenticated": False, "error": "no such token"}
    return {"authenticated": True, "user": user, "audiences": [_AUDIENCE]}


def _allowed(user: Role | None, spec: Content) -> Content:
    if user is None:
        return {"allowed": False, "reason": "no such user"}
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    try:
        if isinstance(resource, dict):
            sub = resource.get("subresource")
            name = f"{resource.get('resource', '')}{f'/{sub}' if sub else ''}"
            authorize(
                user,
                resource.get("verb", ""),
                resource.get("group", ""),
                name,
                resource.get("namespace", ""),
                resource.get("name", ""),
            )
        elif isinstance(path, dict):
            authorize_path(user, path.get("verb", ""), path.get("path", ""))
        else:
            raise bad_request(
                "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            )
    except ApiError as exc:
        if exc.code != 403:
            raise
        return {"allowed": False}
    return {"allowed": True}


def _rules(user: Role) -> Content:
    resources = [
        {"verbs": r.verbs, "apiGroups": r.api_groups, "resources": r.resources}
        for r in user.rules
        if r.resources
    ]
    paths = [
        {"verbs": r.verbs, "nonResourceURLs": r.non_resource_urls}
        for r in user.rules
        if r.non_resource_urls
    ]
    return {"resourceRules": resources, "nonResourceRules": paths, "incomplete": False}
