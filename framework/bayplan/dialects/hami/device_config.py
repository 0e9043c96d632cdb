"""HAMi's configuration of devices, in a ConfigMap (charts/hami, device-configmap.yaml)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.inputs.limits import CONFIGURATION
from bayplan.inputs.yamltext import parse_yaml

__all__ = ["device_config_of"]

_KEY = "device-config.yaml"
_SETTINGS = (
    "memoryFactor",
    "defaultMemory",
    "defaultCores",
    "defaultGPUNum",
    "migProfileAllowlist",
)
"""What a scheduler has to know of the section for NVIDIA."""


def device_config_of(data: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for NVIDIA's GPUs of a ConfigMap's data; their values are not checked.

    :raises ValueError: for data that cannot be read, naming the place in it.
    """
    if _KEY not in data:
        raise ValueError(f"expected the key {_KEY}")
    try:
        documents = list(parse_yaml(data[_KEY], CONFIGURATION))
    except ValueError as exc:
        raise ValueError(f"{_KEY}: {exc}") from None
    content = documents[0] if len(documents) == 1 else None
    own = content.get("nvidia", {}) if isinstance(content, dict) else None
    if not isinstance(own, dict):
        raise ValueError(f"{_KEY}: expected one mapping with a mapping nvidia")
    return {name: own[name] for name in _SETTINGS if own.get(name) is not None}
