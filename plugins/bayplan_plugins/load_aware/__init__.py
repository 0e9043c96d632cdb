"""LoadAwareScheduling: keep pods off nodes that are busier than their requests say."""

from bayplan_plugins.load_aware.plugin import LoadAwareArgs, LoadAwareScheduling

__all__ = ["LoadAwareArgs", "LoadAwareScheduling"]
