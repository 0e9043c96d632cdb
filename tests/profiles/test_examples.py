"""Examples that people create on a cluster: what places their pods there."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

import pytest
from tests.paths import ROOT

from bayplan.profiles.loading import load_profiles

NAME = re.compile(r"schedulerName: *([\w-]+)")
OTHERS = sorted(
    path
    for path in (ROOT / "configs" / "examples").rglob("*.yaml")
    if set(NAME.findall(path.read_text())) - {"bayplan"}
)
"""Those with pods that a default installation leaves alone."""


def comment(path: Path) -> str:
    """Return what a file says at its top."""
    lines = path.read_text().splitlines()
    return " ".join(line.removeprefix("# ") for line in takewhile(lambda x: x[:1] == "#", lines))


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_example_for_another_scheduler_names_a_profile_that_takes_its_pods(path: Path) -> None:
    (wanted,) = set(NAME.findall(path.read_text())) - {"bayplan"}
    found = re.search(r"wait for a profile of that name: (configs/\S+)", comment(path))
    assert found is not None, "its top says what places its pods"
    profiles = load_profiles(ROOT / found[1]).profiles
    assert wanted in [one.scheduler_name for one in profiles]
