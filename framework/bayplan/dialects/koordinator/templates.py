"""Koordinator: the templates after which parts of a GPU or NPU are cut.

A ConfigMap has them under ``data.yaml``, by "<vendor>-<model>" and by the template's name::

    huawei-Ascend-310P:
      vir01: {koordinator.sh/gpu-memory: 3Gi, huawei.com/npu-core: 1}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.api.configmap import ConfigMap
from bayplan.api.quantity import Quantity
from bayplan.api.resources import LARGEST_AMOUNT
from bayplan.inputs.limits import CONFIGURATION
from bayplan.inputs.yamltext import parse_yaml

__all__ = ["Templates", "matching", "read_templates", "templates_of"]

Templates = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Amounts of resources by "<vendor>-<model>" and template."""
_KEY = "data.yaml"


def templates_of(config_map: ConfigMap) -> Templates:
    """Return the templates of a ConfigMap.

    :raises ValueError: for data that cannot be read, naming the place in it.
    """
    try:
        documents = list(parse_yaml(config_map.data.get(_KEY, ""), CONFIGURATION))
    except ValueError as exc:
        raise ValueError(f"{_KEY}: {exc}") from None
    if len(documents) > 1:
        raise ValueError(f"{_KEY}: expected one document, got {len(documents)}")
    return read_templates(documents[0] if documents and documents[0] is not None else {}, _KEY)


def read_templates(content: Any, where: str = "$") -> Templates:
    """Return the templates of parsed content.

    :raises ValueError: for content of another form, naming the place in it.
    """
    return {
        model: {
            name: {
                resource: _amount(value, f'{where}["{model}"]["{name}"]["{resource}"]')
                for resource, value in _mapping(amounts, f'{where}["{model}"]["{name}"]').items()
            }
            for name, amounts in _mapping(templates, f'{where}["{model}"]').items()
        }
        for model, templates in _mapping(content, where).items()
    }


def matching(templates: Templates, amounts: Mapping[str, int]) -> dict[str, str]:
    """Return, by model, the one template with exactly these amounts; none where several have."""
    found = {}
    for model, own in templates.items():
        names = [name for name, offered in own.items() if offered == amounts]
        if len(names) == 1:
            found[model] = names[0]
    return found


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where}: expected a mapping")
    return value


def _amount(value: Any, where: str) -> int:
    try:
        amount = Quantity(value).units if isinstance(value, str | int | float) else -1
    except ValueError as exc:
        raise ValueError(f"{where}: {exc}") from None
    if not 0 <= amount <= LARGEST_AMOUNT:
        raise ValueError(f"{where}: expected an amount from 0 to 2^53")
    return amount
