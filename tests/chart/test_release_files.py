"""What a release is made of: one version everywhere, and archives that are the same each time."""

from __future__ import annotations

import importlib.util
import io
import tarfile
from typing import Any

import pytest
import yaml
from tests.chart.helm import CHART, Helm
from tests.chart.test_rendering import by_name
from tests.paths import ROOT


def maker() -> Any:
    spec = importlib.util.spec_from_file_location("make_release", ROOT / "release/make_release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_files_say_the_same_version() -> None:
    found = maker().versions()
    assert len(set(found.values())) == 1, found


def test_the_same_chart_gives_the_same_archive_with_all_that_it_links_to() -> None:
    first, second = maker().chart_archive(1_700_000_000), maker().chart_archive(1_700_000_000)
    assert first == second
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        names = archive.getnames()
        assert all(entry.isfile() and entry.mtime == 1_700_000_000 for entry in archive)
    assert {"bayplan/Chart.yaml", "bayplan/deploy/rbac.yaml", "bayplan/definitions/kueue.yaml"} <= {
        *names
    }
    assert "bayplan/deploy/monitoring/grafana-dashboard.json" in names


def test_helm_renders_the_archive_as_it_does_the_chart(helm: Helm) -> None:
    path = helm.folder / "bayplan.tgz"
    path.write_bytes(maker().chart_archive(1_700_000_000))
    text = helm.run("template", "bayplan", str(path), values={})
    assert by_name(filter(None, yaml.load_all(text, yaml.CSafeLoader))) == by_name(helm.render())
    assert CHART.name == "bayplan"


def test_requirements_name_each_package_with_its_hash() -> None:
    def package(name: str, digest: str) -> Any:
        archive = {"archive_info": {"hashes": {"sha256": digest}}}
        return {"metadata": {"name": name, "version": "1"}, "download_info": archive}

    report = {"install": [package("numpy", "b"), package("bayplan", "c"), package("aiohttp", "a")]}
    assert list(maker().requirements(report)) == [
        "aiohttp==1 --hash=sha256:a",
        "numpy==1 --hash=sha256:b",
    ]


@pytest.mark.parametrize("name", ["CHANGELOG.md", "LICENSE"])
def test_the_project_has_what_a_release_needs(name: str) -> None:
    assert (ROOT / name).stat().st_size
