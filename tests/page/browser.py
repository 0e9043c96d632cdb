"""A headless Chromium, driven as a person would."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
MISSING = "" if CHROMIUM and DRIVER else "there is no chromium with its chromedriver"
_PATIENCE = 30.0


class Browser:
    """One window; ``errors`` is what its console says."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Open a page and wait until it shows something."""
        self.driver.get(url)
        self.until(lambda: self.texts("h1"))

    def go(self, place: str) -> None:
        """Go to a place of the page, such as ``#/jobs``."""
        self.driver.execute_script("location.hash = arguments[0]", place)
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
        )

    def until(self, true: Callable[[], Any]) -> Any:
        """Wait until something is true, and return it."""
        end = time.monotonic() + _PATIENCE
        while True:
            found = true()
            if found:
                return found
            assert time.monotonic() < end, f"never true; the page says {self.text('main')!r}"
            time.sleep(0.05)

    def find(self, selector: str) -> WebElement:
        """Return the first element of a selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """Return the elements of a selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Return what the elements of a selector say, as it is at one moment."""
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)"
        return list(self.driver.execute_script(script, selector))

    def text(self, selector: str) -> str:
        """Return what the elements of a selector say, together."""
        return "\n".join(self.texts(selector))

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script and return its value."""
        return self.driver.execute_script(script, *arguments)

    def cluster_view(self, path: Path) -> None:
        """Save what the window shows."""
        self.driver.save_screenshot(str(path))

    def errors(self) -> list[str]:
        """Return what the console said since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for."""
        return list(
            self.run("return performance.getEntriesByType('resource').map((one) => one.name)")
        )


@contextmanager
def browser(width: int = 1400, height: int = 900) -> Iterator[Browser]:
    """Start a browser; it has no data of earlier ones."""
    options = Options()
    options.binary_location = str(CHROMIUM)
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
        "--force-prefers-reduced-motion",
        f"--window-size={width},{height}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
