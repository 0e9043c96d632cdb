"""Trimaran: three ways to score nodes by what they really use, as in scheduler-plugins."""

from bayplan_plugins.trimaran.load_variation import LoadVariationRiskBalancing
from bayplan_plugins.trimaran.low_risk import LowRiskOverCommitment
from bayplan_plugins.trimaran.target_load import TargetLoadPacking

__all__ = ["LoadVariationRiskBalancing", "LowRiskOverCommitment", "TargetLoadPacking"]
