"""Which devices of a node a pod gets: GPUs first, then NICs near them.

Follows koordinator-sh/koordinator v1.8 (pkg/scheduler/plugins/deviceshare/device_allocator.go).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from bayplan.dialects.koordinator.allocations import Allocation, Function
from bayplan.dialects.koordinator.hints import DeviceHint, JointAllocation
from bayplan.dialects.koordinator.requests import GPU, Amounts, with_memory
from bayplan_plugins.gpus.vendors.koordinator.gpus import group_of_gpus, near_gpus
from bayplan_plugins.gpus.vendors.koordinator.inventory import Inventory
from bayplan_plugins.gpus.vendors.koordinator.refusal import Refused
from bayplan_plugins.gpus.vendors.koordinator.request import NO_TEMPLATE, DeviceRequest
from bayplan_plugins.gpus.vendors.koordinator.scoring import Scorer

__all__ = ["allocate", "per_device"]

_PERCENT = 100
_VIOLATION = "node(s) Device Joint-Allocate rules violation"


class _Need(msgspec.Struct, frozen=True):
    """What is needed of each of ``count`` to ``most`` devices, ``near`` certain PCIe switches."""

    amounts: Amounts
    count: int
    most: int = 0
    near: frozenset[str] = frozenset()


def allocate(
    inventory: Inventory,
    request: DeviceRequest,
    scorer: Scorer | None,
    primary_only: bool = False,
) -> tuple[Allocation, ...]:
    """Return the devices that a pod gets, by type in the order of its request, then by minor.

    :param scorer: orders devices that are equally near; None for the lowest minors.
    :param primary_only: leave out all types but the primary one on a node with enough NICs.
    :raises Refused: where the devices do not do.
    """
    hints = request.hints
    joint = _joint(request)
    kinds = request.kinds
    if primary_only and joint is not None and inventory.machine.well_planned:
        shared = request.gpus is None or request.gpus.shared
        kinds = kinds if shared else tuple(kind for kind in kinds if kind == joint.types[0])
    needs = {kind: _need(inventory, request, kind) for kind in kinds}
    for kind in kinds:
        _check_functions(inventory, hints.hint(kind), kind)
    inventory = inventory.only({kind: hints.hint(kind).selector for kind in kinds})
    chosen: dict[str, tuple[Allocation, ...]] = {}
    if joint is not None and len(kinds) > 1:
        chosen = _together_somewhere(inventory, request, needs, joint, scorer)
    for kind in kinds:
        if kind not in chosen:
            chosen[kind] = _choose(inventory, request, kind, needs[kind], scorer)
    return tuple(one for kind in kinds for one in sorted(chosen[kind], key=lambda one: one.minor))


def per_device(inventory: Inventory, request: DeviceRequest, kind: str) -> Amounts:
    """Return what is requested of each device of a type.

    :raises Refused: where the node has no such devices.
    """
    return _need(inventory, request, kind).amounts


def _joint(request: DeviceRequest) -> JointAllocation | None:
    """Return which of the requested types are chosen together; None if the pod does not care."""
    joint = request.hints.joint
    if joint is None:
        return None
    types = tuple(
        kind
        for kind in joint.types
        if kind in request.kinds and request.hints.hint(kind).strategy != "ApplyForAll"
    )
    return JointAllocation(types, joint.same_pcie) if types else None


def _need(inventory: Inventory, request: DeviceRequest, kind: str) -> _Need:
    known = inventory.devices.get(kind, {})
    few = Refused(f"Insufficient {kind} devices", resolvable=False)
    if not known:
        raise few
    if kind == GPU and request.gpus is not None:
        return _Need(dict(request.gpus.amounts), request.gpus.count)
    amounts, hint = request.of(kind), request.hints.hint(kind)
    name, amount = next(iter(amounts.items()))
    if amount > _PERCENT and amount % _PERCENT == 0:
        return _Need({name: _PERCENT}, amount // _PERCENT)
    if hint.strategy == "ApplyForAll":
        count = len(inventory.only({kind: hint.selector}).offered[kind])
        if not count:
            raise few
        return _Need(amounts, count)
    if hint.strategy == "RequestsAsCount":
        return _Need({name: _PERCENT if hint.exclusive else 1}, amount)
    return _Need(amounts, 1)


def _check_functions(inventory: Inventory, hint: DeviceHint, kind: str) -> None:
    if hint.functions is not None and not any(
        device.functions for device in inventory.devices[kind].values()
    ):
        raise Refused(f"Insufficient {kind} VirtualFunctions", resolvable=False)


def _together_somewhere(
    inventory: Inventory,
    request: DeviceRequest,
    needs: Mapping[str, _Need],
    joint: JointAllocation,
    scorer: Scorer | None,
) -> dict[str, tuple[Allocation, ...]]:
    """Choose devices of all types together.

    Where the best primary devices lack others at their switches, primary devices are chosen among
    those that do not: Koordinator would refuse the node.
    """
    try:
        return _together(inventory, request, needs, joint, scorer)
    except Refused:
        if not joint.same_pcie:
            raise
        primary = joint.types[0]
        good = _complete_switches(inventory, request, needs, joint.types[1:])
        offered = {
            minor
            for minor in inventory.offered[primary]
            if inventory.devices[primary][minor].pcie in good
        }
        if offered == inventory.offered[primary]:
            raise
        narrowed = {**inventory.offered, primary: frozenset(offered)}
        try:
            return _together(replace(inventory, offered=narrowed), request, needs, joint, scorer)
        except Refused:
            pass
        raise


def _complete_switches(
    inventory: Inventory, request: DeviceRequest, needs: Mapping[str, _Need], kinds: Sequence[str]
) -> frozenset[str | None]:
    """Return the PCIe switches with a device of each type that has enough left."""
    found = []
    for kind in kinds:
        hint = request.hints.hint(kind)
        found.append(
            {
                inventory.devices[kind][minor].pcie
                for minor in inventory.offered[kind]
                if inventory.fits(kind, minor, needs[kind].amounts)
                and (hint.functions is None or _free_function(inventory, hint, kind, minor))
            }
        )
    return frozenset(set.intersection(*found)) if found else frozenset()


def _together(
    inventory: Inventory,
    request: DeviceRequest,
    needs: Mapping[str, _Need],
    joint: JointAllocation,
    scorer: Scorer | None,
) -> dict[str, tuple[Allocation, ...]]:
    """Choose the primary devices, then those of other types behind the same PCIe switches.

    Where the primary ones are behind more switches than devices are requested, there is one for
    each switch.
    """
    primary = joint.types[0]
    chosen = {primary: _choose(inventory, request, primary, needs[primary], scorer)}
    switches = _switches(inventory, chosen[primary])
    for kind in joint.types[1:]:
        need = needs[kind]
        most = max(need.count, len(switches))
        near = _Need(need.amounts, most if joint.same_pcie else need.count, most, switches)
        chosen[kind] = _choose(inventory, request, kind, near, scorer)
        if joint.same_pcie and _switches(inventory, chosen[kind]) != switches:
            raise Refused(_VIOLATION)
    return chosen


def _switches(inventory: Inventory, chosen: tuple[Allocation, ...]) -> frozenset[str]:
    found = (inventory.devices[one.kind][one.minor].pcie for one in chosen)
    return frozenset(pcie for pcie in found if pcie is not None)


def _choose(
    inventory: Inventory, request: DeviceRequest, kind: str, need: _Need, scorer: Scorer | None
) -> tuple[Allocation, ...]:
    if kind == GPU:
        return _choose_gpus(inventory, request, need, scorer)
    return _by_score(inventory, request.hints.hint(kind), kind, need, scorer)


def _choose_gpus(
    inventory: Inventory, request: DeviceRequest, need: _Need, scorer: Scorer | None
) -> tuple[Allocation, ...]:
    wanted = request.gpus
    assert wanted is not None, "GPUs are requested"
    hint = request.hints.hint(GPU)
    template = _template(inventory, request)
    minors = None
    if not template:
        minors = group_of_gpus(inventory, wanted, request.hints.group)
    if minors is None:
        minors = near_gpus(inventory, wanted, hint.scope, scorer)
    if minors is None:
        chosen = _by_score(inventory, hint, GPU, need, scorer)
        minors = tuple(one.minor for one in chosen)
    return tuple(
        _allocation(inventory, GPU, minor, need.amounts, template=template) for minor in minors
    )


def _template(inventory: Inventory, request: DeviceRequest) -> str:
    if request.templates is None:
        return ""
    template = dict(request.templates).get(inventory.machine.model, "")
    if not template:
        raise Refused(NO_TEMPLATE, resolvable=False)
    return template


def _by_score(
    inventory: Inventory, hint: DeviceHint, kind: str, need: _Need, scorer: Scorer | None
) -> tuple[Allocation, ...]:
    """Choose devices of a type, best score first, then by minor."""
    chosen: list[Allocation] = []
    for minor in _in_order(inventory, kind, need, scorer):
        if not inventory.fits(kind, minor, need.amounts):
            continue
        functions: tuple[Function, ...] = ()
        if hint.functions is not None:
            functions = _free_function(inventory, hint, kind, minor)
            if not functions:
                continue
        chosen.append(_allocation(inventory, kind, minor, need.amounts, functions))
        if len(chosen) == max(need.most, need.count):
            break
    if len(chosen) < need.count:
        raise Refused(f"Insufficient {kind} devices")
    return tuple(chosen)


def _in_order(inventory: Inventory, kind: str, need: _Need, scorer: Scorer | None) -> list[int]:
    """Return minors in the order in which they are tried.

    First come the best devices of each preferred switch, then their second ones, and so on, so that
    every switch gets one.
    """
    scores = {
        minor: 0
        if scorer is None
        else scorer.device(need.amounts, inventory.total(kind, minor), inventory.free[kind][minor])
        for minor in sorted(inventory.offered[kind])
    }
    order = sorted(scores, key=lambda minor: (-scores[minor], minor))
    seen: dict[str, int] = {}
    turns: dict[int, int] = {}
    for minor in order:
        pcie = inventory.devices[kind][minor].pcie
        if pcie is not None and pcie in need.near:
            turns[minor] = seen[pcie] = seen.get(pcie, 0) + 1
    last = len(order) + 1
    return sorted(order, key=lambda minor: (turns.get(minor, last), -scores[minor], minor))


def _free_function(
    inventory: Inventory, hint: DeviceHint, kind: str, minor: int
) -> tuple[Function, ...]:
    """Return the first free virtual function, by PCI address, that the hint selects."""
    taken = inventory.taken.get((kind, minor), frozenset())
    free = [
        function
        for group in inventory.devices[kind][minor].functions
        if hint.functions is not None and hint.functions.matches(dict(group.labels))
        for function in group.functions
        if function.bus not in taken
    ]
    return (min(free),) if free else ()


def _allocation(
    inventory: Inventory,
    kind: str,
    minor: int,
    amounts: Amounts,
    functions: tuple[Function, ...] = (),
    template: str = "",
) -> Allocation:
    device = inventory.devices[kind][minor]
    if kind == GPU:
        try:
            amounts = with_memory(amounts, device.total)
        except ValueError as exc:
            raise Refused(f"GPU {minor}: {exc}", resolvable=False) from None
    return Allocation(kind, minor, tuple(sorted(amounts.items())), device.uuid, functions, template)
