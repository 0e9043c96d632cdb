"""The page in a real browser: every view, clicks, the keyboard, times, and hostile names."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from tests.page.browser import MISSING, Browser, browser
from tests.page.reading import data_of, simulated
from tests.page.watched import watched
from tests.paths import ROOT

from bayplan.cli import cli
from bayplan.cli.report import Recording
from bayplan.cluster.manifests import load_manifests
from bayplan.page import bundle
from bayplan.page import document as document_module
from bayplan.page.bundle import script
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
def test_the_why_begins_with_a_sentence_and_bars_have_scales(window: Browser, example: str) -> None:
    window.open(example)
    window.go("#/waiting")
    sentence = "No RackLayer has room for 3 pods; the best, rack-a, has room for 2."
    assert sentence in window.texts("h2.message")
    raw = window.texts(".reason .raw")
    assert len(raw) == 1
    window.go("#/jobs/default%2Ftraining")
    window.until(lambda: window.all(".remedies"))
    assert window.texts(".message, .raw") == [sentence, *raw]
    assert window.texts(".domains .scale i") == ["0", "3 slots"]


def test_what_runs_gets_the_colours_that_can_be_told_apart(window: Browser, tmp_path: Path) -> None:
    node = make_node("n", cpu=16, gpu=4)
    large = [make_pod(f"large-{i}", cpu=1, gpu=8) for i in range(20)]
    small = [make_pod(f"small-{i}", cpu=1, gpu=1) for i in range(4)]
    window.open(page_of(*simulated([node, *large, *small]), tmp_path) + "#/jobs?state=running")
    window.until(lambda: window.all("td .swatch"))
    swatches = "[...document.querySelectorAll('td .swatch')]"
    colours = f"return {swatches}.map((one) => one.style.background)"
    running = window.run(colours)
    assert len(set(running)) == 4
    window.go("#/jobs?state=pending")
    assert not set(running) & set(window.run(colours)[:8])


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
def test_a_url_shows_the_same_place_in_a_window_of_another_size(
    window: Browser, example: str
) -> None:
    window.driver.set_window_size(600, 900)
    try:
        window.open(example + "#/floor?at=node-5+20+15+4")
        window.settle()
        middle = window.run(
            "const {width, height} = bayplanFloor.box, {x, y, scale} = bayplanFloor.view;"
            "return bayplanFloor.index.at((width / 2 - x) / scale, (height / 2 - y) / scale).node"
        )
        assert middle == "node-5"
        window.driver.set_window_size(1300, 700)
        window.until(lambda: window.run("return bayplanFloor.where()") == "node-5 20 15 4.000")
    finally:
        window.driver.set_window_size(1400, 900)


@pytest.mark.parametrize("width", [1400, 420])
def test_the_floor_takes_the_form_of_the_window(
    window: Browser, tmp_path: Path, width: int
) -> None:
    nodes = [make_node(f"n{i}", cpu=8, gpu=8) for i in range(200)]
    window.driver.set_window_size(width, 900)
    try:
        window.open(page_of(*simulated(nodes), tmp_path))
        window.settle()
        used = window.run(
            "const {box, plan, view} = bayplanFloor; "
            "return plan.width * plan.height * view.scale ** 2 / (box.width * box.height)"
        )
        assert used > 0.75
    finally:
        window.driver.set_window_size(1400, 900)


@on("gpu-nic-pcie-root")
def test_the_mouse_over_a_cell_tells_whose_it_is(window: Browser, example: str) -> None:
    window.open(example)
    window.settle()
    from selenium.webdriver import ActionChains

    canvas = window.find("canvas")
    size = canvas.size
    for x, y, told in ((5, 15, "GPU 0: default/train-0"), (4, 36, "NIC mlx5_0: default/train-0")):
        place = window.run(
            "const {x, y, scale} = bayplanFloor.view, tile = bayplanFloor.tileOf.get('dgx-1');"
            "return [x + (tile.x + arguments[0]) * scale, y + (tile.y + arguments[1]) * scale];",
            x,
            y,
        )
        ActionChains(window.driver).move_to_element_with_offset(
            canvas, place[0] - size["width"] / 2, place[1] - size["height"] / 2
        ).perform()
        window.until(lambda told=told: told in window.text(".tip"))


def test_a_live_page_waits_while_text_is_selected(window: Browser) -> None:
    with watched([make_node("n", cpu=4), make_pod("first", cpu=1)]) as (url, act):
        window.open(f"{url}#/jobs")
        window.until(lambda: window.text(".state") == "live")
        window.run("getSelection().selectAllChildren(document.querySelector('main td a'))")
        act(lambda simulation: simulation.create([make_pod("second", cpu=1)]))
        window.until(lambda: window.text(".state") == "paused")
        assert window.run("return String(getSelection())") == "default/first"
        window.run("getSelection().removeAllRanges()")
        window.until(lambda: "default/second" in window.text("main"))
        assert window.text(".state") == "live"
        window.driver.get("about:blank")


@on("gang-in-nvlink-domain")
def test_nodes_that_share_an_nvlink_domain_stand_together(window: Browser, example: str) -> None:
    window.open(example)
    boxes = window.run(
        "return bayplanFloor.plan.boxes.filter((one) => one.domain.title)"
        ".map((one) => [one.domain.title.slice(0, 9), one.domain.nodes])"
    )
    assert [title for title, _ in boxes] == ["NVLink 6e"] * 3
    assert boxes[2][1] == ["tray-08", "tray-09", "tray-10", "tray-11"]


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


@on("queues-kueue")
def test_links_stay_at_the_time_shown_and_going_back_returns_to_it(
    window: Browser, example: str
) -> None:
    window.open(example)
    window.find("button[aria-label='one step back']").click()
    window.settle()
    shown = window.text(".clock")
    assert "of" in shown
    window.go("#/jobs" + window.run("return location.hash.replace(/^[^?]*/, '')"))
    window.find("main td a").click()
    window.until(lambda: "#/jobs/" in window.driver.current_url)
    assert "t=" in window.driver.current_url, "a copied URL shows the same time"
    assert window.text(".clock") == shown
    window.find(".times > button:last-child").click()
    window.settle()
    assert window.text(".clock") != shown
    assert "t=" not in window.driver.current_url
    window.driver.back()
    window.until(lambda: window.text(".clock") == shown)


@on("must-gather-preempt")
def test_a_job_that_has_ended_needs_no_explanation(window: Browser, example: str) -> None:
    window.open(example)
    window.go("#/jobs/default%2Flow-priority-pod-5")
    assert "1 ended" in window.text(".facts")
    assert "was on node-5" in window.text("main table")
    assert window.texts("main h2") == ["What happened"]


@on("pending")
def test_what_only_the_kubelet_knows_is_not_stated(window: Browser, example: str) -> None:
    window.open(example)
    window.go("#/floor/node-4")
    assert "2 (the kubelet chooses which)" in window.text("main table")


def test_charts_of_counts_have_whole_numbers(window: Browser, tmp_path: Path) -> None:
    pods = [make_pod(f"p{i}", cpu=1) for i in range(3)]
    window.open(page_of(*simulated([make_node("n", cpu=8), *pods]), tmp_path))
    window.go("#/time")
    axis = window.run(
        "return [...document.querySelectorAll('.chart')].map((one) => "
        "[...one.querySelectorAll('.axis.end')].slice(0, 3).map((text) => text.textContent))"
    )
    assert ["0", "2", "4"] in axis
    assert axis[-1] == ["0", "1", "2"], "evictions"


def test_times_are_read_as_people_read_them(window: Browser, tmp_path: Path) -> None:
    later = [(at, make_pod(f"at-{at:g}", cpu=1)) for at in (630.0, 100_805.0)]
    window.open(page_of(*simulated([make_node("n", cpu=8)], later), tmp_path))
    window.go("#/time")
    times = window.texts(".timeline .time")
    assert "10m 30s" in times
    assert "1d 4h" in times
    assert window.text(".clock") == "the end, 1d 4h"


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


def test_a_machine_without_known_nvlinks_has_no_ring(window: Browser, tmp_path: Path) -> None:
    node = make_node("m", cpu=16, gpu=8, annotations={"bayplan.dev/machine": "l40s-pcie"})
    window.open(page_of(*simulated([node, make_pod("p", cpu=1, gpu=4)]), tmp_path) + "#/floor/m")
    window.until(lambda: window.all("svg.machine"))
    assert window.all("svg.machine .ring") == []
    assert "No NVLink is known between its GPUs" in window.text("main")


@on("gpu-nic-pcie-root")
def test_a_machine_is_drawn_from_what_drivers_publish(window: Browser, example: str) -> None:
    window.open(example + "#/floor/dgx-1")
    window.until(lambda: window.all("svg.machine"))
    assert len(window.all("svg.machine g.gpu")) == 8
    assert len(window.all("svg.machine rect.numa")) == 2
    assert len(window.all("svg.machine rect.root")) == 8
    titles = window.run("return [...document.querySelectorAll('title')].map((t) => t.textContent)")
    assert "NVLink domain dgx-1: 8 GPUs" in titles
    assert any(re.match(r"mlx5_0: default/train-0-", title) for title in titles)
    assert "which NVLinks there are" in window.text("main")
    assert window.all("svg.machine .ring") == [], "no ring where no link is known"
    window.go("#/floor")
    nics = window.run("return bayplanFloor.model.on('dgx-1').nics.map((one) => one[0].unit)")
    assert len(nics) == 8


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


@pytest.mark.parametrize(
    "example", ["queues-plain-fair-share", "queues-elastic-jobs", "queues-kueue"], indirect=True
)
def test_figures_of_queues_up_to_a_time_are_those_of_the_simulation(
    window: Browser, example: str
) -> None:
    """The page sums up what happened itself where nobody else does: live, and at earlier times."""
    data = data_of(Path(urlsplit(example).path).read_text())
    window.open(example)
    window.go(f"#/queues?t={data['now'] - 0.001}")
    rows = window.run(
        "return [...document.querySelectorAll('main section tbody tr')]"
        ".map((row) => [...row.children].map((cell) => cell.innerText))"
    )
    shown = {name: (share, started, evicted) for name, share, started, *_, evicted in rows}
    told = {
        name: (
            f"{round(100 * one['meanShare'])} %",
            str(one["wait"]["started"]),
            str(one["evictions"]),
        )
        for name, one in data["statistics"]["queues"].items()
    }
    assert shown == told
    for name, *_, longest, _ in rows:
        waited = data["statistics"]["queues"][name]["wait"]["max"]
        assert _seconds(longest) == waited - waited % (60 if waited >= 3600 else 1), name
    assert window.all("main .chart svg path.line"), "shares over time"


@on("queues-plain-fair-share")
def test_an_evicted_job_is_there_before_and_after_and_says_why_it_waited(
    window: Browser, example: str
) -> None:
    data = data_of(Path(urlsplit(example).path).read_text())
    window.open(example)
    sample = next(one for one in data["samples"] if one[5] and one[0] > 630)
    window.go(f"#/waiting?t={sample[0] + 1}")
    summary = window.text("main p")
    assert f"with {sample[5]} pods without a node" in summary
    reasons = window.texts("main h2.message")
    assert reasons
    assert "Placed" not in reasons, "the reasons are those of the time"
    assert "not tried yet" not in reasons


def _seconds(text: str) -> float:
    """Return the seconds of a time such as "1h 50m"."""
    sizes = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    return sum(float(n) * sizes[unit] for n, unit in re.findall(r"([\d.]+) ?([smhd])", text))


# Paper ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
@on("pending")
def test_paper_has_the_content_without_the_controls(
    window: Browser, example: str, theme: str
) -> None:
    """In dark letters on white, whatever the theme is."""
    window.open(example)
    window.run("document.documentElement.dataset.theme = arguments[0]", theme)
    window.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        for place, content in (
            ("#/jobs/default%2Ftraining", "Would fit without MustGather at RackLayer"),
            ("#/jobs", "default/notebook"),
            ("#/waiting", "no candidate topology nodes"),
            ("#/floor/node-4", "2 of 8 in use"),
            ("#/time", "Evictions"),
        ):
            window.go(place)
            window.until(lambda content=content: content in window.text("main"))
            seen = window.run(
                "return [...document.querySelectorAll(arguments[0])]"
                ".filter((one) => one.getClientRects().length).map((one) => one.outerHTML)",
                "nav, button:not(.time), input, select, .tools, .state",
            )
            assert seen == [], place
            assert _luminance(window.run("return getComputedStyle(document.body).color")) < 0.2
            colours = window.run(
                "return [...document.querySelectorAll('main *')]"
                ".map((one) => getComputedStyle(one).color)"
            )
            assert max(_luminance(colour) for colour in set(colours)) < 0.55, place
        window.go("#/floor")
        window.until(lambda: window.all("canvas"))
        window.settle()
        corner = window.run(
            "const canvas = document.querySelector('canvas');"
            "return [...canvas.getContext('2d').getImageData(2, 2, 1, 1).data]"
        )
        assert min(corner[:3]) > 230, "white paper under the floor"
        printed = window.driver.execute_cdp_cmd("Page.printToPDF", {})
        assert base64.b64decode(printed["data"])[:5] == b"%PDF-"
    finally:
        window.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def _luminance(colour: str) -> float:
    """Return how light a CSS colour is, between 0 and 1."""
    red, green, blue = (float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


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


@pytest.mark.parametrize("width", [1400, 1000, 700, 420])
@on("queues-kueue")
def test_nothing_is_wider_than_the_window(window: Browser, example: str, width: int) -> None:
    window.driver.set_window_size(width, 900)
    try:
        window.open(example)
        for place in ("floor", "jobs", "waiting", "time", "queues"):
            window.go(f"#/{place}")
            wide = window.run("return document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, place
            tall = window.run("return document.querySelector('header').offsetHeight")
            assert tall < 140, "what stays at the top leaves room for the rest"
    finally:
        window.driver.set_window_size(1400, 900)


@on("must-gather-preempt")
def test_the_page_looks_like_the_picture_in_the_documents(
    window: Browser, example: str, tmp_path: Path
) -> None:
    """Blocks of 20 by 20 pixels are compared, so that another font makes no difference.

    ``BAYPLAN_PICTURES=1 pytest tests/page`` takes a new cluster_view.
    """
    window.driver.set_window_size(1200, 800)
    try:
        window.open(example)
        window.run("document.documentElement.dataset.theme = 'light'; bayplanFloor.fit()")
        window.run("document.querySelector('.title').textContent = 'bayplan: example'")
        window.settle()
        own = tmp_path / "page.png"
        window.cluster_view(own)
        known = ROOT / "docs" / "page.png"
        if os.environ.get("BAYPLAN_PICTURES"):
            known.write_bytes(own.read_bytes())
        pictures = [base64.b64encode(path.read_bytes()).decode() for path in (known, own)]
        # A cluster_view inside a page is forbidden by its policy; another page compares them.
        window.driver.get("data:text/html,<h1>pictures</h1>")
        assert window.driver.execute_async_script(DIFFERENCE, *pictures) < 12
    finally:
        window.driver.set_window_size(1400, 900)


DIFFERENCE = """
const [first, second, done] = arguments;
const read = async (data) => {
  const cluster_view = new Image();
  cluster_view.src = `data:image/png;base64,${data}`;
  await cluster_view.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [60, 40];
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(cluster_view, 0, 0, 60, 40);
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


# The lab ----------------------------------------------------------------------------------------


def test_the_lab_shows_what_another_profile_changes(window: Browser, tmp_path: Path) -> None:
    profiles, page = ROOT / "configs" / "profiles", tmp_path / "page.html"
    arguments = ["-f", str(EXAMPLES / "queues-plain-fifo"), "--until", "30m"]
    arguments += ["--config", str(profiles / "plain-fifo.yaml")]
    arguments += ["--compare", str(profiles / "plain-priority.yaml"), "--report", str(page)]
    result = CliRunner().invoke(cli, ["simulate", *arguments])
    assert result.exit_code == 0, result.output
    window.open(page.as_uri() + "#/lab")
    window.until(lambda: window.texts("main h1") == ["Policy lab"])
    assert "plain-priority.yaml against" in window.text("main h2")
    outcomes, jobs = window.all("main table")
    assert "pods evicted 0 4" in outcomes.text
    rows = [row for row in jobs.text.splitlines() if row.startswith("default/urgent")]
    assert len(rows) == 1
    assert "no node" in rows[0], "it waited with the first profile"
    assert "n0" in rows[0], "and runs with the other"


# Live -------------------------------------------------------------------------------------------


def test_a_page_that_is_served_shows_a_binding_at_once(window: Browser) -> None:
    with watched([make_node("n", cpu=4), make_pod("first", cpu=1)]) as (url, act):
        window.open(url)
        window.go("#/jobs")
        window.until(lambda: window.text(".state") == "live")
        assert window.texts("main td:first-child") == ["default/first"]
        act(lambda simulation: simulation.create([make_pod("second", cpu=1)]))
        window.until(lambda: "default/second" in window.texts("main td:first-child"))
        assert "running" in window.text("main table")
        assert all(address.startswith(url) for address in window.requests())
        window.driver.get("about:blank")


def test_what_changes_leaves_what_is_looked_at(window: Browser) -> None:
    """A remedy that is shown, and what has the focus, outlast what comes from the server."""
    objects = load_manifests((str(EXAMPLES / "pending"),)).objects
    with watched(objects) as (url, act):
        window.open(f"{url}#/jobs/default%2Ftraining")
        window.until(lambda: window.all(".remedies button"))
        window.find(".remedies button").click()
        window.until(lambda: window.texts(".plus"))
        window.run("document.querySelector('.timeline li:nth-child(2) button').focus()")
        act(lambda simulation: simulation.create([make_pod("huge", cpu=1000)]))
        window.until(lambda: window.texts(".badge") == ["2"])
        assert window.texts(".plus") == [f"training-{i} → node-{i + 1}" for i in range(3)]
        focus = "return document.activeElement === document.querySelectorAll('.time')[1]"
        assert window.run(focus)
        window.driver.get("about:blank")


def test_a_page_of_a_cluster_shows_the_time_of_clocks(window: Browser) -> None:
    with watched([make_node("n", cpu=4), make_pod("first", cpu=1)], wall=True) as (url, _):
        window.open(f"{url}#/jobs/default%2Ffirst")
        moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
        assert re.fullmatch(f"now, {moment}", window.text(".clock"))
        created = window.texts(".timeline .time")
        assert re.fullmatch(moment, created[0])
        window.driver.get("about:blank")


def test_what_a_simulated_autoscaler_bought_is_shown_with_its_reason(
    window: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    groups, profile = "configs/node-groups/gpus.yaml", "configs/profiles/autoscaling.yaml"
    given = ["-f", str(EXAMPLES / "growing"), "--config", profile, "--node-groups", groups]
    done = CliRunner().invoke(cli, ["simulate", *given, "--until", "1m", "--report", str(page)])
    assert done.exit_code == 0, done.output
    window.open(page.as_uri())
    window.go("#/growth")
    shown = " ".join(window.text("main").split())
    assert "default/train 4 ProvisioningRequest train-" in shown
    assert "is provisioned: its nodes are coming." in shown
    assert "gpu-a 4 of 8 4 0" in shown
    assert "gpu-a-4 bought for ProvisioningRequest default/train-" in shown


def test_what_became_of_jobs_when_nodes_failed_is_shown_with_its_reasons(
    window: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    given = ["-f", str(EXAMPLES / "recovery"), "--config", "configs/profiles/recovery.yaml"]
    given += ["--mtbf", "100000", "--until", "2h", "--report", str(page)]
    done = CliRunner().invoke(cli, ["simulate", *given])
    assert done.exit_code == 0, done.output
    window.open(page.as_uri())
    window.go("#/recovery")
    shown = " ".join(window.text("main").split())
    assert "Goodput " in shown
    assert "b5 rack/b" in shown
    assert "recovery: node a1 is lost, its kubelet is silent" in shown
    assert "faults 2 330" in shown or "faults 1 330" in shown
