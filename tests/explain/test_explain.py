"""What bayplan explain is asked about, and what it says in text and JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from rich.console import Console
from tests.paths import ROOT

from bayplan.api import Pod
from bayplan.cli import cli
from bayplan.errors import InputError
from bayplan.explain.explanation import Explanation, explain
from bayplan.explain.placement import Placement
from bayplan.explain.target import Target, target_of
from bayplan.explain.text import print_explanation
from bayplan.testing import Cluster, make_node, make_pod

CASES = Path(__file__).parent / "cases"
WORKLOADS = str(ROOT / "configs" / "examples" / "workloads")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["explain", *arguments])


def said(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


# Targets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("p", Target("", "team/p")),
        ("ns/p", Target("", "ns/p")),
        ("pod/p", Target("Pod", "team/p")),
        ("deploy/web", Target("Deployment", "team/web")),
        ("Deployment/ns/web", Target("Deployment", "ns/web")),
        ("vcjob/j", Target("Job", "team/j")),
        ("podgroup/g", Target("PodGroup", "team/g")),
    ],
)
def test_a_target_is_read_as_people_write_it(text: str, target: Target) -> None:
    assert target_of(text, "team") == target


@pytest.mark.parametrize("text", ["", "/", "a/", "/b", "a/b/c", "deploy/a/b/c"])
def test_what_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected NAME, NAMESPACE/NAME or KIND/NAME"):
        target_of(text)


@pytest.mark.parametrize(
    ("target", "where"),
    [
        ("deploy/web", "all 3 pods have a node\n  on worker-1 (1), worker-2 (2)\n"),
        ("sts/store", "all 2 pods have a node\n  on worker-1, worker-2\n"),
    ],
)
def test_a_workload_stands_for_its_pods(target: str, where: str) -> None:
    first = target.partition("/")[2]
    assert said(target, "-f", WORKLOADS).startswith(f"{where}the first of them:\ndefault/{first}-")


def test_a_job_that_has_ended_is_explained_by_its_first_pod() -> None:
    lines = said("job/training", "-f", WORKLOADS).splitlines()
    assert lines[0] == "the first of 2 pods, those without a node first:"
    assert lines[1].startswith("default/training-0-")


GATHER = str(ROOT / "configs" / "examples" / "prefer-gather")


def test_of_a_gang_that_was_placed_together_all_nodes_and_the_domain_are_said() -> None:
    text = said("topology-demo-job", "-f", GATHER)
    assert text.startswith(
        "4 pods were placed together in SpineLayer/spine-1\n"
        "  on node-5, node-6, node-7, node-8\n"
        "the first of them:\n"
        "default/training-pod-0 is on node-5\n"
    )
    about = json.loads(said("topology-demo-job", "-f", GATHER, "-o", "json"))
    assert about["pod"] == "default/training-pod-0"
    assert about["placement"] == {
        "pods": 4,
        "placed": 4,
        "together": True,
        "domain": "SpineLayer/spine-1",
        "nodes": {"node-5": 1, "node-6": 1, "node-7": 1, "node-8": 1},
    }
    one = json.loads(said("training-pod-0", "-f", GATHER, "-o", "json"))
    assert "placement" not in one


def job(gang: str, parallelism: int) -> str:
    """Return a node of eight CPUs twice, and a Job of pods of three CPUs each."""
    nodes = "".join(
        f"---\napiVersion: v1\nkind: Node\nmetadata: {{name: n{number}}}\n"
        "status: {allocatable: {cpu: 8, memory: 8Gi, pods: 110}}\n"
        for number in range(2)
    )
    return nodes + (
        "---\napiVersion: batch/v1\nkind: Job\n"
        f'metadata: {{name: j, annotations: {{bayplan.dev/gang: "{gang}"}}}}\n'
        f"spec: {{parallelism: {parallelism}, completions: {parallelism}, template: {{spec: "
        "{restartPolicy: Never, containers: [{name: c, image: i, "
        "resources: {requests: {cpu: 3}}}]}}}\n"
    )


def test_a_gang_of_a_job_was_placed_together_and_its_pods_are_counted_by_node(
    tmp_path: Path,
) -> None:
    path = tmp_path / "in.yaml"
    path.write_text(job("true", 3))
    text = said("job/j", "-f", str(path))
    assert text.startswith("3 pods were placed together\n  on n0 (2), n1 (1)\nthe first of them:\n")


def test_of_pods_some_of_which_are_pending_the_placed_ones_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "in.yaml"
    path.write_text(job("false", 5))
    text = said("job/j", "-f", str(path))
    assert text.startswith(
        "4 of 5 pods have a node\n  on n0 (2), n1 (2)\n"
        "the first of them, those without a node first:\n"
    )
    assert "is pending" in text.splitlines()[3]


def test_of_many_nodes_the_first_are_named() -> None:
    nodes = {f"n{number}": 1 for number in range(40)}
    about = Explanation(
        "ns/p", "ns/g", True, "Running", of=40, node="n0", placement=Placement(40, nodes, True)
    )
    out = io.StringIO()
    print_explanation(Console(file=out, width=200), about)
    assert out.getvalue().startswith("40 pods were placed together\n  on n0, n1, n2, ")
    assert "n11 and 28 more nodes\n" in out.getvalue()
    out = io.StringIO()
    print_explanation(Console(file=out, width=200), replace(about, simulated=True))
    assert out.getvalue().startswith("40 pods would be placed together\n")


def test_a_pod_group_is_explained_by_its_first_member() -> None:
    text = said("podgroup/g", "-f", str(CASES / "c03-rack.yaml"))
    assert text.startswith(
        "the first of 5 pods, those without a node first:\n"
        "default/p0 is pending\n  No RackLayer has room for 5 pods; the best, r0, has room for 4.\n"
    )


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "deploy/wbe",
            'there are no pods of Deployment default/wbe at the end; did you mean "default/web"?',
        ),
        ("job/other/training", 'did you mean "default/training"?'),
        ("store-9", 'there is no pod or gang "default/store-9" at the end; did you mean'),
        ("other/store-0", 'did you mean "default/store-0"?'),
    ],
)
def test_what_is_not_there_is_said_with_what_was_meant(target: str, message: str) -> None:
    result = run(target, "-f", WORKLOADS)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert not result.stdout


def leader(name: str) -> dict[str, object]:
    """Return a pod as the controller of LeaderWorkerSets makes it: of a StatefulSet of its own."""
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": "u"}
    meta = {
        "name": f"{name}-0",
        "labels": {"leaderworkerset.sigs.k8s.io/name": name},
        "ownerReferences": [{**owner, "controller": True}],
    }
    spec = {"schedulerName": "bayplan", "containers": [{"name": "c", "image": "i"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("lws/serving", "default/serving-0 is pending"),
        ("lws/servnig", "there are no pods of LeaderWorkerSet default/servnig at the end; did you"),
        ("leaderworkerset/other/serving", 'did you mean "default/serving"?'),
        ("vcjob/serving", "there are no pods of Job default/serving at the end"),
    ],
)
def test_a_leader_worker_set_is_found_by_its_name(
    target: str, expected: str, tmp_path: Path
) -> None:
    manifest = tmp_path / "lws.yaml"
    manifest.write_text(json.dumps(leader("serving")))
    result = run(target, "-f", str(manifest))
    assert expected in result.output + str(result.exception or "")


# JSON -------------------------------------------------------------------------------------------


def test_the_json_holds_what_the_text_says() -> None:
    about = json.loads(said("g", "-o", "json", "-f", str(CASES / "c03-rack.yaml")))
    assert about["why"] == "No RackLayer has room for 5 pods; the best, r0, has room for 4."
    assert about["state"] == "Pending"
    assert about["domains"][0] == {
        "name": "RackLayer/r0",
        "state": "refused",
        "nodes": 4,
        "offered": 4,
        "needed": 5,
        "reason": "offers 4 of 5 slots",
    }
    assert about["suggestions"] == [
        {
            "text": "can never fit with the nodes as they are: of its 5 pods the largest domain, "
            "RackLayer/r0, has room for 4; it would without MustGather at RackLayer",
            "changes": 0,
        },
        {
            "text": "would fit without MustGather at RackLayer",
            "changes": 1,
            "places": {f"default/p{i}": f"r0n{i}" for i in range(4)} | {"default/p4": "r1n0"},
        },
        {"text": "would fit if RackLayer/r0 had 1 more node like r0n0", "changes": 1},
    ]


def test_the_json_of_a_placed_pod_has_filters_and_finalists() -> None:
    about = json.loads(said("store-0", "-o", "json", "-f", WORKLOADS))
    assert about["state"] == "Running"
    assert about["filtered"][0]["plugin"] == "TaintToleration"
    assert about["finalists"][0]["node"] == about["node"]


# What is known ----------------------------------------------------------------------------------


def test_a_pod_that_was_there_before_is_explained_as_of_now() -> None:
    cluster = Cluster([make_node("a", cpu=4), make_node("b", cpu=8)])
    cluster.add(make_pod("p", "2", None, node="a"))
    cluster.schedule()
    pod = cluster.api.get(Pod, "default/p")
    assert pod is not None
    before = cluster.snapshot.nodes.used("cpu").tolist()
    about = explain(cluster.scheduler, pod)
    assert about.decided is None
    assert about.now
    assert [one.node for one in about.finalists] == ["b", "a"]
    assert cluster.snapshot.nodes.used("cpu").tolist() == before


def test_a_long_reason_keeps_its_indent_on_a_narrow_terminal() -> None:
    names = ("node-with-a-long-name-a", "node-with-a-long-name-b")
    cluster = Cluster([make_node(name, taints=["k=v:NoSchedule"]) for name in names])
    cluster.add(make_pod("p"))
    cluster.schedule()
    pod = cluster.api.get(Pod, "default/p")
    assert pod is not None
    out = io.StringIO()
    print_explanation(Console(file=out, width=40), explain(cluster.scheduler, pod))
    lines = out.getvalue().splitlines()
    headings = {"default/p is pending", "Filtered  2 nodes", "What would help", ""}
    assert len(lines) > 10
    assert all(line in headings or line.startswith("  ") for line in lines)
    assert all(len(line) <= 40 and line == line.rstrip() for line in lines)


# What could not be read ---------------------------------------------------------------------------


def test_what_could_not_be_read_of_nodes_is_said_of_pods_that_it_may_concern() -> None:
    wrong = {"hami.io/node-nvidia-register": "[1]"}
    nodes = [make_node(name, annotations=wrong, gpu=10) for name in ("n1", "n2")]
    cluster = Cluster([*nodes, make_pod("share", gpu=1, **{"nvidia.com/gpumem": 1000})])
    cluster.add(make_pod("plain", cpu=900), make_pod("there", gpu=1, node="n2"))
    cluster.schedule()
    text = "[0]: expected a device with an id"
    told = f"GPUs of nodes n1, n2: annotation hami.io/node-nvidia-register: {text}"
    about = {pod.metadata.name: explain(cluster.scheduler, pod) for pod in cluster.api.list(Pod)}
    assert told in about["share"].unread
    assert about["share"].as_json()["unread"] == list(about["share"].unread)
    assert about["plain"].unread == ()
    assert told.replace("nodes n1, n2", "node n2") in about["there"].unread
    out = io.StringIO()
    print_explanation(Console(file=out, width=200), about["share"])
    assert "\nCould not be read\n" in out.getvalue()
    assert f"\n  {told}\n" in out.getvalue()
