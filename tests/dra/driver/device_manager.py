"""A kubelet's device manager: it takes registrations, counts devices, and gives them to pods.

The facts are those of Kubernetes' pkg/kubelet/cm/devicemanager and pkg/kubelet/cm/topologymanager.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import grpc
from tests.dra.driver.socket_calls import SECONDS, call, open_channel, stream

from bayplan_dra.driver.proto import deviceplugin_pb2 as api

_SERVICE = "/v1beta1.DevicePlugin"


class NotAdmitted(Exception):
    """The kubelet fails a pod at once; the scheduler does not hear of it."""


class DeviceManager:
    """The device manager of a kubelet with one resource.

    :ivar policy: of the topology manager.
    :ivar registrations: the requests to register, since its start.
    :ivar refusal: why registrations are refused, "" for no reason.
    :ivar awake: cleared for a kubelet that does not answer.
    :ivar pods: the devices of each pod; they outlive a restart, in the kubelet's checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policy: Literal["best-effort", "restricted", "single-numa-node"] = "best-effort"
        self.registrations: queue.Queue[api.RegisterRequest] = queue.Queue()
        self.refusal = ""
        self.awake = threading.Event()
        self.awake.set()
        self.pods: dict[str, set[str]] = {}
        self._devices: dict[str, api.Device] = {}

    # Its life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Remove all sockets, as every kubelet does at its start, and listen."""
        self.registrations = queue.Queue()
        self._devices = {}
        for socket in self.folder.glob("*.sock"):
            socket.unlink()
        method = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=api.RegisterRequest.FromString,
            response_serializer=api.Empty.SerializeToString,
        )
        handler = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": method})
        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        self._server.start()
        self._streams: list[tuple[Any, threading.Thread]] = []

    def stop(self) -> None:
        """End; devices stay with their pods."""
        self.awake.set()
        self._server.stop(None).wait()
        for answers, thread in self._streams:
            answers.cancel()
            if thread.ident is not None:  # a last call may be just about to start it
                thread.join(SECONDS)
        self._streams = []

    def _register(self, request: api.RegisterRequest, context: grpc.ServicerContext) -> api.Empty:
        self.awake.wait()
        if self.refusal:
            context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        self._follow(request.endpoint)
        self.registrations.put(request)
        return api.Empty()

    def registered(self) -> api.RegisterRequest:
        """Return the next registration."""
        return self.registrations.get(timeout=SECONDS)

    def _follow(self, endpoint: str) -> None:
        """Follow the list of a plugin; no device is left when the stream ends."""
        channel = open_channel(self.folder / endpoint)
        answers = _lists(channel)

        def follow() -> None:
            try:
                for answer in answers:
                    self._devices = {one.ID: one for one in answer.devices}
            except grpc.RpcError:
                pass  # However the stream ends, the plugin has to register again.
            if not self._streams or self._streams[-1][0] is answers:
                self._devices = {}
            channel.close()

        thread = threading.Thread(target=follow, name="device manager", daemon=True)
        self._streams.append((answers, thread))
        thread.start()

    # Pods ------------------------------------------------------------------------------------

    @property
    def allocatable(self) -> int:
        """How many devices the node's status offers."""
        return len(self._healthy())

    def _healthy(self) -> dict[str, api.Device]:
        return {name: one for name, one in self._devices.items() if one.health == "Healthy"}

    def admit(self, pod: str, count: int) -> set[str]:
        """Give devices to a pod with one container; return their names.

        :raises NotAdmitted: when there are too few, or the policy demands others.
        """
        used = {name for names in self.pods.values() for name in names}
        free = {name: one for name, one in self._healthy().items() if name not in used}
        if len(free) < count:
            raise NotAdmitted(f"UnexpectedAdmissionError: {len(free)} devices are available")
        aligned = self._aligned(free, count)
        chosen = self._preferred(count, aligned, ())[:count]
        self.allocate(chosen)
        self.pods[pod] = set(chosen)
        return self.pods[pod]

    def _aligned(self, free: dict[str, api.Device], count: int) -> list[str]:
        """Return the free devices of the fewest NUMA nodes that have enough.

        :raises NotAdmitted: when the policy demands fewer.
        """
        every = {place for one in self._devices.values() for place in _places(one)}
        nodes = sorted(every)
        sets = [
            set(some) for size in range(1, len(nodes) + 1) for some in combinations(nodes, size)
        ]
        enough = (some for some in sets if len(_within(self._devices, some)) >= count)
        fewest = min(map(len, enough), default=len(nodes))
        found = next((some for some in sets if len(_within(free, some)) >= count), every)
        most = {"best-effort": len(nodes), "restricted": fewest, "single-numa-node": 1}
        if len(found) > most[self.policy]:
            raise NotAdmitted("TopologyAffinityError: Resources cannot be allocated with Topology")
        return _within(free, found)

    # Calls -----------------------------------------------------------------------------------

    @contextmanager
    def _channel(self) -> Iterator[grpc.Channel]:
        with open_channel(self.folder / "bayplan-gpu.sock") as channel:
            yield channel

    def call(self, method: str, request: Any, answer: Any) -> Any:
        """Call a method of the plugin."""
        with self._channel() as channel:
            return call(channel, f"{_SERVICE}/{method}", request, answer)

    @contextmanager
    def lists(self) -> Iterator[Iterator[dict[str, str]]]:
        """Follow the plugin's lists: the health of each GPU."""
        with self.devices() as lists:
            yield ({one.ID: one.health for one in devices} for devices in lists)

    @contextmanager
    def devices(self) -> Iterator[Iterator[Sequence[api.Device]]]:
        """Follow the plugin's lists."""
        with self._channel() as channel:
            answers = _lists(channel)
            yield (answer.devices for answer in answers)
            answers.cancel()

    def preferred(self, count: int, available: Sequence[str], must: Sequence[str] = ()) -> set[int]:
        """Ask which GPUs are best for one container; return their indices."""
        chosen = self._preferred(count, available, must)
        assert len(chosen) == len(set(chosen))
        return {int(name.removeprefix("gpu-")) for name in chosen}

    def _preferred(self, count: int, available: Sequence[str], must: Sequence[str]) -> list[str]:
        one = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=count
        )
        request = api.PreferredAllocationRequest(container_requests=[one])
        answer = self.call("GetPreferredAllocation", request, api.PreferredAllocationResponse)
        (chosen,) = answer.container_responses
        return list(chosen.deviceIDs)

    def allocate(self, *containers: Sequence[str]) -> list[api.ContainerAllocateResponse]:
        """Tell the plugin which GPUs containers get; return what else they get."""
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=one) for one in containers]
        )
        return list(self.call("Allocate", request, api.AllocateResponse).container_responses)


def _lists(channel: grpc.Channel) -> Any:
    return stream(channel, f"{_SERVICE}/ListAndWatch", api.Empty(), api.ListAndWatchResponse)


def _places(device: api.Device) -> set[int]:
    return {place.ID for place in device.topology.nodes}


def _within(devices: dict[str, api.Device], nodes: set[int]) -> list[str]:
    """Return the devices that some of the NUMA nodes have."""
    return [name for name, one in devices.items() if not _places(one) or _places(one) & nodes]
