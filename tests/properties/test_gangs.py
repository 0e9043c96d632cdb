"""What must hold for gangs on random clusters: all or nothing, near enough, no harm in vain."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.api import ApiObject, Node, Pod
from bayplan.snapshot import PodInfo
from bayplan.testing import (
    Cluster,
    make_gang,
    make_network,
    make_node,
    make_object,
    make_pod,
)

SEEDS = st.integers(0, 100_000)
EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True)
SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"
LAYERS = ("spine", "block")
NETWORK = make_network(spine="spine", block="block")


def small_nodes(draw: random.Random, most: int = 6) -> list[Node]:
    nodes = []
    for index in range(draw.randint(2, most)):
        spine = draw.choice("ab")
        nodes.append(
            make_node(
                f"n-{index}",
                cpu=draw.randint(1, 5),
                gpu=draw.choice([0, 2, 4]),
                labels={"spine": spine, "block": f"{spine}{draw.randint(0, 1)}"},
                taints=draw.choice([(), (), (), ("team=a:NoSchedule",)]),
            )
        )
    return nodes


def rules(draw: random.Random) -> list[dict[str, str]]:
    chosen = draw.sample(LAYERS, draw.randint(0, 2))
    return [
        {"layer": layer, "strategy": draw.choice(["MustGather", "PreferGather"])}
        for layer in chosen
    ]


def small_gang(draw: random.Random, name: str = "job", most: int = 6, **fields: int) -> list[Pod]:
    pods = []
    for index in range(draw.randint(1, most)):
        spec = {}
        if draw.random() < 0.2:
            spec = {"tolerations": [{"key": "team", "operator": "Exists"}]}
        pods.append(
            make_pod(
                f"{name}-{index}",
                str(draw.randint(1, 3)),
                None,
                gang=name,
                spec=spec,
                gpu=draw.choice([0, 0, 1, 2]),
                **fields,  # type: ignore[arg-type]
            )
        )
    return pods


def gang_object(name: str, least: int, gather: Sequence[Mapping[str, str]]) -> ApiObject:
    annotations = {SPEC: json.dumps({"gatherStrategy": list(gather)})} if gather else None
    return make_gang(name, least, annotations)


# An oracle that knows nothing of the scheduler ----------------------------------------------


def tolerates(pod: Pod, node: Node) -> bool:
    return not node.spec.taints or bool(pod.spec.tolerations)


def needs(pod: Pod) -> tuple[int, int]:
    requests = PodInfo(pod).requests
    return requests.get("cpu", 0), requests.get("nvidia.com/gpu", 0)


def room(node: Node) -> tuple[int, int]:
    amounts = node.status.allocatable
    return amounts["cpu"].milli, amounts["nvidia.com/gpu"].units


def fits(pods: Sequence[Pod], nodes: Sequence[Node], placed: Mapping[str, Sequence[Pod]]) -> bool:
    """Whether any assignment gives every pod a node beside those that are placed already."""
    free = []
    for node in nodes:
        cpu, gpu = room(node)
        for other in placed.get(node.metadata.name, ()):
            cpu, gpu = cpu - needs(other)[0], gpu - needs(other)[1]
        free.append((cpu, gpu))

    def place(index: int, left: list[tuple[int, int]]) -> bool:
        if index == len(pods):
            return True
        cpu, gpu = needs(pods[index])
        for place_at, node in enumerate(nodes):
            have = left[place_at]
            if tolerates(pods[index], node) and have[0] >= cpu and have[1] >= gpu:
                rest = list(left)
                rest[place_at] = (have[0] - cpu, have[1] - gpu)
                if place(index + 1, rest):
                    return True
        return False

    return place(0, free)


def domains(nodes: Sequence[Node], gather: Sequence[Mapping[str, str]]) -> Iterator[list[Node]]:
    """Yield the parts of the cluster that the required layers allow."""
    required = [rule["layer"] for rule in gather if rule["strategy"] == "MustGather"]
    layer = "block" if "block" in required else "spine" if required else None
    if layer is None:
        yield list(nodes)
        return
    for value in sorted({node.metadata.labels[layer] for node in nodes}):
        yield [node for node in nodes if node.metadata.labels[layer] == value]


def can_run(
    pods: Sequence[Pod],
    least: int,
    nodes: Sequence[Node],
    gather: Sequence[Mapping[str, str]],
    placed: Mapping[str, Sequence[Pod]],
) -> bool:
    return any(
        fits(chosen, part, placed)
        for part in domains(nodes, gather)
        for chosen in itertools.combinations(pods, least)
    )


# Properties --------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None, derandomize=True)
@given(SEEDS)
def test_a_gang_is_refused_only_if_an_exhaustive_search_refuses_it(seed: int) -> None:
    draw = random.Random(seed)
    nodes, gather, pods = small_nodes(draw), rules(draw), small_gang(draw)
    least = draw.randint(1, len(pods))
    cluster = Cluster(
        [
            *nodes,
            NETWORK,
            gang_object("job", least, gather),
            *pods,
        ]
    )
    placements = cluster.schedule()
    assert bool(placements) == can_run(pods, least, nodes, gather, {}), cluster.message("job-0")
    assert not placements or len(placements) >= least


@EXAMPLES
@given(SEEDS)
def test_must_gather_is_never_broken_and_no_gang_runs_in_part(seed: int) -> None:
    draw = random.Random(seed)
    nodes = small_nodes(draw, 12)
    cluster = Cluster([*nodes, NETWORK])
    gangs = {}
    for index in range(8):
        name, gather = f"g{index}", rules(draw)
        pods = small_gang(draw, name, 4)
        least = draw.randint(1, len(pods))
        gangs[name] = (least, gather)
        cluster.add(gang_object(name, least, gather), *pods)
        cluster.schedule()
        if draw.random() < 0.4 and cluster.placements():
            # A member ends; what its controller makes instead has to join the others.
            gone = draw.choice(sorted(cluster.placements()))
            old = cluster.api.get(Pod, f"default/{gone}")
            assert old is not None
            cluster.remove(gone)
            requests = PodInfo(old).requests
            cluster.add(
                make_pod(
                    f"{gone}-again",
                    f"{requests.get('cpu', 0)}m",
                    None,
                    labels=old.metadata.labels,
                )
            )
    placements = cluster.advance(60)
    where = {node.metadata.name: node.metadata.labels for node in nodes}
    for name, (_, gather) in gangs.items():
        own = [node for pod, node in placements.items() if pod.split("-")[0] == name]
        for rule in gather:
            if rule["strategy"] == "MustGather":
                assert len({where[node][rule["layer"]] for node in own}) <= 1


def place_low(draw: random.Random, nodes: Sequence[Node]) -> dict[str, list[Pod]]:
    """Fill nodes with pods of low priority."""
    placed: dict[str, list[Pod]] = {}
    for node in nodes:
        cpu, gpu = room(node)
        index = 0
        while cpu >= 1000 and draw.random() < 0.8:
            here = draw.randint(1, min(3, cpu // 1000))
            gpus = draw.randint(0, min(2, gpu))
            cpu, gpu = cpu - here * 1000, gpu - gpus
            pod = make_pod(
                f"low-{node.metadata.name}-{index}",
                str(here),
                None,
                priority=draw.choice([1, 1, 2, 50]),
                node=node.metadata.name,
                gpu=gpus,
            )
            placed.setdefault(node.metadata.name, []).append(pod)
            index += 1
    return placed


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SEEDS)
def test_victims_are_minimal_and_nobody_is_evicted_in_vain(seed: int) -> None:
    draw = random.Random(seed)
    nodes, gather = small_nodes(draw, 5), rules(draw)
    low = place_low(draw, nodes)
    pods = small_gang(draw, most=4, priority=10)
    least = len(pods)
    everybody = [pod for on_node in low.values() for pod in on_node]
    cluster = Cluster([*nodes, NETWORK, *everybody])
    cluster.add(gang_object("job", least, gather), *pods)
    cluster.schedule()
    victims = {one.pod for one in cluster.scheduler.evictor.evicted}
    kept = {
        name: [pod for pod in on_node if pod.key not in victims] for name, on_node in low.items()
    }
    evictable = {pod.key for pod in everybody if (pod.spec.priority or 0) < 10}
    assert victims <= evictable
    without_any = {
        name: [pod for pod in on_node if pod.key not in evictable] for name, on_node in low.items()
    }
    placements = cluster.advance(120)
    placed = [pod for pod in placements if pod.startswith("job-")]
    assert bool(placed) == can_run(pods, least, nodes, gather, without_any)
    if not victims:
        assert bool(placed) == can_run(pods, least, nodes, gather, low)
        return
    assert len(placed) == least
    assert not can_run(pods, least, nodes, gather, low)
    assert can_run(pods, least, nodes, gather, kept)
    home = {node.metadata.name: node for node in nodes}
    used = [home[placements[pod]] for pod in placed]
    part = next(part for part in domains(nodes, gather) if all(node in part for node in used))
    for spared in victims:
        fewer = {
            name: [p for p in on_node if p.key not in victims or p.key == spared]
            for name, on_node in low.items()
        }
        assert not fits(pods, part, fewer), f"{spared} need not have gone"


@EXAMPLES
@given(SEEDS)
def test_a_stream_of_mixed_priorities_settles(seed: int) -> None:
    draw = random.Random(seed)
    nodes = small_nodes(draw, 6)
    cluster = Cluster([*nodes, NETWORK])
    for index in range(12):
        name = f"g{index}"
        pods = small_gang(draw, name, 3, priority=draw.choice([1, 5, 10]))
        cluster.add(gang_object(name, len(pods), rules(draw)), *pods)
        cluster.advance(draw.choice([0, 1, 40]))
    cluster.advance(400)
    evicted = [one.pod for one in cluster.scheduler.evictor.evicted]
    # Nobody makes evicted pods anew here, so nobody is evicted twice.
    assert len(set(evicted)) == len(evicted)
    cycles = cluster.scheduler.statistics.cycles
    before = cluster.placements()
    cluster.advance(250)
    assert cluster.placements() == before
    assert cluster.scheduler.statistics.cycles - cycles <= 2 * len(cluster.scheduler.queue.units)
    used: dict[str, tuple[int, int]] = {}
    for pod in cluster.api.list(Pod):
        if pod.spec.node_name:
            cpu, gpu = used.get(pod.spec.node_name, (0, 0))
            used[pod.spec.node_name] = (cpu + needs(pod)[0], gpu + needs(pod)[1])
    for node in nodes:
        cpu, gpu = used.get(node.metadata.name, (0, 0))
        assert cpu <= room(node)[0]
        assert gpu <= room(node)[1]


@EXAMPLES
@given(SEEDS)
def test_two_runs_of_one_story_agree(seed: int) -> None:
    def story() -> tuple[object, ...]:
        draw = random.Random(seed)
        nodes = small_nodes(draw, 6)
        low = place_low(draw, nodes)
        cluster = Cluster(
            [
                *nodes,
                NETWORK,
                *(p for pods in low.values() for p in pods),
            ]
        )
        for index in range(4):
            pods = small_gang(draw, f"g{index}", 4, priority=draw.choice([1, 10]))
            cluster.add(gang_object(f"g{index}", len(pods), rules(draw)), *pods)
        placements = cluster.advance(100)
        return placements, cluster.scheduler.evictor.evicted

    assert story() == story()


def kai_group(parts: Mapping[str, int], required: Mapping[str, str]) -> ApiObject:
    sub_groups = [
        {
            "name": name,
            "minMember": least,
            **(
                {"topologyConstraint": {"requiredTopologyLevel": required[name]}}
                if name in required
                else {}
            ),
        }
        for name, least in parts.items()
    ]
    return make_object(
        {
            "apiVersion": "scheduling.run.ai/v2alpha2",
            "kind": "PodGroup",
            "metadata": {"name": "job", "namespace": "default"},
            "spec": {"minMember": sum(parts.values()), "subGroups": sub_groups},
        }
    )


def sub_groups_fit(
    parts: Sequence[Sequence[Pod]], levels: Sequence[str | None], nodes: Sequence[Node]
) -> bool:
    """Whether every sub-group has a domain of its level in which all of its pods fit together."""
    choices: list[list[list[Node]]] = []
    for level in levels:
        by_value: dict[str, list[Node]] = {}
        for node in nodes:
            by_value.setdefault(node.metadata.labels[level] if level else "", []).append(node)
        choices.append(list(by_value.values()))
    everybody = [pod for part in parts for pod in part]
    for chosen in itertools.product(*choices):
        allowed = {
            pod.key: {node.metadata.name for node in domain}
            for part, domain in zip(parts, chosen, strict=True)
            for pod in part
        }
        if fits_within(everybody, nodes, allowed):
            return True
    return False


def fits_within(
    pods: Sequence[Pod], nodes: Sequence[Node], allowed: Mapping[str, set[str]]
) -> bool:
    def place(index: int, left: list[tuple[int, int]]) -> bool:
        if index == len(pods):
            return True
        pod = pods[index]
        cpu, gpu = needs(pod)
        for at, node in enumerate(nodes):
            have = left[at]
            inside = node.metadata.name in allowed[pod.key] and tolerates(pod, node)
            if inside and have[0] >= cpu and have[1] >= gpu:
                rest = list(left)
                rest[at] = (have[0] - cpu, have[1] - gpu)
                if place(index + 1, rest):
                    return True
        return False

    return place(0, [room(node) for node in nodes])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SEEDS)
def test_sub_groups_are_refused_only_if_an_exhaustive_search_refuses_them(seed: int) -> None:
    draw = random.Random(seed)
    nodes = small_nodes(draw)
    parts, levels, groups = [], [], {}
    for name in ("a", "b", "c")[: draw.randint(2, 3)]:
        pods = []
        for index in range(draw.randint(1, 2)):
            pods.append(
                make_pod(
                    f"{name}-{index}",
                    str(draw.randint(1, 3)),
                    None,
                    labels={"kai.scheduler/subgroup-name": name},
                    annotations={"pod-group-name": "job"},
                    gpu=draw.choice([0, 0, 1, 2]),
                )
            )
        parts.append(pods)
        levels.append(draw.choice([None, "spine", "block"]))
        groups[name] = len(pods)
    required = {name: level for name, level in zip(groups, levels, strict=True) if level}
    cluster = Cluster([*nodes, NETWORK, kai_group(groups, required)])
    cluster.add(*(pod for part in parts for pod in part))
    placements = cluster.schedule()
    assert bool(placements) == sub_groups_fit(parts, levels, nodes)
    labels = {node.metadata.name: node.metadata.labels for node in nodes}
    for name, level in required.items():
        own = {labels[n][level] for pod, n in placements.items() if pod.startswith(name)}
        assert len(own) <= 1
