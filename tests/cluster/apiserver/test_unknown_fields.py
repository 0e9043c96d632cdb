"""Untyped JSON fields survive changes of typed objects."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.cluster.apiserver.unknown_fields import overlay, plain
from bayplan.testing import make_pod


def content_of(pod: Pod) -> dict[str, Any]:
    found: dict[str, Any] = plain(pod)
    found["spec"]["hostUsers"] = False
    found["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]
    return found


def test_a_typed_change_keeps_untyped_fields_beside_it() -> None:
    pod = make_pod("p")
    content = content_of(pod)
    bound = replace(pod, spec=replace(pod.spec, node_name="n"))
    changed = overlay(content, pod, bound)
    assert changed["spec"]["nodeName"] == "n"
    assert changed["spec"]["hostUsers"] is False
    assert changed["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]


def test_nothing_is_changed_in_place_and_unchanged_parts_are_shared() -> None:
    pod = make_pod("p", labels={"a": "b"})
    content = content_of(pod)
    bound = replace(pod, spec=replace(pod.spec, node_name="n"))
    changed = overlay(content, pod, bound)
    assert "nodeName" not in content["spec"]
    assert changed["metadata"] is content["metadata"]


def test_a_field_that_is_reset_goes() -> None:
    pod = make_pod("p", node="n")
    freed = replace(pod, spec=replace(pod.spec, node_name=""))
    assert "nodeName" not in overlay(content_of(pod), pod, freed)["spec"]
