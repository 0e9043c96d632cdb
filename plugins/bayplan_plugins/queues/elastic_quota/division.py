"""How siblings divide what their parent has: exact integers, one resource at a time.

The rule (koordinator-sh/koordinator, pkg/scheduler/plugins/elasticquota/core,
runtime_quota_calculator.go and scale_minquota_when_over_root_res.go): everyone gets what it asks
for up to its min; what is left over is divided by weight among those that ask for more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bayplan.dialects.elastic_quota import ResourceList

__all__ = ["Sibling", "divide", "scaled_min"]


@dataclass(frozen=True, slots=True)
class Sibling:
    """One quota's stake in one resource.

    ``request`` is at most the quota's max. ``minimum`` is its min, scaled; ``guarantee`` is what
    pods already have of it. One that does not lend keeps its min, asked for or not.
    """

    name: str
    weight: int
    request: int
    minimum: int
    guarantee: int = 0
    lends: bool = True


def divide(siblings: Sequence[Sibling], total: int) -> list[int]:
    """Return what each sibling may have of a resource (its runtime).

    Mins that exceed the total are not reduced here, see :func:`scaled_min`. Shares are floors; the
    units that remain go to the largest remainders, then by name, so the sum is exact.
    """
    runtime = []
    hungry = []
    for index, one in enumerate(siblings):
        least = max(one.minimum, one.guarantee)
        if one.request > least:
            hungry.append(index)
            runtime.append(least)
        else:
            runtime.append(one.request if one.lends else least)
    left = total - sum(runtime)
    while left > 0 and hungry:
        parts = _by_weight(left, [siblings[index] for index in hungry])
        if parts is None:
            break
        left = 0
        still = []
        for index, part in zip(hungry, parts, strict=True):
            wanted = siblings[index].request
            runtime[index] += part
            if runtime[index] < wanted:
                still.append(index)
            else:
                left += runtime[index] - wanted
                runtime[index] = wanted
        hungry = still
    return runtime


def _by_weight(left: int, siblings: Sequence[Sibling]) -> list[int] | None:
    """Return exact shares by the largest remainder, None if nobody has a weight."""
    weights = [max(one.weight, 0) for one in siblings]
    whole = sum(weights)
    if whole <= 0:
        return None
    parts = [weight * left // whole for weight in weights]
    remainders = sorted(
        (-(weight * left % whole), one.name, index)
        for index, (weight, one) in enumerate(zip(weights, siblings, strict=True))
        if weight
    )
    for _, _, index in remainders[: left - sum(parts)]:
        parts[index] += 1
    return parts


def scaled_min(
    minimum: Mapping[str, int],
    total: Mapping[str, int],
    scaling: Mapping[str, int],
    fixed: Mapping[str, int],
) -> ResourceList:
    """Return a quota's min, reduced in proportion where its siblings' mins exceed the total.

    :param total: what the parent has; other resources are not scaled.
    :param scaling: the sum of the mins of the siblings that are scaled, this one included.
    :param fixed: the sum of the mins of the siblings that are not.
    """
    scaled = dict(minimum)
    for name, amount in total.items():
        whole = scaling.get(name, 0)
        if amount >= whole + fixed.get(name, 0):
            continue
        left = max(amount - fixed.get(name, 0), 0)
        scaled[name] = left * minimum.get(name, 0) // whole if whole > 0 else 0
    return scaled
