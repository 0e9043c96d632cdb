"""The contracts for shares of cards, in the order in which they are asked what a node offers."""

from __future__ import annotations

from collections.abc import Callable

from bayplan.snapshot import Snapshot
from bayplan_plugins.device_share.koordinator.contract import KoordinatorCards
from bayplan_plugins.device_share.nvidia import DevicePluginCards
from bayplan_plugins.device_share.plain import PlainCards
from bayplan_plugins.device_share.tensor_fusion import TensorFusionCards
from bayplan_plugins.device_share.vgpu.contract import hami_cards, volcano_cards
from bayplan_plugins.shared.cards.contract import CardContract

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
