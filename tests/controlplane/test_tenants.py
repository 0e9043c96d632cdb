"""The page for tenants: three of them, on a real API server that knows who may read which pods."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from tests.certificates import certificates, needs_openssl
from tests.controlplane.installation import path_of
from tests.controlplane.live_cluster import Content, LiveCluster
from tests.controlplane.plane import ControlPlane
from tests.controlplane.queue_builders import head
from tests.controlplane.story_builders import asking, happens, nodes

from bayplan.billing.terms import BillingTermsFiles
from bayplan.live import tenants
from bayplan.live.app import LiveApp
from bayplan.live.bill_pages import Bills
from bayplan.live.tenants import SignOn, TenantAddress
from bayplan.metering.journal import Journal

pytestmark = needs_openssl

RBAC = "rbac.authorization.k8s.io/v1"
SPACES = ("amber", "blue")
ENDPOINTS = (
    "/page/data",
    "/page/events?since=1",
    "/page/explain?unit=blue/blue-runs",
    "/page/explain?unit=blue/blue-waits",
    "/allocation?window=today&aggregate=namespace,pod,node",
    "/allocation?window=today&aggregate=queue&includeIdle=true",
    "/usage?window=today&aggregate=tenant,namespace,pod",
)
"""All that the page answers; of another namespace a reader is not to see a word."""
CARA = {"X-Remote-User": "cara", "X-Remote-Group": "staff, amber-team"}
PRICES = {
    "apiVersion": "bayplan.dev/v1alpha1",
    "kind": "PriceList",
    "currency": "EUR",
    "versions": [{"from": "2000-01-01", "prices": [{"resource": "cpu", "perHour": "3600.00"}]}],
}


@dataclass
class Tenants:
    """Ann may view "amber" and Ben "blue", by tokens; Cara may view "amber", by what a proxy says.

    :ivar folder: with the certificates of the page and of the proxy.
    """

    cluster: LiveCluster
    folder: Path
    tokens: dict[str, str]
    session: aiohttp.ClientSession
    url: str = ""

    def _tls(self, proxy: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        if proxy:
            own = self.folder / proxy
            context.load_cert_chain(own.with_suffix(".crt"), own.with_suffix(".key"))
        return context

    def asking(self, user: str, path: str, proxy: str = "", **headers: str) -> Any:
        """Ask for a path, with a user's token, or as a proxy with a certificate of this name."""
        token = {"Authorization": f"Bearer {self.tokens[user]}"} if user in self.tokens else {}
        if user == "cara":
            proxy, headers = proxy or "client", {**CARA, **headers}
        sent = {**token, **headers}
        return self.session.get(f"{self.url}{path}", headers=sent, ssl=self._tls(proxy))

    async def asked(self, user: str, path: str, proxy: str = "", **headers: str) -> tuple[int, str]:
        if path.startswith("/page/events"):
            # A stream that does not know the page begins and ends with "get everything again".
            path = "/page/events?since=1"
        async with self.asking(user, path, proxy, **headers) as answer:
            return answer.status, await answer.text()

    async def data(self, user: str, **more: str) -> dict[str, Any]:
        code, text = await self.asked(user, "/page/data", **more)
        assert code == 200, text
        return dict(json.loads(text))

    @asynccontextmanager
    async def following(self, user: str) -> AsyncIterator[asyncio.Queue[str]]:
        """Follow what changes; yield the events as they come."""
        found: asyncio.Queue[str] = asyncio.Queue()
        since = (await self.data(user))["version"]
        async with self.asking(user, f"/page/events?since={since}") as answer:

            async def read() -> None:
                text = ""
                with contextlib.suppress(aiohttp.ClientError):
                    async for part in answer.content.iter_any():
                        text += part.decode()
                        *whole, text = text.split("\n\n")
                        for one in whole:
                            await found.put(one)

            reading = asyncio.create_task(read())
            yield found
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


def in_space(content: Content, namespace: str) -> Content:
    content["metadata"]["namespace"] = namespace
    return content


def wanted(namespace: str, name: str, cpu: int) -> Content:
    return in_space(asking(f"{namespace}-{name}", cpu, schedulerName="bayplan"), namespace)


def may_view(namespace: str, subject: Content) -> Content:
    binding = head(RBAC, "RoleBinding", f"sees-{subject['name']}")
    of_view = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    return in_space(binding, namespace) | {"roleRef": of_view, "subjects": [subject]}


def account(name: str) -> Content:
    return {"kind": "ServiceAccount", "name": name, "namespace": "default"}


@pytest.fixture(scope="module")
def signed(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The namespaces, the users with their rights, and certificates."""
    folder = tmp_path_factory.mktemp("tenants")
    certificates(folder)
    group = {"kind": "Group", "name": "amber-team", "apiGroup": "rbac.authorization.k8s.io"}
    made = [
        *(head("v1", "Namespace", name, False) for name in SPACES),
        *(head("v1", "ServiceAccount", name) for name in ("ann", "ben", "stranger")),
        *(in_space(head("v1", "ServiceAccount", "default"), name) for name in SPACES),
        may_view("amber", account("ann")),
        may_view("blue", account("ben")),
        may_view("amber", group),
    ]
    client = plane.client
    for one in made:
        answer = client.post(path_of(one, name=False), one)
        assert answer.code in (201, 409), answer
    tokens = {}
    for name in ("ann", "ben", "stranger"):
        path = f"/api/v1/namespaces/default/serviceaccounts/{name}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        tokens[name] = client.post(path, body).json["status"]["token"]
    yield folder, tokens
    for one in reversed(made):
        client.delete(path_of(one))


@dataclass
class Stage:
    """Where the page is served."""

    real: LiveCluster
    signed: tuple[Path, dict[str, str]]
    folder: Path


@pytest.fixture
def stage(signed: Any, real: LiveCluster, tmp_path: Path) -> Stage:
    return Stage(real, signed, tmp_path)


@asynccontextmanager
async def opened(stage: Stage) -> AsyncIterator[Tenants]:
    """Each namespace has a job that runs, and one that waits; the page knows all of them."""
    (folder, tokens), real, tmp_path = stage.signed, stage.real, stage.folder
    (tmp_path / "prices.yaml").write_text(yaml.safe_dump(PRICES))
    journal = Journal(str(tmp_path / "usage.db"))
    address = TenantAddress(
        "127.0.0.1",
        0,
        folder / "server.crt",
        folder / "server.key",
        SignOn(folder / "ca.crt", "client"),
    )
    bills = Bills.of_journal(BillingTermsFiles(tmp_path / "prices.yaml"), journal)
    real.apply([*nodes(2), *(wanted(space, "runs", 5) for space in SPACES)])
    async with (
        aiohttp.ClientSession() as session,
        real.scheduler(tenants=address, journal=journal, bills=bills) as app,
    ):
        await happens(lambda: app.pages is not None)
        assert app.pages is not None
        assert app.pages.tenants is not None
        made = Tenants(real, folder, tokens, session, f"https://127.0.0.1:{app.pages.tenants.port}")
        await happens(lambda: _bound(app) == {"amber/amber-runs", "blue/blue-runs"})
        real.apply([wanted(space, "waits", 5) for space in SPACES])
        await happens(lambda: _says_why(real))
        await happens(lambda: _used(journal) == {*SPACES})
        yield made


def _bound(app: LiveApp) -> set[str]:
    assert app.live is not None
    return set(app.live.scheduler.snapshot.placed)


def _used(journal: Journal) -> set[str]:
    """Return the namespaces of which some use is known to have lasted."""
    return {one.namespace for one in journal.records(0, journal.heartbeat)}


def _says_why(cluster: LiveCluster) -> bool:
    pods = [cluster.items(f"/api/v1/namespaces/{space}/pods") for space in SPACES]
    waiting = [one for own in pods for one in own if one["metadata"]["name"].endswith("waits")]
    return len(waiting) == 2 and all(
        any("Insufficient cpu" in c.get("message", "") for c in one["status"].get("conditions", ()))
        for one in waiting
    )


async def test_each_sees_the_jobs_of_the_namespaces_whose_pods_he_may_list(stage: Stage) -> None:
    async with opened(stage) as page:
        for user, space in (("ann", "amber"), ("ben", "blue"), ("cara", "amber")):
            found = await page.data(user)
            assert set(found["pods"]) == {f"{space}/{space}-runs", f"{space}/{space}-waits"}
            assert set(found["units"]) == set(found["pods"])
            (stint,) = found["pods"][f"{space}/{space}-runs"]["stints"]
            # Of the nodes he sees the one that his pod is on, and not how full it is.
            assert list(found["nodes"]) == [stint[0]]
            assert not {"cpu", "memory"} & found["nodes"][stint[0]].keys()
            why = f"{space}/{space}-waits"
            assert "Insufficient cpu" in found["units"][why]["message"]
            code, text = await page.asked(user, f"/page/explain?unit={why}")
            assert (code, json.loads(text)["state"]) == (200, "Pending")
            assert "Insufficient cpu" in json.loads(text)["message"]
            code, text = await page.asked(user, "/allocation?window=today&aggregate=namespace")
            assert (code, list(json.loads(text)["data"][0])) == (200, [space])


async def test_no_answer_says_a_word_of_another_tenant(stage: Stage) -> None:
    async with opened(stage) as page:
        for user, other in (
            ("ann", "blue"),
            ("ben", "amber"),
            ("cara", "blue"),
            ("stranger", "amber|blue"),
        ):
            for path in ENDPOINTS:
                for one in (path, path.replace("blue", other.split("|")[0])):
                    code, text = await page.asked(user, one)

                    assert not re.search(rf"{other}|__idle__", text), (user, one, text)
                    assert code == (404 if f"unit={other.split('|')[0]}" in one else code), (
                        user,
                        one,
                    )
        # What is not there, and what one may not see, are the same.
        missing = await page.asked("ann", "/page/explain?unit=none/none")
        assert missing == await page.asked("ann", "/page/explain?unit=blue/blue-runs")
        found = await page.data("stranger")
        assert [found[rows] for rows in ("pods", "units", "nodes", "events", "samples")] == [
            {},
            {},
            {},
            [],
            [],
        ]


async def test_what_others_do_moves_nothing_in_the_stream(stage: Stage) -> None:
    async with (
        opened(stage) as page,
        page.following("ann") as events,
        page.following("ben") as of_ben,
    ):
        for index in range(5):
            page.cluster.apply([wanted("blue", f"more-{index}", 1)])
        seen = ""
        while "blue/blue-more-4" not in seen:
            seen = await asyncio.wait_for(of_ben.get(), 20)
        assert events.empty(), events.get_nowait()
        page.cluster.apply([wanted("amber", "more", 1)])
        first = await asyncio.wait_for(events.get(), 20)
        assert "amber/amber-more" in first
        assert "blue" not in first
        assert "version" not in first


async def test_rights_that_are_given_and_taken_count_while_the_page_is_open(
    stage: Stage, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(stage) as page:
        monkeypatch.setattr(tenants, "_RIGHTS_SECONDS", 0.0)
        monkeypatch.setattr(tenants, "_BEAT_SECONDS", 0.2)
        monkeypatch.setattr("bayplan.live.token_reviews._SECONDS", 0.0)
        given = may_view("blue", account("ann"))

        async def again(events: asyncio.Queue[str]) -> None:
            while "event: again" not in await asyncio.wait_for(events.get(), 20):
                pass

        async with page.following("ann") as events:
            assert plane.client.post(path_of(given, name=False), given).code == 201
            await again(events)
        assert any(key.startswith("blue/") for key in (await page.data("ann"))["pods"])
        async with page.following("ann") as events:
            assert plane.client.delete(path_of(given)).code == 200
            await again(events)
        assert not any(key.startswith("blue/") for key in (await page.data("ann"))["pods"])


async def test_nobody_can_say_to_be_signed_on(stage: Stage, tmp_path: Path) -> None:
    async with opened(stage) as page:

        async def ask(user: str = "", proxy: str = "", **headers: str) -> int:
            return (await page.asked(user, "/page/data", proxy, **headers))[0]

        user, group = CARA["X-Remote-User"], CARA["X-Remote-Group"]
        assert await ask(proxy="client", **CARA) == 200
        assert await ask(**CARA) == 401
        assert await ask("ann", **CARA) == 200, "by her token"
        assert set((await page.data("ben", **CARA))["pods"]) == {
            "blue/blue-runs",
            "blue/blue-waits",
        }
        # Signed by the same authority, for somebody else.
        assert await ask(proxy="server", **CARA) == 401
        assert await ask(proxy="client") == 401
        # Nobody who signs on is a part of Kubernetes.
        for name, groups in (("system:admin", group), (user, "staff,system:masters")):
            given = {"X-Remote-User": name, "X-Remote-Group": groups}
            assert await ask(proxy="client", **given) == 401
        # A proxy that adds its headers to those that a client sent says nothing.
        twice = [("X-Remote-User", "admin"), ("X-Remote-User", user), ("X-Remote-Group", group)]
        tls = page._tls("client")
        async with page.session.get(f"{page.url}/page/data", headers=twice, ssl=tls) as answer:
            assert answer.status == 401
        assert await ask(Authorization="Bearer none") == 401
        certificates(tmp_path)
        stranger = ssl.create_default_context(cafile=str(page.folder / "ca.crt"))
        stranger.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
        with pytest.raises(aiohttp.ClientError):
            async with page.session.get(f"{page.url}/page/data", headers=CARA, ssl=stranger):
                pass
        for path in ("/metrics", "/debug/decisions", "/debug/queues", "/page/what-if", "/invoice"):
            assert (await page.asked("ann", path))[0] == 404
