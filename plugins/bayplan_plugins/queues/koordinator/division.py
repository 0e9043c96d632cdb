"""How siblings divide what their parent has: exact integers, one resource at a time.

The rule (koordinator-sh/koordinator, pkg/scheduler/plugins/elasticquota/core,
runtime_quota_calculator.go and scale_minquota_when_over_root_res.go): everyone gets what it asks
for up to its min; what is left over is divided by weight among those that ask for more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bayplan.dialects.koordinator.elastic_quota import ResourceList

__all__ = ["Siblings", "divide", "scaled_min"]


class Siblings(NamedTuple):
    """The stakes of sibling quotas in one resource, in columns: one entry a quota.

    ``weights`` are 0 or more, ``requests`` at most the quotas' max. ``minimums`` are their mins,
    scaled, or what their pods already have, where that is guaranteed and more. One that does not
    lend keeps its minimum, asked for or not.
    """

    names: Sequence[str]
    weights: Sequence[int]
    requests: Sequence[int]
    minimums: Sequence[int]
    lends: Sequence[bool]


def divide(siblings: Siblings, total: int) -> list[int]:
    """Return what each sibling may have of a resource (its runtime).

    Mins that exceed the total are not reduced here, see :func:`scaled_min`. Shares are floors; the
    units that remain go to the largest remainders, then by name, so the sum is exact.
    """
    requests = siblings.requests
    stakes = zip(requests, siblings.minimums, siblings.lends, strict=True)
    runtime = [
        request if lends and request < minimum else minimum for request, minimum, lends in stakes
    ]
    left = total - sum(runtime)
    hungry = [at for at, request in enumerate(requests) if request > runtime[at]]
    while left > 0 and hungry:
        parts = _by_weight(left, siblings, hungry)
        if parts is None:
            break
        left = 0
        still = []
        for at, part in zip(hungry, parts, strict=True):
            has = runtime[at] + part
            if has < requests[at]:
                still.append(at)
                runtime[at] = has
            else:
                left += has - requests[at]
                runtime[at] = requests[at]
        hungry = still
    return runtime


def _by_weight(left: int, siblings: Siblings, hungry: Sequence[int]) -> list[int] | None:
    """Return exact shares by the largest remainder, None if nobody has a weight."""
    weights = [siblings.weights[at] for at in hungry]
    whole = sum(weights)
    if whole <= 0:
        return None
    parts = [weight * left // whole for weight in weights]
    units = left - sum(parts)
    if units:
        remainders = sorted(
            (-(weight * left % whole), siblings.names[at], place)
            for place, (at, weight) in enumerate(zip(hungry, weights, strict=True))
            if weight
        )
        for _, _, place in remainders[:units]:
            parts[place] += 1
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
