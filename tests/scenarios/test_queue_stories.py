"""The stories of queues in configs/examples, through ``bayplan simulate``."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from click.testing import CliRunner
from tests.paths import ROOT

from bayplan.cli import cli

CONFIGS = ROOT / "configs"


def simulate(story: str, profile: str = "", until: str = "30m") -> dict[str, Any]:
    arguments = ["-f", str(CONFIGS / "examples" / story), "--until", until, "-o", "json"]
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


def test_drf_gives_each_job_as_much_of_what_it_needs_most() -> None:
    answer = simulate("queues-drf", "volcano-drf.yaml")
    assert jobs(answer["placements"]) == {"index": 3, "encode": 2}


def batch(pods: Any) -> Counter[str]:
    """Return how many pods each batch Job has, by the Job's name."""
    return Counter(pod.removeprefix("default/").rpartition("-")[0] for pod in pods)


def test_fifo_starts_the_older_job_though_another_is_more_important() -> None:
    answer = simulate("queues-plain-fifo", "plain-fifo.yaml")
    assert batch(answer["placements"]) == {"first": 4, "older": 4}
    assert not answer["evicted"]
    message = next(iter(answer["pending"].values()))["message"]
    assert 'queue "lab": limit of nvidia.com/gpu exceeded' in message


def test_priority_lets_the_important_job_take_the_place_of_another_of_its_queue() -> None:
    answer = simulate("queues-plain-priority", "plain-priority.yaml")
    assert batch(answer["placements"]) == {"urgent": 4}
    assert batch(one["pod"] for one in answer["evicted"]) == {"first": 4}
    assert {one["at"] for one in answer["evicted"]} == {120.0}


def test_a_fair_share_of_plain_queues_goes_by_weight() -> None:
    answer = simulate("queues-plain-fair-share")
    assert batch(answer["placements"]) == {"batch": 2, "train": 6}
    assert {one["at"] for one in answer["evicted"]} == {600.0}
    assert len(answer["evicted"]) == 6


def test_capacity_of_plain_queues_returns_what_is_guaranteed_and_no_more() -> None:
    answer = simulate("queues-plain-capacity", "plain-capacity.yaml")
    assert batch(answer["placements"]) == {"sweep": 6, "serving": 2}
    assert batch(one["pod"] for one in answer["evicted"]) == {"sweep": 2}


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


def test_suspended_jobs_wait_for_their_queue_and_are_suspended_again() -> None:
    answer = simulate("queues-suspended-jobs")
    names = Counter(pod.removeprefix("default/").split("-")[0] for pod in answer["placements"])
    # "train" has ended, and "tune", which made way for "release", runs again.
    assert names == {"train": 4, "release": 4, "tune": 4}
    assert answer["queues"]["vision"]["evictions"] == 1
    assert answer["queues"]["vision"]["wait"]["max"] == 1680.0


def test_an_elastic_job_grows_into_what_is_lent_and_gives_it_back() -> None:
    before = simulate("queues-elastic-jobs", until="5m")
    assert len(before["placements"]) == 8
    after = simulate("queues-elastic-jobs")
    names = Counter(pod.removeprefix("default/").split("-")[0] for pod in after["placements"])
    assert names == {"train": 4, "serve": 4}
    assert after["queues"]["research"]["evictions"] == 0
    assert after["queues"]["product"]["wait"]["max"] == 60.0, "a notice, then the end of the pods"


def explain(target: str, until: str) -> str:
    story = str(CONFIGS / "examples" / "queues-suspended-jobs")
    result = CliRunner().invoke(cli, ["explain", target, "-f", story, "--until", until])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_suspended_job_learns_what_it_waits_for() -> None:
    answer = explain("job/distill", "5m")
    assert "Job default/distill is suspended: it has no pods yet" in answer
    assert "place 1 of 1 in the line" in answer
    assert "waits for default/train, which ends in about 1500 s" in answer
    assert 'with 4 more h100/nvidia.com/gpu in the quota of queue "vision"' in answer


def test_the_line_of_a_queue_has_its_suspended_jobs() -> None:
    story = str(CONFIGS / "examples" / "queues-suspended-jobs")
    arguments = ["queue", "show", "vision", "-f", story, "--until", "15m", "-o", "json"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(one["job"], one["place"], one["pods"]) for one in found["line"]] == [
        ("default/tune", 1, 4),
        ("default/distill", 2, 4),
    ]
    assert (found["queue"]["waiting"], found["queue"]["running"]) == (2, 2)


def test_an_elastic_job_grows_makes_way_and_is_billed_to_the_second() -> None:
    story = str(CONFIGS / "examples" / "pooled-training")
    prices = str(CONFIGS / "prices" / "gpus.yaml")
    found = {}
    for tenant in ("research", "serving"):
        arguments = [tenant, "2000-01", "--prices", prices, "-f", story, "-o", "json"]
        result = CliRunner().invoke(cli, ["invoice", *arguments])
        assert result.exit_code == 0, result.output
        found[tenant] = json.loads(result.stdout)["total"]
    # Four replicas of 4 GPUs for an hour, four for 11 minutes and for another hour.
    research = 4 * 4 * 3600 + 4 * 4 * (660 + 3600)
    assert found == {
        "research": str(round(Decimal(2 * research) / 3600, 2)),
        "serving": str(round(Decimal(2 * 16 * 20 * 60) / 3600, 2)),
    }
    result = CliRunner().invoke(cli, ["simulate", "-f", story, "-o", "json"])
    assert json.loads(result.stdout)["evicted"] == []


@pytest.mark.parametrize("until", ["5m", "10m", "20m"])
@pytest.mark.parametrize(
    "story", sorted(path.name for path in (CONFIGS / "examples").glob("queues-*"))
)
def test_whatever_waits_in_a_queue_is_told_why(story: str, until: str) -> None:
    pending = simulate(story, until=until)["pending"]
    assert [pod for pod, answer in pending.items() if not answer["message"].strip()] == []
