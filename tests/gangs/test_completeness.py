"""When a gang has enough members, and the order in which they stand."""

from __future__ import annotations

import pytest

from bayplan.api.gang import Gang, MatchPolicy
from bayplan.gangs.completeness import (
    has_minimum,
    missing_role,
    needs_no_minimum,
    rank_order,
    still_needed,
)
from bayplan.snapshot import PodInfo
from bayplan.testing import make_pod

INDEX = "gang.scheduling.koordinator.sh/network-topology-index"
ROLE = "volcano.sh/task-spec"


def gang(min_member: int = 3, policy: MatchPolicy = "once-satisfied", **roles: int) -> Gang:
    return Gang("default/job", min_member, roles=tuple(roles.items()), match_policy=policy)


def member(
    name: str, rank: int | None = None, role: str = "", namespace: str = "default"
) -> PodInfo:
    annotations = {} if rank is None else {INDEX: str(rank)}
    if role:
        annotations |= {ROLE: role, "scheduling.k8s.io/group-name": "job"}
        return PodInfo(make_pod(name, annotations=annotations, namespace=namespace))
    return PodInfo(make_pod(name, annotations=annotations, namespace=namespace, gang="job"))


@pytest.mark.parametrize(("count", "enough"), [(2, False), (3, True), (4, True)])
def test_a_gang_has_its_minimum_from_min_member_on(count: int, enough: bool) -> None:
    assert has_minimum(gang(3), count) is enough


@pytest.mark.parametrize(
    ("policy", "satisfied", "expected"),
    [
        ("once-satisfied", True, True),
        ("once-satisfied", False, False),
        ("waiting-and-running", True, False),
        ("staying-and-succeeded", True, False),
        ("only-waiting", True, False),
    ],
)
def test_only_a_once_satisfied_gang_loses_its_minimum_when_it_was_complete(
    policy: MatchPolicy, satisfied: bool, expected: bool
) -> None:
    assert needs_no_minimum(gang(3, policy), satisfied) is expected


@pytest.mark.parametrize(
    ("policy", "satisfied", "bound", "needed"),
    [
        ("once-satisfied", False, 0, 3),
        ("once-satisfied", False, 2, 1),
        ("once-satisfied", True, 0, 0),
        ("waiting-and-running", False, 2, 1),
        ("waiting-and-running", True, 2, 1),
        ("waiting-and-running", True, 5, 0),
        ("staying-and-succeeded", True, 2, 1),
        ("only-waiting", False, 2, 3),
        ("only-waiting", True, 2, 3),
    ],
)
def test_members_with_a_node_count_as_the_match_policy_says(
    policy: MatchPolicy, satisfied: bool, bound: int, needed: int
) -> None:
    assert still_needed(gang(3, policy), bound, satisfied) == needed


def test_the_first_role_with_too_few_members_is_missing() -> None:
    pods = [member("ps-0", role="ps"), member("worker-0", role="worker")]
    assert missing_role(gang(3, ps=1, worker=2, chief=1), pods) == ("worker", 1, 2)


def test_no_role_is_missing_when_each_has_enough() -> None:
    pods = [member("ps-0", role="ps"), member("worker-0", role="worker")]
    assert missing_role(gang(2, ps=1, worker=1), pods) is None
    assert missing_role(gang(2), []) is None


def test_stated_ranks_come_before_names_and_names_count_as_numbers() -> None:
    pods = [
        member("job-10"),
        member("job-2"),
        member("z", rank=1),
        member("a", rank=7),
        member("first", rank=0),
    ]
    assert [pod.name for pod in sorted(pods, key=rank_order)] == [
        "first",
        "z",
        "a",
        "job-2",
        "job-10",
    ]


def test_members_of_one_name_stand_in_the_order_of_their_namespaces() -> None:
    pods = [member("p", namespace="b"), member("p", namespace="a")]
    assert [pod.namespace for pod in sorted(pods, key=rank_order)] == ["a", "b"]
