"""Who may see costs on the scheduler's page, and whose."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from tests.billing.bills import GPU, at, price_file, prices, used, version
from tests.certificates import certificates, needs_openssl
from tests.live.bill_stage import HOURS, TOKENS, bills, opened
from tests.live.stage import stage

from bayplan.billing.terms import BillingTermsFiles
from bayplan.live.address import Address
from bayplan.live.bill_pages import Bills
from bayplan.metering.journal import Batch, Journal
from bayplan.testing import make_node

WINDOW = "window=2026-01-05T00:00:00Z,2026-01-06T00:00:00Z"
PAGES = (f"/allocation?{WINDOW}&aggregate=tenant", f"/usage?{WINDOW}", "/invoice?month=2026-01")


async def get(url: str, token: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(url, ssl=False) as answer,
    ):
        return answer.status, await answer.text()


async def test_costs_need_a_token_on_loopback_as_well(tmp_path: Path) -> None:
    async with stage([make_node("n")], tokens=TOKENS) as made:
        url = await opened(made, tmp_path)
        assert (await get(f"{url}/metrics"))[0] == 200
        for page in PAGES:
            assert (await get(f"{url}{page}&tenant=lab"))[0] == 401
            for token in ("reader", "nobody"):
                assert (await get(f"{url}{page}&tenant=lab", token))[0] == 403
            assert (await get(f"{url}{page}&tenant=lab", "admin"))[0] == 200


async def test_a_tenant_sees_its_own_only(tmp_path: Path) -> None:
    async with stage([make_node("n")], tokens=TOKENS) as made:
        url = await opened(made, tmp_path)
        for page in PAGES:
            for tenant in ("", "&tenant=", "&tenant=rival", "&tenant=nobody", "&tenant=*"):
                status, text = await get(f"{url}{page}{tenant}", "lab")
                assert status == 403
                assert "rival" not in text
            status, text = await get(f"{url}{page}&tenant=lab", "lab")
            assert status == 200
            assert "lab" in text
            assert "rival" not in text
            assert "secret" not in text
        for idle in ("includeIdle=true", "shareIdle=true"):
            status, _ = await get(f"{url}{PAGES[0]}&tenant=lab&{idle}", "lab")
            assert status == 400


async def test_who_may_get_the_path_sees_all_tenants(tmp_path: Path) -> None:
    async with stage([make_node("n")], tokens=TOKENS) as made:
        url = await opened(made, tmp_path)
        status, text = await get(f"{url}{PAGES[0]}&includeIdle=true", "costs")
        assert status == 200
        found = json.loads(text)
        assert (found["code"], found["status"]) == (200, "success")
        [step] = found["data"]
        assert {name: row["totalCost"] for name, row in step.items()} == {
            "lab": 16.0,
            "rival": 24.0,
            "__idle__": 2.0 * (8 * 24 - 20),
        }
        assert (await get(f"{url}{PAGES[1]}", "costs"))[0] == 403
        _, text = await get(f"{url}{PAGES[1]}", "admin")
        assert [(one["name"], one["hours"]) for one in json.loads(text)["usage"]] == [
            ("lab", "8"),
            ("rival", "12"),
        ]


@needs_openssl
async def test_the_token_of_the_file_sees_all_tenants(tmp_path: Path) -> None:
    certificates(tmp_path)
    (tmp_path / "token").write_text("right\n")
    key, certificate = tmp_path / "server.key", tmp_path / "server.crt"
    address = Address("0.0.0.0", 0, certificate, key, tmp_path / "token")
    async with stage([make_node("n")], tokens=TOKENS) as made:
        url = await opened(made, tmp_path, address=address)
        assert (await get(f"{url}{PAGES[0]}"))[0] == 401
        assert (await get(f"{url}{PAGES[0]}", "wrong"))[0] == 403
        assert "rival" in (await get(f"{url}{PAGES[0]}", "right"))[1]
        # The file's token says nothing about who else may see a tenant.
        assert (await get(f"{url}{PAGES[0]}&tenant=lab", "lab"))[0] == 200


@pytest.mark.parametrize(
    ("output", "kind"), [("json", '"total": "16.00"'), ("csv", "16.00"), ("html", "<!DOCTYPE")]
)
async def test_an_invoice_comes_in_three_forms(tmp_path: Path, output: str, kind: str) -> None:
    async with stage([make_node("n")], tokens=TOKENS) as made:
        url = await opened(made, tmp_path)
        page = f"{url}/invoice?tenant=lab&month=2026-01&output={output}"
        status, text = await get(page, "lab")
        assert status == 200
        assert kind in text


async def test_what_cannot_be_answered_is_said_without_paths(tmp_path: Path) -> None:
    async with stage([make_node("n")], tokens=TOKENS) as made:
        late = prices(tmp_path, version("2026-03-01"))
        app = await made.start(bills=bills(late))
        url = app.listener.url
        for page, code in (
            ("/invoice?tenant=lab&month=2026-01", 500),
            ("/invoice?tenant=lab&month=13", 400),
            ("/invoice?tenant=lab&month=2026-01&output=pdf", 500),
            ("/allocation?tenant=lab", 400),
            ("/allocation?tenant=lab&window=yesterday&aggregate=x", 400),
            (f"/usage?tenant={'x' * 300}&window=1h", 400),
        ):
            status, text = await get(f"{url}{page}", "lab")
            assert (page, status) == (page, code)
            assert str(tmp_path) not in text
            assert "Traceback" not in text
        assert (await get(f"{url}/invoice", "admin"))[0] == 400


async def test_the_pages_follow_a_journal_as_far_as_it_knows(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "usage.db"))
    journal.claim()
    journal.append([used(HOURS[0], None, 2)])
    journal.write(Batch(heartbeat=at("2026-01-05 11:00")))
    of_journal = Bills.of_journal(BillingTermsFiles(price_file(tmp_path)), journal)
    async with stage([make_node("n")], tokens=TOKENS) as made:
        app = await made.start(bills=of_journal)
        url = f"{app.listener.url}/invoice?tenant=lab&month=2026-01"
        assert json.loads((await get(url, "lab"))[1])["total"] == "4.00"
        journal.write(Batch(heartbeat=at("2026-01-05 12:00")))
        assert json.loads((await get(url, "lab"))[1])["total"] == "8.00"
        _, text = await get(f"{app.listener.url}{PAGES[0]}", "admin")
        assert json.loads(text)["data"][0]["lab"]["totalCost"] == 8.0
    journal.close()


async def test_prices_that_change_are_those_of_the_pages(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "usage.db"))
    journal.claim()
    journal.append([used(*HOURS, 2)])
    files = BillingTermsFiles(
        price_file(tmp_path, version("2026-01-01")), now=lambda: at("2025-12-01")
    )
    registry = CollectorRegistry()
    async with stage([make_node("n")], tokens=TOKENS) as made:
        app = await made.start(bills=Bills.of_journal(files, journal), registry=registry)
        url = f"{app.listener.url}/invoice?tenant=lab&month=2026-01"
        assert json.loads((await get(url, "lab"))[1])["total"] == "16.00"
        assert registry.get_sample_value("bayplan_bill_files_current") == 1
        before = files.terms()
        price_file(tmp_path, version("2026-01-01", prices=[{"resource": GPU, "perHour": 3}]))
        # Nothing tells: the file is looked at every few seconds.
        await made.until(lambda: files.terms() is not before)
        assert json.loads((await get(url, "lab"))[1])["total"] == "24.00"
        (tmp_path / "prices.yaml").write_text("kind: PriceList")
        app.reload()
        assert registry.get_sample_value("bayplan_bill_files_current") == 0
        assert json.loads((await get(url, "lab"))[1])["total"] == "24.00"
        price_file(tmp_path, version("2026-01-01", prices=[{"resource": GPU, "perHour": 4}]))
        app.reload()
        assert registry.get_sample_value("bayplan_bill_files_current") == 1
        assert json.loads((await get(url, "lab"))[1])["total"] == "32.00"
    journal.close()


async def test_without_prices_there_are_no_pages_of_costs() -> None:
    async with stage([make_node("n")], tokens=TOKENS) as made:
        app = await made.start()
        assert (await get(f"{app.listener.url}{PAGES[0]}", "admin"))[0] == 404
