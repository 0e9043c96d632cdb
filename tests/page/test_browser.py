"""The page in a real browser: every view, clicks, the keyboard, times, and hostile names."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import MISSING, Browser, browser
from paths import ROOT
from reading import simulated

from bayplan.cli.report import Recording
from bayplan.cluster.manifests import load_manifests
from bayplan.page import bundle
from bayplan.page import document as document_module
from bayplan.page.bundle import script
from bayplan.page.feed import Feed
from bayplan.page.serving import page_server
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.simulation.arrivals import split_by_arrival
from bayplan.testing import make_node, make_pod

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

EXAMPLES = ROOT / "configs" / "examples"
SHOWN = ("pending", "queues-kueue", "must-gather-preempt")
HOSTILE = "<img src=x onerror=document.title='broken'>"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(autouse=True)
def nothing_wrong(window: Browser) -> Iterator[None]:
    yield
    assert window.errors() == []


def page_of(recording: Recording, simulation: Simulation, folder: Path, **more: object) -> str:
    path = folder / "page.html"
    path.write_text(recording.page(simulation, more))
    return path.as_uri()


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    objects = load_manifests((str(EXAMPLES / request.param),)).objects
    return page_of(*simulated(*split_by_arrival(objects)), tmp_path)


def on(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("example", [name], indirect=True)


# Views ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", SHOWN, indirect=True)
def test_every_view_shows_something_and_asks_no_other_host(window: Browser, example: str) -> None:
    window.open(example)
    views = window.texts("nav a")
    for link in range(len(views)):
        window.all("nav a")[link].click()
        window.settle()
        assert window.text("main h1")
    window.go("#/jobs")
    for href in [one.get_attribute("href") for one in window.all("main td a")][:3]:
        window.driver.get(href or "")
        window.until(lambda: window.texts("main h1"))
    assert window.requests() == []


@on("pending")
def test_why_is_my_job_pending_in_two_clicks(window: Browser, example: str) -> None:
    window.open(example)
    next(one for one in window.all("nav a") if one.text.startswith("Waiting")).click()
    window.find("main table a").click()
    window.until(lambda: "Why it is pending" in window.text("main h2"))
    assert window.texts(".remedies li > span")[0] == "Would fit without MustGather at RackLayer"
    window.find(".remedies button").click()
    window.until(lambda: window.texts(".plus"))
    assert window.texts(".plus") == [f"training-{i} → node-{i + 1}" for i in range(3)]
    assert window.texts(".domains .name") == ["RackLayer/rack-a", "RackLayer/rack-b"]
    assert window.texts(".domains .number") == ["2", "2"]


@on("pending")
def test_a_remedys_nodes_are_marked_on_the_floor(window: Browser, example: str) -> None:
    window.open(example)
    window.go("#/jobs/default%2Ftraining")
    window.until(lambda: window.all(".remedies button"))
    window.find(".remedies button").click()
    window.until(lambda: window.all(".outcome a"))
    window.find(".outcome a").click()
    window.until(lambda: window.all("canvas"))
    assert window.run("return [...bayplanFloor.marked].sort()") == ["node-1", "node-2", "node-3"]


@on("must-gather-preempt")
def test_the_floor_opens_a_node_by_mouse_and_by_keyboard(window: Browser, example: str) -> None:
    window.open(example)
    window.settle()
    tile = window.run(
        """const {x, y, scale} = bayplanFloor.view; const tile = bayplanFloor.tileOf.get("node-6");
        return [x + (tile.x + tile.width / 2) * scale, y + (tile.y + tile.height / 2) * scale];"""
    )
    from selenium.webdriver import ActionChains, Keys

    canvas = window.find("canvas")
    size = canvas.size
    ActionChains(window.driver).move_to_element_with_offset(
        canvas, tile[0] - size["width"] / 2, tile[1] - size["height"] / 2
    ).perform()
    window.until(lambda: "node-6" in window.text(".tip"))
    ActionChains(window.driver).click().perform()
    window.until(lambda: window.texts("main h1") == ["node-6"])
    assert "hp-training-pod" in window.text("main table")

    window.go("#/floor")
    canvas = window.find("canvas")
    canvas.send_keys(Keys.ARROW_RIGHT)
    canvas.send_keys(Keys.ARROW_DOWN)
    assert window.run("return bayplanFloor.chosen") == "node-1"
    canvas.send_keys(Keys.ENTER)
    window.until(lambda: window.texts("main h1") == ["node-1"])


@on("must-gather-preempt")
def test_the_url_keeps_the_view(window: Browser, example: str) -> None:
    window.open(example)
    window.run("bayplanFloor.zoom(2)")
    from selenium.webdriver.support.ui import Select

    Select(window.find("#mode")).select_by_value("tenant")
    window.until(lambda: "at=" in window.driver.current_url)
    url, view = window.driver.current_url, window.run("return bayplanFloor.view")
    assert "by=tenant" in url
    window.driver.get("about:blank")
    window.driver.get(url)
    window.until(lambda: window.all("canvas"))
    window.settle()
    assert window.run("return bayplanFloor.mode") == "tenant"
    again = window.run("return bayplanFloor.view")
    assert again["scale"] == pytest.approx(view["scale"], abs=0.01)


@on("queues-kueue")
def test_time_goes_back_and_forth(window: Browser, example: str) -> None:
    window.open(example)
    window.go("#/jobs?state=running")
    assert window.texts("main td:first-child") == [], "at the end nothing runs"
    back = window.find("button[aria-label='one step back']")
    for _ in range(4):
        back.click()
    window.settle()
    before = window.text(".clock")
    assert "of" in before
    window.until(lambda: window.texts("main td:first-child"))
    window.find("button[aria-label='one step forwards']").click()
    window.settle()
    assert window.text(".clock") != before
    assert "t=" in window.driver.current_url


def test_a_machine_is_drawn_with_its_links_and_a_ring(window: Browser, tmp_path: Path) -> None:
    node = make_node("m", cpu=16, gpu=8, annotations={"bayplan.dev/machine": "dgx-1v"})
    pod = make_pod("ring", cpu=1, gpu=4)
    window.open(page_of(*simulated([node, pod]), tmp_path) + "#/floor/m")
    window.until(lambda: window.all("svg.machine"))
    assert len(window.all("svg.machine g.gpu")) == 8
    assert len(window.all("svg.machine rect.numa")) == 2
    assert len(window.all("svg.machine .nvlink path")) == 16
    rings = window.run(
        "return [...document.querySelectorAll('.machine > g > title')].map((t) => t.textContent)"
    )
    assert [text[:22] for text in rings if "ring" in text] == ["ring of default/ring: "]


def test_jobs_are_searched_and_sorted(window: Browser, tmp_path: Path) -> None:
    pods = [make_pod(f"p{i}", cpu=1, priority=i) for i in range(12)]
    window.open(page_of(*simulated([make_node("n", cpu=40), *pods]), tmp_path))
    window.go("#/jobs")
    assert window.texts("main td:first-child")[:3] == ["default/p0", "default/p1", "default/p2"]
    window.go("#/jobs?sort=priority-down")
    assert window.texts("main td:first-child")[0] == "default/p11"
    window.find("#search").send_keys("p1")
    window.settle()
    assert sorted(window.texts("main td:first-child")) == [
        "default/p1",
        "default/p10",
        "default/p11",
    ]


# Hostile names, accessibility, layout ----------------------------------------------------------


def test_hostile_texts_of_every_kind_stay_text(window: Browser, tmp_path: Path) -> None:
    objects = [
        make_node("n", cpu=8, labels={"team": HOSTILE}, taints=[f"{HOSTILE}=x:NoSchedule"]),
        make_pod("p", cpu=1, annotations={"a": HOSTILE}, labels={"l": HOSTILE}),
        make_pod("q", cpu=1, spec={"schedulingGates": [{"name": HOSTILE}]}),
    ]
    recording, simulation = simulated(objects)
    # An API server refuses such names; the page does not count on it.
    data = recording.content(simulation)
    row = data["pods"]["default/p"]
    data["pods"] = {HOSTILE: {**row, "unit": HOSTILE, "nominated": HOSTILE}}
    data["units"] = {HOSTILE: {"queue": HOSTILE, "message": HOSTILE, "outcome": HOSTILE}}
    data["nodes"] = {HOSTILE: {**data["nodes"]["n"], "domain": 0, "models": [HOSTILE]}}
    data["floor"] = {
        "layers": [HOSTILE],
        "domains": [{"name": HOSTILE, "layer": 0, "parent": None}],
    }
    data["events"] = [[0, HOSTILE, HOSTILE, HOSTILE, HOSTILE]]
    about = {"message": HOSTILE, "state": "Pending", "nodes": 3}
    about["filtered"] = [
        {"plugin": HOSTILE, "removed": 1, "left": 2, "reasons": [{"count": 1, "reason": HOSTILE}]}
    ]
    about["suggestions"] = [{"text": HOSTILE, "places": {HOSTILE: HOSTILE}, "ends": [HOSTILE]}]
    about["domains"] = [{"name": HOSTILE, "state": "refused", "reason": HOSTILE, "offered": 1}]
    about["finalists"] = [{"node": HOSTILE, "total": 1, "scores": {HOSTILE: 1}}]
    data |= {"details": {HOSTILE: about}, "notes": [HOSTILE], "refused": {HOSTILE: HOSTILE}}
    from bayplan.page.document import document

    path = tmp_path / "hostile.html"
    path.write_text(document(HOSTILE, data))
    window.open(path.as_uri())
    for place in ("floor", "jobs", "waiting", "time", "queues", "pools", "bills", "lab"):
        window.go(f"#/{place}")
    for view in ("floor", "jobs", "queues"):
        subject = window.run("return encodeURIComponent(arguments[0])", HOSTILE)
        window.go(f"#/{view}/{subject}")
        window.until(lambda: window.texts("main h1"))
    for button in window.all(".remedies button"):
        button.click()
    assert window.all("main img") == []
    assert window.driver.title != "broken"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("example", ["pending", "queues-kueue"], indirect=True)
def test_a_screen_reader_and_the_colour_blind_find_nothing_serious(
    window: Browser, example: str, theme: str
) -> None:
    from axe_core_python.selenium import Axe

    window.open(example)
    window.run("document.documentElement.dataset.theme = arguments[0]", theme)
    places = ["#/floor", "#/jobs", "#/waiting", "#/time", "#/queues"]
    jobs = [one.get_attribute("href") for one in window.all("main td a")][:1]
    for place in [*places, *(str(href).partition("#")[2] for href in jobs)]:
        window.go(place if place.startswith("#") else f"#{place}")
        found = Axe().run(window.driver)
        serious = [
            (place, one["id"], [node["html"] for node in one["nodes"]][:3])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == []


@pytest.mark.parametrize("width", [1400, 420])
@on("queues-kueue")
def test_nothing_is_wider_than_the_window(window: Browser, example: str, width: int) -> None:
    window.driver.set_window_size(width, 900)
    try:
        window.open(example)
        for place in ("floor", "jobs", "waiting", "time", "queues"):
            window.go(f"#/{place}")
            wide = window.run("return document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, place
    finally:
        window.driver.set_window_size(1400, 900)


@on("must-gather-preempt")
def test_the_page_looks_like_the_picture_in_the_documents(
    window: Browser, example: str, tmp_path: Path
) -> None:
    """Blocks of 20 by 20 pixels are compared, so that another font makes no difference.

    ``BAYPLAN_PICTURES=1 pytest tests/page`` takes a new picture.
    """
    window.driver.set_window_size(1200, 800)
    try:
        window.open(example)
        window.run("document.documentElement.dataset.theme = 'light'; bayplanFloor.fit()")
        window.run("document.querySelector('.title').textContent = 'bayplan: example'")
        window.settle()
        own = tmp_path / "page.png"
        window.picture(own)
        known = ROOT / "docs" / "page.png"
        if os.environ.get("BAYPLAN_PICTURES"):
            known.write_bytes(own.read_bytes())
        pictures = [base64.b64encode(path.read_bytes()).decode() for path in (known, own)]
        # A picture inside a page is forbidden by its policy; another page compares them.
        window.driver.get("data:text/html,<h1>pictures</h1>")
        assert window.driver.execute_async_script(DIFFERENCE, *pictures) < 12
    finally:
        window.driver.set_window_size(1400, 900)


DIFFERENCE = """
const [first, second, done] = arguments;
const read = async (data) => {
  const picture = new Image();
  picture.src = `data:image/png;base64,${data}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [60, 40];
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, 0, 0, 60, 40);
  return context.getImageData(0, 0, 60, 40).data;
};
Promise.all([read(first), read(second)]).then(([a, b]) => {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += Math.abs(a[i] - b[i]);
  done(sum / a.length);
});
"""


def test_the_view_of_the_documents_works(
    window: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "page.md").read_text().partition("```js\n")[2].partition("```")[0]
    modules = {**bundle._modules(), "views/z_models.js": text}
    monkeypatch.setattr(bundle, "_modules", lambda: modules)
    monkeypatch.setattr(document_module, "script", script.__wrapped__)
    node = make_node("m", cpu=16, gpu=8, labels={"bayplan.dev/machine": "dgx-h100"})
    window.open(page_of(*simulated([node]), tmp_path) + "#/models")
    window.until(lambda: window.texts("main h1") == ["Models"])
    assert window.texts("main td") == ["NVIDIA H100 80GB HBM3", "8"]


# Live -------------------------------------------------------------------------------------------


def test_a_page_that_is_served_shows_a_binding_at_once(window: Browser) -> None:
    simulation = Simulation(default_profiles())
    feed = Feed("test")
    feed.follow(simulation.scheduler)
    simulation.cluster.watch(feed.handle)
    simulation.create([make_node("n", cpu=4), make_pod("first", cpu=1)])
    simulation.run()
    loop = asyncio.new_event_loop()
    started, ended = threading.Event(), asyncio.Event()
    url = ""

    async def serve() -> None:
        nonlocal url
        async with page_server(feed, 0) as url:
            started.set()
            await ended.wait()

    def come() -> None:
        simulation.create([make_pod("second", cpu=1)])
        simulation.run()

    server = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    server.start()
    try:
        assert started.wait(30)
        window.open(url)
        window.go("#/jobs")
        window.until(lambda: window.text(".state") == "live")
        assert window.texts("main td:first-child") == ["default/first"]
        loop.call_soon_threadsafe(come)
        window.until(lambda: "default/second" in window.texts("main td:first-child"))
        assert "running" in window.text("main table")
        assert all(address.startswith(url) for address in window.requests())
        window.driver.get("about:blank")
    finally:
        loop.call_soon_threadsafe(ended.set)
        server.join(30)
        loop.close()
