"""Make a release in dist/: wheel, chart, image, requirements, SBOM, plugin of krew, checksums.

The same commit gives the same wheel, chart and plugin; requirements and SBOM say what the package
index has on the day, and the same requirements give the same image. ``BASE`` is the folder of an
OCI layout with the image's base, ``URL`` where the release is downloaded from.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

# A script beside its modules, which tests load, too.
sys.path.insert(0, str(Path(__file__).parent))

from krew import manifest, plugin_files
from oci import Layout, archive, chart_layout, image_files, image_layout

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "configs" / "chart" / "bayplan"
EXTRAS = "driver,postgres,traces"
"""What the image has (Dockerfile)."""


def versions() -> dict[str, str]:
    """Return the version by the file that says it; all of them have to agree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    kustomization = yaml.safe_load((ROOT / "configs/deploy/kustomization.yaml").read_text())
    (image,) = kustomization["images"]
    changes = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    return {
        "pyproject.toml": project,
        "Chart.yaml version": chart["version"],
        "Chart.yaml appVersion": chart["appVersion"],
        "configs/deploy/kustomization.yaml": image["newTag"],
        "CHANGELOG.md": changes[1] if changes else "",
    }


def chart_archive(seconds: int) -> bytes:
    """Return the chart as Helm packages it, with the files that it links to.

    :param seconds: the time of all files, since 1970.
    """
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=seconds) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in _chart_files():
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"bayplan/{path.relative_to(CHART)}")
            entry.size, entry.mtime, entry.mode = len(content), seconds, 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _chart_files() -> list[Path]:
    # Links to folders are not followed by rglob.
    folders = [CHART, *(path for path in CHART.iterdir() if path.is_symlink())]
    return sorted({path for folder in folders for path in folder.rglob("*") if path.is_file()})


def requirements(report: Any) -> Iterator[str]:
    """Yield a line of requirements with hashes for each package of pip's report."""
    for one in sorted(report["install"], key=lambda found: str(found["metadata"]["name"]).lower()):
        metadata, archive = one["metadata"], one["download_info"].get("archive_info", {})
        if metadata["name"] != "bayplan":
            digest = archive["hashes"]["sha256"]
            yield f"{metadata['name']}=={metadata['version']} --hash=sha256:{digest}"


def configs() -> dict[str, Path]:
    """Return the files below /etc/bayplan in the image."""
    root = ROOT / "configs"
    # Links to folders are not followed by rglob; the chart holds only such links and itself.
    folders = [one for one in root.iterdir() if one.is_dir() and one.name != "chart"]
    found = [path for folder in folders for path in folder.resolve().rglob("*") if path.is_file()]
    places = {folder.resolve(): folder.name for folder in folders}
    return {
        str(Path(places[top]) / path.relative_to(top)): path
        for path in found
        for top in places
        if path.is_relative_to(top)
    }


def main() -> None:
    """Make it, and print what there is."""
    found = versions()
    if len(set(found.values())) != 1:
        sys.exit("\n".join(["the versions differ:", *(f"  {k}: {v}" for k, v in found.items())]))
    (version,) = set(found.values())
    commit = _run("git", "log", "-1", "--format=%ct").strip()
    seconds = int(commit)
    out = ROOT / "dist" / version
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        old.unlink()
    command = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(ROOT))
    _run(*command, env={**os.environ, "SOURCE_DATE_EPOCH": commit})
    (wheel,) = out.glob("*.whl")
    packed = chart_archive(seconds)
    (out / f"bayplan-chart-{version}.tgz").write_bytes(packed)
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    layout = chart_layout(described, packed, seconds)
    (out / f"bayplan-chart-{version}.oci.tar").write_bytes(archive(layout.files(), seconds))
    _lock(wheel, out, version)
    base, url = os.environ.get("BASE", ""), os.environ.get("URL", "").rstrip("/")
    if base:
        _image(Path(base), wheel, out, version, seconds)
    else:
        print("no image: BASE names no OCI layout of its base")
    plugin = gzip.compress(
        archive(plugin_files(version, (ROOT / "LICENSE").read_bytes()), seconds), mtime=0
    )
    name = f"kubectl-bayplan-{version}.tar.gz"
    (out / name).write_bytes(plugin)
    if url:
        said = yaml.safe_dump(manifest(version, f"{url}/{name}", plugin), sort_keys=False)
        (out / "bayplan.krew.yaml").write_text(said)
    else:
        print("no manifest for krew: URL does not say where the release is downloaded from")
    (out / "CHANGELOG.md").write_bytes((ROOT / "CHANGELOG.md").read_bytes())
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"
        for path in sorted(out.iterdir())
    ]
    (out / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print("\n".join(str(path.relative_to(ROOT)) for path in sorted(out.iterdir())))


def _lock(wheel: Path, out: Path, version: str) -> None:
    """Write the requirements with their hashes, and the SBOM of what they install."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python, report = str(Path(folder) / "bin" / "python"), Path(folder) / "report.json"
        given = f"{wheel}[{EXTRAS}]"
        _run(python, "-m", "pip", "install", "-q", "--report", str(report), given)
        lines = requirements(json.loads(report.read_text()))
        (out / "requirements.txt").write_text("\n".join(lines) + "\n")
        _run(python, "-m", "pip", "uninstall", "-q", "-y", "pip", "setuptools")
        sbom = str(out / f"bayplan-{version}.cdx.json")
        command = (sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible")
        _run(*command, "--pyproject", str(ROOT / "pyproject.toml"), "-o", sbom, python)


def _image(base: Path, wheel: Path, out: Path, version: str, seconds: int) -> None:
    """Write the image: the locked requirements and the wheel on a base."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = ("--require-hashes", "--only-binary", ":all:", "-r", str(out / "requirements.txt"))
        command = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder)
        _run(*command, *wanted)
        files = image_files([*Path(folder).glob("*.whl"), wheel], configs())
        made = image_layout(Layout.read(base), files, version, seconds)
    (out / f"bayplan-image-{version}.oci.tar").write_bytes(archive(made.files(), seconds))


def _run(*command: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(  # noqa: S603 - commands of this file
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    main()
