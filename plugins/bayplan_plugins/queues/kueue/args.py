"""The arguments of the policy ``cluster-queue``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from bayplan import Args
from bayplan.api.quantity import Quantity
from bayplan.inputs.durations import parse_duration
from bayplan_plugins.queues.kueue.charged_resources import ChargedResources, Transformation
from bayplan_plugins.queues.kueue.settings import (
    FairRule,
    Managed,
    PodsReady,
    RequeueOrder,
    Settings,
    UsageSharing,
)
from bayplan_plugins.shared.selector_args import SelectorArgs

__all__ = ["KueueArgs", "PodsReadyArgs", "UsageSharingArgs"]


def _checked(text: str) -> str:
    parse_duration(text)
    return text


def _counted(value: str | int | float) -> str | int | float:
    Quantity(value)
    return value


_Quantity = Annotated[str | int | float, AfterValidator(_counted)]
_Duration = Annotated[str, AfterValidator(_checked)]


class UsageSharingArgs(Args):
    """Kueue's admissionFairSharing: LocalQueues come by what they have used over time.

    With a half-life of "0s" usage does not decay. A restart goes on from the status of the
    LocalQueues, or from ``journal``, a file to which each sample is appended.
    """

    usage_half_life_time: _Duration = "0s"
    usage_sampling_interval: _Duration = "5m"
    resource_weights: Mapping[str, float] = Field(default_factory=dict)
    journal: Path | None = None

    def settings(self) -> UsageSharing:
        """Return the same as the engine reads it, in seconds."""
        return UsageSharing(
            parse_duration(self.usage_half_life_time),
            parse_duration(self.usage_sampling_interval),
            self.resource_weights,
            self.journal,
        )


class RequeuingStrategyArgs(Args):
    """How workloads come back whose pods did not get ready; without a limit they always do.

    The n-th time a workload waits for backoffBaseSeconds * 2^(n-1), at most backoffMaxSeconds.
    """

    timestamp: RequeueOrder = RequeueOrder.EVICTION
    backoff_limit_count: Annotated[int, Field(ge=0)] | None = None
    backoff_base_seconds: Annotated[float, Field(gt=0)] = 60.0
    backoff_max_seconds: Annotated[float, Field(gt=0)] = 3600.0


class PodsReadyArgs(Args):
    """Kueue's waitForPodsReady: a workload whose pods do not get ready gives its quota back.

    With ``blockAdmission`` nothing else is admitted while a workload waits for its pods. A pod that
    fails has to be replaced within ``recoveryTimeout``, by default as long as ``timeout``; "0s" for
    no limit.
    """

    timeout: _Duration = "30m"
    recovery_timeout: _Duration | None = None
    block_admission: bool = False
    requeuing_strategy: RequeuingStrategyArgs = RequeuingStrategyArgs()

    def settings(self) -> PodsReady:
        """Return the same as the engine reads it, in seconds."""
        again = self.requeuing_strategy
        recovery = self.recovery_timeout
        return PodsReady(
            parse_duration(self.timeout),
            parse_duration(recovery if recovery is not None else self.timeout) or None,
            self.block_admission,
            again.backoff_base_seconds,
            again.backoff_max_seconds,
            again.backoff_limit_count,
        )


class IntegrationsArgs(Args):
    """Kueue's integrations: the kinds that get the LocalQueue ``default``, or are held without any.

    As Kueue names them, such as batch/job and pod; without ``frameworks`` all kinds of jobs that
    can be suspended, and no pods. New Workloads get the labels of ``labelKeysToCopy`` of their jobs
    and pods.
    """

    frameworks: tuple[str, ...] | None = None
    label_keys_to_copy: tuple[str, ...] = ()


class TransformationArgs(Args):
    """What a requested resource is charged as, for each unit.

    With the strategy Replace it is no longer charged itself; ``multiplyBy`` names a resource whose
    request multiplies the outputs.
    """

    input: str
    strategy: Literal["Retain", "Replace"] = "Retain"
    multiply_by: str = ""
    outputs: Mapping[str, _Quantity] = Field(default_factory=dict)


class ResourcesArgs(Args):
    """Kueue's resources: what of their requests workloads are charged for."""

    exclude_resource_prefixes: tuple[str, ...] = ()
    transformations: tuple[TransformationArgs, ...] = ()

    @model_validator(mode="after")
    def _names_inputs_once(self) -> ResourcesArgs:
        names = [one.input for one in self.transformations]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f'the resource "{twice[0]}" is transformed twice')
        return self

    def settings(self) -> ChargedResources:
        """Return the same as the engine reads it."""
        return ChargedResources(
            self.exclude_resource_prefixes,
            {
                one.input: Transformation(
                    {name: Quantity(text).amount for name, text in one.outputs.items()},
                    one.multiply_by,
                    one.strategy == "Replace",
                )
                for one in self.transformations
            },
        )


class KueueArgs(Args):
    """Arguments of ``cluster-queue``: what Kueue's configuration and feature gates choose.

    With ``fairSharing`` what is borrowed is divided by share, and ``preemptionStrategies`` say when
    it may be taken back. With ``manageJobsWithoutQueueName`` jobs without a queue are held until
    they have one; ``managedJobsNamespaceSelector`` selects the namespaces whose jobs are queued.
    ``resources`` says what of their requests jobs are charged for.
    """

    fair_sharing: bool = False
    preemption_strategies: tuple[FairRule, ...] = (FairRule.FINAL_SHARE, FairRule.INITIAL_SHARE)
    admission_fair_sharing: UsageSharingArgs | None = None
    priority_sorting_within_cohort: bool = True
    wait_for_pods_ready: PodsReadyArgs | None = None
    manage_jobs_without_queue_name: bool = False
    managed_jobs_namespace_selector: SelectorArgs | None = None
    integrations: IntegrationsArgs = IntegrationsArgs()
    resources: ResourcesArgs = ResourcesArgs()

    def settings(self) -> Settings:
        """Return the same as the engine reads it."""
        usage, ready = self.admission_fair_sharing, self.wait_for_pods_ready
        selector, frameworks = self.managed_jobs_namespace_selector, self.integrations.frameworks
        return Settings(
            fair_sharing=self.fair_sharing,
            fair_rules=self.preemption_strategies,
            usage_sharing=usage.settings() if usage is not None else None,
            pods_ready=ready.settings() if ready is not None else None,
            requeue_order=(
                ready.requeuing_strategy.timestamp if ready is not None else RequeueOrder.EVICTION
            ),
            managed=Managed(
                self.manage_jobs_without_queue_name,
                selector.compiled if selector is not None else None,
                frozenset(frameworks) if frameworks is not None else None,
                frozenset(self.integrations.label_keys_to_copy),
            ),
            charged=self.resources.settings(),
            priority_across_queues=self.priority_sorting_within_cohort,
        )
