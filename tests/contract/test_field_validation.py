"""What the API server says of unknown and repeated fields, in the words of the real one.

Nothing is stored but a Deployment that goes again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.apiserver.faces import APPLY, JSON_PATCH, MERGE, STRATEGIC, Client

Content = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
STRICT = {"dryRun": "All", "fieldValidation": "Strict"}
WARN = {"dryRun": "All", "fieldValidation": "Warn"}
IGNORE = {"dryRun": "All", "fieldValidation": "Ignore"}
TYPOS = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "typos", "annotation": {"a": "b"}},
    "spec": {
        "nodeselector": {"a": "b"},
        "containers": [
            {"name": "c", "image": "x", "resource": {"requests": {"cpu": 100}}},
            {"name": "d", "image": "x", "env": [{"name": "e", "valueFromm": None}]},
        ],
    },
}
FOUND = [
    "metadata.annotation",
    "spec.nodeselector",
    "spec.containers[0].resource",
    "spec.containers[1].env[0].valueFromm",
]
REPEATED = b"""{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "name": "q"}, "spec": {
"containers": [{"name": "c", "image": "x", "image": "z"}], "restartPolicy": "Never",
"restartPolicy": "Always", "bogus": 1}}"""
YAML = b"""apiVersion: v1
kind: Pod
metadata:
  name: p
spec:
  restartPolicy: Never
  restartPolicy: Always
  bogus: 1
  containers:
  - name: c
    image: x
    image: z
"""


def unknown(*fields: str) -> str:
    return ", ".join(f'unknown field "{field}"' for field in fields)


def warned(*texts: str) -> list[str]:
    return [json.dumps(text) for text in texts]


def deployment(name: str, **spec: Any) -> Content:
    labels = {"app": name}
    pods = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": pods, **spec},
    }


@pytest.fixture
def name(client: Client) -> Iterator[str]:
    """A Deployment that exists."""
    name = f"fields-{secrets.token_hex(4)}"
    assert client.post(DEPLOYMENTS, deployment(name)).code == 201
    yield name
    client.delete(f"{DEPLOYMENTS}/{name}")


# Creating and updating ---------------------------------------------------------------------------


def test_strict_refuses_unknown_fields(client: Client) -> None:
    answer = client.post(PODS, TYPOS, **STRICT)
    assert answer.code == 400
    assert answer.json["reason"] == "BadRequest"
    assert answer.json["message"] == (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: ' + unknown(*FOUND)
    )


@pytest.mark.parametrize("params", [WARN, {"dryRun": "All"}], ids=["Warn", "nothing said"])
def test_warn_tells_of_unknown_fields_and_drops_them(client: Client, params: Content) -> None:
    answer = client.post(PODS, TYPOS, **params)
    assert answer.code == 201
    assert answer.warnings == warned(*(unknown(field) for field in FOUND))
    assert "nodeselector" not in answer.json["spec"]
    assert "resource" not in answer.json["spec"]["containers"][0]


def test_ignore_drops_unknown_fields_without_a_word(client: Client) -> None:
    answer = client.post(PODS, TYPOS, **IGNORE)
    assert (answer.code, answer.warnings) == (201, [])
    assert "annotation" not in answer.json["metadata"]


def test_another_mode_is_refused(client: Client) -> None:
    answer = client.post(PODS, TYPOS, dryRun="All", fieldValidation="Lax")
    assert answer.code == 422
    assert answer.json["message"] == (
        'CreateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "Lax": '
        'supported values: "", "Ignore", "Strict", "Warn"'
    )


def test_names_differ_by_their_case(client: Client) -> None:
    spec = {"containers": [{"name": "c", "image": "x"}]}
    content = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "Spec": spec}
    assert unknown("Spec") in client.post(PODS, content, **STRICT).json["message"]


def test_repeated_fields_are_told_in_their_order(client: Client) -> None:
    expected = [
        'duplicate field "metadata.name"',
        'duplicate field "spec.containers[0].image"',
        'duplicate field "spec.restartPolicy"',
        'unknown field "spec.bogus"',
    ]
    answer = client.post(PODS, REPEATED, **STRICT)
    assert answer.code == 400
    assert answer.json["message"].endswith("strict decoding error: " + ", ".join(expected))
    assert client.post(PODS, REPEATED, **WARN).warnings == warned(*expected)
    assert client.post(PODS, REPEATED, **IGNORE).warnings == []


def test_repeated_keys_of_yaml_are_told_with_their_lines(client: Client) -> None:
    answer = client.call("POST", PODS, YAML, "application/yaml", **STRICT)
    assert answer.code == 400
    assert answer.json["message"].endswith(
        "strict decoding error: yaml: unmarshal errors:\n"
        '  line 7: key "restartPolicy" already set in map\n'
        '  line 12: key "image" already set in map, unknown field "spec.bogus"'
    )
    warnings = client.call("POST", PODS, YAML, "application/yaml", **WARN).warnings
    assert warnings == warned(
        'line 7: key "restartPolicy" already set in map',
        'line 12: key "image" already set in map',
        'unknown field "spec.bogus"',
    )


def test_an_update_is_checked_like_a_create(client: Client, name: str) -> None:
    changed = deployment(name, replica=3)
    answer = client.put(f"{DEPLOYMENTS}/{name}", changed, **STRICT)
    assert answer.code == 400
    assert answer.json["message"] == (
        'Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: '
        + unknown("spec.replica")
    )
    answer = client.put(f"{DEPLOYMENTS}/{name}", changed, **WARN)
    assert (answer.code, answer.warnings) == (200, warned(unknown("spec.replica")))


def test_what_is_sent_to_parts_of_objects_is_checked(client: Client, name: str) -> None:
    scale = {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": 1, "replica": 2},
    }
    answer = client.put(f"{DEPLOYMENTS}/{name}/scale", scale, **STRICT)
    assert answer.code == 400
    assert answer.json["message"].startswith('Scale in version "v1" cannot be handled as a Scale')
    target = {"kind": "Node", "name": "n", "node": "m"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": target}
    answer = client.post(f"{PODS}/p/binding", binding, **STRICT)
    assert unknown("target.node") in answer.json["message"]


# Patches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "patch", "expected"),
    [
        (MERGE, {"spec": {"replica": 3, "foo": 1}}, ["spec.foo", "spec.replica"]),
        (JSON_PATCH, [{"op": "add", "path": "/spec/replica", "value": 3}], ["spec.replica"]),
        (
            STRATEGIC,
            {"spec": {"template": {"spec": {"containers": [{"name": "c", "imag": "y"}]}}}},
            ["spec.template.spec.containers[0].imag"],
        ),
    ],
    ids=["merge", "json", "strategic"],
)
def test_patches_are_checked(
    client: Client, name: str, kind: str, patch: Any, expected: list[str]
) -> None:
    path = f"{DEPLOYMENTS}/{name}"
    answer = client.patch(path, patch, kind, **STRICT)
    assert answer.code == 422
    assert answer.json["message"].startswith(' "" is invalid: patch: Invalid value: ')
    assert answer.json["message"].endswith(f"strict decoding error: {unknown(*expected)}")
    assert answer.json["details"]["causes"][0]["field"] == "patch"
    answer = client.patch(path, patch, kind, **WARN)
    assert (answer.code, answer.warnings) == (200, warned(*(unknown(one) for one in expected)))
    answer = client.patch(path, patch, kind, **IGNORE)
    assert (answer.code, answer.warnings) == (200, [])
    assert "replica" not in answer.json["spec"]


def test_a_strategic_patch_is_shown_as_go_prints_it(client: Client, name: str) -> None:
    patch = {"spec": {"replica": 3, "paused": True}}
    answer = client.patch(f"{DEPLOYMENTS}/{name}", patch, STRATEGIC, **STRICT)
    assert 'Invalid value: "map[spec:map[paused:true replica:3]]": strict' in answer.json["message"]


def test_repeated_fields_of_patches_are_told(client: Client, name: str) -> None:
    path = f"{DEPLOYMENTS}/{name}"
    repeated = b'{"spec": {"paused": true, "paused": true}}'
    for kind in (MERGE, STRATEGIC):
        answer = client.call("PATCH", path, repeated, kind, **STRICT)
        assert answer.json["message"].endswith('duplicate field "spec.paused"')
        warnings = client.call("PATCH", path, repeated, kind, **WARN).warnings
        assert warnings == warned('duplicate field "spec.paused"')
    operation = b'[{"op": "add", "path": "/spec/paused", "value": true, "foo": 1}]'
    warnings = client.call("PATCH", path, operation, JSON_PATCH, **WARN).warnings
    assert warnings == warned('json patch unknown field "[0].foo"')


@pytest.mark.parametrize("params", [STRICT, WARN, IGNORE], ids=["Strict", "Warn", "Ignore"])
def test_unknown_fields_are_never_applied(client: Client, name: str, params: Content) -> None:
    applied = deployment(name, replica=3)
    path = f"{DEPLOYMENTS}/{name}"
    answer = client.patch(path, applied, APPLY, fieldManager="me", force="true", **params)
    assert answer.code == 500
    assert answer.json["message"] == (
        f"failed to create typed patch object (/{name}; apps/v1, Kind=Deployment): .spec.replica: "
        "field not declared in schema"
    )


def test_a_list_with_keys_names_the_item_that_is_applied(client: Client, name: str) -> None:
    applied = deployment(name)
    applied["spec"]["template"]["spec"]["containers"][0]["imag"] = "y"
    path = f"{DEPLOYMENTS}/{name}"
    answer = client.patch(path, applied, APPLY, fieldManager="me", force="true", **STRICT)
    assert '.spec.template.spec.containers[name="c"].imag: field not' in answer.json["message"]


def test_repeated_keys_that_are_applied_are_told(client: Client, name: str) -> None:
    labels = f"{{matchLabels: {{app: {name}}}}}"
    pods = (
        f"{{metadata: {{labels: {{app: {name}}}}}, spec: {{containers: [{{name: c, image: x}}]}}}}"
    )
    applied = (
        f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\n"
        f"spec: {{paused: true, paused: true, selector: {labels}, template: {pods}}}\n"
    ).encode()
    path = f"{DEPLOYMENTS}/{name}"
    answer = client.call("PATCH", path, applied, APPLY, fieldManager="me", **STRICT)
    assert answer.code == 400
    assert answer.json["message"].endswith('line 4: key "paused" already set in map')
    answer = client.call("PATCH", path, applied, APPLY, fieldManager="me", **WARN)
    assert answer.warnings == warned('line 4: key "paused" already set in map')


# Types -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {"containers": "x"},
            "string into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            {"containers": [{"name": "c", "env": [{"name": "a", "value": 1}]}]},
            "number into Go struct field EnvVar.spec.containers.env.value of type string",
        ),
        ({"priority": "x"}, "string into Go struct field PodSpec.spec.priority of type int32"),
        (
            {"activeDeadlineSeconds": True},
            "bool into Go struct field PodSpec.spec.activeDeadlineSeconds of type int64",
        ),
        (
            {"hostNetwork": "yes"},
            "string into Go struct field PodSpec.spec.hostNetwork of type bool",
        ),
        (
            {"nodeSelector": {"a": 1}},
            "number into Go struct field PodSpec.spec.nodeSelector of type string",
        ),
        (
            {"dnsConfig": []},
            "array into Go struct field PodSpec.spec.dnsConfig of type v1.PodDNSConfig",
        ),
        (
            {"nodeSelector": "a"},
            "string into Go struct field PodSpec.spec.nodeSelector of type map[string]string",
        ),
    ],
)
def test_values_of_the_wrong_type_are_refused(client: Client, spec: Content, expected: str) -> None:
    content = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    answer = client.post(PODS, content, **WARN)
    assert answer.code == 400
    assert answer.json["message"] == (
        f'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal {expected}'
    )
