"""What a cluster needs before bayplan runs on it: definitions of kinds, an account, its rights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import yaml
from tests.cluster.apiserver.faces import Client
from tests.controlplane.plane import ControlPlane, wait_until
from tests.live.deployed import CRDS, DEPLOY, SCHEDULER, Content, documents, manifests, only
from tests.paths import SHARED

from bayplan.api import KINDS, Kind

BUILT_IN = (
    "",
    "apps",
    "autoscaling",
    "batch",
    "policy",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
)
"""Groups of kinds that every API server serves."""
_RIGHTS = (
    "namespace.yaml",
    "rbac.yaml",
    "kueue-jobs.yaml",
    "queue-gates.yaml",
    "resizer.yaml",
    "gpu-sharing.yaml",
    "autoscaling.yaml",
    "failure-recovery.yaml",
    "device-configs.yaml",
)
_OTHERS = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-operator"}}
"""The namespace of another system, in which bayplan has a right."""
_RBAC = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
POOLS = "pools.yaml"
_OWN_STATUS = ("scheduling.sigs.k8s.io", "scheduling.volcano.sh")
"""Groups whose PodGroup has no status subresource in the CRD of its own system."""
_PLAIN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def path_of(content: Content, name: bool = True) -> str:
    """Return the path of an object in the API, or of its collection."""
    version, meta = content["apiVersion"], content["metadata"]
    group = version.rpartition("/")[0]
    kind = KINDS.get((group, content["kind"])) or Kind(
        group, content["kind"], (version,), Kind, "namespace" in meta
    )
    root = f"/apis/{version}" if group else f"/api/{version}"
    if kind.namespaced:
        root += f"/namespaces/{meta.get('namespace', 'default')}"
    return f"{root}/{kind.plural}/{meta['name']}" if name else f"{root}/{kind.plural}"


def install(client: Client) -> None:
    """Define all kinds that bayplan follows, and give its account the rights of configs/deploy."""
    paths = manifests(CRDS)
    install_own(client, *paths)
    own = {one["metadata"]["name"] for one in documents(*paths)}
    upstream = upstream_definitions()
    others = [upstream.get(one["metadata"]["name"], one) for one in _definitions()]
    _create(client, [one for one in others if one["metadata"]["name"] not in own])


@cache
def upstream_definitions() -> dict[str, Content]:
    """Return the CRDs of other systems, by name, where this machine has them."""
    found = {}
    known = {f"{group}_{name.lower()}" for group, name in KINDS}
    for path in sorted((SHARED / "peers" / "crds").glob("*.yaml")):
        if path.stem not in known:
            continue
        # They are megabytes, which the parser in Python reads for minutes.
        one = yaml.load(path.read_text(), yaml.CSafeLoader)
        spec = one["spec"]
        kind = KINDS.get((spec["group"], spec["names"]["kind"]))
        served = {version["name"] for version in spec["versions"] if version["served"]}
        # Of an MPIJob there are two, one for each of its operators.
        if kind is not None and kind.versions[0] in served:
            found[one["metadata"]["name"]] = one
    return found


def install_own(client: Client, *definitions: Path) -> None:
    """Give the account the rights of configs/deploy, and define the kinds of these files."""
    rights = documents(*(DEPLOY / name for name in _RIGHTS))
    rights += [one for one in documents(DEPLOY / POOLS) if one["kind"] in _RBAC]
    _create(client, [_OTHERS, *documents(*definitions), *rights])


def _create(client: Client, contents: Sequence[Content]) -> None:
    """Create objects; kinds that they define are then served."""
    for content in contents:
        answer = client.post(path_of(content, name=False), content)
        assert answer.code == 201, answer
    for content in contents:
        if content["kind"] != "CustomResourceDefinition":
            continue
        spec = content["spec"]
        version = next(one["name"] for one in spec["versions"] if one["served"])
        collection = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
        wait_until(lambda path=collection: client.get(path).code == 200, collection)


def _definitions() -> Iterator[Content]:
    """Yield permissive CRDs of the kinds that other systems define."""
    for kind in KINDS.values():
        if kind.group in BUILT_IN:
            continue
        own = kind.group in _OWN_STATUS
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{kind.plural}.{kind.group}",
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
            },
            "spec": {
                "group": kind.group,
                "scope": "Namespaced" if kind.namespaced else "Cluster",
                "names": {
                    "kind": kind.name,
                    "plural": kind.plural,
                    "singular": kind.name.lower(),
                },
                "versions": [
                    {
                        "name": version,
                        "served": True,
                        "storage": version == kind.versions[0],
                        "subresources": {} if own else {"status": {}},
                        "schema": {
                            "openAPIV3Schema": {
                                "type": "object",
                                "properties": {"spec": _PLAIN, "status": _PLAIN},
                                "x-kubernetes-preserve-unknown-fields": True,
                            }
                        },
                    }
                    for version in kind.versions
                ],
            },
        }


def account_kubeconfig(plane: ControlPlane, path: Path, manifest: str | Path = "rbac.yaml") -> Path:
    """Write a kubeconfig with a token of the service account of a manifest of configs/deploy."""
    account = path_of(only("ServiceAccount", documents(DEPLOY / manifest)))
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = plane.client.post(f"{account}/token", body)
    assert answer.code == 201, answer
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer.json["status"]["token"]}
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return path


USER = f"system:serviceaccount:bayplan-system:{SCHEDULER}"
