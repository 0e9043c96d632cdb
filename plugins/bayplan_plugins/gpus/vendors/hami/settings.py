"""The settings of HAMi that a scheduler knows, as HAMi's device configuration names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
import pydantic.alias_generators
from pydantic import Field

from bayplan.api.gpu_shares import PartitionProfile
from bayplan.dialects.hami.policies import GPU_POLICIES, NODE_POLICIES, policy_words
from bayplan.dialects.hami.requests import RequestRules
from bayplan_plugins.gpus.vendors.hami.mig import allowed_profiles

__all__ = ["AllowedProfiles", "ConfigMapKey", "HamiArgs"]

_MOST = 2**31 - 1


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=pydantic.alias_generators.to_camel,
        populate_by_name=True,
    )


class AllowedProfiles(_Part):
    """The MIG profiles that GPUs may be divided into whose model contains one of ``models``."""

    models: tuple[str, ...] = Field(min_length=1)
    profiles: tuple[str, ...] = Field(min_length=1)


ConfigMapKey = Annotated[str, Field(pattern=r"^([a-z0-9.-]{1,63}/[a-z0-9.-]{1,253})?$")]
"""``namespace/name``, or "" for none."""


class HamiArgs(_Part):
    """Settings of HAMi (charts/hami: device-config.yaml, and flags of its scheduler).

    ``memoryFactor`` is how many MiB one unit of ``nvidia.com/gpumem`` stands for. Defaults of 0
    are none. The policies are those of pods that name none; without one for nodes, another plugin
    decides which node is best. Models that ``migProfileAllowlist`` does not name may be divided
    into all that their device plugin registers. ``deviceConfigMap`` is HAMi's ConfigMap with the
    same settings: it counts for those that are not stated here.
    """

    memory_factor: int = Field(default=1, ge=1, le=1024)
    default_memory: int = Field(default=0, ge=0, le=_MOST)
    default_cores: int = Field(default=0, ge=0, le=100)
    default_gpu_num: int = Field(default=1, ge=0, le=256, alias="defaultGPUNum")
    gpu_scheduler_policy: str = "spread"
    node_scheduler_policy: str = ""
    mig_profile_allowlist: tuple[AllowedProfiles, ...] = ()
    device_config_map: ConfigMapKey = ""

    @pydantic.field_validator("gpu_scheduler_policy")
    @classmethod
    def _is_gpu_policy(cls, value: str) -> str:
        policy_words("gpuSchedulerPolicy", value, GPU_POLICIES)
        return value

    @pydantic.field_validator("node_scheduler_policy")
    @classmethod
    def _is_node_policy(cls, value: str) -> str:
        if value not in ("", *NODE_POLICIES):
            raise ValueError(f"expected {' or '.join(NODE_POLICIES)}")
        return value

    def with_config(self, found: Mapping[str, Any]) -> HamiArgs:
        """Return the settings with those of HAMi's configuration where none is stated.

        :raises ValueError: for a value that cannot be used, naming the setting.
        """
        aliases = {name: field.alias or name for name, field in HamiArgs.model_fields.items()}
        stated = {aliases[name]: getattr(self, name) for name in self.model_fields_set}
        try:
            return HamiArgs.model_validate({**found, **stated})
        except pydantic.ValidationError as exc:
            first = exc.errors()[0]
            where = ".".join(str(step) for step in first["loc"])
            raise ValueError(f"nvidia.{where}: {first['msg']}") from None

    @property
    def rules(self) -> RequestRules:
        """How requests are read."""
        return RequestRules(
            memory_factor=self.memory_factor,
            default_memory=self.default_memory,
            default_cores=self.default_cores,
            default_count=self.default_gpu_num,
        )

    @property
    def gpu_policy(self) -> tuple[str, ...]:
        """The words of the GPU policy."""
        return policy_words("gpuSchedulerPolicy", self.gpu_scheduler_policy, GPU_POLICIES)

    def allowed(
        self, model: str, profiles: tuple[PartitionProfile, ...]
    ) -> tuple[PartitionProfile, ...]:
        """Return the profiles that a GPU of a model may be divided into."""
        named = [
            entry.profiles
            for entry in self.mig_profile_allowlist
            if any(word in model for word in entry.models)
        ]
        return allowed_profiles(profiles, named[0]) if named else profiles
