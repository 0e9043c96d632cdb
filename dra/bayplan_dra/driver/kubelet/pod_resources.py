"""GPUs of the driver that pods got through a device plugin before they became the driver's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import grpc

from bayplan.errors import Transient
from bayplan_dra.driver.proto import podresources_pb2 as api
from bayplan_dra.driver.publish.devices import NodeInventory
from bayplan_dra.driver.publish.health import HealthTracker

__all__ = ["PluginPods"]

_RESOURCE = "nvidia.com/gpu"
_CAUSE = "device-plugin"
_LOOK_SECONDS = 2.0
_CALL_SECONDS = 5.0
log = logging.getLogger("bayplan.driver")


class PluginPods:
    """The pods that have GPUs of the driver through a device plugin; such GPUs get a taint.

    The kubelet is asked until no pod has one. No pod gets one after that: the device plugin does
    not give away what it does not offer.

    :param socket: of the kubelet's PodResources API (``v1``).
    """

    def __init__(self, socket: Path, inventory: NodeInventory, health: HealthTracker) -> None:
        self._socket = socket
        self._health = health
        self._names = _names(inventory)
        self._lock = threading.Lock()
        self._done = False
        self._warned = False

    def holders(self) -> Mapping[str, str]:
        """Return the pods that have one of the GPUs, as namespace/name, by GPU.

        :raises Transient: when the kubelet does not answer.
        """
        with self._lock:
            if self._done:
                return {}
            if not self._socket.exists():
                if not self._warned:
                    text = "%s is not there: pods with GPUs of a device plugin are not seen"
                    log.warning(text, self._socket)
                self._warned = True
                return {}
            found = self._listed()
            for gpu in self._names.values():
                pod = found.get(gpu)
                text = f"pod {pod} has it through {_RESOURCE}" if pod else ""
                if self._health.report(gpu, _CAUSE, text) and pod:
                    log.warning("%s is not free yet: %s", gpu, text)
            self._done = not found
            return found

    def run(self, stopped: threading.Event) -> None:
        """Ask the kubelet until no pod has one of the GPUs, or ``stopped`` is set."""
        while not self._done and not stopped.is_set():
            # Before the kubelet's first start it is not there, and nobody asks for it.
            if self._socket.exists():
                try:
                    self.holders()
                except Transient as exc:
                    log.debug("%s", exc)
            stopped.wait(_LOOK_SECONDS)

    def _listed(self) -> dict[str, str]:
        # A shared pool would back off between attempts.
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"unix:{self._socket}", options) as channel:
            ask = channel.unary_unary(
                "/v1.PodResourcesLister/List",
                request_serializer=api.ListPodResourcesRequest.SerializeToString,
                response_deserializer=api.ListPodResourcesResponse.FromString,
            )
            try:
                answer = ask(api.ListPodResourcesRequest(), timeout=_CALL_SECONDS)
            except grpc.RpcError as exc:
                reason = exc.details() or exc.code().name
                raise Transient(f"{self._socket}: {reason}") from None
        return {
            self._names[name]: f"{pod.namespace}/{pod.name}"
            for pod in answer.pod_resources
            for container in pod.containers
            for devices in container.devices
            if devices.resource_name == _RESOURCE
            for name in devices.device_ids
            if name in self._names
        }


def _names(inventory: NodeInventory) -> dict[str, str]:
    """Return the driver's whole GPUs by the names that device plugins give them."""
    found = {}
    for device in inventory.devices.values():
        if device.gpu is not None and device.whole:
            found[inventory.machine.gpus[device.gpu].uuid or device.name] = device.name
    return found
