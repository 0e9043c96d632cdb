"""The field's words: each thing has the name that Kubernetes people use, and no other."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from tests.paths import ROOT

SOURCES = ("framework", "plugins", "dra", "remote", "benchmarks", "docs")
INSTEAD = {
    r"lanes?(?! of PCIe)": "queue",
    r"rivals?": "other schedulers, conflicting claim",
    r"rehears\w*": "dry run",
    r"onlook\w*": "shadow mode",
    r"voters?": "plugin, plugin function",
    r"wish(es)?": "request, allocation hint",
    r"(un)?seat(s|ed)?": "assign",
    r"anew": "again",
    r"in vain|for want of": "without",
    r"courses": "histories, time series",
    r"(un)?told": "reported, recorded",
    r"cards?": "GPU, device",
    r"books?": "price list, terms",
    r"spared|sparing": "reprieved",
    r"rooms?(?=: Evict)": "eviction plan",
    r"(makes?|making|made) room": "preempt, free capacity",
    r"(pod|weighted|equal|park|of)_?shapes?|shapes(?=\()": "equivalence class, pod class",
}
EXCUSED = {
    "topology/machine/": "PCIe links have lanes",
    "docs/machines.md": "PCIe links have lanes",
    "docs/queues.md": "the table of cases quotes their names",
    "docs/devices.md": "the fake fabric's ConfigMap has a field `card`",
    "dialects/fabric.py": "the same",
    "embedded/fabric.py": "the same",
    "docs/page.md": "the page's JSON has a field `cards`",
    "page/": "the same",
    "vendors/adapter.py": "the lock's annotation is bayplan.dev/cards.lock",
}


@cache
def texts() -> dict[str, str]:
    """Return the texts by their paths."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found = (path for source in SOURCES for path in sorted((ROOT / source).rglob("*")))
    paths = [*pages, *(path for path in found if path.suffix in (".py", ".md"))]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


@cache
def lower_texts() -> dict[str, str]:
    return {name: text.lower() for name, text in texts().items()}


@pytest.mark.parametrize("word", INSTEAD)
def test_a_word_that_is_not_the_fields_does_not_come_back(word: str) -> None:
    # Names count in parts: _lane_of, LaneOrder.
    pattern = re.compile(rf"(?<![a-z])({word})(?![a-z])", re.IGNORECASE)
    # Without looking back and at both cases, the search is four times as fast, and seldom finds.
    hint = re.compile(word.lower())
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in lower_texts().items()
        if hint.search(text) and not any(part in name for part in EXCUSED)
        for number, line in enumerate(texts()[name].splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == [], f"instead: {INSTEAD[word]}"


RELATIVE = re.compile(
    r"\b(which|who|whose|whom)\b|\bthat (is|are|was|were|has|have|had|does|do|did|may|can|will)\b",
    re.IGNORECASE,
)
MOST_RELATIVE = 15
"""Relative clauses in 1,000 words of a page."""


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_uses_nouns_rather_than_relative_clauses(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    words, found = len(prose.split()), RELATIVE.findall(prose)
    assert 1000 * len(found) <= MOST_RELATIVE * words, (
        "such as: a node that is empty, an empty node"
    )
