"""The page: its size, what it costs a scheduler, and how fast a browser draws it."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.cli.report import Recording
from bayplan.page.feed import Feed
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_pod

__all__ = ["page"]

_SECONDS = 20
_PODS_PER_SECOND = 50
"""Each is created, bound and ends, and its job is decided: four changes."""


def _cluster(nodes: int) -> list[Any]:
    return [
        make_node(f"node-{index}", cpu=96, gpu=8, labels={"bayplan.dev/machine": "dgx-h100"})
        for index in range(nodes)
    ]


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    figures: dict[str, float] = {}
    simulation = Simulation(default_profiles())
    recording = Recording("bench")
    recording(simulation)
    simulation.create(_cluster(nodes))
    simulation.create(make_pod(f"pod-{index}", cpu=1, gpu=1) for index in range(pods))
    simulation.run()
    started = time.perf_counter()
    text = recording.page(simulation)
    figures["fileSeconds"] = round(time.perf_counter() - started, 2)
    figures["fileMiB"] = round(len(text) / 2**20, 2)
    figures |= _cost(nodes)
    figures |= _browser(text)
    return BenchmarkResult({"nodes": nodes, "pods": pods}, figures)


def _cost(nodes: int) -> dict[str, float]:
    """Return what a live page costs: percent of a core at 200 changes a second, and MiB."""
    simulation = Simulation(default_profiles())
    feed = Feed("bench")
    feed.follow(simulation.scheduler)
    spent = 0.0

    def handle(event: Any) -> None:
        nonlocal spent
        started = time.process_time()
        feed.handle(event)
        spent += time.process_time() - started

    simulation.cluster.watch(handle)
    simulation.create(_cluster(nodes))
    simulation.run()
    tracemalloc.start()
    feed.look(0.0)
    feed.join(feed.version)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    spent, number = 0.0, 0
    for second in range(_SECONDS):
        for half in (0.0, 0.5):
            short = {"bayplan.dev/duration": "8s"}
            for _ in range(_PODS_PER_SECOND // 2):
                simulation.create([make_pod(f"p{number}", cpu=1, gpu=1, annotations=short)])
                number += 1
            simulation.outlast(second + half)
            started = time.process_time()
            feed.look(second + half)
            spent += time.process_time() - started
    return {
        "corePercent": round(100 * spent / _SECONDS, 2),
        "memoryMiB": round(size / 2**20, 1),
    }


def _browser(text: str) -> dict[str, float]:
    """Return how soon a browser shows the page, and its frames a second while it zooms."""
    try:
        from selenium import webdriver
    except ImportError:
        return {}
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        return {}
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,900"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options, webdriver.ChromeService(chromedriver))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(text)
        try:
            driver.get(path.as_uri())
            shown = driver.execute_async_script(_SHOWN)
            frames, paint = driver.execute_async_script(_ZOOM)
        finally:
            driver.quit()
    return {
        "shownSeconds": round(json.loads(shown) / 1000, 2),
        "framesPerSecond": round(frames, 1),
        "drawMilliseconds": round(paint, 1),
    }


_SHOWN = """
const done = arguments[0];
const look = () => {
  if (window.bayplanFloor && bayplanFloor.frames) done(String(performance.now()));
  else requestAnimationFrame(look);
};
look();
"""
_ZOOM = """
const done = arguments[0];
const timed = performance.now();
for (let i = 0; i < 10; i += 1) bayplanFloor.paint();
const paint = (performance.now() - timed) / 10;
const begin = performance.now();
let frames = 0;
const step = () => {
  bayplanFloor.zoom(frames % 40 < 20 ? 1.05 : 1 / 1.05);
  frames += 1;
  if (frames < 90) requestAnimationFrame(step);
  else done([frames / ((performance.now() - begin) / 1000), paint]);
};
requestAnimationFrame(step);
"""

page = Benchmark("the page: its size, its cost and how fast it is drawn", (1000, 5000), 0, _measure)
