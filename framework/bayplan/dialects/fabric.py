"""CoHDI: devices that a fabric attaches to hosts.

A ConfigMap describes the models; its other keys are texts, too::

    data:
      label-prefix: cohdi.io
      device-info: |
        - index: 1
          k8s-device-name: nvidia-a100
          driver-name: gpu.nvidia.com
          dra-attributes: {productName: NVIDIA A100}
          cannot-coexist-with: [2]
      double: |                      # what the embedded cluster's fabric has, and how it behaves
        fabrics: [{id: 1, devices: {nvidia-a100: 4}}]
        attachTime: 20s

A host has the labels ``<prefix>/fabric: "1"``, ``<prefix>/nvidia-a100: "true"``, and as limits
``<prefix>/nvidia-a100-size-max`` and ``-size-min``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import pydantic
import pydantic.alias_generators
from pydantic import AfterValidator, AliasChoices, Field

from bayplan.api.configmap import ConfigMap
from bayplan.inputs.durations import parse_duration
from bayplan.inputs.limits import CONFIGURATION
from bayplan.inputs.yamltext import parse_yaml

__all__ = [
    "DEVICE_INFO",
    "FAILED",
    "READY",
    "RESCHEDULE",
    "FabricModel",
    "FabricModels",
    "FakeFabric",
    "InjectedFailure",
    "limit_of",
    "read_double",
    "read_models",
]

DEVICE_INFO = "device-info"
"""The key of the ConfigMap that makes it the description of a fabric's models."""
READY = "FabricDeviceReady"
RESCHEDULE = "FabricDeviceReschedule"
FAILED = "FabricDeviceFailed"
_PREFIX, _DOUBLE = "label-prefix", "double"
_DEFAULT_PREFIX = "cohdi.io"
_MOST = 64
"""Devices of one model in a fabric: a slice with taints may have as many."""
_Model = TypeVar("_Model", bound=pydantic.BaseModel)
_Name = Annotated[str, Field(max_length=50, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
_Duration = Annotated[str, AfterValidator(lambda text: (parse_duration(text), text)[1])]


class FabricModel(pydantic.BaseModel):
    """One model of device: its name in labels, and how its driver publishes it.

    ``cannot_coexist_with`` are the indices of models that may not be on the same host.
    """

    model_config = pydantic.ConfigDict(extra="ignore", frozen=True)

    index: int = Field(ge=0, le=10_000)
    name: _Name = Field(alias="k8s-device-name")
    driver: str = Field(alias="driver-name", min_length=1, max_length=63)
    attributes: dict[str, str] = Field(
        default_factory=dict, alias="dra-attributes", max_length=_MOST
    )
    cannot_coexist_with: tuple[int, ...] = Field(
        default=(),
        max_length=100,
        validation_alias=AliasChoices("cannot-coexist-with", "cannot-coexists-with"),
    )


class FabricModels(pydantic.BaseModel):
    """The models of a fabric, and the prefix of the labels about them."""

    model_config = pydantic.ConfigDict(frozen=True)

    prefix: str = _DEFAULT_PREFIX
    models: tuple[FabricModel, ...] = ()

    @pydantic.model_validator(mode="after")
    def _are_distinct(self) -> FabricModels:
        for field in ("index", "name"):
            values = [getattr(model, field) for model in self.models]
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise ValueError(f"two models have the {field} {twice}")
        return self

    def apart(self) -> Mapping[str, frozenset[str]]:
        """Return, by the name of each model, those that may not be on the same host."""
        names = {model.index: model.name for model in self.models}
        found: dict[str, set[str]] = {model.name: set() for model in self.models}
        for model in self.models:
            for index in model.cannot_coexist_with:
                other = names.get(index)
                if other is not None and other != model.name:
                    found[model.name].add(other)
                    found[other].add(model.name)
        return {name: frozenset(others) for name, others in found.items()}


class _Camel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=pydantic.alias_generators.to_camel
    )


class Fabric(_Camel):
    """One fabric: how many devices of each model it has."""

    id: int = Field(ge=0, le=10_000)
    devices: dict[_Name, Annotated[int, Field(ge=0, le=_MOST)]] = Field(max_length=100)


class InjectedFailure(_Camel):
    """What goes wrong, ``times`` times: the next attachments of this device, or to this node.

    ``Failed`` is reported once the time to attach is over; ``Silent`` never is.
    """

    card: str = ""
    node: str = ""
    times: int = Field(default=1, ge=1, le=1_000_000)
    result: Literal["Failed", "Silent"] = "Failed"


class FakeFabric(_Camel):
    """How the embedded cluster's fabric behaves.

    An attached device that nobody uses is detached after ``idle_time``. ``hands_over`` does as
    CoHDI does: the node's own driver publishes the device, and the claim is allocated again.
    """

    fabrics: tuple[Fabric, ...] = Field(max_length=100)
    attach_time: _Duration = "60s"
    detach_time: _Duration = "30s"
    idle_time: _Duration = "10m"
    hands_over: bool = False
    failures: tuple[InjectedFailure, ...] = Field(default=(), max_length=1000)


def read_models(config_map: ConfigMap) -> FabricModels:
    """Return the models that a ConfigMap describes.

    :raises ValueError: naming the key, the field and what was expected.
    """
    content = _yaml(config_map, DEVICE_INFO)
    models = [] if content is None else content
    prefix = config_map.data.get(_PREFIX, _DEFAULT_PREFIX).strip()
    if not 0 < len(prefix) <= 100 or "/" in prefix:
        raise ValueError(f"data[{_PREFIX}]: expected a DNS name of at most 100 characters")
    if not isinstance(models, list):
        raise ValueError(f"data[{DEVICE_INFO}]: expected a list of models")
    return _checked(FabricModels, {"prefix": prefix, "models": models}, DEVICE_INFO)


def read_double(config_map: ConfigMap) -> FakeFabric | None:
    """Return how the embedded cluster's fabric behaves; None if the ConfigMap does not say.

    :raises ValueError: naming the field and what was expected.
    """
    content = _yaml(config_map, _DOUBLE)
    return None if content is None else _checked(FakeFabric, content, _DOUBLE)


def limit_of(labels: Mapping[str, str], prefix: str, model: str, which: str) -> int | None:
    """Return a host's ``max`` or ``min`` of a model, None without a label.

    :raises ValueError: for a label that is not a number, naming it.
    """
    label = f"{prefix}/{model}-size-{which}"
    text = labels.get(label)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise ValueError(f'label {label}: expected a number from 0 to 99999, got "{text}"')
    return int(text)


def _yaml(config_map: ConfigMap, key: str) -> Any:
    try:
        return next(parse_yaml(config_map.data.get(key, ""), CONFIGURATION), None)
    except ValueError as exc:
        raise ValueError(f"data[{key}]: {exc}") from None


def _checked(type_: type[_Model], content: Any, key: str) -> _Model:
    try:
        return type_.model_validate(content)
    except pydantic.ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"data[{key}]: {where or 'content'}: {first['msg']}") from None
