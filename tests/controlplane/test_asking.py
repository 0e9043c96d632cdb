"""Commands in the pods of a real cluster, as by ``kubectl exec``: who answers, and with what right.

There is no kubelet, so a process with the pod's account is asked, and its token made by hand.
"""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.cluster.apiserver.faces import Client
from tests.controlplane.installation import path_of
from tests.controlplane.live_cluster import LiveCluster
from tests.controlplane.plane import ControlPlane, wait_until
from tests.controlplane.process import PROFILE, Scheduler
from tests.live.deployed import DEPLOY, Content, documents, only

from bayplan.cli import cli
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.live import client, pod_token

NAMESPACE = "bayplan-system"
POOL: Content = {
    "apiVersion": "bayplan.dev/v1alpha1",
    "kind": "ComputePool",
    "metadata": {"name": "p"},
    "spec": {"poolType": "cpu", "nodeSelector": {"pool": "p"}},
}


def pod_of(manifest: str, kind: str) -> Content:
    found: Content = only(kind, documents(DEPLOY / manifest))["spec"]["template"]["spec"]
    return found


def shown_token(real: LiveCluster, pod: Content) -> str:
    """Return the token that the kubelet would give to a pod at the place where it is read."""
    (volume,) = (one for one in pod["volumes"] if "projected" in one)
    (source,) = volume["projected"]["sources"]
    asked = source["serviceAccountToken"]
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == volume["name"])
    assert Path(mount["mountPath"], asked["path"]) == pod_token._PATH
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{pod['serviceAccountName']}/token"
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [asked["audience"]]},
    }
    answer = real.client.post(path, body)
    assert answer.code == 201, answer
    return str(answer.json["status"]["token"])


def server_of(plane: ControlPlane, token: str) -> Client:
    (cluster,) = yaml.safe_load(plane.kubeconfig.read_text())["clusters"]
    trusted = ssl.create_default_context(cafile=plane.certificate)
    return Client(cluster["cluster"]["server"], token, trusted)


def is_held(server: Client, lease: str) -> bool:
    answer = server.get(lease)
    return answer.code == 200 and bool(answer.json["spec"].get("holderIdentity"))


def said(kubeconfig: Path, *command: str) -> str:
    """Return what the process says; a note would say that it was not asked."""
    done = CliRunner().invoke(cli, ["pool", *command, "--kubeconfig", str(kubeconfig)])
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return done.stdout


@pytest.fixture
def tls(tmp_path: Path) -> tuple[str, ...]:
    """Options with a certificate, as the init container makes it."""
    (made,) = pod_of("scheduler.yaml", "Deployment")["initContainers"]
    command = [part.replace("/tls/", f"{tmp_path}/") for part in made["command"]]
    subprocess.run(command, check=True, capture_output=True)
    files = (f"--tls-cert-file={tmp_path}/tls.crt", f"--tls-private-key-file={tmp_path}/tls.key")
    return ("--bind-address=0.0.0.0:0", "--leader-elect", *files)


@pytest.fixture
def pool(real: LiveCluster) -> Iterator[None]:
    answer = real.client.post(path_of(POOL, name=False), POOL)
    assert answer.code == 201, answer
    yield
    real.client.delete(path_of(POOL))


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(
    ("command", "lease"), [("run", "bayplan"), ("pool-controller", "bayplan-pools")]
)
def test_bayplan_pool_is_answered_by_the_process_of_its_pod(
    command: str,
    lease: str,
    real: LiveCluster,
    plane: ControlPlane,
    pools_kubeconfig: Path,
    tmp_path: Path,
    tls: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = command == "run"
    account = real.kubeconfig if scheduler else pools_kubeconfig
    pod = (
        pod_of("scheduler.yaml", "Deployment") if scheduler else pod_of("pools.yaml", "StatefulSet")
    )
    shown = shown_token(real, pod)
    # What it opens, it opens at bayplan only.
    assert server_of(plane, shown).get("/api/v1/nodes").code == 401
    (tmp_path / "token").write_text(shown)
    monkeypatch.setattr(pod_token, "_PATH", tmp_path / "token")
    monkeypatch.setattr(client, "pod_namespace", lambda: NAMESPACE)
    monkeypatch.setattr(Credentials, "of_pod", True)
    # Not an address at which anybody may ask.
    monkeypatch.setenv("POD_IP", "0.0.0.0")
    profile = tmp_path / "profile.yaml"
    content = yaml.safe_load(PROFILE.read_text())
    content["leaderElection"] = {"resourceNamespace": NAMESPACE, "resourceName": lease}
    profile.write_text(yaml.safe_dump(content))
    process = Scheduler(account, tmp_path, profile, *tls, command=command)
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{lease}"
    process.start()
    try:
        wait_until(lambda: is_held(real.client, path), "it leads")
        wait_until(lambda: "\np  " in said(account, "list"), "it has seen the pool")
        assert said(account, "show", "p").startswith("p  cpu, nodes pool=p\n")
        url = real.client.get(path).json["metadata"]["annotations"]["bayplan.dev/url"]
        trusted = ssl.create_default_context(cafile=tmp_path / "tls.crt")
        trusted.check_hostname = False
        page = Client(url, shown, trusted)
        assert page.get("/debug/pools").code == 200
        assert page.get("/debug/decisions").code == 403
        assert page.get("/metrics").code == 403
    finally:
        process.stop()
        real.client.delete(path)
