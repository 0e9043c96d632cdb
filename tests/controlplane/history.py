"""What happened to pods and claims, watched all the time, and what may never happen to them."""

from __future__ import annotations

import http.client
import threading
import time

from tests.cluster.apiserver.faces import Client
from tests.controlplane.live_cluster import CLAIMS, PODS, Content

from bayplan.api.times import seconds_of

Device = tuple[str, str, str]


class History:
    """Follows pods and claims, across restarts of the API server.

    ``problems`` names each pod that changed its node and each device that two claims had.
    """

    def __init__(self, client: Client) -> None:
        self.problems: list[str] = []
        self.nodes: dict[str, str] = {}
        """The node of every bound pod, by its UID."""
        self.bound: dict[str, float] = {}
        """When each pod was bound, as it says itself, by its UID; in seconds since 1970."""
        self.ended: dict[str, float] = {}
        """When the containers of each pod had ended, as it says itself, by its UID."""
        self._devices: dict[str, set[Device]] = {}
        self._there: dict[str, dict[str, Content]] = {PODS: {}, CLAIMS: {}}
        """The objects of each collection as they were last seen, by UID."""
        self._client = client
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(path,), daemon=True) for path in self._there
        ]

    def __enter__(self) -> History:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ending.set()

    def look(self, path: str) -> str:
        """See what is there now, and what has gone since the last time; return the list's version.

        A watch ends after a while, and what is deleted before the next list is told by no event.
        """
        found = self._client.get(path).json
        uids = {one["metadata"]["uid"] for one in found["items"]}
        for gone in [one for uid, one in self._there[path].items() if uid not in uids]:
            self._see(path, "DELETED", gone)
        for one in found["items"]:
            self._see(path, "LISTED", one)
        return str(found["metadata"]["resourceVersion"])

    def _see(self, path: str, event: str, content: Content) -> None:
        uid = content["metadata"]["uid"]
        if event == "DELETED":
            self._there[path].pop(uid, None)
        else:
            self._there[path][uid] = content
        (self._pod if path == PODS else self._claim)(event, content)

    def _follow(self, path: str) -> None:
        while not self._ending.is_set():
            try:
                version = self.look(path)
                with self._client.watch(path, resourceVersion=version) as events:
                    while not self._ending.is_set():
                        self._see(path, *events.next())
            except (OSError, EOFError, http.client.HTTPException, ValueError, KeyError):
                # The server is away, or has forgotten: the next list has what was missed.
                time.sleep(0.05)

    def _pod(self, event: str, pod: Content) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        node = pod["spec"].get("nodeName", "")
        before = self.nodes.get(uid, "")
        if before and node != before:
            self.problems.append(f"pod {name} was on {before} and is on {node or 'no node'}")
        if node:
            self.nodes[uid] = node
        for one in pod["status"].get("conditions", []):
            if node and (one["type"], one["status"]) == ("PodScheduled", "True"):
                self.bound[uid] = seconds_of(one["lastTransitionTime"])
        states = [one["state"] for one in pod["status"].get("containerStatuses", [])]
        if states and all("terminated" in one for one in states):
            self.ended[uid] = max(seconds_of(one["terminated"]["finishedAt"]) for one in states)

    def _claim(self, event: str, claim: Content) -> None:
        uid, name = claim["metadata"]["uid"], claim["metadata"]["name"]
        devices = set() if event == "DELETED" else devices_of(claim)
        self._devices[uid] = devices
        # A list is not in the order of events: another claim may have given the device back.
        for other, theirs in self._devices.items():
            if other != uid and devices & theirs and event != "LISTED":
                self.problems.append(f"claim {name} got {devices & theirs}, which {other} has")


def devices_of(claim: Content) -> set[Device]:
    """Return the devices that are allocated to a claim: driver, pool and name."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return {(one["driver"], one["pool"], one["device"]) for one in results}
