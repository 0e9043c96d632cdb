"""Jobs of one cluster run in two others: where they start first, elsewhere if one is lost."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
import yaml
from tests.cluster.apiserver.faces import Client, serving
from tests.controlplane.installation import account_kubeconfig, install, path_of
from tests.controlplane.live_cluster import PODS, Content, Kubelet, LiveCluster
from tests.controlplane.plane import ControlPlane, control_plane, wait_until
from tests.controlplane.process import PROFILE, Scheduler
from tests.controlplane.queue_builders import KUEUE, MOST, cluster_queue, head, suspended_job
from tests.controlplane.story_builders import asking, nodes
from tests.live.deployed import documents
from tests.paths import ROOT

from bayplan.api.quantity import Quantity
from bayplan.cluster.apiserver import ServedCluster, WallClock

RIGHTS = ROOT / "configs" / "multikueue"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS = f"/apis/{KUEUE}/namespaces/default/workloads"
CLUSTERS = f"/apis/{KUEUE}/multikueueclusters"
CHECKS = f"/apis/{KUEUE}/admissionchecks"
CONFIG = f"/apis/{KUEUE}/multikueueconfigs/sites"
SECRETS = "/api/v1/namespaces/kueue-system/secrets"
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
ORIGIN = "kueue.x-k8s.io/multikueue-origin"
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}
LOST_AFTER = "3s"

T = TypeVar("T")


class Relay:
    """A way to a server that can be cut."""

    def __init__(self, target: str) -> None:
        self._host, port = urlsplit(target).netloc.split(":")
        self._target = int(port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._open: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self._thread.start()
        self.port = self._do(self._listen())

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(self._host, self._target)
        both = {writer, back}
        self._open |= both
        await asyncio.gather(_pump(reader, back), _pump(there, writer))
        self._open -= both

    def cut(self) -> None:
        """Break all connections, and accept none."""
        self._do(self._cut())

    async def _cut(self) -> None:
        self._is_cut = True
        while self._open:
            for one in self._open:
                one.transport.abort()
            await asyncio.sleep(0.01)

    def mend(self) -> None:
        """Accept connections again."""
        self._is_cut = False

    def end(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        await self._cut()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@dataclass
class Site:
    """A cluster that runs jobs of others, and the way there."""

    cluster: LiveCluster
    account: Path
    """The kubeconfig that the manager gets."""
    relay: Relay

    def jobs(self) -> dict[str, bool]:
        """Return by name whether the jobs there are suspended."""
        found = self.cluster.items(JOBS)
        return {one["metadata"]["name"]: bool(one["spec"].get("suspend")) for one in found}


@dataclass
class Federation:
    """A manager and its sites; ``controllers`` are the processes that send jobs."""

    manager: LiveCluster
    kubeconfig: Path
    folder: Path
    sites: dict[str, Site]
    _processes: list[Scheduler] = field(default_factory=list)

    def start(self, *options: str) -> Scheduler:
        """Start the manager's scheduler and what sends jobs."""
        self._run(self.manager.kubeconfig, "run")
        return self._run(self.kubeconfig, "multikueue", *options)

    def _run(self, kubeconfig: Path, command: str, *options: str) -> Scheduler:
        folder = self.folder / command
        folder.mkdir()
        process = Scheduler(kubeconfig, folder, PROFILE, *options, command=command)
        process.start()
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            process.stop()

    def workload(self, job: str) -> Content:
        """Return the Workload of a job, {} before it is there."""
        found = self.manager.items(WORKLOADS)
        return next((w for w in found if w["metadata"]["ownerReferences"][0]["name"] == job), {})

    def check(self, job: str) -> Content:
        """Return the state of the check of a job."""
        checks = self.workload(job).get("status", {}).get("admissionChecks", [])
        return checks[0] if checks else {}

    def reasons(self, job: str) -> list[str]:
        """Return the messages of the conditions of a job's Workload."""
        found = self.workload(job).get("status", {}).get("conditions", [])
        return [one["message"] for one in found]

    def where(self, job: str) -> str:
        """Return the cluster that runs a job, "" before it is known."""
        return str(self.workload(job).get("status", {}).get("clusterName", ""))

    def status(self, job: str) -> Content:
        """Return the status of a job in the manager."""
        found: Content = self.manager.client.get(f"{JOBS}/{job}").json.get("status", {})
        return found


def queue() -> list[Content]:
    """Return the queue of the manager, whose jobs run elsewhere, and all that it needs."""
    flavor, local, made = cluster_queue("q")
    made["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "elsewhere"}]}
    check = head(KUEUE, "AdmissionCheck", "elsewhere", False)
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "sites"}
    check["spec"] = {"controllerName": MULTIKUEUE, "parameters": parameters}
    config = head(KUEUE, "MultiKueueConfig", "sites", False)
    config["spec"] = {"clusters": ["east", "west"]}
    return [config, check, flavor, local, made]


def site(name: str) -> Content:
    """Return what says how to reach a site: a Secret of its name."""
    made = head(KUEUE, "MultiKueueCluster", name, False)
    made["spec"] = {"clusterSource": {"kubeConfig": {"location": name}}}
    return made


def secret(name: str, kubeconfig: str) -> Content:
    made = head("v1", "Secret", name)
    made["metadata"]["namespace"] = "kueue-system"
    made["data"] = {"kubeconfig": base64.b64encode(kubeconfig.encode()).decode()}
    return made


def job(name: str, count: int) -> Content:
    """Return a job that is made for other clusters."""
    (made,) = suspended_job(name, "q", count)
    made["spec"]["managedBy"] = MULTIKUEUE
    return made


def relayed(kubeconfig: Path, relay: Relay) -> str:
    """Return a kubeconfig by way of a relay."""
    content = yaml.safe_load(kubeconfig.read_text())
    own = content["clusters"][0]["cluster"]
    own["server"] = f"{urlsplit(own['server']).scheme}://127.0.0.1:{relay.port}"
    # By its text, not by the name of a file: it goes into a Secret.
    authority = own.pop("certificate-authority", "")
    if authority:
        text = Path(authority).read_bytes()
        own["certificate-authority-data"] = base64.b64encode(text).decode()
    return yaml.safe_dump(content)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, bool], Site]]:
    """Starts a cluster that runs jobs of others, with its scheduler, when first asked for it."""
    with ExitStack() as stack:

        @cache
        def start(name: str, is_real: bool) -> Site:
            folder = tmp_path_factory.mktemp(name)
            made = real_site(folder) if is_real else embedded_site(folder)
            cluster, account = stack.enter_context(made)
            scheduler = Scheduler(cluster.kubeconfig, folder)
            scheduler.start()
            stack.callback(scheduler.stop)
            relay = Relay(yaml.safe_load(account.read_text())["clusters"][0]["cluster"]["server"])
            stack.callback(relay.end)
            return Site(cluster, account, relay)

        yield start


@pytest.fixture
def federation(
    request: pytest.FixtureRequest, tmp_path: Path, started: Callable[[str, bool], Site]
) -> Iterator[Federation]:
    """A manager without nodes, and two clusters of two nodes of eight cores.

    The manager is the embedded cluster or the real one; then one of the two is real, too.
    """
    kind: str = request.param
    manager: LiveCluster = request.getfixturevalue(kind)
    manager.client.post("/api/v1/namespaces", NAMESPACE)
    with ExitStack() as stack:
        sites = {}
        for name in ("east", "west"):
            one = sites[name] = started(name, (kind, name) == ("real", "west"))
            one.cluster.apply([*nodes(2), *cluster_queue("q")])
            # Jobs and Workloads come from the manager.
            one.cluster.used(job("any", 1))
            stack.callback(one.cluster.clear)
            stack.callback(one.relay.mend)
            answer = manager.client.post(SECRETS, secret(name, relayed(one.account, one.relay)))
            assert answer.code == 201, answer
            stack.callback(manager.client.delete, f"{SECRETS}/{name}")
        manager.apply([*map(site, sites), *queue()])
        manager.used(job("any", 1))
        kubeconfig = manager.kubeconfig
        if kind == "real":
            plane: ControlPlane = request.getfixturevalue("plane")
            kubeconfig = account_of(plane, tmp_path / "kubeconfig-multikueue", "manager.yaml")
        found = Federation(manager, kubeconfig, tmp_path, sites)
        stack.callback(found.end)
        yield found


@contextmanager
def embedded_site(folder: Path) -> Iterator[tuple[LiveCluster, Path]]:
    """An embedded cluster, and the kubeconfig that its manager gets."""
    with serving(ServedCluster(clock=WallClock())) as face:
        kubeconfig = folder / "kubeconfig"
        face.do(lambda server: server.write_kubeconfig(kubeconfig))
        yield LiveCluster(Client(face.server.url), kubeconfig), kubeconfig


@contextmanager
def real_site(folder: Path) -> Iterator[tuple[LiveCluster, Path]]:
    """A control plane of its own; its manager has the rights of configs/multikueue, and no more."""
    with control_plane() as plane:
        install(plane.client)
        kubelet = Kubelet(plane.client)
        kubelet.start()
        kubeconfig = account_kubeconfig(plane, folder / "kubeconfig")
        account = account_of(plane, folder / "kubeconfig-multikueue", "worker.yaml")
        yield LiveCluster(plane.client, kubeconfig), account
        kubelet.end()


def account_of(plane: ControlPlane, path: Path, manifest: str) -> Path:
    """Create what a manifest of configs/multikueue has; return a kubeconfig of its account."""
    for content in documents(RIGHTS / manifest):
        if content["kind"] != "Deployment":
            answer = plane.client.post(path_of(content, name=False), content)
            assert answer.code in (201, 409), answer
    return account_kubeconfig(plane, path, RIGHTS / manifest)


EACH = pytest.mark.parametrize("federation", ["embedded", "real"], indirect=True)


@EACH
def test_a_job_goes_where_it_starts_and_its_status_comes_back(federation: Federation) -> None:
    east, west = federation.sites["east"], federation.sites["west"]
    busy = [asking(f"busy-{i}", 8, nodeName=f"n{i}") for i in range(2)]
    east.cluster.apply(busy)
    federation.start()
    federation.manager.apply([job("train", 4)])
    wait_until(lambda: federation.where("train") == "west", "the job runs in west")
    assert east.jobs() == {}
    assert west.jobs() == {"train": False}
    assert federation.manager.items(PODS) == []
    wait_until(lambda: federation.status("train").get("active") == 4, "its status came back")
    for pod in west.cluster.items(PODS):
        path = f"{PODS}/{pod['metadata']['name']}/status"
        west.cluster.client.patch(path, {"status": {"phase": "Succeeded"}})
    wait_until(lambda: federation.status("train").get("succeeded") == 4, "it has ended here, too")
    wait_until(lambda: west.jobs() == {}, "its copy is gone")
    conditions = federation.workload("train")["status"]["conditions"]
    assert {"Admitted", "Finished"} <= {one["type"] for one in conditions}


@EACH
def test_jobs_of_a_lost_cluster_start_in_the_other_one_once(federation: Federation) -> None:
    east, west = federation.sites["east"], federation.sites["west"]
    east.cluster.apply([asking(f"busy-{i}", 8, nodeName=f"n{i}") for i in range(2)])
    federation.start("--worker-lost-timeout", LOST_AFTER)
    federation.manager.apply([job("train", 4)])
    wait_until(lambda: federation.where("train") == "west", "the job runs in west")
    for i in range(2):
        east.cluster.client.delete(f"{PODS}/busy-{i}", gracePeriodSeconds="0")
    west.relay.cut()
    wait_until(lambda: federation.where("train") == "east", "the job runs in east")
    assert east.jobs() == {"train": False}
    assert west.jobs() == {"train": False}
    west.relay.mend()
    wait_until(lambda: west.jobs() == {}, "what came back gives its copy up")
    assert federation.where("train") == "east"
    wait_until(lambda: federation.status("train").get("active") == 4, "east's status came back")


@EACH
def test_jobs_wait_for_a_lost_cluster_as_configured(federation: Federation) -> None:
    east, west = federation.sites["east"], federation.sites["west"]
    east.cluster.apply([asking(f"busy-{i}", 8, nodeName=f"n{i}") for i in range(2)])
    federation.start("--worker-lost-timeout", "0s")
    federation.manager.apply([job("train", 4)])
    wait_until(lambda: federation.where("train") == "west", "the job runs in west")
    west.relay.cut()
    states = f"{CLUSTERS}/west"
    wait_until(lambda: condition(federation, states)["status"] == "False", "west does not answer")
    for i in range(2):
        east.cluster.client.delete(f"{PODS}/busy-{i}", gracePeriodSeconds="0")
    federation.manager.apply([job("next", 2)])
    wait_until(lambda: federation.where("next") == "east", "another job runs in east")
    assert federation.where("train") == "west"
    west.relay.mend()
    wait_until(lambda: condition(federation, states)["status"] == "True", "west is back")
    assert west.jobs() == {"train": False}
    assert federation.check("train")["state"] == "Ready"


@EACH
def test_a_job_that_is_evicted_elsewhere_waits_here_and_goes_on(federation: Federation) -> None:
    east, west = federation.sites["east"], federation.sites["west"]
    east.cluster.apply([asking(f"busy-{i}", 8, nodeName=f"n{i}") for i in range(2)])
    federation.start()
    federation.manager.apply([job("train", 4)])
    wait_until(lambda: federation.where("train") == "west", "the job runs in west")
    for i in range(2):
        east.cluster.client.delete(f"{PODS}/busy-{i}", gracePeriodSeconds="0")
    stop = {"spec": {"stopPolicy": "HoldAndDrain"}}
    west.cluster.client.patch(f"/apis/{KUEUE}/clusterqueues/q", stop)
    wait_until(lambda: federation.where("train") == "east", "the job runs in east")
    wait_until(lambda: west.jobs() == {}, "its copy in west is gone")
    stats = federation.workload("train")["status"]["schedulingStats"]["evictions"]
    assert [one["reason"] for one in stats] == ["AdmissionCheck"]
    assert east.jobs() == {"train": False}


def queued_pod(name: str, **annotations: str) -> Content:
    """Return a pod in the queue, or in a group of two if it has annotations."""
    made = asking(name, 2, schedulerName="bayplan")
    labels = {"kueue.x-k8s.io/queue-name": "q"}
    if annotations:
        labels["kueue.x-k8s.io/pod-group-name"] = "pair"
    made["metadata"] |= {"labels": labels, "annotations": annotations}
    return made


@EACH
def test_pods_stand_for_those_of_another_cluster(federation: Federation) -> None:
    east, west = federation.sites["east"], federation.sites["west"]
    east.cluster.apply([asking("busy-0", 8, nodeName="n0"), asking("busy-1", 5, nodeName="n1")])
    federation.start()
    total = {"kueue.x-k8s.io/pod-group-total-count": "2"}
    federation.manager.apply([queued_pod("a", **total), queued_pod("b", **total)])
    federation.manager.apply([queued_pod("alone")])
    wait_until(lambda: federation.where("a") == "west", "the group runs in west")
    wait_until(lambda: federation.where("alone") == "east", "the pod runs in east")

    def phases() -> dict[str, str]:
        found = federation.manager.items(PODS)
        assert not [one for one in found if one["spec"].get("nodeName")]
        return {one["metadata"]["name"]: one["status"]["phase"] for one in found}

    wait_until(lambda: set(phases().values()) == {"Running"}, "their statuses came back")
    assert {one["metadata"]["name"] for one in west.cluster.items(PODS)} == {"a", "b"}
    for one, names in ((west, "ab"), (east, ["alone"])):
        for name in names:
            status = {"status": {"phase": "Succeeded"}}
            one.cluster.client.patch(f"{PODS}/{name}/status", status)
    wait_until(lambda: set(phases().values()) == {"Succeeded"}, "they have ended here, too")
    wait_until(lambda: west.cluster.items(PODS) == [], "their copies are gone")
    wait_until(lambda: len(east.cluster.items(PODS)) == 2, "but for what was there before")


@EACH
def test_pods_of_a_lost_cluster_wait_again_and_run_in_the_other_one(
    federation: Federation,
) -> None:
    east, west = federation.sites["east"], federation.sites["west"]
    east.cluster.apply([asking("busy-0", 8, nodeName="n0"), asking("busy-1", 8, nodeName="n1")])
    federation.start("--worker-lost-timeout", LOST_AFTER)
    total = {"kueue.x-k8s.io/pod-group-total-count": "2"}
    federation.manager.apply([queued_pod("a", **total), queued_pod("b", **total)])

    def phases() -> set[str]:
        return {one["status"]["phase"] for one in federation.manager.items(PODS)}

    wait_until(lambda: phases() == {"Running"}, "the group runs in west")
    west.relay.cut()
    wait_until(lambda: phases() == {"Pending"}, "its pods wait again")
    conditions = {
        (one["type"], one["status"])
        for pod in federation.manager.items(PODS)
        for one in pod["status"]["conditions"]
    }
    assert conditions == {("PodScheduled", "False")}
    for name in ("busy-0", "busy-1"):
        east.cluster.client.delete(f"{PODS}/{name}", gracePeriodSeconds=0)
    wait_until(lambda: phases() == {"Running"}, "it runs in east")
    assert federation.where("a") == "east"


@pytest.mark.parametrize("federation", ["embedded"], indirect=True)
def test_what_cannot_be_used_is_said_where_it_is_configured(federation: Federation) -> None:
    client = federation.manager.client
    kubeconfig = federation.sites["east"].cluster.kubeconfig
    content = yaml.safe_load(kubeconfig.read_text())
    content["users"][0]["user"]["exec"] = {"command": "touch", "args": ["never"]}
    data = base64.b64encode(yaml.safe_dump(content).encode()).decode()
    client.patch(f"{SECRETS}/east", {"data": {"kubeconfig": data}})
    client.delete(f"{SECRETS}/west")
    process = federation.start()
    wait_until(lambda: condition(federation, f"{CLUSTERS}/west"), "west has a condition")
    east, west = (condition(federation, f"{CLUSTERS}/{name}") for name in ("east", "west"))
    assert east["message"] == (
        "Secret kueue-system/east: users[].user.exec is not allowed in a Secret"
    )
    assert west["message"] == "Secret kueue-system/west: is not there"
    wait_until(lambda: condition(federation, f"{CHECKS}/elsewhere"), "the check has a condition")
    assert condition(federation, f"{CHECKS}/elsewhere")["message"] == (
        "no cluster answers: east, west"
    )
    # A job that came before its queue knows of the check would have quota.
    queue = f"/apis/{KUEUE}/clusterqueues/q"
    wait_until(
        lambda: condition(federation, queue).get("status") == "False", "its queue is inactive"
    )
    federation.manager.apply([job("train", 4)])
    text = "ClusterQueue q is inactive"
    wait_until(lambda: text in federation.reasons("train"), "its Workload says that it waits")
    assert federation.where("train") == ""
    assert not process.problems()


@EACH
def test_the_quota_of_a_queue_follows_its_clusters_where_they_are_to_say_it(
    federation: Federation,
) -> None:
    client = federation.manager.client
    path, condition_type = f"/apis/{KUEUE}/clusterqueues/q", "MultiKueueManagerQuotaAutomation"
    most = int(MOST)

    def has(quota: int, status: str = "True") -> bool:
        queue = client.get(path).json
        (resource,) = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
        found = queue.get("status", {}).get("conditions", [])
        stated = [one["status"] for one in found if one["type"] == condition_type]
        return Quantity(resource["nominalQuota"]) == Quantity(quota) and stated == [status]

    client.patch(CONFIG, {"spec": {"quotaManagement": "Automated"}})
    process = federation.start("--worker-lost-timeout", LOST_AFTER)
    wait_until(lambda: has(2 * most), "it has the quota of both")
    federation.sites["east"].cluster.client.patch(path, {"spec": queue_spec(3)})
    wait_until(lambda: has(most + 3), "a quota has changed in one of them")
    federation.sites["west"].relay.cut()
    wait_until(lambda: has(3), "a cluster that does not answer has none")
    federation.manager.apply([job("train", 2)])
    wait_until(lambda: federation.where("train") == "east", "jobs go on with what is left")
    client.patch(CONFIG, {"spec": {"quotaManagement": "Manual"}})
    wait_until(lambda: has(3, "False"), "its users are to say it again")
    assert not process.problems()


def queue_spec(quota: int) -> Content:
    """Return the groups of a queue with another quota than it has at first."""
    spec = cluster_queue("q")[2]["spec"]
    spec["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = quota
    return {"resourceGroups": spec["resourceGroups"]}


def condition(federation: Federation, path: str) -> Content:
    """Return whether something is active, {} before it is known."""
    found = federation.manager.client.get(path).json.get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == "Active"), {})


@pytest.mark.parametrize("federation", ["embedded"], indirect=True)
def test_a_job_whose_pods_would_be_made_here_is_rejected(federation: Federation) -> None:
    (own,) = suspended_job("own", "q", 1)
    federation.start()
    federation.manager.apply([own])
    wait_until(lambda: federation.check("own").get("state") == "Rejected", "it is rejected")
    assert 'set spec.managedBy to "kueue.x-k8s.io/multikueue"' in federation.check("own")["message"]


@pytest.mark.parametrize("federation", ["embedded"], indirect=True)
def test_jobs_that_come_together_do_not_all_go_to_the_same_place(federation: Federation) -> None:
    for one in federation.sites.values():
        busy = [asking("busy-0", 8, nodeName="n0"), asking("busy-1", 6, nodeName="n1")]
        one.cluster.apply(busy)
    federation.manager.apply([job("first", 2), job("second", 2)])
    federation.start()
    wait_until(lambda: federation.where("first"), "one runs")
    wait_until(lambda: federation.where("second"), "the other one runs")
    assert {federation.where("first"), federation.where("second")} == {"east", "west"}


@EACH
def test_what_cannot_be_seen_does_not_count_as_gone(
    federation: Federation, request: pytest.FixtureRequest
) -> None:
    east = federation.sites["east"]
    process = federation.start()
    federation.manager.apply([job("train", 2)])
    wait_until(lambda: federation.where("train") == "east", "the job runs in east")
    uid = east.cluster.client.get(f"{JOBS}/train").json["metadata"]["uid"]
    federation.manager.client.delete(f"{CHECKS}/elsewhere")
    if "real" in request.node.name:
        # While it starts, it does not know the kinds of others.
        plane: ControlPlane = request.getfixturevalue("plane")
        plane.kill("apiserver")
        plane.start("apiserver")
        plane.wait_until_ready()
    process.kill()
    process.start()
    other = job("other", 1)
    federation.manager.apply([queue()[1], other])
    wait_until(lambda: federation.where("other"), "another job is sent")
    assert east.cluster.client.get(f"{JOBS}/train").json["metadata"]["uid"] == uid


@pytest.mark.parametrize("federation", ["embedded"], indirect=True)
def test_where_kueues_own_manager_is_at_work_nothing_is_sent(federation: Federation) -> None:
    lease = head("coordination.k8s.io/v1", "Lease", "c1f6bfd2.kueue.x-k8s.io")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    lease["spec"] = {"holderIdentity": "kueue", "leaseDurationSeconds": 15, "renewTime": now}
    federation.manager.apply([lease])
    process = federation.start()
    wait_until(lambda: "Kueue's manager is at work" in process.log.read_text(), "it says so")
    assert condition(federation, f"{CLUSTERS}/east") == {}
