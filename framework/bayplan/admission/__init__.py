"""Defaults, refusals and warnings at creation, by policies that the API server itself evaluates."""

from bayplan.admission.facts import FACTS, facts_of
from bayplan.admission.policies import (
    MOVED_FROM,
    QUEUE_OF_NAMESPACE,
    SCHEDULER,
    Defaults,
    mutating_policies,
    validating_policies,
)

__all__ = [
    "FACTS",
    "MOVED_FROM",
    "QUEUE_OF_NAMESPACE",
    "SCHEDULER",
    "Defaults",
    "facts_of",
    "mutating_policies",
    "validating_policies",
]
