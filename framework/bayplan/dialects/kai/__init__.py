"""KAI: its queues and pod groups (:mod:`.queues`) and its shares of GPUs (:mod:`.shares`)."""

from bayplan.dialects.kai.queues import (
    GROUP_ANNOTATION,
    MEMBERS_BY,
    NAME,
    QUEUE_LABEL,
    gang_of,
    layers_of,
    membership_of,
    numa_placement_of,
    placement_of,
    queue_of,
    seconds_of,
    segment_of,
)

__all__ = [
    "GROUP_ANNOTATION",
    "MEMBERS_BY",
    "NAME",
    "QUEUE_LABEL",
    "gang_of",
    "layers_of",
    "membership_of",
    "numa_placement_of",
    "placement_of",
    "queue_of",
    "seconds_of",
    "segment_of",
]
