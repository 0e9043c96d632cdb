"""Watch the devices' health: GPUs through NVML, ports of NICs through sysfs.

Each watcher runs in a thread of its own until it is stopped. A failed query is logged and retried;
it does not change a device's health.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes import c_void_p, cast
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pynvml

from bayplan.errors import BayplanError
from bayplan.topology.machine.model import Mig, Nic
from bayplan.topology.machine.readers.nvml import read_gpus
from bayplan_dra.driver.publish.devices import NodeInventory

__all__ = ["APPLICATION_XIDS", "LinkWatcher", "PortWatcher", "Report", "XidWatcher"]

Report: TypeAlias = Callable[[str, str, str], bool]
"""Called with a device, the cause of its problem and a text, "" when the problem is over; returns
whether this changed anything. Repeated reports are harmless."""
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a faulty application can cause."""
_RECOVERY_CHANGED = 154
"""The Xid that announces a change of the recovery action that the driver wants."""
_RECOVERIES = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "work over NVLink to be drained",
    4: "work over NVLink to be drained and a reset of the GPU",
    5: "a recovery of the IMEX domain",
    6: "a reset of the GPU's PCIe bus",
    7: "a reboot of the system",
}
"""The values of nvmlDeviceGpuRecoveryAction_t; 0 is no action."""
_GONE = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
)
"""Errors that mean that a GPU cannot be used; others may be temporary."""
_ANY_INSTANCE = 0xFFFFFFFF
_ROUNDS_BEFORE_REOPENING = 10
_PAUSE = 0.01
"""Seconds between two waits for events."""
_ACTIVE = "4:"
"""How the state of a port that carries data begins."""
log = logging.getLogger("bayplan.driver")


class XidWatcher:
    """Watches the GPUs' events and state; a GPU's problems are also those of its MIG instances.

    Causes: ``xid``, an Xid that no application caused, and ``ecc``, a double-bit memory error (for
    one MIG instance only if the event names it); ``recovery``, while the driver wants a recovery
    action, for instance when this process starts and a GPU waits for its reset; ``lost``, while the
    GPU does not answer.

    There is no event for a reset. ``xid`` and ``ecc`` end when the driver no longer wants a
    recovery action that it wanted before, or when a lost GPU answers again and no action is wanted.
    If neither happens, as after an Xid that needs no action or with a driver that knows no actions,
    they stay until this process restarts. A GPU cannot be reset while a process has it open, and
    this watcher has all GPUs open: stop it first.

    While a GPU does not answer, NVML is reopened every tenth time, because it finds a GPU that came
    back only then. Events of other GPUs may be lost in that moment; recovery actions are not.

    :param ignored: Xids to ignore besides ``APPLICATION_XIDS``.
    :param seconds: the longest wait for an event, and the interval at which GPUs are queried.
    """

    def __init__(
        self,
        inventory: NodeInventory,
        report: Report,
        ignored: Iterable[int] = (),
        seconds: float = 1.0,
    ) -> None:
        self._gpus = _gpus(inventory)
        self._report = report
        self._ignored = APPLICATION_XIDS | frozenset(ignored) | {_RECOVERY_CHANGED}
        self._seconds = seconds

    def run(self, stopped: threading.Event) -> None:
        """Watch until ``stopped`` is set; returns within one wait for an event."""
        if self._gpus:
            _repeat("GPUs", lambda: self._watch(stopped), self._seconds, stopped)

    def _watch(self, stopped: threading.Event) -> None:
        """Watch, reopening NVML as needed, but not in quick succession."""
        lasted = self._seconds
        while lasted >= self._seconds and not stopped.is_set():
            started = time.monotonic()
            self._session(stopped)
            lasted = time.monotonic() - started

    def _session(self, stopped: threading.Event) -> None:
        """Watch until the set of GPUs that answer changes, or NVML has to be reopened."""
        with _nvml():
            for gpu in self._gpus:
                gpu.handle = None
            answering = self._check()
            rounds = 0 if len(answering) == len(self._gpus) else _ROUNDS_BEFORE_REOPENING
            with _event_set() as events:
                for gpu in answering:
                    _register(gpu, events)
                while not stopped.is_set():
                    well = self._wait(events, stopped)
                    rounds -= 1
                    if self._check() != answering or rounds == 0:
                        return
                    if not well:
                        raise BayplanError("NVML says that a GPU is lost, but all answer")

    # Events ------------------------------------------------------------------------------

    def _wait(self, events: Any, stopped: threading.Event) -> bool:
        """Handle events until the next round; return False at once when a GPU is lost."""
        until = time.monotonic() + self._seconds
        while (left := until - time.monotonic()) > 0 and not stopped.is_set():
            try:
                event = pynvml.nvmlEventSetWait_v2(events, max(1, round(1000 * left)))
            except pynvml.NVMLError as exc:
                if exc.value == pynvml.NVML_ERROR_TIMEOUT:
                    stopped.wait(
                        _PAUSE
                    )  # it may time out early, and at once without supported events
                    continue
                if exc.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                    return False
                raise
            self._take(event)
        return True

    def _take(self, event: Any) -> None:
        gpu = self._gpu_of(event.device)
        xid = int(event.eventData)
        if gpu is None:
            log.warning("event %d of type %#x has no known GPU", xid, event.eventType)
        elif event.eventType == pynvml.nvmlEventTypeDoubleBitEccError:
            devices = gpu.named(event.gpuInstanceId, event.computeInstanceId)
            self._report_all(devices, "ecc", "double-bit error of memory")
        elif xid in self._ignored:
            log.info("%s: Xid %d is ignored", gpu.name, xid)
        else:
            devices = gpu.named(event.gpuInstanceId, event.computeInstanceId)
            self._report_all(devices, "xid", f"Xid {xid}")

    def _gpu_of(self, handle: Any) -> _WatchedGpu | None:
        address = _address(handle)
        for gpu in self._gpus:
            if gpu.handle is not None and _address(gpu.handle) == address:
                return gpu
        with suppress(pynvml.NVMLError):
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            return next((gpu for gpu in self._gpus if gpu.uuid == uuid), None)
        return None

    # State -------------------------------------------------------------------------------

    def _check(self) -> list[_WatchedGpu]:
        """Query all GPUs; return those that answer."""
        return [gpu for gpu in self._gpus if self._answers(gpu)]

    def _answers(self, gpu: _WatchedGpu) -> bool:
        try:
            if gpu.handle is None:
                gpu.handle = _handle(gpu)
            wanted = _wanted_recovery(gpu.handle)
        except pynvml.NVMLError as exc:
            if exc.value in _GONE:
                gpu.lost = True
                self._report_all(gpu.devices, "lost", f"NVML: {exc}")
            elif str(exc) != gpu.error:
                log.warning("%s cannot be queried: %s", gpu.name, exc)
            gpu.error = str(exc)
            return False
        gpu.error = ""
        if gpu.lost:
            self._report_all(gpu.devices, "lost", "")
            gpu.lost, gpu.recovering = False, True
        if wanted:
            gpu.recovering = True
            what = _RECOVERIES.get(wanted, f"recovery {wanted}")
            self._report_all(gpu.devices, "recovery", f"the driver wants {what}")
        elif gpu.recovering:
            gpu.recovering = False
            for cause in ("recovery", "xid", "ecc"):
                self._report_all(gpu.devices, cause, "")
        return True

    def _report_all(self, devices: Iterable[str], cause: str, text: str) -> None:
        for device in devices:
            _report_and_log(self._report, device, cause, text)


class _WatchedGpu(msgspec.Struct, eq=False):
    """A GPU that is watched: its devices, and its state when it was last queried."""

    index: int
    uuid: str
    devices: dict[str, Mig | None] = msgspec.field(default_factory=dict)
    handle: Any = None
    lost: bool = False
    recovering: bool = False
    error: str = ""

    @property
    def name(self) -> str:
        """The GPU's name in logs."""
        return f"GPU {self.index}"

    def named(self, gpu_instance: int, compute_instance: int) -> list[str]:
        """Return the devices of an event: the MIG instances that it names, or else all."""
        found = [
            name
            for name, mig in self.devices.items()
            if mig is not None
            and mig.gpu_instance == gpu_instance
            and compute_instance in (mig.compute_instance, _ANY_INSTANCE)
        ]
        return found or list(self.devices)


def _gpus(inventory: NodeInventory) -> list[_WatchedGpu]:
    found: dict[int, _WatchedGpu] = {}
    for device in inventory.devices.values():
        if device.gpu is not None:
            known = inventory.machine.gpus[device.gpu]
            gpu = found.setdefault(known.index, _WatchedGpu(known.index, known.uuid))
            gpu.devices[device.name] = device.mig
    return list(found.values())


@contextmanager
def _nvml() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


@contextmanager
def _event_set() -> Iterator[Any]:
    events = pynvml.nvmlEventSetCreate()
    try:
        yield events
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(events)


def _register(gpu: _WatchedGpu, events: Any) -> None:
    """Register for the events that a GPU supports; one without any is only queried."""
    wanted = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
    try:
        types = wanted & pynvml.nvmlDeviceGetSupportedEventTypes(gpu.handle)
        pynvml.nvmlDeviceRegisterEvents(gpu.handle, types, events)
    except pynvml.NVMLError as exc:
        log.warning("%s reports no events: %s", gpu.name, exc)


def _handle(gpu: _WatchedGpu) -> Any:
    """Return the handle of a GPU by its uuid: indices change when another GPU is gone."""
    if gpu.uuid:
        return pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    return pynvml.nvmlDeviceGetHandleByIndex(gpu.index)


def _address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value


def _wanted_recovery(handle: Any) -> int:
    """Return the recovery action that the driver wants for a GPU; 0 for none or unknown.

    :raises NVMLError: when the GPU does not answer.
    """
    with _unless_unsupported():
        pynvml.nvmlDeviceGetMemoryInfo(handle)  # queries the GPU, in every version of the driver
    with _unless_unsupported():
        field_id = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        value = pynvml.nvmlDeviceGetFieldValues(handle, [field_id])[0]
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(value.nvmlReturn)
        return int(value.value.uiVal)
    return 0


@contextmanager
def _unless_unsupported() -> Iterator[None]:
    """Ignore errors of a driver or GPU that does not support a query."""
    try:
        yield
    except pynvml.NVMLError as exc:
        if exc.value not in (
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            pynvml.NVML_ERROR_NO_PERMISSION,
        ):
            raise


class LinkWatcher:
    """Compares the active NVLinks of each GPU with the most that it had since the start.

    A GPU with fewer is unhealthy with cause ``nvlink``; its MIG instances, which have no NVLinks,
    are not. The health of a GPU that is lost or not found does not change. NVML is opened each time
    to find GPUs that came back, which is cheap while an ``XidWatcher`` has it open.

    :param seconds: the interval between two checks.
    """

    def __init__(self, inventory: NodeInventory, report: Report, seconds: float = 1.0) -> None:
        self._gpus = [
            (device.name, inventory.machine.gpus[device.gpu])
            for device in inventory.devices.values()
            if device.gpu is not None and device.whole
        ]
        self._most: dict[str, int] = {}
        self._report = report
        self._seconds = seconds

    def run(self, stopped: threading.Event) -> None:
        """Watch until ``stopped`` is set; returns within one check."""
        if self._gpus:
            _repeat("NVLinks", self._check, self._seconds, stopped)

    def _check(self) -> None:
        found = [gpu for gpu in read_gpus() if not gpu.lost]
        by_uuid = {gpu.uuid: gpu.links for gpu in found}
        by_index = {gpu.index: gpu.links for gpu in found}
        for device, gpu in self._gpus:
            links = by_uuid.get(gpu.uuid) if gpu.uuid else by_index.get(gpu.index)
            if links is not None:
                most = self._most[device] = max(links, self._most.get(device, 0))
                text = f"{links} of {most} NVLinks are active" if links < most else ""
                _report_and_log(self._report, device, "nvlink", text)


class PortWatcher:
    """Reads the state of the NICs' ports: a port that is not active is a problem, cause ``port``.

    So is a port that has disappeared, for instance while a NIC's firmware is reset.

    :param sysfs_root: where sysfs is mounted.
    :param seconds: the interval between two checks.
    """

    def __init__(
        self,
        inventory: NodeInventory,
        report: Report,
        sysfs_root: Path = Path("/sys"),
        seconds: float = 1.0,
    ) -> None:
        self._nics: Mapping[str, Nic] = {
            device.name: inventory.machine.nics[device.nic]
            for device in inventory.devices.values()
            if device.nic is not None
        }
        self._errors: dict[str, str] = {}
        self._report = report
        self._root = sysfs_root
        self._seconds = seconds

    def run(self, stopped: threading.Event) -> None:
        """Watch until ``stopped`` is set; returns within one check."""
        if self._nics:
            _repeat("ports of NICs", self._check, self._seconds, stopped)

    def _check(self) -> None:
        for device, nic in self._nics.items():
            try:
                text = self._problem(nic)
            except OSError as exc:
                if str(exc) != self._errors.get(device):
                    log.warning("%s: the state of its port cannot be read: %s", device, exc)
                self._errors[device] = str(exc)
            else:
                self._errors.pop(device, None)
                _report_and_log(self._report, device, "port", text)

    def _problem(self, nic: Nic) -> str:
        port = self._root / "class" / "infiniband" / nic.name / "ports" / str(nic.port)
        try:
            state = (port / "state").read_text("utf-8", "replace").strip()
        except FileNotFoundError:
            return f"port {nic.port} of {nic.name} is not there"
        if state.startswith(_ACTIVE):
            return ""
        return f"port {nic.port} of {nic.name} is {state.partition(':')[2].strip() or 'unknown'}"


def _report_and_log(report: Report, device: str, cause: str, text: str) -> None:
    if report(device, cause, text):
        if text:
            log.warning("%s is unhealthy: %s", device, text, extra={"cause": cause})
        else:
            log.info("%s has recovered", device, extra={"cause": cause})


def _repeat(what: str, check: Callable[[], None], seconds: float, stopped: threading.Event) -> None:
    """Call ``check`` every few seconds until stopped; an error is logged when it is new."""
    logged = ""
    while not stopped.is_set():
        error = ""
        try:
            check()
        except Exception as exc:  # the thread has to survive any error
            error = f"{type(exc).__name__}: {exc}"
        if error and error != logged:
            log.warning("%s cannot be watched: %s", what, error)
        logged = error
        stopped.wait(seconds)
