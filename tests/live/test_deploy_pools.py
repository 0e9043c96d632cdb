"""The manifests of pools beside another scheduler, and of a journal: no more rights than needed."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from msgspec.structs import replace
from tests.live.audit import Audit, permissions
from tests.live.deployed import DEPLOY, OF_SCHEDULER, ROOT, documents, manifests, only
from tests.live.stage import Stage, stage
from tests.resizing.elastic_builders import ELASTIC

from bayplan.api import Pod
from bayplan.cli.pool_controller import command
from bayplan.cli.run import command as run_command
from bayplan.cluster.apiserver import Role
from bayplan.cluster.kubernetes.resources import watched
from bayplan.cluster.protocol import Event
from bayplan.errors import ClusterError
from bayplan.live.address import parse_address
from bayplan.live.app import DRAIN_SECONDS, RELEASE_SECONDS, LiveApp
from bayplan.live.token_reviews import TokenReviews
from bayplan.metering.journal import Journal
from bayplan.profiles.loading import ProfileSet, load_profiles
from bayplan.testing import make_node, make_object, make_pod

POOLS = documents(DEPLOY / "pools.yaml")
RESIZER = only("ClusterRole", documents(DEPLOY / "resizer.yaml"))
WITH_JOURNAL = ROOT / "configs" / "usage-journal"
ACCOUNT = only("ServiceAccount", POOLS)["metadata"]


def deployed_profiles() -> ProfileSet:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(only("ConfigMap", POOLS)["data"]["config.yaml"])
        return load_profiles(path)


PROFILES = deployed_profiles()

# Pools -----------------------------------------------------------------------------------------


def pod_spec() -> dict[str, Any]:
    return dict(only("StatefulSet", POOLS)["spec"]["template"]["spec"])


def container() -> dict[str, Any]:
    (found,) = pod_spec()["containers"]
    return dict(found)


def options() -> dict[str, Any]:
    name, *arguments = container()["args"]
    assert name == command.name
    with command.make_context(name, list(arguments)) as context:
        return dict(context.params)


def test_every_role_is_bound_to_the_account_of_pools() -> None:
    assert pod_spec()["serviceAccountName"] == ACCOUNT["name"]
    bindings = [one for one in POOLS if one["kind"] in ("ClusterRoleBinding", "RoleBinding")]
    bound = {(one["roleRef"]["kind"], one["roleRef"]["name"]) for one in bindings}
    own = {(kind, only(kind, POOLS)["metadata"]["name"]) for kind in ("ClusterRole", "Role")}
    assert bound == own | {("ClusterRole", RESIZER["metadata"]["name"])}
    subject = {"kind": "ServiceAccount", **ACCOUNT}
    assert [one["subjects"] for one in bindings] == [[subject]] * len(bindings)


def test_everything_is_in_the_namespace_of_the_scheduler() -> None:
    namespace = only("Namespace")["metadata"]["name"]
    for one in POOLS:
        wide = one["kind"] in ("ClusterRole", "ClusterRoleBinding")
        assert one["metadata"].get("namespace") == (None if wide else namespace), one["kind"]


def test_the_lease_is_not_that_of_the_scheduler() -> None:
    election = PROFILES.leader_election
    named = [r["resourceNames"] for r in only("Role", POOLS)["rules"] if "resourceNames" in r]
    assert named == [[election.resource_name]]
    assert election.resource_namespace == ACCOUNT["namespace"]
    theirs = load_profiles(DEPLOY / "scheduler-config.yaml").leader_election
    assert election.resource_name != theirs.resource_name


def test_its_profiles_are_those_of_other_schedulers() -> None:
    names = {profile.scheduler_name for profile in PROFILES.profiles}
    assert names == {"default-scheduler", "volcano"}


def test_its_arguments_name_what_is_mounted() -> None:
    given, spec = options(), pod_spec()
    mounts = {one["mountPath"]: one["name"] for one in container()["volumeMounts"]}
    (claim,) = only("StatefulSet", POOLS)["spec"]["volumeClaimTemplates"]
    volumes = {one["name"] for one in spec["volumes"]} | {claim["metadata"]["name"]}
    assert set(mounts.values()) == volumes
    assert mounts[str(given["config"].parent)] == "config"
    assert given["config"].name in only("ConfigMap", POOLS)["data"]
    for path in (given["tls_cert_file"], given["tls_private_key_file"]):
        assert mounts[str(path.parent)] == "tls"
    assert mounts[str(Path(given["usage_journal"]).parent)] == claim["metadata"]["name"]
    with pytest.raises(click.UsageError):
        command.make_context("pool-controller", [*container()["args"][1:], "--no-such-option"])


def test_one_replica_has_the_journal_which_outlasts_it() -> None:
    spec = only("StatefulSet", POOLS)["spec"]
    assert spec["replicas"] == 1
    assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    assert spec["serviceName"] == only("Service", POOLS)["metadata"]["name"]
    assert pod_spec()["terminationGracePeriodSeconds"] > DRAIN_SECONDS + RELEASE_SECONDS


def test_its_ports_and_selectors_fit_together() -> None:
    _, port = parse_address(options()["bind_address"])
    (named,) = container()["ports"]
    assert named["containerPort"] == port
    service = only("Service", POOLS)
    assert [one["targetPort"] for one in service["spec"]["ports"]] == [named["name"]]
    labels = only("StatefulSet", POOLS)["spec"]["template"]["metadata"]["labels"]
    assert only("StatefulSet", POOLS)["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    assert only("NetworkPolicy", POOLS)["spec"]["podSelector"]["matchLabels"] == labels
    monitor = only("ServiceMonitor", documents(*manifests(DEPLOY / "monitoring")))
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )


def test_its_containers_may_no_more_than_those_of_the_scheduler() -> None:
    theirs = only("Deployment")["spec"]["template"]["spec"]
    assert pod_spec()["securityContext"] == theirs["securityContext"]
    for own, other in (
        (pod_spec()["containers"][0], theirs["containers"][0]),
        (pod_spec()["initContainers"][0], theirs["initContainers"][0]),
    ):
        assert own["securityContext"] == other["securityContext"]
        assert own["image"] == other["image"]
        assert "memory" in own["resources"]["limits"]


# What it may do --------------------------------------------------------------------------------


def rules() -> list[Any]:
    return [*only("ClusterRole", POOLS)["rules"], *only("Role", POOLS)["rules"]]


def test_it_reads_what_the_scheduler_reads() -> None:
    granted = permissions(*only("ClusterRole", POOLS)["rules"])
    leases = ("coordination.k8s.io", "leases")
    read = {(kind.group, kind.plural) for kind in watched()} | {leases}
    polled = {(kind.group, kind.plural) for kind in watched() if kind.poll_seconds}
    for verb, expected in (("list", read), ("watch", read - polled)):
        assert {(group, resource) for one, group, resource in granted if one == verb} == expected


def test_it_may_touch_no_pod_and_no_queue_but_its_pools() -> None:
    written = {(g, r) for verb, g, r in permissions(*rules()) if verb in ("create", "patch")}
    assert written == {
        ("", "events"),
        ("ai.example.com", "computepools/status"),
        ("bayplan.dev", "computepools/status"),
        ("authentication.k8s.io", "tokenreviews"),
        ("authorization.k8s.io", "subjectaccessreviews"),
        ("coordination.k8s.io", "leases"),
    }


def noted(audit: Audit) -> Role:
    """Return the role of pools, with that of the resizer."""
    user = f"system:serviceaccount:{ACCOUNT['namespace']}:{ACCOUNT['name']}"
    own = audit.role(only("ClusterRole", POOLS)["rules"], user=user)
    own += audit.role(only("Role", POOLS)["rules"], ACCOUNT["namespace"], user)
    return own + audit.role(RESIZER["rules"], user=user) + audit.refusing(user)


@asynccontextmanager
async def beside(
    audit: Audit, tmp_path: Path, leader_elect: bool = False
) -> AsyncIterator[tuple[Stage, LiveApp]]:
    """A scheduler with all rights that knows no queues, and pools beside it."""
    pool = {"kind": "ComputePool", "metadata": {"name": "p"}, "spec": {"nodeSelector": {"p": "p"}}}
    objects = [make_object({"apiVersion": v, **pool}) for v in ("bayplan.dev/v1alpha1",)]
    theirs = {
        "kind": "ComputePool",
        "metadata": {"name": "q"},
        "spec": {"nodeSelector": {"q": "q"}},
    }
    objects.append(make_object({"apiVersion": "ai.example.com/v1", **theirs}))
    objects += [make_node("n", cpu=64, gpu=8, labels={"p": "p"}), make_object(only("Namespace"))]
    tokens = {"admin": None, "pools": noted(audit)}
    async with stage(objects, tokens=tokens) as made:
        made.server.write_kubeconfig(made.folder / "kubeconfig", "admin")
        disabled = [{"name": name} for name in ("Resizer", "Queues", "Gang")]
        other = {"plugins": {"multiPoint": {"disabled": disabled}}}
        await made.start(profiles_of(tmp_path / "other.yaml", other))
        made.server.write_kubeconfig(made.folder / "pools", "pools")
        arguments = {"name": "Resizer", "args": {"notice": 0, "shrinkAfter": 0, "growAfter": 0}}
        own = profiles_of(tmp_path / "pools.yaml", {"pluginConfig": [arguments]})
        app = await made.start(
            replace(own, leader_election=PROFILES.leader_election),
            kubeconfig=made.folder / "pools",
            binds=False,
            leader_elect=leader_elect,
            journal=Journal(str(tmp_path / "usage.db")),
        )
        yield made, app


def profiles_of(path: Path, profile: dict[str, Any]) -> ProfileSet:
    content = yaml.safe_load(only("ConfigMap")["data"]["config.yaml"])
    content["profiles"] = [{"schedulerName": "default-scheduler", **profile}]
    path.write_text(json.dumps(content))
    return load_profiles(path)


async def test_it_needs_every_right_that_it_has_and_no_other(tmp_path: Path) -> None:
    audit = Audit()
    async with beside(audit, tmp_path, leader_elect=True) as (made, app):
        await made.until(app.leads)
        assert await TokenReviews(app.transport).allows("admin", "/metrics")
        await made.stop(app)
    async with beside(audit, tmp_path) as (made, app):
        for content in ELASTIC.values():
            elastic = make_object(content())
            made.create(elastic)
            await made.run_out()
            made.create(make_pod("other", gpu=5))
            await made.passes(lambda: "default/other" in made.placements())
            made.cluster.delete(type(elastic), "default/a")
            made.cluster.delete(Pod, "default/other", grace=0)
            await made.run_out()
        for _ in range(2):
            # The second time it is counted.
            text = ("p", "Warning", "Unreadable", "told twice")
            app.cluster.submit(Event(*text, about="ComputePool"))
            await made.run_out()
        await made.stop(app)
    assert audit.refused == []
    granted = permissions(*rules(), *RESIZER["rules"])
    # The embedded cluster makes the pods of elastic jobs itself.
    by_hand = {("create", "", "services"), ("create", "batch", "jobs")}
    by_hand |= {("patch", g, "elasticjobs/status") for g in ("ai.example.com", "bayplan.dev")}
    assert granted - audit.used == by_hand
    journal = Journal(str(tmp_path / "usage.db"), create=False)
    assert {one.resource for one in journal.records(0, 2**60)} >= {"nvidia.com/gpu"}


async def test_what_its_role_does_not_allow_is_refused(tmp_path: Path) -> None:
    audit = Audit()
    async with beside(audit, tmp_path) as (_, app):
        with pytest.raises(ClusterError):
            await app.transport.request("POST", "/api/v1/namespaces/default/pods/p/binding", b"{}")
    assert audit.refused == [("create", "", "pods/binding", "default", "p")]


# The journal of the scheduler ------------------------------------------------------------------


def patched() -> dict[str, Any]:
    """Return the Deployment with the journal; its patch adds and replaces."""
    joined = yaml.safe_load((WITH_JOURNAL / "kustomization.yaml").read_text())
    (patch,) = joined["patches"]
    found: Any = json.loads(json.dumps(only("Deployment")))
    assert patch["target"] == {"kind": "Deployment", "name": found["metadata"]["name"]}
    for step in yaml.safe_load(patch["patch"]):
        *way, last = step["path"].strip("/").split("/")
        at: Any = found
        for part in way:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if isinstance(at, list):
            assert (step["op"], last) == ("add", "-")
            at.append(step["value"])
        else:
            assert (step["op"] == "replace") == (last in at)
            at[last] = step["value"]
    return dict(found)


def test_the_scheduler_with_a_journal_has_one_writer_and_its_volume() -> None:
    joined = yaml.safe_load((WITH_JOURNAL / "kustomization.yaml").read_text())
    assert joined["resources"] == ["../deploy", "claim.yaml"]
    spec = patched()["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}
    pod = spec["template"]["spec"]
    name, *arguments = pod["containers"][0]["args"]
    with run_command.make_context(name, list(arguments)) as context:
        place = Path(context.params["usage_journal"])
    mounts = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    claim = only("PersistentVolumeClaim", documents(WITH_JOURNAL / "claim.yaml"))["metadata"]
    named = volumes[mounts[str(place.parent)]]["persistentVolumeClaim"]["claimName"]
    assert named == claim["name"]
    assert claim["namespace"] == only("Namespace")["metadata"]["name"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_builds_the_scheduler_with_a_journal() -> None:
    done = subprocess.run(
        [shutil.which("kubectl") or "", "kustomize", str(WITH_JOURNAL)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert len(built) == len(OF_SCHEDULER) + 1
    (deployment,) = [one for one in built if one["kind"] == "Deployment"]
    assert deployment["spec"] == patched()["spec"]
