"""Where pods ask to be by annotations of templates and owners: Kueue's, KAI's, Volcano's."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.api.gang import DomainOrder, Fill, Gather, Slice
from bayplan.dialects import kai, kueue, volcano

__all__ = ["Placement", "placement_of"]


class Placement(msgspec.Struct, frozen=True):
    """The domains of the network in which pods are gathered, see :class:`bayplan.api.gang.Gang`.

    :param topology: the name of the network tree, "" for the only one.
    :param together: names what else has to lie in the same domain.
    """

    gather: tuple[Gather, ...] = ()
    slices: tuple[Slice, ...] = ()
    fill: Fill | None = None
    domain_order: DomainOrder = "LeastOffered"
    topology: str = ""
    together: str = ""


_ANYWHERE = Placement()


def placement_of(annotations: Mapping[str, str]) -> Placement:
    """Return what annotations ask for; nothing if they say nothing.

    :raises ValueError: for annotations that contradict each other.
    """
    if not annotations:
        return _ANYWHERE
    gather, fill = kueue.gather_of(annotations)
    slices = kueue.slices_of(annotations)
    if gather or slices:
        group = kueue.set_group_of(annotations)
        return Placement(gather, slices, fill, "LeastFree", together=group)
    gather, topology = kai.placement_of(annotations)
    if gather:
        return Placement(gather, domain_order="OutermostFirst", topology=topology)
    return Placement(volcano.placement_of(annotations))
