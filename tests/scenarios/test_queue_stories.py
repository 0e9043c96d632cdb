"""The stories of queues in configs/examples, through ``bayplan simulate``."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from click.testing import CliRunner
from paths import ROOT

from bayplan.cli import cli

CONFIGS = ROOT / "configs"


def simulate(story: str, profile: str = "") -> dict[str, Any]:
    arguments = ["-f", str(CONFIGS / "examples" / story), "--until", "30m", "-o", "json"]
    if profile:
        arguments += ["--config", str(CONFIGS / "profiles" / profile)]
    result = CliRunner().invoke(cli, ["simulate", *arguments])
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def jobs(pods: Any) -> Counter[str]:
    """Return how many pods each job has, by the job's name."""
    return Counter(pod.removeprefix("default/").partition("-worker-")[0] for pod in pods)


def test_capacity_returns_what_was_borrowed_one_whole_job() -> None:
    answer = simulate("queues-capacity", "volcano-capacity.yaml")
    assert jobs(answer["placements"]) == {"serving": 8, "sweep-1": 4, "sweep-2": 4}
    assert jobs(one["pod"] for one in answer["evicted"]) == {"sweep-3": 4}
    assert {one["at"] for one in answer["evicted"]} == {600.0}
    message = answer["pending"]["default/sweep-3-worker-0"]["message"]
    assert 'queue "research" would have more than it deserves' in message


def test_proportion_divides_by_weight_and_takes_surplus_pods_only() -> None:
    answer = simulate("queues-proportion", "volcano-proportion.yaml")
    assert jobs(answer["placements"]) == {"train": 12, "batch": 4}
    assert [one["pod"] for one in answer["evicted"]] == [
        f"default/batch-worker-{index}" for index in range(15, 3, -1)
    ]
    message = answer["pending"]["default/batch-worker-15"]["message"]
    assert 'queue "silver": deserved share of nvidia.com/gpu exceeded' in message


def test_fair_share_takes_back_the_surplus_of_an_elastic_job() -> None:
    answer = simulate("queues-fair-share", "kai.yaml")
    names = Counter(pod.removeprefix("default/").rpartition("-")[0] for pod in answer["placements"])
    assert names == {"train": 4, "serve": 4}
    assert {one["at"] for one in answer["evicted"]} == {600.0}
    assert all(one["pod"].startswith("default/train-") for one in answer["evicted"])
    assert len(answer["evicted"]) == 4


def test_cluster_queue_takes_back_what_it_lent_of_its_flavor() -> None:
    answer = simulate("queues-kueue")
    assert answer["placements"]["default/serving"] == "r0"
    on_spot = [pod for pod, node in answer["placements"].items() if node == "s0"]
    assert len(on_spot) == 2
    assert len(answer["placements"]) == 4
    (evicted,) = answer["evicted"]
    assert evicted["at"] == 600.0
    assert evicted["pod"].startswith("default/train-")
