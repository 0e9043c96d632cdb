"""DynamicResources: a pod runs where its claims can have their devices."""

from bayplan_plugins.dynamic_resources.plugin import DynamicResources, DynamicResourcesArgs

__all__ = ["DynamicResources", "DynamicResourcesArgs"]
