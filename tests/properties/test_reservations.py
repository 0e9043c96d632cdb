"""Whatever comes and goes, reservations and pods never have more of a node than there is."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan.api import Pod, Reservation
from bayplan.api.resources import effective_requests
from bayplan.dialects.koordinator.reservations import allocated_by, amounts_left
from bayplan.testing import Cluster, make_node, make_object, make_pod

NODES = ("a", "b", "c")
CPUS = 8


def reservation(
    name: str, cpu: int, owners: str, once: bool, ttl: int, takes_over: int = 0
) -> object:
    """Return a reservation that takes over no pod, one, or as many as it needs."""
    more = {
        "preAllocation": True,
        "allocatePolicy": "Restricted",
        "preAllocationPolicy": {"enableMultiple": takes_over > 1},
    }
    container = {"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}
    return make_object(
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Reservation",
            "metadata": {"name": name},
            "spec": {
                "template": {"spec": {"containers": [container]}},
                "owners": [{"labelSelector": {"matchLabels": {"app": owners}}}],
                "allocateOnce": once,
                "ttl": f"{ttl}s",
                **(more if takes_over else {}),
            },
        }
    )


def check(cluster: Cluster) -> None:
    """Assert that no node has more on it than it has, and that owners are counted."""
    used: Counter[str] = Counter()
    users: Counter[str] = Counter()
    for pod in cluster.api.list(Pod):
        if pod.spec.node_name:
            used[pod.spec.node_name] += effective_requests(pod.spec)["cpu"]
            users[allocated_by(pod.metadata.annotations)] += 1
    for one in cluster.api.list(Reservation):
        if one.status.phase == "Available":
            used[one.status.node_name] += amounts_left(one.status).get("cpu", 0)
            assert len(one.status.current_owners) == users[one.metadata.uid], one.key
            assert not (one.spec.allocate_once and one.status.current_owners)
    assert max(used.values(), default=0) <= 1000 * CPUS, used


@examples(20)
@given(st.integers(0, 2**16))
def test_nothing_is_given_twice(seed: int) -> None:
    dice = random.Random(seed)
    cluster = Cluster()
    cluster.add(*(make_node(name, CPUS) for name in NODES))
    pods: list[str] = []
    for step in range(40):
        choice = dice.random()
        if choice < 0.35:
            owners, once = dice.choice("xy"), dice.random() < 0.5
            ttl = dice.choice((0, 60, 300))
            size, takes_over = dice.randint(1, 6), dice.choice((0, 0, 1, 2))
            one = reservation(f"r{step}", size, owners, once, ttl, takes_over)
            cluster.add(one)  # type: ignore[arg-type]
        elif choice < 0.75:
            pods.append(f"p{step}")
            cluster.add(make_pod(pods[-1], dice.randint(1, 5), labels={"app": dice.choice("xyz")}))
        elif choice < 0.85 and pods:
            cluster.remove(pods.pop(dice.randrange(len(pods))))
        elif choice < 0.9:
            cluster.restart()
        else:
            cluster.advance(dice.choice((1, 20, 100)))
        cluster.schedule()
        check(cluster)
