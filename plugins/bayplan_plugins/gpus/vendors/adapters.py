"""The adapters for shares of GPUs, in the order in which they are asked what a node offers."""

from __future__ import annotations

from collections.abc import Callable

from bayplan.snapshot import Snapshot
from bayplan_plugins.gpus.vendors.adapter import VendorAdapter
from bayplan_plugins.gpus.vendors.hami.adapter import hami_adapter, volcano_adapter
from bayplan_plugins.gpus.vendors.koordinator.adapter import KoordinatorAdapter
from bayplan_plugins.gpus.vendors.nvidia import DevicePluginAdapter
from bayplan_plugins.gpus.vendors.plain import PlainAdapter
from bayplan_plugins.gpus.vendors.tensor_fusion import TensorFusionAdapter

__all__ = ["ADAPTERS"]

ADAPTERS: tuple[Callable[[Snapshot], VendorAdapter], ...] = (
    KoordinatorAdapter,
    hami_adapter,
    volcano_adapter,
    TensorFusionAdapter,
    DevicePluginAdapter,
    PlainAdapter,
)
"""The first adapter that describes a node's GPUs has the node."""
