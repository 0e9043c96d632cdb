"""The opaque configuration that a claim or a DeviceClass can hold for this driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, Field
from pydantic.alias_generators import to_camel

from bayplan.api.quantity import Quantity
from bayplan.errors import InputError
from bayplan.inputs.documents import parse_documents
from bayplan.inputs.validated import validated

__all__ = ["API_VERSION", "DeviceConfig", "SharingConfig", "config_of"]

API_VERSION: Literal["dra.bayplan.dev/v1"] = "dra.bayplan.dev/v1"


class _ConfigModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


def _is_amount(text: str) -> str:
    if Quantity(text).units <= 0:
        raise ValueError(f'expected an amount above 0 such as 10Gi, got "{text}"')
    return text


_Amount = Annotated[str, AfterValidator(_is_amount)]


class NcclConfig(_ConfigModel):
    """What a container learns about NCCL: environment, topology file, NICs.

    ``nics`` "claim" names the NICs of the claim, if it has any; "near" those near its GPUs.
    """

    environment: bool = True
    topology_file: bool = True
    nics: Literal["claim", "near"] = "claim"


class TimeSlicingConfig(_ConfigModel):
    """How long a process has the GPU before the next one gets it."""

    interval: Literal["Default", "Short", "Medium", "Long"] = "Default"


class MpsConfig(_ConfigModel):
    """The limits of each client of MPS; a limit by GPU has its index in the container, or UUID."""

    default_active_thread_percentage: int | None = Field(default=None, ge=1, le=100)
    default_pinned_device_memory_limit: _Amount | None = None
    default_per_device_pinned_memory_limit: dict[str, _Amount] = {}


class SharingConfig(_ConfigModel):
    """How processes share the claim's GPUs, in the words of NVIDIA's GpuConfig."""

    strategy: Literal["TimeSlicing", "MPS"]
    time_slicing_config: TimeSlicingConfig = TimeSlicingConfig()
    mps_config: MpsConfig = MpsConfig()


class DeviceConfig(_ConfigModel):
    """How the devices of a claim are prepared.

    ``visibleDevices`` says how CUDA_VISIBLE_DEVICES names the GPUs, in the order of their ring;
    "none" does not set it.
    """

    api_version: Literal["dra.bayplan.dev/v1"] = API_VERSION
    kind: Literal["DeviceConfig"] = "DeviceConfig"
    visible_devices: Literal["uuid", "index", "none"] = "uuid"
    nccl: NcclConfig = NcclConfig()
    sharing: SharingConfig | None = None


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
