"""The limits of the served cluster: time, connections, space, history."""

from __future__ import annotations

import gzip
import json
from typing import Any

from tests.cluster.apiserver.faces import Client, Face, pod, serving
from tests.cluster.apiserver.processes import PODS, connect, head, read_status

from bayplan.cluster.apiserver import ServedCluster
from bayplan.cluster.apiserver.server_limits import ServerLimits
from bayplan.cluster.apiserver.watches import WatchSettings
from bayplan.inputs.httpserver import ConnectionLimits

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
HASTY = ServerLimits(ConnectionLimits(head_seconds=0.1), request_seconds=0.1)


def config_map(name: str, size: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"a": "x" * size}}


def client_of(face: Face) -> Client:
    return Client(face.server.url)


def read_to_end(port: int, request: bytes) -> bytes:
    """Send bytes; return what the server sends until it ends the connection."""
    with connect(port) as client:
        client.sendall(request)
        return client.makefile("rb").read()


def test_a_head_that_does_not_end_ends_the_connection() -> None:
    with serving(limits=HASTY) as face:
        assert read_to_end(face.server.port, b"GET /api HTTP/1.1\r\nHost: ") == b""


def test_a_body_that_does_not_end_is_a_timeout() -> None:
    with serving(limits=HASTY) as face, connect(face.server.port) as client:
        client.sendall(head("POST", CONFIG_MAPS, "Content-Length: 9") + b"{")
        assert read_status(client) == 504


def test_the_answer_to_a_client_that_does_not_read_ends() -> None:
    with serving(limits=HASTY) as face:
        for number in range(20):
            client_of(face).post(CONFIG_MAPS, config_map(f"c-{number}", 900_000))
        with connect(face.server.port) as client:
            client.sendall(head("GET", CONFIG_MAPS))
            assert read_status(client) == 200
            face.wait_until_idle()


def test_a_watch_of_a_client_that_does_not_read_ends() -> None:
    settings = WatchSettings(stalled=0.1)
    with serving(watches=settings) as face, connect(face.server.port) as client:
        client.sendall(head("GET", f"{CONFIG_MAPS}?watch=true"))
        assert read_status(client) == 200
        for number in range(20):
            client_of(face).post(CONFIG_MAPS, config_map(f"c-{number}", 900_000))
        face.wait_until_idle()


def test_a_connection_too_many_replaces_an_idle_one() -> None:
    limits = ServerLimits(ConnectionLimits(most=2))
    with serving(limits=limits) as face, connect(face.server.port) as idle:
        watch = head("GET", f"{PODS}?watch=true")
        with connect(face.server.port) as busy:
            busy.sendall(watch)
            assert read_status(busy) == 200
            with connect(face.server.port) as other:
                other.sendall(watch)
                assert read_status(other) == 200
                assert read_status(idle) == 0
                with connect(face.server.port) as refused:
                    assert read_status(refused) == 429


def test_large_bodies_share_an_allowance_and_small_ones_need_none() -> None:
    with serving(limits=ServerLimits(large_bodies=100_000)) as face:
        assert client_of(face).post(CONFIG_MAPS, config_map("large", 200_000)).code == 429
        assert client_of(face).post(CONFIG_MAPS, config_map("small", 50_000)).code == 201
        assert client_of(face).post(CONFIG_MAPS, config_map("other", 150_000)).code == 201


def test_old_versions_expire_when_the_history_takes_too_much() -> None:
    with serving(ServedCluster(history_size=1_000_000)) as face:
        client = client_of(face)
        first = client.post(CONFIG_MAPS, config_map("a")).version
        for number in range(5):
            client.patch(f"{CONFIG_MAPS}/a", {"data": {"a": str(number) * 200_000}})
        with client.watch(CONFIG_MAPS, resourceVersion=first) as events:
            if events.code == 200:
                kind, status = events.next()
                assert (kind, status["code"]) == ("ERROR", 410)
            else:
                assert events.code == 410


def test_a_full_store_takes_deletions_only() -> None:
    with serving(ServedCluster(quota=3_000_000)) as face:
        client = client_of(face)
        for number in range(2):
            assert client.post(CONFIG_MAPS, config_map(f"c-{number}", 900_000)).code == 201
        refused = client.post(CONFIG_MAPS, config_map("more"))
        assert refused.code == 500
        assert refused.json["message"] == "etcdserver: mvcc: database space exceeded"
        assert client.patch(f"{CONFIG_MAPS}/c-0", {"data": {"a": ""}}).code == 500
        assert client.delete(f"{CONFIG_MAPS}/c-0").code == 200
        assert client.post(CONFIG_MAPS, config_map("more")).code == 201


def test_a_workload_stops_making_pods_when_the_store_is_full() -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod("a")["spec"]}
    spec = {"replicas": 10_000, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    with serving(ServedCluster(quota=3_000_000)) as face:
        client = client_of(face)
        assert client.post(DEPLOYMENTS, {"metadata": {"name": "a"}, "spec": spec}).code == 201
        assert 10 < len(client.names("/api/v1/pods")) < 1000
        assert client.delete(f"{DEPLOYMENTS}/a").code == 200
        assert client.names("/api/v1/pods") == []


def test_an_object_is_no_larger_than_etcd_takes() -> None:
    event = {
        "metadata": {"name": "a"},
        "involvedObject": {"namespace": "default"},
        "message": "x" * 1_600_000,
    }
    with serving() as face:
        answer = client_of(face).post("/api/v1/namespaces/default/events", event)
    assert (answer.code, answer.json["message"]) == (500, "etcdserver: request is too large")


def test_a_compressed_body_is_not_unpacked() -> None:
    body = gzip.compress(json.dumps(config_map("a")).encode())
    lines = ("Content-Encoding: gzip", f"Content-Length: {len(body)}")
    with serving() as face, connect(face.server.port) as client:
        client.sendall(head("POST", CONFIG_MAPS, *lines) + body)
        assert read_status(client) == 400
