"""What a node has of cards, and which pods have them: what plugins tell those who draw it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bayplan.api.cards import WHOLE, Card
from bayplan.api.dra import DeviceId

if TYPE_CHECKING:
    from bayplan.topology.machine.model import Machine

__all__ = ["CardHolder", "NodeDevices", "PublishedDevice"]


@dataclass(frozen=True)
class CardHolder:
    """What a pod, by key, has of one card of its node.

    ``card`` is the card's index, ``compute`` in thousandths of it, ``memory`` in bytes (0: not
    counted apart), ``partition`` the name of the profile, such as ``1g.10gb``. ``guessed`` says
    that nothing states which card it is.
    """

    card: int
    pod: str
    compute: int = WHOLE
    memory: int = 0
    partition: str = ""
    guessed: bool = False


@dataclass(frozen=True)
class PublishedDevice:
    """A GPU or a NIC as its driver publishes it.

    ``gpu`` is the index of a GPU's card, None for a NIC. ``memory`` is in bytes, 0 if unknown.
    ``nvlink`` names its NVLink domain.
    """

    name: str
    gpu: int | None
    model: str = ""
    memory: int = 0
    numa: int | None = None
    pcie_root: str = ""
    nvlink: str = ""


@dataclass(frozen=True)
class NodeDevices:
    """What one plugin knows of the cards of a node.

    ``machine`` says how they are connected, None where that is unknown. ``cards`` are those that
    pods share. ``devices`` maps devices of resource slices to the index of their card, ``nics`` to
    the place of their NIC among those of the machine, or else of ``published``: the GPUs and then
    the NICs that drivers publish, where no machine is described.
    """

    machine: Machine | None = None
    cards: Sequence[Card] = ()
    holders: Sequence[CardHolder] = ()
    devices: Mapping[DeviceId, int] = field(default_factory=dict)
    nics: Mapping[DeviceId, int] = field(default_factory=dict)
    published: Sequence[PublishedDevice] = ()
