"""Which of Volcano's cases bayplan does not answer as Volcano does, each with the reason."""

from __future__ import annotations

from typing import Any

__all__ = ["better_answer", "out_of_scope"]

Case = dict[str, Any]

_SCORING = ("resource-strategy-fit", "usage", "numaaware")


def out_of_scope(case: Case) -> str | None:
    """Return why bayplan does not model a case, None for one that it does."""
    if case.get("sharding"):
        return "shards: several schedulers that split the nodes among them"
    for name in _SCORING:
        if name in case["plugins"]:
            return f'"{name}" scores nodes, which plugins of the profile do by their own rules'
    return None


BETTER = {
    "allocate/TestAllocateWithPartitionPolicyNetworkTopology/8": (
        "three members fit, one in a domain, two that belong together in the other; Volcano's "
        "search takes the first domain and gives up"
    ),
    "allocate/TestAllocateWithNetWorkTopologies/16": (
        "a hard topology keeps a gang in one domain of the highest tier that exists; Volcano takes "
        "the whole cluster for one more tier"
    ),
    "capacity/TestCapacityPluginDRA/3": (
        "a claim asks for 100 devices, and the API allows 32; its queue does not bound them"
    ),
    "reclaim/TestReclaim/7": (
        "the gang needs two pods, and its queue deserves one; Volcano evicts a pod in vain"
    ),
}
"""Cases with a better answer, by id."""


def better_answer(case: Case) -> str | None:
    """Return why bayplan's answer to a case is better than Volcano's, None for any other case."""
    return BETTER.get(case["id"].removeprefix("volcano/"))
