"""The shared stories of nodes and devices that fail, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace
from tests.recovery.stories import RECOVERY, START, Story

from bayplan.api import Job, JobSet, KueueWorkload, ObjectMeta, Pod, VolcanoJob, VolcanoPodGroup
from bayplan.api.lease import Lease
from bayplan.dialects.kueue import MANAGER_LEASE
from bayplan.profiles.loading import ProfileSet, load_profiles
from bayplan_plugins.queues.kueue.topology_assignment import domains_of

pytestmark = pytest.mark.skipif(
    not RECOVERY.is_dir(), reason="the shared scenarios are not beside the project"
)

NAMES = ("default-scheduler", "volcano", "kai-scheduler")
GONE_SECONDS = 30.0
"""The grace period of pods: those that are evicted are gone after it."""


@pytest.fixture
def profiles(tmp_path: Path) -> ProfileSet:
    plugins = {"multiPoint": {"enabled": [{"name": "Recovery"}]}}
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": name, "plugins": plugins} for name in NAMES],
    }
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(content))
    return load_profiles(path)


def played(name: str, profiles: ProfileSet, until: float = 0.0) -> Story:
    story = Story(RECOVERY / name, profiles, until or story_end(name))
    story.run()
    return story


def story_end(name: str) -> float:
    found = yaml.safe_load((RECOVERY / name / "expected.json").read_text())
    return float(found["after_s"])


def nodes(story: Story) -> dict[str, str | None]:
    return {key: node or None for key, node in story.placed().items()}


def test_a_spare_of_the_same_rack_takes_over_and_the_neighbours_keep_running(
    profiles: ProfileSet,
) -> None:
    story = played("01-spare-in-rack", profiles)
    expected = story.expected()
    assert nodes(story) == expected["placements"]
    assert story.kept() >= set(expected["kept"])


def test_a_device_taint_drives_its_pod_out_and_new_claims_elsewhere(profiles: ProfileSet) -> None:
    story = Story(RECOVERY / "05-device-taint", profiles, story_end("05-device-taint"))
    ending: list[Pod | None] = []
    story.cluster.clock.call_at(10, lambda: ending.append(story.cluster.get(Pod, "ml/pod-a")))
    story.run()
    expected = story.expected()
    (gone,) = ending
    assert gone is not None
    wanted = expected["pod_condition"]["ml/pod-a"]
    assert (wanted["type"], wanted["reason"]) in [
        (c.type, c.reason) for c in gone.status.conditions
    ]
    assert story.kept() >= set(expected["kept"])
    assert story.kept().isdisjoint(expected["deleted"])
    used = story.claims()
    assert {key: used[key].partition("/")[0] for key in expected["devices_used"]} == (
        expected["devices_used"]
    )


def test_a_pod_of_a_silent_node_blocks_its_name_until_the_node_is_out_of_service(
    profiles: ProfileSet,
) -> None:
    story = Story(RECOVERY / "06-out-of-service", profiles, 660.0)
    checks = story.expected()["checks"]
    story.look_at(*(check["at_s"] for check in checks))
    story.run()
    for check in checks:
        seen = story.looks[check["at_s"]]
        assert seen | check["placements"] == seen


def test_a_stale_group_of_kai_goes_by_its_own_grace_period(profiles: ProfileSet) -> None:
    story = Story(RECOVERY / "07-kai-stale-gang", profiles, 380.0 + GONE_SECONDS)
    first, last = story.expected()["checks"]
    story.look_at(first["at_s"])
    story.run()
    seen = story.looks[first["at_s"]]
    assert all(seen[key] for key in first["kept"])
    assert seen["ml/train-1"] == ""
    assert story.kept().isdisjoint(last["deleted"])
    by_recovery = [one for one in story.evictions() if one.action == "recovery"]
    assert [one.pod for one in by_recovery] == ["ml/train-1"], "only off the node that is lost"


def test_the_victim_is_the_one_whose_checkpoint_is_freshest(profiles: ProfileSet) -> None:
    story = Story(RECOVERY / "09-checkpointed-victim", profiles, 3605.0, START - timedelta(hours=1))
    story.run()
    expected = story.expected()
    assert [one.pod for one in story.evictions()] == expected["evicted"]
    waiting = story.cluster.get(Pod, "ml/hp-0")
    assert waiting is not None
    assert waiting.status.nominated_node_name == expected["nominated"]["ml/hp-0"]


def test_the_missing_member_of_a_gang_goes_before_a_younger_pod(profiles: ProfileSet) -> None:
    story = played("10-gang-before-younger-pod", profiles)
    expected = story.expected()
    found = nodes(story)
    assert found | expected["placements"] == found
    assert story.kept() >= set(expected["kept"])


# What the jobs' own controllers decide ---------------------------------------------------------


def test_a_volcano_job_that_restarts_as_a_whole_holds_nothing(profiles: ProfileSet) -> None:
    name = "02-no-spare-restart-job"
    story = Story(RECOVERY / name, profiles, story_end(name))
    (job,) = story.cluster.list(VolcanoJob)
    (group,) = story.cluster.list(VolcanoPodGroup)
    # Volcano's controller makes the next group of what the job says, which says nothing here.
    spec = replace(job.spec, network_topology=group.spec.network_topology)
    story.cluster.update(replace(job, spec=spec))
    story.run()
    expected = story.expected()
    assert story.kept().isdisjoint(expected["deleted"])
    found = nodes(story)
    assert found | expected["placements"] == found
    (job,) = story.cluster.list(VolcanoJob)
    assert job.status.state.phase == expected["job_phase"]
    assert job.status.retry_count == expected["retry_count"]


def test_a_jobset_restarts_by_its_rule_for_host_failures(profiles: ProfileSet) -> None:
    folder, until = RECOVERY / "08-jobset-host-failure", story_end("08-jobset-host-failure")
    story = Story(folder, profiles, until)
    story.run()
    expected = story.expected()
    (owner,) = story.cluster.list(JobSet)
    for field, value in expected["jobset"].items():
        if field == "condition":
            restarting = {one.type: one for one in owner.status.conditions}[value["type"]]
            assert restarting.reason in ("JobsReady", f"FailurePolicy_{value['reason_contains']}")
        else:
            name = {"restartsCountTowardsMax": "restarts_count_towards_max"}.get(field, field)
            assert getattr(owner.status, name.replace("terminalState", "terminal_state")) == value
    assert story.kept().isdisjoint(expected["deleted"])
    assert sorted(story.placed().values()) == expected["placements_set"]["nodes"]


# Kueue's jobs, adopted from its manager ----------------------------------------------------------


@pytest.fixture
def adopted(profiles: ProfileSet) -> Callable[[str], Story]:
    """Play a story on a cluster that Kueue's manager has left."""

    def play(name: str) -> Story:
        story = Story(RECOVERY / name, profiles, story_end(name), own_replacements=True)
        given_back = Lease(ObjectMeta(name=MANAGER_LEASE, namespace="kueue-system"))
        story.cluster.create(given_back)
        story.run()
        return story

    return play


def topology_of(story: Story) -> dict[str, int]:
    """Return how many pods the Workload says are on each node."""
    (workload,) = story.cluster.list(KueueWorkload)
    assert workload.status.admission is not None
    (assigned,) = workload.status.admission.pod_set_assignments
    return {
        node: count for (node,), count in (domains_of(assigned.topology_assignment) or {}).items()
    }


def states(story: Story) -> dict[str, tuple[str, str]]:
    (workload,) = story.cluster.list(KueueWorkload)
    return {one.type: (one.status, one.reason) for one in workload.status.conditions}


def test_a_job_of_kueue_gets_another_node_of_its_rack_and_its_workload_says_so(
    adopted: Callable[[str], Story],
) -> None:
    story = adopted("03-kueue-hot-swap")
    expected = story.expected()
    assert story.kept() == set(expected["kept"])
    assert sorted(story.placed().values()) == sorted(expected["placements"].values())
    assert topology_of(story) == expected["workload"]["topology"]
    told = states(story)
    assert "Evicted" not in told
    assert told["Admitted"][0] == told["QuotaReserved"][0] == "True"
    (workload,) = story.cluster.list(KueueWorkload)
    assert workload.status.unhealthy_nodes == ()


def test_a_job_of_kueue_without_a_node_in_its_rack_waits_in_its_queue_again(
    adopted: Callable[[str], Story],
) -> None:
    story = adopted("04-kueue-second-failure")
    expected = story.expected()
    assert story.kept() == set()
    assert sorted(story.placed().values()) == expected["workload"]["readmitted_to"]
    assert sorted(topology_of(story)) == expected["workload"]["readmitted_to"]
    told = states(story)
    assert told["Requeued"] == ("True", "NodeFailures")
    assert told["Evicted"][0] == "False"
    assert told["Admitted"][0] == "True"
    (workload,) = story.cluster.list(KueueWorkload)
    assert workload.status.scheduling_stats is not None
    counted = [(one.reason, one.count) for one in workload.status.scheduling_stats.evictions]
    assert counted == [("NodeFailures", 1)]
    (job,) = story.cluster.list(Job)
    assert "Suspended" in {one.type for one in job.status.conditions}, "it was, in between"
