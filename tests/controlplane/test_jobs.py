"""bayplan jobs on a real API server: with the rights of the one who asks, and no more."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from tests.controlplane.live_cluster import LiveCluster
from tests.controlplane.plane import ControlPlane
from tests.controlplane.queue_builders import head, suspended_job
from tests.controlplane.story_builders import asking, nodes

from bayplan.cli import cli


def listed(kubeconfig: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["jobs", "--kubeconfig", str(kubeconfig), *words])
    return done.exit_code, done.stdout or str(done.exception)


async def test_jobs_are_listed_with_state_nodes_and_reason(
    plane: ControlPlane, real: LiveCluster
) -> None:
    job = head("batch/v1", "Job", "train")
    spec = {**asking("train", 3)["spec"], "schedulerName": "bayplan", "restartPolicy": "Never"}
    job["spec"] = {"parallelism": 2, "completions": 2, "template": {"spec": spec}}
    waiting = asking("large", 9, schedulerName="bayplan")
    async with real.scheduler():
        real.apply([*nodes(1), job, waiting, *suspended_job("held", "none", 4)])

        def lines() -> dict[str, Any]:
            code, text = listed(plane.kubeconfig, "-o", "json")
            assert code == 0, text
            return {one["job"]: one for one in json.loads(text)}

        def settled() -> bool:
            found = lines()
            runs = found.get("default/train", {}).get("running") == 2
            return runs and "Insufficient" in found["default/large"]["reason"]

        async with asyncio.timeout(60):
            while not await asyncio.to_thread(settled):
                await asyncio.sleep(0.1)
        found = await asyncio.to_thread(lines)
        assert list(found) == ["default/train", "default/held", "default/large"]
        assert (found["default/train"]["state"], found["default/train"]["nodes"]) == (
            "Running",
            ["n0"],
        )
        assert found["default/held"] | {"seconds": 0} == {
            "job": "default/held",
            "state": "Pending",
            "running": 0,
            "pods": 4,
            "gpus": 0,
            "seconds": 0,
            "nodes": [],
            "reason": "Suspended",
        }
        code, text = await asyncio.to_thread(listed, plane.kubeconfig)
        assert code == 0
        assert [line.split()[:3] for line in text.splitlines()[1:4]] == [
            ["train", "Running", "2/2"],
            ["held", "Pending", "0/4"],
            ["large", "Pending", "0/1"],
        ]


def test_who_may_not_list_pods_is_told_so(
    plane: ControlPlane, real: LiveCluster, tmp_path: Path
) -> None:
    account = head("v1", "ServiceAccount", "nobody")
    plane.client.post("/api/v1/namespaces/default/serviceaccounts", account)
    path = "/api/v1/namespaces/default/serviceaccounts/nobody/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    content = yaml.safe_load(plane.kubeconfig.read_text())
    token = plane.client.post(path, body).json["status"]["token"]
    content["users"][0]["user"] = {"token": token}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(content))
    code, text = listed(tmp_path / "kubeconfig")
    assert code != 0
    assert 'cannot list resource "pods"' in text
