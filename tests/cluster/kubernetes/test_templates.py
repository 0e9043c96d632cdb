"""Copies of pod templates keep what bayplan's types do not hold."""

from __future__ import annotations

from typing import Any

import msgspec

from bayplan.api.objects import decode_part
from bayplan.api.pod import PodTemplate
from bayplan.cluster.kubernetes.templates import at_pointer, complete

CONTAINER = {
    "name": "main",
    "image": "i",
    "command": ["sh"],
    "env": [{"name": "A", "value": "1"}],
    "resources": {"requests": {"cpu": "1"}, "resizePolicy": "x"},
    "securityContext": {"privileged": True, "runAsUser": 5},
}


def copied(original: dict[str, Any], **changes: Any) -> Any:
    """Return a copy as bayplan reads it, with some changes, completed from its original."""
    typed = decode_part(PodTemplate, {"spec": original["spec"]})
    typed = msgspec.structs.replace(typed, spec=msgspec.structs.replace(typed.spec, **changes))
    plain = msgspec.to_builtins(typed, enc_hook=lambda quantity: quantity.text)
    complete(plain, original)
    return plain["spec"]


def test_fields_that_no_type_holds_are_those_of_the_original_at_every_depth() -> None:
    spec = {
        "containers": [CONTAINER, {"name": "side", "workingDir": "/"}],
        "dnsPolicy": "Default",
        "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}],
    }
    found = copied({"spec": spec})
    assert found["containers"][0] == CONTAINER
    assert found["containers"][1]["workingDir"] == "/"
    assert found["dnsPolicy"] == "Default"
    assert found["volumes"] == spec["volumes"]


def test_what_was_left_out_of_typed_fields_stays_out() -> None:
    spec = {"containers": [CONTAINER], "nodeName": "n", "nodeSelector": {"a": "b"}}
    found = copied({"spec": spec}, node_name="", node_selector={"c": "d"})
    assert "nodeName" not in found
    assert found["nodeSelector"] == {"c": "d"}


def test_containers_are_told_by_their_names() -> None:
    spec = {"containers": [{"name": "b", "command": ["b"]}, {"name": "a", "command": ["a"]}]}
    typed = decode_part(PodTemplate, {"spec": {"containers": [{"name": "a"}, {"name": "new"}]}})
    plain = msgspec.to_builtins(typed)
    complete(plain, {"spec": spec})
    assert [one.get("command") for one in plain["spec"]["containers"]] == [["a"], None]


def test_of_variables_of_one_name_the_last_counts() -> None:
    variables = [{"name": "a", "value": "1"}, {"name": "b"}, {"name": "a", "value": "2"}]
    template = {"spec": {"containers": [{"name": "c"}]}}
    complete(template, {"spec": {"containers": [{"name": "c", "env": variables}]}})
    (container,) = template["spec"]["containers"]
    assert container == {"name": "c", "env": [{"name": "a", "value": "2"}, {"name": "b"}]}


def test_an_original_that_is_none_changes_nothing() -> None:
    plain: dict[str, Any] = {"spec": {"containers": []}}
    for original in (None, "text", {}, {"spec": []}):
        complete(plain, original)
    assert plain == {"spec": {"containers": []}}


def test_a_pointer_leads_through_lists_and_escaped_names_or_to_nothing() -> None:
    content = {"a": [{"b/c": 1}]}
    assert at_pointer(content, "/a/0/b~1c") == 1
    assert at_pointer(content, "/a/1") is None
    assert at_pointer(content, "") is content
