"""Simulations: manifests and arrivals in, what happens to them in virtual time out."""

from bayplan.simulation.simulation import Progress, Simulation, TimelineEntry, resource_use

__all__ = ["Progress", "Simulation", "TimelineEntry", "resource_use"]
