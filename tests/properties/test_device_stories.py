"""Random stories of pods with claims: what must hold at their end, whatever happened."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.api import Pod, ResourceClaim
from bayplan.api.dra import DeviceId
from bayplan.api.objects import KINDS, decode_object
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan_dra.allocator import AllocatedState, allocated_ids
from bayplan_plugins.device_ledger.ledger import DeviceLedger

GPU = "gpu.example.com"
SEEDS = st.integers(min_value=0, max_value=10**9)
Content = dict[str, Any]


def obj(kind: str, group: str = "", version: str = "v1", **content: Any) -> Any:
    api_version = f"{group}/{version}".lstrip("/")
    return decode_object(KINDS[group, kind], {"apiVersion": api_version, **content})


def dra(kind: str, name: str, spec: Content, version: str = "v1") -> Any:
    return obj(kind, "resource.k8s.io", version, metadata={"name": name}, spec=spec)


def expression(text: str) -> Content:
    return {"cel": {"expression": text}}


@dataclass
class Story:
    """Nodes with devices, pods that come one after the other, and accidents."""

    seed: int
    objects: list[Any] = field(default_factory=list)
    pods: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        kind = f'device.attributes["{GPU}"].kind'
        gpu = {"selectors": [expression(f'{kind} == "gpu"')], "extendedResourceName": "x.test/gpu"}
        self.objects += [
            dra("DeviceClass", "gpu", gpu),
            dra("DeviceClass", "nic", {"selectors": [expression(f'{kind} == "nic"')]}),
        ]
        for index in range(self.chance.randint(1, 4)):
            self._node(f"n{index}")
        if self.chance.random() < 0.3:
            self._network_devices()
        for index in range(3):
            self.objects.append(
                dra("ResourceClaimTemplate", f"t{index}", {"spec": self._claim_spec()})
            )
        for index in range(2):
            self.objects.append(dra("ResourceClaim", f"c{index}", self._claim_spec()))
        for index in range(self.chance.randint(0, 2)):
            self._gang(f"g{index}")
        for index in range(self.chance.randint(1, 7)):
            self.pods.append(self._pod(f"p{index}"))
        self.chance.shuffle(self.pods)

    def _node(self, name: str) -> None:
        chance = self.chance
        allocatable = {"cpu": "32", "pods": "20"}
        self.objects.append(
            obj(
                "Node",
                metadata={"name": name, "labels": {"zone": chance.choice("ab")}},
                status={"allocatable": allocatable},
            )
        )
        devices = []
        for index in range(chance.randint(1, 5)):
            device: Content = {
                "name": f"d{index}",
                "attributes": {
                    "kind": {"string": chance.choice(["gpu", "gpu", "nic"])},
                    "numa": {"int": chance.randint(0, 1)},
                    "mark": {"string": chance.choice("xy")},
                },
            }
            if chance.random() < 0.1:
                device["taints"] = [{"key": "t", "effect": "NoSchedule"}]
            if chance.random() < 0.15:
                device["allowMultipleAllocations"] = True
                device["capacity"] = {"units": {"value": "4"}}
            devices.append(device)
        spec = {"driver": GPU, "pool": {"name": name}, "nodeName": name, "devices": devices}
        self.objects.append(dra("ResourceSlice", f"slice-{name}", spec))

    def _network_devices(self) -> None:
        requirement = {"key": "zone", "operator": "In", "values": ["a"]}
        selector = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
        reach = self.chance.choice([{"allNodes": True}, {"nodeSelector": selector}])
        attributes = {"kind": {"string": "gpu"}, "numa": {"int": 0}, "mark": {"string": "x"}}
        devices = [
            {"name": f"w{index}", "attributes": attributes}
            for index in range(self.chance.randint(1, 3))
        ]
        spec = {"driver": GPU, "pool": {"name": "net"}, "devices": devices, **reach}
        self.objects.append(dra("ResourceSlice", "slice-net", spec))

    def _claim_spec(self) -> Content:
        chance = self.chance
        requests: list[Content] = []
        for index in range(chance.choice([1, 1, 2])):
            if chance.random() < 0.85:
                requests.append({"name": f"r{index}", "exactly": self._exactly()})
            else:
                ways = [{"name": name, **self._exactly()} for name in "ab"]
                requests.append({"name": f"r{index}", "firstAvailable": ways})
        devices: Content = {"requests": requests}
        if chance.random() < 0.3:
            kind = chance.choice(["matchAttribute", "matchAttribute", "distinctAttribute"])
            devices["constraints"] = [{kind: f"{GPU}/numa"}]
        return {"devices": devices}

    def _exactly(self) -> Content:
        chance = self.chance
        found: Content = {
            "deviceClassName": chance.choice(["gpu", "gpu", "nic"]),
            "count": chance.choice([1, 1, 1, 2]),
        }
        if chance.random() < 0.3:
            mark = chance.choice("xy")
            found["selectors"] = [expression(f'device.attributes["{GPU}"].mark == "{mark}"')]
        if chance.random() < 0.15:
            found["capacity"] = {"requests": {"units": "2"}}
        return found

    def _gang(self, name: str) -> None:
        members = self.chance.randint(2, 3)
        self.objects.append(
            obj(
                "PodGroup",
                "scheduling.sigs.k8s.io",
                "v1alpha1",
                metadata={"name": name},
                spec={"minMember": members},
            )
        )
        labels = {"pod-group.scheduling.sigs.k8s.io": name}
        self.pods += [self._pod(f"{name}-{index}", labels) for index in range(members)]

    def _pod(self, name: str, labels: dict[str, str] | None = None) -> Any:
        chance = self.chance
        claims: list[Content] = []
        which = chance.random()
        if which < 0.7:
            template = f"t{chance.randint(0, 2)}"
            claims.append({"name": "own", "resourceClaimTemplateName": template})
        if which > 0.6:
            claims.append({"name": "shared", "resourceClaimName": f"c{chance.randint(0, 1)}"})
        annotations = {}
        if chance.random() < 0.5:
            annotations["bayplan.dev/duration"] = f"{chance.randint(1, 40)}s"
        amounts = {"cpu": "1"}
        if chance.random() < 0.2:
            amounts["x.test/gpu"] = "1"
        return obj(
            "Pod",
            metadata={"name": name, "labels": labels or {}, "annotations": annotations},
            spec={
                "priority": chance.choice([0, 0, 10, 100]),
                "terminationGracePeriodSeconds": chance.choice([0, 5]),
                "resourceClaims": claims,
                "containers": [{"name": "c", "resources": {"requests": amounts}}],
            },
        )

    def tell(self, cached: bool = True) -> Simulation:
        """Let the story happen."""
        self.chance.seed(self.seed)
        simulation = Simulation(default_profiles(), self.seed, until=120)
        for at_work in simulation.scheduler.profiles.values():
            at_work.evaluator._cached = cached
        half = len(self.pods) // 2
        simulation.create([*self.objects, *self.pods[:half]])
        cluster = simulation.cluster
        for index, pod in enumerate(self.pods[half:]):
            cluster.clock.call_later(3 + 7 * index, lambda pod=pod: cluster.create(pod))
        if self.chance.random() < 0.3:
            cluster.clock.call_later(11, lambda: self._kill(simulation))
        if self.chance.random() < 0.2:
            taint = {"key": "q", "effect": "NoSchedule"}
            spec = {"deviceSelector": {"device": "d0"}, "taint": taint}
            rule = dra("DeviceTaintRule", "rule", spec, "v1beta2")
            cluster.clock.call_later(9, lambda: cluster.create(rule))
        if self.chance.random() < 0.2:
            cluster.clock.call_later(13, cluster.break_watch)
            cluster.clock.call_later(17, cluster.resume_watch)
        simulation.run()
        return simulation

    def _kill(self, simulation: Simulation) -> None:
        pods = simulation.cluster.list(Pod)
        if pods:
            simulation.cluster.delete(Pod, self.chance.choice(pods).key, grace=0)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_no_device_has_two_owners_and_the_ledger_says_what_the_api_says(seed: int) -> None:
    simulation = Story(seed).tell()
    owners: dict[DeviceId, str] = {}
    state = AllocatedState()
    for claim in simulation.cluster.list(ResourceClaim):
        for held in allocated_ids(claim):
            if held.consumed is None:
                assert owners.setdefault(held.id, claim.key) == claim.key
            state.take([held])
    for amounts in state.capacity.values():
        assert all(amount <= 4 for amount in amounts.values())
    ledger = simulation.scheduler.snapshot.shared(DeviceLedger, DeviceLedger)
    if not list(simulation.scheduler.nominator.all()):
        assert not ledger.in_flight
        assert ledger.state == state


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_a_pod_runs_where_its_claims_are_and_only_then_reserves_them(seed: int) -> None:
    simulation = Story(seed).tell()
    cluster = simulation.cluster
    pods = {pod.metadata.uid: pod for pod in cluster.list(Pod)}
    for claim in cluster.list(ResourceClaim):
        for reference in claim.status.reserved_for:
            assert claim.status.allocation is not None
            assert pods[reference.uid].spec.node_name
    for pod in pods.values():
        if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
            continue
        made = {s.name: s.resource_claim_name for s in pod.status.resource_claim_statuses}
        for wanted in pod.spec.resource_claims:
            name = wanted.resource_claim_name or made[wanted.name]
            claim = cluster.get(ResourceClaim, f"default/{name}")
            assert claim is not None
            assert claim.status.allocation is not None
            assert pod.metadata.uid in [r.uid for r in claim.status.reserved_for]
            for result in claim.status.allocation.devices.results:
                assert result.pool in (pod.spec.node_name, "net")


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_kept_answers_are_those_of_the_plain_path(seed: int) -> None:
    kept, plain = Story(seed).tell(), Story(seed).tell(cached=False)
    assert kept.placements() == plain.placements()
    assert kept.devices() == plain.devices()
    assert kept.pending() == plain.pending()
