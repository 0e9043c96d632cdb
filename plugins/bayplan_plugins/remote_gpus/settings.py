"""The distance classes: how far a client is from its worker, and what that costs."""

from __future__ import annotations

import pydantic
from pydantic import Field

from bayplan import Args
from bayplan.dialects.tensor_fusion import Link

__all__ = ["DistanceArgs", "RemoteGPUsArgs", "latency_text"]


class DistanceArgs(Args):
    """A distance class: pairs of nodes that share a domain of a layer.

    ``layers`` are names of network layers or labels of nodes; the first that exists counts.
    ``latency`` is what a message takes one way, in microseconds, ``bandwidth`` what one client gets
    to its worker, in GB/s.
    """

    name: str = Field(min_length=1, max_length=40)
    layers: tuple[str, ...] = Field(default=(), max_length=8)
    latency: float = Field(gt=0, le=1e9, allow_inf_nan=False)
    bandwidth: float = Field(gt=0, le=1e6, allow_inf_nan=False)

    def serves(self, link: Link) -> bool:
        """Tell whether this is near enough for a client."""
        return self.latency * 1e-6 <= link.max_latency and self.bandwidth >= link.min_bandwidth

    def shortfall(self, link: Link) -> str:
        """Return what a client needs that this class does not offer."""
        if self.latency * 1e-6 > link.max_latency:
            return f"more than {latency_text(link.max_latency)} away"
        return f"less than {link.min_bandwidth:g} GB/s away"

    @property
    def figures(self) -> str:
        """The figures for people."""
        return f"{latency_text(self.latency * 1e-6)}, {self.bandwidth:g} GB/s"


def latency_text(seconds: float) -> str:
    """Return a latency as people write it."""
    return f"{seconds * 1e6:g}us" if seconds < 1e-3 else f"{seconds * 1e3:g}ms"


_DEFAULTS = (
    DistanceArgs(name="node", latency=5, bandwidth=25),
    DistanceArgs(
        name="rack",
        layers=("nvlinkDomain", "rack", "AcceleratorLayer", "topology.kubernetes.io/rack"),
        latency=10,
        bandwidth=12.5,
    ),
    DistanceArgs(
        name="block",
        layers=("block", "BlockLayer", "cloud.google.com/gce-topology-block"),
        latency=20,
        bandwidth=12.5,
    ),
    DistanceArgs(name="spine", layers=("spine", "SpineLayer"), latency=40, bandwidth=6.25),
    DistanceArgs(name="farther", latency=200, bandwidth=1.25),
)


class RemoteGPUsArgs(Args):
    """Arguments of RemoteGPUs.

    ``distances`` are the distance classes, the nearest first. The first means the same node, the
    last any two nodes; both have no layers. The defaults are those of a network of 100 Gb/s with
    RDMA: measure your own.
    """

    distances: tuple[DistanceArgs, ...] = Field(default=_DEFAULTS, min_length=2, max_length=16)

    @pydantic.field_validator("distances")
    @classmethod
    def _in_order(cls, distances: tuple[DistanceArgs, ...]) -> tuple[DistanceArgs, ...]:
        first, *inner, last = distances
        for one in (first, last):
            if one.layers:
                raise ValueError(f'distance "{one.name}": expected no layers: it is first or last')
        for one in inner:
            if not one.layers:
                raise ValueError(f'distance "{one.name}": expected layers')
        names = [one.name for one in distances]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f'distance "{name}" is defined twice')
        return distances
