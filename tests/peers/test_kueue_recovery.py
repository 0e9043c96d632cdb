"""A node fails under a job that Kueue's manager admitted by topology, before it went for good."""

from __future__ import annotations

from pathlib import Path

from tests.controlplane.live_cluster import Content
from tests.controlplane.queue_builders import KUEUE, cluster_queue, head, suspended_job
from tests.controlplane.story_builders import nodes
from tests.peers.failing_nodes import fails, live, runs_on
from tests.peers.real_peers import Peers

from bayplan_plugins.queues.kueue.topology_assignment import domains_of

WORKLOADS = f"/apis/{KUEUE}/namespaces/default/workloads"
HOST = "kubernetes.io/hostname"
MANAGER = "Kueue's manager"
"""In what the log says of who admits."""
FRAMEWORKS = "batch/job"


def racks() -> list[Content]:
    """Return two racks of three nodes, each for one pod of the job."""
    made = nodes(6)
    for index, node in enumerate(made):
        labels = {"rack": "ab"[index // 3], HOST: node["metadata"]["name"], "pool": "cpu"}
        node["metadata"]["labels"] = labels
    return made


def queue_with_topology() -> list[Content]:
    topology = head(KUEUE, "Topology", "racks", False)
    topology["spec"] = {"levels": [{"nodeLabel": "rack"}, {"nodeLabel": HOST}]}
    flavor, local, queue = cluster_queue("q")
    flavor["spec"] = {"topologyName": "racks", "nodeLabels": {"pool": "cpu"}}
    (group,) = queue["spec"]["resourceGroups"]
    group["flavors"][0]["resources"][0]["nominalQuota"] = 100
    return [topology, flavor, local, queue]


def gathered(count: int) -> list[Content]:
    """Return a suspended Job of pods that take a node each, in one rack."""
    (job,) = suspended_job("train", "q", count)
    template = job["spec"]["template"]
    template["metadata"] = {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}}
    template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "6"
    job["spec"]["backoffLimit"] = 20
    return [job]


def workload(peers: Peers) -> Content:
    (found,) = peers.cluster.items(WORKLOADS)
    return found


def conditions(peers: Peers) -> dict[str, tuple[str, str]]:
    stated = workload(peers)["status"].get("conditions", ())
    return {one["type"]: (one["status"], one["reason"]) for one in stated}


def stated_nodes(peers: Peers) -> set[str]:
    """Return the nodes that the Workload says its pods are on."""
    admission = workload(peers)["status"].get("admission")
    if admission is None:
        return set()
    (assigned,) = admission["podSetAssignments"]
    found = domains_of(assigned.get("topologyAssignment"))
    return {values[-1] for values in found or ()}


def rack(found: set[str]) -> str:
    """Return the rack of some nodes."""
    (only,) = {"ab"[int(name.removeprefix("n")) // 3] for name in found}
    return only


def test_its_job_keeps_its_rack_and_kueue_goes_on_with_it(peers: Peers, tmp_path: Path) -> None:
    args = {"lostAfter": 2, "grace": 120, "endingGrace": 120}
    with peers.scheduler(tmp_path, expected=MANAGER, plugins={"Recovery": args}):
        with peers.running("kueue", KUEUE_FRAMEWORKS=FRAMEWORKS):
            peers.cluster.apply([*racks(), *queue_with_topology(), *gathered(2)])
            before = runs_on(peers, 2)
            home = rack(set(before.values()))
            assert stated_nodes(peers) == set(before.values())
        dead = min(before.values())
        fails(peers, dead)
        peers.wait(
            lambda: len({n for n in live(peers).values() if n} - {dead}) == 2,
            "another node of the rack takes over",
        )
        after = live(peers)
        assert rack(set(after.values())) == home
        assert {uid: node for uid, node in before.items() if node != dead}.items() <= after.items()
        peers.wait(lambda: stated_nodes(peers) == set(after.values()), "the Workload says so")
        assert conditions(peers)["Admitted"][0] == "True"
        with peers.running("kueue", KUEUE_FRAMEWORKS=FRAMEWORKS):
            peers.cluster.apply(suspended_job("next", "q", 1))
            peers.wait(lambda: len(peers.cluster.items(WORKLOADS)) == 2, "Kueue queues again")
            peers.wait(lambda: len([n for n in live(peers).values() if n]) == 3, "and admits")
            assert after.items() <= live(peers).items()
