"""Jobs that wait suspended until a queue admits them, whatever kind they are.

A job's pods exist only while it is not suspended. What is needed to admit it before that is in its
pod templates. Each kind has its own fields for it; this is what they have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bayplan.api import ApiObject, Job
from bayplan.api.objects import kind_of
from bayplan.api.pod import PodTemplate

__all__ = ["QUEUED_KINDS", "JobPods", "JobState", "QueuedJob", "queued_job"]


@dataclass(frozen=True)
class JobPods:
    """The pods of one template.

    :param pointer: the JSON pointer of the template in the job.
    :param labels: labels that its pods have, beyond the template's.
    :param count_pointers: where the number of pods stands, if the job may run with fewer.
    :param least: the number of pods that it can run with.
    """

    name: str
    template: PodTemplate
    count: int
    pointer: str
    labels: Mapping[str, str] = field(default_factory=dict)
    count_pointers: tuple[str, ...] = ()
    least: int | None = None


@dataclass(frozen=True)
class JobState:
    """How far a job is, by its own status.

    :param end: the reason and the message of its end; None before.
    :param succeeded: whether it ended well.
    :param started: the fields of the status to remove so that the templates may change.
    :param ready: the number of pods that are ready, or have succeeded.
    :param spare: for each template, pods that the job needs no more.
    """

    end: tuple[str, str] | None = None
    succeeded: bool = False
    started: tuple[str, ...] = ()
    ready: int = 0
    spare: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class QueuedJob:
    """A job that can be suspended.

    :param pods: one entry for each template.
    :param suspend: the fields that suspend it, by JSON pointer; their values are plain JSON.
    :param resume: the fields that let it run.
    """

    obj: ApiObject
    pods: tuple[JobPods, ...]
    suspended: bool
    suspend: Mapping[str, Any]
    resume: Mapping[str, Any]
    state: JobState

    @property
    def kind(self) -> str:
        """The kind, as manifests name it."""
        return kind_of(self.obj).name

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.obj.metadata.namespace}/{self.obj.metadata.name}"


_LEAST = "kueue.x-k8s.io/job-min-parallelism"


def _batch_job(obj: ApiObject) -> QueuedJob:
    assert isinstance(obj, Job), "read by its type"
    spec, status = obj.spec, obj.status
    wanted = spec.parallelism
    if spec.completions is not None:
        wanted = min(wanted, spec.completions)
    text = obj.metadata.annotations.get(_LEAST, "")
    least = int(text) if text.isdecimal() and 0 < int(text) < wanted else None
    pods = JobPods(
        "main",
        spec.template,
        wanted,
        "/spec/template",
        count_pointers=("/spec/parallelism",) if least is not None else (),
        least=least,
    )
    ended = next(
        (c for c in status.conditions if c.type in ("Complete", "Failed") and c.status == "True"),
        None,
    )
    succeeded = status.succeeded or 0
    left = max(0, (spec.completions if spec.completions is not None else wanted) - succeeded)
    state = JobState(
        end=(ended.reason or f"Job{ended.type}", ended.message) if ended is not None else None,
        succeeded=ended is not None and ended.type == "Complete",
        started=("/status/startTime",) if status.start_time is not None else (),
        ready=(status.ready or 0) + succeeded,
        spare={"main": wanted - left} if left < wanted else {},
    )
    suspend, resume = {"/spec/suspend": True}, {"/spec/suspend": False}
    return QueuedJob(obj, (pods,), spec.suspend, suspend, resume, state)


_READERS: dict[type, Callable[[ApiObject], QueuedJob]] = {Job: _batch_job}
QUEUED_KINDS: tuple[type[ApiObject], ...] = tuple(_READERS)
"""The kinds of jobs that can be suspended."""


def queued_job(obj: ApiObject) -> QueuedJob:
    """Return what a queue has to know of a job of one of ``QUEUED_KINDS``.

    The pod sets have the names that Kueue gives them.
    """
    return _READERS[type(obj)](obj)
