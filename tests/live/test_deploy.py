"""The manifests that install the scheduler: they fit together, and allow what it asks, no more."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import click
import pytest
import yaml
from msgspec import structs
from msgspec.structs import replace
from tests.live.audit import Audit, Permission, permissions
from tests.live.deployed import (
    CRDS,
    DEPLOY,
    KUSTOMIZATION,
    OF_SCHEDULER,
    ROOT,
    documents,
    manifests,
    only,
)
from tests.live.stage import Stage, stage
from tests.plugins.queues.kueue.queued_job_builders import KINDS as SUSPENDED
from tests.plugins.queues.kueue.queued_job_builders import runtime, suspended_content
from tests.resizing.elastic_builders import ELASTIC

from bayplan.api import ApiObject, Job, ObjectMeta, Pod, Reservation, ResourceClaim, VolcanoPodGroup
from bayplan.api.configmap import ConfigMap
from bayplan.api.kueue import (
    AdmissionCheck,
    ClusterQueue,
    ClusterQueueStatus,
    Cohort,
    CohortStatus,
    KueueWorkload,
    LocalQueue,
    LocalQueueSpec,
    LocalQueueStatus,
)
from bayplan.api.lease import Lease
from bayplan.api.operated import LeaderWorkerSet, PodGang
from bayplan.api.podgroup import ConditionedStatus
from bayplan.api.provisioning import ProvisioningRequest
from bayplan.api.times import rfc3339
from bayplan.api.workloads import StoredPodTemplate
from bayplan.cli.run import command
from bayplan.cluster.apiserver import Role, ServedCluster
from bayplan.cluster.kubernetes.resources import watched
from bayplan.cluster.manifests import load_manifests
from bayplan.cluster.protocol import Event, PatchStatus
from bayplan.dialects.autoscaling import is_stand_in
from bayplan.dialects.kueue import MANAGER_LEASE
from bayplan.dialects.queued_jobs import queued_job, queued_kinds
from bayplan.errors import ClusterError
from bayplan.live.address import Address, parse_address
from bayplan.live.app import DRAIN_SECONDS, RELEASE_SECONDS, LiveApp
from bayplan.live.token_reviews import TokenReviews
from bayplan.live.visibility import GROUP, VERSIONS
from bayplan.profiles.loading import ProfileSet, default_profiles, load_profiles
from bayplan.testing import make_gang, make_node, make_object, make_pod
from bayplan_plugins.queues.kueue.finalizers import IN_USE

CASES = ROOT / "tests" / "scenarios" / "cases"
EXAMPLES = ROOT / "configs" / "examples"
PROFILES = load_profiles(DEPLOY / "scheduler-config.yaml")
MONITORING = DEPLOY / "monitoring"
VISIBILITY = ROOT / "configs" / "visibility"

# What fits together ----------------------------------------------------------------------------


def pod_of(found: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    (found,) = pod_of(only("Deployment"))["containers"]
    return dict(found)


def options() -> dict[str, Any]:
    """Return the deployed arguments, as the command takes them."""
    name, *arguments = container()["args"]
    assert name == command.name
    with command.make_context(name, list(arguments)) as context:
        return dict(context.params)


MORE_ROLES = (
    "nccl-configmaps.yaml",
    "kueue-jobs.yaml",
    "queue-gates.yaml",
    "resizer.yaml",
    "gpu-sharing.yaml",
    "autoscaling.yaml",
    "failure-recovery.yaml",
)
APART = {
    DEPLOY: {"dra-driver.yaml", "pools.yaml", "device-configs.yaml", *MORE_ROLES},
    CRDS: set(),
    MONITORING: set(),
}
"""Manifests that only some clusters want; the kustomization beside them says so."""


@pytest.mark.parametrize("folder", APART, ids=lambda path: path.name)
def test_every_manifest_is_in_a_kustomization_or_named_as_apart(folder: Path) -> None:
    text = (folder / KUSTOMIZATION).read_text()
    joined = yaml.safe_load(text)
    listed = set(joined["resources"])
    for generator in joined.get("configMapGenerator", ()):
        listed |= set(generator["files"])
    files = {path.name for path in folder.iterdir() if path.is_file()} - {KUSTOMIZATION}
    assert files == listed | APART[folder]
    assert [name for name in APART[folder] if name not in text] == []


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("folder", APART, ids=lambda path: path.name)
def test_kubectl_builds_the_kustomization(folder: Path) -> None:
    done = subprocess.run(
        [shutil.which("kubectl") or "", "kustomize", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = {(c["kind"], c["metadata"]["name"]) for c in yaml.safe_load_all(done.stdout)}
    joined = documents(*(path for path in manifests(folder) if path.name not in APART[folder]))
    assert built >= {(one["kind"], one["metadata"]["name"]) for one in joined}


def test_roles_are_bound_to_the_service_account_of_the_deployment() -> None:
    account = only("ServiceAccount")["metadata"]
    assert pod_of(only("Deployment"))["serviceAccountName"] == account["name"]
    bindings = [
        (only("ClusterRoleBinding"), only("ClusterRole")),
        (only("RoleBinding"), only("Role")),
    ]
    for name in MORE_ROLES:
        more = documents(DEPLOY / name)
        bindings.append((only("ClusterRoleBinding", more), only("ClusterRole", more)))
        if any(one["kind"] == "Role" for one in more):
            bindings.append((only("RoleBinding", more), only("Role", more)))
    for binding, role in bindings:
        assert binding["roleRef"]["kind"] == role["kind"]
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["metadata"].get("namespace") == role["metadata"].get("namespace")
        subject = {"kind": "ServiceAccount", "name": account["name"]}
        assert binding["subjects"] == [{**subject, "namespace": account["namespace"]}]


def test_a_right_to_a_config_map_of_a_device_plugin_is_to_read_that_one_only() -> None:
    found = documents(DEPLOY / "device-configs.yaml")
    account = only("ServiceAccount")["metadata"]
    roles = {one["metadata"]["namespace"]: one for one in found if one["kind"] == "Role"}
    for binding in (one for one in found if one["kind"] == "RoleBinding"):
        role = roles.pop(binding["metadata"]["namespace"])
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        (subject,) = binding["subjects"]
        assert subject["name"] == account["name"]
        assert subject["namespace"] == account["namespace"]
        (rule,) = role["rules"]
        assert len(rule["resourceNames"]) == 1
        assert rule["verbs"] == ["list", "watch"]
    assert not roles


def test_everything_is_in_the_same_namespace() -> None:
    name = only("Namespace")["metadata"]["name"]
    driver = documents(DEPLOY / "dra-driver.yaml")
    found = [*OF_SCHEDULER, *documents(*manifests(MONITORING)), *driver]
    cluster_wide = {
        *("ClusterRole", "ClusterRoleBinding", "Namespace", "DeviceClass"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }
    for one in found:
        expected = None if one["kind"] in cluster_wide else name
        assert one["metadata"].get("namespace") == expected, one["kind"]


def test_the_lease_of_the_profile_is_that_of_the_role() -> None:
    role, election = only("Role"), PROFILES.leader_election
    assert election.leader_elect
    assert role["metadata"]["namespace"] == election.resource_namespace
    named = [rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule]
    assert named == [[election.resource_name]]
    assert election.lease_duration == 15


def test_the_profile_takes_the_pods_of_its_own_name_only() -> None:
    assert [profile.scheduler_name for profile in PROFILES.profiles] == ["bayplan"]
    assert not PROFILES.any_scheduler
    assert pod_of(only("Deployment"))["schedulerName"] != "bayplan"


def test_the_arguments_name_what_is_mounted() -> None:
    given, spec = options(), pod_of(only("Deployment"))
    mounts = {one["mountPath"]: one["name"] for one in container()["volumeMounts"]}
    volumes = {one["name"]: one for one in spec["volumes"]}
    assert set(mounts.values()) == set(volumes)
    assert mounts[str(given["config"].parent)] == "config"
    assert volumes["config"]["configMap"]["name"] == only("ConfigMap")["metadata"]["name"]
    assert given["config"].name in only("ConfigMap")["data"]
    for path in (given["tls_cert_file"], given["tls_private_key_file"]):
        assert mounts[str(path.parent)] == "tls"
    assert volumes["tls"]["emptyDir"]["medium"] == "Memory"
    assert given["log_format"] == "json"


def test_an_argument_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(click.UsageError):
        command.make_context("run", [*container()["args"][1:], "--no-such-option"])


def test_ports_are_those_that_are_listened_on() -> None:
    host, port = parse_address(options()["bind_address"])
    assert not Address(host).on_loopback
    (named,) = container()["ports"]
    assert named["containerPort"] == port
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        get = container()[probe]["httpGet"]
        assert get == {"path": path, "port": named["name"], "scheme": "HTTPS"}
    (served,) = only("Service")["spec"]["ports"]
    assert served["targetPort"] == named["name"]
    (let_in,) = only("NetworkPolicy")["spec"]["ingress"]
    assert [one["port"] for one in let_in["ports"]] == [named["name"]]
    (scraped,) = only("ServiceMonitor", documents(*manifests(MONITORING)))["spec"]["endpoints"]
    assert (scraped["port"], scraped["scheme"]) == (served["name"], "https")


def test_the_visibility_api_is_found_where_it_is_listened_on() -> None:
    objects = documents(VISIBILITY / "objects.yaml")
    patch = yaml.safe_load((VISIBILITY / KUSTOMIZATION).read_text())["patches"][0]["patch"]
    (added,) = yaml.safe_load(patch)
    with command.make_context("run", [*container()["args"][1:], added["value"]]) as context:
        _, port = parse_address(context.params["visibility_address"])
    service, policy = only("Service", objects), only("NetworkPolicy", objects)
    (served,) = service["spec"]["ports"]
    (let_in,) = policy["spec"]["ingress"]
    assert [served["targetPort"], let_in["ports"][0]["port"]] == [port, port]
    labels = only("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"] == labels
    apis = [one for one in objects if one["kind"] == "APIService"]
    assert {one["spec"]["version"] for one in apis} == set(VERSIONS)
    for one in apis:
        assert one["spec"]["service"] == {
            "name": service["metadata"]["name"],
            "namespace": service["metadata"]["namespace"],
            "port": served["port"],
        }
        assert one["metadata"]["name"] == f"{one['spec']['version']}.{GROUP}"
    (account,) = only("RoleBinding", objects)["subjects"]
    assert account["name"] == only("ServiceAccount")["metadata"]["name"]


def test_selectors_find_the_pods_of_the_deployment() -> None:
    deployment = only("Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    spread = pod_of(deployment)["topologySpreadConstraints"]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        only("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        only("Service")["spec"]["selector"],
        *(one["labelSelector"]["matchLabels"] for one in spread),
    ]
    assert selectors == [labels] * len(selectors)
    monitor = only("ServiceMonitor", documents(*manifests(MONITORING)))
    service = only("Service")["metadata"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["labels"].items()


def test_no_container_may_more_than_it_needs() -> None:
    spec = pod_of(only("Deployment"))
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    user = spec["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in (ROOT / "Dockerfile").read_text().splitlines()
    for one in (*spec["initContainers"], *spec["containers"]):
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert one["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in one["resources"]["limits"]
        assert one["image"] == container()["image"]


def test_there_is_time_to_end() -> None:
    grace = pod_of(only("Deployment"))["terminationGracePeriodSeconds"]
    assert grace > DRAIN_SECONDS + RELEASE_SECONDS


def test_all_but_one_replica_may_be_missing_and_never_more() -> None:
    replicas = only("Deployment")["spec"]["replicas"]
    assert replicas - only("PodDisruptionBudget")["spec"]["maxUnavailable"] >= 1
    quota = only("ResourceQuota")["spec"]
    (scope,) = quota["scopeSelector"]["matchExpressions"]
    assert pod_of(only("Deployment"))["priorityClassName"] in scope["values"]
    # A rolling update starts new ones first.
    assert int(quota["hard"]["pods"]) >= 2 * replicas


# The page --------------------------------------------------------------------------------------


def test_the_image_has_what_the_deployment_starts() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert 'ENTRYPOINT ["bayplan"]' in lines
    assert "command" not in container()
    (made,) = pod_of(only("Deployment"))["initContainers"]
    installed = f"apt-get install --yes --no-install-recommends {made['command'][0]}"
    assert [line for line in lines if installed in line]
    (image,) = yaml.safe_load((DEPLOY / KUSTOMIZATION).read_text())["images"]
    assert container()["image"] == f"{image['name']}:{image['newTag']}"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_probes_are_open_with_the_deployed_certificate_and_metrics_are_for_readers(
    tmp_path: Path,
) -> None:
    (made,) = pod_of(only("Deployment"))["initContainers"]
    folder = made["volumeMounts"][0]["mountPath"]
    made = [part.replace(f"{folder}/", f"{tmp_path}/") for part in made["command"]]
    subprocess.run(made, check=True, capture_output=True)
    files = [tmp_path / options()[name].name for name in ("tls_cert_file", "tls_private_key_file")]
    assert not files[1].stat().st_mode & 0o077
    trusted = ssl.create_default_context(cafile=files[0])
    trusted.check_hostname = False
    reader = only("ClusterRole", documents(*manifests(MONITORING)))
    audit = Audit()
    tokens = {
        "admin": None,
        "scheduler": audit.deployed(),
        "prometheus": Role.of("system:serviceaccount:monitoring:prometheus", reader["rules"]),
        "stranger": Role("stranger"),
    }

    async with stage([make_node("n")], tokens=tokens) as made:
        made.server.write_kubeconfig(made.folder / "kubeconfig", "scheduler")
        app = await made.start(PROFILES, address=Address("0.0.0.0", 0, *files))
        found = {}
        async with aiohttp.ClientSession() as session:
            for path in ("/healthz", "/readyz", "/metrics", "/debug/decisions"):
                for token in ("", "prometheus", "stranger", "unknown"):
                    url = f"https://127.0.0.1:{app.listener.port}{path}"
                    headers = {"Authorization": f"Bearer {token}"} if token else {}
                    async with session.get(url, ssl=trusted, headers=headers) as answer:
                        found[path, token] = answer.status
    assert audit.refused == []
    for probe in ("/healthz", "/readyz"):
        assert {found[probe, token] for token in ("", "prometheus", "stranger", "unknown")} == {200}
    assert found["/metrics", "prometheus"] == 200
    assert found["/metrics", ""] == found["/debug/decisions", ""] == 401
    assert found["/debug/decisions", "prometheus"] == 403
    assert found["/metrics", "stranger"] == found["/metrics", "unknown"] == 403


# Permissions -----------------------------------------------------------------------------------
NOT_EXERCISED: set[Permission] = {
    # API servers from 1.36 on ask for it themselves, while they serve resourceclaims/status; the
    # embedded one does not.
    ("patch", "resource.k8s.io", "resourceclaims/binding"),
    # Job controllers before 1.36 leave the start time of a job that is suspended.
    ("patch", "batch", "jobs/status"),
    # The embedded cluster makes the pods of elastic jobs itself.
    ("create", "", "services"),
    ("create", "batch", "jobs"),
    ("patch", "ai.example.com", "elasticjobs/status"),
    ("patch", "bayplan.dev", "elasticjobs/status"),
}


def test_what_may_be_listed_is_what_is_followed() -> None:
    granted = permissions(*only("ClusterRole")["rules"])
    followed = {(kind.group, kind.plural) for kind in watched()}
    # One of them by its name: that of Kueue's manager.
    followed.add(("coordination.k8s.io", "leases"))
    listed = {(kind.group, kind.plural) for kind in watched() if kind.poll_seconds}
    own = permissions(*only("Role")["rules"])
    for verb, kinds in (("list", followed), ("watch", followed - listed)):
        assert {(group, resource) for one, group, resource in granted if one == verb} == kinds
        assert {(group, name) for one, group, name in own if one == verb} == {("", "configmaps")}


MADE = {
    ("delete", "autoscaling.x-k8s.io", "provisioningrequests"),
    ("delete", "", "podtemplates"),
    # It ends them, and deletes them when they have been over for long.
    ("delete", "scheduling.koordinator.sh", "reservations"),
    # Of replicas that a LeaderWorkerSet has no more.
    ("delete", "kueue.x-k8s.io", "workloads"),
}
"""What bayplan makes, or ends, and so may delete."""


def test_nothing_is_allowed_in_general() -> None:
    rules = [*only("ClusterRole")["rules"], *only("Role")["rules"]]
    own = permissions(*rules)
    for name in MORE_ROLES:
        found = only("ClusterRole", documents(DEPLOY / name))["rules"]
        if ("delete", "", "pods") in permissions(*found):
            assert name == "failure-recovery.yaml"
            assert permissions(*found) == {("delete", "", "pods")}
        else:
            rules += found
    for verb, group, resource in permissions(*rules):
        assert "*" not in (verb, group, resource)
        assert (
            verb in ("create", "get", "list", "patch", "watch") or (verb, group, resource) in MADE
        )
    # With these a token of the scheduler's would be worth a cluster.
    secret = {"secrets", "serviceaccounts/token", "pods/exec", "clusterroles", "nodes/proxy"}
    assert not secret & {resource for _, _, resource in permissions(*rules)}
    written = {r for verb, _, r in own if verb in ("create", "patch")}
    assert "pods" not in written


@asynccontextmanager
async def scheduling(
    audit: Audit,
    objects: Iterable[ApiObject],
    profiles: ProfileSet | None = None,
    cluster: ServedCluster | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Stage, LiveApp]]:
    """A scheduler with the deployed role."""
    tokens = {"admin": None, "scheduler": audit.deployed(*MORE_ROLES)}
    async with stage(objects, cluster=cluster, tokens=tokens) as made:
        made.server.write_kubeconfig(made.folder / "kubeconfig", "scheduler")
        profiles = profiles or default_profiles()
        deployed = replace(profiles, leader_election=PROFILES.leader_election)
        yield made, await made.start(deployed, **options)


async def ends(audit: Audit, path: Path, bound: int) -> None:
    """Schedule manifests until nothing is left to happen."""
    async with scheduling(audit, load_manifests([str(path)]).objects) as (made, _):
        await made.run_out()
        assert len(made.placements()) == bound, path


async def a_pod_is_refused_twice(audit: Audit) -> None:
    async with scheduling(audit, [make_node("n", cpu=2)]) as (made, app):
        made.create(make_pod("large", cpu=4), make_pod("small"))
        await made.run_out()
        assert made.placements() == {"default/small": "n"}
        conditions = made.pods()["default/large"].status.conditions
        assert {one.reason for one in conditions} == {"Unschedulable"}
        (told,) = [e for e in made.events() if e["reason"] == "FailedScheduling"]
        app.cluster.submit(Event("default/large", told["type"], told["reason"], told["message"]))
        await made.run_out()
        (told,) = [e for e in made.events() if e["reason"] == "FailedScheduling"]
        assert told["count"] == 2


async def answers_get_lost(audit: Audit) -> None:
    example = load_manifests([str(EXAMPLES / "gpu-nic-pcie-root")]).objects
    async with scheduling(audit, example) as (made, _):
        faults = made.server.faults
        faults.close(1, "create", "pods/binding", after=True)
        faults.fail(1, "patch", "resourceclaims/status", code=409)
        await made.run_out()
        assert len(made.placements()) == 8
        assert faults.happened == 2


async def devices_come_by_resource_name(audit: Audit) -> None:
    claimed = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu"},
        "spec": {
            "selectors": [{"cel": {"expression": "true"}}],
            "extendedResourceName": "example.com/gpu",
        },
    }
    offered = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "n"},
        "spec": {
            "driver": "gpu.example.com",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
            "nodeName": "n",
            "devices": [{"name": "gpu-0"}],
        },
    }
    objects = [make_node("n"), make_object(claimed), make_object(offered)]
    async with scheduling(audit, objects) as (made, _):
        made.create(make_pod("p", **{"example.com/gpu": 1}))
        await made.run_out()
        assert made.placements() == {"default/p": "n"}
        (claim,) = made.cluster.list(ResourceClaim)
        assert claim.status.allocation is not None


async def a_gpu_is_shared(audit: Audit) -> None:
    """HAMi's device plugin serves one pod at a time."""
    gpus = [{"id": "GPU-0", "count": 10, "devmem": 81920, "devcore": 100, "health": True}]
    gpus[0]["type"] = "NVIDIA-A100"
    register = {"hami.io/node-nvidia-register": json.dumps(gpus)}
    async with scheduling(audit, [make_node("n", annotations=register, gpu=10)]) as (made, _):
        made.create(*(make_pod(p, gpu=1, **{"nvidia.com/gpumem": 1000}) for p in ("p", "q")))
        await made.until(lambda: len(made.placements()) == 2)
        await made.run_out()
        for own in made.pods().values():
            assert own.metadata.annotations["hami.io/bind-phase"] == "success"


async def crds_have_no_status_subresource(audit: Audit) -> None:
    """Koordinator's and Volcano's own CRDs of PodGroup are such."""
    cluster = ServedCluster()
    for group in ("scheduling.sigs.k8s.io", "scheduling.volcano.sh"):
        resource = cluster.resources.of_kind(group, "PodGroup")
        assert resource is not None
        cluster.resources.add(dataclasses.replace(resource, status=False))
    volcano = make_object(
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "v", "namespace": "default"},
            "spec": {"minMember": 1},
        }
    )
    async with scheduling(audit, [make_node("n")], cluster=cluster) as (made, _):
        member = make_pod("v-0", annotations={"scheduling.k8s.io/group-name": "v"})
        made.create(make_gang("g", 1), volcano, make_pod("g-0", gang="g"), member)
        await made.run_out()
        assert len(made.placements()) == 2
        for group in ("scheduling.sigs.k8s.io", "scheduling.volcano.sh"):
            resource = made.cluster.resources.of_kind(group, "PodGroup")
            assert resource is not None
            (record,) = made.cluster.records(resource).values()
            assert record.content["status"]["phase"] in ("Running", "Scheduled")


async def a_pod_gang_says_how_far_it_is(audit: Audit) -> None:
    content = {
        "apiVersion": "scheduler.grove.io/v1alpha1",
        "kind": "PodGang",
        "metadata": {"name": "g"},
        "spec": {"podgroups": [{"name": "c", "minReplicas": 1}]},
    }
    labels = {"grove.io/podgang": "g", "grove.io/podclique": "c"}
    async with scheduling(audit, [make_node("n"), make_object(content)]) as (made, _):
        made.create(make_pod("p", labels=labels))
        await made.run_out()
        found = made.cluster.get(PodGang, "default/g")
        assert found is not None
        assert found.status.phase in ("Starting", "Running")


async def queues_say_what_they_have(audit: Audit) -> None:
    """Volcano's, KAI's and Koordinator's queue of one name, and a pod of each."""
    amounts = {"quota": -1, "limit": -1}
    queues: dict[str, tuple[str, dict[str, Any]]] = {
        "scheduling.volcano.sh/v1beta1": ("Queue", {"weight": 1}),
        "scheduling.run.ai/v2": (
            "Queue",
            {"resources": dict.fromkeys(("cpu", "memory", "gpu"), amounts)},
        ),
        "scheduling.sigs.k8s.io/v1alpha1": ("ElasticQuota", {"max": {"cpu": 4}}),
        "bayplan.dev/v1alpha1": ("ComputePool", {"nodeSelector": {"a": "b"}}),
        "ai.example.com/v1": ("ComputePool", {"nodeSelector": {"c": "d"}}),
    }
    made_of = (
        {"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, "spec": spec}
        for version, (kind, spec) in queues.items()
    )
    objects = [make_node("n"), *(make_object(one) for one in made_of)]
    async with scheduling(audit, objects) as (made, _):
        made.create(
            make_pod("v", annotations={"scheduling.volcano.sh/queue-name": "a"}),
            make_pod("k", labels={"kai.scheduler/queue": "a"}),
            make_pod("q", labels={"quota.scheduling.koordinator.sh/name": "a"}),
        )
        await made.run_out()
        assert len(made.placements()) == 3


async def queues_come_from_config_maps(audit: Audit) -> None:
    """Those of the scheduler's namespace that have the label; they may change and go."""
    label, namespace = {"bayplan.dev/queue": "a"}, PROFILES.leader_election.resource_namespace

    def queue(most: int, labels: dict[str, str] = label, place: str = namespace) -> ConfigMap:
        return ConfigMap(
            ObjectMeta("a", namespace=place, labels=labels), {"maxCapacity": f"{{cpu: {most}}}"}
        )

    async with scheduling(audit, [make_node("n", cpu=8)]) as (made, app):
        made.create(queue(0, {}, namespace), queue(0, label, "default"))
        await made.run_out()
        assert [app.cache.get(ConfigMap, f"{n}/a") for n in (namespace, "default")] == [None, None]
        made.cluster.delete(ConfigMap, f"{namespace}/a")
        made.create(queue(1), *(make_pod(name, cpu=1, labels=label) for name in ("p", "q")))
        await made.run_out()
        assert len(made.placements()) == 1
        made.cluster.update(queue(2))
        await made.run_out()
        assert len(made.placements()) == 2
        made.create(make_pod("r", cpu=1, labels=label))
        made.cluster.update(queue(2, {}))
        await made.run_out()
        assert len(made.placements()) == 3


async def kueue_is_told_of_its_queues(audit: Audit) -> None:
    kueue = {ClusterQueue: ClusterQueueStatus(pending_workloads=1), Cohort: CohortStatus()}
    local = LocalQueue(ObjectMeta(name="a", namespace="default"), LocalQueueSpec("a"))
    queues = [type_(ObjectMeta(name="a")) for type_ in kueue]
    async with scheduling(audit, [make_node("n"), *queues, local]) as (made, app):
        answers: list[ClusterError | None] = []
        for type_, status in kueue.items():
            app.cluster.submit(PatchStatus(type_, "a", status), answers.append)
        write = PatchStatus(LocalQueue, "default/a", LocalQueueStatus(pending_workloads=1))
        app.cluster.submit(write, answers.append)
        await made.until(lambda: len(answers) == 3)
        assert answers == [None, None, None]


async def what_kueue_kept_is_released(audit: Audit) -> None:
    """Its manager has given back its Lease, and its objects are deleted."""
    kueue = "kueue.x-k8s.io/v1beta2"
    specs: dict[str, dict[str, Any]] = {
        "ClusterQueue": {"namespaceSelector": {}},
        "ResourceFlavor": {},
        "Topology": {"levels": [{"nodeLabel": "rack"}]},
        "AdmissionCheck": {"controllerName": "example.com/own"},
    }
    meta = {"name": "x", "finalizers": [IN_USE]}
    kept = [
        make_object({"apiVersion": kueue, "kind": kind, "metadata": meta, "spec": spec})
        for kind, spec in specs.items()
    ]
    given_back = Lease(ObjectMeta(name=MANAGER_LEASE, namespace="kueue-system"))
    async with scheduling(audit, [make_node("n"), given_back, *kept]) as (made, _):
        for one in kept:
            made.cluster.delete(type(one), "x")
        await made.until(lambda: not any(made.cluster.list(type(one)) for one in kept))


async def suspended_jobs_get_quota(audit: Audit) -> None:
    """One runs and is suspended again for another, and a gated pod takes its place."""
    label = {"kueue.x-k8s.io/queue-name": "lq"}
    kueue = "kueue.x-k8s.io/v1beta2"
    amounts = {"cpu": 1, "memory": "1Gi", "nvidia.com/gpu": 3}
    resources = [{"name": name, "nominalQuota": most} for name, most in amounts.items()]
    quota = {"name": "f", "resources": resources}
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": list(amounts), "flavors": [quota]}],
    }
    queues: list[dict[str, Any]] = [
        {"kind": "ResourceFlavor", "metadata": {"name": "f"}, "spec": {"nodeLabels": {"a": "b"}}},
        {"kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": spec},
        {"kind": "LocalQueue", "metadata": {"name": "lq"}, "spec": {"clusterQueue": "cq"}},
    ]
    objects = [make_object({"apiVersion": kueue, **one}) for one in queues]
    container = {"name": "c", "resources": {"requests": {"cpu": 1}}}

    def job(name: str, priority: int) -> ApiObject:
        template = {"spec": {"containers": [container], "priority": priority}}
        meta = {"name": name, "labels": label}
        content = {"suspend": True, "template": template}
        return make_object(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": content}
        )

    async with scheduling(audit, [make_node("n", cpu=4, gpu=4, labels={"a": "b"}), *objects]) as (
        made,
        _,
    ):
        made.create(job("low", 0))
        await made.run_out()
        assert len(made.placements()) == 1
        made.create(job("high", 10))
        await made.run_out()
        assert {one.metadata.name: one.spec.suspend for one in made.cluster.list(Job)} == {
            "low": True,
            "high": False,
        }
        low = made.cluster.get(Job, "default/low")
        assert low is not None
        spec = structs.replace(low.spec, parallelism=2)
        made.cluster.update(structs.replace(low, spec=spec))
        await made.run_out()
        counts = [one.spec.pod_sets[0].count for one in made.cluster.list(KueueWorkload)]
        assert sorted(counts) == [1, 2]
        for name in ("low", "high"):
            made.cluster.delete(Job, f"default/{name}")
        made.create(make_object(runtime()))
        for kind in sorted(SUSPENDED.keys() - {"Job"}):
            made.create(make_object(suspended_content(kind, "x")))
            await made.run_out()
            running = next(
                found
                for type_ in queued_kinds()
                for found in made.cluster.list(type_)
                if type_.__name__ == kind
            )
            assert not queued_job(running).suspended, kind
            made.cluster.delete(type(running), "default/x")
            await made.run_out()
        gate = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
        made.create(make_pod("gated", cpu=1, memory=None, labels=label, spec=gate))
        await made.run_out()
        assert made.placements() == {"default/gated": "n"}


async def elastic_jobs_are_resized(audit: Audit) -> None:
    """Each starts at its minimum or grows, and then makes room for a pod."""
    profile = yaml.safe_load(only("ConfigMap")["data"]["config.yaml"])
    # Objects have real times here, while those of the cluster are virtual.
    arguments = {"name": "Resizer", "args": {"notice": 0, "shrinkAfter": 0, "growAfter": 0}}
    profile["profiles"] = [{"schedulerName": "default-scheduler", "pluginConfig": [arguments]}]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "profile.yaml")
        path.write_text(json.dumps(profile))
        profiles = load_profiles(path)
    node = make_node("n", cpu=64, gpu=8)
    async with scheduling(audit, [node], profiles) as (made, _):
        for content in ELASTIC.values():
            elastic = make_object(content())
            made.create(elastic)
            await made.run_out()
            made.create(make_pod("other", gpu=5))
            await made.passes(lambda: "default/other" in made.placements())
            made.cluster.delete(type(elastic), "default/a")
            made.cluster.delete(Pod, "default/other", grace=0)
            await made.run_out()


async def nccl_is_told_in_config_maps(audit: Audit) -> None:
    profile = yaml.safe_load(only("ConfigMap")["data"]["config.yaml"])
    arguments = {"name": "GPUTopology", "args": {"nccl": "configMap"}}
    profile["profiles"] = [{"schedulerName": "bayplan", "pluginConfig": [arguments]}]
    labels = {"bayplan.dev/machine": "dgx-1v"}
    nodes = [make_node("n", cpu=64, memory="512Gi", labels=labels, gpu=8)]
    path = Path("profile.yaml")
    async with scheduling(audit, nodes) as (made, first):
        path = made.folder / "profile.yaml"
        path.write_text(json.dumps(profile))
        await made.stop(first)
        await made.start(load_profiles(path))
        # Its answer gets lost, so that it is there already at the second attempt.
        made.server.faults.close(1, "create", "configmaps", after=True)
        made.create(make_pod("p", gpu=4, spec={"schedulerName": "bayplan"}))
        await made.run_out()
        assert made.placements() == {"default/p": "n"}


async def nodes_are_asked_for(audit: Audit) -> None:
    """A gang has a request while it waits, half a GPU a stand-in, and a check is active."""
    profiles = load_profiles(ROOT / "configs" / "profiles" / "autoscaling.yaml")
    check = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": "nodes"},
        "spec": {"controllerName": "kueue.x-k8s.io/provisioning-request"},
    }
    queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "cq"},
        "spec": {"namespaceSelector": {}},
    }
    objects = [make_node("n"), make_object(check), make_object(queue), make_gang("g", 2)]
    spaces = [one for one in documents(DEPLOY / "autoscaling.yaml") if one["kind"] == "Namespace"]
    objects += [make_object(one) for one in spaces]
    async with scheduling(audit, objects, profiles) as (made, _):
        for index in range(2):
            made.create(make_pod(f"g-{index}", gang="g", gpu=8))
        made.create(make_pod("half", annotations={"gpu-fraction": "0.5"}))
        await made.run_out()
        assert len(made.cluster.list(ProvisioningRequest)) == 1
        (check_now,) = made.cluster.list(AdmissionCheck)
        assert [one.type for one in check_now.status.conditions] == ["Active"]
        assert any(map(is_stand_in, made.cluster.list(Pod)))
        made.create(make_node("a", gpu=8), make_node("b", gpu=8))
        await made.passes(lambda: not made.cluster.list(ProvisioningRequest))
        made.cluster.delete(Pod, "default/half", grace=0)
        await made.passes(lambda: not any(map(is_stand_in, made.cluster.list(Pod))))
        assert made.cluster.list(StoredPodTemplate) == []


async def reservations_are_kept_and_end(audit: Audit) -> None:
    """A reservation gets a GPU, is used by its owner, and is deleted when it was over for long."""
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    one = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "r"},
        "spec": {
            "owners": [{"labelSelector": {"matchLabels": {"app": "own"}}}],
            "template": {"spec": {"containers": [container], "schedulerName": "bayplan"}},
            "ttl": "0s",
        },
    }
    labels = {"bayplan.dev/machine": "dgx-h100"}
    objects = [make_node("n", gpu=8, labels=labels), make_object(one)]
    config = yaml.safe_load((ROOT / "configs" / "profiles" / "default.yaml").read_text())
    own = {"name": "Reservation", "args": {"gcDurationSeconds": 0}}
    config["profiles"][0].setdefault("pluginConfig", []).append(own)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.yaml"
        path.write_text(yaml.safe_dump(config))
        profiles = load_profiles(path)
    async with scheduling(audit, objects, profiles) as (made, _):
        await made.run_out()
        (found,) = made.cluster.list(Reservation)
        assert found.status.node_name == "n"
        pod = make_pod("own", gpu=1, labels={"app": "own"}, spec={"schedulerName": "bayplan"})
        made.create(pod)
        await made.passes(lambda: not made.cluster.list(Reservation))
        assert made.placements() == {"default/own": "n"}


async def what_moves_gets_a_reservation(audit: Audit) -> None:
    """A pod that leaves before a maintenance has its room kept elsewhere."""
    config = yaml.safe_load((ROOT / "configs" / "profiles" / "default.yaml").read_text())
    (profile, *_) = config["profiles"]
    own = {"name": "Reservation", "args": {"reserveForMovedPods": True}}
    profile.setdefault("pluginConfig", []).append(own)
    multi = profile.setdefault("plugins", {}).setdefault("multiPoint", {})
    multi.setdefault("enabled", []).append({"name": "Recovery"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.yaml"
        path.write_text(yaml.safe_dump(config))
        profiles = load_profiles(path)
    spec = {"schedulerName": "bayplan"}
    pod = make_pod("web", node="old", owner="ReplicaSet/web", spec=spec)
    at = {"bayplan.dev/maintenance-at": rfc3339(time.time() + 3600)}
    objects = [make_node("old", annotations=at), make_node("new"), pod]
    async with scheduling(audit, objects, profiles) as (made, _):
        await made.passes(lambda: bool(made.cluster.list(Reservation)))
        (kept,) = made.cluster.list(Reservation)
        assert kept.metadata.name.startswith("moved-")


async def replicas_come_and_go(audit: Audit) -> None:
    """Each replica of a LeaderWorkerSet has a Workload, as long as there is such a replica."""
    quota = {"name": "f", "resources": [{"name": "cpu", "nominalQuota": 4}]}
    groups = [{"coveredResources": ["cpu"], "flavors": [quota]}]
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": 1}}}
    template = {"spec": {"containers": [container], "schedulerName": "bayplan"}}
    kueue = "kueue.x-k8s.io/v1beta2"
    contents: list[dict[str, Any]] = [
        {"kind": "ResourceFlavor", "metadata": {"name": "f"}, "spec": {}},
        {
            "kind": "ClusterQueue",
            "metadata": {"name": "cq"},
            "spec": {"namespaceSelector": {}, "resourceGroups": groups},
        },
        {"kind": "LocalQueue", "metadata": {"name": "lq"}, "spec": {"clusterQueue": "cq"}},
    ]
    replicas = make_object(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "s", "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
            "spec": {
                "replicas": 2,
                "leaderWorkerTemplate": {"size": 1, "workerTemplate": template},
            },
        }
    )
    objects = [make_object({"apiVersion": kueue, **one}) for one in contents]
    async with scheduling(audit, [make_node("n", cpu=4), *objects]) as (made, _):
        made.create(replicas)
        await made.passes(lambda: len(made.cluster.list(KueueWorkload)) == 2)
        found = made.cluster.get(LeaderWorkerSet, "default/s")
        assert found is not None
        made.cluster.update(structs.replace(found, spec={**found.spec, "replicas": 1}))
        await made.passes(lambda: len(made.cluster.list(KueueWorkload)) == 1)


async def one_leads(audit: Audit) -> None:
    """The Lease is made, held and given back, and others' tokens are looked at."""
    profiles = replace(default_profiles(), leader_election=PROFILES.leader_election)
    objects = [make_node("n"), make_object(only("Namespace"))]
    async with scheduling(audit, objects, profiles, leader_elect=True) as (made, app):
        await made.until(app.leads)
        assert await TokenReviews(app.transport).allows("admin", "/metrics")
        made.create(make_pod("p"))
        await made.until(lambda: made.placements() == {"default/p": "n"})
        await made.stop(app)


@pytest.fixture(scope="module")
def audit() -> Audit:
    """What the scheduler asked for in all that it does."""
    found = Audit()
    try:
        asyncio.run(do_everything(found))
    finally:
        # Says more than that a scenario came to nothing.
        assert found.refused == []
    return found


async def do_everything(found: Audit) -> None:
    """Let schedulers do everything that they need permissions for."""
    await ends(found, EXAMPLES / "must-gather-preempt", bound=6)
    for name, bound in (
        ("scheduler-plugins-gang", 2),
        ("volcano-hard-tier-2", 3),
        ("kai-packed-spine", 3),
        ("kubernetes-gang-with-topology-key", 3),
        ("kubernetes-local-volumes", 2),
        ("kubernetes-volume-zones", 2),
    ):
        await ends(found, CASES / name / "manifests.yaml", bound=bound)
    for scenario in (
        a_pod_is_refused_twice,
        answers_get_lost,
        devices_come_by_resource_name,
        crds_have_no_status_subresource,
        queues_say_what_they_have,
        a_pod_gang_says_how_far_it_is,
        queues_come_from_config_maps,
        kueue_is_told_of_its_queues,
        what_kueue_kept_is_released,
        suspended_jobs_get_quota,
        elastic_jobs_are_resized,
        nccl_is_told_in_config_maps,
        a_gpu_is_shared,
        nodes_are_asked_for,
        reservations_are_kept_and_end,
        what_moves_gets_a_reservation,
        replicas_come_and_go,
        one_leads,
    ):
        await scenario(found)


def test_nothing_that_the_scheduler_asks_for_is_refused(audit: Audit) -> None:
    assert audit.used
    assert audit.refused == []


def test_every_permission_is_used(audit: Audit) -> None:
    rules = [*only("ClusterRole")["rules"], *only("Role")["rules"]]
    for name in MORE_ROLES:
        rules += only("ClusterRole", documents(DEPLOY / name))["rules"]
    granted = permissions(*rules)
    assert granted - audit.used - NOT_EXERCISED == set()
    assert granted >= NOT_EXERCISED


async def test_a_request_that_the_role_does_not_allow_is_noticed() -> None:
    audit = Audit()

    async with scheduling(audit, [make_node("n")]) as (_, app):
        with pytest.raises(ClusterError):
            await app.transport.request("GET", "/api/v1/namespaces/kube-system/secrets")
    assert audit.refused == [("list", "", "secrets", "kube-system", "")]


async def test_the_status_of_a_group_that_is_gone_is_not_tried_on_the_group() -> None:
    audit = Audit()

    async with scheduling(audit, [make_node("n")]) as (made, app):
        answers: list[ClusterError | None] = []
        write = PatchStatus(VolcanoPodGroup, "default/gone", ConditionedStatus("Running"))
        app.cluster.submit(write, answers.append)
        await made.until(lambda: answers)
        assert answers[0] is not None
        group = "scheduling.volcano.sh"
        assert made.server.calls["patch", group, "podgroups/status", True] == 1
        assert made.server.calls["patch", group, "podgroups", True] == 0
