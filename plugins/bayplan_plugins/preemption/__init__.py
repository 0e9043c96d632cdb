"""DefaultPreemption: which pods to evict so that a unit fits."""

from bayplan_plugins.preemption.plugin import DefaultPreemption, DefaultPreemptionArgs

__all__ = ["DefaultPreemption", "DefaultPreemptionArgs"]
