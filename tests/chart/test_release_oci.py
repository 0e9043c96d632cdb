"""The chart and the image as OCI layouts, and the plugin for krew: the same digests each time."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.helm import CHART, Helm
from tests.chart.test_release_files import maker
from tests.chart.test_rendering import by_name

SECONDS = 1_700_000_000
CHART_YAML = yaml.safe_load((CHART / "Chart.yaml").read_text())
VERSION = CHART_YAML["version"]


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@contextmanager
def registry(layout: Any) -> Iterator[str]:
    """Serve a layout as a registry does (the distribution specification's pull)."""
    (described,) = layout.manifests

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            *_, kind, name = self.path.split("/")
            known = {VERSION: described["digest"]}.get(name, name)
            content = layout.blobs.get(known, b"")
            self.send_response(200 if content else 404)
            of_manifest = described["mediaType"]
            self.send_header(
                "Content-Type", of_manifest if kind == "manifests" else "application/octet-stream"
            )
            self.send_header("Docker-Content-Digest", known)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    try:
        yield f"oci://127.0.0.1:{server.server_address[1]}/charts/bayplan"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_helm_installs_the_chart_from_a_registry_that_has_the_artefact(helm: Helm) -> None:
    made = maker()
    layout = made.chart_layout(CHART_YAML, made.chart_archive(SECONDS), SECONDS)
    with registry(layout) as url:
        text = helm.run("template", "bayplan", url, "--version", VERSION, "--plain-http", values={})
    # What was pulled is said first.
    _, _, text = text.partition("---\n")
    assert by_name(filter(None, yaml.load_all(text, yaml.CSafeLoader))) == by_name(helm.render())


def wheel(folder: Path, name: str, files: Mapping[str, str]) -> Path:
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for one, content in files.items():
            packed.writestr(one, content)
    return path


def base(made: Any, python: str = "3.11.9") -> Any:
    """A base image of one layer, in an index as registries have them."""
    layer = made.archive({"etc/base": (b"base", 0o644)}, 0)
    layout = made.Layout()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin", f"PYTHON_VERSION={python}"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
    }
    layers = [
        layout.add(gzip.compress(layer, mtime=0), "application/vnd.oci.image.layer.v1.tar+gzip")
    ]
    described = layout.add(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
    layout.add_manifest("3.11", config=described, layers=layers)
    return layout


def image(made: Any, folder: Path, under: Any) -> Any:
    wheels = [
        wheel(
            folder,
            "bayplan",
            {"bayplan/cli": "program", "bayplan-1.data/scripts/bayplan": "no"},
        ),
        wheel(folder, "numpy", {"numpy-1.data/platlib/numpy/core": "numbers"}),
    ]
    files = made.image_files(wheels, made.configs())
    return made.image_layout(under, files, VERSION, SECONDS)


def test_an_image_is_its_base_and_one_layer_with_wheels_and_configurations(tmp_path: Path) -> None:
    made = maker()
    under = base(made)
    for path, (content, _) in under.files().items():
        (tmp_path / "base" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "base" / path).write_bytes(content)
    found = image(made, tmp_path, made.Layout.read(tmp_path / "base"))
    manifest = found.one()
    config = json.loads(found.blobs[manifest["config"]["digest"]])
    assert all(digest(blob) == name for name, blob in found.blobs.items())
    layers = [gzip.decompress(found.blobs[one["digest"]]) for one in manifest["layers"]]
    assert config["rootfs"]["diff_ids"] == [digest(layer) for layer in layers]
    assert [one["size"] for one in manifest["layers"]] == [
        len(found.blobs[one["digest"]]) for one in manifest["layers"]
    ]
    with tarfile.open(fileobj=io.BytesIO(layers[1])) as opened:
        names = {one.name: one for one in opened}
    assert {"opt/bayplan/lib/bayplan/cli", "opt/bayplan/lib/numpy/core"} <= names.keys()
    assert {"etc/bayplan/machines/dgx-h100.yaml", "etc/bayplan/profiles/default.yaml"} <= {*names}
    assert not any("scripts" in name or name.startswith("etc/bayplan/chart") for name in names)
    assert names["opt/bayplan/bin/bayplan"].mode == 0o755
    assert config["config"]["User"] == "65532:65532"
    assert "PATH=/opt/bayplan/bin:/usr/bin" in config["config"]["Env"]
    assert config["config"]["Entrypoint"] == ["bayplan"]


def test_two_builds_have_the_same_digests(tmp_path: Path) -> None:
    made = maker()

    def digests() -> list[str]:
        chart = made.chart_layout(CHART_YAML, made.chart_archive(SECONDS), SECONDS)
        found = [chart.files(), image(made, tmp_path, base(made)).files()]
        return [digest(made.archive(one, SECONDS)) for one in found]

    assert digests() == digests()


def test_a_base_with_another_python_or_a_damaged_blob_is_refused(tmp_path: Path) -> None:
    made = maker()
    with pytest.raises(ValueError, match=r"the base has Python 3\.99\.1; the wheels are for"):
        image(made, tmp_path, base(made, "3.99.1"))
    (tmp_path / "blobs" / "sha256").mkdir(parents=True)
    (tmp_path / "index.json").write_text('{"manifests": []}')
    (tmp_path / "blobs" / "sha256" / "0").write_text("broken")
    with pytest.raises(ValueError, match="is damaged"):
        made.Layout.read(tmp_path)


def test_the_plugin_of_krew_starts_bayplan_or_says_how_to_get_it(tmp_path: Path) -> None:
    made = maker()
    files = made.plugin_files(VERSION, b"licence")
    packed = made.archive(files, SECONDS)
    described = made.manifest(VERSION, "https://example.com/plugin.tar.gz", packed)
    (platform,) = described["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(packed).hexdigest()
    assert {one["from"] for one in platform["files"]} == set(files)
    assert described["spec"]["version"] == f"v{VERSION}"
    program = tmp_path / platform["bin"]
    program.write_bytes(files[platform["bin"]][0])
    program.chmod(files[platform["bin"]][1])
    empty = {"PATH": "/usr/bin:/bin"}
    missing = subprocess.run([program], env=empty, capture_output=True, text=True)
    assert missing.returncode == 1
    assert f"pip install bayplan=={VERSION}" in missing.stderr
    (tmp_path / "bayplan").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "bayplan").chmod(0o755)
    there = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    started = subprocess.run([program, "why", "job"], env=there, capture_output=True, text=True)
    assert started.stdout == "why job\n"
