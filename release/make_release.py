"""Make a release in dist/: wheel, chart, locked requirements, SBOM and checksums.

The same commit gives the same wheel and chart; requirements and SBOM say what the package index has
on the day.
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


def main() -> None:
    """Make it, and print what there is."""
    found = versions()
    if len(set(found.values())) != 1:
        sys.exit("\n".join(["the versions differ:", *(f"  {k}: {v}" for k, v in found.items())]))
    (version,) = set(found.values())
    commit = _run("git", "log", "-1", "--format=%ct").strip()
    out = ROOT / "dist" / version
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        old.unlink()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": commit}
    _run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(out),
        str(ROOT),
        env=environment,
    )
    (wheel,) = out.glob("*.whl")
    (out / f"bayplan-chart-{version}.tgz").write_bytes(chart_archive(int(commit)))
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
    (out / "CHANGELOG.md").write_bytes((ROOT / "CHANGELOG.md").read_bytes())
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"
        for path in sorted(out.iterdir())
    ]
    (out / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print("\n".join(str(path.relative_to(ROOT)) for path in sorted(out.iterdir())))


def _run(*command: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(  # noqa: S603 - commands of this file
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    main()
