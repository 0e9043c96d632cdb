"""The contracts for shares of cards, in the order in which they are asked what a node offers."""

from __future__ import annotations

from collections.abc import Callable

from bayplan.snapshot import Snapshot
from bayplan_plugins.gpus.vendors.contract import CardContract
from bayplan_plugins.gpus.vendors.hami.contract import hami_cards, volcano_cards
from bayplan_plugins.gpus.vendors.koordinator.contract import KoordinatorCards
from bayplan_plugins.gpus.vendors.nvidia import DevicePluginCards
from bayplan_plugins.gpus.vendors.plain import PlainCards
from bayplan_plugins.gpus.vendors.tensor_fusion import TensorFusionCards

__all__ = ["CONTRACTS"]

CONTRACTS: tuple[Callable[[Snapshot], CardContract], ...] = (
    KoordinatorCards,
    hami_cards,
    volcano_cards,
    TensorFusionCards,
    DevicePluginCards,
    PlainCards,
)
"""The first contract that describes a node's cards has the node."""
