"""The commands of a real cluster, each against the embedded one over HTTP, in its own process."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry
from tests.cluster.apiserver.faces import Client, Face, serving
from tests.forked import Forked
from tests.paths import ROOT
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue

from bayplan.api import ApiObject, Job, Namespace, ObjectMeta, Pod, VolcanoQueue
from bayplan.api.configmap import ConfigMap
from bayplan.api.pod import PodTemplate
from bayplan.api.workloads import JobSpec
from bayplan.cli import cli, main
from bayplan.cluster.apiserver import Role, Rule, ServedCluster
from bayplan.cluster.embedded.assembly import create_in_order
from bayplan.cluster.manifests import load_manifests
from bayplan.live import app
from bayplan.testing import make_gang, make_node, make_pod

PROFILE = ROOT / "configs" / "profiles" / "default-scheduler.yaml"
EXAMPLES = ROOT / "configs" / "examples"


@pytest.fixture
def face() -> Iterator[Face]:
    with serving() as made:
        yield made


@pytest.fixture
def kubeconfig(face: Face, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    face.server.write_kubeconfig(path)
    return path


POD = make_pod("p", memory=None).spec


def create(face: Face, *objects: ApiObject) -> None:
    face.do(lambda server: create_in_order(server.cluster, objects))


def bayplan(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def command_line(*arguments: object) -> list[str]:
    given = [str(argument) for argument in arguments]
    if given[0] == "run" and "--bind-address" not in given:
        # The default port may be in use.
        given += ["--bind-address", "127.0.0.1:0"]
    return given


def failure(*arguments: object) -> str:
    """Run a command; return its error message after checking how it failed."""
    log = logging.getLogger("bayplan")
    before = log.handlers[:], log.level, log.propagate
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["bayplan", *command_line(*arguments)])
        # Metrics are registered once per process otherwise.
        patch.setattr(app, "Options", partial(app.Options, registry=CollectorRegistry()))
        with pytest.raises(SystemExit) as ended:
            main()
    log.handlers[:], log.level, log.propagate = before
    assert ended.value.code == 2, err.getvalue()
    assert out.getvalue() == ""
    assert "Traceback" not in err.getvalue()
    return err.getvalue()


class Running:
    """``bayplan run`` in a process of its own."""

    def __init__(self, kubeconfig: Path, *more: str, config: Path = PROFILE) -> None:
        given = ("--config", str(config), "--kubeconfig", str(kubeconfig))
        more = ("--bind-address", "127.0.0.1:0", *more)
        self.process = Forked("run", *given, *more, stderr=subprocess.PIPE)
        self.lines: list[str] = []

    def until(self, text: str) -> str:
        """Read the log until a line holds a text; a scheduler that does not say it is killed."""
        assert self.process.stderr is not None
        deadline = threading.Timer(60, self.process.kill)
        deadline.daemon = True
        deadline.start()
        for line in self.process.stderr:
            self.lines.append(line)
            if text in line:
                deadline.cancel()
                return line
        raise AssertionError(f"no {text!r} in\n{''.join(self.lines)}")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        assert self.process.stderr is not None
        self.lines += self.process.stderr.readlines()
        self.process.stderr.close()
        return self.process.wait(60)


@pytest.fixture
def run(kubeconfig: Path) -> Iterator[Any]:
    started: list[Running] = []

    def start(*more: str, **options: Any) -> Running:
        started.append(Running(kubeconfig, *more, **options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.end(signal.SIGKILL)


# run -----------------------------------------------------------------------------------------


def test_run_binds_pods_serves_its_page_and_ends_cleanly(face: Face, run: Any) -> None:
    create(face, make_node("n0"), make_pod("p"), make_pod("big", cpu=64))
    running = run("--log-format", "json")
    url = json.loads(running.until("serving"))["msg"].split()[1]
    bound = json.loads(running.until('"bound"'))
    assert (bound["pod"], bound["node"]) == ("default/p", "n0")
    refused = json.loads(running.until("not placed")) if "big" not in str(running.lines) else {}
    assert refused.get("unit", "default/big") == "default/big"

    def page(path: str) -> str:
        with urllib.request.urlopen(f"{url}{path}", timeout=60) as answer:  # noqa: S310
            return str(answer.read().decode())

    assert page("/healthz") == page("/readyz") == "ok\n"
    metrics = page("/metrics")
    assert 'scheduler_schedule_attempts_total{profile="default-scheduler",' in metrics
    assert 'scheduler_pending_pods{queue="unschedulable"} 1.0' in metrics
    assert 'leader_election_master_status{name="bayplan"} 1.0' in metrics
    decisions = json.loads(page("/debug/decisions?unit=default/big"))["decisions"]
    assert "Insufficient cpu" in decisions[0]["message"] + str(decisions[0]["pods"])
    assert "What would help" in page("/debug/explain?pod=default/big")
    assert running.end() == 0
    lease = face.do(
        lambda server: (
            server.cluster.records(
                server.cluster.resources.of_kind("coordination.k8s.io", "Lease")  # type: ignore[arg-type]
            )["kube-system/bayplan"].content
        )
    )
    assert lease["spec"]["holderIdentity"] == ""


def test_a_dry_run_decides_and_writes_nothing(face: Face, run: Any) -> None:
    queue = VolcanoQueue(ObjectMeta(name="q"))
    create(face, make_node("n0"), make_pod("p"), make_pod("big", cpu=64), queue)
    running = run("--dry-run")
    assert "pod=default/p node=n0" in running.until("would be bound")
    assert running.end() == 0
    assert {verb for verb, *_ in face.do(lambda server: dict(server.calls))} == {"list", "watch"}


def test_a_dry_run_admits_jobs_whose_pods_are_there(face: Face, run: Any) -> None:
    """Nobody will write their admission, for which pods wait otherwise."""
    labels = {"kueue.x-k8s.io/queue-name": "lq"}
    job = Job(
        ObjectMeta(name="j", namespace="default", labels=labels),
        JobSpec(template=PodTemplate(spec=POD)),
    )
    queue = cluster_queue("cq", {"f": {"cpu": 4}})
    create(face, make_node("n0"), flavor("f"), queue, local_queue("lq", "cq"), job)
    running = run("--dry-run")
    assert "pod=default/j-" in running.until("would be bound")
    assert running.end() == 0


def test_sighup_reads_the_profiles_again_and_keeps_the_old_ones_if_they_are_wrong(
    face: Face, run: Any, tmp_path: Path
) -> None:
    config = tmp_path / "profile.yaml"
    content = yaml.safe_load(PROFILE.read_text())
    config.write_text(yaml.safe_dump(content))
    running = run(config=config)
    running.until("leads now")
    config.write_text("kind: [")
    running.process.send_signal(signal.SIGHUP)
    assert str(config) in running.until("not reloaded")
    content["profiles"][0]["schedulerName"] = "another"
    config.write_text(yaml.safe_dump(content))
    running.process.send_signal(signal.SIGHUP)
    running.until("profiles reloaded: another")
    create(face, make_node("n0"), make_pod("p", spec={"schedulerName": "another"}))
    running.until("bound")
    assert running.end() == 0


def test_a_killed_scheduler_leaves_nothing_that_its_successor_does_not_mend(
    face: Face, run: Any
) -> None:
    create(face, *(make_node(f"n{index}", cpu=4) for index in range(8)))
    for index in range(3):
        pods = (make_pod(f"g{index}-{i}", gang=f"g{index}") for i in range(8))
        create(face, make_gang(f"g{index}", 8), *pods)
        running = run("--no-leader-elect")
        running.until("bound")
        running.end(signal.SIGKILL)
    last = run("--no-leader-elect")
    last.until("scheduling pods")
    placed = face.do(lambda server: [p for p in server.cluster.list(Pod) if p.spec.node_name])
    while len(placed) < 24:
        last.until("bound")
        placed = face.do(lambda server: [p for p in server.cluster.list(Pod) if p.spec.node_name])
    assert last.end() == 0


# What cannot be used -------------------------------------------------------------------------


def test_a_context_that_is_missing_is_named(kubeconfig: Path) -> None:
    arguments = ("run", "--config", PROFILE, "--kubeconfig", kubeconfig, "--context", "prod")
    command = [sys.executable, "-m", "bayplan.cli", *command_line(*arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f'bayplan: {kubeconfig}: there is no context "prod"\n'


def test_a_kubeconfig_that_is_missing_is_named(tmp_path: Path) -> None:
    text = failure("run", "--config", PROFILE, "--kubeconfig", tmp_path / "none")
    assert f"{tmp_path / 'none'}: there is no such file" in text


def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("- 1\n")
    assert str(path) in failure("snapshot", "--kubeconfig", path, "-o", tmp_path / "c.zip")


def test_a_refused_token_is_told_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    with serving(tokens={"secret-token": None}) as face:
        face.server.write_kubeconfig(path, "wrong-token")
        text = failure("run", "--config", PROFILE, "--kubeconfig", path)
    assert "Unauthorized" in text
    assert str(path) in text
    assert "wrong-token" not in text


def test_a_verb_that_the_role_lacks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    everything = Role("scheduler", (Rule(("*",), ("*",), ("watch",)),))
    with serving(tokens={"secret-token": everything}) as face:
        face.server.write_kubeconfig(path, "secret-token")
        text = failure("run", "--config", PROFILE, "--kubeconfig", path)
    assert 'cannot list resource "pods" in API group ""' in text
    assert "configs/deploy" in text


def test_an_address_beyond_loopback_needs_a_certificate(kubeconfig: Path) -> None:
    arguments = ("run", "--config", PROFILE, "--kubeconfig", kubeconfig)
    assert "--tls-cert-file" in failure(*arguments, "--visibility-address", "127.0.0.1:0")
    assert "expected HOST:PORT" in failure(*arguments, "--visibility-address", "here")
    assert "--tls-cert-file" in failure(*arguments, "--bind-address", "0.0.0.0:0")
    assert "HOST:PORT" in failure(*arguments, "--bind-address", "10259")
    text = failure(*arguments, "--tls-cert-file", "x")
    assert "belong together" in text


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"leaderElection": {"leaseDuration": "5s"}}, "leaseDuration"),
        ({"leaderElection": {"renewDeadline": "soon"}}, "expected a duration"),
        ({"clientConnection": {"qqs": 5}}, "qqs"),
    ],
)
def test_settings_of_the_live_scheduler_are_checked(
    settings: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(PROFILE.read_text()), **settings}))
    text = failure("run", "--config", path)
    assert f"{path}:" in text
    assert expected in text


# snapshot and explain ------------------------------------------------------------------------


def test_a_snapshot_gives_simulate_and_explain_what_the_scheduler_sees(
    face: Face, kubeconfig: Path, tmp_path: Path
) -> None:
    objects = load_manifests([str(EXAMPLES / "must-gather-preempt")]).objects
    create(face, *objects)
    archive = tmp_path / "cluster.zip"
    done = bayplan("snapshot", "--kubeconfig", kubeconfig, "-o", archive)
    assert done.exit_code == 0, done.output
    assert "12 Node, " in done.output
    assert "7 Pod, " in done.output
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    direct = bayplan("simulate", "-f", EXAMPLES / "must-gather-preempt", "-o", "json")
    again = bayplan("simulate", "-f", archive, "-o", "json")
    assert again.exit_code == 0, again.output
    placements = json.loads(direct.stdout)["placements"]
    assert json.loads(again.stdout)["placements"] == placements
    told = bayplan("explain", "high-priority-training", "-f", archive, "--until", "10s")
    assert "nominated: node-5" in told.output


def test_a_snapshot_holds_no_environment_no_secret_and_no_repeated_manifest(
    face: Face, kubeconfig: Path, tmp_path: Path
) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "hunter2"},
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "busybox",
                    "command": ["hunter2"],
                    "env": [{"name": "PASSWORD", "value": "hunter2"}],
                }
            ]
        },
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "stringData": {"password": "hunter2"},
    }
    from tests.cluster.apiserver.faces import Client

    client = Client(face.server.url)
    assert client.post("/api/v1/namespaces/default/pods", pod).code == 201
    assert client.post("/api/v1/namespaces/default/secrets", secret).code == 201
    archive = tmp_path / "cluster.zip"
    assert bayplan("snapshot", "--kubeconfig", kubeconfig, "-o", archive).exit_code == 0
    with zipfile.ZipFile(archive) as opened:
        for name in opened.namelist():
            assert b"hunter2" not in opened.read(name)


def test_queues_of_config_maps_are_those_beside_the_lease_that_the_profile_names(
    face: Face, kubeconfig: Path, tmp_path: Path
) -> None:
    def queue(name: str, place: str, labels: dict[str, str]) -> ConfigMap:
        return ConfigMap(ObjectMeta(name, namespace=place, labels=labels), {"weight": "3"})

    space = Namespace(ObjectMeta("queues"))
    label = "bayplan.dev/queue"
    maps = [
        queue("a", "queues", {label: "mine"}),
        queue("b", "queues", {}),
        queue("c", "kube-system", {label: "usual"}),
        queue("d", "default", {label: "others"}),
    ]
    create(face, space, *maps, make_node("n", cpu=4))
    config = tmp_path / "profile.yaml"
    content = yaml.safe_load(PROFILE.read_text())
    content["leaderElection"] = {"resourceNamespace": "queues"}
    config.write_text(yaml.safe_dump(content))
    archive = tmp_path / "cluster.zip"
    for more, expected in (((), "usual"), (("--config", config), "mine")):
        live = bayplan("queue", "list", "--kubeconfig", kubeconfig, "-o", "json", *more)
        assert live.exit_code == 0, live.output
        assert [one["name"] for one in json.loads(live.stdout)["queues"]] == [expected]
        done = bayplan("snapshot", "--kubeconfig", kubeconfig, "-o", archive, *more)
        assert "1 ConfigMap" in done.output
        saved = bayplan("queue", "list", "-f", archive, "-o", "json")
        assert [one["name"] for one in json.loads(saved.stdout)["queues"]] == [expected]


def test_workloads_of_a_snapshot_keep_the_pods_that_they_have(
    face: Face, kubeconfig: Path, tmp_path: Path
) -> None:
    create(face, *load_manifests([str(EXAMPLES / "workloads")]).objects)
    face.advance(1)
    pods = face.do(lambda server: {pod.key for pod in server.cluster.list(Pod)})
    archive = tmp_path / "cluster.zip"
    assert bayplan("snapshot", "--kubeconfig", kubeconfig, "-o", archive).exit_code == 0
    answer = json.loads(bayplan("simulate", "-f", archive, "-o", "json").stdout)
    assert answer["placements"].keys() == pods


def test_daemon_sets_of_a_snapshot_make_pods_on_nodes_that_are_added(
    face: Face, kubeconfig: Path, tmp_path: Path
) -> None:
    daemons = ROOT / "tests" / "cluster" / "embedded" / "daemons.yaml"
    create(face, make_node("n1"), *load_manifests([str(daemons)]).objects)
    face.advance(1)
    archive = tmp_path / "cluster.zip"
    done = bayplan("snapshot", "--kubeconfig", kubeconfig, "-o", archive)
    assert "1 DaemonSet" in done.output
    more = tmp_path / "more.yaml"
    amounts = {"cpu": 8, "memory": "8Gi", "pods": 10}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n2"},
        "status": {"allocatable": amounts},
    }
    more.write_text(yaml.safe_dump(node))
    answer = json.loads(bayplan("simulate", "-f", archive, "-f", more, "-o", "json").stdout)
    agents = [node for key, node in answer["placements"].items() if "/agent-" in key]
    assert sorted(agents) == ["n1", "n2"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"", "is not a readable zip file"), (b"PK\x05\x06" + b"\0" * 18, "holds no .json file")],
)
def test_a_file_that_is_no_archive_is_told(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.zip"
    path.write_bytes(content)
    text = failure("simulate", "-f", path)
    assert str(path) in text
    assert expected in text


def test_an_error_inside_an_archive_names_the_member_and_the_path(tmp_path: Path) -> None:
    path = tmp_path / "cluster.zip"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": 3}}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pods.json", json.dumps({"kind": "List", "items": [pod]}))
    text = failure("simulate", "-f", path)
    assert "cluster.zip!pods.json" in text
    assert "$.spec.nodeName" in text


def post(face: Face, path: str, content: dict[str, Any]) -> None:
    answer = Client(face.server.url).post(path, content)
    assert answer.code == 201, answer


def says(
    pod: str, message: str, component: str, at: str, namespace: str = "default"
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod}.{len(message)}", "namespace": namespace},
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": pod},
        "reason": "NotTriggerScaleUp",
        "message": message,
        "type": "Normal",
        "lastTimestamp": at,
        "source": {"component": component},
    }


def post_status(face: Face, status: str) -> None:
    """Let cluster-autoscaler state how its node groups are."""
    content = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cluster-autoscaler-status", "namespace": "kube-system"},
        "data": {"status": status},
    }
    post(face, "/api/v1/namespaces/kube-system/configmaps", content)


STATUS = """
autoscalerStatus: Running
nodeGroups:
- name: full
  health: {cloudProviderTarget: 7, minSize: 0, maxSize: 7}
- name: broken
  health: {cloudProviderTarget: 1, minSize: 0, maxSize: 9}
  scaleUp: {status: Backoff, backoffInfo: {errorMessage: out of stock}}
- name: fine
  health: {cloudProviderTarget: 1, minSize: 0, maxSize: 9}
"""


@pytest.mark.parametrize("runs", [False, True])
def test_explain_tells_what_the_autoscaler_says_of_a_pod_and_of_its_stand_ins(
    face: Face, kubeconfig: Path, run: Any, runs: bool
) -> None:
    create(face, make_node("n"), make_pod("big", cpu="64"))
    create(face, Namespace(ObjectMeta(name="bayplan-stand-ins")))
    stand_in = make_pod(
        "s",
        namespace="bayplan-stand-ins",
        labels={"bayplan.dev/stand-in-for": "x"},
        annotations={"bayplan.dev/stand-in-pods": "default/other default/big"},
    )
    create(face, stand_in)
    events = "/api/v1/namespaces/default/events"
    at = datetime.now(UTC) - timedelta(seconds=90)
    stamp = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    post(face, events, says("big", "max size reached", "cluster-autoscaler", stamp))
    post(face, events, says("big", "of another program", "somebody", stamp))
    own = says("s", "for the stand-in", "karpenter", stamp, "bayplan-stand-ins")
    post(face, "/api/v1/namespaces/bayplan-stand-ins/events", own)
    post_status(face, STATUS)
    if runs:
        run().until("not placed")
    told = bayplan("explain", "default/big", "--kubeconfig", kubeconfig)
    _, _, said = told.stdout.partition("\nAutoscaler\n")
    lines = [line.strip() for line in said.splitlines()]
    assert sorted(line.rpartition(",")[0] or line for line in lines) == [
        "cluster-autoscaler: max size reached",
        "karpenter: for the stand-in",
        "node group broken is tried again later: out of stock",
        "node group full is at its maximum of 7",
    ]
    plain = bayplan("explain", "default/big", "--kubeconfig", kubeconfig, "-o", "json")
    assert len(json.loads(plain.stdout)["autoscaler"]) == 4


@pytest.mark.parametrize(
    "status",
    [
        "nodeGroups: 5",
        "[1, 2]",
        "nodeGroups: [7, {health: Healthy, scaleUp: NoActivity}, {scaleUp: {backoffInfo: x}}]",
        "{{{",
        "",
    ],
)
def test_what_an_autoscaler_writes_oddly_breaks_nothing(
    face: Face, kubeconfig: Path, status: str
) -> None:
    create(face, make_node("n"), make_pod("big", cpu="64"))
    content = says("big", "red \x1b[31m\nline", "cluster-autoscaler", "garbage")
    del content["lastTimestamp"]
    post(face, "/api/v1/namespaces/default/events", content)
    post_status(face, status)
    told = bayplan("explain", "default/big", "--kubeconfig", kubeconfig)
    assert told.exit_code == 0, told.output
    _, _, said = told.stdout.partition("\nAutoscaler\n")
    assert said == "  cluster-autoscaler: red [31m line\n"


def test_explain_asks_the_scheduler_that_runs(face: Face, kubeconfig: Path, run: Any) -> None:
    create(face, make_node("n0"), make_pod("big", cpu=64))
    running = run()
    running.until("not placed")
    told = bayplan("explain", "default/big", "--kubeconfig", kubeconfig)
    assert told.exit_code == 0, told.output
    assert "Insufficient cpu" in told.stdout
    assert "cannot be asked" not in told.output
    running.end()
    # Without a scheduler the cluster itself is read.
    told = bayplan("explain", "default/big", "--kubeconfig", kubeconfig)
    assert "Insufficient cpu" in told.stdout
    assert "no scheduler runs" in told.stderr
    assert "Simulated" in told.stdout
    text = failure("explain", "default/none", "--kubeconfig", kubeconfig)
    assert 'no pod or gang "default/none"' in text


def test_explain_looks_where_the_context_of_the_kubeconfig_does(
    face: Face, kubeconfig: Path
) -> None:
    create(face, Namespace(ObjectMeta("team")), make_pod("mine", namespace="team"))
    content = yaml.safe_load(kubeconfig.read_text())
    content["contexts"][0]["context"]["namespace"] = "team"
    kubeconfig.write_text(yaml.safe_dump(content))

    told = bayplan("explain", "mine", "--kubeconfig", kubeconfig)

    assert told.exit_code == 0, told.output
    assert "team/mine" in told.stdout
    assert '"default/mine"' in failure(
        "explain", "mine", "-n", "default", "--kubeconfig", kubeconfig
    )


def _profile_of(path: Path, name: str, namespace: str, **more: Any) -> Path:
    """Write a profile file for pods of ``name``, whose Lease is in ``namespace``."""
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"resourceNamespace": namespace},
        "profiles": [{"schedulerName": name, **more}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def test_without_a_config_the_scheduler_is_found_by_its_lease_in_any_namespace(
    face: Face, kubeconfig: Path, run: Any, tmp_path: Path
) -> None:
    config = _profile_of(tmp_path / "profile.yaml", "bayplan", "bayplan-system")
    create(
        face,
        Namespace(ObjectMeta("bayplan-system")),
        make_node("n0"),
        VolcanoQueue(ObjectMeta(name="a")),
        make_pod("big", cpu=64, spec={"schedulerName": "bayplan"}),
        make_pod("typed", spec={"schedulerName": "bayplam"}),
        make_pod("kube", spec={"schedulerName": "default-scheduler"}),
        make_pod("small", spec={"schedulerName": "bayplan", "nodeSelector": {"late": "yes"}}),
    )
    running = run(config=config)
    running.until("not placed")
    for command in (("explain", "big"), ("queue", "list"), ("top", "--once")):
        told = bayplan(*command, "--kubeconfig", kubeconfig)
        assert (told.exit_code, told.stderr) == (0, ""), command
        assert "Simulated" not in told.stdout
    typed = 'no profile schedules pods of schedulerName "bayplam"; did you mean "bayplan"?'
    assert typed in bayplan("explain", "typed", "--kubeconfig", kubeconfig).stdout
    running.end()
    create(face, make_node("n1", labels={"late": "yes"}))
    # Without the scheduler, the simulation places the pods that were its own, and no others.
    told = bayplan("explain", "typed", "--kubeconfig", kubeconfig)
    assert "nobody holds the Lease bayplan-system/bayplan: no scheduler runs" in told.stderr
    assert typed in told.stdout
    told = bayplan("explain", "kube", "--kubeconfig", kubeconfig)
    assert 'no profile schedules pods of schedulerName "default-scheduler"' in told.stdout
    told = bayplan("explain", "small", "--kubeconfig", kubeconfig)
    assert "default/small would be on n1" in told.stdout
    told = bayplan("explain", "small", "--kubeconfig", kubeconfig, "-o", "json")
    assert json.loads(told.stdout)["simulated"]


def test_a_pod_is_explained_by_the_scheduler_that_places_it(
    face: Face, kubeconfig: Path, run: Any, tmp_path: Path
) -> None:
    create(face, make_node("n0"))
    for name in ("one", "two"):
        create(face, Namespace(ObjectMeta(name)))
        create(face, make_pod(f"of-{name}", cpu=64, spec={"schedulerName": name}))
        run(config=_profile_of(tmp_path / f"{name}.yaml", name, name)).until("not placed")
    for name, other in (("one", "two"), ("two", "one")):
        told = bayplan("explain", f"of-{name}", "--kubeconfig", kubeconfig)
        assert "Insufficient cpu" in told.stdout
        assert f"note: the holder of the Lease {name}/bayplan answers" in told.stderr
        assert f"{other}/bayplan" in told.stderr


def test_plugins_of_the_running_profile_are_not_needed_to_ask(
    face: Face, kubeconfig: Path, run: Any, tmp_path: Path
) -> None:
    create(face, Namespace(ObjectMeta("system")), make_node("n0"), make_pod("big", cpu=64))
    name = "default-scheduler"
    run(config=_profile_of(tmp_path / "run.yaml", name, "system")).until("not placed")
    enabled = {"multiPoint": {"enabled": [{"name": "NotInstalledHere"}]}}
    config = _profile_of(tmp_path / "ask.yaml", name, "system", plugins=enabled)
    for command in (("explain", "big"), ("top", "--once")):
        told = bayplan(*command, "--kubeconfig", kubeconfig, "--config", config)
        assert (told.exit_code, told.stderr) == (0, ""), told.output
        assert "big" in told.stdout


def test_without_the_right_to_list_leases_the_usual_ones_are_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kubeconfig"
    reader = Role(
        "reader",
        (
            Rule(("*",), ("pods", "nodes"), ("list", "watch")),
            Rule(("coordination.k8s.io",), ("leases",), ("get",)),
        ),
    )
    with serving(tokens={"token": reader}) as face:
        face.server.write_kubeconfig(path, "token")
        create(face, make_node("n0"), make_pod("p"))
        told = bayplan("explain", "p", "--kubeconfig", path)
    assert "no scheduler of it has ever led here" in told.stderr
    assert "default/p would be on n0" in told.stdout


def test_waits_of_a_cluster_count_from_the_creation_of_its_pods(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    with serving(ServedCluster(start=an_hour_ago)) as face:
        face.server.write_kubeconfig(path)
        in_queue = {"scheduling.volcano.sh/queue-name": "a"}
        create(face, VolcanoQueue(ObjectMeta(name="a")), make_pod("p", annotations=in_queue))
        top = bayplan("top", "-o", "json", "--kubeconfig", path)
        queue = bayplan("queue", "show", "a", "-o", "json", "--kubeconfig", path)
    waits = [json.loads(top.stdout)["pending"][0], json.loads(queue.stdout)["line"][0]]
    assert [round(one["waits"] / 3600) for one in waits] == [1, 1]


def test_queues_come_from_the_scheduler_that_runs_or_else_from_the_cluster(
    face: Face, kubeconfig: Path, run: Any
) -> None:
    queue = VolcanoQueue(ObjectMeta(name="a"))
    in_queue = {"scheduling.volcano.sh/queue-name": "a"}
    create(face, make_node("n", cpu=4), queue, make_pod("big", cpu=8, annotations=in_queue))
    told = bayplan("queue", "show", "a", "--kubeconfig", kubeconfig)
    assert "note: there is no Lease" in told.stderr
    assert "1. big" in told.stdout
    assert "not tried yet" in told.stdout

    running = run()
    running.until("not placed")
    told = bayplan("queue", "show", "a", "--kubeconfig", kubeconfig)
    assert told.stderr == ""
    assert "deserved share of cpu exceeded" in told.stdout
    listed = json.loads(bayplan("queue", "list", "-o", "json", "--kubeconfig", kubeconfig).stdout)
    assert [one["name"] for one in listed["queues"]] == ["a"]
    assert 'there is no queue "b"' in failure("queue", "show", "b", "--kubeconfig", kubeconfig)


def test_watched_queues_are_shown_again_until_interrupted(
    face: Face, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(face, VolcanoQueue(ObjectMeta(name="a")))
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("bayplan.cli.views.sleep", sleep)
    told = bayplan("queue", "list", "-w", "-o", "json", "--kubeconfig", kubeconfig)
    assert told.exit_code == 0, told.output
    shown = [json.loads(line)["queues"] for line in told.stdout.splitlines()]
    assert [[one["name"] for one in queues] for queues in shown] == [["a"]] * 3
    assert waits == [2.0] * 3


def test_a_placed_pod_is_explained_in_full_and_after_a_restart_as_of_now(
    face: Face, kubeconfig: Path, run: Any
) -> None:
    create(face, make_node("n0"), make_node("n1", unschedulable=True), make_pod("p"))
    running = run()
    running.until("bound")
    told = bayplan("explain", "default/p", "--kubeconfig", kubeconfig)
    assert "decided at" in told.stdout
    assert "NodeUnschedulable removed 1, 1 left" in told.stdout
    assert "Finalists  of 1 feasible node" in told.stdout
    assert "If it were decided now" not in told.stdout
    running.end()
    again = run()
    again.until("leads now")
    told = bayplan("explain", "p", "-o", "json", "--kubeconfig", kubeconfig)
    about = json.loads(told.stdout)
    assert about["wouldBeDecidedNow"]
    assert about["finalists"][0]["node"] == about["node"] == "n0"


def test_explain_needs_manifests_or_a_cluster(kubeconfig: Path) -> None:
    assert "-f" in failure("explain", "default/p")
    text = failure("explain", "default/p", "-f", EXAMPLES, "--kubeconfig", kubeconfig)
    assert "exclude each other" in text


def test_credentials_come_from_where_kubectl_takes_them(
    face: Face, kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}{os.pathsep}{kubeconfig}")
    done = bayplan("snapshot", "-o", tmp_path / "c.zip")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("command", [("explain", "default/p"), ("snapshot", "-o", "c.zip")])
def test_a_server_that_is_not_there_is_told_at_once(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "kubeconfig"
    with serving() as face:
        face.server.write_kubeconfig(path)
    text = failure(*command, "--kubeconfig", path)
    assert "Could not connect" in text
    assert len(text.splitlines()) == 1


def test_a_kubeconfig_that_is_no_yaml_is_told(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("clusters: [\n")
    text = failure("run", "--config", PROFILE, "--kubeconfig", path)
    assert f"{path}:2:1: not YAML" in text


def test_an_empty_kubeconfig_is_told(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("")
    text = failure("run", "--config", PROFILE, "--kubeconfig", path)
    assert "expected a mapping with clusters, contexts and users" in text


def test_a_kubeconfig_that_the_environment_names_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "gone"))
    text = failure("snapshot", "-o", tmp_path / "c.zip")
    assert f"{tmp_path / 'gone'}: there is no such file" in text


async def test_credentials_that_vanish_are_kept_while_they_are_good(
    face: Face, tmp_path: Path
) -> None:

    from bayplan.cluster.kubernetes.credentials import Credentials

    path = tmp_path / "kubeconfig"
    face.server.write_kubeconfig(path)

    credentials = Credentials(path)
    before = await credentials.endpoint()
    path.unlink()
    credentials._fresh_until = 0.0
    assert await credentials.endpoint() is before
