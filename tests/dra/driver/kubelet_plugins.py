"""The kubelet's side of a driver's sockets: how it finds, connects to, calls and forgets a driver.

The facts are those of Kubernetes' pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra/plugin.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from tests.dra.driver.socket_calls import SECONDS, call, open_channel, stream

from bayplan_dra.driver.proto import health_pb2 as health
from bayplan_dra.driver.proto import registration_pb2 as registration
from bayplan_dra.driver.publish.devices import DRIVER

_PACKAGES = "k8s.io.kubelet.pkg.apis.dra"
_FIRST_BACKOFF, _BACKOFF_FACTOR = 1.0, 1.6
_STREAM_RETRY_SECONDS = 5.0

HealthReport = health.NodeWatchResourcesResponse


class CallFailed(Exception):
    """A call to the driver has no answer, or there is no driver to call."""


def _asked(channel: grpc.Channel, method: str, request: Any, answer: Any) -> Any:
    try:
        return call(channel, method, request, answer)
    except (grpc.RpcError, ValueError) as exc:  # ValueError: closed meanwhile
        raise CallFailed(f"{method}: {exc}") from None


def _answers(path: Path | str) -> bool:
    """Tell whether anybody listens at a socket: gRPC takes long to tell."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


class Connection:
    """A connection to a socket. Once it is lost it stays so: gRPC's own attempts are not used."""

    def __init__(self, path: Path | str) -> None:
        self.lost = not _answers(path)
        self._state: grpc.ChannelConnectivity | None = None
        self._changed = threading.Condition()
        self._channel = open_channel(path)
        if self.lost:
            return
        self._channel.subscribe(self._told, try_to_connect=True)
        tried = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE)
        with self._changed:
            self._changed.wait_for(lambda: self.lost or self._state in tried, SECONDS)
            if self._state is not grpc.ChannelConnectivity.READY:
                self.lost = True

    def _told(self, state: grpc.ChannelConnectivity) -> None:
        with self._changed:
            self.lost = self.lost or self._state is grpc.ChannelConnectivity.READY
            self._state = state
            self._changed.notify_all()

    def close(self) -> None:
        """End the connection with its calls and streams."""
        self.lost = True
        self._channel.close()

    def call(self, method: str, request: Any, answer: Any) -> Any:
        """Call a method; fail at once without a connection.

        :raises CallFailed: when there is no answer.
        """
        if self.lost:
            raise CallFailed(f"{method}: Unavailable: the connection is down")
        return _asked(self._channel, method, request, answer)

    def watch_health(self) -> Any:
        """Return the stream of the devices' health."""
        request = health.NodeWatchResourcesRequest()
        method = "/v1alpha1.DRAResourceHealth/NodeWatchResources"
        return stream(self._channel, method, request, HealthReport)


@dataclass
class Plugin:
    """An instance of the driver that has registered.

    :ivar made: what distinguishes its registration socket from a later one of that name.
    :ivar service: the first service of the driver that the kubelet knows.
    """

    made: tuple[int, int]
    endpoint: str
    service: str
    connection: Connection
    retry_at: float = 0.0
    backoff: float = _FIRST_BACKOFF
    streaming: bool = False
    stream_at: float = 0.0

    @property
    def method(self) -> str:
        """The path of its methods."""
        version, _, service = self.service.partition(".")
        return f"/{_PACKAGES}.{version}.{service}"


class Plugins:
    """The instances of one driver, in the order in which they registered.

    :param registry: the folder where their sockets appear.
    :param services: the services that the kubelet knows.
    :param now: returns the kubelet's time in seconds.
    :param reported: called with each report of health, in a thread of its own.
    :param silent: called when such a stream has ended.
    :ivar took_part: whether one has registered, since this was last cleared.
    """

    def __init__(
        self,
        registry: Path,
        services: Sequence[str],
        now: Callable[[], float],
        reported: Callable[[HealthReport], None],
        silent: Callable[[], None],
    ) -> None:
        self._registry = registry
        self._services = services
        self._now = now
        self._reported = reported
        self._silent = silent
        self._known: dict[Path, Plugin] = {}
        self._threads: list[threading.Thread] = []
        self.took_part = False

    def look(self) -> None:
        """Forget sockets that are gone or were replaced, register new ones, and reconnect."""
        found = {path: _identity(path) for path in self._registry.glob("*.sock")}
        for path, plugin in list(self._known.items()):
            if found.get(path) != plugin.made:
                self._known.pop(path).connection.close()
        for path, made in sorted(found.items(), key=lambda item: item[1]):
            if path not in self._known:
                self._register(path, made)
        for plugin in self._known.values():
            self._reconnect(plugin)
            self._follow_health(plugin)

    def close(self) -> None:
        """End all connections."""
        for plugin in self._known.values():
            plugin.connection.close()
        for thread in self._threads:
            if thread.ident is not None:  # a last call may be just about to start it
                thread.join(SECONDS)

    @property
    def usable(self) -> bool:
        """Whether any instance is connected."""
        return any(not one.connection.lost for one in self._known.values())

    def is_connected(self, endpoint: Path) -> bool:
        """Tell whether the instance that serves at a path is connected."""
        known = [one for one in self._known.values() if one.endpoint == str(endpoint)]
        return any(not one.connection.lost for one in known)

    def chosen(self) -> Plugin:
        """Return the newest connected instance, or the newest one.

        :raises CallFailed: when none has registered.
        """
        known = list(self._known.values())
        connected = [one for one in known if not one.connection.lost]
        if not known:
            raise CallFailed(f"DRA driver {DRIVER} is not registered")
        return (connected or known)[-1]

    def call(self, method: str, request: Any, answer: Any) -> Any:
        """Call the driver.

        :raises CallFailed: at once when it is not there.
        """
        plugin = self.chosen()
        return plugin.connection.call(f"{plugin.method}/{method}", request, answer)

    def _register(self, path: Path, made: tuple[int, int]) -> None:
        """Ask who listens at a socket; without an answer, the next look asks again."""
        if not _answers(path):
            return
        service = "/pluginregistration.Registration"
        with open_channel(path) as channel, suppress(CallFailed):
            info = _asked(
                channel, f"{service}/GetInfo", registration.InfoRequest(), registration.PluginInfo
            )
            error = self._refusal(info)
            if not error:
                chosen = next(one for one in info.supported_versions if one in self._services)
                self._known[path] = Plugin(made, info.endpoint, chosen, Connection(info.endpoint))
                self.took_part = True
            status = registration.RegistrationStatus(plugin_registered=not error, error=error)
            answer = registration.RegistrationStatusResponse
            _asked(channel, f"{service}/NotifyRegistrationStatus", status, answer)

    def _refusal(self, info: registration.PluginInfo) -> str:
        if (info.type, info.name) != ("DRAPlugin", DRIVER):
            return f"no handler registered for plugin type: {info.type}"
        if not set(info.supported_versions).intersection(self._services):
            return f"none of services {info.supported_versions} are supported by the kubelet"
        if any(one.endpoint == info.endpoint for one in self._known.values()):
            return f"endpoint {info.endpoint} already registered"
        return ""

    def _reconnect(self, plugin: Plugin) -> None:
        if not plugin.connection.lost or self._now() < plugin.retry_at:
            return
        plugin.connection.close()
        plugin.connection = Connection(plugin.endpoint)
        if plugin.connection.lost:
            plugin.retry_at = self._now() + plugin.backoff
            plugin.backoff *= _BACKOFF_FACTOR
        else:
            plugin.backoff = _FIRST_BACKOFF

    def _follow_health(self, plugin: Plugin) -> None:
        if plugin.streaming or plugin.connection.lost or self._now() < plugin.stream_at:
            return
        plugin.streaming = True
        reports = plugin.connection.watch_health()

        def follow() -> None:
            try:
                for report in reports:
                    self._reported(report)
            except grpc.RpcError:
                pass  # However a stream ends, the next look opens another.
            self._silent()
            plugin.stream_at = self._now() + _STREAM_RETRY_SECONDS
            plugin.streaming = False

        thread = threading.Thread(target=follow, name="kubelet health", daemon=True)
        self._threads.append(thread)
        thread.start()


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_ino
