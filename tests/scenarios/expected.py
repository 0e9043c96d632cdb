"""Worked cases of each ecosystem, in its own manifests, with the expected result and why.

``expected.json`` of a case may hold: ``placements`` (pod: node), ``per_node`` and ``per_prefix``
(how many pods each node, or each node whose name starts so, takes), ``bound`` (how many pods of a
name prefix), ``same_domain`` with ``domains`` (pods that share one, by node names), ``pending``
(pod: parts of its message), ``pending_any`` (parts of every pending message), ``told`` (parts of
what a pod was told on the way), ``gpus`` (pod: indices of its GPUs), ``gpus_of_every_pod``,
``annotations`` (pod: what it is told of its GPUs, by name), ``evicted``. ``profile.yaml`` is used
where it lies beside.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
NAMES = sorted(path.name for path in CASES.iterdir())


@dataclass
class Outcome:
    """How a case ended, by names of pods.

    ``pending`` are the messages of pods without a node, ``told`` all that a pod was told.
    """

    placements: dict[str, str]
    pending: dict[str, str]
    gpus: dict[str, list[int]] = field(default_factory=dict)
    annotations: dict[str, dict[str, str]] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)


def profile_of(case: str) -> Path | None:
    """Return the profile of a case, None for the default one."""
    path = CASES / case / "profile.yaml"
    return path if path.exists() else None


def check(case: str, outcome: Outcome) -> None:
    """A case ended as its ``expected.json`` says."""
    folder = CASES / case
    expected = json.loads((folder / "expected.json").read_text())
    assert expected["why"]
    _check_places(expected, outcome)
    pending = outcome.pending
    for pod, parts in expected.get("pending", {}).items():
        assert pod not in outcome.placements
        for part in parts:
            assert part in pending[pod]
    for part in expected.get("pending_any", []):
        assert pending
        for message in pending.values():
            assert part in message
    _check_gpus(expected, outcome)
    for pod, parts in expected.get("told", {}).items():
        for part in parts:
            assert part in outcome.told[pod]
    if "evicted" in expected or "nodeName" not in (folder / "manifests.yaml").read_text():
        assert sorted(outcome.evicted) == sorted(expected.get("evicted", []))


def _check_places(expected: dict[str, Any], outcome: Outcome) -> None:
    placed, pending = outcome.placements, outcome.pending
    given = {key: placed.get(key) for key in expected.get("placements", {})}
    assert given == expected.get("placements", {}), pending
    for prefix, count in expected.get("bound", {}).items():
        assert sum(pod.startswith(prefix) for pod in placed) == count, pending
    if "per_node" in expected:
        assert Counter(placed.values()) == expected["per_node"], pending
    for prefix, count in expected.get("per_prefix", {}).items():
        assert sum(node.startswith(prefix) for node in placed.values()) == count, pending
    home = {node: name for name, nodes in expected.get("domains", {}).items() for node in nodes}
    for pods in expected.get("same_domain", []):
        assert len({home[placed[pod]] for pod in pods if pod in placed}) == 1, placed


def _check_gpus(expected: dict[str, Any], outcome: Outcome) -> None:
    gpus = outcome.gpus
    assert {pod: gpus.get(pod) for pod in expected.get("gpus", {})} == expected.get("gpus", {})
    for pod, told_of in expected.get("annotations", {}).items():
        written = outcome.annotations[pod]
        assert {name: written.get(name) for name in told_of} == told_of
    if "gpus_of_every_pod" in expected:
        assert set(map(tuple, gpus.values())) == {tuple(expected["gpus_of_every_pod"])}
