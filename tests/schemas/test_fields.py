"""Unknown fields and wrong types: found in every kind, with the position and the right name."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.objects import KINDS, DecodeError, Kind, decode_json
from bayplan.cluster.apiserver import ServedCluster
from bayplan.cluster.apiserver.loading import load_into
from bayplan.cluster.manifests import load_manifests
from bayplan.errors import InputError
from bayplan.schemas import field_problems
from bayplan.schemas.catalog import ListOf, MapOf, RecordType, Type, record_of
from bayplan.schemas.checkers import ItemBudget, checker_of
from bayplan.schemas.fieldcheck import check_fields
from bayplan.schemas.problems import Walk, record_problems

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
VERSIONS = [
    (f"{kind.group}/{version}".lstrip("/"), kind)
    for kind in KINDS.values()
    for version in kind.versions
    if (kind.name, version) != ("DeviceTaintRule", "v1alpha3")
]


SHARED = (
    "PodGroup.status.phase",
    "PodGroup.status.running",
    "PodGroup.status.succeeded",
    "PodGroup.status.failed",
    "PodGroup.spec.workloadRef",
    "PodGroup.spec.parentCompositePodGroupName",
    ".config[].requests",
    ".config[].source",
    ".exactly.name",
    ".firstAvailable[].adminAccess",
)
"""Fields that bayplan's types have because they serve several of Kubernetes' types."""


def names(found: Any) -> str:
    return f"{found[0]} {found[1].name}"


def records(type_: Type | None, seen: dict[str, RecordType]) -> dict[str, RecordType]:
    """Collect the records that a type holds."""
    if isinstance(type_, ListOf):
        return records(type_.items, seen)
    if isinstance(type_, MapOf):
        return records(type_.values, seen)
    if isinstance(type_, RecordType) and type_.name not in seen:
        seen[type_.name] = type_
        for field in type_.fields.values():
            records(field.type, seen)
    return seen


def load(folder: Path, text: str) -> list[str]:
    """Load a manifest; return its notes."""
    (folder / "m.yaml").write_text(text)
    return load_manifests([str(folder / "m.yaml")]).notes()


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as raised:
        load(folder, text)
    return str(raised.value).removeprefix(f"{folder}/")


def pod(spec: str = "", container: str = "") -> str:
    return (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n"
        f"  containers: [{{name: c, image: i{container}}}]\n{spec}"
    )


# What is known -----------------------------------------------------------------------------------


@pytest.mark.parametrize("found", VERSIONS, ids=names)
def test_a_misspelt_field_of_every_kind_is_refused(found: tuple[str, Kind]) -> None:
    api_version, kind = found
    record = record_of(api_version, kind.name)
    assert record is not None, "its fields belong in schemas/ecosystem.json"
    fields = [name for name in record.fields if name not in ("apiVersion", "kind", "status")]
    for field in fields:
        content = {"apiVersion": api_version, "kind": kind.name, f"{field}x": {}}
        with pytest.raises(DecodeError) as raised:
            check_fields(kind, content)
        assert raised.value.path == f"$.{field}x"
        assert f'did you mean "{field}"?' in raised.value.message


def test_every_field_of_every_type_is_suggested_for_its_misspelling() -> None:
    seen: dict[str, RecordType] = {}
    for api_version, kind in VERSIONS:
        records(record_of(api_version, kind.name), seen)
    assert len(seen) > 400
    for record in seen.values():
        for field in record.fields:
            [problem] = record_problems(record, {f"{field[0].upper()}{field[1:]}_": None})
            assert problem.certain, problem
            assert f'"{field}"' in problem.message, problem


def test_the_types_agree_with_what_bayplan_reads() -> None:
    """Every field that bayplan's own types have is a field of the kind."""
    missing = []
    for api_version, kind in VERSIONS:
        record = record_of(api_version, kind.name)
        assert record is not None
        info = msgspec.inspect.type_info(kind.type)
        assert isinstance(info, msgspec.inspect.StructType)
        if "v1beta1" in api_version and kind.whole:
            continue  # read after its conversion to v1
        missing += list(_missing(info, record, f"{api_version} {kind.name}"))
    assert [path for path in missing if not path.endswith(SHARED)] == []


def _missing(node: Any, type_: Type, path: str) -> Iterator[str]:
    if isinstance(node, msgspec.inspect.UnionType):
        node = next(t for t in node.types if not isinstance(t, msgspec.inspect.NoneType))
    if isinstance(node, msgspec.inspect.StructType) and isinstance(type_, RecordType):
        for field in node.fields:
            if field.encode_name not in type_.fields:
                yield f"{path}.{field.encode_name}"
            else:
                known = type_.fields[field.encode_name].type
                yield from _missing(field.type, known, f"{path}.{field.encode_name}")
    elif isinstance(node, msgspec.inspect.VarTupleType) and isinstance(type_, ListOf):
        yield from _missing(node.item_type, type_.items, f"{path}[]")
    elif isinstance(node, msgspec.inspect.DictType) and isinstance(type_, MapOf):
        yield from _missing(node.value_type, type_.values, f"{path}{{}}")


@pytest.mark.parametrize(
    "path",
    [
        # Templates of the chart are no manifests.
        *sorted(p for p in (ROOT / "configs").rglob("*.yaml") if p.parent.name != "templates"),
        *sorted((ROOT / "tests").rglob("cases/*/*.yaml")),
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_files_that_people_copy_hold_no_unknown_field(path: Path) -> None:
    for content in yaml.load_all(path.read_text(), yaml.CSafeLoader):
        if isinstance(content, dict) and {"apiVersion", "kind"} <= content.keys():
            found = field_problems(content["apiVersion"], content["kind"], content)
            assert found == []


# Notes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (
            0,
            "m.yaml:4:15 (document 1): Node n0: $.spec.taint: unknown field; did you mean "
            '"taints"?',
        ),
        (
            1,
            "m.yaml:3:33 (document 1): Pod p: $.metadata.annotation: unknown field; did you mean "
            '"annotations"? (and there is $.spec.nodeselector, $.spec.toleration, '
            "$.spec.containers[0].resource)",
        ),
        (
            2,
            "m.yaml:4:62 (document 1): Pod q: $.spec.containers[0].resources.request: unknown "
            'field; did you mean "requests"?',
        ),
        (
            3,
            "m.yaml:4:17 (document 1): Deployment d: $.spec.replica: unknown field; did you mean "
            '"replicas"?',
        ),
    ],
)
def test_misspelt_fields_are_refused_with_position_and_right_name(
    tmp_path: Path, number: int, expected: str
) -> None:
    document = (HERE / "typos.yaml").read_text().split("---\n")[number]
    assert refusal(tmp_path, document) == expected


@pytest.mark.parametrize("name", ["nodeselector", "node_selector", "NodeSelector", "nodeSelectors"])
def test_the_ways_of_misspelling_lead_to_the_same_name(tmp_path: Path, name: str) -> None:
    assert f'$.spec.{name}: unknown field; did you mean "nodeSelector"?' in refusal(
        tmp_path, pod(f"  {name}: {{a: b}}\n")
    )


@pytest.mark.parametrize(
    ("manifest", "path", "expected"),
    [
        (pod("  tolerations: {a: b}\n"), "$.spec.tolerations", "expected a list, got a mapping"),
        (pod("  tolerations: [a]\n"), "$.spec.tolerations[0]", "expected a mapping, got a string"),
        (pod("  dnsConfig: [a]\n"), "$.spec.dnsConfig", "expected a mapping, got a list"),
        (pod("  dnsPolicy: true\n"), "$.spec.dnsPolicy", "expected a string, got a boolean"),
        (
            pod(container=", env: [{name: a, value: 1}]"),
            "$.spec.containers[0].env[0].value",
            "expected a string, got an integer",
        ),
        (
            pod(container=", ports: [{containerPort: 'x'}]"),
            "$.spec.containers[0].ports[0].containerPort",
            "expected an integer, got a string",
        ),
        (
            pod("  nodeSelector: {a/b: true}\n"),
            '$.spec.nodeSelector["a/b"]',
            "expected a string, got a boolean",
        ),
    ],
)
def test_values_of_the_wrong_type_are_refused(
    tmp_path: Path, manifest: str, path: str, expected: str
) -> None:
    told = refusal(tmp_path, manifest)
    assert f"Pod p: {path}: {expected}" in told
    assert told.startswith("m.yaml:")


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        (
            "{requests: {cpus: 1}}",
            '$.spec.containers[0].resources.requests["cpus"]: expected cpu, ephemeral-storage, '
            'memory or hugepages-<size>, or a name with a domain; did you mean "cpu"?',
        ),
        (
            "{limits: {gpu: 1}}",
            '$.spec.containers[0].resources.limits["gpu"]: expected cpu, ephemeral-storage, memory '
            "or hugepages-<size>, or a name with a domain, such as nvidia.com/gpu",
        ),
    ],
)
def test_resources_that_kubernetes_does_not_know_are_refused(
    tmp_path: Path, requests: str, expected: str
) -> None:
    assert expected in refusal(tmp_path, pod(container=f", resources: {requests}"))


def test_resources_of_kubernetes_and_of_others_are_accepted(tmp_path: Path) -> None:
    known = "{cpu: 1, memory: 1Gi, ephemeral-storage: 1Gi, hugepages-2Mi: 2Mi, nvidia.com/gpu: 1}"
    assert load(tmp_path, pod(container=f", resources: {{limits: {known}}}")) == []


# What may be newer -------------------------------------------------------------------------------


def test_a_field_that_resembles_nothing_is_ignored_with_a_note(tmp_path: Path) -> None:
    two = (
        pod("  powerBudget: {watts: 3}\n") + "---\n" + pod("  powerBudget: 4\n").replace("p}", "q}")
    )
    [note] = load(tmp_path, two)
    assert note.endswith(
        "m.yaml:6:16 (document 1): Pod: $.spec.powerBudget: unknown field, ignored; a newer "
        "Kubernetes may know it"
    )


def test_a_note_names_the_nearest_field_where_there_is_one(tmp_path: Path) -> None:
    [note] = load(tmp_path, pod("  node: n1\n"))
    assert 'unknown field (did you mean "nodeName"?), ignored' in note


def test_a_note_on_another_project_s_kind_names_its_group(tmp_path: Path) -> None:
    [note] = load(
        tmp_path,
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: g}\n"
        "spec: {minMember: 2, flavour: x}\n",
    )
    assert (
        "$.spec.flavour: unknown field, ignored; a newer scheduling.volcano.sh may know it" in note
    )


def test_an_unknown_field_of_a_kind_that_is_known_completely_is_refused(tmp_path: Path) -> None:
    manifest = (
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: c}\n"
        "spec: {powerBudget: 3}\n"
    )
    assert "DeviceClass c: $.spec.powerBudget: unknown field" in refusal(tmp_path, manifest)


def test_a_status_may_be_of_a_newer_cluster_but_for_what_a_node_has(tmp_path: Path) -> None:
    [note] = load(tmp_path, pod() + "status: {phase: Running, qosClasses: x}\n")
    assert "$.status.qosClasses: unknown field" in note
    node = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nstatus: {allocatble: {cpu: 8}}\n"
    assert '$.status.allocatble: unknown field; did you mean "allocatable"?' in refusal(
        tmp_path, node
    )


def test_what_a_cluster_has_accepted_is_not_refused(tmp_path: Path) -> None:
    spec = {"tolerationz": [], "containers": [{"name": "c", "image": "i"}]}
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}]
    archive = tmp_path / "cluster.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pods.json", json.dumps({"kind": "List", "apiVersion": "v1", "items": pods}))
    manifests = load_manifests([str(archive)])
    assert [obj.metadata.name for obj in manifests.objects] == ["p"]
    assert manifests.notes() == []
    kind = KINDS["", "Pod"]
    assert decode_json(kind, "v1", json.dumps(pods[0]).encode()).metadata.name == "p"


def test_ignored_fields_are_not_served(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(pod("  powerBudget: 3\n  hostname: h\n"))
    cluster = ServedCluster()
    load_into(cluster, load_manifests([str(tmp_path / "m.yaml")], in_full=True))
    resource = cluster.resources.named("", "pods")
    assert resource is not None
    [record] = cluster.records(resource).values()
    assert record.content["spec"]["hostname"] == "h"
    assert "powerBudget" not in record.content["spec"]


def test_null_means_absent() -> None:
    content = {"apiVersion": "v1", "kind": "Pod", "metadata": None, "spec": {"containers": None}}
    assert field_problems("v1", "Pod", content) == []


def test_unknown_kinds_are_accepted() -> None:
    assert field_problems("example.com/v1", "Thing", {"anything": [1]}) == []


@pytest.mark.parametrize("misspelt", [{}, {"toleration": []}])
def test_values_repeated_by_aliases_are_not_checked_forever(misspelt: dict[str, Any]) -> None:
    env = [{"name": "a", "value": "b"}] * 10_000
    containers = [{"name": "c", "env": env}] * 10_000
    spec = {**misspelt, "containers": containers, "initContainers": containers}
    content = {"apiVersion": "v1", "kind": "Pod", "spec": spec}
    [problem, *_] = field_problems("v1", "Pod", content)
    assert problem.message == "too large" or problem.path == "$.spec.toleration"


# The fast path -----------------------------------------------------------------------------------

NAMES = [
    *("name", "spec", "containers", "env", "value", "labels", "metadata", "resources"),
    *("requests", "cpu", "affinity", "tolerations", "key", "status", "bogus"),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.floats(0, 1) | st.sampled_from(["", "a"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(VALUES)
def test_the_fast_checker_agrees_with_the_walk(content: Any) -> None:
    for kind in ("Pod", "Node", "ConfigMap"):
        record = record_of("v1", kind)
        assert record is not None
        assert checker_of(record)(content, ItemBudget()) == (
            not list(Walk().find(record, content, ()))
        )
