"""When the slices of a node are written: as soon as the kubelet can prepare what they offer.

A kubelet that cannot prepare a pod's claim tries again only after 60 to 90 s, so devices must not
be offered before it knows the driver. It deletes the slices of its node when it starts, and those
of a driver that was away for 30 s; a moment later, it registers the drivers that it finds.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Protocol

from bayplan.errors import BayplanError
from bayplan_dra.driver import metrics
from bayplan_dra.driver.publish.devices import NodeInventory
from bayplan_dra.driver.publish.health import HealthTracker
from bayplan_dra.driver.publish.publisher import Owner, Publisher, SliceApi, SliceChange
from bayplan_dra.driver.publish.turn import Turn

__all__ = ["PublishLoop", "PublisherApi"]

_FIRST_RETRY, _LAST_RETRY = 1.0, 30.0
_REST_SECONDS = 0.2
_REGISTRATION_SECONDS = 5.0
"""How long after its start a kubelet may take to register the driver; it takes 1 to 2 s."""
_REPORTED_AFTER_SECONDS = 20.0
_JOIN_SECONDS = 10.0
log = logging.getLogger("bayplan.driver")


class PublisherApi(SliceApi, Protocol):
    """The requests to the API server; errors are ``ClusterError``."""

    def owner(self, node: str) -> Owner:
        """Return the node that owns the slices."""


class PublishLoop:
    """Publishes at every change of health and slices, while the kubelet knows the driver.

    :param turn: whose turn it is to publish, when instances overlap.
    :param registration: the socket that the kubelet has to find.
    :param resync_seconds: how often the slices are checked when nothing changes.
    :ivar published: set once the slices are published.
    """

    def __init__(
        self,
        api: PublisherApi,
        driver: str,
        node: str,
        inventory: NodeInventory,
        health: HealthTracker,
        turn: Turn,
        registration: Path,
        resync_seconds: float,
    ) -> None:
        self.published = threading.Event()
        self._api = api
        self._driver = driver
        self._node = node
        self._inventory = inventory
        self._health = health
        self._turn = turn
        self._registration = registration
        self._resync_seconds = resync_seconds
        self._stopped = threading.Event()
        self._started = 0.0
        self._reported = False
        self._registered_at: float | None = None
        self._not_before = 0.0
        self._publisher: Publisher | None = None
        self._logged: list[str] = []
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True)
            for name, run in {"publish": self._run, "follow slices": self._follow}.items()
        ]

    def start(self) -> None:
        """Publish in the background, once the kubelet knows the driver."""
        self._turn.take()
        self._started = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop publishing; the slices stay."""
        self._stopped.set()
        self._health.wake()
        publishing, _ = self._threads
        if publishing.is_alive():
            publishing.join(_JOIN_SECONDS)

    def is_alive(self) -> bool:
        """Tell whether changes are still published."""
        return self._threads[0].is_alive()

    def kubelet_registered(self) -> None:
        """Publish now: the kubelet can prepare claims."""
        self._registered_at = time.monotonic()
        self._not_before = 0.0
        self._health.wake()

    def kubelet_refused(self) -> None:
        """Wait for the kubelet: it does not know the driver."""
        self._registered_at = None

    def _run(self) -> None:
        version, delay = -1, _FIRST_RETRY
        while not self._stopped.is_set():
            waiting = self._seconds_to_wait()
            if waiting:
                version, _ = self._health.wait(version, min(waiting, self._resync_seconds))
                continue
            try:
                if self._has_missed_a_deletion():
                    continue
                written = self._publish()
            except Exception as exc:
                # Nothing restarts this thread, so it has to survive any error.
                known = isinstance(exc, BayplanError)
                text = "cannot publish the slices, retrying in %g s: %s"
                log.warning(text, delay, exc, exc_info=None if known else exc)
                metrics.publish_failed()
                self._stopped.wait(delay)
                delay = min(delay * 2, _LAST_RETRY)
                continue
            delay = _FIRST_RETRY
            self._not_before = 0.0
            self.published.set()
            if written:
                # Whoever else writes them is not answered at once.
                self._stopped.wait(_REST_SECONDS)
            version, _ = self._health.wait(version, self._resync_seconds)

    def _seconds_to_wait(self) -> float:
        """Return how long not to publish; 0 for now."""
        now = time.monotonic()
        if self._registered_at is None:
            if not self._reported and now - self._started > _REPORTED_AFTER_SECONDS:
                self._reported = True
                log.warning("%s", _not_found(self._registration))
            return 1.0
        if not self._turn.is_mine():
            return 1.0
        return max(0.0, self._not_before - now)

    def _publish(self) -> int:
        owner = self._api.owner(self._node)
        if self._publisher is None or self._publisher.owner != owner:
            self._publisher = Publisher(self._api, self._driver, owner)
        taints = self._health.taints()
        written = self._publisher.publish(self._inventory, taints)
        metrics.published(len(self._inventory.devices), len(taints), written)
        if self._publisher.warnings != self._logged:
            self._logged = list(self._publisher.warnings)
            for text in self._logged:
                log.warning("published with a problem: %s", text)
        return written

    def _follow(self) -> None:
        """Publish again when somebody else changes the slices."""
        logged = ""
        while not self._stopped.is_set():
            error = ""
            try:
                for change in self._api.follow(self._driver, self._node):
                    if self._stopped.is_set():
                        return
                    if change is SliceChange.DELETED:
                        self._deleted()
                    self._health.wake()
            except Exception as exc:
                # As above: without this thread, deleted slices come back at the next check only.
                error = str(exc)
                if error != logged:
                    log.warning("cannot follow the slices: %s", error)
            logged = error
            self._stopped.wait(_FIRST_RETRY)

    def _deleted(self) -> None:
        """Wait for the registration if a kubelet has started: it may not know the driver yet."""
        now = time.monotonic()
        registered = self._registered_at
        if registered is not None and now - registered > _REGISTRATION_SECONDS:
            self._not_before = now + _REGISTRATION_SECONDS

    def _has_missed_a_deletion(self) -> bool:
        """Tell whether the slices are gone without an event, as between two watches."""
        if self._not_before or not self.published.is_set():
            return False
        if not self._api.slices(self._driver, self._node):
            self._deleted()
        return self._not_before > 0.0


def _not_found(socket: Path) -> str:
    return (
        f"the kubelet has not registered the driver for {_REPORTED_AFTER_SECONDS:g} s. It looks "
        f"for {socket.name} in plugins_registry of its own folder, usually /var/lib/kubelet: is "
        f"that folder mounted at {socket.parent}? To the kubelet, the path of the socket may have "
        "107 bytes at most; a longer one it only tells in its own log"
    )
