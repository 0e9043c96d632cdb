"""Record what a real kube-scheduler decides on random worlds, one JSON object a line.

``python -m tests.conformance.record_worlds KUBECONFIG --theme plain --seeds 1000 1300 > FILE``
needs an empty cluster with kube-scheduler and kube-controller-manager but without kubelets, for
bound pods may exceed their nodes. The theme ``profiles`` needs a kube-scheduler with the profiles
of ``profiles.yaml``. ``pytest tests/conformance --world-vectors FILE`` compares
bayplan with it.

Each step creates a pod and waits for the answer: ``node``; or ``message`` of the PodScheduled
condition, ``nominated`` and ``victims``, after which the pod is deleted, and after a nomination the
world ends; or ``refused`` by the API server; or ``failed`` when kube-scheduler reports an error of
its own; or ``timeout``. ``objects`` of a step are the volumes, claims and budgets as they are just
before it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "cluster" / "apiserver")]

from tests.cluster.apiserver.faces import Answer, Client, client_of  # noqa: E402
from tests.conformance.random_worlds import NAMESPACE, THEMES, random_world  # noqa: E402

Content = dict[str, Any]

_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_PATHS = {
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims",
    "Service": f"/api/v1/namespaces/{NAMESPACE}/services",
    "PodDisruptionBudget": f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ResourceSlice": "/apis/resource.k8s.io/v1/resourceslices",
    "ResourceClaim": f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims",
}
_CHANGING = ("PersistentVolume", "PersistentVolumeClaim", "PodDisruptionBudget", "ResourceClaim")
_ANSWER_SECONDS = 5.0
_CACHE_SECONDS = 0.25
"""How long kube-scheduler's cache may take to see what was written; there is no way to ask."""
_CONTROLLER_SECONDS = 1.0
_PROVISIONER = "made.example.com"
_SELECTED = "volume.kubernetes.io/selected-node"


def main() -> None:
    """Record the worlds that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kubeconfig")
    parser.add_argument("--theme", choices=[*THEMES], default="plain")
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 10), metavar=("FIRST", "END"))
    options = parser.parse_args()
    client = client_of(options.kubeconfig)
    _prepare(client)
    for seed in range(*options.seeds):
        world = random_world(seed, options.theme)
        try:
            _record(client, world)
        finally:
            _clear(client, world)
        print(json.dumps(world), flush=True)


def _prepare(client: Client) -> None:
    for name, labels in (("fz", {"team": "x"}), ("fz2", {})):
        meta = {"name": name, "labels": labels}
        client.post("/api/v1/namespaces", {"metadata": meta})
    for name, value in (("low", 100), ("middle", 500), ("high", 1000)):
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        client.post(path, {"metadata": {"name": name}, "value": value})
    heavy = {"podFixed": {"cpu": "250m", "memory": "128Mi"}}
    body = {"metadata": {"name": "heavy"}, "handler": "heavy", "overhead": heavy}
    client.post("/apis/node.k8s.io/v1/runtimeclasses", body)


def _record(client: Client, world: Content) -> None:
    """Create a world and ask for its steps, one after the other."""
    claims = [obj for obj in world["objects"] if obj["kind"] == "PersistentVolumeClaim"]
    for obj in world["objects"]:
        if obj not in claims:
            _made(client.post(_PATHS[obj["kind"]], obj))
    if claims:
        # The controller binds a claim at once only if it knows the volume.
        time.sleep(_CACHE_SECONDS)
    for claim in claims:
        _made(client.post(_PATHS["PersistentVolumeClaim"], claim))
    for node in world["nodes"]:
        _made(client.post("/api/v1/nodes", node))
    world["bound"] = [pod for pod in world["bound"] if _place(client, pod)]
    changing = any(obj["kind"] in _CHANGING for obj in world["objects"])
    time.sleep(_CONTROLLER_SECONDS if changing else _CACHE_SECONDS)
    for index, step in enumerate(world["steps"]):
        if changing:
            step["objects"] = _changing_objects(client, world)
        _ask(client, step)
        if step.get("nominated") or {"timeout", "failed"} & step.keys():
            del world["steps"][index + 1 :]
            return


def _place(client: Client, pod: Content) -> bool:
    """Create a pod that has a node; False when the API server refuses it."""
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
    answer = client.post(path, pod)
    if answer.code != 201:
        return False
    if "overhead" in answer.json["spec"]:
        pod["spec"]["overhead"] = answer.json["spec"]["overhead"]
    if "status" in pod:
        status = {"status": pod["status"]}
        _made(client.patch(f"{path}/{pod['metadata']['name']}/status", status))
    return True


def _changing_objects(client: Client, world: Content) -> list[Content]:
    """Return the objects that controllers and the scheduler write, as they are now."""
    kinds = [kind for kind in _CHANGING if any(o["kind"] == kind for o in world["objects"])]
    found = []
    for kind in kinds:
        answer = client.get(_PATHS[kind]).json
        for item in answer["items"]:
            item["metadata"].pop("managedFields", None)
            found.append({"apiVersion": answer["apiVersion"], "kind": kind, **item})
    return found


def _ask(client: Client, step: Content) -> None:
    """Create the step's pod, and write kube-scheduler's answer into the step."""
    pod, name = step["pod"], step["pod"]["metadata"]["name"]
    answer = client.post(_PODS, pod)
    if answer.code != 201:
        step["refused"] = answer.json["message"]
        return
    if "overhead" in answer.json["spec"]:
        pod["spec"]["overhead"] = answer.json["spec"]["overhead"]
    found = _wait(client, lambda: _answered(client, name))
    if found is None:
        step["timeout"] = True
        return
    if found["spec"].get("nodeName"):
        step["node"] = found["spec"]["nodeName"]
        return
    condition = _condition(found)
    if condition["reason"] == "SchedulerError":
        step["failed"] = condition["message"]
        return
    step["message"] = condition["message"]
    step["nominated"] = found["status"].get("nominatedNodeName")
    if step["nominated"]:
        # The scheduler deletes the victims after it has written the nomination.
        time.sleep(_CACHE_SECONDS)
        step["victims"] = _terminating(client)
        return
    client.delete(f"{_PODS}/{name}", gracePeriodSeconds=0)


def _answered(client: Client, name: str) -> Content | None:
    found: Content = client.get(f"{_PODS}/{name}").json
    if found["spec"].get("nodeName") or _condition(found):
        return found
    _provision(client)
    return None


def _condition(pod: Content) -> Content:
    conditions = pod["status"].get("conditions", ())
    return next((c for c in conditions if c["type"] == "PodScheduled"), {})


def _provision(client: Client) -> None:
    """Do what a provisioner of volumes does: make one where the scheduler has chosen a node."""
    claims = client.get(_PATHS["PersistentVolumeClaim"]).json["items"]
    for claim in claims:
        meta, spec = claim["metadata"], claim["spec"]
        if spec.get("volumeName") or _SELECTED not in meta.get("annotations", {}):
            continue
        if not spec["storageClassName"].endswith(("later", "zoned")):
            continue
        reference = {k: meta[k] for k in ("name", "namespace", "uid")}
        volume = {
            "metadata": {"name": f"made-{meta['uid']}"},
            "spec": {
                "capacity": spec["resources"]["requests"],
                "accessModes": spec["accessModes"],
                "storageClassName": spec["storageClassName"],
                "hostPath": {"path": "/data"},
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
            },
        }
        client.post(_PATHS["PersistentVolume"], volume)


def _terminating(client: Client) -> list[str]:
    pods = client.get("/api/v1/pods").json["items"]
    return sorted(p["metadata"]["name"] for p in pods if "deletionTimestamp" in p["metadata"])


def _wait(client: Client, found: Callable[[], Any]) -> Any:
    """Ask again until there is an answer; None when there is none in time."""
    end = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < end:
        answer = found()
        if answer:
            return answer
        time.sleep(0.01)
    return None


def _clear(client: Client, world: Content) -> None:
    """Delete a world and wait until nothing of it is left."""
    for namespace in ("fz", "fz2"):
        client.delete(f"/api/v1/namespaces/{namespace}/pods", gracePeriodSeconds=0)
    client.delete("/api/v1/nodes")
    paths = ["/api/v1/pods", "/api/v1/nodes"]
    for kind in {obj["kind"] for obj in world["objects"]}:
        path = _PATHS[kind]
        if kind == "Service":
            for name in client.names(path):
                client.delete(f"{path}/{name}")
        else:
            client.delete(path)
        paths.append(path)
    for path in paths:
        if _wait(client, lambda path=path: not client.names(path)) is None:
            raise SystemExit(f"{path} still holds {client.names(path)}")
    time.sleep(_CACHE_SECONDS)


def _made(answer: Answer) -> None:
    if answer.code not in (200, 201):
        raise SystemExit(f"the API server refused an object of a world: {answer}")


if __name__ == "__main__":
    main()
