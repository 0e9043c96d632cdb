"""Whatever happens, GPUs that a fabric attaches are given out once, within the limits of hosts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.plugins.dynamic_resources.fabric_builders import fabric, fabric_cluster, host, of_model
from tests.plugins.gpus.gpu_builders import group, ledger, pod, request, template

from bayplan.api import Node, Pod, ResourceClaim, ResourceSlice
from bayplan.testing import Cluster

MODELS = ("a", "b")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["pod", "pod", "pod", "gang", "remove", "wait", "wait", "restart", "node"]),
        st.integers(0, 59),
    ),
    min_size=3,
    max_size=14,
)
FAILURES = st.lists(
    st.fixed_dictionaries(
        {
            "card": st.sampled_from(["", "a-0", "a-1", "b-0"]),
            "node": st.sampled_from(["", "n0", "n1"]),
            "times": st.integers(1, 3),
            "result": st.sampled_from(["Failed", "Silent"]),
        }
    ),
    max_size=3,
)


def check(made: Cluster) -> None:
    """Check what must hold at any time."""
    held: Counter[tuple[str, str]] = Counter()
    bound_to: dict[str, str] = {}
    waiting = set()
    for claim in made.api.list(ResourceClaim):
        allocation = claim.status.allocation
        for result in allocation.devices.results if allocation is not None else ():
            assert allocation is not None
            held[result.pool, result.device] += 1
            bound_to[result.device] = allocation.bound_node
            told = {c.type for one in claim.status.devices for c in one.conditions}
            if result.binding_conditions and not set(result.binding_conditions) <= told:
                waiting |= {user.name for user in claim.status.reserved_for}
    assert all(count == 1 for count in held.values())
    assert not waiting & set(made.placements()), "bound before its GPU is attached"
    for published in made.api.list(ResourceSlice):
        for device in published.spec.devices:
            where = device.node_name or published.spec.node_name
            if where:
                bound_to[device.name] = where
    on_host = Counter((node, name[0]) for name, node in bound_to.items() if node)
    for node in made.api.list(Node):
        labels, name = node.metadata.labels, node.metadata.name
        for model in MODELS:
            most = labels.get(f"cohdi.io/{model}-size-max")
            assert most is None or on_host[name, model] <= int(most)
        assert not all(on_host[name, model] for model in MODELS), "models that cannot coexist"


def step(made: Cluster, action: str, number: int, count: int) -> None:
    kind = ("of-a", "of-b", "one", "two")[number % 4]
    if action == "pod":
        made.add(pod(f"p{count}", kind))
    elif action == "gang":
        name = f"g{count}"
        made.add(group(name, 2), *(pod(f"{name}-{i}", kind, gang=name) for i in range(2)))
    elif action == "remove":
        names = sorted(one.metadata.name for one in made.api.list(Pod))
        if names:
            made.remove(names[number % len(names)])
    elif action == "restart":
        made.restart()
    elif action == "node" and count % 3 == 0:
        made.api.vanish_node("n1") if made.api.get(Node, "n1") else made.add(host("n1", *MODELS))
    made.schedule()
    if action == "wait":
        made.advance(number)


@examples(15)
@given(STEPS, FAILURES, st.booleans(), st.integers(0, 2))
def test_gpus_are_given_out_once_within_the_limits_and_all_come_back(
    steps: list[tuple[str, int]], failures: list[dict[str, object]], hands_over: bool, most: int
) -> None:
    config = fabric(
        {"a": 2, "b": 2},
        apart=True,
        failures=failures,
        handsOver=hands_over,
        idleTime="30s",
        detachTime="5s",
    )
    made = fabric_cluster(
        config,
        template("of-a", request(**of_model("a"))),
        template("of-b", request(**of_model("b"))),
        template("two", request(count=2)),
        host("n0", *MODELS, a_size_max=str(most)),
        host("n1", *MODELS),
    )
    for count, (action, number) in enumerate(steps):
        step(made, action, number, count)
        check(made)
    for one in made.api.list(Pod):
        made.remove(one.metadata.name)
    made.schedule()
    made.advance(2000)
    assert made.api.list(ResourceClaim) == []
    assert ledger(made).state.devices == set()
    assert ledger(made).state.nodes == {}
