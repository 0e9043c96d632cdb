"""The live benchmark on a cluster: check it, say what will be created, measure, delete."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
from msgspec.structs import replace

from bayplan.api import ApiObject, NativePodGroup, kind_of
from bayplan.benchmark import BenchmarkResult, ClusterTarget
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import BayplanError, ClusterError
from bayplan.live.app import LiveApp
from bayplan.profiles.loading import ProfileSet, default_profiles
from bayplan_benchmarks.live_cluster.cleanup import Cleanup
from bayplan_benchmarks.live_cluster.connection import in_own_namespace, on_cluster, say
from bayplan_benchmarks.live_cluster.creator import Times
from bayplan_benchmarks.live_cluster.objects import DEVICES, GANG, LABEL, Workload, surroundings
from bayplan_benchmarks.live_cluster.preflight import Served
from bayplan_benchmarks.live_cluster.requests import at_once, create
from bayplan_benchmarks.live_cluster.server_metrics import ServerUsage, server_usage
from bayplan_benchmarks.live_scheduler import scheduling

__all__ = ["measure_on"]

_DRAIN_SECONDS = 60.0
_RARE = 0.01
"""Requests per pod below which a request is not one for pods."""
_CREATED = "POST pods"


def measure_on(target: ClusterTarget, nodes: int, pods: int) -> BenchmarkResult:
    """Measure on a cluster; everything that is created there is deleted again.

    :raises BayplanError: when the cluster cannot be used, or a workload is not bound.
    """
    return on_cluster(
        target, lambda transport, served: _Bench(transport, target, served).run(nodes, pods)
    )


class _Bench:
    """One run on one cluster."""

    def __init__(self, transport: Transport, target: ClusterTarget, served: Served) -> None:
        self._transport = transport
        self._target = target
        self._served = served
        self._run = secrets.token_hex(4)[:5]

    async def run(self, nodes: int, pods: int) -> BenchmarkResult:
        """Say what will be created, measure all workloads, and delete everything."""
        workloads = self._workloads(nodes, pods)
        namespace = workloads[0].namespace
        say(f"on {self._transport.url}: {_announced(workloads)}; all is deleted at the end")
        cleanup = Cleanup(self._transport, self._run, namespace, self._served)
        figures: dict[str, float] = {}
        async with in_own_namespace(cleanup):
            for workload in workloads:
                prefix = "" if workload.kind == "plain" else f"{workload.kind}."
                for name, value in (await self._measured(workload)).items():
                    figures[f"{prefix}{name}"] = value
                await cleanup.empty()
        return BenchmarkResult(_sizes(workloads), figures)

    def _workloads(self, nodes: int, pods: int) -> list[Workload]:
        scheduler = self._target.scheduler or f"bayplan-bench-{self._run}"
        groups = bool(self._served.pod_groups)
        plain = Workload(self._run, "plain", nodes, pods, scheduler, groups)
        found = [plain]
        if self._served.devices:
            some = max(1, nodes // 5)
            found.append(replace(plain, kind="dra", nodes=some, pods=min(pods, some * DEVICES)))
        else:
            say("dra is skipped: the server has no resource.k8s.io/v1")
        gangs = max(1, pods * 3 // 5 // GANG)
        found.append(replace(plain, kind="gang", pods=gangs * GANG))
        if groups:
            found.append(replace(found[-1], kind="gangrack"))
        else:
            say("gangrack is skipped: the server has no PodGroups of scheduling.k8s.io")
        return found

    async def _create(self, obj: ApiObject) -> None:
        version = kind_of(obj).versions[0]
        if isinstance(obj, NativePodGroup):
            version = self._served.pod_groups
        await create(self._transport, obj, version)

    # Measuring -------------------------------------------------------------------------------

    async def _measured(self, workload: Workload) -> dict[str, float]:
        await at_once(self._create, surroundings(workload))
        async with self._scheduler(workload.scheduler) as app:
            before, started = await self._usage(workload), time.process_time()
            times = await self._pods(workload)
            if app is not None and app.writer is not None:
                await app.writer.drain(_DRAIN_SECONDS)
            cpu = time.process_time() - started
            after = await self._usage(workload) if before is not None else None
        figures = {
            "podsPerSecond": round(workload.pods / times.bound, 1),
            "createSeconds": round(times.created, 3),
            "boundSeconds": round(times.bound, 3),
        }
        if app is not None:
            figures["cpuMicrosecondsPerPod"] = round(cpu / workload.pods * 1e6, 1)
        if before is not None and after is not None:
            figures |= _server_figures(before, after, workload.pods)
        return figures

    @asynccontextmanager
    async def _scheduler(self, name: str) -> AsyncIterator[LiveApp | None]:
        """Run our scheduler under a name, unless another one is measured."""
        if self._target.scheduler:
            yield None
            return

        def load() -> ProfileSet:
            (profile,) = default_profiles().profiles
            return ProfileSet((replace(profile, scheduler_name=name),))

        async with scheduling(self._target.kubeconfig, load) as (app, _):
            yield app

    async def _usage(self, workload: Workload) -> ServerUsage | None:
        try:
            return await server_usage(self._transport)
        except ClusterError as exc:
            say(f"{workload.kind}: without figures of the API server: {exc}")
            return None

    async def _pods(self, workload: Workload) -> Times:
        """Let another process create the pods and wait for them."""
        creator = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bayplan_benchmarks.live_cluster.creator"),
            *(str(self._target.kubeconfig), msgspec.json.encode(workload).decode()),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Ctrl-C is for this process, which then ends that one.
            start_new_session=True,
        )
        try:
            out, errors = await creator.communicate()
        finally:
            if creator.returncode is None:
                creator.kill()
                await creator.wait()
        if creator.returncode:
            raise BayplanError(f"{workload.kind}: {errors.decode(errors='replace').strip()}")
        return msgspec.json.decode(out, type=Times)


def _server_figures(before: ServerUsage, after: ServerUsage, pods: int) -> dict[str, float]:
    cpu = (after.cpu - before.cpu) / pods
    figures = {"serverCpuMicrosecondsPerPod": round(cpu * 1e6, 1)}
    for name, count in sorted((after.writes - before.writes).items()):
        if count / pods >= _RARE and name != _CREATED:
            figures[f"requestsPerPod.{name}"] = round(count / pods, 3)
    return figures


# Words ---------------------------------------------------------------------------------------


def _sizes(workloads: Sequence[Workload]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for workload in workloads:
        if workload.kind == "plain":
            sizes |= {"nodes": workload.nodes, "pods": workload.pods}
        else:
            sizes |= {
                f"{workload.kind}Nodes": workload.nodes,
                f"{workload.kind}Pods": workload.pods,
            }
    return sizes


def _announced(workloads: Sequence[Workload]) -> str:
    plain = workloads[0]
    parts = [
        f"namespace {plain.namespace}",
        f"{plain.nodes:,} nodes without kubelets (label and taint {LABEL}={plain.run})",
    ]
    for workload in workloads:
        parts.append(f"{workload.pods:,} {workload.kind} pods")
        if workload.kind == "dra":
            parts.append(f"{workload.nodes:,} device nodes with 2 ResourceSlices each")
    return ", ".join(parts)
