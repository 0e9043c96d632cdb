"""Pod templates that operators put together from other fields of an object."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.kinds import KINDS_OF_WORKLOADS, pods_of, progress_of, roles_of, templates_of

SPARK = KINDS_OF_WORKLOADS["sparkoperator.k8s.io", "SparkApplication"]
WRAPPER = KINDS_OF_WORKLOADS["workload.codeflare.dev", "AppWrapper"]


def spark(driver: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    executor = {"instances": 2, **spec.pop("executor", {})}
    spec = {"driver": driver or {}, "executor": executor, **spec}
    return {"metadata": {"name": "etl", "namespace": "default"}, "spec": spec}


def template(content: dict[str, Any]) -> Any:
    """Return the driver's template."""
    return next(iter(templates_of(SPARK, content))).template


def main(content: dict[str, Any]) -> Any:
    return template(content)["spec"]["containers"][0]


def test_a_driver_gets_its_resources_from_its_own_fields() -> None:
    gpu = {"name": "nvidia.com/gpu", "quantity": 2}
    fields = {"cores": 2, "coreLimit": "3", "memory": "2g", "memoryLimit": "3g", "gpu": gpu}
    assert main(spark(fields)) == {
        "name": "spark-kubernetes-driver",
        "resources": {
            "requests": {"cpu": "2", "memory": "2Gi"},
            "limits": {"cpu": "3", "memory": "3Gi", "nvidia.com/gpu": 2},
        },
    }


@pytest.mark.parametrize(
    ("memory", "quantity"),
    [("512m", "512Mi"), ("1T", "1Ti"), ("64kb", "64Ki"), ("9b", "9"), ("7", "7Mi"), ("1Gi", "1Gi")],
)
def test_memory_in_javas_words_becomes_a_quantity(memory: str, quantity: str) -> None:
    assert main(spark({"memory": memory}))["resources"]["requests"]["memory"] == quantity


def test_fields_are_added_to_what_the_template_has() -> None:
    own = {
        "metadata": {"labels": {"a": "template", "b": "template"}},
        "spec": {
            "containers": [{"name": "first"}, {"name": "spark-kubernetes-driver"}],
            "tolerations": [{"key": "a"}],
        },
    }
    fields = {"template": own, "labels": {"a": "field"}, "tolerations": [{"key": "b"}], "cores": 1}
    made = template(spark(fields))
    assert made["metadata"]["labels"] == {"a": "field", "b": "template"}
    assert made["spec"]["tolerations"] == [{"key": "a"}, {"key": "b"}]
    assert ["resources" in one for one in made["spec"]["containers"]] == [False, True]


def test_executors_are_created_once_their_driver_runs() -> None:
    plans = {plan.name: plan.after for plan in pods_of(SPARK, spark())}
    assert plans == {
        "etl-driver": (),
        "etl-exec-0": ("etl-driver",),
        "etl-exec-1": ("etl-driver",),
    }


@pytest.mark.parametrize(
    ("state", "executors", "ready", "end"),
    [
        ("", {}, 0, None),
        ("RUNNING", {"a": "RUNNING", "b": "PENDING", "c": "COMPLETED"}, 3, None),
        ("COMPLETED", {}, 0, True),
        ("FAILED", {}, 0, False),
    ],
)
def test_a_state_tells_how_far_an_application_is(
    state: str, executors: dict[str, str], ready: int, end: bool | None
) -> None:
    content = spark()
    content["status"] = {"applicationState": {"state": state}, "executorState": executors}
    found = progress_of(SPARK, content, tuple(templates_of(SPARK, content)))
    assert (found.ready, found.succeeded if found.end else None) == (ready, end)


# Objects in objects ------------------------------------------------------------------------------


def component(kind: str, **spec: Any) -> dict[str, Any]:
    versions = {"Job": "batch/v1", "Pod": "v1", "TrainJob": "trainer.kubeflow.org/v1alpha1"}
    content = {"apiVersion": versions.get(kind, "v1"), "kind": kind, "metadata": {"name": "x"}}
    return {"template": {**content, "spec": spec}}


def wrapper(*components: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "w"}, "spec": {"components": list(components)}}


def job(pods: int) -> dict[str, Any]:
    return component("Job", parallelism=pods, completions=pods, template={"spec": {}})


def test_a_wrapper_needs_the_pods_of_all_that_it_holds() -> None:
    (role,) = roles_of(WRAPPER, wrapper(job(2), component("ConfigMap"), job(3)))
    assert (role.count, role.least, role.labels) == (5, 5, {})


def test_a_wrapper_of_one_object_has_its_roles() -> None:
    (role,) = roles_of(WRAPPER, wrapper(job(2)))
    assert (role.name, role.count) == ("main", 2)


def test_a_wrapper_with_pods_that_nobody_knows_is_no_gang() -> None:
    assert roles_of(WRAPPER, wrapper(job(2), component("TrainJob"))) == ()


def test_templates_of_a_wrapper_are_numbered_and_say_where_they_are() -> None:
    found = list(templates_of(WRAPPER, wrapper(job(2), component("Pod", containers=[]))))
    assert [(one.name, one.count, one.pointer) for one in found] == [
        ("w-0", 2, "/spec/components/0/template/spec/template"),
        ("w-1", 1, "/spec/components/1/template/template"),
    ]


@pytest.mark.parametrize("components", [None, 3, [None], [{"template": 3}], [{}]])
def test_a_wrapper_of_nothing_has_no_pods(components: Any) -> None:
    content = {"metadata": {"name": "w"}, "spec": {"components": components}}
    assert roles_of(WRAPPER, content) == ()
    assert list(templates_of(WRAPPER, content)) == []
