"""Worlds and stories of queues that once went wrong: thorough runs of properties found them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.properties.queue_stories import Happens, Story, told
from tests.properties.queue_worlds import DIALECTS, Job, Team, World

LOST_MEMBERS_AFTER_NOMINATION = World(
    (4, 4, 2),
    (Team("q0", 5, 9, kept=2), Team("q1", 4, kept=1), Team("q2", 1), Team("q3", 0)),
    (
        Job("j0", "q0", 3, priority=1, late=True),
        Job("j1", "q1", 2, 1, priority=1, late=True),
        Job("j2", "q2", 4, gpu=4, priority=1),
        Job("j3", "q3", 1, 1),
        Job("j4", "q3", 4, priority=1),
        Job("j5", "q2", 4, 2),
        Job("j6", "q3", 4, late=True),
        Job("j7", "q3", 4, gpu=2, late=True),
    ),
)
"""A gang lost the members that it had, and kept one node, which is not enough for it."""

SHARE_FELL_AFTER_NOMINATION = World(
    (4, 2),
    (Team("q0", 3, weight=3, priority=1, kept=1), Team("q1", 2, priority=1)),
    (
        Job("j0", "q0", 2, 2, priority=1, late=True),
        Job("j1", "q0", 4, 1, 2, priority=1, late=True),
        Job("j2", "q1", 1, 1),
        Job("j3", "q1", 1, priority=1, late=True),
        Job("j4", "q0", 3, priority=1),
        Job("j5", "q0", 3, late=True),
    ),
)
"""A job kept nodes that its queue did not let it use any more."""

SHAPE_CHANGED_WHILE_TRIED = World(
    (8,),
    (
        Team("left", 1, 1, has_children=True),
        Team("right", 3, has_children=True),
        Team("q0", 1, 7, "left", 3),
        Team("q1", 3, None, "right", priority=1),
    ),
    (
        Job("j0", "q1", 3, 2, 4, priority=1),
        Job("j1", "q1", 4, 1, priority=1, late=True),
        Job("j2", "q0", 3, 3, late=True),
        Job("j3", "q1", 4, priority=1, late=True),
        Job("j4", "q0", 1, 1, late=True),
        Job("j5", "q0", 4, gpu=4, priority=1, late=True),
    ),
)
"""Jobs waited for one like them that was tried first, and that was like them no more."""

ADMITTED_IN_ANOTHER_ORDER = World(
    (2, 4),
    (Team("q0", 5), Team("q1", 0), Team("q2", 1), Team("q3", 0, 6)),
    (
        Job("j0", "q2", 2, 2, priority=1),
        Job("j1", "q0", 2, gpu=4, priority=1),
        Job("j2", "q1", 4, 3, priority=1, late=True),
    ),
)
"""A workload was admitted beside another one, which then took its nodes."""

PLACED_IN_ANOTHER_ORDER = World(
    (4, 2),
    (Team("q0", 0), Team("q1", 0)),
    (Job("j0", "q1", 1, gpu=4, priority=1), Job("j1", "q0", 3)),
)
"""Workloads got their nodes in the order of their queues, and not in that of their admission."""

ADMITTED_BEFORE_IT_WAS_WRITTEN = World(
    (2, 4, 2),
    (Team("q0", 0), Team("q1", 0), Team("q2", 0), Team("q3", 0)),
    (
        Job("j0", "q0", 1, late=True),
        Job("j1", "q1", 4, 1, 2),
        Job("j2", "q0", 1, late=True),
        Job("j3", "q1", 1, gpu=4),
        Job("j4", "q0", 1),
        Job("j5", "q0", 1, late=True),
        Job("j6", "q1", 1, 1),
    ),
)
"""A workload was admitted onto the nodes of another one, whose admission was being written."""

BEGAN_AGAIN_WITH_ITS_OLD_QUOTA = World(
    (2, 2),
    (Team("q0", 0, 1), Team("q1", 0), Team("q2", 0)),
    (Job("j0", "q0", 1), Job("j1", "q0", 1, 1), Job("j2", "q0", 1), Job("j3", "q0", 1)),
)
"""A gang came back after another one had got its quota, and took up its old Workload."""

TOOK_NODES_THAT_VICTIMS_LEFT = World(
    (8, 2),
    (
        Team("left", 8, has_children=True),
        Team("right", 0, has_children=True),
        Team("q0", 8, None, "left"),
        Team("q1", 0, None, "right"),
        Team("q2", 0, None, "left"),
    ),
    (
        Job("j0", "q2", 3, 1),
        Job("j1", "q0", 3, 3, late=True),
        Job("j2", "q1", 4, 3, late=True),
        Job("j3", "q2", 1, late=True),
        Job("j4", "q0", 1),
        Job("j5", "q0", 4, 4),
        Job("j6", "q0", 1),
        Job("j7", "q2", 4, late=True),
    ),
)
"""Jobs took the nodes that victims left, were preempted for it, and at once again, without end."""


@pytest.mark.parametrize(
    ("dialect", "world"),
    [
        ("volcano capacity", LOST_MEMBERS_AFTER_NOMINATION),
        ("volcano proportion", SHARE_FELL_AFTER_NOMINATION),
        ("kai fair-share", SHAPE_CHANGED_WHILE_TRIED),
        ("kueue cluster-queue", ADMITTED_IN_ANOTHER_ORDER),
        ("kueue cluster-queue", PLACED_IN_ANOTHER_ORDER),
        ("kueue cluster-queue", ADMITTED_BEFORE_IT_WAS_WRITTEN),
    ],
)
def test_no_room_is_left_idle(dialect: str, world: World) -> None:
    story = Story(DIALECTS[dialect], world)
    for late in (False, True):
        story.come(job for job in world.jobs if job.late is late)
        story.settle()
    story.check_limits()
    story.check_conservation()


@pytest.mark.parametrize(
    ("world", "events"),
    [
        (BEGAN_AGAIN_WITH_ITS_OLD_QUOTA, [("leave", 0, 0), ("lose_node", 0, 0)]),
        (TOOK_NODES_THAT_VICTIMS_LEFT, [("lose_node", 1, 5), ("leave", 0, 0)]),
    ],
)
def test_kueues_quotas_hold_and_its_preemption_ends(world: World, events: list[Happens]) -> None:
    told(Story(DIALECTS["kueue cluster-queue"], world), events)


PREEMPT_EACH_OTHER = World(
    (8,),
    (Team("q0", 0), Team("q1", 2)),
    (
        Job("j0", "q1", 4, 4, 2, priority=1, late=True),
        Job("j1", "q0", 2, late=True),
        Job("j2", "q0", 2, 2, 4, priority=1, late=True),
        Job("j3", "q0", 4, late=True),
        Job("j4", "q1", 4),
        Job("j5", "q1", 1),
    ),
)
"""j1 takes its fair share from j0, j2 takes it from j1 by priority, and j0 its share from j2."""


def test_workloads_that_preempt_each_other_for_ever_leave_time_to_others() -> None:
    fair = replace(DIALECTS["kueue cluster-queue"], args={"kueue": {"fairSharing": True}})
    story = Story(fair, PREEMPT_EACH_OTHER)
    for late in (False, True):
        story.come(job for job in PREEMPT_EACH_OTHER.jobs if job.late is late)
        story.cluster.advance(40)
    assert len(story.evicted()) < 100
