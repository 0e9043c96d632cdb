"""What becomes of a Workload whose pods bayplan does not follow, once it has waited for quota."""

from __future__ import annotations

from bayplan.api.kueue import AssignedPodSet, KueueWorkload
from bayplan.queues.workload_waits import ADMITTED, true_conditions

__all__ = ["state_of"]


def state_of(workload: KueueWorkload) -> tuple[str, str]:
    """Return Finished, Admitted or Pending, and what it has or waits for, in words."""
    conditions = true_conditions(workload)
    if "Finished" in conditions:
        return "Finished", conditions["Finished"].message
    admission = workload.status.admission
    if admission is None:
        return "Pending", ""
    parts = "; ".join(filter(None, map(_quota, admission.pod_set_assignments)))
    quota = f"it has quota in ClusterQueue {admission.cluster_queue}" + (parts and f": {parts}")
    if ADMITTED in conditions:
        return "Admitted", quota
    return "Pending", f"{quota}; it waits for {_awaited(workload)}"


def _awaited(workload: KueueWorkload) -> str:
    checks = [one for one in workload.status.admission_checks if one.state != "Ready"]
    names = ", ".join(f"{one.name} ({one.state})" for one in checks)
    return f"admission checks: {names}" if checks else "its admission"


def _quota(given: AssignedPodSet) -> str:
    amounts = [
        f"{amount.text} {resource}{_of_flavor(given.flavors.get(resource))}"
        for resource, amount in given.resource_usage.items()
    ]
    return f"pod set {given.name}: {', '.join(amounts)}" if amounts else ""


def _of_flavor(flavor: str | None) -> str:
    return f" of flavor {flavor}" if flavor else ""
