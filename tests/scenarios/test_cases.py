"""Worked cases of each ecosystem end as they should; ``expected`` says what a case may hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from tests.scenarios.expected import CASES, NAMES, Outcome, check, profile_of

from bayplan.api.gpus import GPU_RESOURCES
from bayplan.cli import cli


def simulate(case: str) -> dict[str, Any]:
    arguments = ["simulate", "-f", str(CASES / case / "manifests.yaml"), "-o", "json"]
    profile = profile_of(case)
    if profile is not None:
        arguments += ["--config", str(profile)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def outcome(answer: dict[str, Any]) -> Outcome:
    told: dict[str, str] = {}
    for entry in answer["timeline"]:
        pod = plain(entry["pod"])
        told[pod] = f"{told.get(pod, '')} {entry['message']}"
    return Outcome(
        placements={plain(key): node for key, node in answer["placements"].items()},
        pending={plain(key): entry["message"] for key, entry in answer["pending"].items()},
        gpus={
            plain(key): [int(one["device"].removeprefix("gpu-")) for one in devices]
            for key, devices in answer["devices"].items()
            if devices[0]["request"] in GPU_RESOURCES
        },
        annotations={plain(key): found for key, found in answer["annotations"].items()},
        told=told,
        evicted=[plain(entry["pod"]) for entry in answer["evicted"]],
    )


def plain(key: str) -> str:
    return key.removeprefix("default/")


@pytest.mark.parametrize("case", NAMES)
def test_the_case_ends_as_it_should(case: str) -> None:
    check(case, outcome(simulate(case)))
