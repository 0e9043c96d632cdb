"""What a span of time earns."""

from __future__ import annotations

from pathlib import Path

from tests.billing.bills import Records, at, offered, prices, used

from bayplan.billing.earnings import earnings


def test_tenants_pay_what_they_used_and_the_rest_is_idle(tmp_path: Path) -> None:
    source = Records(
        [
            used("2026-01-31 20:00", "2026-02-01 02:00", 2),
            used("2026-01-31 20:00", None, 1, tenant="guest"),
        ],
        [offered("2026-01-31 20:00", None, 4)],
    )
    found = earnings(prices(tmp_path), source, at("2026-01-31 20:00"), at("2026-02-01 04:00"))
    assert found.as_json() == {
        "currency": "EUR",
        "byTenant": {"guest": "16.00", "lab": "24.00"},
        "total": "40.00",
        "idle": "24.00",
    }
