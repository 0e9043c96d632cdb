"""What the Job of an ElasticJob on a cluster says."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api import ElasticJob, ObjectMeta, PriorityClass
from bayplan.dialects.elastic_job import job_content, priority_class, priority_without_class
from bayplan.testing import make_object


def elastic_job(**spec: Any) -> tuple[ElasticJob, dict[str, Any]]:
    template = spec.pop("template", {})
    containers = {"containers": [{"name": "main", "image": "i"}]}
    content = {
        "apiVersion": "bayplan.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {
            "scaling": {"minReplicas": 1, "maxReplicas": 2},
            "template": {"spec": {**containers, **template}},
            **spec,
        },
    }
    made = make_object(content)
    assert isinstance(made, ElasticJob)
    return made, content


def class_of(name: str, value: int, policy: Any = "PreemptLowerPriority") -> PriorityClass:
    return PriorityClass(value, ObjectMeta(name=name), preemption_policy=policy)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, 0),
        ({"priority": 7}, 7),
        ({"priority": 7, "template": {"priorityClassName": "own"}}, 0),
        ({"priority": 7, "template": {"priority": 9}}, 9),
    ],
)
def test_a_priority_in_numbers_needs_a_class(spec: dict[str, Any], expected: int) -> None:
    assert priority_without_class(elastic_job(**spec)[0]) == expected


def test_the_class_is_one_of_the_users_that_preempts() -> None:
    classes = [
        class_of("system-a", 5),
        class_of("b", 5, "Never"),
        class_of("d", 5),
        class_of("c", 5),
        class_of("a", 6),
    ]
    assert priority_class(5, classes) == "c"
    assert priority_class(5, classes[:2]) == "b"
    assert priority_class(5, classes[:1]) == "system-a"
    assert priority_class(4, classes) is None


def test_the_job_names_the_class_and_no_number() -> None:
    made, content = elastic_job(priority=7)
    spec = job_content(made, content, "high")["spec"]["template"]["spec"]
    assert spec["priorityClassName"] == "high"
    assert "priority" not in spec
    assert "priorityClassName" not in job_content(made, content)["spec"]["template"]["spec"]
