"""Writes OCI layouts: the chart as Helm pushes it, and the image, without a daemon.

The image is a base image and one layer: the wheels unpacked to /opt/bayplan/lib, the program, and
the configurations. The same inputs give the same digests. https://github.com/opencontainers/image-spec
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["Layout", "archive", "chart_layout", "image_files", "image_layout"]

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_HELM_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_HELM_CHART = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_REF = "org.opencontainers.image.ref.name"
_LIBRARY = "opt/bayplan/lib"
_PROGRAM = "#!/usr/bin/env python3\nfrom bayplan.cli import main\n\nmain()\n"
_USER = "65532:65532"

Files = Mapping[str, tuple[bytes, int]]
"""Contents and modes by path."""


@dataclass
class Layout:
    """An image layout: blobs by digest, and what is in its index."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Layout:
        """Read a layout that another tool wrote, such as ``skopeo copy docker://... oci:FOLDER``.

        :raises ValueError: for a blob that is not what its name says.
        """
        found = cls(manifests=json.loads((folder / "index.json").read_text())["manifests"])
        for path in sorted((folder / "blobs" / "sha256").iterdir()):
            found.blobs[f"sha256:{path.name}"] = content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != path.name:
                raise ValueError(f"{path} is damaged")
        return found

    def add(self, content: bytes, media_type: str) -> dict[str, Any]:
        """Add a blob; return its descriptor."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blobs[digest] = content
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def add_manifest(self, version: str, **parts: Any) -> dict[str, Any]:
        """Add what the layout is of, under the name of a version; return its descriptor."""
        manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, **parts}
        found = self.add(_json(manifest), _MANIFEST) | {"annotations": {_REF: version}}
        self.manifests.append(found)
        return found

    def one(self) -> dict[str, Any]:
        """Return the manifest of this machine's architecture.

        :raises ValueError: when there is none, or more than one.
        """
        found = list(self._manifests(self.manifests))
        if len(found) != 1:
            raise ValueError(f"expected one manifest of a base image, got {len(found)}")
        return found[0]

    def _manifests(self, descriptors: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        for one in descriptors:
            inside = json.loads(self.blobs[one["digest"]])
            if one["mediaType"] == _INDEX:
                yield from self._manifests(inside["manifests"])
            else:
                yield inside

    def files(self) -> Files:
        """Return the files of the layout."""
        index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": self.manifests}
        blobs = {f"blobs/sha256/{digest[7:]}": blob for digest, blob in self.blobs.items()}
        layout = _json({"imageLayoutVersion": "1.0.0"})
        found = {"oci-layout": layout, "index.json": _json(index), **blobs}
        return {path: (content, 0o644) for path, content in found.items()}


def _json(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def archive(files: Files, seconds: int) -> bytes:
    """Return a tar archive of files that are root's, in the order of their names.

    :param seconds: the time of all of them, since 1970.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made:
        for path in sorted(files):
            content, mode = files[path]
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime, entry.mode = len(content), seconds, mode
            made.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def chart_layout(chart: Mapping[str, Any], packed: bytes, seconds: int) -> Layout:
    """Return a chart as an OCI artefact.

    :param chart: the content of its Chart.yaml.
    :param packed: the chart as Helm packages it.
    """
    layout = Layout()
    config = layout.add(_json(chart), _HELM_CONFIG)
    layer = layout.add(packed, _HELM_CHART)
    said = {
        "org.opencontainers.image.title": chart["name"],
        "org.opencontainers.image.version": chart["version"],
        "org.opencontainers.image.created": _time(seconds),
    }
    layout.add_manifest(chart["version"], config=config, layers=[layer], annotations=said)
    return layout


def image_files(wheels: Iterable[Path], configs: Mapping[str, Path]) -> Files:
    """Return what the image has beyond its base.

    :param wheels: archives of packages; their programs are left out.
    :param configs: files by their paths below /etc/bayplan.
    """
    found: dict[str, tuple[bytes, int]] = {"opt/bayplan/bin/bayplan": (_PROGRAM.encode(), 0o755)}
    for wheel in sorted(wheels, key=lambda path: path.name):
        with zipfile.ZipFile(wheel) as packed:
            for one in packed.infolist():
                path = _installed(one.filename)
                if path and not one.is_dir():
                    executable = (one.external_attr >> 16) & 0o111
                    found[f"{_LIBRARY}/{path}"] = packed.read(one), 0o755 if executable else 0o644
    for name, file in configs.items():
        found[f"etc/bayplan/{name}"] = file.read_bytes(), 0o644
    return found


def _installed(path: str) -> str:
    """Return where a file of a wheel goes in the library, "" for nowhere (PEP 427)."""
    folder, _, rest = path.partition("/")
    if not folder.endswith(".data"):
        return path
    kind, _, rest = rest.partition("/")
    return rest if kind in ("purelib", "platlib") else ""


def image_layout(base: Layout, files: Files, version: str, seconds: int) -> Layout:
    """Return the image: the base and one layer.

    :raises ValueError: for a base with another version of Python than the one that runs.
    """
    manifest = base.one()
    config = json.loads(base.blobs[manifest["config"]["digest"]])
    environment = dict(one.split("=", 1) for one in config["config"].get("Env", ()))
    running = "{}.{}".format(*sys.version_info)
    if not environment.get("PYTHON_VERSION", running).startswith(f"{running}."):
        has = environment["PYTHON_VERSION"]
        raise ValueError(f"the base has Python {has}; the wheels are for {running}")
    content = archive(files, seconds)
    layout = Layout({one["digest"]: base.blobs[one["digest"]] for one in manifest["layers"]})
    layer = layout.add(gzip.compress(content, 9, mtime=seconds), _LAYER)
    path = environment.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    environment |= {
        "PATH": f"/opt/bayplan/bin:{path}",
        "PYTHONPATH": f"/{_LIBRARY}",
        "PYTHONUNBUFFERED": "1",
    }
    config["created"] = _time(seconds)
    config["config"] |= {
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "User": _USER,
        "Entrypoint": ["bayplan"],
        "Cmd": ["--help"],
        "Labels": {"org.opencontainers.image.version": version},
    }
    config["rootfs"]["diff_ids"].append(f"sha256:{hashlib.sha256(content).hexdigest()}")
    step = {"created": _time(seconds), "created_by": "bayplan release"}
    config["history"] = [*config.get("history", ()), step]
    described = layout.add(_json(config), _CONFIG)
    layout.add_manifest(version, config=described, layers=[*manifest["layers"], layer])
    return layout


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
