"""What code that changes objects needs of the store that holds them."""

from __future__ import annotations

from typing import Protocol, TypeVar

from bayplan.api import ApiObject

__all__ = ["ObjectStore"]

Obj = TypeVar("Obj", bound=ApiObject)


class ObjectStore(Protocol):
    """Objects by type and key, as ``store.MemoryCluster`` keeps them."""

    def list(self, type_: type[Obj]) -> list[Obj]:
        """Return all objects of a type, oldest first."""

    def get(self, type_: type[Obj], key: str) -> Obj | None:
        """Return an object, None when there is none."""

    def create(self, obj: Obj) -> Obj:
        """Create an object and return it as stored.

        :raises AlreadyExists: when the name is taken.
        :raises InputError: when admission refuses it.
        """

    def update(self, obj: Obj) -> Obj:
        """Replace an object and return it as stored.

        :raises NotFound: when there is no such object.
        :raises Conflict: when its resourceVersion is stale.
        """

    def delete(self, type_: type[ApiObject], key: str, grace: float | None = None) -> None:
        """Delete an object; ``grace`` is a pod's grace period in seconds.

        :raises NotFound: when there is no such object.
        """

    def timestamp(self) -> str:
        """Return the time as Kubernetes writes times."""
