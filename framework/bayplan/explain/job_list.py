"""Jobs in lines, as squeue lists them: what somebody's pods say, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from bayplan.api import Job, Pod, pod_requests
from bayplan.api.object_key import controller_key, object_key
from bayplan.dialects.gangs import membership_of
from bayplan.dialects.reading import timestamp
from bayplan.naming import natural_key

__all__ = ["JobLine", "job_lines"]

PENDING, RUNNING, ENDING, ENDED = "Pending", "Running", "Ending", "Ended"
_ENDED = ("Succeeded", "Failed")


class JobLine(msgspec.Struct, frozen=True):
    """A gang, the pods of one controller, or a pod of its own.

    ``seconds`` is for how long it has run, or waited. ``gpus`` counts whole GPUs that its living
    pods request. ``reason`` says why pods have no node, "" where none says so.
    """

    job: str
    state: str
    running: int
    pods: int
    gpus: int
    seconds: float
    nodes: Sequence[str] = ()
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        plain = {name: getattr(self, name) for name in ("job", "state", "running", "pods", "gpus")}
        return {
            **plain,
            "seconds": round(self.seconds),
            "nodes": list(self.nodes),
            "reason": self.reason,
        }


def job_lines(pods: Iterable[Pod], jobs: Iterable[Job], now: float) -> list[JobLine]:
    """Return jobs by state and name: those that run come first, those that have ended last.

    :param jobs: Jobs of the same namespaces; suspended ones without pods are pending.
    :param now: seconds since 1970.
    """
    by_job: dict[str, list[Pod]] = {}
    for pod in pods:
        gang = membership_of(pod).gang
        key = f"{pod.metadata.namespace}/{gang}" if gang and "/" not in gang else gang
        by_job.setdefault(key or controller_key(pod.metadata) or pod.key, []).append(pod)
    lines = [_line(key, own, now) for key, own in by_job.items()]
    for job in jobs:
        key = object_key(job)
        if job.spec.suspend and key not in by_job:
            waits = now - (timestamp(job.metadata.creation_timestamp) or now)
            lines.append(JobLine(key, PENDING, 0, job.spec.parallelism, 0, waits, (), "Suspended"))
    order = (RUNNING, ENDING, PENDING, ENDED)
    return sorted(lines, key=lambda line: (order.index(line.state), natural_key(line.job)))


def _line(key: str, pods: Sequence[Pod], now: float) -> JobLine:
    living = [pod for pod in pods if pod.status.phase not in _ENDED]
    bound = [pod for pod in living if pod.spec.node_name]
    pending = [pod for pod in living if not pod.spec.node_name]
    ending = bound and all(pod.metadata.deletion_timestamp for pod in bound)
    state = ENDING if ending else RUNNING if bound else PENDING if pending else ENDED
    began = [pod.status.start_time for pod in bound] if bound else []
    since = began or [pod.metadata.creation_timestamp for pod in pending or pods]
    times = [at for text in since if (at := timestamp(text))]
    nodes = {pod.spec.node_name for pod in bound}
    return JobLine(
        key,
        state,
        sum(pod.status.phase == "Running" for pod in bound),
        len(pods),
        sum(_gpus(pod) for pod in living),
        now - min(times, default=now),
        sorted(nodes, key=natural_key),
        next((why for pod in pending if (why := _reason(pod))), ""),
    )


def _gpus(pod: Pod) -> int:
    requests = pod_requests(pod.spec).effective
    return sum(int(amount) for name, amount in requests.items() if name.endswith(".com/gpu"))


def _reason(pod: Pod) -> str:
    reported = (one for one in pod.status.conditions if one.type == "PodScheduled")
    return next((one.message or one.reason for one in reported if one.status == "False"), "")
