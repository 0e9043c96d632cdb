"""The kinds of workloads: what each of them means to a scheduler."""

from bayplan.kinds.kind import Added, Copied, Counted, Ends, PodTemplates, When, WorkloadKind
from bayplan.kinds.reading import (
    PodPlan,
    Progress,
    Role,
    TemplateOf,
    domain_of,
    minimum_of,
    pods_of,
    policy_of,
    progress_of,
    role_of,
    roles_of,
    templates_of,
    units_of,
)
from bayplan.kinds.table import KINDS_OF_WORKLOADS, SINGLE_PODS, register, rows_of_users, title_of

__all__ = [
    "KINDS_OF_WORKLOADS",
    "SINGLE_PODS",
    "Added",
    "Copied",
    "Counted",
    "Ends",
    "PodPlan",
    "PodTemplates",
    "Progress",
    "Role",
    "TemplateOf",
    "When",
    "WorkloadKind",
    "domain_of",
    "minimum_of",
    "pods_of",
    "policy_of",
    "progress_of",
    "register",
    "role_of",
    "roles_of",
    "rows_of_users",
    "templates_of",
    "title_of",
    "units_of",
]
