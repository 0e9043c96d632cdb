"""What a tenant's page is sent: his own rows, and the same ones whatever others do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.page.browser import MISSING, browser

from bayplan.page.document import document
from bayplan.page.feed import Feed
from bayplan.page.tenant_rows import TenantRows, namespaces_in
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_pod

GPU = "nvidia.com/gpu"


class Tenant:
    """A page of the namespace "amber" in a cluster with another tenant, "blue"."""

    def __init__(self) -> None:
        self.simulation = Simulation(default_profiles())
        self.feed = Feed("test", wall=True)
        self.feed.follow(self.simulation.scheduler)
        self.simulation.cluster.watch(self.feed.handle)
        nodes = [make_node(f"n{i}", cpu=8, pods=20, **{GPU: 8}) for i in range(3)]
        self.simulation.create(nodes)
        self.create("amber", "first", 2)
        self.rows = TenantRows(self.feed.current(), frozenset({"amber"}))
        self.seen: list[Any] = [self.rows.everything()]
        self.viewer = self.feed.join(self.feed.version)

    def create(self, namespace: str, name: str, gpus: int) -> None:
        given: dict[str, Any] = {GPU: gpus}
        pod = make_pod(f"{namespace}-{name}", namespace=namespace, cpu=1, **given)
        self.simulation.create([pod])
        self.simulation.run()
        self.feed.look(0.0)

    def changes(self) -> list[Any]:
        """Return what the page is sent now."""
        found = []
        while not self.viewer.empty():
            patch = self.viewer.get_nowait()
            assert patch is not None
            found.append(self.rows.of(patch.rows))
        self.seen += found
        return [one for one in found if one]


def test_what_others_do_on_a_tenants_node_sends_nothing() -> None:
    tenant = Tenant()
    for index in range(8):
        tenant.create("blue", f"p{index}", 4)
    assert tenant.changes() == [], "nor where his pods would be drawn on a node"
    tenant.create("amber", "second", 1)
    (change,) = tenant.changes()
    assert set(change["pods"]) == {"amber/amber-second"}
    assert set(change["units"]) == {"amber/amber-second"}
    assert "blue" not in json.dumps(tenant.seen)


def test_changes_make_the_rows_of_a_page_that_opens_later() -> None:
    tenant = Tenant()
    for index in range(6):
        tenant.create("blue", f"p{index}", 3)
        tenant.create("amber", f"p{index}", 3)
        tenant.changes()
    rows: dict[str, Any] = {}
    for one in tenant.seen:
        for kind in ("nodes", "pods", "units"):
            rows.setdefault(kind, {}).update(one.get(kind, {}))
    later = TenantRows(tenant.feed.current(), frozenset({"amber"})).everything()
    for kind in ("nodes", "pods", "units"):
        assert rows[kind] == later[kind]


def test_who_sees_all_namespaces_sees_all_jobs() -> None:
    tenant = Tenant()
    tenant.create("blue", "p", 1)
    found = TenantRows(tenant.feed.current(), None).everything()
    assert namespaces_in(found) == {"amber", "blue"}


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_the_page_of_a_tenant_shows_his_jobs_in_every_view(tmp_path: Path) -> None:
    tenant = Tenant()
    tenant.create("amber", "large", 9)
    data = {**tenant.rows.everything(), "title": "test", "version": 1}
    data["units"]["amber/amber-first"]["queue"] = "kueue/amber"
    path = tmp_path / "page.html"
    path.write_text(document("test", data))
    with browser() as window:
        window.open(path.as_uri())
        views = [text.split("\n")[0] for text in window.texts("nav a")]
        assert [view.rstrip("0123456789 ") for view in views] == [
            "Floor",
            "Jobs",
            "Waiting",
            "Queues",
        ]
        window.go("#/jobs")
        assert "amber/amber-first" in window.text("main")
        window.go("#/queues")
        assert window.texts("main tbody td")[:4] == ["kueue/amber", "0", "1", "2"]
        window.go("#/waiting")
        assert "amber/amber-large" in window.text("main")
        window.go("#/floor/n0")
        assert window.errors() == []
