"""What holds of the queues of every system, whatever its queues, jobs and events are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.properties.queue_stories import Story, told
from tests.properties.queue_worlds import DIALECTS, Dialect, World, worlds

POLICIES = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
IN_ORDER = list(DIALECTS.values())
NUMBER = st.integers(0, 9)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("leave", "leave", "add_node", "lose_node", "limit"),
                *("break", "resume", "crash", "refuse"),
            )
        ),
        NUMBER,
        st.sampled_from((0, 5, 60)),
    ),
    min_size=2,
    max_size=6,
)


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
