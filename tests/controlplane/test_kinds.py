"""Kinds of workloads on a real API server: the examples, and a kind that a user adds."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.controlplane.installation import path_of, upstream_definitions
from tests.controlplane.live_cluster import PODS, LiveCluster
from tests.controlplane.plane import wait_until
from tests.controlplane.process import PROFILE, Scheduler
from tests.controlplane.story_builders import asking, nodes
from tests.live.deployed import SCHEDULER
from tests.paths import ROOT

from bayplan.api import KINDS

EXAMPLES = sorted(
    path for path in (ROOT / "configs" / "examples" / "kinds").iterdir() if path.stem != "nodes"
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_accepted_by_the_definition_of_its_kind(
    path: Path, real: LiveCluster
) -> None:
    for content in yaml.safe_load_all(path.read_text()):
        group = content["apiVersion"].rpartition("/")[0]
        if "." in group:
            kind = KINDS[group, content["kind"]]
            if f"{kind.plural}.{group}" not in upstream_definitions():
                pytest.skip("no definition of the kind's own project on this machine")
        strict = {"dryRun": "All", "fieldValidation": "Strict"}
        answer = real.client.post(path_of(content, name=False), content, **strict)
        assert answer.code == 201, answer.text


GROUP = "training.example.com"
TRAININGS = f"/apis/{GROUP}/v1/namespaces/default/trainings"
PLAIN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"trainings.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "Training", "plural": "trainings", "singular": "training"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": PLAIN}}},
            }
        ],
    },
}
ROW = {
    "group": GROUP,
    "kind": "Training",
    "version": "v1",
    "pods": [{"role": "worker", "template": "spec.template", "count": ["spec.workers"]}],
}
RIGHT = {"apiGroups": [GROUP], "resources": ["trainings"], "verbs": ["list", "watch"]}
META = {"name": "bayplan-trainings"}
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def test_pods_of_a_kind_that_a_user_added_go_together(real: LiveCluster, tmp_path: Path) -> None:
    client = real.client
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    role = {"kind": "ClusterRole", "name": META["name"], "apiGroup": "rbac.authorization.k8s.io"}
    subject = {"kind": "ServiceAccount", "name": SCHEDULER, "namespace": "bayplan-system"}
    binding = {"metadata": META, "roleRef": role, "subjects": [subject]}
    assert client.post(definitions, CRD).code == 201
    assert client.post(f"{RBAC}/clusterroles", {"metadata": META, "rules": [RIGHT]}).code == 201
    assert client.post(f"{RBAC}/clusterrolebindings", binding).code == 201
    wait_until(lambda: client.get(TRAININGS).code == 200, "trainings are served")
    profile = tmp_path / "rows.yaml"
    content = yaml.safe_load(PROFILE.read_text())
    profile.write_text(yaml.safe_dump({**content, "workloadKinds": [ROW]}))
    scheduler = Scheduler(real.kubeconfig, tmp_path, profile)
    scheduler.start()
    try:
        real.apply(nodes(1))
        spec = {"workers": 9, "template": {"spec": asking("x")["spec"]}}
        made = {"apiVersion": f"{GROUP}/v1", "kind": "Training", "metadata": {"name": "llm"}}
        owner = client.post(TRAININGS, {**made, "spec": spec}).json
        reference = {key: owner[key] for key in ("apiVersion", "kind")}
        reference |= {"name": "llm", "uid": owner["metadata"]["uid"], "controller": True}
        for index in range(9):
            pod = asking(f"llm-{index}", schedulerName="bayplan")
            pod["metadata"]["ownerReferences"] = [reference]
            real.apply([pod])
        wait_until(lambda: len(refused(real)) == 9, "all are refused")
        assert "8 of the 9 members it needs" in refused(real)["llm-0"]
        real.apply(nodes(2)[1:])
        wait_until(lambda: len(real.placements()) == 9, "all have nodes")
    finally:
        scheduler.stop()
        client.delete(f"{definitions}/trainings.{GROUP}")
        client.delete(f"{RBAC}/clusterroles/{META['name']}")
        client.delete(f"{RBAC}/clusterrolebindings/{META['name']}")
    assert scheduler.problems() == []


def refused(cluster: LiveCluster) -> dict[str, str]:
    """Return why pods have no node, by name."""
    return {
        pod["metadata"]["name"]: one.get("message", "")
        for pod in cluster.items(PODS)
        for one in pod["status"].get("conditions", ())
        if one["type"] == "PodScheduled" and one["status"] == "False"
    }
