"""Admission checks that ask a cluster autoscaler for a workload's nodes before it is admitted.

As Kueue's controller of ``kueue.x-k8s.io/provisioning-request``, whose place bayplan takes where
Kueue's manager is not at work. A workload with quota gets a ProvisioningRequest for each such
check; its state becomes that of the check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bayplan import Handle
from bayplan.api import OwnerReference
from bayplan.api.conditions import set_condition
from bayplan.api.kueue import (
    AdmissionCheck,
    AdmissionCheckState,
    AdmissionCheckStatus,
    AssignedPodSet,
    KueueCondition,
    KueueWorkload,
    ProvisioningRequestConfig,
    RetryStrategy,
)
from bayplan.api.pod import Container, PodSpec
from bayplan.api.times import rfc3339
from bayplan.cluster.protocol import PatchStatus
from bayplan.dialects.autoscaling import consuming
from bayplan.dialects.kueue import PROVISIONING_CONTROLLER
from bayplan_plugins.queues.kueue.conditions import has_quota, is_true
from bayplan_plugins.queues.kueue.flavor_assignment import Assignment
from bayplan_plugins.queues.kueue.injection import admitted_spec
from bayplan_plugins.queues.kueue.job_workloads import (
    PARAMETER,
    JobWorkloads,
    provisioning_parameters,
)
from bayplan_plugins.queues.kueue.lifecycle import checks_with, required_checks
from bayplan_plugins.queues.kueue.pod_workloads import PodWorkloads
from bayplan_plugins.queues.kueue.store import Store
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo
from bayplan_plugins.shared.provisioning import (
    Attempt,
    AttemptState,
    Capacity,
    CapacityOf,
    ProvisioningAttempts,
    limited_name,
    merged_sets,
    owner_of_pods,
)

__all__ = ["ProvisioningChecks"]

_NOT_NEEDED = "the provisioning request is not needed"
_NOT_ACTIVE = "the check is not active"
_LOST = (AttemptState.FAILED, AttemptState.REVOKED, AttemptState.EXPIRED)
_SCHEDULING = ("nodeSelector", "tolerations", "affinity", "resourceClaims")


class _Check(msgspec.Struct, frozen=True):
    """An admission check of this controller; ``config`` is None where there is none."""

    name: str
    config: ProvisioningRequestConfig | None

    @property
    def retries(self) -> RetryStrategy:
        strategy = self.config.spec.retry_strategy if self.config is not None else None
        return strategy if strategy is not None else RetryStrategy()


class ProvisioningChecks:
    """The states of provisioning checks, and the ProvisioningRequests that they follow from."""

    def __init__(self, handle: Handle, jobs: JobWorkloads, pods: PodWorkloads) -> None:
        self._handle = handle
        self._jobs = jobs
        self._pods = pods
        self._attempts = ProvisioningAttempts(handle)
        self._stated: dict[str, AdmissionCheckStatus] = {}

    def _checks(self) -> dict[str, _Check]:
        objects = self._handle.snapshot.objects
        found = {}
        for name, one in objects(AdmissionCheck).items():
            if one.spec.controller_name == PROVISIONING_CONTROLLER:
                of = one.spec.parameters
                config = objects(ProvisioningRequestConfig).get(of.name) if of else None
                found[name] = _Check(name, config)
        return found

    # Before quota is reserved ----------------------------------------------------------------

    def brings_nodes(self, workload: WorkloadInfo, assignment: Assignment, store: Store) -> bool:
        """Tell whether an autoscaler will be asked for a workload's nodes once it has quota.

        So it needs none yet.
        """
        checks = self._checks()
        queue = store.cluster_queues.get(workload.queue)
        if not checks or queue is None:
            return False
        return any(
            name in checks and any(self._needed(workload.workload, checks[name]))
            for name in checks_with(queue, assignment.as_status())
        )

    # With quota ------------------------------------------------------------------------------

    def follow(self, store: Store, now: float) -> bool:
        """Bring the checks of all workloads with quota up to date; tell whether any changed.

        :param now: seconds since 1970.
        """
        checks = self._checks()
        if not checks:
            return False
        for check in checks.values():
            self._state_check(check)
        changed = False
        for reserving in list(store.reserving.values()):
            for info in list(reserving.values()):
                new = self._followed(info.workload, checks, store, now)
                if new is not info.workload:
                    store.set(new, now)
                    changed = True
        return changed

    def forget(self, key: str, workload: KueueWorkload | None) -> None:
        """Delete the requests of a workload that is gone or finished."""
        if workload is not None and not is_true(workload, "Finished"):
            return
        namespace, _, name = key.partition("/")
        for check in self._checks():
            for attempt in list(self._attempts.all(f"{namespace}/{_base(name, check)}")):
                self._attempts.withdraw(attempt)

    def _state_check(self, check: _Check) -> None:
        """Write whether a check is active."""
        seen = self._handle.snapshot.objects(AdmissionCheck)[check.name]
        active = check.config is not None
        reason, text = ("Active", "The admission check is active")
        if not active:
            reason, text = "BadParametersRef", "its ProvisioningRequestConfig is not there"
        new = KueueCondition("Active", "True" if active else "False", reason, text)
        now = self._handle.unix_time
        conditions = set_condition(seen.status.conditions, new, now, seen.metadata.generation)
        status = AdmissionCheckStatus(conditions)
        known = next((one for one in seen.status.conditions if one.type == "Active"), None)
        if known is not None and (known.status, known.reason) == (new.status, new.reason):
            return
        if self._stated.get(check.name) != status:
            self._stated[check.name] = status
            self._handle.submit(PatchStatus(AdmissionCheck, check.name, status))

    def _followed(
        self, workload: KueueWorkload, checks: Mapping[str, _Check], store: Store, now: float
    ) -> KueueWorkload:
        """Return a workload with its provisioning checks as its requests have them."""
        if is_true(workload, "Evicted") or not has_quota(workload):
            return workload
        states = {one.name: one for one in workload.status.admission_checks}
        if any(one.state in ("Retry", "Rejected") for one in states.values()):
            return workload
        admission = workload.status.admission
        queue = store.cluster_queues.get(admission.cluster_queue if admission else "")
        for name in required_checks(queue, workload) if queue is not None else ():
            state = states.get(name)
            if name in checks and state is not None:
                new = self._state(workload, checks[name], state, store)
                if new != state:
                    states[name] = msgspec.structs.replace(new, last_transition_time=rfc3339(now))
        found = tuple(states.values())
        if found == workload.status.admission_checks:
            return workload
        status = msgspec.structs.replace(workload.status, admission_checks=found)
        return msgspec.structs.replace(workload, status=status)

    def _state(
        self, workload: KueueWorkload, check: _Check, known: AdmissionCheckState, store: Store
    ) -> AdmissionCheckState:
        """Return the state of a check, and ask for capacity where it is time."""
        config = check.config
        if known.state == "Ready":
            return self._revoked(workload, check, known)
        needed = list(self._needed(workload, check))
        if config is None:
            return _as(known, "Pending", _NOT_ACTIVE)
        if not needed:
            return _as(known, "Ready", _NOT_NEEDED)
        owner = self._owner(workload)
        if owner is None:
            return known
        capacity = self._capacity(workload, check, config, needed, store, owner)
        problem = self._attempts.problem(capacity.key)
        if problem:
            return _as(known, "Pending", f"Error creating ProvisioningRequest: {problem}")
        attempt = self._latest(capacity)
        if attempt is None:
            self._attempts.ask(capacity, (known.retry_count or 0) + 1)
            return known
        if attempt.number <= (known.retry_count or 0) and attempt.state in _LOST:
            # This loss was reported before: the workload has quota again.
            self._attempts.ask(capacity, attempt.number + 1)
            return known
        return self._state_of(workload, check, known, attempt, capacity)

    def _revoked(
        self, workload: KueueWorkload, check: _Check, known: AdmissionCheckState
    ) -> AdmissionCheckState:
        """Return a check that was ready: what runs needs nothing more, unless it is taken back."""
        namespace, name = workload.metadata.namespace, workload.metadata.name
        attempt = self._attempts.latest(f"{namespace}/{_base(name, check.name)}")
        if attempt is None or attempt.number <= (known.retry_count or 0):
            return known
        if attempt.state is AttemptState.REVOKED:
            return _rejected(known, attempt)
        if attempt.state is AttemptState.EXPIRED and _is_lost(attempt, workload):
            said = attempt.message
            after = f"booking expired: {said}"
            return self._lost(check.retries, known, attempt, after, said)
        return known

    def _latest(self, capacity: Capacity) -> Attempt | None:
        """Return the last attempt; delete those that ask in another class than is asked now."""
        found = None
        for attempt in list(self._attempts.all(capacity.key)):
            if self._attempts.is_for(attempt, capacity):
                found = attempt
            else:
                self._attempts.withdraw(attempt)
        return found

    def _state_of(
        self,
        workload: KueueWorkload,
        check: _Check,
        known: AdmissionCheckState,
        attempt: Attempt,
        capacity: Capacity,
    ) -> AdmissionCheckState:
        state, said = attempt.state, attempt.message
        if state is AttemptState.REVOKED:
            return _rejected(known, attempt)
        if _is_lost(attempt, workload):
            after = "booking expired" if state is AttemptState.EXPIRED else "failure"
            return self._lost(check.retries, known, attempt, f"{after}: {said}", said)
        if state in (AttemptState.PROVISIONED, AttemptState.EXPIRED):
            ready = _as(known, "Ready", said)
            updates = tuple(self._updates(check, attempt, capacity))
            return msgspec.structs.replace(ready, pod_set_updates=updates)
        if state is AttemptState.ACCEPTED:
            return _as(known, "Pending", said)
        return known

    @staticmethod
    def _lost(
        retries: RetryStrategy, known: AdmissionCheckState, attempt: Attempt, after: str, said: str
    ) -> AdmissionCheckState:
        """Return a check whose attempt came to nothing: it is tried again later, or rejected."""
        number = attempt.number
        if number > retries.backoff_limit_count:
            return _rejected(known, attempt)
        wait = retries.backoff_base_seconds * 2 ** min(number - 1, 30)
        return msgspec.structs.replace(
            _as(known, "Retry", f"Retrying after {after}"),
            # The eviction counts this one.
            retry_count=number - 1,
            requeue_after_seconds=min(wait, retries.backoff_max_seconds),
        )

    def _updates(
        self, check: _Check, attempt: Attempt, capacity: Capacity
    ) -> Iterator[dict[str, Any]]:
        """Yield what the pods of a provisioned request need."""
        details = attempt.request.status.provisioning_class_details
        config = check.config
        wanted = config.spec.pod_set_updates if config is not None else None
        selector = {
            one.key: details[one.value_from_provisioning_class_detail]
            for one in (wanted.node_selector if wanted is not None else ())
            if one.value_from_provisioning_class_detail in details
        }
        for pods in capacity.pod_sets:
            for name in pods.names:
                update = {
                    "name": name,
                    "annotations": consuming(attempt.name, capacity.class_name),
                }
                yield {**update, "nodeSelector": selector} if selector else update

    # What is asked for -----------------------------------------------------------------------

    def _needed(self, workload: KueueWorkload, check: _Check) -> Iterator[str]:
        """Yield the pod sets that a check asks capacity for."""
        managed = check.config.spec.managed_resources if check.config is not None else ()
        for one in workload.spec.pod_sets:
            if not managed or not _resources(one.template.spec).isdisjoint(managed):
                yield one.name

    def _capacity(
        self,
        workload: KueueWorkload,
        check: _Check,
        config: ProvisioningRequestConfig,
        needed: Sequence[str],
        store: Store,
        owner: OwnerReference,
    ) -> Capacity:
        admission = workload.status.admission
        assigned = {one.name: one for one in admission.pod_set_assignments} if admission else {}
        sets = []
        for pods in workload.spec.pod_sets:
            if pods.name in needed:
                one = assigned.get(pods.name, AssignedPodSet(pods.name))
                flavors = [store.flavors[name] for name in dict.fromkeys(one.flavors.values())]
                spec = _with_requests(admitted_spec(pods.template.spec, flavors))
                template = msgspec.structs.replace(pods.template, spec=spec)
                count = pods.count if one.count is None else one.count
                sets.append(CapacityOf((pods.name,), _plain(template), count))
        policy = config.spec.pod_set_merge_policy
        if policy:
            sets = merged_sets(sets, None if policy == "IdenticalPodTemplates" else _SCHEDULING)
        given = provisioning_parameters(self._annotations(workload))
        own = {key.removeprefix(PARAMETER): value for key, value in given.items()}
        meta = workload.metadata
        return Capacity(
            meta.namespace,
            _base(meta.name, check.name),
            sets,
            config.spec.provisioning_class_name,
            {**config.spec.parameters, **own},
            owner,
        )

    def _annotations(self, workload: KueueWorkload) -> Mapping[str, str]:
        """Return the annotations of a workload, with those of its job or of its pods."""
        job = self._jobs.job_of(workload.key)
        if job is not None:
            return {**job.obj.metadata.annotations, **workload.metadata.annotations}
        pod = next(iter(self._pods.members(workload.key)), None)
        return pod.annotations if pod is not None else {}

    def _owner(self, workload: KueueWorkload) -> OwnerReference | None:
        """Return what a workload's requests go with: itself, or what its pods go with.

        None where it is not there yet.
        """
        seen = self._handle.snapshot.objects(KueueWorkload).get(workload.key)
        if seen is not None:
            name, uid = seen.metadata.name, seen.metadata.uid
            return OwnerReference("Workload", name, uid, "kueue.x-k8s.io/v1beta2", controller=True)
        if self._pods.is_of_job(workload.key):
            return None
        pod = next(iter(self._pods.members(workload.key)), None)
        return owner_of_pods(pod.pod) if pod is not None else None


def _base(workload: str, check: str) -> str:
    """Return the name of a workload's requests."""
    return limited_name(workload, check)


def _is_lost(attempt: Attempt, workload: KueueWorkload) -> bool:
    """Tell whether an attempt came to nothing: what runs no longer needs what was booked."""
    if attempt.state is AttemptState.EXPIRED:
        return not is_true(workload, "Admitted")
    return attempt.state is AttemptState.FAILED


def _rejected(known: AdmissionCheckState, attempt: Attempt) -> AdmissionCheckState:
    """Return a check that an attempt rejected; once the workload is active again the next asks."""
    rejected = _as(known, "Rejected", attempt.message)
    return msgspec.structs.replace(rejected, retry_count=attempt.number)


def _as(known: AdmissionCheckState, state: Any, message: str) -> AdmissionCheckState:
    return msgspec.structs.replace(known, state=state, message=message)


def _resources(spec: PodSpec) -> set[str]:
    """Return the resources that a pod requests or limits."""
    found: set[str] = set()
    for one in (*spec.containers, *spec.init_containers):
        found |= {*one.resources.requests, *one.resources.limits}
    if spec.resources is not None:
        found |= {*spec.resources.requests, *spec.resources.limits}
    return found


def _with_requests(spec: PodSpec) -> PodSpec:
    """Return a spec without gates, in which limits stand for requests that are missing."""

    def filled(containers: Iterable[Container]) -> tuple[Container, ...]:
        found = []
        for one in containers:
            own = one.resources
            requests = {**own.limits, **own.requests}
            resources = msgspec.structs.replace(own, requests=requests)
            found.append(msgspec.structs.replace(one, resources=resources))
        return tuple(found)

    return msgspec.structs.replace(
        spec,
        containers=filled(spec.containers),
        init_containers=filled(spec.init_containers),
        scheduling_gates=(),
        scheduling_group=None,
    )


def _plain(template: Any) -> dict[str, Any]:
    return dict(msgspec.to_builtins(template, enc_hook=lambda quantity: quantity.text))
