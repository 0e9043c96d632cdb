"""Why no domain of the network can hold a unit, in Koordinator's words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bayplan import DomainTrial
from bayplan.topology.network.tree import ROOT_LAYER

__all__ = ["no_domain_message", "slices_message"]

_MOST_NAMED = 20
"""Domains that a message names; conditions have a limited length."""


def no_domain_message(
    border: str | None, size: int, refused: Sequence[DomainTrial], fit_message: str
) -> str:
    """Return why no domain inside the border can hold the unit.

    :param size: the number of members.
    :param fit_message: which nodes refuse a member, such as "0/5 nodes are available: ...".
    """
    prefix = "cluster" if border == ROOT_LAYER else f"{border}/"
    trials = [trial for trial in refused if trial.name.startswith(prefix)]
    shown = _roomiest(trials, _MOST_NAMED)
    per_domain = ";".join(f"topology topologyNode {t.name}: {t.offered}" for t in shown)
    if len(trials) > len(shown):
        per_domain += f";{len(trials) - len(shown)} more"
    if not per_domain:
        per_domain = f"no node is in any {border}"
    refusals = "." if fit_message.endswith("nodes are available.") else f", {fit_message}"
    return (
        "no candidate topology nodes can accommodate job, desiredOfferSlot: "
        f"{size}, {per_domain}{refusals}"
    )


def slices_message(size: int, slices: Iterable[tuple[str, int, int]]) -> str:
    """Return how many slices fit on each layer.

    :param size: the number of members.
    :param slices: for each layer its name, the size of a slice, and how many slices fit.
    """
    known = list(slices)
    constraints = ", ".join(sorted(f"{name}={members}" for name, members, _ in known))
    fits = "; ".join(
        f"{fitting}/{size // members} slice(s) fit on level {name}"
        for name, members, fitting in known
    )
    return f"podCountMultiple constraints: {constraints}; {fits}."


def _roomiest(trials: Sequence[DomainTrial], most: int) -> Sequence[DomainTrial]:
    if len(trials) <= most:
        return trials
    ranked = sorted(range(len(trials)), key=lambda i: (-(trials[i].offered or 0), i))
    return [trials[i] for i in sorted(ranked[:most])]
