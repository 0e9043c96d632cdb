"""Elastic jobs of Kueue."""

from __future__ import annotations

from typing import Any

from tests.resizing.elastic_builders import (
    bounded,
    template,
)

from bayplan.api import Job
from bayplan.testing import make_object

__all__ = ["ELASTIC", "QUEUE", "elastic", "job", "with_priority"]

QUEUE = {"kueue.x-k8s.io/queue-name": "lq"}


ELASTIC = {"kueue.x-k8s.io/elastic-job": "true"}


def job(name: str, pods: int, marks: dict[str, str] | None = None, queue: str = "lq") -> Job:
    content = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"kueue.x-k8s.io/queue-name": queue},
            "annotations": marks or {},
        },
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "parallelism": pods,
            "completions": pods,
            "template": template(restartPolicy="Never"),
        },
    }
    made = make_object(content)
    assert isinstance(made, Job)
    return made


def elastic(name: str, least: int, most: int, now: int = 0, queue: str = "lq") -> Job:
    return job(name, now or least, {**bounded(least, most), **ELASTIC}, queue)


def with_priority(made: Job, priority: int) -> Job:
    spec = {**template(restartPolicy="Never", priority=priority)}
    content: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": made.metadata.name, "namespace": "default", "labels": QUEUE},
        "spec": {
            "suspend": True,
            "parallelism": made.spec.parallelism,
            "completions": made.spec.completions,
            "template": spec,
        },
    }
    found = make_object(content)
    assert isinstance(found, Job)
    return found
