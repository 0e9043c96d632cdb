"""The opaque configuration that a claim or a DeviceClass can hold for this driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pydantic
from pydantic.alias_generators import to_camel

from bayplan.errors import InputError
from bayplan.inputs.documents import parse_documents
from bayplan.inputs.validated import validated

__all__ = ["API_VERSION", "DeviceConfig", "config_of"]

API_VERSION: Literal["dra.bayplan.dev/v1"] = "dra.bayplan.dev/v1"


class _ConfigModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class NcclConfig(_ConfigModel):
    """What a container learns about NCCL: environment, topology file, NICs.

    ``nics`` "claim" names the NICs of the claim, if it has any; "near" those near its GPUs.
    """

    environment: bool = True
    topology_file: bool = True
    nics: Literal["claim", "near"] = "claim"


class DeviceConfig(_ConfigModel):
    """How the devices of a claim are prepared.

    ``visibleDevices`` says how CUDA_VISIBLE_DEVICES names the GPUs, in the order of their ring;
    "none" does not set it.
    """

    api_version: Literal["dra.bayplan.dev/v1"] = API_VERSION
    kind: Literal["DeviceConfig"] = "DeviceConfig"
    visible_devices: Literal["uuid", "index", "none"] = "uuid"
    nccl: NcclConfig = NcclConfig()


def config_of(parameters: Sequence[Any]) -> DeviceConfig:
    """Merge the parameters into one configuration; later ones win, field by field.

    :param parameters: opaque parameters of this driver, those of the class before the claim's.
    :raises InputError: for a wrong field, with its path and what was expected.
    """
    merged: dict[str, Any] = {}
    (document,) = parse_documents("{}", "the claim's configuration")
    for content in parameters:
        if not isinstance(content, dict):
            raise InputError("expected a mapping with apiVersion and kind", "opaque parameters")
        merged = _merged(merged, content)
    return validated(DeviceConfig, merged, document)


def _merged(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    both = {**before, **after}
    for name in before.keys() & after.keys():
        if isinstance(before[name], dict) and isinstance(after[name], dict):
            both[name] = _merged(before[name], after[name])
    return both
