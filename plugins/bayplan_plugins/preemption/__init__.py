"""DefaultPreemption: who has to go so that a unit fits."""

from bayplan_plugins.preemption.plugin import DefaultPreemption, DefaultPreemptionArgs

__all__ = ["DefaultPreemption", "DefaultPreemptionArgs"]
