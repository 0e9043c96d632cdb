"""The chart makes what configs/deploy makes, and says what is wrong with values."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import yaml
from tests.chart.helm import CHART, Helm, Values
from tests.live.deployed import CRDS, DEPLOY, OF_SCHEDULER, Content, documents, manifests
from tests.paths import ROOT

from bayplan.admission import Defaults, mutating_policies, validating_policies

ALL = {
    "driver": {"enabled": True},
    "pools": {"enabled": True},
    "monitoring": {"enabled": True},
    "admission": {"enabled": True},
    "roles": {
        "kueueJobs": True,
        "queueGates": True,
        "resizer": True,
        "autoscaling": True,
        "failureRecovery": True,
        "gpuSharing": True,
        "ncclConfigMaps": True,
        "deviceConfigs": [
            {"namespace": "kube-system", "name": "hami-scheduler-device"},
            {"namespace": "gpu-operator", "name": "device-plugin-config"},
        ],
    },
}
"""Values with all that is off by default."""
ADDED = (
    *("app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"),
    *("helm.sh/chart", "helm.sh/resource-policy", "bayplan.dev/config-checksum"),
)
"""Labels and annotations that only the chart has."""
ADMISSION = ROOT / "configs" / "admission"
NEWEST = ("--kube-version", "1.36.0")


def plain(content: Content) -> Content:
    """Return an object without what only charts have, and texts in YAML as values."""
    found = deepcopy(content)
    template = found.get("spec", {}).get("template", {})
    for metadata in (found["metadata"], template.get("metadata", {})):
        for field in ("labels", "annotations"):
            kept = {k: v for k, v in metadata.pop(field, {}).items() if k not in ADDED}
            metadata |= {field: kept} if kept else {}
    template = (
        found.get("spec", {}).get("jobTemplate", {}).get("spec", {}).get("template", template)
    )
    pod = template.get("spec", {})
    for container in [*pod.get("containers", ()), *pod.get("initContainers", ())]:
        container.pop("imagePullPolicy", None)
    if "config.yaml" in found.get("data", {}):
        found["data"]["config.yaml"] = yaml.safe_load(found["data"]["config.yaml"])
    return found


def by_name(contents: Iterable[Content]) -> dict[tuple[str, str, str], Any]:
    """Return objects by kind, namespace and name; none twice."""
    found: dict[tuple[str, str, str], Any] = {}
    for content in contents:
        metadata = content["metadata"]
        key = (content["kind"], metadata.get("namespace", ""), metadata["name"])
        assert key not in found, key
        found[key] = plain(content)
    return found


def without_namespace(contents: Iterable[Content]) -> list[Content]:
    """Leave out the namespace of the release, which helm makes."""
    return [
        one
        for one in contents
        if (one["kind"], one["metadata"]["name"]) != ("Namespace", "bayplan-system")
    ]


def test_by_default_the_chart_makes_the_scheduler_of_configs_deploy_and_the_kinds(
    helm: Helm,
) -> None:
    expected = [*without_namespace(OF_SCHEDULER), *documents(*manifests(CRDS))]
    assert by_name(helm.render()) == by_name(expected)


def test_with_all_values_the_chart_makes_all_of_configs_deploy(helm: Helm) -> None:
    monitoring = [
        DEPLOY / "monitoring" / f"{n}.yaml" for n in ("prometheus-rule", "service-monitor")
    ]
    expected = documents(*manifests(DEPLOY), *manifests(CRDS), *monitoring, *manifests(ADMISSION))
    made = by_name(helm.render(ALL, *NEWEST))
    dashboards = made.pop(("ConfigMap", "bayplan-system", "bayplan-dashboard"))
    assert made == by_name(without_namespace(expected))
    files = {path.name: path.read_text() for path in (DEPLOY / "monitoring").glob("*.json")}
    assert {n: text.strip() for n, text in dashboards["data"].items()} == {
        n: text.strip() for n, text in files.items()
    }


@pytest.mark.parametrize(
    ("folder", "value"),
    [("usage-journal", "usageJournal"), ("visibility", "visibility"), ("tenants", "tenants")],
)
def test_a_value_makes_what_a_kustomization_of_its_own_makes(
    helm: Helm, folder: str, value: str
) -> None:
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("there is no kubectl")
    command = [kubectl, "kustomize", str(ROOT / "configs" / folder)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    values = {"scheduler": {value: {"enabled": True}}, "crds": {"own": False, "others": False}}
    expected = without_namespace(yaml.safe_load_all(text))
    assert by_name(helm.render(values)) == by_name(expected)


def test_a_value_sends_jobs_to_other_clusters(helm: Helm) -> None:
    values = {"multikueue": {"enabled": True}, "crds": {"own": False, "others": False}}
    manager = ROOT / "configs" / "multikueue" / "manager.yaml"
    expected = without_namespace([*OF_SCHEDULER, *documents(manager)])
    assert by_name(helm.render(values)) == by_name(expected)


def test_a_proxy_that_signs_tenants_on_is_known_by_a_certificate(helm: Helm) -> None:
    proxy = {"caSecretName": "sign-on", "name": "oauth2-proxy"}
    values = {"scheduler": {"tenants": {"enabled": True, "proxy": proxy}}}
    made = by_name(helm.render(values))
    pod = made["Deployment", "bayplan-system", "bayplan-scheduler"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "--tenant-proxy-name=oauth2-proxy" in container["args"]
    assert "--tenant-user-header=X-Remote-User" in container["args"]
    mounted = {"name": "tenant-proxy", "mountPath": "/tenant-proxy", "readOnly": True}
    assert mounted in container["volumeMounts"]
    secret = {"secretName": "sign-on", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    assert {"name": "tenant-proxy", "secret": secret} in pod["volumes"]
    del proxy["name"]
    with pytest.raises(AssertionError, match=r"give scheduler\.tenants\.proxy\.name"):
        helm.render(values)


def test_traces_go_where_a_value_says(helm: Helm) -> None:
    values = {"scheduler": {"tracesEndpoint": "http://collector:4318/v1/traces"}}
    made = by_name(helm.render(values))
    pod = made["Deployment", "bayplan-system", "bayplan-scheduler"]["spec"]["template"]["spec"]
    assert "--traces-endpoint=http://collector:4318/v1/traces" in pod["containers"][0]["args"]


def test_a_journal_in_postgresql_takes_its_address_from_a_secret(helm: Helm) -> None:
    journal = {"enabled": True, "postgresSecretName": "usage"}
    made = by_name(helm.render({"scheduler": {"usageJournal": journal}}))
    deployment = made["Deployment", "bayplan-system", "bayplan-scheduler"]
    assert deployment["spec"]["replicas"] == 2
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--usage-journal=$(USAGE_JOURNAL)" in container["args"]
    source = {"secretKeyRef": {"name": "usage", "key": "url"}}
    assert {"name": "USAGE_JOURNAL", "valueFrom": source} in container["env"]
    assert not any(kind == "PersistentVolumeClaim" for kind, _, _ in made)


def test_another_namespace_is_written_everywhere(helm: Helm) -> None:
    other = replace(helm, namespace="batch")
    found = other.run("template", "bayplan", str(CHART), *NEWEST, values=ALL)
    assert "bayplan-system" not in found
    assert "system:serviceaccount:batch:bayplan-dra-driver" in found


def test_no_kind_and_no_journal_is_deleted_with_the_release(helm: Helm) -> None:
    values = {"scheduler": {"usageJournal": {"enabled": True}}, "roles": {"gpuSharing": True}}
    kept = {
        (one["kind"], one["metadata"]["name"])
        for one in helm.render(values)
        if one["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    }
    kinds = {
        ("CustomResourceDefinition", one["metadata"]["name"]) for one in documents(*manifests(CRDS))
    }
    others = {("PersistentVolumeClaim", "bayplan-usage"), ("Namespace", "kai-resource-reservation")}
    assert kept == kinds | others


def test_another_profile_rolls_the_replicas(helm: Helm) -> None:
    def checksum(values: Values) -> str:
        (one,) = (one for one in helm.render(values) if one["kind"] == "Deployment")
        found: str = one["spec"]["template"]["metadata"]["annotations"][
            "bayplan.dev/config-checksum"
        ]
        return found

    other = {"scheduler": {"profiles": [{"schedulerName": "other"}]}}
    assert checksum({}) == checksum({"image": {"tag": "0.2.0"}}) != checksum(other)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"scheduler": {"replica": 2}}, r"\breplica'? (is )?not allowed"),
        ({"scheduler": {"replicas": "two"}}, r"\bscheduler[./]replicas\b"),
        ({"scheduler": {"replicas": 0}}, r"\bscheduler[./]replicas\b"),
        ({"scheduler": {"profiles": []}}, r"\bscheduler[./]profiles\b"),
        ({"scheduler": {"resources": {"limits": {"memory": "2 GB"}}}}, r"\blimits[./]memory\b"),
        ({"roles": {"kueueJobs": "yes"}}, r"\broles[./]kueueJobs\b"),
        (
            {"roles": {"deviceConfigs": [{"name": "x"}]}},
            "missing property 'namespace'|namespace is required",
        ),
        ({"image": {"tag": "a b"}}, r"\bimage[./]tag\b"),
        (
            {"scheduler": {"enabled": False}},
            "nothing to install: enable scheduler, driver or pools",
        ),
        (
            {"scheduler": {"replicas": 2, "usageJournal": {"enabled": True}}},
            "scheduler.replicas is 2, and scheduler.usageJournal is a file, which has one writer",
        ),
        (
            {"scheduler": {"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]}},
            "two profiles for schedulerName a",
        ),
        ({"scheduler": {"config": {"profiles": []}}}, "they belong in scheduler.profiles"),
        (
            {"scheduler": {"config": {"leaderElection": {"resourceName": "x"}}}},
            "the role allows the one that the chart names",
        ),
    ],
    ids=str,
)
def test_wrong_values_are_refused_with_their_place(helm: Helm, values: Values, said: str) -> None:
    done = helm.attempt("template", "bayplan", str(CHART), values=values)
    assert done.returncode == 1
    # Versions of helm spell places and rules of the schema differently.
    assert re.search(said, done.stderr), done.stderr
    assert done.stdout == ""


def test_values_say_which_resources_are_for_which_scheduler(helm: Helm) -> None:
    given = {"enabled": True, "resources": ["nvidia.com/gpumem"], "schedulerName": "gpus"}
    made = by_name(helm.render({"admission": given}, *NEWEST))
    defaults = Defaults(scheduler="gpus", resources=("nvidia.com/gpumem",))
    expected = [*mutating_policies(defaults), *validating_policies(defaults)]
    assert by_name(expected).items() <= made.items()


def test_which_jobs_and_pods_wait_for_queues_is_what_the_profile_says(helm: Helm) -> None:
    selector = {
        "matchLabels": {"team": "vision"},
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}],
    }
    kueue = {"managedJobsNamespaceSelector": selector, "integrations": {"frameworks": ["pod"]}}
    queues = {"name": "Queues", "args": {"kueue": kueue}}
    profiles = [{"schedulerName": "bayplan", "pluginConfig": [queues]}]
    values = {"admission": {"enabled": True}, "scheduler": {"profiles": profiles}}
    made = by_name(helm.render(values, *NEWEST))
    defaults = Defaults(queued=selector, pods=True)
    expected = by_name([*mutating_policies(defaults), *validating_policies(defaults)])
    assert expected.items() <= made.items()


def test_policies_are_refused_on_an_old_cluster(helm: Helm) -> None:
    old = ("--kube-version", "1.35.0")
    done = helm.attempt(
        "template", "bayplan", str(CHART), *old, values={"admission": {"enabled": True}}
    )
    assert "admission.enabled needs Kubernetes 1.36 or newer" in done.stderr


def test_the_driver_is_refused_on_an_old_cluster(helm: Helm) -> None:
    values = {"driver": {"enabled": True}}
    old = ("--kube-version", "1.33.1")
    done = helm.attempt("template", "bayplan", str(CHART), *old, values=values)
    assert "driver.enabled needs Kubernetes 1.34 or newer" in done.stderr


@pytest.mark.parametrize("values", [{}, ALL], ids=["default", "all"])
def test_the_chart_has_nothing_to_be_warned_of(helm: Helm, values: Values) -> None:
    found = helm.run("lint", "--strict", str(CHART), *NEWEST, values=values)
    assert "1 chart(s) linted, 0 chart(s) failed" in found
    assert "[WARNING]" not in found


def test_a_package_holds_what_the_chart_links_to(helm: Helm) -> None:
    helm.run("package", str(CHART), "--destination", str(helm.folder))
    (package,) = helm.folder.glob("bayplan-*.tgz")
    text = helm.run("template", "bayplan", str(package), values={})
    assert by_name(filter(None, yaml.load_all(text, yaml.CSafeLoader))) == by_name(helm.render())
