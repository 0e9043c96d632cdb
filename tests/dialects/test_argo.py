"""The steps of an Argo Workflow, and the order in which a simulation plays them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.api.operated import Workflow
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.dialects.argo import tasks_of
from bayplan.testing import Cluster, make_node, make_object

STEP: dict[str, Any] = {"container": {"image": "i", "resources": {"requests": {"cpu": "1"}}}}


def workflow(*templates: dict[str, Any], **spec: Any) -> dict[str, Any]:
    own = {"entrypoint": "main", "templates": list(templates), **spec}
    content = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow"}
    return {**content, "metadata": {"name": "w", "namespace": "default"}, "spec": own}


def step(name: str, template: str = "one", **more: Any) -> dict[str, Any]:
    return {"name": name, "template": template, **more}


def order(content: dict[str, Any]) -> dict[str, set[str]]:
    """Return what each step waits for."""
    return {task.name: set(task.after) for task in tasks_of(content)}


ONE = {"name": "one", **STEP}


def test_groups_of_steps_follow_each_other() -> None:
    groups = [[step("a")], [step("b"), step("c")], [step("d")]]
    assert order(workflow({"name": "main", "steps": groups}, ONE)) == {
        "w-a": set(),
        "w-b": {"w-a"},
        "w-c": {"w-a"},
        "w-d": {"w-b", "w-c"},
    }


def test_tasks_of_a_graph_wait_for_those_that_they_name() -> None:
    tasks = [step("d", depends="b && c.Succeeded"), step("b", dependencies=["a"])]
    tasks += [step("c", dependencies=["a"]), step("a")]
    found = order(workflow({"name": "main", "dag": {"tasks": tasks}}, ONE))
    assert found == {"w-a": set(), "w-b": {"w-a"}, "w-c": {"w-a"}, "w-d": {"w-b", "w-c"}}


def test_a_step_may_be_steps_itself() -> None:
    inner = {"name": "two", "steps": [[step("x")], [step("y")]]}
    found = order(
        workflow({"name": "main", "steps": [[step("a", "two")], [step("b")]]}, inner, ONE)
    )
    assert found == {"w-a-x": set(), "w-a-y": {"w-a-x"}, "w-b": {"w-a-y"}}


@pytest.mark.parametrize(
    ("templates", "expected"),
    [
        ([], 'there is no "main"'),
        ([{"name": "main", "steps": [[step("a", "main")]]}], "more than 20 levels"),
        ([{"name": "main", "steps": [[step("a", withItems=[1])]]}, ONE], "withItems is not"),
        ([{"name": "main", "dag": {"tasks": [step("a", depends="a")]}}, ONE], "wait for each"),
        ([{"name": "main", "dag": {"tasks": [step("a", depends="b || c")]}}, ONE], "joined by"),
        ([{"name": "main", "resource": {"action": "create", "manifest": "["}}], "expected YAML"),
        ([{"name": "main", "resource": {"action": "create", "manifest": "3"}}], "with a kind"),
    ],
)
def test_what_is_not_followed_is_said(templates: list[dict[str, Any]], expected: str) -> None:
    with pytest.raises(ValueError, match=expected.replace("|", r"\|")):
        tasks_of(workflow(*templates))


def started() -> Cluster:
    """Return a cluster with a Workflow of two steps, each of ten seconds."""
    timed = {**ONE, "metadata": {"annotations": {"bayplan.dev/duration": "10s"}}}
    steps = [[step("a"), step("b")], [step("c")]]
    made = Cluster([make_node("n", cpu=4)])
    start_controllers(made.api)
    made.add(make_object(workflow({"name": "main", "steps": steps}, timed)))
    made.advance(5.0)
    return made


def seen(made: Cluster) -> tuple[set[str], str]:
    """Return the names of the pods, and the Workflow's phase."""
    owner = made.api.get(Workflow, "default/w")
    assert owner is not None
    return {pod.metadata.name for pod in made.api.list(Pod)}, owner.status["phase"]


def test_a_step_is_played_once_those_before_it_have_succeeded() -> None:
    made = started()
    assert seen(made) == ({"w-a", "w-b"}, "Running")
    made.advance(10.0)
    assert seen(made) == ({"w-a", "w-b", "w-c"}, "Running")
    made.advance(20.0)
    assert seen(made) == ({"w-a", "w-b", "w-c"}, "Succeeded")


def test_a_workflow_ends_with_a_step_that_fails() -> None:
    made = started()
    pod = made.api.get(Pod, "default/w-a")
    assert pod is not None
    made.api.update(replace(pod, status=replace(pod.status, phase="Failed")))
    made.advance(30.0)
    assert seen(made) == ({"w-a", "w-b"}, "Failed")


def test_steps_are_no_gang() -> None:
    made = Cluster([make_node("n", cpu=1)])
    start_controllers(made.api)
    steps = [[step("a"), step("b")]]
    made.add(make_object(workflow({"name": "main", "steps": steps}, ONE)))
    made.advance(5.0)
    assert len(made.placements()) == 1
