"""The reference pair: what a client may do on a worker, end to end over mutual TLS."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.certificates import certificates, needs_openssl
from tests.examples import examples
from tests.paths import ROOT

from bayplan.api import Pod
from bayplan.cluster.embedded.assembly import create_in_order, start_controllers
from bayplan.cluster.manifests import load_manifests
from bayplan.errors import InputError
from bayplan.testing import Cluster
from bayplan_remote.certificates import Certificates
from bayplan_remote.client import RemoteError, RemoteGpu, RemoteLayer
from bayplan_remote.limits import Limits
from bayplan_remote.proto import remote_gpu_pb2 as messages
from bayplan_remote.server import SERVICE, RemoteGpuServer

pytestmark = needs_openssl
LIMITS = Limits(sessions=3, bytes=1 << 20, chunk=1 << 16, handles=16, launches=64, seconds=30)


def files(folder: Path, name: str) -> Certificates:
    for key in folder.glob("*.key"):
        key.chmod(0o600)
    return Certificates(folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("authority")
    certificates(made)
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[RemoteGpuServer]:
    made = RemoteGpuServer("127.0.0.1:0", files(folder, "server"), LIMITS)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def gpu(server: RemoteGpuServer, folder: Path) -> Iterator[RemoteGpu]:
    with RemoteGpu(f"127.0.0.1:{server.port}", files(folder, "client")) as made:
        yield made


def eventually(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


def refused(code: str, call: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(RemoteError) as caught:
        call(*args)
    assert caught.value.code == code, caught.value
    return str(caught.value)


# End to end --------------------------------------------------------------------------------


def test_a_placed_client_runs_its_model_on_the_worker_placed_for_it(folder: Path) -> None:
    cluster = Cluster()
    start_controllers(cluster.api)
    create_in_order(
        cluster.api, load_manifests([str(ROOT / "configs/examples/remote-gpus")]).objects
    )
    cluster.advance(1)
    placed = cluster.placements()
    assert (placed["train"], placed["train-tf"]) == ("cpu-1", "gpu-1")
    client = cluster.api.get(Pod, "default/train")
    assert client is not None
    assert client.metadata.annotations["bayplan.dev/gpu-distance"] == "rack"
    # On loopback, every node has an address of its own.
    server = RemoteGpuServer("127.0.0.1:0", files(folder, "server"))
    addresses = {placed["train-tf"]: f"127.0.0.1:{server.port}"}
    server.start()
    rng = np.random.default_rng(7)
    given, weight = rng.random((4, 8), np.float32), rng.random((8, 3), np.float32)
    bias = rng.random(3, np.float32)
    try:
        with RemoteGpu(addresses[placed["train-tf"]], files(folder, "client")) as gpu:
            layers = [RemoteLayer(gpu.tensor(weight), gpu.tensor(bias), "softmax")]
            found = gpu.to_host(gpu.forward(gpu.tensor(given), layers))
    finally:
        server.stop()
    logits = given @ weight + bias
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_buffers_are_copied_in_pieces_and_kernels_run_in_order(gpu: RemoteGpu) -> None:
    count = 50_000  # more than one message
    numbers = np.arange(count, dtype=np.float32)
    first, second = gpu.malloc(4 * count), gpu.malloc(4 * count)
    gpu.copy_to_device(first, numbers)
    gpu.launch("fill", second, 2.0, count)
    gpu.launch("axpy", first, 3.0, count, second)
    gpu.launch("scale", first, 0.5, count)
    gpu.synchronize()
    found = np.frombuffer(gpu.copy_to_host(first), dtype=np.float32)
    np.testing.assert_array_equal(found, (numbers + 6) / 2)
    gpu.free(first)
    refused("NOT_FOUND", gpu.free, first)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_tensors_are_combined(gpu: RemoteGpu, dtype: Any) -> None:
    a = np.array([[1, -2], [3, 4]], dtype=dtype)
    b = np.array([[5, 6], [-7, 8]], dtype=dtype)
    left, right = gpu.tensor(a), gpu.tensor(b)
    expected = {"add": a + b, "subtract": a - b, "multiply": a * b, "matmul": a @ b}
    for name, value in expected.items():
        np.testing.assert_array_equal(gpu.to_host(gpu.op(name, left, right)), value)
    np.testing.assert_array_equal(gpu.to_host(gpu.op("relu", left)), np.maximum(a, 0))
    assert gpu.to_host(gpu.op("sum", left)) == a.sum()


# Who may call ------------------------------------------------------------------------------


def test_a_client_of_another_authority_is_refused(
    server: RemoteGpuServer, folder: Path, tmp_path: Path
) -> None:
    certificates(tmp_path)
    other = files(tmp_path, "client")
    known = Certificates(folder / "ca.crt", other.certificate, other.key)
    address = f"127.0.0.1:{server.port}"
    for credentials in (other, known):
        refused("UNAVAILABLE", lambda given: RemoteGpu(address, given, timeout=2), credentials)
    assert len(server.sessions) == 0


def test_a_client_without_a_certificate_is_refused(server: RemoteGpuServer, folder: Path) -> None:
    authority = (folder / "ca.crt").read_bytes()
    secure = grpc.secure_channel(
        f"127.0.0.1:{server.port}", grpc.ssl_channel_credentials(authority)
    )
    for channel in (secure, grpc.insecure_channel(f"127.0.0.1:{server.port}")):
        call = channel.unary_unary(f"/{SERVICE}/Malloc")
        with pytest.raises(grpc.RpcError):
            call(b"", timeout=2)
        channel.close()


def test_a_session_is_of_no_use_to_another_client(
    server: RemoteGpuServer, gpu: RemoteGpu, folder: Path
) -> None:
    held = gpu.malloc(16)
    with RemoteGpu(f"127.0.0.1:{server.port}", files(folder, "server")) as other:
        refused("NOT_FOUND", other.free, held)
        other._session = gpu._session
        refused("UNAUTHENTICATED", other.free, held)
    gpu.free(held)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_can_read_is_refused(folder: Path, mode: int) -> None:
    own = files(folder, "client")
    own.key.chmod(mode)
    with pytest.raises(InputError, match="expected a key that only its owner can read"):
        own.for_client()


def test_files_that_are_no_certificates_are_named(folder: Path, tmp_path: Path) -> None:
    own = files(folder, "client")
    with pytest.raises(InputError, match=r"nothing.pem: No such file"):
        Certificates(tmp_path / "nothing.pem", own.certificate, own.key).for_server()
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InputError, match="text: expected a PEM file"):
        Certificates(tmp_path / "text", own.certificate, own.key).for_server()
    junk = tmp_path / "junk.pem"
    junk.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(InputError, match=r"junk\.pem: expected the certificate"):
        Certificates(junk, own.certificate, own.key).for_client()
    with pytest.raises(InputError, match="expected a certificate whose key is"):
        Certificates(own.authority, files(folder, "server").certificate, own.key).for_client()


# Limits ------------------------------------------------------------------------------------


def test_everything_is_freed_when_a_client_goes(server: RemoteGpuServer, folder: Path) -> None:
    gpu = RemoteGpu(f"127.0.0.1:{server.port}", files(folder, "client"))
    gpu.malloc(1000)
    gpu.tensor(np.zeros(10))
    assert server.sessions.used == 1080
    gpu._channel.close()  # as a client that is killed
    assert eventually(lambda: len(server.sessions) == 0)
    assert server.sessions.used == 0


def test_a_session_has_so_much_memory(gpu: RemoteGpu) -> None:
    held = gpu.malloc(LIMITS.bytes - 8)
    assert "the session has 8 left" in refused("RESOURCE_EXHAUSTED", gpu.malloc, 9)
    refused("RESOURCE_EXHAUSTED", gpu.tensor, np.zeros(2))
    gpu.free(held)
    gpu.malloc(LIMITS.bytes)


def test_results_count(gpu: RemoteGpu) -> None:
    wide = gpu.tensor(np.zeros((1, 1000)))
    tall = gpu.tensor(np.zeros((1000, 1)))
    refused("RESOURCE_EXHAUSTED", gpu.op, "matmul", tall, wide)
    layers = [RemoteLayer(wide)]
    refused("RESOURCE_EXHAUSTED", gpu.forward, tall, layers)


def test_a_session_has_so_many_handles_and_a_server_so_many_sessions(
    server: RemoteGpuServer, gpu: RemoteGpu, folder: Path
) -> None:
    for _ in range(LIMITS.handles):
        gpu.malloc(0)
    refused("RESOURCE_EXHAUSTED", gpu.malloc, 0)
    address, own = f"127.0.0.1:{server.port}", files(folder, "client")
    others = [RemoteGpu(address, own) for _ in range(LIMITS.sessions - 1)]
    refused("RESOURCE_EXHAUSTED", RemoteGpu, address, own)
    others[0].close()
    assert eventually(lambda: len(server.sessions) < LIMITS.sessions)
    RemoteGpu(address, own).close()
    others[1].close()


def test_what_goes_wrong_in_a_kernel_is_told_once_at_the_next_synchronization(
    gpu: RemoteGpu,
) -> None:
    held = gpu.malloc(8)
    gpu.launch("fill", held, 1.0, 3)
    assert "expected 3 floats, it has 2" in refused("INVALID_ARGUMENT", gpu.synchronize)
    gpu.synchronize()


def test_a_call_needs_a_deadline_and_keeps_it(server: RemoteGpuServer, gpu: RemoteGpu) -> None:
    gpu._timeout = 3600.0
    assert "a deadline of at most 30 s" in refused("INVALID_ARGUMENT", gpu.malloc, 1)
    gpu._timeout = None  # type: ignore[assignment]
    assert "a deadline" in refused("INVALID_ARGUMENT", gpu.malloc, 1)
    over = threading.Event()
    (session,) = server.sessions._open.values()
    session._submit(over.wait)
    gpu._timeout = 0.2
    refused("DEADLINE_EXCEEDED", gpu.malloc, 1)
    # The server's own clock may be later by a moment: until then the call is still one of its.
    assert eventually(lambda: session._calls._value == LIMITS.calls)
    over.set()
    gpu._timeout = 10.0
    gpu.malloc(1)
    assert server.sessions.used == 1


def test_what_is_made_after_the_deadline_is_freed(server: RemoteGpuServer, gpu: RemoteGpu) -> None:
    (session,) = server.sessions._open.values()
    begun, over = threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        over.wait()
        return session.malloc(1000)

    with pytest.raises(TimeoutError):
        session.make(slow, 0.05)
    assert begun.is_set()
    over.set()
    gpu.malloc(1)
    assert server.sessions.used == 1


def test_one_client_leaves_threads_for_the_others(
    server: RemoteGpuServer, gpu: RemoteGpu, folder: Path
) -> None:
    over = threading.Event()
    (session,) = server.sessions._open.values()
    session._submit(over.wait)
    calls = [threading.Thread(target=gpu.malloc, args=(1,)) for _ in range(LIMITS.calls)]
    for one in calls:
        one.start()
    assert eventually(lambda: session._calls._value == 0)
    refused("RESOURCE_EXHAUSTED", gpu.malloc, 1)
    with RemoteGpu(f"127.0.0.1:{server.port}", files(folder, "client")) as other:
        other.malloc(1)
    over.set()
    for one in calls:
        one.join()
    assert session.used == LIMITS.calls


def test_a_message_has_so_many_bytes(gpu: RemoteGpu) -> None:
    held = gpu.malloc(1 << 19)
    gpu._chunk = 1 << 18
    refused("RESOURCE_EXHAUSTED", gpu.copy_to_device, held, bytes(1 << 18))
    refused("INVALID_ARGUMENT", gpu.copy_to_host, held)


NUMBERS = st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1))
SHAPES = st.lists(NUMBERS, max_size=12)
KIND = st.integers(-1, 9)
REQUESTS = st.one_of(
    st.builds(messages.MallocRequest, bytes=NUMBERS),
    st.builds(messages.FreeRequest, id=NUMBERS),
    st.builds(
        messages.CopyToDeviceRequest, id=NUMBERS, offset=NUMBERS, data=st.binary(max_size=99)
    ),
    st.builds(
        messages.CopyToHostRequest, id=NUMBERS, offset=NUMBERS, bytes=st.integers(0, 2**32 - 1)
    ),
    st.builds(
        messages.LaunchKernelRequest,
        kernel=KIND,
        first=NUMBERS,
        second=NUMBERS,
        factor=st.floats(width=32),
        count=NUMBERS,
    ),
    st.builds(messages.SynchronizeRequest),
    st.builds(messages.CreateTensorRequest, type=KIND, shape=SHAPES),
    st.builds(messages.TensorOpRequest, operation=KIND, operands=SHAPES),
    st.builds(
        messages.ModelForwardRequest,
        input=NUMBERS,
        layers=st.lists(
            st.builds(messages.Layer, weight=NUMBERS, bias=NUMBERS, activation=KIND), max_size=4
        ),
    ),
)
EXPECTED = {"", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED"}


def code_of(gpu: RemoteGpu, request: Any) -> str:
    request.session = gpu._session
    method = type(request).__name__.removesuffix("Request")
    try:
        gpu._call(method, request, messages.Done)
    except RemoteError as exc:
        return exc.code
    return ""


def test_whatever_a_client_sends_it_gets_a_result_or_a_reason(
    server: RemoteGpuServer, folder: Path
) -> None:
    own = files(folder, "client")

    @examples(40)
    @given(st.lists(REQUESTS, min_size=1, max_size=20))
    def check(requests: list[Any]) -> None:
        with RemoteGpu(f"127.0.0.1:{server.port}", own) as gpu:
            assert {code_of(gpu, request) for request in requests} <= EXPECTED
            assert 0 <= server.sessions.used <= LIMITS.bytes
        assert eventually(lambda: len(server.sessions) == 0)

    check()


# The command -------------------------------------------------------------------------------


def test_the_command_serves_until_it_is_told_to_stop(folder: Path) -> None:
    own = files(folder, "server")
    paths = ("--authority", own.authority, "--certificate", own.certificate, "--key", own.key)
    program = "from bayplan.cli import main; main()"
    command = [sys.executable, "-c", program, "remote-gpu-server", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([*command, *paths], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        with RemoteGpu(f"127.0.0.1:{port}", files(folder, "client"), timeout=30) as gpu:
            assert gpu.to_host(gpu.tensor(np.ones(3))).tolist() == [1, 1, 1]
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
