"""A simulation with a journal: what its pods hold in virtual time, to the millisecond."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan.api import ApiObject
from bayplan.metering.journal import Journal
from bayplan.metering.summary import Summary
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing.builders import make_node, make_object, make_pod

START = 946_684_800_000
GPU = "nvidia.com/gpu"
JOBS = st.lists(
    st.tuples(
        st.sampled_from(("red", "blue")),
        st.integers(1, 8),
        st.integers(1, 5_000),
        st.integers(0, 3_000),
    ),
    max_size=12,
)


def pool(reserved: int) -> ApiObject:
    return make_object(
        {
            "apiVersion": "bayplan.dev/v1alpha1",
            "kind": "ComputePool",
            "metadata": {"name": "main"},
            "spec": {"nodeSelector": {"pool": "main"}, "capacity": {"reserved": f"{reserved}%"}},
        }
    )


@given(JOBS, st.sampled_from((0, 10, 40)))
@examples(25)
def test_all_capacity_is_accounted_for(
    jobs: list[tuple[str, int, int, int]], reserved: int
) -> None:
    journal = Journal()
    simulation = Simulation(default_profiles(), until=10_000.0, journal=journal)
    nodes = [make_node(f"n{n}", cpu="64", gpu=8, labels={"pool": "main"}) for n in range(2)]
    simulation.create([*nodes, pool(reserved)])
    pods = [
        make_pod(
            f"p{index}",
            gpu=gpus,
            namespace=tenant,
            annotations={"bayplan.dev/duration": f"{seconds}s"},
        )
        for index, (tenant, gpus, seconds, _) in enumerate(jobs)
    ]
    arrivals = [(float(at), pod) for pod, (*_, at) in zip(pods, jobs, strict=True)]
    simulation.arrive(arrivals)
    simulation.run()
    wanted: dict[str, int] = defaultdict(int)
    bound = {one.pod: one.at for one in simulation.timeline() if one.kind == "Bound"}
    for pod, (tenant, gpus, seconds, _) in zip(pods, jobs, strict=True):
        if pod.key in bound:
            held = min(10_000.0, bound[pod.key] + seconds) - bound[pod.key]
            wanted[tenant] += round(gpus * 1000 * held * 1000)
    summary = Summary(journal, START, START + 10_000_000)
    assert summary.until == START + 10_000_000
    used = {
        key[0]: total
        for key, total in summary.usage(["tenant", "resource"]).items()
        if key[1] == GPU
    }
    assert used == dict(wanted)
    states = {
        state: total
        for (resource, state), total in summary.capacity(["resource", "state"]).items()
        if resource == GPU
    }
    assert sum(states.values()) == 16 * 1000 * 10_000_000
    assert states["in-service"] >= sum(used.values())
    most = int(16 * reserved / 100) * 1000 * 10_000_000
    assert states.get("reserved", 0) <= most
    if not bound:
        assert states.get("reserved", 0) == most
    journal.close()
