"""PodGangs of Grove say how far they are, where nobody else does."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from tests.gangs.test_group_status_fields import CRDS, left_out

from bayplan.api import Pod
from bayplan.api.meta import Condition
from bayplan.api.operated import PodGang, PodGangStatus
from bayplan.testing import Cluster, make_node, make_object, make_pod


def status(made: Cluster) -> PodGangStatus:
    found = made.api.get(PodGang, "default/g")
    assert found is not None
    return found.status


def said(made: Cluster) -> tuple[str, str, str, str]:
    """Return the phase, and what the condition says."""
    (own,) = (one for one in status(made).conditions if one.type == "Scheduled")
    return status(made).phase, own.status, own.reason, own.message


def pending(**more: Any) -> tuple[Cluster, list[Pod]]:
    """Return a cluster with a node for three of the four pods that a gang needs, and these."""
    groups = [{"name": name, "minReplicas": 2} for name in ("g-c", "g-d")]
    content = {
        "apiVersion": "scheduler.grove.io/v1alpha1",
        "kind": "PodGang",
        "metadata": {"name": "g"},
        "spec": {"podgroups": groups},
    }
    pods = [
        make_pod(
            f"{clique}-{index}",
            "1",
            None,
            labels={"grove.io/podgang": "g", "grove.io/podclique": clique},
        )
        for clique in ("g-c", "g-d")
        for index in range(2)
    ]
    return Cluster([make_node("n", cpu=3), make_object({**content, **more})]), pods


def run(made: Cluster, *names: str) -> None:
    """Let pods run, as kubelets do."""
    for name in names:
        pod = made.api.get(Pod, f"default/{name}")
        assert pod is not None
        made.api.update(replace(pod, status=replace(pod.status, phase="Running")))
    made.advance(2)


def test_a_gang_says_why_it_is_pending_and_that_it_runs() -> None:
    made, pods = pending()
    made.add(pods[0])
    made.advance(2)
    phase, value, reason, message = said(made)
    assert (phase, value, reason) == ("Pending", "False", "NotReadyForScheduling")
    assert "is waiting for members: 1 of 4 exist" in message
    made.add(*pods[1:])
    made.advance(2)
    assert said(made)[:3] == ("Pending", "False", "Unschedulable")
    made.add(make_node("m", cpu=3))
    made.advance(20)
    assert said(made)[:3] == ("Starting", "True", "Scheduled")
    run(made, "g-c-0", "g-c-1", "g-d-0")
    assert status(made).phase == "Starting"
    run(made, "g-d-1")
    assert status(made).phase == "Running"


def test_what_grove_says_of_a_gang_stays() -> None:
    ready = {"type": "Initialized", "status": "True", "reason": "Done", "message": "all gates off"}
    made, pods = pending(status={"phase": "Pending", "conditions": [ready], "placementScore": 0.5})
    made.add(make_node("m", cpu=3), *pods)
    made.advance(5)
    assert said(made)[:2] == ("Starting", "True")
    first = status(made).conditions[0]
    assert (first.type, first.reason, first.message) == ("Initialized", "Done", "all gates off")
    assert status(made).placement_score == 0.5


def test_a_gang_whose_condition_another_scheduler_writes_is_left_alone() -> None:
    theirs = {"type": "Scheduled", "status": "False", "reason": "Queued", "message": "by another"}
    made, pods = pending(status={"phase": "Pending", "conditions": [theirs]})
    made.add(make_node("m", cpu=3), *pods)
    made.advance(5)
    assert len(made.placements()) == 4
    assert status(made).phase == "Pending"
    assert status(made).conditions == (Condition("Scheduled", "False", "Queued", "by another"),)


def test_a_status_has_no_field_that_an_api_server_would_leave_out() -> None:
    path = CRDS / "scheduler.grove.io_podgang.yaml"
    if not path.exists():
        pytest.skip("the definitions of other projects do not lie beside the project")
    (version,) = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]["versions"]
    known = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert not list(left_out(PodGangStatus(), known))
