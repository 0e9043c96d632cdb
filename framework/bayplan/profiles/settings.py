"""The settings of a profile file for the live scheduler: leader election and connection."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from bayplan.inputs.durations import parse_duration

__all__ = ["ClientConnection", "LeaderElection"]


def _seconds(value: Any) -> Any:
    return parse_duration(value) if isinstance(value, str) else value


_SCHEMA = {"type": ["number", "string"], "exclusiveMinimum": 0, "maximum": 86400}
Seconds = Annotated[
    float, BeforeValidator(_seconds), Field(gt=0, le=86400), WithJsonSchema(_SCHEMA)
]


class _Settings(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class LeaderElection(_Settings):
    """``leaderElection`` of KubeSchedulerConfiguration, with kube-scheduler's defaults; seconds."""

    leader_elect: bool = True
    lease_duration: Seconds = 15.0
    renew_deadline: Seconds = 10.0
    retry_period: Seconds = 2.0
    resource_lock: Literal["", "leases"] = "leases"
    resource_name: str = Field(default="bayplan", min_length=1)
    resource_namespace: str = Field(default="kube-system", min_length=1)

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> LeaderElection:
        if not self.retry_period * 1.2 < self.renew_deadline < self.lease_duration:
            raise ValueError("expected 1.2 x retryPeriod < renewDeadline < leaseDuration")
        return self


class ClientConnection(_Settings):
    """``clientConnection`` of KubeSchedulerConfiguration.

    Without ``qps`` the server limits the rate of requests. The content types have no effect: the
    client speaks JSON. ``event_qps`` and ``event_burst`` are our own: how many events are written
    per second and at once, with the defaults of the kubelet's ``eventRecordQPS`` and
    ``eventBurst``; 0 per second is no limit.
    """

    kubeconfig: str = ""
    qps: float | None = Field(default=None, le=1e6)
    burst: int | None = Field(default=None, ge=0, le=1_000_000)
    event_qps: float = Field(default=50.0, ge=0, le=1e6)
    event_burst: int = Field(default=100, ge=1, le=1_000_000)
    content_type: str = ""
    accept_content_types: str = ""

    @property
    def path(self) -> Path | None:
        """The kubeconfig's path, None where the file names none."""
        return Path(self.kubeconfig) if self.kubeconfig else None
