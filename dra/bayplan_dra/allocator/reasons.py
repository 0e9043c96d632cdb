"""Why claims cannot be allocated, in words that say what would be enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from bayplan.api.dra import CLAIM_LIMIT
from bayplan_dra.allocator.attributes import Value
from bayplan_dra.allocator.host import is_of_host
from bayplan_dra.allocator.problem import DeviceDemand
from bayplan_dra.allocator.requests import AttributeConstraint, Wanted
from bayplan_dra.allocator.table import DeviceTable, FilteredDevices, bits
from bayplan_dra.allocator.usage import CounterKey

__all__ = [
    "constraint_failure",
    "counters_exceeded",
    "too_few_for_all_requests",
    "too_few_for_request",
    "too_few_in_all",
]


def too_few_for_request(
    table: DeviceTable,
    wanted: Wanted,
    filtered: FilteredDevices,
    visible: int,
    in_use: int,
    free: int,
    blocked: int = 0,
) -> str:
    """Say how many devices each step took out, and how many more would be enough.

    :param visible: the devices that the node can use, one bit each; the others likewise.
    :param in_use: the devices that claims hold exclusively.
    :param free: the devices that are left for the request.
    :param blocked: the devices that may not be attached to the host.
    """
    lost: list[str] = []
    unusable = visible & ~filtered.usable
    if unusable:
        pools = [pool for pool in table.pools if pool.incomplete or pool.invalid]
        why = f"is invalid: {pools[0].invalid}" if pools[0].invalid else "is being updated"
        lost.append(f"{unusable.bit_count()} in pool {pools[0].key}, which {why}")
    left = visible & filtered.of_class
    total = (left | unusable).bit_count()
    lost += _lost(left & ~filtered.matching, "not selected")
    left &= filtered.matching
    lost += _lost(left & ~filtered.tolerated, "tainted")
    left &= filtered.tolerated
    asked = ", ".join(f"{name} {amount.text}" for name, amount in wanted.capacity.items())
    lost += _lost(left & ~filtered.capable, f"too small for {asked or 'the capacity'}")
    left &= filtered.capable
    if not wanted.admin:
        lost += _lost(left & in_use, "in use")
        left &= ~in_use
        lost += _blocked(table, left & blocked)
        left &= ~blocked
    lost += _lost(left & ~free, "short of shared counters or capacity")
    count, have = wanted.count or 0, free.bit_count()
    kind = f"{_devices(count)} of class {wanted.device_class.metadata.name}"
    failure = next(iter(filtered.failures.values()), "")
    error = f" ({failure})" if failure else ""
    if not total:
        there = "and the node has no devices"
        if visible:
            there = f"none of the node's {_devices(visible.bit_count())} is of it"
        return f"request {wanted.name} needs {kind}, {there}{error}"
    why = f": {', '.join(lost)}" if lost else ""
    # More devices like those on which the expression fails would not help.
    more = "" if failure else f"; {count - have} more would be enough"
    return (
        f"request {wanted.name} needs {kind}, {have or 'none'} of {total} can be had{why}"
        f"{error}{more}"
    )


def too_few_for_all_requests(
    table: DeviceTable,
    wanted: Wanted,
    filtered: FilteredDevices,
    required: int,
    in_use: int,
    affordable: int,
) -> str:
    """Say why a request for all devices cannot be met; return "" when it can.

    :param required: the devices that the request asks for, one bit each; the others likewise.
    :param in_use: the devices that claims hold exclusively.
    :param affordable: the required devices with enough of their counters and capacity left.
    """
    where = f"request {wanted.name} asks for all devices, but"
    for pool in table.pools:
        if pool.incomplete:
            return f"{where} resource pool {pool.key} is currently being updated"
        if pool.invalid:
            return f"{where} resource pool {pool.key} is invalid: {pool.invalid}"
    for failure in filtered.failures.values():
        return f"{where} {failure}"
    if not required:
        return f"{where} none matches"
    tainted = required & ~filtered.tolerated
    if tainted:
        return f"{where} {_named(table, tainted)} tainted"
    busy = required & in_use
    if busy and not wanted.admin:
        return f"{where} {_named(table, busy)} in use"
    short = required & ~affordable
    if short:
        return f"{where} {_named(table, short)} short of shared counters"
    if required.bit_count() > CLAIM_LIMIT:
        return f"{where} these are {required.bit_count()}, and a claim may have {CLAIM_LIMIT}"
    return ""


def constraint_failure(
    table: DeviceTable, constraint: AttributeConstraint, demands: Iterable[DeviceDemand]
) -> str:
    """Say why a constraint cannot be met by a claim's demands."""
    attribute = table.attribute(constraint.attribute)
    covered = [demand for demand in demands if constraint.covers(demand.name)]
    without = [d for d in covered if (d.candidates & attribute.present).bit_count() < d.count]
    if without:
        have = (without[0].candidates & attribute.present).bit_count()
        return (
            f"constraint on {constraint.attribute}: request {without[0].name} needs "
            f"{_devices(without[0].count)}, and {have or 'none'} that can be had "
            f"{'has' if have < 2 else 'have'} the attribute"
        )
    if constraint.distinct:
        need = sum(demand.count for demand in covered)
        return (
            f"constraint on {constraint.attribute}: there are no {need} devices with different "
            "values"
        )
    best = _best_value(attribute.masks, covered)
    parts = ", ".join(
        f"{demand.name} {(demand.candidates & best).bit_count()} of {demand.count}"
        for demand in covered
    )
    return (
        f"constraint on {constraint.attribute}: no value has enough devices; the best has {parts}"
    )


def _best_value(masks: Mapping[Value, int], covered: Sequence[DeviceDemand]) -> int:
    """Return the devices with the value that meets most of the demands."""

    def rank(value: Value) -> tuple[int, str]:
        mask = masks[value]
        met = sum(min(demand.count, (demand.candidates & mask).bit_count()) for demand in covered)
        return (-met, str(value))

    return masks[min(masks, key=rank)]


def counters_exceeded(counters: Iterable[CounterKey]) -> str:
    """Say that all requests together need more of the shared counters than is left."""
    models = sorted(key[2] for key in counters if is_of_host(key))
    keys = sorted({f"{key[1]}/{key[2]}" for key in counters if not is_of_host(key)})
    if not keys:
        limits = ", ".join(models[:4])
        return f"the host may not have as many GPUs ({limits}) as all requests together need"
    return f"the shared counters ({', '.join(keys[:4])}) do not suffice for all requests together"


def too_few_in_all(
    demands: Sequence[DeviceDemand], constraints: Iterable[AttributeConstraint]
) -> str:
    """Say that each request could be met alone, but not all of them together."""
    names = ", ".join(dict.fromkeys(one.attribute for one in constraints))
    if names:
        return f"no choice of devices meets the constraints on {names} of all requests together"
    need = sum(demand.count for demand in demands)
    union = 0
    for demand in demands:
        union |= demand.candidates
    return f"the requests together need {_devices(need)}, and {union.bit_count()} can be had"


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def _lost(mask: int, why: str) -> list[str]:
    return [f"{mask.bit_count()} {why}"] if mask else []


def _blocked(table: DeviceTable, mask: int) -> list[str]:
    """Say how many devices of each model may not be attached, and why."""
    host = table.host
    counts = Counter(host.models[device] for device in bits(mask)) if host is not None else {}
    found = []
    for model, count in sorted(counts.items()):
        assert host is not None, "it has blocked devices"
        problem = host.limits.problems.get(model)
        if problem is not None:
            found.append(f"{count} in the fabric's pool, but {problem}")
            continue
        most = host.limits.most.get(model)
        apart = " or ".join(sorted(host.limits.apart.get(model, ())))
        limits = [f"more than {most} of them"] if most is not None else []
        limits += [f"{model} beside {apart}"] if apart else []
        found.append(
            f"{count} in the fabric's pool, but the host may not have {', or '.join(limits)}"
        )
    return found


def _named(table: DeviceTable, mask: int) -> str:
    devices = [table.devices[device] for device in bits(mask)]
    shown = ", ".join(device.id.device for device in devices[:3])
    more = f" and {len(devices) - 3} more" if len(devices) > 3 else ""
    return f"{shown}{more} {'is' if len(devices) == 1 else 'are'}"
