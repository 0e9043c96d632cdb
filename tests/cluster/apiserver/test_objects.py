"""Objects keep what bayplan does not read, and live and go as on a real cluster."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.cluster.apiserver.faces import (
    APPLY,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    Client,
    Content,
    Face,
    node,
    pod,
    serving,
)

from bayplan.api import Pod, PodCondition, Toleration
from bayplan.api.objects import decode_part
from bayplan.cluster.apiserver import ServedCluster, WatchSettings
from bayplan.cluster.apiserver.unknown_fields import overlay, plain
from bayplan.cluster.protocol import Bind
from bayplan.inputs.durations import duration_text

SPACE = "/api/v1/namespaces/default"
PODS = f"{SPACE}/pods"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
FIELDS = st.sampled_from(
    [
        "name",
        "labels",
        "containers",
        "ownerReferences",
        "finalizers",
        "conditions",
        "target",
        "metadata",
        "spec",
        "$patch",
        "tolerations",
        "ports",
        "deleteOptions",
        "involvedObject",
    ]
)
THINGS = "/apis/example.com/v1/namespaces/default/things"


@pytest.fixture
def face() -> Iterator[Face]:
    with serving(watches=WatchSettings(bookmark_every=0.01)) as face:
        yield face


@pytest.fixture(scope="module")
def junk_face() -> Iterator[Face]:
    with serving() as face:
        Client(face.server.url).post(PODS, pod("kept"))
        yield face


@pytest.fixture
def client(face: Face) -> Client:
    return Client(face.server.url)


def bind(face: Face, *keys: str) -> None:
    def act(server: Any) -> None:
        for key in keys:
            server.cluster.submit(Bind(key, "", "n"))

    face.do(act)


def owner(content: Content) -> Content:
    meta = content["metadata"]
    return {
        "apiVersion": content["apiVersion"],
        "kind": content["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
    }


# Typed and untyped ---------------------------------------------------------------------------

TOLERATIONS = st.lists(
    st.builds(Toleration, key=st.sampled_from("abc"), operator=st.just("Exists")), max_size=3
).map(tuple)
CONDITIONS = st.lists(
    st.builds(PodCondition, type=st.sampled_from("ABC"), status=st.sampled_from(["True", "False"])),
    max_size=3,
    unique_by=lambda condition: condition.type,
).map(tuple)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    empty = Pod()
    labels = draw(st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), max_size=3))
    return replace(
        empty,
        metadata=replace(empty.metadata, name="a", labels=labels),
        spec=replace(
            empty.spec,
            node_name=draw(st.sampled_from(["", "n", "m"])),
            tolerations=draw(TOLERATIONS),
        ),
        status=replace(
            empty.status,
            phase=draw(st.sampled_from(["Pending", "Running"])),
            conditions=draw(CONDITIONS),
        ),
    )


@given(pods(), pods())
def test_an_overlay_reads_as_the_new_state_and_keeps_the_unknown(old: Pod, new: Pod) -> None:
    content = {**plain(old), "unknown": 1}
    content["spec"] = {**content.get("spec", {}), "volumes_of_tomorrow": [1]}
    result = overlay(content, old, new)
    assert decode_part(Pod, result) == new
    assert result["unknown"] == 1
    assert result["spec"]["volumes_of_tomorrow"] == [1]


def test_what_bayplan_does_not_read_survives_controllers(face: Face, client: Client) -> None:
    client.post("/api/v1/nodes", node("n"))
    template = {
        "metadata": {"labels": {"app": "d"}},
        "spec": {
            "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "b"}]}],
            "dnsConfig": {"nameservers": ["1.1.1.1"]},
        },
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "d"}}, "template": template}
    sets = "/apis/apps/v1/namespaces/default/replicasets"
    client.post(sets, {"metadata": {"name": "d"}, "spec": spec})
    (made,) = client.get(PODS).json["items"]
    bind(face, f"default/{made['metadata']['name']}")
    (running,) = client.get(PODS).json["items"]
    assert running["status"]["phase"] == "Running"
    assert running["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]
    assert running["spec"]["dnsConfig"] == {"nameservers": ["1.1.1.1"]}
    assert client.get(f"{sets}/d").json["status"]["readyReplicas"] == 1


def test_old_versions_of_an_api_are_read_and_written(client: Client) -> None:
    request = {"name": "gpu", "deviceClassName": "gpu", "count": 2}
    old = "/apis/resource.k8s.io/v1beta1/namespaces/default/resourceclaims"
    content = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}}
    assert client.post(old, content).code == 201
    new = client.get("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c").json
    assert new["apiVersion"] == "resource.k8s.io/v1"
    assert new["spec"]["devices"]["requests"] == [
        {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 2}}
    ]
    again = client.get(f"{old}/c").json
    assert (again["apiVersion"], again["spec"]) == ("resource.k8s.io/v1beta1", content["spec"])


# Watching ------------------------------------------------------------------------------------


def test_bookmarks_say_how_far_a_watch_is(client: Client) -> None:
    version = client.post(PODS, pod("a")).version
    client.post(f"{SPACE}/configmaps", {"metadata": {"name": "c"}})
    with client.watch(PODS, resourceVersion=version, allowWatchBookmarks="true") as events:
        kind, bookmark = events.next()
    assert kind == "BOOKMARK"
    assert int(bookmark["metadata"]["resourceVersion"]) > int(version)


def test_a_watch_can_start_with_what_is_there(client: Client) -> None:
    client.post(PODS, pod("a"))
    params = {"sendInitialEvents": "true", "allowWatchBookmarks": "true"}
    match = {"resourceVersionMatch": "NotOlderThan"}
    with client.watch(PODS, **params, **match) as events:
        assert events.next()[0] == "ADDED"
        kind, bookmark = events.next()
    assert kind == "BOOKMARK"
    assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_watch_ends_when_its_time_is_over() -> None:
    with serving(watches=WatchSettings(timeout=0.01)) as face:
        client = Client(face.server.url)
        with client.watch(PODS, timeoutSeconds="") as events, pytest.raises(EOFError):
            events.next()


# Going ---------------------------------------------------------------------------------------


def test_owned_objects_go_with_their_last_owner(client: Client) -> None:
    maps = f"{SPACE}/configmaps"
    owners = [client.post(maps, {"metadata": {"name": name}}).json for name in ("a", "b")]
    references = [owner(one) for one in owners]
    client.post(maps, {"metadata": {"name": "c", "ownerReferences": references}})
    client.delete(f"{maps}/a")
    assert client.names(maps) == ["b", "c"]
    client.delete(f"{maps}/b")
    assert client.names(maps) == []


def test_owned_objects_can_be_orphaned_or_waited_for(client: Client) -> None:
    maps = f"{SPACE}/configmaps"
    for name in ("a", "b"):
        made = client.post(maps, {"metadata": {"name": name}}).json
        own = {"name": f"{name}-own", "ownerReferences": [owner(made)]}
        client.post(maps, {"metadata": {**own, "finalizers": ["example.com/f"]}})
    client.delete(f"{maps}/a", propagationPolicy="Orphan")
    assert "ownerReferences" not in client.get(f"{maps}/a-own").json["metadata"]
    client.delete(f"{maps}/b", {"propagationPolicy": "Foreground"})
    assert client.get(f"{maps}/b").json["metadata"]["deletionTimestamp"]
    client.patch(f"{maps}/b-own", {"metadata": {"finalizers": None}})
    assert client.names(maps) == ["a-own"]


def test_a_namespace_goes_when_it_is_empty(face: Face, client: Client) -> None:
    client.post("/api/v1/nodes", node("n"))
    client.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    own = "/api/v1/namespaces/team/pods"
    client.post(own, pod("a"))
    bind(face, "team/a")
    client.delete("/api/v1/namespaces/team")
    assert client.get("/api/v1/namespaces/team").json["status"]["phase"] == "Terminating"
    refused = client.post(own, pod("b"))
    assert (refused.code, refused.json["reason"]) == (403, "Forbidden")
    face.advance(31)
    assert client.get("/api/v1/namespaces/team").code == 404
    missing = client.post(own, pod("b"))
    assert (missing.code, missing.json["message"]) == (404, 'namespaces "team" not found')


def test_pods_of_a_lost_node_go_after_a_while(face: Face, client: Client) -> None:
    client.post("/api/v1/nodes", node("n"))
    client.post(PODS, pod("a"))
    bind(face, "default/a")
    client.delete("/api/v1/nodes/n")
    assert client.names(PODS) == ["a"]
    face.advance(41)
    assert client.names(PODS) == []


def test_a_budget_refuses_an_eviction(face: Face, client: Client) -> None:
    client.post("/api/v1/nodes", node("n"))
    client.post(PODS, pod("a"))
    bind(face, "default/a")
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    client.post(budgets, {"metadata": {"name": "b"}, "spec": spec})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    refused = client.post(f"{PODS}/a/eviction", eviction)
    assert refused.code == 429
    assert refused.json["message"] == (
        "Cannot evict pod as it would violate the pod's disruption budget."
    )
    (cause,) = refused.json["details"]["causes"]
    assert cause == {
        "reason": "DisruptionBudget",
        "message": "The disruption budget b needs 1 healthy pods and has 1 currently",
    }
    client.delete(f"{budgets}/b")
    assert client.post(f"{PODS}/a/eviction", eviction).code == 201
    found = client.get(f"{PODS}/a").json
    assert found["metadata"]["deletionTimestamp"]
    conditions = {c["type"]: c["reason"] for c in found["status"]["conditions"] if "reason" in c}
    assert conditions["DisruptionTarget"] == "EvictionByEvictionAPI"


def test_a_collection_is_deleted_by_selection(client: Client) -> None:
    for name in "abc":
        client.post(PODS, pod(name))
    client.delete(PODS, labelSelector="app!=b")
    assert client.names(PODS) == ["b"]


def test_events_expire(face: Face, client: Client) -> None:
    bad = pod("a")
    bad["metadata"]["annotations"] = {"bayplan.dev/duration": "soon"}
    client.post("/api/v1/nodes", node("n"))
    client.post(PODS, bad)
    bind(face, "default/a")
    (event,) = client.get(f"{SPACE}/events").json["items"]
    assert event["involvedObject"]["name"] == "a"
    assert "bayplan.dev/duration" in event["message"]
    face.advance(3601)
    assert client.names(f"{SPACE}/events") == []


# Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "code", "reason"),
    [
        ("POST", PODS, {"kind": "Node", "apiVersion": "v1"}, "", 400, "BadRequest"),
        ("POST", PODS, [], "", 400, "BadRequest"),
        ("POST", PODS, b"{", "", 400, "BadRequest"),
        ("POST", PODS, {"metadata": {"name": "x"}, "spec": {}}, "", 422, "Invalid"),
        ("POST", PODS, {"metadata": {}}, "", 422, "Invalid"),
        ("POST", PODS, {"metadata": {"name": "x", "namespace": "y"}}, "", 400, "BadRequest"),
        ("POST", "/api/v1/pods", {"metadata": {"name": "x"}}, "", 405, "MethodNotAllowed"),
        ("PUT", PODS, {}, "", 405, "MethodNotAllowed"),
        ("PATCH", f"{PODS}/a", {}, "text/plain", 415, "UnsupportedMediaType"),
        ("PATCH", f"{PODS}/a", {"metadata": {"labels": {"a": 1}}}, "", 422, "Invalid"),
        ("PATCH", f"{PODS}/a", {"metadata": {"uid": "x"}}, "", 422, "Invalid"),
        ("GET", f"{PODS}/a/log", None, "", 405, "MethodNotAllowed"),
        ("GET", f"{PODS}?labelSelector=a%20b", None, "", 400, "BadRequest"),
        ("GET", f"{PODS}?fieldSelector=spec.x%3Dy", None, "", 400, "BadRequest"),
        ("GET", f"{PODS}?limit=x", None, "", 400, "BadRequest"),
        ("GET", f"{PODS}?continue=x", None, "", 400, "BadRequest"),
        ("DELETE", "/api/v1/namespaces/default", None, "", 403, "Forbidden"),
        ("POST", f"{PODS}/a/binding", {"target": {}}, "", 400, "BadRequest"),
    ],
)
def test_refusals_are_status_objects(
    client: Client, method: str, path: str, body: Any, kind: str, code: int, reason: str
) -> None:
    client.post(PODS, pod("a"))
    default = "application/merge-patch+json" if method == "PATCH" else "application/json"
    answer = client.call(method, path, body, kind or default)
    assert (answer.code, answer.json["kind"], answer.json["reason"]) == (code, "Status", reason)
    assert answer.json["code"] == code


def test_an_unknown_path_is_plain_text(client: Client) -> None:
    for path in ("/api/v1/things", "/apis/nobody.example/v1/things", "/nothing", "/apis/apps/v9"):
        answer = client.get(path)
        assert (answer.code, answer.body) == (404, b"404 page not found\n")


def test_a_missing_priority_class_is_refused(client: Client) -> None:
    answer = client.post(PODS, pod("a", priorityClassName="none"))
    assert answer.code == 403
    assert 'no PriorityClass with name "none" was found' in answer.json["message"]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "Node", "v1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(FIELDS, inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_body_makes_the_server_fail(junk_face: Face, data: st.DataObject) -> None:
    client = Client(junk_face.server.url)
    merged = pod("a")
    for part in ("metadata", "spec", "status"):
        merged[part] = data.draw(JUNK) if data.draw(st.booleans()) else merged.get(part)
    crd = definition()
    crd["spec"] = data.draw(JUNK) if data.draw(st.booleans()) else crd["spec"]
    if isinstance(crd["spec"], dict) and "names" in crd["spec"]:
        crd["spec"]["names"] = data.draw(JUNK)
        crd["spec"]["versions"] = [data.draw(JUNK)]
    kind = data.draw(st.sampled_from([MERGE, STRATEGIC, JSON_PATCH, APPLY]))
    for answer in (
        client.post(PODS, merged),
        client.patch(f"{PODS}/kept", data.draw(JUNK), kind, fieldManager="x"),
        client.patch(f"{PODS}/kept/status", {"status": data.draw(JUNK)}, kind, fieldManager="x"),
        client.put(f"{PODS}/kept", merged),
        client.post(f"{PODS}/kept/binding", data.draw(JUNK)),
        client.post(f"{PODS}/kept/eviction", data.draw(JUNK)),
        client.delete(f"{PODS}/kept", data.draw(JUNK), dryRun="All"),
        client.post(CRDS, crd),
        client.post(f"{SPACE}/events", {**merged, "kind": "Event"}),
    ):
        # To applied fields that a kind does not have, and to items of merged lists that have no
        # key, the real server answers 500, too.
        as_real = (b"field not declared in schema", b"does not contain declared merge key")
        assert answer.code < 500 or any(text in answer.body for text in as_real), (answer, merged)
    for path in (PODS, CRDS, f"{SPACE}/events"):
        answer = client.call("GET", path, headers=TABLE)
        assert answer.code == 200, answer


def test_a_body_has_a_limit(client: Client) -> None:
    data = {"a": "x" * 3_200_000}
    answer = client.post(f"{SPACE}/configmaps", {"metadata": {"name": "c"}, "data": data})
    assert (answer.code, answer.json["reason"]) == (413, "RequestEntityTooLarge")
    assert client.call("POST", PODS, b"[" * 100_000).code == 400


# Definitions ---------------------------------------------------------------------------------


ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definition(**names: Any) -> Content:
    version: Content = {"name": "v1", "served": True, "storage": True}
    version["subresources"] = {"status": {}}
    columns = [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]
    version["schema"] = {"openAPIV3Schema": ANYTHING}
    return {
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing", **names},
            "versions": [{**version, "additionalPrinterColumns": columns}],
        },
    }


def test_a_definition_is_served_until_it_goes(client: Client) -> None:
    assert client.get(THINGS).code == 404
    assert client.post(CRDS, definition(shortNames=["th"])).code == 201
    found = client.get(f"{CRDS}/things.example.com").json["status"]
    assert {c["type"]: c["status"] for c in found["conditions"]}["Established"] == "True"
    served = client.get("/apis/example.com/v1").json["resources"]
    assert [(r["name"], r.get("shortNames")) for r in served] == [
        ("things", ["th"]),
        ("things/status", None),
    ]
    thing = {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {"name": "t"},
        "spec": {"size": 3},
        "status": {"ready": True},
    }
    made = client.post(THINGS, thing).json
    assert (made["spec"], "status" in made) == ({"size": 3}, False)
    body = {"status": {"ready": True}, "spec": {"size": 4}}
    changed = client.patch(f"{THINGS}/t/status", body).json
    assert (changed["status"], changed["spec"]) == ({"ready": True}, {"size": 3})
    refused = client.patch(f"{THINGS}/t", {}, "application/strategic-merge-patch+json")
    assert refused.code == 415
    table = client.call("GET", THINGS, headers=TABLE).json
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Size"]
    assert table["rows"][0]["cells"] == ["t", 3]
    client.delete(f"{CRDS}/things.example.com")
    assert client.get(THINGS).code == 404
    client.post(CRDS, definition())
    assert client.names(THINGS) == []


def test_a_definition_has_to_make_sense(client: Client) -> None:
    wrong = definition()
    wrong["metadata"]["name"] = "others.example.com"
    answer = client.post(CRDS, wrong)
    assert answer.code == 422
    assert answer.json["details"]["causes"][0]["field"] == "metadata.name"
    assert client.post(CRDS, {"metadata": {"name": "x"}}).code == 422


def test_groups_can_be_left_out() -> None:
    groups = "/apis/scheduling.sigs.k8s.io/v1alpha1/podgroups"
    with serving(ServedCluster(without=("scheduling.sigs.k8s.io",))) as face:
        client = Client(face.server.url)
        assert client.get(groups).code == 404
        crd = definition(plural="podgroups", kind="PodGroup")
        crd["metadata"]["name"] = "podgroups.scheduling.sigs.k8s.io"
        crd["spec"]["group"] = "scheduling.sigs.k8s.io"
        crd["spec"]["versions"][0]["name"] = "v1alpha1"
        assert client.post(CRDS, crd).code == 201
        assert client.get(groups).code == 200


# Other forms ---------------------------------------------------------------------------------


def test_bodies_may_be_protobuf_of_what_kubectl_makes(client: Client) -> None:
    def field(number: int, value: bytes) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value

    def sent(kind: bytes, message: bytes) -> bytes:
        identity = field(1, b"v1") + field(2, kind)
        return b"k8s\x00" + field(1, identity) + field(2, message)

    kind = "application/vnd.kubernetes.protobuf"
    pair = field(1, b"k") + field(2, b"\x00\x01")
    secret = field(1, field(1, b"s")) + field(2, pair) + field(3, b"Opaque")
    made = client.call("POST", f"{SPACE}/secrets", sent(b"Secret", secret), kind)
    assert (made.code, made.json["data"]) == (201, {"k": base64.b64encode(b"\x00\x01").decode()})
    assert client.call("POST", PODS, sent(b"PersistentVolume", b""), kind).code == 415
    assert client.call("POST", PODS, sent(b"Secret", b"\x0a\x7f"), kind).code == 400
    assert client.call("POST", PODS, b"k8s\x00\xff", kind).code == 400


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (601, "10m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 61, "3h1m"),
        (9 * 3600, "9h"),
        (49 * 3600, "2d1h"),
        (9 * 86400, "9d"),
        (3 * 365 * 86400, "3y"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_durations_read_as_kubectl_writes_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
