"""Autoscaling: what cluster-autoscaler and Karpenter are asked for, and how they are kept off."""

from bayplan_plugins.autoscaling.plugin import Autoscaling, AutoscalingArgs

__all__ = ["Autoscaling", "AutoscalingArgs"]
