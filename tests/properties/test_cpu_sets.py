"""Whatever pods come and go, and whoever restarts, no CPU is given to two of them."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.cpu_nodes import cpu_pod, cpu_report, cpu_topology, cpus_given
from tests.examples import examples

from bayplan.api.cpu_lists import cpus_in
from bayplan.testing import Cluster, make_node

POLICIES = ("FullPCPUs", "SpreadByPCPUs")
EXCLUSIVE = ("None", "PCPULevel", "NUMANodeLevel")
KUBELET = '{"policy": "static", "reservedCPUs": "0-1"}'


def check(cluster: Cluster, asked: dict[str, tuple[int, str]]) -> int:
    """Assert that pods have what they asked for, and nobody else has it; return how many have."""
    holders: Counter[tuple[str, int]] = Counter()
    placed = cluster.placements()
    for name, node in placed.items():
        cpus = cpus_in(cpus_given(cluster, name))
        count, required = asked[name]
        assert len(cpus) == count, name
        cores = {cpu // 2 for cpu in cpus}
        if required:
            assert len(cores) * (2 if required == "FullPCPUs" else 1) == count, name
        assert not cpus & {0, 1}, name
        holders.update((node, cpu) for cpu in cpus)
    assert max(holders.values(), default=0) <= 1
    return len(placed)


def play(seed: int, pods: int) -> int:
    """Create pods on four nodes, remove some, restart now and then; return how many got CPUs."""
    dice = random.Random(seed)
    cluster = Cluster()
    for number in range(4):
        labels = {"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"} if number else {}
        name = f"n{number}"
        report = cpu_report(name, topology=cpu_topology(2, 8), kubelet=KUBELET)
        cluster.add(make_node(name, 32, "256Gi", labels=labels), report)
    asked: dict[str, tuple[int, str]] = {}
    served = 0
    for number in range(pods):
        spec = {"preferredCPUExclusivePolicy": dice.choice(EXCLUSIVE)}
        required = dice.choice(("", *POLICIES))
        spec["requiredCPUBindPolicy" if required else "preferredCPUBindPolicy"] = (
            required or dice.choice(POLICIES)
        )
        count = dice.randint(1, 9)
        asked[f"p{number}"] = (count, required)
        cluster.add(cpu_pod(f"p{number}", str(count), dice.choice(("LSE", "LSR")), spec))
        if number % 8 < 7:
            continue
        cluster.schedule()
        served = served + check(cluster, asked)
        for name in dice.sample(sorted(asked), len(asked) // 2):
            cluster.remove(name)
            del asked[name]
        if dice.random() < 0.3:
            cluster.restart()
    return served


@examples(10)
@given(st.integers(0, 2**16))
def test_no_cpu_is_given_twice(seed: int) -> None:
    play(seed, 40)


def test_no_cpu_is_given_twice_to_a_thousand_pods() -> None:
    assert play(7, 1000) > 1000
