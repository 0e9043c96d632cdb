"""The kinds of workloads: what each of them means to a scheduler."""

from bayplan.kinds.kind import PodTemplates, When, WorkloadKind
from bayplan.kinds.reading import PodPlan, Role, minimum_of, pods_of, role_of, roles_of
from bayplan.kinds.table import KINDS_OF_WORKLOADS, SINGLE_PODS, register, rows_of_users, title_of

__all__ = [
    "KINDS_OF_WORKLOADS",
    "SINGLE_PODS",
    "PodPlan",
    "PodTemplates",
    "Role",
    "When",
    "WorkloadKind",
    "minimum_of",
    "pods_of",
    "register",
    "role_of",
    "roles_of",
    "rows_of_users",
    "title_of",
]
