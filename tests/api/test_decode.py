"""From plain mappings to typed objects: what is read, what is ignored, what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from bayplan.api import (
    KINDS,
    ClusterNetworkTopology,
    Deployment,
    Job,
    Node,
    Pod,
    PodDisruptionBudget,
    PodGroup,
    PriorityClass,
    Quantity,
    Taint,
    decode_object,
    kind_of,
)
from bayplan.api.objects import DecodeError, decode_part
from bayplan.api.pod import NodeAffinity
from bayplan.inputs.jsontext import parse_json
from bayplan.inputs.limits import FILE, Limits
from bayplan.inputs.yamltext import parse_yaml

Content = dict[str, Any]
_BY_NAME = {kind.name: kind for kind in reversed(KINDS.values())}
AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERENCE = "preferredDuringSchedulingIgnoredDuringExecution"


def decode(kind: str, content: Content) -> Any:
    return decode_object(_BY_NAME[kind], content)


def refusal(kind: str, content: Content) -> tuple[str, str]:
    with pytest.raises(DecodeError) as caught:
        decode(kind, content)
    return caught.value.path, caught.value.message


def pod(**spec: Any) -> Content:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}}


def named(**spec: Any) -> Content:
    return {"metadata": {"name": "x"}, "spec": spec}


TEMPLATE: Content = {
    "metadata": {"labels": {"app": "x"}},
    "spec": {"containers": [{"name": "c"}]},
}


# What is read ----------------------------------------------------------------------------


def test_a_pod_is_read_with_all_that_scheduling_needs() -> None:
    content = pod(
        nodeSelector={"zone": "a"},
        tolerations=[{"key": "k", "operator": "Exists"}],
        schedulingGates=[{"name": "gate"}],
        priority=7,
        initContainers=[{"name": "i", "restartPolicy": "Always"}],
    )
    content["spec"]["containers"][0] = {
        "name": "c",
        "image": "i:1",
        "resources": {"requests": {"cpu": 8, "memory": "1.5Gi"}, "limits": {"cpu": "8000m"}},
        "ports": [{"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"}],
    }
    found = decode("Pod", content)
    assert isinstance(found, Pod)
    main = found.spec.containers[0]
    assert main.resources.requests == {"cpu": Quantity("8"), "memory": Quantity("1536Mi")}
    assert main.resources.limits["cpu"] == main.resources.requests["cpu"]
    assert (main.ports[0].host_port, main.ports[0].host_ip) == (8080, "10.0.0.1")
    assert found.spec.node_selector == {"zone": "a"}
    assert found.spec.tolerations[0].operator == "Exists"
    assert found.spec.scheduling_gates[0].name == "gate"
    assert found.spec.priority == 7
    assert found.spec.init_containers[0].restart_policy == "Always"


def test_a_pod_has_the_defaults_of_the_api_server() -> None:
    found = decode("Pod", pod())
    assert found.spec.scheduler_name == "default-scheduler"
    assert found.spec.termination_grace_period_seconds == 30
    assert found.status.phase == "Pending"


def test_a_node_is_read() -> None:
    content = {
        "metadata": {"name": "n", "labels": {"a": "b"}},
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "7500m"},
            "images": [{"names": ["i:1"], "sizeBytes": 5}],
        },
    }
    found = decode("Node", content)
    assert isinstance(found, Node)
    assert found.key == "n"
    assert found.spec.unschedulable
    assert found.spec.taints == (Taint("k", "NoSchedule"),)
    assert found.status.allocatable["cpu"].milli == 7500
    assert found.status.images[0].size_bytes == 5


def test_a_pod_group_is_read() -> None:
    found = decode("PodGroup", named(minMember=4, scheduleTimeoutSeconds=300))
    assert isinstance(found, PodGroup)
    assert found.spec.min_member == 4
    assert found.spec.schedule_timeout_seconds == 300
    assert decode("PodGroup", named()).spec.min_member == 1


def test_a_cluster_network_topology_is_read() -> None:
    layers = [
        {"topologyLayer": "Spine", "labelKey": ["spine"]},
        {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "Spine"},
    ]
    found = decode("ClusterNetworkTopology", named(networkTopologySpec=layers))
    assert isinstance(found, ClusterNetworkTopology)
    first, second = found.spec.network_topology_spec
    assert (first.topology_layer, first.label_key) == ("Spine", ("spine",))
    assert (second.parent_topology_layer, second.label_key) == ("Spine", ())


def test_workloads_are_read() -> None:
    job = decode("Job", named(parallelism=2, completions=4, template=TEMPLATE))
    assert isinstance(job, Job)
    assert (job.spec.parallelism, job.spec.completions) == (2, 4)
    selector = {"matchLabels": {"app": "x"}}
    deployment = decode("Deployment", named(replicas=3, selector=selector, template=TEMPLATE))
    assert isinstance(deployment, Deployment)
    assert deployment.spec.replicas == 3
    assert deployment.spec.template.metadata.labels == {"app": "x"}


def test_policies_are_read() -> None:
    found = decode("PriorityClass", {"metadata": {"name": "high"}, "value": 1000})
    assert isinstance(found, PriorityClass)
    assert found.value == 1000
    budget = decode("PodDisruptionBudget", named(minAvailable="50%"))
    assert isinstance(budget, PodDisruptionBudget)
    assert budget.spec.min_available == "50%"


@pytest.mark.parametrize("kind", sorted(_BY_NAME))
def test_each_kind_knows_its_type(kind: str) -> None:
    content: Content = {"metadata": {"name": "x"}, "spec": {}}
    if kind == "Pod":
        content = pod()
    if kind in ("Job", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"):
        content["spec"] = {"template": TEMPLATE, "selector": {}}
    if kind in ("PriorityClass", "WorkloadPriorityClass"):
        content["value"] = 1
    if kind == "LocalQueue":
        content["spec"] = {"clusterQueue": "team"}
    if kind == "ResourceSlice":
        content["spec"] = {"driver": "a.b", "pool": {"name": "p"}, "nodeName": "n"}
    if kind == "StorageClass":
        content["provisioner"] = "example.com/disks"
    if kind == "CSIStorageCapacity":
        content["storageClassName"] = "fast"
    if kind.startswith("PersistentVolume"):
        content["spec"] = {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "resources": {"requests": {"storage": "1Gi"}},
        }
    if kind == "ElasticQuotaProfile":
        content["spec"] = {"quotaName": "root", "nodeSelector": {}}
    if kind == "ElasticJob":
        content["spec"] = {"template": TEMPLATE}
    if kind == "PyTorchJob":
        content["spec"] = {"pytorchReplicaSpecs": {"Master": {"template": TEMPLATE}}}
    if kind == "RayCluster":
        content["spec"] = {"headGroupSpec": {"template": TEMPLATE}}
    if kind == "RayJob":
        content["spec"] = {"clusterSelector": {"ray.io/cluster": "c"}}
    if kind == "DeviceTaintRule":
        content["spec"] = {"taint": {"key": "k", "effect": "NoSchedule"}}
    assert kind_of(decode(kind, content)) is _BY_NAME[kind]


# What is lenient -------------------------------------------------------------------------


def test_unknown_fields_are_ignored_as_the_api_server_does() -> None:
    content = pod(dnsPolicy="ClusterFirst", banana=[1])
    content["metadata"]["managedFields"] = [{"x": 1}]
    assert decode("Pod", content) == decode("Pod", pod())


def test_null_means_absent_at_every_depth() -> None:
    content = pod(affinity=None, tolerations=None, priority=None, nodeName=None)
    content["status"] = None
    content["metadata"]["labels"] = {"a": None}
    content["spec"]["containers"][0]["resources"] = {"requests": {"cpu": None}}
    found = decode("Pod", content)
    assert found == decode("Pod", pod())


def test_decoding_does_not_change_what_it_was_given() -> None:
    content = pod(affinity=None, priority=None)
    before = deepcopy(content)
    decode("Pod", content)
    assert content == before


def test_a_missing_namespace_is_default_where_the_kind_has_namespaces() -> None:
    assert decode("Pod", pod()).key == "default/p"
    content = pod()
    content["metadata"]["namespace"] = "team"
    assert decode("Pod", content).key == "team/p"
    assert decode("Node", {"metadata": {"name": "n"}}).metadata.namespace == ""


def test_a_generated_name_is_enough() -> None:
    content = pod()
    content["metadata"] = {"generateName": "p-"}
    assert decode("Pod", content).metadata.generate_name == "p-"


# What has a wrong type -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "path", "message"),
    [
        ({"containers": {}}, "$.spec.containers", "expected a list, got a mapping"),
        ({"containers": "x"}, "$.spec.containers", "expected a list, got a string"),
        ({"containers": ["x"]}, "$.spec.containers[0]", "expected a mapping, got a string"),
        ({"nodeName": 3}, "$.spec.nodeName", "expected a string, got an integer"),
        ({"nodeSelector": {"a": 1}}, '$.spec.nodeSelector["a"]', "expected a string, got an integ"),
        ({"nodeSelector": ["a"]}, "$.spec.nodeSelector", "expected a mapping, got a list"),
        ({"overhead": {"cpu": []}}, '$.spec.overhead["cpu"]', "expected a quantity, got a list"),
        ({"overhead": {"cpu": {}}}, '$.spec.overhead["cpu"]', "expected a quantity, got a mapping"),
        ({"schedulingGates": [{}]}, "$.spec.schedulingGates[0]", 'required field "name" is miss'),
        ({"tolerations": [{"key": []}]}, "$.spec.tolerations[0].key", "expected a string, got a l"),
    ],
)
def test_a_wrong_type_names_its_path_and_what_was_expected(
    spec: Content, path: str, message: str
) -> None:
    found = refusal("Pod", pod(**spec))
    assert found[0] == path
    assert message in found[1]


@pytest.mark.parametrize(
    "spec",
    [{"priority": "7"}, {"priority": 1.5}, {"priority": True}, {"hostNetwork": 1}],
)
def test_types_are_named_in_plain_words(spec: Content) -> None:
    message = refusal("Pod", pod(**spec))[1]
    words = set(re.findall(r"\w+", message))
    assert not words & {"int", "float", "bool", "str", "dict", "NoneType"}, message


@pytest.mark.parametrize("field", ["labels", "annotations"])
@pytest.mark.parametrize("value", [1, True, 1.5, [], {}])
def test_a_label_that_is_not_text_names_its_key(field: str, value: object) -> None:
    content = pod()
    content["metadata"][field] = {"good": "x", "example.com/bad": value}
    path, message = refusal("Pod", content)
    assert path == f'$.metadata.{field}["example.com/bad"]'
    assert message.startswith("expected a string")


def test_a_key_that_is_not_text_is_named_without_jargon() -> None:
    content = pod()
    content["metadata"]["labels"] = {True: "x"}
    path, message = refusal("Pod", content)
    assert path == "$.metadata.labels"
    assert "`" not in message


@pytest.mark.parametrize("field", ["requests", "limits"])
def test_a_bad_quantity_names_its_resource(field: str) -> None:
    resources = {field: {"memory": "1Gi", "cpu": "8 cores"}}
    content = pod(containers=[{"name": "c"}, {"name": "d", "resources": resources}])
    path, message = refusal("Pod", content)
    assert path == f'$.spec.containers[1].resources.{field}["cpu"]'
    assert message.endswith('got "8 cores"')


@pytest.mark.parametrize("field", ["capacity", "allocatable"])
def test_a_bad_quantity_of_a_node_names_its_resource(field: str) -> None:
    path, _ = refusal("Node", {"metadata": {"name": "n"}, "status": {field: {"cpu": "x"}}})
    assert path == f'$.status.{field}["cpu"]'


@pytest.mark.parametrize(
    ("spec", "path", "allowed"),
    [
        ({"tolerations": [{"operator": "exists"}]}, "$.spec.tolerations[0].operator", "Exists"),
        ({"preemptionPolicy": "Always"}, "$.spec.preemptionPolicy", "Never"),
        (
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "Do", "maxSkew": 1}]},
            "$.spec.topologySpreadConstraints[0].whenUnsatisfiable",
            "DoNotSchedule",
        ),
        (
            {"containers": [{"name": "c", "ports": [{"protocol": "tcp"}]}]},
            "$.spec.containers[0].ports[0].protocol",
            "TCP",
        ),
    ],
)
def test_a_value_outside_of_an_enumeration_is_refused(
    spec: Content, path: str, allowed: str
) -> None:
    found = refusal("Pod", pod(**spec))
    assert found[0] == path
    assert "is not one of the allowed values" in found[1]
    assert allowed in found[1], "the message should say what is allowed"


@pytest.mark.parametrize(
    ("kind", "content", "field"),
    [
        ("PriorityClass", {"metadata": {"name": "x"}}, "value"),
        ("Node", {"metadata": {"name": "n"}, "spec": {"taints": [{"key": "k"}]}}, "effect"),
        ("ClusterNetworkTopology", named(networkTopologySpec=[{}]), "topologyLayer"),
    ],
)
def test_a_missing_field_is_named(kind: str, content: Content, field: str) -> None:
    assert refusal(kind, content)[1] == f'the required field "{field}" is missing'


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
@pytest.mark.parametrize(
    ("kind", "path"),
    [("Pod", "priority"), ("PodGroup", "minMember"), ("Pod", "terminationGracePeriodSeconds")],
)
@pytest.mark.parametrize("parse", [parse_json, lambda text, limits: next(parse_yaml(text, limits))])
def test_an_integer_beyond_64_bits_is_refused(
    parse: Callable[[str, Limits], Any], kind: str, path: str, value: int
) -> None:
    content = pod(**{path: value}) if kind == "Pod" else named(**{path: value})
    parsed = parse(json.dumps(content), FILE)
    where, message = refusal(kind, parsed)
    assert where == f"$.spec.{path}"
    assert message.startswith("expected an integer")


def test_a_part_of_an_object_is_decoded_by_the_same_rules() -> None:
    terms = {"nodeSelectorTerms": [{"matchFields": None}]}
    assert decode_part(NodeAffinity, {AFFINITY: terms}).required is not None
    with pytest.raises(DecodeError, match="expected a list"):
        decode_part(NodeAffinity, {AFFINITY: {"nodeSelectorTerms": 3}})


# What the API server would refuse --------------------------------------------------------


@pytest.mark.parametrize("name", ["Upper", "under_score", "-x", "x-", "a b", "x\n", "a" * 254, "é"])
def test_an_invalid_name_is_refused(name: str) -> None:
    content = pod()
    content["metadata"]["name"] = name
    path, message = refusal("Pod", content)
    assert path == "$.metadata.name"
    assert "lower-case letters" in message


@pytest.mark.parametrize("metadata", [{}, None, {"name": ""}, {"name": None}])
def test_a_missing_name_is_refused(metadata: Content | None) -> None:
    content = pod()
    content["metadata"] = metadata
    assert refusal("Pod", content) == ("$.metadata", 'the required field "name" is missing')


def test_an_invalid_namespace_is_refused() -> None:
    content = pod()
    content["metadata"]["namespace"] = "Team"
    assert refusal("Pod", content)[0] == "$.metadata.namespace"


@pytest.mark.parametrize("spec", [{}, None, {"containers": []}, {"containers": None}])
def test_a_pod_without_containers_is_refused(spec: Content | None) -> None:
    path, message = refusal("Pod", {"metadata": {"name": "p"}, "spec": spec})
    assert path == "$.spec.containers"
    assert message == "a pod needs at least one container"


@pytest.mark.parametrize(
    ("kind", "content", "path"),
    [
        (
            "Pod",
            pod(containers=[{"name": "c", "resources": {"requests": {"cpu": "-1"}}}]),
            '$.spec.containers[0].resources.requests["cpu"]',
        ),
        (
            "Pod",
            pod(initContainers=[{"name": "c", "resources": {"limits": {"cpu": "-1"}}}]),
            '$.spec.initContainers[0].resources.limits["cpu"]',
        ),
        ("Pod", pod(overhead={"cpu": "-1"}), '$.spec.overhead["cpu"]'),
        ("Pod", pod(resources={"requests": {"cpu": -1}}), '$.spec.resources.requests["cpu"]'),
        ("Pod", pod(resources={"limits": {"cpu": -1}}), '$.spec.resources.limits["cpu"]'),
        (
            "Node",
            {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "-1"}}},
            '$.status.capacity["cpu"]',
        ),
    ],
)
def test_a_negative_amount_is_refused(kind: str, content: Content, path: str) -> None:
    found = refusal(kind, content)
    assert found[0] == path
    assert "0 or more, got -1" in found[1]


def test_a_request_above_its_limit_is_refused() -> None:
    resources = {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}}
    path, message = refusal("Pod", pod(containers=[{"name": "c", "resources": resources}]))
    assert path == '$.spec.containers[0].resources.requests["cpu"]'
    assert message == "2 is more than the limit 1500m"


@pytest.mark.parametrize("port", [-1, 65536])
@pytest.mark.parametrize("field", ["containerPort", "hostPort"])
def test_an_invalid_port_is_refused(field: str, port: int) -> None:
    path, message = refusal("Pod", pod(containers=[{"name": "c", "ports": [{field: port}]}]))
    assert path == f"$.spec.containers[0].ports[0].{field}"
    assert message == f"expected 1 to 65535, got {port}"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"parallelism": -1}, "$.spec.parallelism"),
        ({"parallelism": 10**7}, "$.spec.parallelism"),
        ({"completions": -1}, "$.spec.completions"),
        ({"completions": 10**12}, "$.spec.completions"),
        ({"completionMode": "Indexed"}, "$.spec.completions"),
        ({"completionMode": "indexed"}, "$.spec.completionMode"),
        ({"template": {"spec": {}}}, "$.spec.template.spec.containers"),
    ],
)
def test_an_invalid_job_is_refused(spec: Content, path: str) -> None:
    assert refusal("Job", named(**{"template": TEMPLATE, **spec}))[0] == path


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet"])
@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"replicas": -1}, "$.spec.replicas"),
        ({"replicas": 10**7}, "$.spec.replicas"),
        ({"selector": None}, "$.spec.selector"),
        ({"selector": {"matchLabels": {"app": "y"}}}, "$.spec.template.metadata.labels"),
        (
            {"template": {"metadata": TEMPLATE["metadata"], "spec": {}}},
            "$.spec.template.spec.containers",
        ),
    ],
)
def test_an_invalid_workload_is_refused(kind: str, spec: Content, path: str) -> None:
    good = {"selector": {"matchLabels": {"app": "x"}}, "template": TEMPLATE}
    assert refusal(kind, named(**{**good, **spec}))[0] == path


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"maxSkew": 0}, "maxSkew"),
        ({"topologyKey": ""}, "topologyKey"),
        ({"minDomains": 0}, "minDomains"),
        ({"minDomains": 2, "whenUnsatisfiable": "ScheduleAnyway"}, "minDomains"),
        (
            {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            "labelSelector.matchExpressions[0].values",
        ),
    ],
)
def test_an_invalid_spread_constraint_is_refused(change: Content, field: str) -> None:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    path, _ = refusal("Pod", pod(topologySpreadConstraints=[{**constraint, **change}]))
    assert path == f"$.spec.topologySpreadConstraints[0].{field}"


@pytest.mark.parametrize(
    ("operator", "values"),
    [
        ("In", []),
        ("NotIn", []),
        ("Exists", ["x"]),
        ("DoesNotExist", ["x"]),
        ("Gt", ["x"]),
        ("Gt", ["1", "2"]),
        ("Lt", []),
    ],
)
@pytest.mark.parametrize(
    ("field", "step"),
    [(AFFINITY, ".nodeSelectorTerms[0]"), (PREFERENCE, "[0].preference")],
)
def test_an_invalid_node_affinity_names_its_path(
    operator: str, values: list[str], field: str, step: str
) -> None:
    term = {"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}
    rule: Any = {"nodeSelectorTerms": [term]}
    if field == PREFERENCE:
        rule = [{"weight": 1, "preference": term}]
    path, message = refusal("Pod", pod(affinity={"nodeAffinity": {field: rule}}))
    assert message.startswith(f"operator {operator} takes")
    assert path == f"$.spec.affinity.nodeAffinity.{field}{step}.matchExpressions[0].values"


@pytest.mark.parametrize("field", ["podAffinity", "podAntiAffinity"])
def test_a_pod_affinity_without_topology_key_names_its_path(field: str) -> None:
    rule = {AFFINITY: [{"topologyKey": ""}]}
    path, message = refusal("Pod", pod(affinity={field: rule}))
    assert path == f"$.spec.affinity.{field}.{AFFINITY}[0].topologyKey"
    assert message == "must not be empty"


@pytest.mark.parametrize("weight", [0, -5, 101, 10**30])
def test_an_affinity_weight_outside_of_1_to_100_is_refused(weight: int) -> None:
    node = {PREFERENCE: [{"weight": weight, "preference": {}}]}
    other = {PREFERENCE: [{"weight": weight, "podAffinityTerm": {"topologyKey": "zone"}}]}
    for affinity in ({"nodeAffinity": node}, {"podAffinity": other}, {"podAntiAffinity": other}):
        path, _ = refusal("Pod", pod(affinity=affinity))
        assert path.endswith(f"{PREFERENCE}[0].weight")


def test_plural_names_are_those_of_the_api() -> None:
    plurals = {kind.name: kind.plural for kind in KINDS.values()}
    assert plurals["Pod"] == "pods"
    assert plurals["PriorityClass"] == "priorityclasses"
    assert plurals["ClusterNetworkTopology"] == "clusternetworktopologies"
    assert plurals["DeviceTaintRule"] == "devicetaintrules"


def test_objects_of_an_api_server_may_have_unknown_fields() -> None:
    content = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "c"},
        "spec": {"selectors": [], "fieldOfTomorrow": 1},
    }
    kind = KINDS["resource.k8s.io", "DeviceClass"]
    assert decode_object(kind, content).metadata.name == "c"
