"""Koordinator: gangs, quotas, and what its annotations ask for and record of devices."""

from bayplan.dialects.koordinator.gangs import (
    MEMBERS_BY,
    NAME,
    PLUGIN_NAMES,
    SELECTOR_ANNOTATION,
    CoschedulingArgs,
    gang_of,
    layers_of,
    membership_of,
    pod_group,
)

__all__ = [
    "MEMBERS_BY",
    "NAME",
    "PLUGIN_NAMES",
    "SELECTOR_ANNOTATION",
    "CoschedulingArgs",
    "gang_of",
    "layers_of",
    "membership_of",
    "pod_group",
]
