"""The CRDs that bayplan brings: taken by an API server, and fit for what is read and written."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.cluster.apiserver.faces import Client, serving
from tests.live.deployed import CRDS, ROOT, Content, documents, manifests
from tests.live.stage import Stage, stage

from bayplan.api import KINDS, Kind, decode_object
from bayplan.api.quantity import Quantity
from bayplan.cluster.apiserver import ServedCluster
from bayplan.testing import make_gang, make_network, make_node, make_object, make_pod

PATHS = {
    "ClusterNetworkTopology": "/apis/scheduling.koordinator.sh/v1alpha1/clusternetworktopologies",
    "PodGroup": "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups",
}
NETWORK = "clusternetworktopologies.scheduling.koordinator.sh"
GROUP = "podgroups.scheduling.sigs.k8s.io"
OF_PATHS = {"ClusterNetworkTopology": NETWORK, "PodGroup": GROUP}
DEFINITIONS = {one["metadata"]["name"]: one for one in documents(*manifests(CRDS))}
GROUPS = sorted({one["spec"]["group"] for one in DEFINITIONS.values()})
FREE = {one: {"quota": -1, "limit": -1} for one in ("cpu", "memory")}
QUEUES = [
    {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "a"},
        "spec": {"weight": 2, "capability": {"cpu": 8, "nvidia.com/gpu": "4"}},
    },
    {
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        "metadata": {"name": "a"},
        "spec": {
            "displayName": "b",
            "resources": {"gpu": {"quota": 0.5, "overQuotaWeight": 1, "limit": -1}, **FREE},
            "preemptMinRuntime": "5m",
        },
    },
    {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {
            "name": "a",
            "namespace": "default",
            "labels": {"quota.scheduling.koordinator.sh/allow-lent-resource": "false"},
        },
        "spec": {"min": {"cpu": 1}, "max": {"cpu": "1500m"}},
    },
    {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "a"},
        "spec": {
            "cohortName": "b",
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": ["cpu"],
                    "flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": 8}]}],
                }
            ],
        },
    },
    {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {"clusterQueue": "a"},
    },
]
"""One object of each kind whose status tells of a queue."""
BARE = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def kind_of_definition(name: str) -> Kind:
    spec = DEFINITIONS[name]["spec"]
    return KINDS[spec["group"], spec["names"]["kind"]]


def schema_of(name: str) -> Content:
    (version,) = DEFINITIONS[name]["spec"]["versions"]
    found: Content = version["schema"]["openAPIV3Schema"]
    return found


def examples() -> list[Content]:
    """Return the objects of these kinds in examples and cases, as they are written."""
    paths = [*(ROOT / "configs" / "examples").rglob("*.yaml")]
    paths += (ROOT / "tests" / "scenarios" / "cases").glob("koordinator-*/manifests.yaml")
    return [
        one
        for one in documents(*sorted(paths))
        if one
        and one.get("kind") in PATHS
        and one["apiVersion"].partition("/")[0]
        == DEFINITIONS[OF_PATHS[one["kind"]]]["spec"]["group"]
    ]


def problems(schema: Content, value: Any, path: str = "$") -> Iterator[str]:
    """Yield how a value differs from a structural schema; what would be pruned differs, too."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str):
            yield f"{path}: neither a number nor a string"
        return
    expected = _PYTHON[schema["type"]]
    if not isinstance(value, expected):
        yield f"{path}: no {schema['type']}"
        return
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from problems(schema["items"], item, f"{path}[{index}]")
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: none of {', '.join(schema['enum'])}"
    if isinstance(value, int) and value < schema.get("minimum", value):
        yield f"{path}: less than {schema['minimum']}"
    if not isinstance(value, dict) or path == "$.metadata":
        return
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    yield from (
        f"{path}.{name}: missing" for name in schema.get("required", ()) if name not in value
    )
    for name, item in value.items():
        if name in known or others is not None:
            yield from problems(known.get(name, others), item, f"{path}.{name}")
        elif not schema.get(_OPEN):
            yield f"{path}.{name}: not known"


_OPEN = "x-kubernetes-preserve-unknown-fields"
_PYTHON: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
}


def schemas(schema: Content, path: str = "$") -> Iterator[tuple[str, Content]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from schemas(schema[name], f"{path}[]")


# The schema ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_schema_is_structural(name: str) -> None:
    for path, schema in schemas(schema_of(name)):
        assert "type" in schema or schema.get("x-kubernetes-int-or-string"), path
        assert ("properties" in schema) <= (schema.get("type") == "object"), path
        assert ("items" in schema) == (schema.get("type") == "array"), path
        assert not {"$ref", "default", "uniqueItems", "oneOf"} & schema.keys(), path


@pytest.mark.parametrize("name", DEFINITIONS)
def test_groups_of_kubernetes_are_approved(name: str) -> None:
    definition = DEFINITIONS[name]
    if definition["spec"]["group"].endswith(".k8s.io"):
        approval = definition["metadata"]["annotations"]["api-approved.kubernetes.io"]
        assert approval.startswith("https://github.com/")


def unlike(type_: Any, schema: Content | None, path: str) -> Iterator[str]:
    """Yield what a struct reads that a schema does not have, or has otherwise."""
    if schema is None:
        yield f"{path}: not in the schema"
        return
    if schema.get(_OPEN):
        return
    origin = typing.get_origin(type_)
    arguments = [one for one in typing.get_args(type_) if one is not type(None)]
    if origin in (types.UnionType, typing.Union) and set(arguments) == {int, str}:
        if not schema.get("x-kubernetes-int-or-string"):
            yield f"{path}: it is a number or a string"
    elif origin in (types.UnionType, typing.Union):
        yield from unlike(arguments[0], schema, path)
    elif type_ is Quantity:
        if not schema.get("x-kubernetes-int-or-string"):
            yield f"{path}: a quantity is a number or a string"
    elif origin is tuple:
        yield from unlike(arguments[0], schema.get("items"), f"{path}[]")
    elif origin is dict:
        yield from unlike(arguments[1], schema.get("additionalProperties"), f"{path}.*")
    elif origin is typing.Literal:
        if not set(arguments) <= set(schema.get("enum", ())):
            yield f"{path}: {schema.get('enum')} for {arguments}"
    elif type_ in (str, int, float, bool):
        expected = {str: "string", int: "integer", float: "number", bool: "boolean"}[type_]
        if schema.get("type") != expected:
            yield f"{path}: {schema.get('type')} for {expected}"
    else:
        hints = typing.get_type_hints(type_)
        for info in msgspec.structs.fields(type_):
            name = info.encode_name
            inner = schema.get("properties", {}).get(name)
            if name == "metadata":
                continue
            yield from unlike(hints[info.name], inner, f"{path}.{name}")
            if info.required and name not in schema.get("required", ()):
                yield f"{path}.{name}: required by who reads it"


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_schema_has_every_field_that_is_read(name: str) -> None:
    kind = kind_of_definition(name)
    assert list(unlike(kind.type, schema_of(name), kind.name)) == []


def test_statuses_are_subresources_where_there_are_any() -> None:
    for name, definition in DEFINITIONS.items():
        (version,) = definition["spec"]["versions"]
        has = "status" in schema_of(name)["properties"]
        assert ("status" in version.get("subresources", {})) == has, name
        assert version["name"] in kind_of_definition(name).versions


def test_examples_are_as_the_schema_says() -> None:
    assert {one["kind"] for one in examples()} == set(PATHS)
    for one in examples():
        assert list(problems(schema_of(OF_PATHS[one["kind"]]), one)) == [], one


def test_queues_are_as_the_schema_says() -> None:
    for one in QUEUES:
        kind = KINDS[one["apiVersion"].partition("/")[0], one["kind"]]
        assert list(problems(schema_of(f"{kind.plural}.{kind.group}"), one)) == [], one


# The server ------------------------------------------------------------------------------------


def collection_of(content: Content) -> str:
    group, _, version = content["apiVersion"].partition("/")
    kind = KINDS[group, content["kind"]]
    space = "/namespaces/default" if kind.namespaced else ""
    return f"/apis/{group}/{version}{space}/{kind.plural}"


def test_what_is_created_through_them_is_what_is_read() -> None:
    with serving(ServedCluster(without=GROUPS)) as face:
        client = Client(face.server.url)
        assert {client.get(path).code for path in PATHS.values()} == {404}
        for definition in DEFINITIONS.values():
            assert client.post(BARE, definition).code == 201
        for definition in client.get(BARE).json["items"]:
            conditions = {c["type"]: c["status"] for c in definition["status"]["conditions"]}
            assert conditions == {"NamesAccepted": "True", "Established": "True"}
        seen = set()
        for one in [*examples(), *QUEUES]:
            if (name := (one["apiVersion"], one["kind"], one["metadata"]["name"])) in seen:
                continue
            seen.add(name)
            path = collection_of(one)
            one = {**one, "metadata": {"name": one["metadata"]["name"]}}
            assert client.post(path, one).code == 201
            found = client.get(f"{path}/{one['metadata']['name']}").json
            group = one["apiVersion"].partition("/")[0]
            read = decode_object(KINDS[group, one["kind"]], found)
            again = decode_object(KINDS[group, one["kind"]], one)
            assert read.spec == again.spec  # type: ignore[union-attr]


def applied(made: Stage) -> None:
    """Define the kinds; they are known from now on."""
    for definition in DEFINITIONS.values():
        resource = made.cluster.resources.of_kind(
            "apiextensions.k8s.io", "CustomResourceDefinition"
        )
        assert resource is not None
        made.cluster.create_content(resource, definition)
    made.cluster.settle()


def wrong(made: Stage, kind: str) -> list[str]:
    """Return how the only object of a kind differs from its schema."""
    name = OF_PATHS[kind]
    resource = made.cluster.resources.of_kind(DEFINITIONS[name]["spec"]["group"], kind)
    assert resource is not None
    (record,) = made.cluster.records(resource).values()
    content = msgspec.json.decode(msgspec.json.encode(record.content))
    assert "status" in content
    return list(problems(schema_of(name), content))


async def test_what_the_scheduler_writes_is_as_the_schema_says() -> None:
    cluster = ServedCluster(without=GROUPS)
    nodes = [make_node(f"n{i}", labels={"rack": "ab"[i % 2]}) for i in range(4)]
    async with stage(nodes, cluster=cluster) as made:
        applied(made)
        await made.start()
        gang = make_gang("g", 2)
        made.create(make_network(rack="rack"), gang)
        made.create(*(make_pod(f"g-{i}", gang="g") for i in range(2)))
        await made.run_out()
        assert len(made.placements()) == 2
        assert wrong(made, "PodGroup") == wrong(made, "ClusterNetworkTopology") == []


async def test_what_is_written_of_queues_is_as_the_schema_says() -> None:
    async with stage([make_node("n", gpu=8)], cluster=ServedCluster(without=GROUPS)) as made:
        applied(made)
        await made.start()
        made.create(*(make_object(one) for one in QUEUES[:3]))
        made.create(
            make_pod("v", "1", None, annotations={"scheduling.volcano.sh/queue-name": "a"}, gpu=1),
            make_pod("k", "1", None, labels={"kai.scheduler/queue": "a"}, gpu=1),
            make_pod("q", "1", None, labels={"quota.scheduling.koordinator.sh/name": "a"}),
        )
        await made.run_out()
        assert len(made.placements()) == 3
        for one in QUEUES[:3]:
            group = one["apiVersion"].partition("/")[0]
            resource = made.cluster.resources.of_kind(group, one["kind"])
            assert resource is not None
            (record,) = made.cluster.records(resource).values()
            content = msgspec.json.decode(msgspec.json.encode(record.content))
            assert "status" in content
            name = f"{resource.plural}.{group}"
            assert list(problems(schema_of(name), content)) == []


async def test_a_cluster_without_nodes_has_a_network_without_nodes() -> None:
    cluster = ServedCluster(without=GROUPS)
    async with stage(cluster=cluster) as made:
        applied(made)
        await made.start()
        made.create(make_network(rack="rack"))
        await made.run_out()
        assert wrong(made, "ClusterNetworkTopology") == []


def test_a_status_that_is_none_is_noticed() -> None:
    schema = schema_of(NETWORK)
    domain = {"topologyInfo": {"topologyLayer": "rack"}, "nodeNum": "1", "more": 1}
    found = list(problems(schema["properties"]["status"], {"detailStatus": [domain]}))
    assert found == [
        "$.detailStatus[0].topologyInfo.topologyName: missing",
        "$.detailStatus[0].nodeNum: no integer",
        "$.detailStatus[0].more: not known",
    ]
