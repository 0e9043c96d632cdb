"""The fields of a profile file: KubeSchedulerConfiguration, with kube-scheduler's names."""

from __future__ import annotations

from typing import Any, Literal

import pydantic
from pydantic import Field
from pydantic.alias_generators import to_camel

from bayplan.profiles.settings import ClientConnection, LeaderElection

__all__ = ["Configuration", "Disabled", "Enabled", "PluginConfig", "PluginSet", "ProfileEntry"]


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class Enabled(_Part):
    """A plugin that is on at a point; without a weight it has that of ``multiPoint``, or 1."""

    name: str = Field(min_length=1)
    weight: int = Field(default=0, ge=0, le=2**31 - 1)


class Disabled(_Part):
    """A plugin of the default profile that is off at a point; ``*`` stands for all."""

    name: str = Field(min_length=1)
    weight: int | None = None


class PluginSet(_Part):
    """The changes to the default profile at one point; those enabled are called in this order."""

    enabled: tuple[Enabled, ...] = ()
    disabled: tuple[Disabled, ...] = ()


class PluginConfig(_Part):
    """The arguments of one plugin."""

    name: str
    args: dict[str, Any] = Field(default_factory=dict)


class ProfileEntry(_Part):
    """One profile: the pods of one schedulerName, and how they are placed."""

    scheduler_name: str | None = Field(default=None, min_length=1)
    percentage_of_nodes_to_score: int | None = Field(default=None, ge=0, le=100)
    plugins: dict[str, PluginSet] = Field(default_factory=dict)
    plugin_config: tuple[PluginConfig, ...] = ()


class Configuration(_Part):
    """The fields of KubeSchedulerConfiguration; the live scheduler reads its own."""

    kind: Literal["KubeSchedulerConfiguration"]
    api_version: Literal["kubescheduler.config.k8s.io/v1"] = "kubescheduler.config.k8s.io/v1"
    profiles: tuple[ProfileEntry, ...] = ()
    pod_initial_backoff_seconds: float = Field(default=1.0, gt=0, le=3600, allow_inf_nan=False)
    pod_max_backoff_seconds: float = Field(default=10.0, gt=0, le=86400, allow_inf_nan=False)
    parallelism: int | None = None
    percentage_of_nodes_to_score: int | None = Field(default=None, ge=0, le=100)
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    enable_profiling: bool | None = None
    enable_contention_profiling: bool | None = None
    delay_cache_until_active: bool | None = None
    extenders: tuple[dict[str, Any], ...] = ()
