"""``bayplan explain`` in a pod of the scheduler's namespace, as by ``kubectl exec``."""

from __future__ import annotations

import hashlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from msgspec import structs
from msgspec.structs import replace
from tests.live.deployed import DEPLOY, SCHEDULER, only
from tests.live.stage import Stage, stage

from bayplan.api import ApiObject
from bayplan.api.lease import Lease
from bayplan.api.pod import PodStatus
from bayplan.cli.options import check_source
from bayplan.cluster.apiserver import Role
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.errors import InputError, NotFound
from bayplan.live import client, pod_token
from bayplan.live.address import Address
from bayplan.live.client import Question, Reply, ask_scheduler
from bayplan.live.leases import LABELS
from bayplan.profiles.loading import load_profiles
from bayplan.testing import make_node, make_object, make_pod

NAMESPACE = "bayplan-system"
PROFILES = load_profiles(DEPLOY / "scheduler-config.yaml")
NAMED = {"metadata": {"name": "team"}}
WHY = Question("/debug/explain", {"pod": "default/p"})

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate and its key, as the Deployment's init container makes them."""
    (made,) = only("Deployment")["spec"]["template"]["spec"]["initContainers"]
    command = [part.replace("/tls/", f"{tmp_path}/") for part in made["command"]]
    subprocess.run(command, check=True, capture_output=True)
    return tmp_path / "tls.crt", tmp_path / "tls.key"


@asynccontextmanager
async def cluster() -> AsyncIterator[Stage]:
    """A cluster with the namespace of the scheduler, whose account has the token "scheduler"."""
    user = f"system:serviceaccount:{NAMESPACE}:{SCHEDULER}"
    rights = Role.of(user, only("ClusterRole")["rules"])
    rights += Role.of(user, only("Role")["rules"], NAMESPACE)
    tokens = {"admin": None, "scheduler": rights}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    async with stage([make_object(space), make_node("n")], tokens=tokens) as made:
        made.server.write_kubeconfig(made.folder / "kubeconfig", "scheduler")
        yield made


async def ask(
    made: Stage,
    patch: pytest.MonkeyPatch,
    namespace: str = NAMESPACE,
    shown: str = "shown",
    question: Question = WHY,
) -> Reply:
    """Ask as a pod of a namespace does that has a token to show; "" for none."""
    (made.folder / "token").write_text(shown)
    patch.setattr(pod_token, "_PATH", made.folder / "token")
    patch.setattr(Credentials, "of_pod", bool(namespace))
    patch.setattr(client, "pod_namespace", lambda: namespace)
    return await ask_scheduler(made.folder / "kubeconfig", "", question, None)


@dataclass
class Listener:
    """A server that is no scheduler: what it was sent, and what it answers."""

    seen: list[web.BaseRequest] = field(default_factory=list)
    answer: str = "mine"
    moved: str = ""
    port: int = 0

    @property
    def tokens(self) -> list[str]:
        return [one.headers.get("Authorization", "") for one in self.seen]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append(request)
        if self.moved:
            return web.Response(status=307, headers={"Location": self.moved})
        return web.Response(text=self.answer)


@asynccontextmanager
async def listening(
    files: tuple[Path, Path] | None, answer: str = "mine", moved: str = ""
) -> AsyncIterator[Listener]:
    tls = None
    if files is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(*files)
    made = Listener(answer=answer, moved=moved)
    runner = web.ServerRunner(web.Server(made.handle))
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0, ssl_context=tls).start()
    made.port = runner.addresses[0][1]
    try:
        yield made
    finally:
        await runner.cleanup()


def fingerprint(files: tuple[Path, Path]) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(files[0].read_text())).hexdigest()


def lease(
    url: str, certificate: str = "", namespace: str = NAMESPACE, holder: str = "pod-0_1"
) -> ApiObject:
    """What somebody who may write Leases can say."""
    notes = {
        "bayplan.dev/url": url,
        "bayplan.dev/certificate-sha256": certificate,
        "bayplan.dev/scheduler-names": "bayplan",
    }
    meta = {"name": "bayplan", "namespace": namespace, "annotations": notes, "labels": LABELS}
    return make_object(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": {"holderIdentity": holder, "renewTime": "2099-01-01T00:00:00.000000Z"},
        }
    )


ELSEWHERE = "https://0.0.0.0:{}"
"""This machine by an address that is not that of the loopback interface."""


@pytest.mark.parametrize(
    ("namespace", "token", "answers"),
    [(NAMESPACE, "shown", True), (NAMESPACE, "", False), ("team", "shown", False), ("", "", False)],
)
async def test_only_pods_of_bayplan_in_its_namespace_are_answered_by_the_scheduler(
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    namespace: str,
    token: str,
    answers: bool,
) -> None:
    (tmp_path / "known").write_text("shown")
    # Of the name of no pod, and not on the loopback interface.
    monkeypatch.setenv("POD_IP", "0.0.0.0")
    asked = replace(WHY, command=("explain", "default/p"))
    async with cluster() as made:
        made.create(make_pod("p", spec={"schedulerName": "bayplan"}))
        address = Address("0.0.0.0", 0, *files, tmp_path / "known")
        app = await made.start(PROFILES, address=address, leader_elect=True)
        await made.settle()
        reply = await ask(made, monkeypatch, namespace, token, asked)
    if answers:
        assert reply.text is not None
        assert reply.text.startswith("default/p is on n\n")
        assert "decided at" in reply.text
    else:
        assert reply.text is None
        pod = app.identity.partition("_")[0]
        command = f"-n {NAMESPACE} exec {pod} -- bayplan explain default/p"
        (note,) = reply.notes
        assert note.startswith("only bayplan's own pods may ask the holder of the Lease")
        assert note.endswith(command)


async def test_where_the_pods_of_a_job_that_has_ended_were_is_still_answered() -> None:
    async with cluster() as made:
        pod = make_pod("p", node="n", owner="Job/sweep", spec={"schedulerName": "bayplan"})
        made.create(structs.replace(pod, status=PodStatus(phase="Succeeded")))
        await made.start(PROFILES, leader_elect=True)
        asked = replace(WHY, params={"pod": "job/default/sweep"})
        reply = await ask_scheduler(made.folder / "kubeconfig", "", asked, None)
    assert reply.text is not None
    assert reply.text.startswith("default/p has ended (Succeeded); it was on n\n")


async def test_who_asks_in_another_namespace_is_told_where_the_job_is() -> None:
    async with cluster() as made:
        made.create(make_object({"kind": "Namespace", "apiVersion": "v1", **NAMED}))
        made.create(make_pod("p", namespace="team", node="n", owner="Job/sweep"))
        await made.start(PROFILES, leader_elect=True)
        asked = replace(WHY, params={"pod": "job/default/sweep"})
        with pytest.raises(NotFound, match='default/sweep; did you mean "team/sweep"'):
            await ask_scheduler(made.folder / "kubeconfig", "", asked, None)


def test_in_a_pod_no_kubeconfig_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InputError, match="give manifests with -f, or a cluster"):
        check_source((), None, "")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    check_source((), None, "")


# Who may write Leases may be anybody -----------------------------------------------------------


async def test_a_server_with_another_certificate_than_that_of_the_lease_is_sent_nothing(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster() as made, listening(files) as found:
        made.create(lease(ELSEWHERE.format(found.port), "0" * 64))
        reply = await ask(made, monkeypatch)
    assert reply.text is None
    assert "cannot be asked at" in reply.notes[0]
    assert found.seen == []


async def test_the_server_of_a_lease_is_shown_the_pods_token_and_never_that_of_its_account(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster() as made, listening(files) as found:
        made.create(lease(ELSEWHERE.format(found.port), fingerprint(files)))
        assert (await ask(made, monkeypatch)).text == "mine"
        assert found.tokens == ["Bearer shown"]
        # Another pod of the namespace has none to show.
        assert (await ask(made, monkeypatch, shown="")).text is None
    assert found.tokens == ["Bearer shown"]


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
@pytest.mark.parametrize(
    ("asker", "place"), [("", NAMESPACE), ("team", NAMESPACE), (NAMESPACE, "team")]
)
async def test_users_and_pods_of_other_namespaces_show_no_token(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, host: str, asker: str, place: str
) -> None:
    async with cluster() as made, listening(files) as found:
        made.create(make_object({"kind": "Namespace", "apiVersion": "v1", **NAMED}))
        made.create(lease(f"https://{host}:{found.port}", fingerprint(files), place))
        made.server.write_kubeconfig(made.folder / "kubeconfig", "admin")
        reply = await ask(made, monkeypatch, asker)
    if host == "127.0.0.1":
        # There it is for the processes of a machine, and needs none.
        assert found.tokens == [""]
    else:
        assert found.seen == []
        assert reply.text is None


@pytest.mark.parametrize(
    "url",
    ["http://0.0.0.0:{}", "https://0.0.0.0:{}/x?", "https://me@0.0.0.0:{}", "ftp://0.0.0.0:{}"],
)
async def test_a_token_goes_to_no_address_but_by_tls(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    async with cluster() as made, listening(None) as found:
        made.create(lease(url.format(found.port), fingerprint(files)))
        assert (await ask(made, monkeypatch)).text is None
    assert found.seen == []


async def test_a_server_that_sends_elsewhere_is_not_followed(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        cluster() as made,
        listening(files) as other,
        listening(files, moved=ELSEWHERE.format(other.port)) as found,
    ):
        made.create(lease(ELSEWHERE.format(found.port), fingerprint(files)))
        reply = await ask(made, monkeypatch)
    assert reply.text is None
    assert len(found.seen) == 1
    assert other.seen == []


async def test_a_lease_of_a_tenant_does_not_come_before_that_of_the_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster() as made, listening(None) as found:
        made.create(make_object({"kind": "Namespace", "apiVersion": "v1", **NAMED}))
        made.create(make_pod("p", spec={"schedulerName": "bayplan"}))
        made.create(lease(f"http://127.0.0.1:{found.port}", namespace="team"))
        await made.start(PROFILES, leader_elect=True)
        await made.settle()
        made.server.write_kubeconfig(made.folder / "kubeconfig", "admin")
        reply = await ask(made, monkeypatch, "")
    assert reply.text is not None
    assert reply.text.startswith("default/p is on n\n")
    assert found.seen == []


async def test_what_a_lease_says_becomes_no_command_and_moves_no_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster() as made, listening(None, answer="red \x1b[31m\ttext\n") as found:
        made.create(lease("https://10.0.0.1:1", "0" * 64, holder="x; rm -rf /_1"))
        (note,) = (await ask(made, monkeypatch, "")).notes
        assert "cannot be asked" in note
        assert "kubectl" not in note
        made.server.cluster.delete(Lease, f"{NAMESPACE}/bayplan")
        made.create(lease(f"http://127.0.0.1:{found.port}", holder="\x1b[2J_1"))
        assert (await ask(made, monkeypatch, "")).notes == (
            f"nobody holds the Lease {NAMESPACE}/bayplan: no scheduler runs",
        )
        made.server.cluster.delete(Lease, f"{NAMESPACE}/bayplan")
        made.create(lease(f"http://127.0.0.1:{found.port}"))
        assert (await ask(made, monkeypatch, "")).text == "red [31m\ttext\n"
        # It is no scheduler.
        reply = await ask(made, monkeypatch, "", question=replace(WHY, output="json"))
        assert reply.text is None


async def test_a_pod_that_does_not_answer_is_waited_for_a_second(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("0.0.0.0", 0), backlog=0) as full:
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        async with cluster() as made:
            made.create(lease(ELSEWHERE.format(port), fingerprint(files)))
            began = time.monotonic()
            reply = await ask(made, monkeypatch)
        for one in waiting:
            one.close()
    assert "cannot be asked at" in reply.notes[0]
    assert time.monotonic() - began < 3


async def test_the_command_names_the_cluster_that_was_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with cluster() as made:
        made.create(lease("https://10.0.0.1:1", "0" * 64))
        path = tmp_path / "my config"
        made.server.write_kubeconfig(path, "admin")
        context = yaml.safe_load(path.read_text())["current-context"]
        asked = Question("/debug/top", {}, command=("top",))
        (note,) = (await ask_scheduler(path, context, asked, None)).notes
    assert note.endswith(
        f": kubectl --kubeconfig '{path}' --context {context} -n {NAMESPACE} exec pod-0 -- "
        "bayplan top"
    )
