"""Random worlds: nodes, pods on them, and pods to schedule one by one, as manifests.

A world is what ``record_worlds.py`` asks a real kube-scheduler about. The themes beyond ``plain``
add what a scheduler also decides on: volumes, devices, budgets and importance among victims, and
rarer fields of pods.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["THEMES", "random_world"]

Content = dict[str, Any]

NAMESPACE = "fz"
_GPU = "example.com/gpu"
_HOSTNAME = "kubernetes.io/hostname"
_KEYS = ("zone", "disk", _HOSTNAME)
_APPS = ("a", "b", "c")


class _Maker:
    """Makes the objects of one world.

    ``prefix`` begins the names of images, so that no scheduler knows them from another world.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.prefix = f"w{seed}"
        self.extra: list[Content] = []
        self.node_names: list[str] = []

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def one(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)

    # Nodes -------------------------------------------------------------------------------

    def node(self, name: str) -> Content:
        labels = {_HOSTNAME: name}
        if self.chance(0.9):
            labels["zone"] = self.one(("z0", "z1", "z2"))
        if self.chance(0.8):
            labels["disk"] = self.one(("ssd", "hdd"))
        if self.chance(0.7):
            labels["gen"] = self.one(("1", "2", "5", "10", "x"))
        spec: Content = {}
        if self.chance(0.42):
            made = [self._taint() for _ in range(self.one((1, 1, 2)))]
            spec["taints"] = list({(t["key"], t["effect"]): t for t in made}.values())
        if self.chance(0.05):
            spec["unschedulable"] = True
        amounts = {
            "cpu": self.one(("1", "2", "4", "8")),
            "memory": self.one(("2Gi", "4Gi", "8Gi", "16Gi")),
            "pods": self.one(("2", "3", "10", "110")),
            "ephemeral-storage": "10Gi",
        }
        if self.chance(0.4):
            amounts[_GPU] = self.one(("0", "1", "2", "4"))
        images = [
            {"names": [self.image(index)], "sizeBytes": self.one((50, 300, 900)) << 20}
            for index in range(3)
            if self.chance(0.38)
        ]
        status = {
            "capacity": amounts,
            "allocatable": dict(amounts),
            "images": images,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        meta = {"name": name, "labels": labels}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": meta,
            "spec": spec,
            "status": status,
        }

    def _taint(self) -> Content:
        return {
            "key": self.one(("k1", "k2")),
            "value": self.one(("", "v1", "v2")),
            "effect": self.one(("NoSchedule", "PreferNoSchedule", "NoExecute")),
        }

    def image(self, index: int) -> str:
        return f"{self.prefix}-img{index}:1"

    # Pods --------------------------------------------------------------------------------

    def pod(self, name: str, namespace: str = NAMESPACE) -> Content:
        labels = {"app": self.one(_APPS)}
        if self.chance(0.4):
            labels["tier"] = self.one(("f", "b"))
        containers = [self._container("c")]
        if self.chance(0.15):
            containers.append(self._container("d"))
        spec: Content = {"containers": containers, "automountServiceAccountToken": False}
        if self.chance(0.15):
            init = self._container("i", ports=False)
            if self.chance(0.5):
                init["restartPolicy"] = "Always"
            spec["initContainers"] = [init]
        if self.chance(0.14):
            spec["nodeSelector"] = {
                self.one(("disk", "zone")): self.one(("ssd", "hdd", "z0", "z1", "z2"))
            }
        if self.chance(0.5):
            spec["tolerations"] = [self._toleration() for _ in range(self.one((1, 2)))]
        affinity = self._affinity()
        if affinity:
            spec["affinity"] = affinity
        if self.chance(0.3):
            spec["topologySpreadConstraints"] = self._spread()
        meta = {"name": name, "namespace": namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    def _container(self, name: str, ports: bool = True) -> Content:
        requests = {}
        if self.chance(0.8):
            requests["cpu"] = self.one(("100m", "250m", "500m", "1", "2"))
        if self.chance(0.68):
            requests["memory"] = self.one(("64Mi", "256Mi", "1Gi", "3Gi"))
        if self.chance(0.15):
            requests["ephemeral-storage"] = self.one(("1Gi", "6Gi"))
        resources: Content = {"requests": requests}
        if self.chance(0.15):
            requests[_GPU] = self.one(("1", "2"))
            resources["limits"] = {_GPU: requests[_GPU]}
        made: Content = {
            "name": name,
            "image": self.image(self.one((0, 1, 1, 2, 3))),
            "resources": resources,
        }
        if ports and self.chance(0.15):
            port: Content = {
                "containerPort": 80,
                "hostPort": self.one((80, 81)),
                "protocol": self.one(("TCP", "UDP")),
            }
            address = self.one((None, None, "10.0.0.1", "127.0.0.1", "0.0.0.0"))
            if address:
                port["hostIP"] = address
            made["ports"] = [port]
        return made

    def _toleration(self) -> Content:
        made: Content = {"key": self.one(("k1", "k2"))}
        if self.chance(0.4):
            made |= {"operator": "Equal", "value": self.one(("v1", "v2"))}
        else:
            made["operator"] = "Exists"
            if self.chance(0.5):
                made["effect"] = self.one(("NoExecute", "NoSchedule"))
        return made

    def _affinity(self) -> Content:
        found: Content = {}
        if self.chance(0.3):
            found["nodeAffinity"] = self._node_affinity()
        for kind in ("podAffinity", "podAntiAffinity"):
            if self.chance(0.2):
                found[kind] = self._pod_affinity()
        return found

    def _node_affinity(self) -> Content:
        made: Content = {}
        if self.chance(0.5):
            terms = [self._node_term() for _ in range(self.one((1, 1, 2)))]
            made["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
        if self.chance(0.6):
            made["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": self.random.randint(1, 100), "preference": self._node_term()}
                for _ in range(self.one((1, 2)))
            ]
        return made

    def _node_term(self) -> Content:
        term: Content = {
            "matchExpressions": [self._expression() for _ in range(self.one((0, 1, 1, 2)))]
        }
        if self.chance(0.2):
            term["matchFields"] = [
                {
                    "key": "metadata.name",
                    "operator": self.one(("In", "In", "NotIn")),
                    "values": [self.one((*self.node_names, "n9"))],
                }
            ]
        return term

    def _expression(self) -> Content:
        key = self.one(("zone", "disk", "gen", _HOSTNAME, "absent"))
        operator = self.one(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
        made: Content = {"key": key, "operator": operator}
        values = {
            "zone": ("z0", "z1", "z2"),
            "disk": ("ssd", "hdd"),
            "gen": ("1", "2", "5", "x"),
            _HOSTNAME: ("n0", "n1", "n2", "n3", "n4"),
            "absent": ("x",),
        }[key]
        if operator in ("In", "NotIn"):
            made["values"] = self.random.sample(values, self.one((1, min(2, len(values)))))
        elif operator in ("Gt", "Lt"):
            made["values"] = [self.one(("1", "2", "4", "9"))]
        return made

    def _selector(self) -> Content:
        kind = self.one(("labels", "labels", "in", "notin", "exists", "absent", "all"))
        if kind == "labels":
            return {"matchLabels": {"app": self.one(_APPS)}}
        if kind == "all":
            return {}
        if kind in ("exists", "absent"):
            operator = "Exists" if kind == "exists" else "DoesNotExist"
            return {"matchExpressions": [{"key": "tier", "operator": operator}]}
        operator = "In" if kind == "in" else "NotIn"
        values = self.random.sample(_APPS, 2)
        return {"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}

    def _term(self) -> Content:
        made: Content = {"labelSelector": self._selector(), "topologyKey": self.one(_KEYS)}
        if self.chance(0.3):
            made["namespaceSelector"] = self.one(({}, {"matchLabels": {"team": "x"}}))
        if self.chance(0.15):
            made["namespaces"] = [self.one(("fz", "fz2"))]
        # The API server refuses a key that the selector names too.
        if self.chance(0.12) and "tier" not in str(made["labelSelector"]):
            made["matchLabelKeys"] = ["tier"]
        return made

    def _pod_affinity(self) -> Content:
        made: Content = {}
        if self.chance(0.5):
            terms = [self._term() for _ in range(self.one((1, 1, 2)))]
            made["requiredDuringSchedulingIgnoredDuringExecution"] = terms
        else:
            made["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": self.random.randint(1, 100), "podAffinityTerm": self._term()}
                for _ in range(self.one((1, 2)))
            ]
        return made

    def _spread(self) -> list[Content]:
        found: dict[tuple[str, str], Content] = {}
        for _ in range(self.one((1, 1, 2))):
            hard = self.chance(0.5)
            made: Content = {
                "maxSkew": self.one((1, 2, 3)),
                "topologyKey": self.one(("zone", _HOSTNAME)),
                "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
                "labelSelector": self._selector(),
            }
            if hard and self.chance(0.35):
                made["minDomains"] = self.one((1, 2, 4))
            for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
                if self.chance(0.3):
                    made[policy] = self.one(("Honor", "Ignore"))
            if self.chance(0.2) and "tier" not in str(made["labelSelector"]):
                made["matchLabelKeys"] = ["tier"]
            found[made["topologyKey"], made["whenUnsatisfiable"]] = made
        return list(found.values())


Theme = Callable[[_Maker, Content, bool], None]
"""Changes a pod; the last argument says whether it has a node already."""


def _plain(maker: _Maker, pod: Content, bound: bool) -> None:
    if not bound and maker.chance(0.17):
        pod["spec"]["priorityClassName"] = "high"


def _crowded(maker: _Maker, pod: Content, bound: bool) -> None:
    """Much preemption: several priorities, start times, budgets, host ports, anti-affinity."""
    spec = pod["spec"]
    spec["tolerations"] = [{"operator": "Exists"}]
    spec.pop("nodeSelector", None)
    if maker.chance(0.6):
        spec.pop("affinity", None)
    if bound:
        spec["priorityClassName"] = maker.one(("low", "low", "middle", "middle", "high"))
        if maker.chance(0.7):
            started = f"2026-01-01T00:00:0{maker.one('123')}Z"
            pod["status"] = {
                "phase": "Running",
                "startTime": started,
                "conditions": [{"type": "Ready", "status": "True"}],
            }
        return
    spec["priorityClassName"] = maker.one(("low", "middle", "high", "high"))
    if maker.chance(0.07):
        spec["preemptionPolicy"] = "Never"


def _fields(maker: _Maker, pod: Content, bound: bool) -> None:
    """Rarer fields: requests of the pod as a whole, overhead, gates, priorities."""
    _plain(maker, pod, bound)
    spec = pod["spec"]
    if maker.chance(0.4):
        cpu, memory = maker.one(("2", "3")), maker.one(("4Gi", "6Gi"))
        whole = {"cpu": cpu, "memory": memory}
        if maker.chance(0.4):
            del whole[maker.one(tuple(whole))]
        spec["resources"] = {"requests": whole}
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            requests = container["resources"]["requests"]
            requests.pop("ephemeral-storage", None)
            requests.pop(_GPU, None)
            container["resources"].pop("limits", None)
            if requests.get("cpu") in ("1", "2"):
                requests["cpu"] = "500m"
            if requests.get("memory") == "3Gi":
                requests["memory"] = "1Gi"
        _smaller(spec, whole)
    if maker.chance(0.2):
        spec["runtimeClassName"] = "heavy"
    if not bound and maker.chance(0.1):
        spec["schedulingGates"] = [{"name": f"gate/{i}"} for i in range(maker.one((1, 2)))]
    if not bound and maker.chance(0.08):
        spec.setdefault("affinity", {})["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchFields": [
                            {"key": "metadata.name", "operator": "In", "values": [name]}
                            for name in maker.random.sample(maker.node_names, 2)
                        ]
                    }
                ]
            }
        }
    if not bound and maker.chance(0.08):
        spec.setdefault("nodeSelector", {})["kubernetes.io/hostname"] = maker.one(maker.node_names)


def _smaller(spec: Content, whole: Content) -> None:
    """Keep a second container from asking for more than the pod as a whole."""
    for container in spec.get("initContainers", ()):
        container["resources"]["requests"] = {
            name: amount
            for name, amount in container["resources"]["requests"].items()
            if name in whole
        }


def _services(maker: _Maker, pod: Content, bound: bool) -> None:
    """Default spread constraints by services, and init containers of all orders."""
    _plain(maker, pod, bound)
    spec = pod["spec"]
    spec.pop("topologySpreadConstraints", None)
    if maker.chance(0.5):
        spec.pop("affinity", None)
    if maker.chance(0.5):
        made = []
        for index in range(maker.one((1, 2, 3))):
            container = maker._container(f"i{index}", ports=maker.chance(0.3))
            if maker.chance(0.5):
                container["restartPolicy"] = "Always"
            made.append(container)
        spec["initContainers"] = made


def _profiles(maker: _Maker, pod: Content, bound: bool) -> None:
    """Pods of several profiles, with services for the default spread constraints of one."""
    _plain(maker, pod, bound)
    spec = pod["spec"]
    if maker.chance(0.5):
        spec.pop("topologySpreadConstraints", None)
    if not bound:
        spec["schedulerName"] = maker.one(("default-scheduler", "packed", "packed", "curved"))


def _volumes(maker: _Maker, pod: Content, bound: bool) -> None:
    """Claims of every state: bound, to be bound by the scheduler, to be provisioned, missing."""
    _plain(maker, pod, bound)
    spec = pod["spec"]
    if maker.chance(0.6):
        spec.pop("affinity", None)
        spec.pop("nodeSelector", None)
    if bound or not maker.chance(0.85):
        return
    spec["volumes"] = []
    names = [c["metadata"]["name"] for c in maker.extra if c["kind"] == "PersistentVolumeClaim"]
    for index, name in enumerate(maker.random.sample(names, maker.one((1, 1, 2)))):
        claim = "missing" if maker.chance(0.04) else name
        volume = {"name": f"v{index}", "persistentVolumeClaim": {"claimName": claim}}
        spec["volumes"].append(volume)


def _volume_objects(maker: _Maker) -> None:
    def storage_class(name: str, provisioner: str, mode: str, **more: Any) -> Content:
        return {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": f"{maker.prefix}-{name}"},
            "provisioner": provisioner,
            "volumeBindingMode": mode,
            **more,
        }

    zones = {"key": "zone", "values": ["z0", "z1"]}
    topologies = [{"matchLabelExpressions": [zones]}]
    local = "kubernetes.io/no-provisioner"
    maker.extra += [
        storage_class("local", local, "WaitForFirstConsumer"),
        storage_class("later", "made.example.com", "WaitForFirstConsumer"),
        storage_class(
            "zoned", "made.example.com", "WaitForFirstConsumer", allowedTopologies=topologies
        ),
        storage_class("now", "made.example.com", "Immediate"),
    ]
    for index in range(6):
        _volume_pair(maker, index)


def _volume_pair(maker: _Maker, index: int) -> None:
    """Add a claim and perhaps a volume, bound to each other or not."""
    kind = maker.one(("bound", "bound", "bound", "local", "local", "later", "zoned", "now"))
    claim_name, volume_name = f"claim{index}", f"{maker.prefix}-pv{index}"
    class_name = f"{maker.prefix}-{kind if kind != 'bound' else 'local'}"
    mode = maker.one(("ReadWriteOnce", "ReadWriteOnce", "ReadOnlyMany", "ReadWriteOncePod"))
    size = maker.one(("1Gi", "5Gi"))
    claim: Content = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim_name, "namespace": NAMESPACE},
        "spec": {
            "accessModes": [mode],
            "storageClassName": class_name,
            "resources": {"requests": {"storage": size}},
        },
    }
    maker.extra.append(claim)
    if kind not in ("bound", "local"):
        return
    volume: Content = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume_name, "labels": {}},
        "spec": {
            "capacity": {"storage": maker.one(("1Gi", "5Gi", "10Gi"))},
            "accessModes": [mode],
            "storageClassName": class_name,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/data"},
        },
    }
    if maker.chance(0.75):
        key = maker.one(("zone", _HOSTNAME, "disk"))
        values = {
            "zone": ("z0", "z1", "z2"),
            "disk": ("ssd", "hdd"),
            _HOSTNAME: tuple(maker.node_names),
        }[key]
        expression = {"key": key, "operator": "In", "values": [maker.one(values)]}
        volume["spec"]["nodeAffinity"] = {
            "required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        }
    elif maker.chance(0.5):
        volume["metadata"]["labels"]["topology.kubernetes.io/zone"] = maker.one(("z0", "z1"))
    if kind == "bound":
        claim["spec"]["volumeName"] = volume_name
        volume["spec"]["capacity"]["storage"] = "10Gi"
        volume["spec"]["claimRef"] = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "name": claim_name,
            "namespace": NAMESPACE,
        }
    maker.extra.append(volume)


def _service_objects(maker: _Maker) -> None:
    for app in ("a", "b"):
        maker.extra.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": f"{app}-svc", "namespace": NAMESPACE},
                "spec": {"selector": {"app": app}, "ports": [{"port": 80}]},
            }
        )


def _budget_objects(maker: _Maker) -> None:
    for index, app in enumerate(maker.random.sample(_APPS, maker.one((0, 1, 2)))):
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"budget{index}", "namespace": NAMESPACE},
            "spec": {
                "selector": {"matchLabels": {"app": app}},
                "minAvailable": maker.one((0, 1, 2)),
            },
        }
        maker.extra.append(budget)


def _device_objects(maker: _Maker) -> None:
    driver = "devices.example.com"
    maker.extra.append(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": f"{maker.prefix}-gpu"},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
        }
    )
    for name in maker.node_names:
        if not maker.chance(0.6):
            continue
        devices = [
            {
                "name": f"gpu-{index}",
                "attributes": {"model": {"string": maker.one(("small", "large"))}},
            }
            for index in range(maker.one((1, 2)))
        ]
        maker.extra.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"{maker.prefix}-{name}"},
                "spec": {
                    "driver": driver,
                    "nodeName": name,
                    "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                    "devices": devices,
                },
            }
        )
    for index in range(5):
        exactly: Content = {
            "deviceClassName": f"{maker.prefix}-{maker.one(('gpu',) * 9 + ('no',))}"
        }
        if maker.chance(0.3):
            exactly["count"] = 2
        if maker.chance(0.4):
            wanted = maker.one(("small", "large"))
            expression = f'device.attributes["{driver}"].model == "{wanted}"'
            exactly["selectors"] = [{"cel": {"expression": expression}}]
        maker.extra.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": f"claim{index}", "namespace": NAMESPACE},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
            }
        )


def _devices(maker: _Maker, pod: Content, bound: bool) -> None:
    """Resource claims, shared by several pods or not, and a class that nobody has."""
    _plain(maker, pod, bound)
    spec = pod["spec"]
    if maker.chance(0.7):
        spec.pop("affinity", None)
        spec.pop("nodeSelector", None)
    if bound or not maker.chance(0.8):
        return
    claim = "missing" if maker.chance(0.04) else f"claim{maker.random.randrange(5)}"
    spec["resourceClaims"] = [{"name": "r", "resourceClaimName": claim}]
    spec["containers"][0]["resources"]["claims"] = [{"name": "r"}]


THEMES: dict[str, tuple[Theme, Callable[[_Maker], None] | None]] = {
    "plain": (_plain, None),
    "crowded": (_crowded, _budget_objects),
    "fields": (_fields, None),
    "services": (_services, _service_objects),
    "profiles": (_profiles, _service_objects),
    "volumes": (_volumes, _volume_objects),
    "devices": (_devices, _device_objects),
}
"""What changes each pod, and what adds other objects, by the name of the theme."""


def random_world(seed: int, theme: str) -> Content:
    """Return a world: ``nodes``, ``objects``, ``bound`` pods, and ``steps`` with a ``pod`` each."""
    maker = _Maker(seed)
    change, add = THEMES[theme]
    maker.node_names = [f"n{index}" for index in range(maker.random.randint(3, 8))]
    nodes = [maker.node(name) for name in maker.node_names]
    if add is not None:
        add(maker)
    bound = []
    most = 14 if theme == "crowded" else 10
    for index in range(maker.random.randint(0, most)):
        pod = maker.pod(f"b{index}", maker.one((NAMESPACE, NAMESPACE, NAMESPACE, "fz2")))
        pod["spec"]["nodeName"] = maker.one(maker.node_names)
        change(maker, pod, True)
        bound.append(pod)
    pods = [maker.pod(f"p{index}") for index in range(5)]
    for pod in pods:
        change(maker, pod, False)
    return {
        "seed": seed,
        "theme": theme,
        "nodes": nodes,
        "objects": maker.extra,
        "bound": bound,
        "steps": [{"pod": pod} for pod in pods],
    }
