"""``bayplan explain`` in a pod of the scheduler's namespace, as by ``kubectl exec``."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec import structs
from tests.live.deployed import DEPLOY, SCHEDULER, only
from tests.live.stage import Stage, stage

from bayplan.api.pod import PodStatus
from bayplan.cli.options import check_source
from bayplan.cluster.apiserver import Role
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.errors import InputError
from bayplan.live import client
from bayplan.live.client import Question, Reply, ask_scheduler
from bayplan.live.web import Address
from bayplan.profiles.loading import load_profiles
from bayplan.testing import make_node, make_object, make_pod

NAMESPACE = "bayplan-system"
PROFILES = load_profiles(DEPLOY / "scheduler-config.yaml")
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


async def ask(made: Stage, patch: pytest.MonkeyPatch, namespace: str = NAMESPACE) -> Reply:
    """Ask as a pod of a namespace does, "" for none."""
    patch.setattr(Credentials, "of_pod", bool(namespace))
    patch.setattr(client, "context_namespace", lambda kubeconfig: namespace)
    return await ask_scheduler(made.folder / "kubeconfig", "", WHY, None)


@pytest.mark.parametrize(
    ("namespace", "answers"), [(NAMESPACE, True), ("team", False), ("", False)]
)
async def test_only_pods_of_its_namespace_are_answered_by_the_scheduler(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, namespace: str, answers: bool
) -> None:
    monkeypatch.setenv("POD_IP", "127.0.0.1")
    async with cluster() as made:
        made.create(make_pod("p", spec={"schedulerName": "bayplan"}))
        await made.start(PROFILES, address=Address("0.0.0.0", 0, *files), leader_elect=True)
        await made.settle()
        reply = await ask(made, monkeypatch, namespace)
    if answers:
        assert reply.text is not None
        assert reply.text.startswith("default/p is on n\n")
        assert "decided at" in reply.text
    else:
        assert reply.text is None
        assert "cannot be asked at https://127.0.0.1:" in reply.notes[0]


async def test_where_the_pods_of_a_job_that_has_ended_were_is_still_answered() -> None:
    async with cluster() as made:
        pod = make_pod("p", node="n", owner="Job/sweep", spec={"schedulerName": "bayplan"})
        made.create(structs.replace(pod, status=PodStatus(phase="Succeeded")))
        await made.start(PROFILES, leader_elect=True)
        asked = replace(WHY, params={"pod": "job/default/sweep"})
        reply = await ask_scheduler(made.folder / "kubeconfig", "", asked, None)
    assert reply.text is not None
    assert reply.text.startswith("default/p has ended (Succeeded); it was on n\n")


def test_in_a_pod_no_kubeconfig_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InputError, match="give manifests with -f, or a cluster"):
        check_source((), None, "")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    check_source((), None, "")


async def test_a_server_with_another_certificate_than_that_of_the_lease_is_sent_nothing(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[web.BaseRequest] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request)
        return web.Response(text="mine")

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*files)
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    notes = {
        "bayplan.dev/url": f"https://127.0.0.1:{runner.addresses[0][1]}",
        "bayplan.dev/certificate-sha256": "0" * 64,
    }
    lease: dict[str, Any] = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "bayplan", "namespace": NAMESPACE, "annotations": notes},
        "spec": {"holderIdentity": "x"},
    }
    try:
        async with cluster() as made:
            made.create(make_object(lease))
            reply = await ask(made, monkeypatch)
    finally:
        await runner.cleanup()
    assert reply.text is None
    assert "cannot be asked at" in reply.notes[0]
    assert seen == []
