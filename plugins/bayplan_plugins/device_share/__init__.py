"""DeviceShare: shares of cards, by whatever contract pods ask for them."""

from bayplan_plugins.device_share.plugin import DeviceShare

__all__ = ["DeviceShare"]
