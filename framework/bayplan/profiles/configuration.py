"""The fields of a profile file: KubeSchedulerConfiguration, with kube-scheduler's names."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, Field
from pydantic.alias_generators import to_camel

from bayplan.profiles.settings import ClientConnection, LeaderElection

__all__ = [
    "Configuration",
    "Disabled",
    "Enabled",
    "PluginConfig",
    "PluginSet",
    "PodTemplatesEntry",
    "ProfileEntry",
    "WhenEntry",
    "WorkloadKindEntry",
]


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


_PATH = r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*"
_CONDITION = r"(\[[A-Za-z][\w-]*\])?"


def _path(value: str) -> str:
    if not re.fullmatch(_PATH, value):
        raise ValueError(f'expected a path such as spec.template, got "{value[:40]}"')
    return value


def _status_path(value: str) -> str:
    if not re.fullmatch(_PATH + _CONDITION, value):
        expected = "a path such as status.ready or status.conditions[Ready]"
        raise ValueError(f'expected {expected}, got "{value[:40]}"')
    return value


def _condition_path(value: str) -> str:
    if not value.endswith("]"):
        raise ValueError(
            f'expected a condition such as status.conditions[Running], got "{value[:40]}"'
        )
    return _status_path(value)


def _paths(value: str) -> str:
    return ",".join(map(_path, value.split(",")))


def _pattern(*names: str) -> AfterValidator:
    """Return a check of a text with placeholders."""

    def check(value: str) -> str:
        left = re.sub("|".join(rf"\{{{name}\}}" for name in names), "", value)
        if "{" in left or "}" in left:
            known = ", ".join(f"{{{name}}}" for name in names)
            raise ValueError(f'expected no placeholder but {known}, got "{value[:60]}"')
        return value

    return AfterValidator(check)


_OfPods = Annotated[str, _pattern("object", "role", "unit", "index")]
_OfRole = Annotated[str, _pattern("role", "name")]
_Path = Annotated[str, AfterValidator(_path)]
_ConditionPath = Annotated[str, AfterValidator(_condition_path)]
_StatusPath = Annotated[str, AfterValidator(_status_path)]
_Paths = Annotated[str, AfterValidator(_paths)]


def _group(value: str) -> str:
    # Kubernetes' own groups without a dot have no rows of users.
    if not re.fullmatch(r"[a-z0-9][-a-z0-9]*(\.[a-z0-9][-a-z0-9]*)+", value):
        raise ValueError(f'expected the group of a CRD, such as example.com, got "{value[:60]}"')
    return value


class WhenEntry(_Part):
    """A condition on an object of a kind: see :class:`bayplan.kinds.When`."""

    path: str = Field(min_length=1)
    value: str = ""
    annotation: bool = False


class EndsEntry(_Part):
    """How an object of a kind says that it has ended: see :class:`bayplan.kinds.Ends`."""

    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    state: _Path | Literal[""] = ""
    by: tuple[str, ...] = ()

    @pydantic.model_validator(mode="after")
    def _tells(self) -> EndsEntry:
        if not self.good and not self.bad:
            raise ValueError("expected good or bad, the conditions or states of an end")
        return self

    reason: _Path | Literal[""] = ""
    message: _Path | Literal[""] = ""


class PodTemplatesEntry(_Part):
    """Pod templates of a kind: see :class:`bayplan.kinds.PodTemplates`."""

    template: _Paths
    role: str = Field(default="", pattern=r"^[a-z0-9-]*$")
    each: _Path | Literal[""] = ""
    name: str = "name"
    count: tuple[_Paths, ...] = ()
    bounds: tuple[_Path, _Path] | None = None
    less: int = Field(default=0, ge=0)
    least: tuple[_Paths, ...] = ()
    left: tuple[_Path, _Path] | None = None
    absent: _Path | Literal[""] = ""
    later: tuple[WhenEntry, ...] = ()
    serial: tuple[WhenEntry, ...] = ()
    labels: dict[str, _OfRole] = Field(default_factory=dict)
    pod: _OfPods = ""
    first: int = Field(default=0, ge=0)
    index: str = ""
    part: tuple[str, _Path] | None = None
    whole: bool = False
    status: _Path | Literal[""] = ""
    ready: tuple[_Path, ...] = ()
    succeeded: _Path | Literal[""] = ""

    @pydantic.model_validator(mode="after")
    def _named(self) -> PodTemplatesEntry:
        if bool(self.role) == bool(self.each):
            raise ValueError("expected either role, or each with a template in every entry")
        if self.whole and self.part is None:
            raise ValueError("whole needs part, which tells the parts that come whole")
        return self


class WorkloadKindEntry(_Part):
    """A kind of workload that bayplan does not know: see :class:`bayplan.kinds.WorkloadKind`."""

    group: Annotated[str, AfterValidator(_group)]
    kind: str = Field(pattern=r"^[A-Z][A-Za-z0-9]*$")
    version: str = Field(pattern=r"^v[a-z0-9]+$")
    plural: str = Field(default="", pattern=r"^[a-z0-9]*$")
    pods: tuple[PodTemplatesEntry, ...] = Field(min_length=1)
    minimum: tuple[_Path, ...] = ()
    unit: str = ""
    units: _Path | Literal[""] = ""
    domain: _Path | Literal[""] = ""
    asked: bool = False
    suspend: _Path | Literal[""] = ""
    ends: EndsEntry | None = None
    running: _ConditionPath | Literal[""] = ""
    ready: tuple[_StatusPath, ...] = ()
    priority: tuple[_Path, ...] = ()
    labels: dict[str, _OfPods] = Field(default_factory=dict)


class Configuration(_Part):
    """The fields of KubeSchedulerConfiguration; the live scheduler reads its own."""

    kind: Literal["KubeSchedulerConfiguration"]
    api_version: Literal["kubescheduler.config.k8s.io/v1"] = "kubescheduler.config.k8s.io/v1"
    profiles: tuple[ProfileEntry, ...] = ()
    pod_initial_backoff_seconds: float = Field(default=1.0, gt=0, le=3600, allow_inf_nan=False)
    pod_max_backoff_seconds: float = Field(default=10.0, gt=0, le=86400, allow_inf_nan=False)
    parallelism: int | None = None
    percentage_of_nodes_to_score: int | None = Field(default=None, ge=0, le=100)
    workload_kinds: tuple[WorkloadKindEntry, ...] = ()
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    enable_profiling: bool | None = None
    enable_contention_profiling: bool | None = None
    delay_cache_until_active: bool | None = None
    extenders: tuple[dict[str, Any], ...] = ()
