"""What a client of a remote GPU gets at each distance class, over emulated links.

The reference client and server talk over mutual TLS on this machine. No machine here has networks
of 5 us, so time is stretched: latencies are ``_SLOWER`` times longer, bandwidths as many times
smaller.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.errors import InputError
from bayplan_benchmarks.emulated_link import EmulatedLink

if TYPE_CHECKING:
    from bayplan_plugins.remote_gpus.settings import DistanceArgs
    from bayplan_remote.certificates import Certificates

__all__ = ["remote"]

_SLOWER = 1000
_COPIED = 2 << 20
_BATCH, _WIDTH = 16, 256
_PATIENCE = 60.0
_NOTE = (
    "links emulated on loopback by a delay and a token bucket, stretched: latency times "
    f"{_SLOWER}, bandwidth by {_SLOWER}; computed on the CPU"
)


def _run(nodes: int, pods: int) -> BenchmarkResult:
    from bayplan_plugins.remote_gpus.settings import RemoteGPUsArgs
    from bayplan_remote.server import RemoteGpuServer

    distances = RemoteGPUsArgs().distances
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        server_files, client_files = _authority(Path(folder))
        server = RemoteGpuServer("127.0.0.1:0", server_files)
        server.start()
        try:
            for distance in distances:
                figures[distance.name] = _at(distance, server.port, client_files, pods)
        finally:
            server.stop()
    return BenchmarkResult({"classes": len(distances), "forwards": pods}, figures, _NOTE)


def _at(
    distance: DistanceArgs, port: int, certificates: Certificates, forwards: int
) -> dict[str, float]:
    """Return what a client gets at one distance; amounts as they would be without stretching."""
    import numpy as np

    from bayplan_remote.client import RemoteGpu, RemoteLayer

    bandwidth = distance.bandwidth * 1e9 / _SLOWER
    link = EmulatedLink(port, distance.latency * 1e-6 * _SLOWER, bandwidth)
    try:
        with RemoteGpu(f"127.0.0.1:{link.port}", certificates, _PATIENCE) as gpu:
            weight = gpu.tensor(np.full((_WIDTH, _WIDTH), 0.5, dtype=np.float32))
            batch = np.ones((_BATCH, _WIDTH), dtype=np.float32)
            buffer = gpu.malloc(_COPIED)
            copied = _seconds(lambda: gpu.copy_to_device(buffer, bytes(_COPIED)), 1)
            called = _seconds(gpu.synchronize, 3)

            def forward() -> None:
                given = gpu.tensor(batch)
                found = gpu.forward(given, [RemoteLayer(weight, activation="relu")] * 4)
                gpu.to_host(found)
                gpu.free(given)
                gpu.free(found)

            each = _seconds(forward, forwards)
    finally:
        link.close()
    return {
        "copyGBps": round(_COPIED / copied * _SLOWER / 1e9, 3),
        "copyOfClass": round(_COPIED / copied / bandwidth, 3),
        "callUs": round(called / _SLOWER * 1e6, 1),
        "forwardsPerSecond": round(_SLOWER / each, 1),
    }


def _seconds(work: object, times: int) -> float:
    assert callable(work)
    begun = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begun) / times


def _authority(folder: Path) -> tuple[Certificates, Certificates]:
    """Make an authority of our own, and the files of a server and a client."""
    from bayplan_remote.certificates import Certificates

    def openssl(*arguments: str) -> None:
        new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        command = ["/usr/bin/env", "openssl", *new, "-nodes", *arguments]
        try:
            subprocess.run(  # noqa: S603 - fixed arguments
                command, check=True, capture_output=True, cwd=folder
            )
        except (OSError, subprocess.CalledProcessError):
            raise InputError("the benchmark makes certificates with openssl 3") from None

    usage = ("-addext", "keyUsage=critical,keyCertSign,digitalSignature")
    openssl("-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca", *usage)
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key")
    for name, more in (
        ("server", "subjectAltName=IP:127.0.0.1"),
        ("client", "extendedKeyUsage=clientAuth"),
    ):
        own = ("-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}")
        last = ("-addext", "basicConstraints=critical,CA:FALSE", "-addext", more)
        openssl(*signed, *own, *last)
        (folder / f"{name}.key").chmod(0o600)
    server, client = (
        Certificates(folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key")
        for name in ("server", "client")
    )
    return server, client


remote = Benchmark("a GPU over the network, at each distance class (emulated links)", (2,), 4, _run)
