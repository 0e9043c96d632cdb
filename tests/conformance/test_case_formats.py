"""Readers of cases leave nothing aside: an absent field has its default, an unknown one is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.conformance import (
    kai_format,
    koordinator_format,
    koordinator_quota,
    kueue_format,
    kueue_objects,
    share_format,
    volcano_cycles,
    volcano_format,
)
from tests.conformance.case_format import UnknownFieldError, fields_of
from tests.conformance.kai_rounds import mismatches, session
from tests.conformance.kai_scenarios import Scenario
from tests.conformance.kai_scope import profiles_of

from bayplan.api import ApiObject, Pod
from bayplan.schemas.catalog import ListOf, MapOf, RecordType, Scalar, Type

KUEUE = "kueue.x-k8s.io/v1beta2"
_ENCODER = msgspec.json.Encoder(enc_hook=lambda quantity: quantity.text)
_SCALARS: dict[str, Any] = {
    "string": "x",
    "quantity": "1",
    "time": "2000-01-01T00:00:00Z",
    "boolean": True,
    "int-or-string": 1,
    "any": {},
}
_CHOICES: dict[str, Any] = {
    "admissionMode": "NoAdmissionFairSharing",
    "effect": "NoSchedule",
    "policy": "LowerPriority",
    "preference": "BorrowingOverPreemption",
    "queueingStrategy": "StrictFIFO",
    "reclaimWithinCohort": "Any",
    "state": "Ready",
    "stopPolicy": "Hold",
    "whenCanBorrow": "TryNextFlavor",
    "whenCanPreempt": "MayStopSearch",
    "withinClusterQueue": "LowerPriority",
}
"""Values of fields that take only some."""
_SHORT = {
    *("podSets", "resourceGroups", "admission", "conditions"),
    # Their lists hold selectors with operators of their own.
    *("namespaceSelector", "tolerations"),
}
"""Fields that cases give in a short form, which the cases themselves show."""
_OLD = {
    *("priorityClassName", "priorityClassSource", "cohort", "parent", "admissionChecks"),
    *("selfLink", "managedFields", "flavors", "flavorUsage", "pendingWorkloadsStatus"),
    *("accumulatedPastExexcutionTimeSeconds", "ownerReferences"),
}
"""Fields of older versions, and those that say nothing to a scheduler."""


def a_value(name: str, type_: Type) -> Any:
    """Return a value of a field, with all fields of its own."""
    if name in _CHOICES:
        return _CHOICES[name]
    if isinstance(type_, Scalar):
        return _SCALARS.get(type_.name, 1)
    if isinstance(type_, ListOf):
        return [a_value("", type_.items)]
    if isinstance(type_, MapOf):
        return {"x": a_value("", type_.values)}
    assert isinstance(type_, RecordType)
    return {field.name: a_value(field.name, field.type) for field in type_.fields.values()}


MAKERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "Workload": kueue_objects.workload,
    "ClusterQueue": kueue_objects.cluster_queue,
    "Cohort": kueue_objects.cohort,
    "LocalQueue": kueue_objects.local_queue,
    "ResourceFlavor": kueue_objects.flavor,
}


def kueue_fields() -> Iterator[tuple[str, str, str]]:
    """Yield the kinds, sections and fields of Kueue's API that a case may give."""
    for kind in MAKERS:
        taken: set[str] = set()
        for section in ("spec", "metadata", "status"):
            for name in fields_of(KUEUE, kind, section):
                if name not in (_SHORT | _OLD | taken):
                    yield kind, section, name
                taken.add(name)


@pytest.mark.parametrize(("kind", "section", "name"), list(kueue_fields()))
def test_every_field_of_kueues_api_reaches_the_product(kind: str, section: str, name: str) -> None:
    value = a_value(name, fields_of(KUEUE, kind, section)[name].type)
    spelt = re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: f"_{found[1].lower()}", name)
    for key in (name, spelt):
        made = MAKERS[kind]({"name": "x", key: value})
        found = msgspec.json.decode(_ENCODER.encode(made)).get(section, {})
        assert name in found, key


def script(step: dict[str, Any]) -> dict[str, Any]:
    """Return a case of one step."""
    return {"kind": "quota-script", "steps": [step]}


def world(case: dict[str, Any]) -> list[ApiObject]:
    """Return the objects of a cycle of Volcano."""
    return list(volcano_cycles.objects(volcano_format.completed({"kind": "cycle", **case})))


UNKNOWN: tuple[tuple[Callable[[dict[str, Any]], Any], dict[str, Any], str], ...] = (
    (kueue_objects.workload, {"colour": 1}, "colour"),
    (kueue_objects.workload, {"pod_sets": [{"colour": 1}]}, "template.spec.colour"),
    (kueue_objects.workload, {"admission": {"colour": 1}}, "status.admission.colour"),
    (kueue_objects.workload, {"conditions": [{"type": "A", "hue": 1}]}, "conditions[0].hue"),
    (kueue_objects.cluster_queue, {"preemption": {"hue": "Any"}}, "spec.preemption.hue"),
    (kueue_objects.cluster_queue, {"colour": 1}, "colour"),
    (kueue_format.completed, {"kind": "available", "input": {"hue": 1}}, "hue"),
    (kueue_format.completed, {"kind": "schedule-cycle", "expected": {"hue": 1}}, "hue"),
    (koordinator_quota.quota_of, {"hue": 1}, "hue"),
    (koordinator_quota.pod_of, {"hue": 1}, "hue"),
    (koordinator_format.completed, {"kind": "quota-runtime", "nodes": [{"hue": 1}]}, "hue"),
    (koordinator_format.completed, script({"op": "Reserve", "args": {"hue": 1}}), "Reserve"),
    (koordinator_format.completed, script({"state": {"q": {"hue": 1}}}), "hue"),
    (volcano_format.completed, {"kind": "cycle", "checks": ["CheckHue"]}, "CheckHue"),
    (volcano_format.completed, {"kind": "cycle", "hue": 1}, "hue"),
    (world, {"pods": [{"name": "p", "namespace": "n", "hue": 1}]}, "hue"),
    (
        world,
        {"podgroups": [{"name": "p", "namespace": "n", "sub_group_policy": [{"hue": 1}]}]},
        "hue",
    ),
    (world, {"queues": [{"name": "q", "hue": 1}]}, "hue"),
    (share_format.completed, {"kind": "fit", "devices": [{"hue": 1}]}, "hue"),
    (share_format.completed, {"kind": "fit", "want": {"hue": 1}}, "hue"),
    (share_format.completed, {"kind": "convert", "source": "/deviceshare/", "hue": 1}, "hue"),
    (kai_format.completed, {"hue": 1}, "hue"),
    (kai_format.completed, {"jobs": [{"name": "j", "tasks": [{"id": "t", "hue": 1}]}]}, "hue"),
    (kai_format.completed, {"queues": [{"name": "q", "hue": 1}]}, "$.queues[0]"),
    (kai_format.completed, {"expected": {"jobs": {"j": {"hue": 1}}}}, "hue"),
    (kai_format.completed, {"config": {"tiers": [{"plugins": [{"name": "hue"}]}]}}, "hue"),
    (kai_format.completed, {"op": "isOverLimit", "input": {"queue": {"hue": 1}}}, "hue"),
)


@pytest.mark.parametrize(("reader", "case", "told"), UNKNOWN)
def test_an_unknown_field_is_an_error_that_names_it(
    reader: Callable[[dict[str, Any]], Any], case: dict[str, Any], told: str
) -> None:
    with pytest.raises(UnknownFieldError, match=re.escape(told)):
        reader({"name": "x", **case})


def test_absent_fields_have_the_defaults_of_the_api() -> None:
    queue = kueue_objects.cluster_queue({"name": "q"})
    assert (queue.spec.queueing_strategy, queue.spec.preemption.within_cluster_queue) == (
        "BestEffortFIFO",
        "Never",
    )
    case = kueue_format.completed({"kind": "queue", "input": {"reason": None}})
    assert (case["input"]["workloads_to_add"], "reason" in case["input"]) == ([], False)
    assert case["expected"]["pending"] == 0


def kai(job: dict[str, Any], node: dict[str, Any], **case: Any) -> dict[str, Any]:
    """Return a scenario of one pending task, one queue and one node."""
    plain = {
        "id": "own",
        "name": "own",
        "actions": ["allocate"],
        "queues": [{"name": "q", "deserved_gpus": 8}],
        "nodes": [{"name": "n", "gpus": 8, **node}],
        "jobs": [{"name": "j", "queue": "q", "tasks": [{"id": "t"}], **job}],
    }
    return kai_format.completed({**plain, **case})


@pytest.mark.parametrize(
    ("job", "node", "case", "status"),
    [
        ({}, {}, {}, "Binding"),
        ({"is_best_effort": True}, {"cpu_millis": 1, "cpu_memory": 1}, {}, "Binding"),
        ({"tasks": [{"id": "t", "persistent_volume_claim_names": ["gone"]}]}, {}, {}, "Pending"),
        ({}, {"max_task_num": 0}, {}, "Pending"),
        (
            {},
            {},
            {
                "queues": [{"name": "q", "parent": "d"}],
                "departments": [{"name": "d", "max_allowed_memory": 0}],
            },
            "Pending",
        ),
    ],
)
def test_a_scenario_of_kai_says_all_that_its_types_can(
    job: dict[str, Any], node: dict[str, Any], case: dict[str, Any], status: str
) -> None:
    scenario = kai(job, node, **case)
    found = session(Scenario(scenario), profiles_of(scenario))
    assert found.tasks["t"].status == status


def test_an_assertion_of_kai_that_nobody_makes_is_named() -> None:
    scenario = kai({}, {}, checks=[{"type": "colour"}])
    with pytest.raises(UnknownFieldError, match="colour"):
        mismatches(scenario, profiles_of(scenario))


def test_pods_of_volcano_have_all_fields_of_pods() -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    pod = {"name": "p", "namespace": "n", "topologySpreadConstraints": [spread], "node": ""}
    (made,) = world({"pods": [pod]})
    assert isinstance(made, Pod)
    assert made.spec.topology_spread_constraints[0].topology_key == "zone"
    assert (made.status.phase, made.spec.node_name) == ("Pending", "")
