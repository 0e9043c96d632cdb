"""DeviceShare: shares of GPUs, by whatever adapter pods ask for them."""

from bayplan_plugins.device_share.plugin import DeviceShare

__all__ = ["DeviceShare"]
