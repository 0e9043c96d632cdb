"""Gang: all members of a gang get nodes, or none."""

from bayplan_plugins.gang.plugin import Gang

__all__ = ["Gang"]
