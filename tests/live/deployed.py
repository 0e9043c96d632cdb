"""The manifests of configs/deploy and configs/crds, as tests read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tests.paths import ROOT

Content = dict[str, Any]

DEPLOY = ROOT / "configs" / "deploy"
CRDS = ROOT / "configs" / "crds"
SCHEDULER = "bayplan-scheduler"
KUSTOMIZATION = "kustomization.yaml"


def documents(*paths: Path) -> list[Content]:
    """Return the objects of manifests, in their order."""
    found = (yaml.load_all(path.read_text(), yaml.CSafeLoader) for path in paths)
    return [content for contents in found for content in contents]


def manifests(folder: Path) -> list[Path]:
    """Return the manifests of a folder."""
    return [path for path in sorted(folder.glob("*.yaml")) if path.name != KUSTOMIZATION]


OF_SCHEDULER = documents(
    *(DEPLOY / name for name in yaml.safe_load((DEPLOY / KUSTOMIZATION).read_text())["resources"])
)


def only(kind: str, found: list[Content] | None = None) -> Content:
    """Return the only object of a kind, of those of the scheduler."""
    (one,) = [c for c in (OF_SCHEDULER if found is None else found) if c["kind"] == kind]
    return one
