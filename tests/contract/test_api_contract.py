"""What bayplan relies on of a Kubernetes API server.

The embedded cluster's HTTP face and the real control plane have to keep it. With ``--kubeconfig
FILE`` the same tests run against that cluster, in a namespace of their own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.cluster.apiserver.faces import JSON_PATCH, MERGE, STRATEGIC, Client, Face, node, pod

Content = dict[str, Any]

NODES = "/api/v1/nodes"


class Api:
    """An API server under test, with a namespace to work in."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.namespace = f"bayplan-contract-{secrets.token_hex(4)}"
        self.node = f"{self.namespace}-node"
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"

    def in_namespace(self, group_version: str, plural: str) -> str:
        return f"{group_version}/namespaces/{self.namespace}/{plural}"

    def make_pod(self, name: str, **spec: Any) -> Content:
        answer = self.client.post(self.pods, pod(name, schedulerName="bayplan-contract", **spec))
        assert answer.code == 201, answer
        made: Content = answer.json
        return made

    def bind(self, name: str, **meta: Any) -> Any:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, **meta},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.node},
        }
        return self.client.post(f"{self.pods}/{name}/binding", body)


@pytest.fixture
def compact(face: Face | None) -> Callable[[], None]:
    if face is None:
        pytest.skip("only the embedded cluster forgets when it is told to")
    return lambda: face.do(lambda server: server.compact())


@pytest.fixture
def api(client: Client) -> Iterator[Api]:
    api = Api(client)
    made = client.post(
        "/api/v1/namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": api.namespace}},
    )
    assert made.code == 201, made
    assert client.post(NODES, node(api.node)).code == 201
    try:
        yield api
    finally:
        client.delete(api.pods, gracePeriodSeconds=0)
        client.delete(f"{NODES}/{api.node}")
        client.delete(f"/api/v1/namespaces/{api.namespace}")


def test_a_created_object_has_identity_and_version(api: Api) -> None:
    made = api.make_pod("a")
    meta = made["metadata"]
    assert meta["uid"]
    assert int(meta["resourceVersion"]) > 0
    assert meta["creationTimestamp"].endswith("Z")
    assert made["status"]["phase"] == "Pending"
    assert made["spec"]["terminationGracePeriodSeconds"] == 30
    again = api.client.post(api.pods, pod("a"))
    assert again.code == 409
    assert again.json["reason"] == "AlreadyExists"
    assert again.json["message"] == 'pods "a" already exists'


def test_what_is_not_there_is_not_found(api: Api) -> None:
    for answer in (
        api.client.get(f"{api.pods}/none"),
        api.client.delete(f"{api.pods}/none"),
        api.client.patch(f"{api.pods}/none", {}),
    ):
        assert answer.code == 404
        assert answer.json["kind"] == "Status"
        assert answer.json["reason"] == "NotFound"
        assert answer.json["message"] == 'pods "none" not found'
    assert api.client.get("/apis/nobody.example/v1/things").code == 404


def test_a_binding_gives_a_pod_its_node_once(api: Api) -> None:
    made = api.make_pod("a")
    wrong = api.bind("a", uid="11111111-2222-3333-4444-555555555555")
    assert (wrong.code, wrong.json["reason"]) == (409, "Conflict")
    assert api.bind("a", resourceVersion="1").code == 409
    bound = api.bind("a", uid=made["metadata"]["uid"], annotations={"example.com/gpus": "0,1"})
    assert (bound.code, bound.json["status"]) == (201, "Success")
    found = api.client.get(f"{api.pods}/a").json
    assert found["spec"]["nodeName"] == api.node
    assert found["metadata"]["annotations"]["example.com/gpus"] == "0,1"
    conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
    assert conditions["PodScheduled"] == "True"
    again = api.bind("a")
    assert (again.code, again.json["reason"]) == (409, "Conflict")
    assert f'pod a is already assigned to node "{api.node}"' in again.json["message"]
    assert api.bind("none").code == 404


def test_an_update_of_an_old_version_is_a_conflict(api: Api) -> None:
    made = api.make_pod("a")
    path = f"{api.pods}/a"
    changed = api.client.patch(path, {"metadata": {"labels": {"x": "1"}}})
    assert int(changed.version) > int(made["metadata"]["resourceVersion"])
    stale = api.client.put(path, made)
    assert (stale.code, stale.json["reason"]) == (409, "Conflict")
    assert stale.json["message"] == (
        'Operation cannot be fulfilled on pods "a": the object has been modified; please apply '
        "your changes to the latest version and try again"
    )
    guarded = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    assert api.client.patch(path, guarded).code == 409


def test_a_patch_that_changes_nothing_keeps_the_version(api: Api) -> None:
    made = api.make_pod("a")
    answer = api.client.patch(f"{api.pods}/a", {"metadata": {"labels": {"app": "a"}}})
    assert answer.version == made["metadata"]["resourceVersion"]


def test_conditions_are_merged_by_type(api: Api) -> None:
    api.make_pod("a")
    for kind, reason in (("PodScheduled", "Unschedulable"), ("example.com/x", "Y")):
        condition = {"type": kind, "status": "False", "reason": reason}
        body = {"status": {"conditions": [condition]}}
        assert api.client.patch(f"{api.pods}/a/status", body, STRATEGIC).code == 200
    body = {"status": {"nominatedNodeName": api.node}}
    found = api.client.patch(f"{api.pods}/a/status", body, STRATEGIC).json["status"]
    assert {c["type"] for c in found["conditions"]} == {"PodScheduled", "example.com/x"}
    assert found["nominatedNodeName"] == api.node


def test_status_is_written_by_its_own_path_only(api: Api) -> None:
    api.make_pod("a")
    main = api.client.patch(f"{api.pods}/a", {"status": {"nominatedNodeName": "x"}})
    assert "nominatedNodeName" not in main.json["status"]
    body = {"spec": {"schedulerName": "other"}, "status": {"nominatedNodeName": "x"}}
    status = api.client.patch(f"{api.pods}/a/status", body)
    assert status.json["status"]["nominatedNodeName"] == "x"
    assert status.json["spec"]["schedulerName"] == "bayplan-contract"


def test_conditions_of_a_status_are_complete_and_valid(api: Api) -> None:
    budgets = api.in_namespace("/apis/policy/v1", "poddisruptionbudgets")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "a"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
    }
    assert api.client.post(budgets, budget).code == 201

    def refusal(*conditions: dict[str, str]) -> str:
        body = {"status": {"conditions": list(conditions)}}
        answer = api.client.patch(f"{budgets}/a/status", body)
        assert answer.code == 422, answer.json
        return str(answer.json["message"]).partition(" is invalid: ")[2]

    path, at = "status.conditions[0]", "2026-01-01T00:00:00Z"
    assert refusal({"type": "X", "status": "True"}) == (
        f"[{path}.lastTransitionTime: Required value, {path}.reason: Required value]"
    )
    whole = {"type": "X", "status": "True", "reason": "R", "message": "", "lastTransitionTime": at}
    assert refusal({**whole, "status": "Maybe"}) == (
        f'{path}.status: Unsupported value: "Maybe": supported values: "False", "True", "Unknown"'
    )
    assert refusal({**whole, "reason": "a b"}).startswith(
        f'{path}.reason: Invalid value: "a b": a condition reason must start with alphabetic '
    )
    assert refusal({**whole, "type": ""}).startswith(
        f'[{path}.type: Invalid value: "": name part must be non-empty, '
    )
    assert refusal(whole, whole) == 'status.conditions[1].type: Duplicate value: "X"'
    accepted = api.client.patch(f"{budgets}/a/status", {"status": {"conditions": [whole]}})
    assert accepted.code == 200, accepted.json


def test_a_kind_without_a_status_has_no_path_for_it(api: Api) -> None:
    leases = api.in_namespace("/apis/coordination.k8s.io/v1", "leases")
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}}
    assert api.client.post(leases, lease).code == 201
    assert api.client.patch(f"{leases}/a/status", {"status": {}}).code == 404


def test_a_pod_keeps_its_spec(api: Api) -> None:
    api.make_pod("a")
    answer = api.client.patch(f"{api.pods}/a", {"spec": {"nodeName": api.node}})
    assert (answer.code, answer.json["reason"]) == (422, "Invalid")
    assert "pod updates may not change fields other than" in answer.json["message"]


def test_json_patches_can_test(api: Api) -> None:
    api.make_pod("a")
    path = f"{api.pods}/a"
    wrong = [{"op": "test", "path": "/metadata/labels/app", "value": "b"}]
    assert api.client.patch(path, wrong, JSON_PATCH).code == 422
    right = [
        {"op": "test", "path": "/metadata/labels/app", "value": "a"},
        {"op": "add", "path": "/metadata/labels/x~1y", "value": "1"},
    ]
    found = api.client.patch(path, right, JSON_PATCH)
    assert found.json["metadata"]["labels"] == {"app": "a", "x/y": "1"}


def test_lists_select_by_label_and_field(api: Api) -> None:
    for name in ("a", "b", "c"):
        api.make_pod(name)
    api.bind("b")

    def names(**params: str) -> list[str]:
        answer = api.client.get(api.pods, **params)
        assert answer.code == 200, answer
        return [item["metadata"]["name"] for item in answer.json["items"]]

    assert names() == ["a", "b", "c"]
    assert names(labelSelector="app in (a,c)") == ["a", "c"]
    assert names(labelSelector="app!=a,app") == ["b", "c"]
    assert names(fieldSelector="spec.nodeName=") == ["a", "c"]
    assert names(fieldSelector=f"spec.nodeName={api.node}") == ["b"]
    assert names(fieldSelector="metadata.name=c,spec.schedulerName=bayplan-contract") == ["c"]
    assert api.client.get(api.pods, fieldSelector="spec.priority=0").code == 400


def test_pages_of_a_list_show_one_state(api: Api) -> None:
    for name in "abcde":
        api.make_pod(name)
    first = api.client.get(api.pods, limit=2).json
    assert first["metadata"]["remainingItemCount"] == 3
    api.make_pod("bb")
    api.client.delete(f"{api.pods}/d", gracePeriodSeconds=0)
    names, answer = [i["metadata"]["name"] for i in first["items"]], first
    while answer["metadata"].get("continue"):
        token = answer["metadata"]["continue"]
        answer = api.client.get(api.pods, **{"limit": 2, "continue": token}).json
        assert answer["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        names += [i["metadata"]["name"] for i in answer["items"]]
    assert names == list("abcde")


def test_a_watch_goes_on_from_a_list(api: Api) -> None:
    api.make_pod("a")
    version = api.client.get(api.pods).version
    api.make_pod("b")
    api.client.delete(f"{api.pods}/a", gracePeriodSeconds=0)
    with api.client.watch(api.pods, resourceVersion=version) as events:
        kind, added = events.next()
        assert (kind, added["metadata"]["name"]) == ("ADDED", "b")
        kind, marked = events.next()
        assert (kind, marked["metadata"]["deletionGracePeriodSeconds"]) == ("MODIFIED", 0)
        kind, deleted = events.next()
        assert (kind, deleted["metadata"]["name"]) == ("DELETED", "a")
        assert deleted["metadata"]["deletionTimestamp"] == marked["metadata"]["deletionTimestamp"]
        versions = [int(one["metadata"]["resourceVersion"]) for one in (added, marked, deleted)]
        assert versions == sorted(set(versions))
        api.bind("b")
        kind, changed = events.next()
        assert (kind, changed["spec"]["nodeName"]) == ("MODIFIED", api.node)


def test_a_watch_sees_what_enters_and_leaves_its_selection(api: Api) -> None:
    version = api.client.get(api.pods).version
    selected = {"fieldSelector": "spec.nodeName=", "resourceVersion": version}
    with api.client.watch(api.pods, **selected) as events:
        api.make_pod("a")
        assert events.some(1) == [("ADDED", "a")]
        api.bind("a")
        assert events.some(1) == [("DELETED", "a")]


def test_a_forgotten_version_is_gone(api: Api, compact: Callable[[], None]) -> None:
    version = api.client.get(api.pods).version
    api.make_pod("a")
    compact()
    with api.client.watch(api.pods, resourceVersion=version) as events:
        if events.code == 200:
            kind, status = events.next()
            assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
        else:
            assert events.code == 410


def test_unbound_pods_go_at_once_and_bound_ones_take_their_time(api: Api) -> None:
    api.make_pod("a")
    api.make_pod("b", terminationGracePeriodSeconds=1000)
    api.client.delete(f"{api.pods}/a")
    assert api.client.get(f"{api.pods}/a").code == 404
    api.bind("b")
    api.client.delete(f"{api.pods}/b")
    meta = api.client.get(f"{api.pods}/b").json["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 1000
    assert meta["deletionTimestamp"]
    api.client.delete(f"{api.pods}/b", {"gracePeriodSeconds": 0})
    assert api.client.get(f"{api.pods}/b").code == 404


def test_deletion_has_preconditions(api: Api) -> None:
    uid = api.make_pod("a")["metadata"]["uid"]
    body = {"apiVersion": "v1", "kind": "DeleteOptions"}
    wrong = api.client.delete(f"{api.pods}/a", {**body, "preconditions": {"uid": "x"}})
    assert (wrong.code, wrong.json["reason"]) == (409, "Conflict")
    right = api.client.delete(f"{api.pods}/a", {**body, "preconditions": {"uid": uid}})
    assert right.code == 200


def test_what_is_invalid_says_why(api: Api) -> None:
    answer = api.client.post(api.pods, {"metadata": {"name": "a"}, "spec": {"containers": []}})
    assert (answer.code, answer.json["reason"]) == (422, "Invalid")
    fields = [cause["field"] for cause in answer.json["details"]["causes"]]
    assert "spec.containers" in fields


def test_a_budget_refuses_an_eviction(api: Api) -> None:
    api.make_pod("a")
    api.bind("a")
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    api.client.patch(f"{api.pods}/a/status", {"status": running}, STRATEGIC)
    budgets = api.in_namespace("/apis/policy/v1", "poddisruptionbudgets")
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    assert api.client.post(budgets, {"metadata": {"name": "b"}, "spec": spec}).code == 201
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    refused = api.client.post(f"{api.pods}/a/eviction", eviction)
    assert (refused.code, refused.json["reason"]) == (429, "TooManyRequests")
    assert refused.json["details"]["causes"][0]["reason"] == "DisruptionBudget"
    assert api.client.delete(f"{budgets}/b").code == 200
    assert api.client.post(f"{api.pods}/a/eviction", eviction).code == 201
    assert api.client.get(f"{api.pods}/a").json["metadata"]["deletionTimestamp"]


def test_claims_are_reserved_by_their_status(api: Api) -> None:
    claims = api.in_namespace("/apis/resource.k8s.io/v1", "resourceclaims")
    if api.client.get(claims).code == 404:
        pytest.skip("resource.k8s.io/v1 is not served")
    request = {"name": "gpu", "exactly": {"deviceClassName": "none"}}
    content = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}}
    claim = api.client.post(claims, content).json
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "p", "device": "gpu-0"}
    consumers = [{"resource": "pods", "name": "a", "uid": "1"}]
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": consumers}
    written = api.client.put(f"{claims}/c/status", {**claim, "status": status})
    assert written.code == 200, written
    assert written.json["status"]["reservedFor"] == consumers
    assert api.client.put(f"{claims}/c/status", {**claim, "status": {}}).code == 409
    freed = api.client.put(f"{claims}/c/status", {**written.json, "status": {}})
    assert "allocation" not in freed.json.get("status", {})


def test_custom_resources_take_merge_patches_only(api: Api) -> None:
    groups = api.in_namespace("/apis/scheduling.sigs.k8s.io/v1alpha1", "podgroups")
    if api.client.get(groups).code == 404:
        pytest.skip("the CRD PodGroup of scheduling.sigs.k8s.io is not installed")
    content = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"minMember": 2},
    }
    assert api.client.post(groups, content).code == 201
    assert api.client.patch(f"{groups}/g", {"spec": {"minMember": 3}}, STRATEGIC).code == 415
    changed = api.client.patch(f"{groups}/g", {"spec": {"minMember": 3}}).json
    assert (changed["spec"]["minMember"], changed["metadata"]["generation"]) == (3, 2)


def test_finalizers_keep_an_object(api: Api) -> None:
    maps = api.in_namespace("/api/v1", "configmaps")
    content = {"metadata": {"name": "c", "finalizers": ["example.com/f"]}, "data": {"a": "b"}}
    assert api.client.post(maps, content).code == 201
    api.client.delete(f"{maps}/c")
    assert api.client.get(f"{maps}/c").json["metadata"]["deletionTimestamp"]
    with api.client.watch(maps, fieldSelector="metadata.name=c") as events:
        assert events.some(1) == [("ADDED", "c")]
        api.client.patch(f"{maps}/c", {"metadata": {"finalizers": None}}, MERGE)
        assert ("DELETED", "c") in events.some(1)
    assert api.client.get(f"{maps}/c").code == 404


def test_leases_guard_leadership_by_version(api: Api) -> None:
    leases = api.in_namespace("/apis/coordination.k8s.io/v1", "leases")
    content = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "leader"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15},
    }
    first = api.client.post(leases, content).json
    second = {**first, "spec": {**first["spec"], "holderIdentity": "b"}}
    assert api.client.put(f"{leases}/leader", second).code == 200
    assert api.client.put(f"{leases}/leader", first).code == 409


def test_events_have_two_faces(api: Api) -> None:
    events = api.in_namespace("/apis/events.k8s.io/v1", "events")
    content = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "a.1", "namespace": api.namespace},
        "regarding": {"kind": "Pod", "namespace": api.namespace, "name": "a", "apiVersion": "v1"},
        "reason": "FailedScheduling",
        "action": "Scheduling",
        "note": "0/1 nodes are available",
        "type": "Warning",
        "reportingController": "bayplan",
        "reportingInstance": "bayplan-0",
        "eventTime": "2026-01-01T00:00:00.000000Z",
    }
    assert api.client.post(events, content).code == 201
    core = api.client.get(
        api.in_namespace("/api/v1", "events"), fieldSelector="involvedObject.name=a"
    ).json["items"]
    assert [e["message"] for e in core] == ["0/1 nodes are available"]
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}}
    found = api.client.patch(f"{events}/a.1", series).json
    assert (found["note"], found["series"]["count"]) == ("0/1 nodes are available", 2)
