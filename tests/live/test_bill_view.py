"""The page of a scheduler shows costs to who may see them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.live.bill_stage import TOKENS, opened
from tests.live.stage import stage
from tests.page.browser import MISSING, Browser, browser

from bayplan.testing import make_node

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def ask(window: Browser, token: str, tenant: str = "") -> str:
    for selector, text in (("#bills-token", token), ("#tenant", tenant)):
        field = window.find(selector)
        field.clear()
        field.send_keys(text)
    window.run("document.querySelector('main form + div').replaceChildren()")
    window.find("form button").click()
    return str(window.until(lambda: window.text("main form + div")))


async def test_costs_are_shown_for_a_token_that_may_see_them(tmp_path: Path) -> None:
    def look(url: str) -> None:
        with browser() as window:
            window.open(f"{url}/#/bills")
            window.run("document.querySelector('#window').value = 'lastmonth'")
            assert "a bearer token is needed" in ask(window, "")
            assert "may not get /allocation" in ask(window, "lab")
            ask(window, "lab", "lab")
            assert window.texts("main td") == ["lab", "16.00"]
            ask(window, "costs")
            idle = f"{2.0 * (8 * 24 * 31 - 20):.2f}"
            assert window.texts("main td") == ["rival", "24.00", "lab", "16.00", "(idle)", idle]
            assert window.text("main caption") == "Costs in EUR"

    async with stage([make_node("n")], tokens=TOKENS) as made:
        url = await opened(made, tmp_path)
        await asyncio.to_thread(look, url)
