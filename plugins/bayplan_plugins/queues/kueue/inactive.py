"""Why a ClusterQueue takes no workloads, with the reasons and texts that Kueue writes.

The rules are those of Kueue's pkg/cache/scheduler/clusterqueue.go.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec

from bayplan.api.kueue import AdmissionCheck, ClusterQueue, ResourceFlavor
from bayplan.dialects.kueue import MULTI_CLUSTER_CONTROLLER, PROVISIONING_CONTROLLER

__all__ = ["Fault", "faults_of", "inactive_message", "is_active"]

_STOPPED = "Stopped"


class Fault(msgspec.Struct, frozen=True):
    """One thing that keeps a ClusterQueue from taking workloads."""

    reason: str
    text: str

    @property
    def is_stop(self) -> bool:
        """Whether somebody has stopped the queue, which is nothing wrong with it."""
        return self.reason == _STOPPED


def faults_of(
    queue: ClusterQueue,
    flavors: Mapping[str, ResourceFlavor],
    checks: Mapping[str, AdmissionCheck],
    topologies: Container[str],
    problem: str | None,
) -> list[Fault]:
    """Return all that keeps a queue from taking workloads, the first of them as the reason.

    :param flavors: the ResourceFlavors that there are, by name.
    :param checks: the AdmissionChecks that there are, by name.
    :param topologies: the names of the Topologies that there are.
    :param problem: what is wrong with its cohort.
    """
    found: list[Fault] = []
    if queue.spec.stop_policy in ("Hold", "HoldAndDrain"):
        found.append(Fault(_STOPPED, "is stopped"))
    missing = [name for name in _flavors_of(queue) if name not in flavors]
    if missing:
        text = f"references missing ResourceFlavor(s): {','.join(missing)}"
        found.append(Fault("FlavorNotFound", text))
    found += _faults_of_checks(queue, checks)
    if not _remote(queue, checks):
        # The nodes of jobs for other clusters, and their topology, are there.
        found += _faults_of_topologies(queue, flavors, topologies)
    if problem is not None:
        found.append(Fault("CohortCycle", problem))
    return found


def inactive_message(faults: Sequence[Fault]) -> tuple[str, str] | None:
    """Return reason and message of the condition Active; None without a fault."""
    if not faults:
        return None
    texts = ", ".join(one.text for one in faults)
    return faults[0].reason, f"Can't admit new workloads: {texts}."


def is_active(check: AdmissionCheck) -> bool:
    """Tell whether the controller of a check says that it works."""
    return any(one.type == "Active" and one.status == "True" for one in check.status.conditions)


def _flavors_of(queue: ClusterQueue) -> Iterator[str]:
    for group in queue.spec.resource_groups:
        for flavor in group.flavors:
            yield flavor.name


def _faults_of_topologies(
    queue: ClusterQueue, flavors: Mapping[str, ResourceFlavor], topologies: Container[str]
) -> Iterator[Fault]:
    for name in _flavors_of(queue):
        topology = flavors[name].spec.topology_name if name in flavors else ""
        if topology and topology not in topologies:
            text = f'there is no Topology "{topology}" for TAS flavor "{name}"'
            yield Fault("TopologyNotFound", text)


def _remote(queue: ClusterQueue, checks: Mapping[str, AdmissionCheck]) -> bool:
    """Tell whether a check sends the jobs of a queue to other clusters."""
    rules = queue.spec.admission_checks_strategy.admission_checks
    known = {rule.name: checks[rule.name] for rule in rules if rule.name in checks}
    return bool(_of_controller(known, MULTI_CLUSTER_CONTROLLER))


def _faults_of_checks(queue: ClusterQueue, checks: Mapping[str, AdmissionCheck]) -> Iterator[Fault]:
    every = set(_flavors_of(queue))
    rules = queue.spec.admission_checks_strategy.admission_checks
    flavors = {rule.name: set(rule.on_flavors) or every for rule in rules}
    known = {name: checks[name] for name in sorted(flavors) if name in checks}
    missing = [name for name in sorted(flavors) if name not in checks]
    if missing:
        text = f"references missing AdmissionCheck(s): {','.join(missing)}"
        yield Fault("AdmissionCheckNotFound", text)
    inactive = [name for name, one in known.items() if not is_active(one)]
    if inactive:
        text = f"references inactive AdmissionCheck(s): {','.join(inactive)}"
        yield Fault("AdmissionCheckInactive", text)
    remote = _of_controller(known, MULTI_CLUSTER_CONTROLLER)
    if len(remote) > 1:
        text = "Cannot use multiple MultiKueue AdmissionChecks on the same ClusterQueue, found: "
        yield Fault("MultipleMultiKueueAdmissionChecks", text + ",".join(remote))
    some = [name for name in remote if flavors[name] != every]
    if some:
        text = f"Cannot specify MultiKueue AdmissionCheck per flavor, found: {','.join(some)}"
        yield Fault("MultiKueueAdmissionCheckAppliedPerFlavor", text)
    provisioning = _of_controller(known, PROVISIONING_CONTROLLER)
    if remote and provisioning:
        text = "Cannot use both MultiKueue and ProvisioningRequest AdmissionChecks together, found:"
        text = f"{text} {','.join(remote)}, {','.join(provisioning)}"
        yield Fault("MultiKueueWithProvisioningRequest", text)


def _of_controller(checks: Mapping[str, AdmissionCheck], controller: str) -> list[str]:
    found: Iterable[tuple[str, AdmissionCheck]] = checks.items()
    return [name for name, one in found if one.spec.controller_name == controller]
