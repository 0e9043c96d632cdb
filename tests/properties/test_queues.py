"""What holds of the queues of every system, whatever its queues, jobs and events are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.properties.queue_stories import Story
from tests.properties.queue_worlds import DIALECTS, Dialect, World, worlds

POLICIES = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
IN_ORDER = list(DIALECTS.values())
NUMBER = st.integers(0, 9)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("leave", "leave", "add_node", "lose_node", "limit", "break", "resume")),
        NUMBER,
        st.sampled_from((0, 5, 60)),
    ),
    min_size=2,
    max_size=6,
)


def take(story: Story, event: str, number: int) -> None:
    """Let one thing happen."""
    if event == "leave":
        story.leave(number)
    elif event == "add_node":
        story.add_node(2 + number % 3)
    elif event == "lose_node":
        story.lose_node(number)
    elif event == "limit":
        story.limit(number, number % 4)
    elif event == "break":
        story.break_watch()
    else:
        story.resume_watch()


def told(story: Story, events: list[tuple[str, int, int]]) -> list[str]:
    """Tell a story, checking after each event; return where pods were at the end, and who left."""
    jobs = list(story.world.jobs)
    for event, number, seconds in [("resume", 0, 0), *events]:
        take(story, event, number)
        story.come([jobs.pop(0) for _ in range(min(len(jobs), 1 + number % 3))])
        story.cluster.advance(seconds)
        story.check_limits()
        story.check_ledger()
        story.check_lending()
        story.restart()
    story.resume_watch()
    story.come(jobs)
    story.settle()
    story.check_limits()
    story.check_ledger()
    story.check_lending()
    placed = [f"{key} on {node}" for key, node in sorted(story.cluster.placements().items())]
    return [*placed, *(one.pod for one in story.cluster.scheduler.evictor.evicted)]


@POLICIES
def test_limits_and_books_hold_whatever_happens_cached_or_not(dialect: Dialect) -> None:
    @examples(5, seed=IN_ORDER.index(dialect))
    @given(worlds(dialect.trees), EVENTS)
    def holds(world: World, events: list[tuple[str, int, int]]) -> None:
        assert told(Story(dialect, world), events) == told(Story(dialect, world, False), events)

    holds()


@POLICIES
def test_a_settled_demand_settles_and_no_room_is_left_idle(dialect: Dialect) -> None:
    @examples(8, seed=IN_ORDER.index(dialect))
    @given(worlds(dialect.trees))
    def holds(world: World) -> None:
        story = arrived(dialect, world)
        story.check_conservation()

    holds()


@POLICIES
def test_what_was_lent_comes_back_to_whom_it_is_owed(dialect: Dialect) -> None:
    @examples(8, seed=IN_ORDER.index(dialect))
    @given(worlds(dialect.trees, alone=True))
    def holds(world: World) -> None:
        story = arrived(dialect, world)
        story.check_conservation()
        story.check_owed()

    holds()


def arrived(dialect: Dialect, world: World) -> Story:
    """Return a story in which all has settled: the early jobs, and then the late ones."""
    story = Story(dialect, world)
    for late in (False, True):
        story.come(job for job in world.jobs if job.late is late)
        story.settle()
        story.check_limits()
    return story
