"""The services that the kubelet calls over unix sockets: registration, claims, health."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from bayplan.errors import BayplanError, Forbidden, Transient, Unauthorized
from bayplan_dra.driver.kubelet.sockets import MOST_PATH
from bayplan_dra.driver.prepare.checkpoint import PreparedClaim
from bayplan_dra.driver.prepare.planner import handed_out
from bayplan_dra.driver.prepare.preparer import DeviceHeld, Preparer
from bayplan_dra.driver.proto import dra_pb2 as dra
from bayplan_dra.driver.proto import health_pb2 as health
from bayplan_dra.driver.proto import registration_pb2 as registration
from bayplan_dra.driver.publish.health import HealthTracker

__all__ = [
    "VERSIONS",
    "KubeletServer",
    "claim_handlers",
    "health_handler",
    "registration_handler",
    "serve",
]

VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""In order of preference: the kubelet takes the first that it knows."""
_PACKAGES = ("k8s.io.kubelet.pkg.apis.dra.v1", "k8s.io.kubelet.pkg.apis.dra.v1beta1")
_WORKERS = 128
_MOST_WAITING = 64
"""Calls that may wait for something to pass: each occupies a worker that others may need."""
_FIRST_RETRY, _LAST_RETRY = 0.1, 2.0
_MOST_STREAMS = 4
"""Concurrent streams of health: each occupies a worker."""
_NUMBERS = itertools.count()
_HEALTH_SECONDS = 10.0
"""How often the health of all devices is sent; the kubelet times out after 30 s."""
log = logging.getLogger("bayplan.driver")


class KubeletServer:
    """A gRPC server on a unix socket that only root and the driver's user can open.

    :raises BayplanError: when the path is too long for a socket.
    """

    def __init__(self, path: Path, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        if len(str(path).encode()) > MOST_PATH:
            raise BayplanError(
                f"{path}: a socket's path has at most {MOST_PATH} bytes, this has "
                f"{len(str(path).encode())}"
            )
        self.path = path
        self._own: tuple[int, int] | None = None
        self._server = grpc.server(ThreadPoolExecutor(_WORKERS))
        self._server.add_generic_rpc_handlers(tuple(handlers))

    def start(self) -> None:
        """Listen, replacing the socket of a previous instance.

        The socket gets its name once it serves, so there is always one that answers.

        :raises BayplanError: when the socket cannot be used.
        """
        temporary = self.path.with_name(f".{os.getpid()}-{next(_NUMBERS)}")
        temporary.unlink(missing_ok=True)
        try:
            bound = self._server.add_insecure_port(f"unix:{temporary}")
        except RuntimeError as exc:
            raise BayplanError(f"{self.path}: cannot listen: {exc}") from None
        assert bound
        temporary.chmod(0o600)
        self._server.start()
        temporary.replace(self.path)
        self._own = _identity(self.path)

    def stop(self, grace: float) -> None:
        """Refuse new calls, and give running ones ``grace`` seconds."""
        self._server.stop(grace).wait()
        if self._own is not None and _identity(self.path) == self._own:
            self.path.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def serve(
    service: str, methods: dict[str, grpc.RpcMethodHandler[Any, Any]]
) -> grpc.GenericRpcHandler:
    """Return the handler of a service, given its methods by name."""
    return grpc.method_handlers_generic_handler(service, methods)


def registration_handler(
    driver: str, endpoint: Path, answered: Callable[[str], None]
) -> grpc.GenericRpcHandler:
    """Return the service by which the kubelet learns of the driver.

    :param answered: called with the kubelet's error, "" when it registered the driver.
    """

    def info(request: registration.InfoRequest, context: object) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DRAPlugin",
            name=driver,
            # The kubelet runs in another folder.
            endpoint=str(endpoint.absolute()),
            supported_versions=VERSIONS,
        )

    def status(
        request: registration.RegistrationStatus, context: object
    ) -> registration.RegistrationStatusResponse:
        answered("" if request.plugin_registered else request.error or "no reason given")
        return registration.RegistrationStatusResponse()

    return serve(
        "pluginregistration.Registration",
        {
            "GetInfo": _unary(info, registration.InfoRequest),
            "NotifyRegistrationStatus": _unary(status, registration.RegistrationStatus),
        },
    )


def claim_handlers(
    preparer: Preparer,
    observe: Callable[[str, str, float], None],
    stopped: threading.Event,
    patience: float,
) -> list[Any]:
    """Return the services that prepare claims: v1 and v1beta1, which have the same messages.

    A kubelet that has given up unprepares the claim: it must not be prepared after that. What
    passes in seconds, such as an API server that restarts, is tried again within the call.

    :param observe: called for every claim with the operation, the error or "", and the seconds.
    :param stopped: set when the driver stops; claims are refused then.
    :param patience: for how many seconds of a call what may pass is tried again.
    """

    waiting = threading.Semaphore(_MOST_WAITING)

    def prepare(request: dra.NodePrepareResourcesRequest, context: grpc.ServicerContext) -> Any:
        def wanted() -> bool:
            return context.is_active() and not stopped.is_set()

        until = time.monotonic() + patience

        def patiently(attempt: Callable[[], PreparedClaim]) -> PreparedClaim:
            return _patiently(attempt, until, waiting, stopped)

        answer = dra.NodePrepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid].CopyFrom(
                _prepared(preparer, claim, observe, wanted, patiently)
            )
        return answer

    def unprepare(request: dra.NodeUnprepareResourcesRequest, context: object) -> Any:
        answer = dra.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            run = partial(preparer.unprepare, claim.uid)
            answer.claims[claim.uid].error = _guarded("unprepare", claim, observe, run)
        return answer

    methods = {
        "NodePrepareResources": _unary(prepare, dra.NodePrepareResourcesRequest),
        "NodeUnprepareResources": _unary(unprepare, dra.NodeUnprepareResourcesRequest),
    }
    return [serve(f"{package}.DRAPlugin", methods) for package in _PACKAGES]


def _prepared(
    preparer: Preparer,
    claim: dra.Claim,
    observe: Callable[[str, str, float], None],
    wanted: Callable[[], bool],
    patiently: Callable[[Callable[[], PreparedClaim]], PreparedClaim],
) -> dra.NodePrepareResourceResponse:
    devices: list[dra.Device] = []

    def run() -> None:
        if not wanted():
            raise BayplanError("the call was cancelled, or the driver is stopping")
        found = patiently(lambda: preparer.prepare(claim.namespace, claim.name, claim.uid, wanted))
        for one in handed_out(preparer.driver, found):
            device = dra.Device(
                request_names=one.requests,
                pool_name=found.pool,
                device_name=one.device.name,
                cdi_device_ids=one.ids,
            )
            if one.device.share_id:
                device.share_id = one.device.share_id
            devices.append(device)

    error = _guarded("prepare", claim, observe, run)
    return dra.NodePrepareResourceResponse(devices=() if error else devices, error=error)


def _patiently(
    attempt: Callable[[], PreparedClaim],
    until: float,
    waiting: threading.Semaphore,
    stopped: threading.Event,
) -> PreparedClaim:
    """Try until ``until`` while the error may pass, or at once if too many calls wait already."""
    delay = _FIRST_RETRY
    while True:
        try:
            return attempt()
        except (DeviceHeld, Transient, Forbidden, Unauthorized):
            if time.monotonic() + delay > until or not waiting.acquire(blocking=False):
                raise
            try:
                if stopped.wait(delay):
                    raise
            finally:
                waiting.release()
        delay = min(delay * 2, _LAST_RETRY)


def _guarded(
    what: str,
    claim: dra.Claim,
    observe: Callable[[str, str, float], None],
    run: Callable[[], None],
) -> str:
    """Run for one claim; return its error, so that the other claims of the call go on."""
    started = time.monotonic()
    error = ""
    try:
        run()
    except (BayplanError, OSError) as exc:
        error = str(exc)
    except Exception as exc:
        log.exception("%s %s/%s failed", what, claim.namespace, claim.name)
        error = f"the driver failed: {type(exc).__name__}; its log says more"
    seconds = time.monotonic() - started
    level = logging.WARNING if error else logging.INFO
    name = f"{claim.namespace}/{claim.name}"
    extra = {"claim": claim.uid, "error": error} if error else {"claim": claim.uid}
    log.log(level, "%s %s", what, name, extra=extra)
    observe(what, error, seconds)
    return error


def health_handler(state: HealthTracker, stopped: threading.Event) -> Any:
    """Return the service that sends the devices' health to the kubelet at every change."""

    def watch(
        request: health.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[health.NodeWatchResourcesResponse]:
        if not slots.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {_MOST_STREAMS} streams")
        context.add_callback(slots.release)
        version = -1
        while not stopped.is_set() and context.is_active():
            version, devices = state.wait(version, _HEALTH_SECONDS)
            yield health.NodeWatchResourcesResponse(
                devices=[
                    health.DeviceHealth(
                        device=health.DeviceIdentifier(pool_name=one.pool, device_name=one.name),
                        health=health.UNHEALTHY if one.problem else health.HEALTHY,
                        last_updated_time=int(one.since),
                        message=one.problem,
                    )
                    for one in devices
                ]
            )

    slots = threading.Semaphore(_MOST_STREAMS)
    method = grpc.unary_stream_rpc_method_handler(
        watch,
        request_deserializer=health.NodeWatchResourcesRequest.FromString,
        response_serializer=health.NodeWatchResourcesResponse.SerializeToString,
    )
    return serve("v1alpha1.DRAResourceHealth", {"NodeWatchResources": method})


def _unary(function: Callable[[Any, Any], Any], request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        function,
        request_deserializer=request.FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )
