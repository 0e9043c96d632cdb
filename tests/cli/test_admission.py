"""The policies that configs hold, and the facts that a cluster has."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.paths import ROOT

from bayplan.admission import facts_of
from bayplan.api import KINDS, ApiObject, Kind, LocalQueue, ObjectMeta, Topology
from bayplan.api.network import TopologyLevel, TopologySpec
from bayplan.cli.admission import command
from bayplan.testing import make_node

PROFILE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: bayplan
  pluginConfig:
  - name: Queues
    args: {kueue: {managedJobsNamespaceSelector: {matchLabels: {team: a}}}}
"""
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_the_policies_of_configs_are_what_the_command_prints() -> None:
    printed = CliRunner().invoke(command, ["policies"]).output
    assert (ROOT / "configs" / "admission" / "policies.yaml").read_text() == printed


def test_a_profile_says_in_which_namespaces_jobs_wait_for_queues(tmp_path: Path) -> None:
    (tmp_path / "profile.yaml").write_text(PROFILE)
    done = CliRunner().invoke(command, ["policies", "--config", str(tmp_path / "profile.yaml")])
    selectors = {
        one["metadata"]["name"]: one["spec"]["matchConstraints"]["namespaceSelector"]
        for one in yaml.safe_load_all(done.output)
        if one["kind"].endswith("AdmissionPolicy")
        and "namespaceSelector" in one["spec"]["matchConstraints"]
    }
    bound = {name for name, one in selectors.items() if one.get("matchLabels") == {"team": "a"}}
    assert {name for name in bound if "suspend" in name} == {n for n in selectors if "suspend" in n}
    assert bound >= {"bayplan-default-queue", "bayplan-managedby", "bayplan-changes-suspend"}
    assert "bayplan-scheduler-name" not in bound
    hidden = {"key": "kubernetes.io/metadata.name", "operator": "NotIn"}
    assert all(hidden.items() <= one["matchExpressions"][0].items() for one in selectors.values())


@pytest.mark.parametrize(("frameworks", "said"), [("[batch/job, pod]", True), ("[pods]", False)])
def test_a_profile_says_whether_pods_wait_for_queues(
    tmp_path: Path, frameworks: str, said: bool
) -> None:
    text = PROFILE.replace(
        "{team: a}}", f"{{team: a}}}}, integrations: {{frameworks: {frameworks}}}"
    )
    (tmp_path / "profile.yaml").write_text(text)
    done = CliRunner().invoke(command, ["policies", "--config", str(tmp_path / "profile.yaml")])
    # What a policy asks besides, of pods whose owner has them wait, holds in any case.
    found = {
        one["metadata"]["name"]: condition["expression"].partition(" || ")[0]
        for one in yaml.safe_load_all(done.output)
        for condition in one["spec"].get("matchConditions", ())
        if condition["name"] in ("pods-are-an-integration", "pods-are-queued")
    }
    expected = "true" if said else "false"
    assert found == dict.fromkeys(
        ("bayplan-default-local-queue-of-pods", "bayplan-gated-pods"), expected
    )


@pytest.mark.parametrize(
    ("option", "of"),
    [("--namespace", "namespace"), ("--scheduler", "scheduler"), ("--resource", "resource")],
)
@pytest.mark.parametrize("text", ["a' || 'b", "-a", "a\n", ""])
def test_what_is_no_name_never_becomes_part_of_an_expression(
    option: str, of: str, text: str
) -> None:
    done = CliRunner().invoke(command, ["policies", option, text])
    assert done.exit_code == 2
    assert f'"{text}" is not the name of a {of}' in done.output


def data(objects: dict[Kind, list[ApiObject]]) -> dict[str, str]:
    content = facts_of(objects, "bayplan-system", NOW)
    found: dict[str, str] = content["data"]
    return found


def test_a_domain_has_what_its_nodes_have_together_and_the_largest_counts() -> None:
    nodes = [make_node(f"n-{i}", gpu=8 - i, labels={"rack": f"r-{i // 2}"}) for i in range(4)]
    levels = TopologySpec((TopologyLevel("rack"), TopologyLevel("kubernetes.io/hostname")))
    topology = Topology(ObjectMeta(name="t"), levels)
    found = data({KINDS["", "Node"]: nodes, KINDS["kueue.x-k8s.io", "Topology"]: [topology]})
    assert found["capacity"].splitlines() == [
        "nvidia.com/gpu kubernetes.io/hostname 8",
        "nvidia.com/gpu rack 15",
    ]
    assert found["levels"].splitlines() == ["kubernetes.io/hostname", "rack"]
    assert found["readAt"] == "2026-01-02T03:04:05+00:00"


def test_queues_are_named_with_their_namespaces() -> None:
    queues = [LocalQueue(ObjectMeta(name=name, namespace="team")) for name in ("b", "a")]
    found = data({KINDS["kueue.x-k8s.io", "LocalQueue"]: [*queues]})
    assert found["localQueues"] == "team/a\nteam/b"


def test_an_empty_cluster_has_no_facts_but_nodes_of_their_own() -> None:
    assert data({})["levels"] == "kubernetes.io/hostname"
    assert data({})["capacity"] == ""
