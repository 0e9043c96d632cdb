"""What becomes of jobs when a node fails."""

from bayplan_plugins.recovery.plugin import Recovery, RecoveryArgs

__all__ = ["Recovery", "RecoveryArgs"]
