"""Nodes that plugins keep for somebody, for whoever shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bayplan.snapshot.snapshot import Snapshot

__all__ = ["KeptNodes"]


class KeptNodes:
    """The idle nodes that are kept for jobs which lose a node: the spares.

    What keeps any adds itself to ``sources``: a function that returns the names of the nodes, with
    the domain that each is for.
    """

    def __init__(self) -> None:
        self.sources: list[Callable[[], Mapping[str, str]]] = []

    @classmethod
    def of(cls, snapshot: Snapshot) -> KeptNodes:
        """Return those of a snapshot."""
        return snapshot.shared(cls, lambda _: cls())

    def now(self) -> dict[str, str]:
        """Return the nodes, by name, with the domain that each is for."""
        return {name: domain for source in self.sources for name, domain in source().items()}
