"""Conversion of resource.k8s.io v1beta1 and v1beta2 to v1.

v1beta2 has the shape of v1. v1beta1 has the fields of a device under ``basic``, and the fields of a
request in the request itself instead of under ``exactly``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["REQUEST_FIELDS", "as_v1"]

REQUEST_FIELDS = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
)
"""The fields that are in the request in v1beta1, and under ``exactly`` in v1."""


def as_v1(version: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of resource.k8s.io in the shape of v1, without changing the input."""
    if version != "v1beta1":
        return content
    return {
        key: _claim_or_slice(value) if key == "spec" else value for key, value in content.items()
    }


def _claim_or_slice(spec: Any) -> Any:
    if not isinstance(spec, dict):
        return spec
    converted = dict(spec)
    devices = spec.get("devices")
    if isinstance(devices, list):
        converted["devices"] = [_device(device) for device in devices]
    elif isinstance(devices, dict) and isinstance(devices.get("requests"), list):
        requests = [_request(request) for request in devices["requests"]]
        converted["devices"] = {**devices, "requests": requests}
    if isinstance(spec.get("spec"), dict):
        converted["spec"] = _claim_or_slice(spec["spec"])
    return converted


def _device(device: Any) -> Any:
    if not isinstance(device, dict) or not isinstance(device.get("basic"), dict):
        return device
    return {**device["basic"], **{key: v for key, v in device.items() if key != "basic"}}


def _request(request: Any) -> Any:
    if not isinstance(request, dict) or "exactly" in request:
        return request
    exactly = {key: request[key] for key in REQUEST_FIELDS if key in request}
    if not exactly:
        return request
    rest = {key: value for key, value in request.items() if key not in exactly}
    return {**rest, "exactly": exactly}
