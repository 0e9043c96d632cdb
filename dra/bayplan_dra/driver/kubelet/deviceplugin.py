"""The kubelet's device plugin (v1beta1), for GPUs that pods request without claims.

The kubelet counts the GPUs and chooses among them. The plugin tells it which sets have the fastest
rings, and gives containers the same environment as the driver. A node may run both, each over its
own GPUs (``split``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc
import msgspec
from msgspec.structs import replace

from bayplan.api.gpus import GPUS
from bayplan.errors import BayplanError, did_you_mean
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.readers.sysfs import Netdev
from bayplan.topology.machine.rings import ring_model, ring_order
from bayplan.topology.machine.select import Selection, SelectionRequest, select
from bayplan_dra.driver.config import DeviceConfig, NcclConfig
from bayplan_dra.driver.kubelet.services import KubeletServer, serve
from bayplan_dra.driver.prepare.edits import DeviceFiles, joint_edits
from bayplan_dra.driver.prepare.handover import Handover
from bayplan_dra.driver.proto import deviceplugin_pb2 as api
from bayplan_dra.driver.publish.devices import NodeDevice, NodeInventory, NumaForm, inventory_of
from bayplan_dra.driver.publish.health import DeviceHealth, HealthTracker

__all__ = ["DevicePlugin", "refuse_shared", "split"]

_VERSION = "v1beta1"
_SOCKET = "bayplan-gpu"
_KUBELET = "kubelet.sock"
_FOLDER = Path("/var/lib/kubelet/device-plugins")
_RESOURCE = "nvidia.com/gpu"
_RING_ORDER = "gpu.topology/ring-order"
_BANDWIDTH = "gpu.topology/bandwidth"
_LOOK_SECONDS = 1.0
_REGISTER_SECONDS = 1.0
_GRACE_SECONDS = 0.5
_IDLE_SECONDS = 5.0
"""How often a stream checks whether the kubelet is still there."""
_OPTIONS = api.DevicePluginOptions(get_preferred_allocation_available=True)
_DEFAULTS = DeviceConfig(nccl=NcclConfig(nics="near"))
log = logging.getLogger("bayplan.driver")


def split(
    machine: Machine,
    plugin_gpus: frozenset[int],
    numa: NumaForm = "int",
    cpus: bool = False,
    netdevs: Sequence[Netdev] = (),
    divided: frozenset[int] = frozenset(),
    shared: frozenset[int] = frozenset(),
) -> tuple[NodeInventory, NodeInventory]:
    """Return the devices of the DRA driver and those of the device plugin, which has only GPUs.

    :param plugin_gpus: the GPUs of the plugin, by index; the driver gets everything else.
    :param numa: as in ``inventory_of``, for the driver; ``cpus``, ``netdevs``,
        ``divided`` and ``shared`` likewise.
    :raises BayplanError: for a GPU that does not exist, or would be in both.
    """
    there = frozenset(gpu.index for gpu in machine.gpus)
    for gpu in sorted((plugin_gpus | shared) - there):
        raise BayplanError(f"GPU{gpu} does not exist: the machine has {len(machine)} GPUs")
    for gpu in sorted(plugin_gpus & divided):
        raise BayplanError(f"GPU{gpu} cannot be divided: the device plugin offers it")
    for gpu in sorted(shared & (plugin_gpus | divided)):
        raise BayplanError(f"GPU{gpu} cannot be shared: it is divided, or the device plugin has it")
    driver = inventory_of(machine, numa, cpus, there - plugin_gpus, netdevs, divided, shared)
    plugin = inventory_of(machine, gpus=plugin_gpus)
    gpus = {name: one for name, one in plugin.devices.items() if one.gpu is not None}
    plugin = replace(plugin, devices=gpus)
    refuse_shared(driver, plugin)
    return driver, plugin


def refuse_shared(driver: NodeInventory, plugin: NodeInventory) -> None:
    """Check that no GPU is offered twice.

    :raises BayplanError: naming the first GPU that both have, as a whole or in part.
    """
    ours, theirs = (
        {device.gpu for device in inventory.devices.values() if device.gpu is not None}
        for inventory in (driver, plugin)
    )
    for gpu in sorted(ours & theirs):
        raise BayplanError(
            f"{plugin.machine.gpus[gpu].name} would be offered by the DRA driver and by the "
            "device plugin; each GPU belongs to one of them"
        )


def _whole_gpus(inventory: NodeInventory) -> list[NodeDevice]:
    """Return the GPUs that a container can have as a whole: those without MIG instances."""
    return [
        device
        for device in inventory.devices.values()
        if device.gpu is not None and not inventory.machine.gpus[device.gpu].mig
    ]


class _Refused(BayplanError):
    """A call is refused; ``code`` is the gRPC status."""

    def __init__(self, text: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT) -> None:
        super().__init__(text)
        self.code = code


class _Answers(msgspec.Struct, frozen=True, dict=True):
    """The answers to the kubelet. GPUs are named by their uuid where it is known."""

    inventory: NodeInventory
    health: HealthTracker
    files: DeviceFiles
    handover: Handover
    config: DeviceConfig
    topology_file: str

    @cached_property
    def _gpus(self) -> dict[str, NodeDevice]:
        machine = self.inventory.machine
        found = _whole_gpus(self.inventory)
        return {machine.gpus[_index(one)].uuid or one.name: one for one in found}

    def offer(self) -> None:
        """Keep claims from the GPUs; those that claims have already are offered later.

        :raises BayplanError: when the disk fails, or another instance holds the lock for too long.
        """
        own = {device.name for device in self._gpus.values()}
        self.handover.offer(own)
        with self.handover.alone():
            held = self.handover.holders()
        for gpu in sorted(own & held.keys()):
            log.warning("%s is not offered yet: it is prepared for claim %s", gpu, held[gpu])

    def options(self, request: api.Empty) -> api.DevicePluginOptions:
        """Return which optional calls the plugin supports."""
        return _OPTIONS

    def started(self, request: api.PreStartContainerRequest) -> api.PreStartContainerResponse:
        """Do nothing: GPUs need no preparation, and the options say so."""
        return api.PreStartContainerResponse()

    def devices(self, states: Iterable[DeviceHealth]) -> api.ListAndWatchResponse:
        """List all GPUs; those with a problem, or of a claim, are unhealthy."""
        with self.handover.alone():
            unhealthy = {*self.handover.holders(), *(one.name for one in states if one.problem)}
        found = []
        for name, device in self._gpus.items():
            listed = api.Device(
                ID=name, health="Unhealthy" if device.name in unhealthy else "Healthy"
            )
            numa = self.inventory.machine.gpus[_index(device)].numa
            if numa is not None:
                listed.topology.nodes.add(ID=numa)
            found.append(listed)
        return api.ListAndWatchResponse(devices=found)

    def preferred(self, request: api.PreferredAllocationRequest) -> api.PreferredAllocationResponse:
        """Choose among the free GPUs for each container.

        :raises _Refused: for an unknown GPU, or a size that cannot be.
        """
        return api.PreferredAllocationResponse(
            container_responses=[
                api.ContainerPreferredAllocationResponse(deviceIDs=self._chosen(one))
                for one in request.container_requests
            ]
        )

    def _chosen(self, wanted: api.ContainerPreferredAllocationRequest) -> list[str]:
        must = list(dict.fromkeys(wanted.must_include_deviceIDs))
        names = list(dict.fromkeys([*must, *wanted.available_deviceIDs]))
        name_of = {_index(self._named(name)): name for name in names}
        least = max(1, len(must))
        if wanted.allocation_size < least:
            raise _Refused(f"expected {least} GPUs or more, got {wanted.allocation_size}")
        required = frozenset(gpu for gpu, name in name_of.items() if name in must)
        asked = SelectionRequest(wanted.allocation_size, required)
        found = select(self.inventory.machine, name_of, asked)
        if isinstance(found, Selection):
            return [name_of[gpu] for gpu in found.gpus]
        return names[: wanted.allocation_size]

    def allocated(self, request: api.AllocateRequest) -> api.AllocateResponse:
        """Return what each container gets with its GPUs; nothing is stored.

        :raises _Refused: for an unknown or unhealthy GPU, or one that a claim has.
        """
        _, states = self.health.wait(-1, 0.0)
        problems = {one.name: f"is unhealthy: {one.problem}" for one in states if one.problem}
        with self.handover.alone():
            problems |= self._of_the_driver()
        return api.AllocateResponse(
            container_responses=[
                self._given(list(dict.fromkeys(one.devices_ids)), problems)
                for one in request.container_requests
            ]
        )

    def _of_the_driver(self) -> dict[str, str]:
        """Return why a GPU is not the plugin's to give; callers hold the lock."""
        offered = self.handover.offered()
        found = {
            device.name: "is no longer offered by the device plugin"
            for device in self._gpus.values()
            if device.name not in offered
        }
        held = self.handover.holders().items()
        return found | {gpu: f"is prepared for claim {claim}" for gpu, claim in held}

    def _given(
        self, names: Sequence[str], problems: dict[str, str]
    ) -> api.ContainerAllocateResponse:
        devices = [self._named(name) for name in names]
        for name, device in zip(names, devices, strict=True):
            if device.name in problems:
                text = f'GPU "{name}" {problems[device.name]}'
                raise _Refused(text, grpc.StatusCode.FAILED_PRECONDITION)
        if not devices:
            return api.ContainerAllocateResponse()
        machine = self.inventory.machine
        gpus = sorted(_index(device) for device in devices)
        order = ring_order(machine.bandwidth, gpus)
        joint = joint_edits(machine, devices, self.config, self.topology_file)
        # NVIDIA's runtime adds the driver's libraries for the GPUs named, in this order.
        visible = ",".join(machine.gpus[gpu].uuid or str(gpu) for gpu in order)
        paths = (path for one in devices for path in self.files.of(one, machine).device_files)
        return api.ContainerAllocateResponse(
            envs={**joint.environment, "NVIDIA_VISIBLE_DEVICES": visible},
            mounts=[
                api.Mount(container_path=inside, host_path=host, read_only=True)
                for host, inside in joint.mounts.items()
            ],
            devices=[
                api.DeviceSpec(container_path=path, host_path=path, permissions="rw")
                for path in dict.fromkeys(paths)
            ],
            annotations=_annotations(machine, gpus, order),
        )

    def _named(self, name: str) -> NodeDevice:
        device = self._gpus.get(name)
        if device is None:
            raise _Refused(f'there is no GPU "{name}" here{did_you_mean(name, self._gpus)}')
        return device


def _index(device: NodeDevice) -> int:
    assert device.gpu is not None, "only GPUs are listed"
    return device.gpu


def _annotations(machine: Machine, gpus: Sequence[int], order: Sequence[int]) -> dict[str, str]:
    """Return the annotations that the scheduler writes on pods with the same GPUs."""
    found = {
        GPUS: ",".join(str(gpu) for gpu in gpus),
        _RING_ORDER: ",".join(str(gpu) for gpu in order),
    }
    if len(gpus) > 1:
        found[_BANDWIDTH] = f"{ring_model(machine).bandwidth(gpus):g}"
    return found


def _handler(answers: _Answers, ended: threading.Event) -> grpc.GenericRpcHandler:
    """Return the plugin's service; its streams end soon after ``ended`` is set."""

    def watch(
        request: api.Empty, context: grpc.ServicerContext
    ) -> Iterator[api.ListAndWatchResponse]:
        version, sent = -1, None
        while not ended.is_set() and context.is_active():
            version, states = answers.health.wait(version, _IDLE_SECONDS)
            listed = answers.devices(states)
            if listed != sent:
                yield listed
            sent = listed

    stream = grpc.unary_stream_rpc_method_handler(
        watch,
        request_deserializer=api.Empty.FromString,
        response_serializer=api.ListAndWatchResponse.SerializeToString,
    )
    return serve(
        f"{_VERSION}.DevicePlugin",
        {
            "GetDevicePluginOptions": _unary(answers.options, api.Empty),
            "ListAndWatch": stream,
            "GetPreferredAllocation": _unary(answers.preferred, api.PreferredAllocationRequest),
            "Allocate": _unary(answers.allocated, api.AllocateRequest),
            "PreStartContainer": _unary(answers.started, api.PreStartContainerRequest),
        },
    )


def _unary(function: Callable[[Any], Any], request_type: Any) -> grpc.RpcMethodHandler[Any, Any]:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return function(request)
        except _Refused as exc:
            log.warning("refused: %s", exc)
            context.abort(exc.code, str(exc))

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=request_type.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


class DevicePlugin:
    """Offers a node's whole GPUs to its kubelet, and registers again when the kubelet restarts.

    :param health: must know the devices; others in it are ignored.
    :param handover: keeps GPUs from being given away by the driver, too.
    :param topology_file: the host's path of NCCL's topology file, "" for none.
    :param instance: distinguishes instances that overlap in an update, such as the pod's UID.
    :ivar registered: set while the kubelet knows the plugin, as far as can be seen.
    :ivar registration_error: why the kubelet refused it; "" for no error.
    """

    def __init__(
        self,
        inventory: NodeInventory,
        health: HealthTracker,
        files: DeviceFiles,
        handover: Handover,
        config: DeviceConfig = _DEFAULTS,
        folder: Path = _FOLDER,
        resource: str = _RESOURCE,
        topology_file: str = "",
        instance: str = "",
    ) -> None:
        self.registered = threading.Event()
        self.registration_error = ""
        self._answers = _Answers(inventory, health, files, handover, config, topology_file)
        self._socket = folder / f"{_SOCKET}{instance and f'-{instance[:8]}'}.sock"
        self._kubelet = folder / _KUBELET
        self._resource = resource
        self._stopped = threading.Event()
        self._ended = threading.Event()
        self._server: KubeletServer | None = None
        self._known: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._watch, name="device plugin", daemon=True)

    def start(self) -> None:
        """Listen, and register in the background once there is a kubelet.

        :raises BayplanError: when the socket cannot be used.
        """
        inventory = self._answers.inventory
        gpus = {_index(one) for one in inventory.devices.values() if one.mig is not None}
        for gpu in sorted(gpus):
            log.warning("GPU%d is not offered: it is in MIG instances", gpu)
        self._answers.offer()
        self._listen()
        self._thread.start()

    def ready(self) -> str:
        """Return why the plugin is not ready; "" if it is."""
        if self.registered.is_set():
            return ""
        return f"the device plugin is not registered {self.registration_error}".rstrip()

    def stop(self) -> None:
        """End all streams and stop, within two seconds."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._close()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            try:
                self._look()
            except (BayplanError, OSError) as exc:
                self._failed(str(exc))
            self._stopped.wait(_LOOK_SECONDS)

    def _look(self) -> None:
        """Listen and register again after the kubelet started: it first removes all sockets."""
        # Check ours last: a new kubelet has removed it by the time its own exists.
        kubelet = _identity(self._kubelet)
        if self._server is None or not self._socket.exists():
            self._listen()
        if kubelet != self._known:
            self._known = None
            self.registered.clear()
        if kubelet is not None and self._known is None:
            self._register()
            self._known = kubelet
            self.registration_error = ""
            self.registered.set()
            log.info("registered %s with the kubelet", self._resource)

    def _listen(self) -> None:
        self._close()
        self._known = None
        self._ended = threading.Event()
        server = KubeletServer(self._socket, [_handler(self._answers, self._ended)])
        server.start()
        self._server = server

    def _close(self) -> None:
        self.registered.clear()
        server, self._server = self._server, None
        if server is not None:
            self._ended.set()
            self._answers.health.wake()
            server.stop(_GRACE_SECONDS)

    def _register(self) -> None:
        request = api.RegisterRequest(
            version=_VERSION,
            endpoint=self._socket.name,
            resource_name=self._resource,
            options=_OPTIONS,
        )
        # A shared pool would back off between attempts.
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"unix:{self._kubelet}", options) as channel:
            register = channel.unary_unary(
                f"/{_VERSION}.Registration/Register",
                request_serializer=api.RegisterRequest.SerializeToString,
                response_deserializer=api.Empty.FromString,
            )
            try:
                register(request, timeout=_REGISTER_SECONDS)
            except grpc.RpcError as exc:
                reason = exc.details() or exc.code().name
                raise BayplanError(f"{self._kubelet}: {reason}") from None

    def _failed(self, text: str) -> None:
        if text != self.registration_error:
            log.warning("not registered with the kubelet, retrying: %s", text)
        self.registration_error = text


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from a later one of that name; inodes are reused."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
