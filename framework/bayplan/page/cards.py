"""Which pod has what of which card of a node, whatever plugin knows it."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bayplan.api import ResourceClaim
from bayplan.api.cards import WHOLE
from bayplan.api.dra import DeviceId
from bayplan.dialects.kai.shares import groups_of, is_reservation
from bayplan.plugin.devices import CardHolder, NodeDevices, PublishedDevice
from bayplan.queues.gpus import part_of_gpu
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import PodInfo
from bayplan.topology.machine.model import Machine

__all__ = ["MOST_CARDS", "NodeCards", "PodCard", "card_count", "cards_of"]

MOST_CARDS = 64
"""The most cards of one node that are drawn."""
_CARDS = ("gpu", "npu", "mlu", "dcu", "gcu", "xpu")
_ASCEND = "huawei.com/Ascend"
_WHOLE_GPU = re.compile(r"gpu-?\d+")


@dataclass(frozen=True)
class PodCard:
    """What a pod has of a card: its index, thousandths of it (0: a part of unknown size), a name.

    ``label`` names the partition or the device; ``guessed`` says that nothing states which card it
    is, as when the kubelet chooses. A NIC counts down from -1: -1 is the first.
    """

    card: int
    compute: int = WHOLE
    label: str = ""
    guessed: bool = False

    def as_json(self) -> list[object]:
        """Return ``[card, compute, label, guessed]`` without what is empty at its end."""
        plain: list[object] = [self.card, self.compute, self.label, int(self.guessed)]
        while len(plain) > 2 and not plain[-1]:
            plain.pop()
        return plain


@dataclass
class NodeCards:
    """The cards of a node: how many, their machine, and what pods have, by key.

    ``published`` is what drivers say of its GPUs and NICs, where the machine is None.
    """

    count: int = 0
    machine: Machine | None = None
    published: tuple[PublishedDevice, ...] = ()
    models: Sequence[str] = ()
    of_pod: dict[str, list[PodCard]] = field(default_factory=dict)


def card_count(amounts: Mapping[str, int]) -> int:
    """Return how many whole cards amounts of resources name, by the resources' names."""
    return sum(amount for name, amount in amounts.items() if _is_card(name))


def _is_card(resource: str) -> bool:
    domain, slash, name = resource.partition("/")
    return bool(slash) and (
        resource.startswith(_ASCEND) or (name in _CARDS and not domain.startswith("requests."))
    )


def cards_of(
    scheduler: Scheduler,
    node: str,
    offered: int,
    pods: Mapping[str, PodInfo],
    claims: Mapping[str, Iterable[ResourceClaim]],
) -> NodeCards:
    """Return the cards of a node.

    :param offered: how many its extended resources count.
    :param pods: the pods on it, by key.
    :param claims: the allocated claims of these pods, by key.
    :raises PluginError: when a plugin raises.
    """
    told = _told(scheduler, node)
    found = NodeCards(machine=next((one.machine for one in told if one.machine), None))
    if found.machine is None:
        found.published = _drawn(next((one.published for one in told if one.published), ()))
    shared = next((one.cards for one in told if one.cards), ())
    gpus = [card for card in shared if card.kind == "gpu"]
    # A device plugin that shares cards counts each of them several times.
    count = max((card.index + 1 for card in gpus), default=0) or offered
    count = max([count, *(card + 1 for one in told for card in one.devices.values())])
    found.count = min(MOST_CARDS, len(found.machine) if found.machine is not None else count)
    models = {card.index: card.model for card in gpus}
    if found.machine is None and models:
        found.models = [models.get(index, "") for index in range(found.count)]
    memory = {card.index: card.memory for card in shared}
    holders = [holder for one in told for holder in one.holders]
    for_others = _held_for_others(pods, {one.pod for one in holders})
    _hold(found, [one for one in holders if one.pod not in for_others], memory)
    devices = {key: gpu for one in told for key, gpu in one.devices.items()}
    nics = {key: nic for one in told for key, nic in one.nics.items()}
    for key, own in claims.items():
        _claimed(found, key, own, devices, nics)
    _place_uncounted(found, {key: pod for key, pod in pods.items() if key not in for_others})
    return found


def _held_for_others(pods: Mapping[str, PodInfo], told: Container[str]) -> set[str]:
    """Return the pods that hold a card for others that share it, by key.

    :param told: the pods that are known to have something of cards.
    """
    groups = {
        group
        for key, pod in pods.items()
        if key in told and not is_reservation(pod.pod)
        for group in groups_of(pod.pod)
    }
    return {
        key
        for key, pod in pods.items()
        if is_reservation(pod.pod) and not groups.isdisjoint(groups_of(pod.pod))
    }


def _drawn(published: Sequence[PublishedDevice]) -> tuple[PublishedDevice, ...]:
    """Return devices to draw: numbered from 0 without a gap, and at a place that is stated."""
    gpus = [one.gpu for one in published if one.gpu is not None]
    placed = any(one.pcie_root or one.numa is not None for one in published)
    return tuple(published) if placed and gpus == list(range(len(gpus))) else ()


def _told(scheduler: Scheduler, node: str) -> list[NodeDevices]:
    found = []
    for profile in scheduler.profiles.values():
        answers = (call(node) for call in profile.runtime["node_devices"])
        found += [one for one in answers if one is not None]
        if found:
            break
    return found


def _hold(found: NodeCards, holders: Iterable[CardHolder], memory: Mapping[int, int]) -> None:
    """Enter the holders of cards; a part of a card counts before a hold of it as a whole.

    :param memory: that of each card, 0 where it is not known.
    """
    parts = [
        (one, part_of_gpu(one.compute, one.memory, memory.get(one.card, 0))) for one in holders
    ]
    shared = {one.card for one, part in parts if part < WHOLE or one.partition}
    for one, part in parts:
        if part >= WHOLE and not one.partition and one.card in shared:
            continue
        own = found.of_pod.setdefault(one.pod, [])
        card = PodCard(one.card, part, one.partition, one.guessed)
        if card not in own:
            own.append(card)


def _claimed(
    found: NodeCards,
    pod: str,
    claims: Iterable[ResourceClaim],
    devices: Mapping[DeviceId, int],
    nics: Mapping[DeviceId, int],
) -> None:
    parts: dict[int, int] = {}
    for card in devices.values():
        parts[card] = parts.get(card, 0) + 1
    for claim in claims:
        allocation = claim.status.allocation
        if allocation is None:
            continue
        for one in allocation.devices.results:
            device = DeviceId(one.driver, one.pool, one.device)
            index, nic = devices.get(device), nics.get(device)
            if nic is not None:
                found.of_pod.setdefault(pod, []).append(PodCard(-1 - nic, WHOLE, one.device))
            if index is None:
                continue
            whole = parts[index] == 1 or _WHOLE_GPU.fullmatch(one.device) is not None
            own = found.of_pod.setdefault(pod, [])
            own.append(PodCard(index, WHOLE if whole else 0, one.device))


def _place_uncounted(found: NodeCards, pods: Mapping[str, PodInfo]) -> None:
    """Give cards that are free to pods whose cards nobody knows, the lowest first."""
    taken = {one.card for own in found.of_pod.values() for one in own}
    free = [card for card in range(found.count) if card not in taken]
    for key, pod in pods.items():
        if any(one.card >= 0 for one in found.of_pod.get(key, ())):
            continue
        wanted = card_count(pod.requests)
        if wanted:
            own, free = free[:wanted], free[wanted:]
            cards = found.of_pod.setdefault(key, [])
            cards += [PodCard(card, guessed=True) for card in own]
