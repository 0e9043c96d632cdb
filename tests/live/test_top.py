"""bayplan top on a cluster: the scheduler's page, and what the objects say without one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import msgspec
import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry
from tests.cluster.apiserver.faces import serving
from tests.live.stage import stage

from bayplan.api import ApiObject, Pod
from bayplan.cli import cli, watching
from bayplan.cluster.embedded.assembly import create_in_order
from bayplan.explain.overview import Overview
from bayplan.live.address import Address, Listener
from bayplan.live.web import WebPage
from bayplan.testing import make_node, make_pod


async def test_the_page_shows_a_cluster_as_bayplan_top_does() -> None:
    objects = [make_node("n", cpu=4), make_pod("p", cpu=1), make_pod("large", cpu=16)]
    async with stage(objects) as made:
        app = await made.start()
        await made.run_out(1)
        url = f"http://127.0.0.1:{app.listener.port}/debug/top"
        async with aiohttp.ClientSession() as session:
            async with session.get(url) as answer:
                text = await answer.text()
            async with session.get(url, params={"output": "json"}) as answer:
                found = msgspec.convert(await answer.json(), Overview)
    assert text.startswith("1 node, 1 pod on nodes, 1 pending of 1 job\n")
    assert (found.node_count, found.placed, found.waiting) == (1, 1, 1)
    assert "Insufficient cpu" in found.pending[0].why


async def test_a_scheduler_that_stands_by_is_not_asked() -> None:
    async def nobody(token: str, path: str) -> bool:
        return False

    listener = Listener(Address(port=0))
    listener.open()
    page = WebPage(
        listener,
        CollectorRegistry(),
        lambda: "not every kind is listed yet",
        lambda: None,
        lambda key: None,
        lambda: (),
        nobody,
        nobody,
    )
    await page.start()
    try:
        url = f"http://127.0.0.1:{listener.port}/debug/top"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 503
    finally:
        await page.stop()


def test_without_a_scheduler_the_objects_tell(tmp_path: Path) -> None:
    with serving() as face:
        kubeconfig = tmp_path / "kubeconfig"
        face.server.write_kubeconfig(kubeconfig)
        objects = [make_node("n", cpu=4), make_pod("p", cpu=1, node="n"), make_pod("q", cpu=1)]
        face.do(lambda server: create_in_order(server.cluster, objects))
        before = face.do(lambda server: server.cluster.list(Pod))
        given = ["top", "--kubeconfig", str(kubeconfig), "-o", "json"]
        result: Result = CliRunner().invoke(cli, given, catch_exceptions=False)
        after = face.do(lambda server: server.cluster.list(Pod))
    assert "no scheduler of it has ever led here" in result.stderr
    found = msgspec.convert(json.loads(result.stdout), Overview)
    assert (found.node_count, found.placed, found.waiting) == (1, 1, 1)
    assert found.pending[0].why == "not tried yet"
    assert before == after


def test_explain_asks_a_cluster_again_until_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as face:
        kubeconfig = tmp_path / "kubeconfig"
        face.server.write_kubeconfig(kubeconfig)

        def create(*objects: ApiObject) -> None:
            face.do(lambda server: create_in_order(server.cluster, objects))

        waits = iter([lambda: create(make_node("n", cpu=4)), None])

        def sleep(seconds: float) -> None:
            meanwhile = next(waits)
            if meanwhile is None:
                raise KeyboardInterrupt
            meanwhile()

        create(make_pod("p", cpu=1))
        monkeypatch.setattr(watching, "time", SimpleNamespace(sleep=sleep, strftime=time.strftime))
        given = ["explain", "p", "-w", "--kubeconfig", str(kubeconfig)]
        result = CliRunner().invoke(cli, given, catch_exceptions=False)
    assert result.exit_code == 0
    first, second = result.stdout.split("Simulated:")[1:]
    assert "default/p is pending" in first
    assert "default/p would be on n" in second
