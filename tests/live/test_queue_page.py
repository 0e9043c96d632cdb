"""The scheduler's page about queues, and bayplan queue on a cluster."""

from __future__ import annotations

import aiohttp
from tests.live.queue_builders import queue
from tests.live.stage import stage

from bayplan.testing import make_node, make_pod


async def test_the_page_shows_queues_as_bayplan_queue_does() -> None:
    in_queue = {"scheduling.volcano.sh/queue-name": "a"}
    objects = [make_node("n", cpu=4), queue("a"), make_pod("p", cpu=1, annotations=in_queue)]
    async with stage(objects) as made:
        app = await made.start()
        await made.run_out(1)
        url = f"http://127.0.0.1:{app.listener.port}/debug/queues"
        async with aiohttp.ClientSession() as session:

            async def get(**params: str) -> tuple[int, str]:
                async with session.get(url, params=params) as answer:
                    return answer.status, await answer.text()

            status, text = await get()
            assert status == 200
            assert text.splitlines()[1].startswith("a ")
            assert (await get(view="tree"))[1].startswith("volcano")
            assert "Line" in (await get(view="show", name="a"))[1]
            assert '"used": 1000.0' in (await get(output="json"))[1]
            assert await get(view="show", name="b") == (404, 'there is no queue "b"\n')
            assert (await get(view="x"))[0] == 400


async def test_a_cluster_without_queues_says_so() -> None:
    async with stage([make_node("n")]) as made:
        app = await made.start()
        url = f"http://127.0.0.1:{app.listener.port}/debug/queues"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 404
            assert (await answer.text()).startswith("there is no queue")
