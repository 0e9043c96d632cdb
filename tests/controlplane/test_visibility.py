"""Kueue's visibility API, through the aggregator of a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.certificates import certificates, needs_openssl
from tests.cluster.apiserver.faces import Answer, Client
from tests.controlplane.installation import path_of
from tests.controlplane.live_cluster import Content, LiveCluster
from tests.controlplane.plane import ControlPlane, free_ports
from tests.controlplane.queue_builders import KUEUE, cluster_queue, head, suspended_job
from tests.controlplane.story_builders import happens, nodes
from tests.live.deployed import DEPLOY, documents
from tests.paths import ROOT
from tests.real_programs import PROGRAMS

from bayplan.live import visibility
from bayplan.live.app import LiveApp
from bayplan.live.visibility import VisibilityAddress
from bayplan.profiles.loading import load_profiles

pytestmark = needs_openssl

OBJECTS = ROOT / "configs" / "visibility" / "objects.yaml"
VERSIONS = ("v1beta2", "v1beta1")
API = "/apis/visibility.kueue.x-k8s.io"
OF_QUEUE = f"{API}/v1beta2/clusterqueues/q/pendingworkloads"
OF_LOCAL = f"{API}/v1beta2/namespaces/default/localqueues/{{}}/pendingworkloads"
WORKLOADS = f"/apis/{KUEUE}/namespaces/default/workloads"
RBAC = "rbac.authorization.k8s.io/v1"
USERS = ("viewer", "administrator", "stranger")


@dataclass
class Aggregated:
    """An API server that asks bayplan for what waits.

    :ivar clients: of users with different rights; "" is everybody's.
    :ivar certificates: a folder with the certificates of the aggregator, and of bayplan.
    """

    plane: ControlPlane
    cluster: LiveCluster
    clients: dict[str, Client]
    tokens: dict[str, str]
    certificates: Path
    port: int

    def get(self, user: str, path: str, **params: Any) -> Answer:
        return self.clients[user].get(path, **params)

    async def asked(self, user: str, path: str, **params: Any) -> Answer:
        """Ask in a thread: the scheduler that answers runs in this loop."""
        return await asyncio.to_thread(self.get, user, path, **params)

    async def pending(self, path: str, **params: Any) -> list[str]:
        answer = await self.asked("administrator", path, **params)
        assert answer.code == 200, answer
        return [one["metadata"]["ownerReferences"][0]["name"] for one in answer.json["items"]]

    @asynccontextmanager
    async def scheduler(self, port: int | None = None, **options: Any) -> AsyncIterator[LiveApp]:
        own = self.certificates
        address = VisibilityAddress(
            "127.0.0.1", port or self.port, own / "server.crt", own / "server.key"
        )
        async with self.cluster.scheduler(visibility=address, **options) as app:
            yield app


def objects(port: int) -> Iterator[Content]:
    """Yield what is installed, with a Service that leads to this machine."""
    for one in documents(OBJECTS):
        if one["kind"] == "Service":
            one["spec"] = {"type": "ExternalName", "externalName": "localhost"}
        if one["kind"] == "APIService":
            one["spec"]["service"]["port"] = port
        yield one


def bindings() -> list[Content]:
    """Give one user the right to view a namespace, and another one that to view all."""
    of_view = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    found = []
    for user, kind in (("viewer", "RoleBinding"), ("administrator", "ClusterRoleBinding")):
        account = {"kind": "ServiceAccount", "name": user, "namespace": "default"}
        found.append(head(RBAC, kind, f"sees-{user}", kind == "RoleBinding"))
        found[-1] |= {"roleRef": of_view, "subjects": [account]}
    return found


@pytest.fixture(scope="module")
def aggregator(
    plane: ControlPlane, installed: LiveCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Aggregated]:
    folder = tmp_path_factory.mktemp("certificates")
    certificates(folder, "bayplan-visibility.bayplan-system.svc")
    (own,) = free_ports(1)
    flags = {
        "requestheader-client-ca-file": folder / "ca.crt",
        "requestheader-allowed-names": "client",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-uid-headers": "X-Remote-Uid",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": folder / "client.crt",
        "proxy-client-key-file": folder / "client.key",
    }
    client = plane.client
    made = [*(head("v1", "ServiceAccount", name) for name in USERS), *bindings(), *objects(own)]
    url = yaml.safe_load(plane.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    with plane.with_flags("apiserver", *(f"--{k}={v}" for k, v in flags.items())):
        for one in made:
            answer = client.post(_collection(one), one, fieldValidation="Strict")
            assert answer.code == 201, answer
        context = ssl.create_default_context(cafile=str(plane.certificate))
        tokens = {name: _token(client, name) for name in USERS}
        clients = {name: Client(url, token, context) for name, token in {**tokens, "": ""}.items()}
        yield Aggregated(plane, installed, clients, tokens, folder, own)
        for one in reversed(made):
            assert client.delete(f"{_collection(one)}/{one['metadata']['name']}").code == 200


def _collection(content: Content) -> str:
    if content["kind"] == "APIService":
        return "/apis/apiregistration.k8s.io/v1/apiservices"
    return path_of(content, name=False).replace("networkpolicys", "networkpolicies")


def _token(client: Client, account: str) -> str:
    path = f"/api/v1/namespaces/default/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = client.post(path, body)
    assert answer.code == 201, answer
    token: str = answer.json["status"]["token"]
    return token


@pytest.fixture
def aggregated(aggregator: Aggregated, real: LiveCluster) -> Aggregated:
    """The queue has 6 cores, of which "runs" has 4; others wait, in two LocalQueues."""
    local = head(KUEUE, "LocalQueue", "other")
    local["spec"] = {"clusterQueue": "q"}
    classes = [
        head(KUEUE, "WorkloadPriorityClass", f"p{value}", False) | {"value": value}
        for value in range(1, 5)
    ]
    real.apply([*nodes(2), *cluster_queue("q"), local, *classes, *suspended_job("runs", "q", 4)])
    return aggregator


def job(name: str, queue: str, priority: int) -> Content:
    """A job of 5 cores."""
    (made,) = suspended_job(name, queue, 5)
    made["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = f"p{priority}"
    return made


async def some_wait(aggregated: Aggregated) -> None:
    """Let "runs" be admitted, and then others wait."""
    cluster = aggregated.cluster
    await happens(lambda: len(cluster.placements()) == 4)
    cluster.apply([job("a", "q", 3), job("b", "other", 2), job("c", "q", 1), job("d", "q", 4)])
    await reachable(aggregated)
    async with asyncio.timeout(20):
        while await aggregated.pending(OF_QUEUE) != ["d", "a", "b", "c"]:
            await asyncio.sleep(0.05)


async def reachable(aggregated: Aggregated) -> None:
    """Wait until the aggregator has found the scheduler, and the roles are known."""
    async with asyncio.timeout(60):
        while True:
            asked = [(user, OF_QUEUE) for user in ("administrator", "stranger")]
            codes = [(await aggregated.asked(*one)).code for one in asked]
            own = (await aggregated.asked("viewer", OF_LOCAL.format("q"))).code
            if [*codes, own] == [200, 403, 200]:
                return
            await asyncio.sleep(0.1)


async def test_what_waits_is_told_in_its_order_to_those_who_may_know(
    aggregated: Aggregated,
) -> None:
    async with aggregated.scheduler():
        await some_wait(aggregated)
        answer = await aggregated.asked("administrator", OF_QUEUE)
        first = answer.json["items"][0]
        stored = next(
            one
            for one in aggregated.cluster.items(WORKLOADS)
            if one["metadata"]["name"] == first["metadata"]["name"]
        )
        assert stored["spec"]["priorityClassRef"] == {
            "group": "kueue.x-k8s.io",
            "kind": "WorkloadPriorityClass",
            "name": "p4",
        }
        stored = stored["metadata"]
        (owner,) = stored["ownerReferences"]
        assert (answer.json["kind"], answer.json["metadata"]) == ("PendingWorkloadsSummary", {})
        assert answer.json["apiVersion"] == "visibility.kueue.x-k8s.io/v1beta2"
        assert first == {
            "metadata": {
                "name": stored["name"],
                "namespace": "default",
                "creationTimestamp": stored["creationTimestamp"],
                "ownerReferences": [{k: owner[k] for k in ("apiVersion", "kind", "name", "uid")}],
            },
            "priority": 4,
            "localQueueName": "q",
            "positionInClusterQueue": 0,
            "positionInLocalQueue": 0,
        }
        places = [
            (one["localQueueName"], one["positionInClusterQueue"], one["positionInLocalQueue"])
            for one in answer.json["items"]
        ]
        assert places == [("q", 0, 0), ("q", 1, 1), ("other", 2, 0), ("q", 3, 2)]
        # One who may view the namespace sees its queues, and no more; a stranger sees nothing.
        own = await aggregated.asked("viewer", OF_LOCAL.format("q"))
        assert [one["positionInClusterQueue"] for one in own.json["items"]] == [0, 1, 3]
        assert [one["positionInLocalQueue"] for one in own.json["items"]] == [0, 1, 2]
        for user, path, code in (
            ("viewer", OF_QUEUE, 403),
            ("viewer", OF_LOCAL.format("q").replace("default", "kube-system"), 403),
            ("stranger", OF_LOCAL.format("q"), 403),
            ("", OF_QUEUE, 403),
        ):
            assert (await aggregated.asked(user, path)).code == code, (user, path)


async def test_a_part_of_it_can_be_asked_for_in_both_versions(aggregated: Aggregated) -> None:
    async with aggregated.scheduler():
        await some_wait(aggregated)
        for version in VERSIONS:
            path = OF_QUEUE.replace("v1beta2", version)
            assert await aggregated.pending(path, limit=2) == ["d", "a"]
            assert await aggregated.pending(path, offset=1, limit=2) == ["a", "b"]
            assert await aggregated.pending(path, offset=4) == []
            assert await aggregated.pending(path, limit=-1, offset=-3) == []
            assert await aggregated.pending(path, limit=0) == ["d", "a", "b", "c"]
            answer = await aggregated.asked("administrator", path, limit="many")
            assert (answer.code, answer.json["reason"]) == (400, "BadRequest")
            assert 'limit: expected an integer, got "many"' in answer.json["message"]
        local = OF_LOCAL.format("q")
        answer = await aggregated.asked("administrator", local, offset=1, limit=1)
        (one,) = answer.json["items"]
        assert (one["positionInClusterQueue"], one["positionInLocalQueue"]) == (1, 1)
        for path, kind in (
            (OF_QUEUE.replace("/q/", "/none/"), "clusterqueue"),
            (OF_LOCAL.format("none"), "localqueue"),
        ):
            answer = await aggregated.asked("administrator", path)
            assert answer.code == 404
            text = f'{kind}.visibility.kueue.x-k8s.io "none" not found'
            assert (answer.json["reason"], answer.json["message"]) == ("NotFound", text)


async def test_kubectl_finds_the_api_and_reads_from_it(aggregated: Aggregated) -> None:
    def kubectl(*arguments: str) -> str:
        command = [str(PROGRAMS / "kubectl"), "--kubeconfig", str(aggregated.plane.kubeconfig)]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async with aggregated.scheduler():
        await some_wait(aggregated)
        found = json.loads(await asyncio.to_thread(kubectl, "get", "--raw", OF_QUEUE))
        assert len(found["items"]) == 4
        available = "-o=jsonpath={.status.conditions[?(@.type=='Available')].status}"
        for version in VERSIONS:
            name = f"apiservices/{version}.visibility.kueue.x-k8s.io"
            assert await asyncio.to_thread(kubectl, "get", name, available) == "True"
        served = json.loads(await asyncio.to_thread(kubectl, "get", "--raw", f"{API}/v1beta2"))
        assert {one["name"]: one["verbs"] for one in served["resources"]} == {
            "clusterqueues": [],
            "clusterqueues/pendingworkloads": ["get"],
            "localqueues": [],
            "localqueues/pendingworkloads": ["get"],
        }


async def test_a_namespace_can_be_deleted_beside_it(aggregated: Aggregated) -> None:
    """The API server asks which kinds the API has in a name without groups."""
    plane, where = aggregated.plane, "/api/v1/namespaces"
    async with aggregated.scheduler():
        await reachable(aggregated)
        assert plane.client.post(where, {"metadata": {"name": "goes"}}).code == 201
        assert plane.client.delete(f"{where}/goes").code == 200
        async with asyncio.timeout(90):
            while True:
                found = await asyncio.to_thread(plane.client.get, f"{where}/goes")
                if found.code == 404:
                    return
                await asyncio.sleep(0.5)


async def test_a_replica_that_stands_by_tells_the_same(aggregated: Aggregated) -> None:
    given = load_profiles(DEPLOY / "scheduler-config.yaml")
    (other,) = free_ports(1)
    electing: Any = {"profiles": given, "leader_elect": True}
    async with aggregated.scheduler(other, **electing) as leader:
        await happens(leader.leads)
        async with aggregated.scheduler(**electing) as app:
            await some_wait(aggregated)
            assert not app.leads()


def direct(folder: Path, port: int, shown: Path | None = None, **headers: str) -> Answer:
    """Ask bayplan itself.

    :param folder: with its authority.
    :param shown: the certificate and key that are shown to it, without a suffix.
    """
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if shown is not None:
        context.load_cert_chain(shown.with_suffix(".crt"), shown.with_suffix(".key"))
    client = Client(f"https://127.0.0.1:{port}", context=context)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.call("GET", OF_QUEUE, headers=given)


async def test_nobody_can_say_to_be_the_aggregator(aggregated: Aggregated, tmp_path: Path) -> None:
    masters = {"X_Remote_User": "admin", "X_Remote_Group": "system:masters"}
    own = aggregated.certificates
    certificates(tmp_path)

    async def ask(shown: Path | None = None, **headers: str) -> int:
        return (await asyncio.to_thread(direct, own, aggregated.port, shown, **headers)).code

    async with aggregated.scheduler():
        await some_wait(aggregated)
        assert await ask(own / "client", **masters) == 200
        assert await ask(None, **masters) == 401
        # Signed by the same authority, for somebody else.
        assert await ask(own / "server", **masters) == 401
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await ask(tmp_path / "client", **masters)
        assert await ask(own / "client") == 401
        for user, code in (("administrator", 200), ("stranger", 403)):
            token = f"Bearer {aggregated.tokens[user]}"
            assert await ask(None, Authorization=token, **masters) == code
        assert await ask(None, Authorization="Bearer none") == 401


async def test_a_certificate_that_was_replaced_is_served(
    aggregated: Aggregated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visibility, "_LOOK_SECONDS", 0.05)
    certificates(tmp_path)
    own = tmp_path / "own"
    shutil.copytree(aggregated.certificates, own)
    given = dataclasses.replace(aggregated, certificates=own)
    async with given.scheduler() as app:
        assert app.visibility is not None
        port = app.visibility.port
        assert (await asyncio.to_thread(direct, own, port)).code == 401
        for name in ("server.crt", "server.key"):
            shutil.copy(tmp_path / name, own / name)

        async def is_new() -> bool:
            with contextlib.suppress(OSError):
                return (await asyncio.to_thread(direct, tmp_path, port)).code == 401
            return False

        async with asyncio.timeout(30):
            while not await is_new():
                await asyncio.sleep(0.05)
