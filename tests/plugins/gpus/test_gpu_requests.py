"""What pods request of GPUs is read once for all that differ in nothing that is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from bayplan.api import Pod
from bayplan.snapshot import PodInfo
from bayplan.testing import Cluster, make_node, make_pod
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.gpus.vendors.adapters import ADAPTERS

KOORDINATOR = "scheduling.koordinator.sh/"
SAID = {
    f"{KOORDINATOR}device-allocate-hint": '{"gpu": {"requiredTopologyScope": "PCIe"}}',
    f"{KOORDINATOR}device-joint-allocate": '{"deviceTypes": ["gpu"]}',
    f"{KOORDINATOR}gpu-partition-spec": '{"allocatePolicy": "Restricted"}',
    "hami.io/gpu-scheduler-policy": "spread",
    "hami.io/node-scheduler-policy": "binpack",
    "hami.io/device-scoring-weights": "slot=1,core=2,memory=3",
    "nvidia.com/use-gputype": "A100",
    "nvidia.com/nouse-gputype": "H100",
    "nvidia.com/use-gpuuuid": "GPU-1",
    "nvidia.com/nouse-gpuuuid": "GPU-2",
    "nvidia.com/numa-bind": "true",
    "nvidia.com/vgpu-mode": "mig",
    "volcano.sh/vgpu-mode": "hami-core",
    "volcano.sh/vgpu-use-gpuuuid": "GPU-3",
    "volcano.sh/vgpu-nouse-gpuuuid": "GPU-4",
}
SHARES = (
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"},
    {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1024"},
    {"koordinator.sh/gpu": "50"},
)


class Noted(Mapping[str, str]):
    """Annotations that note which of them are read."""

    def __init__(self, own: Mapping[str, str]) -> None:
        self._own = own
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> str:
        self.read.add(key)
        return self._own[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


class Watched(PodInfo):
    """A pod that notes which of its annotations are read."""

    def __init__(self, pod: Pod) -> None:
        super().__init__(pod)
        self.noted = Noted(pod.metadata.annotations)

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.noted


def asking(amounts: Mapping[str, str], said: Mapping[str, str], name: str = "p") -> Pod:
    limits = {"cpu": "1", **amounts}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    return make_pod(name, annotations=said, spec=spec)


@pytest.mark.parametrize("amounts", SHARES)
@pytest.mark.parametrize("said", [{}, SAID])
def test_adapters_read_no_annotations_but_those_that_they_name(
    amounts: dict[str, str], said: dict[str, str]
) -> None:
    snapshot = Cluster([make_node("n")]).scheduler.snapshot
    read = set()
    for make in ADAPTERS:
        adapter, pod = make(snapshot), Watched(asking(amounts, said))
        adapter.request(pod)
        assert pod.noted.read <= adapter.reads, adapter.name
        read |= pod.noted.read
    assert read or not said, "what is said is read"


def test_pods_of_many_jobs_are_read_once() -> None:
    snapshot = Cluster([make_node("n")]).scheduler.snapshot
    ledger = GpuLedger(snapshot)
    pods = [
        PodInfo(asking(SHARES[0], {"pod-group-name": f"job-{number}", **more}, f"p{number}"))
        for number, more in enumerate([{}, {}, {"hami.io/gpu-scheduler-policy": "binpack"}])
    ]
    first, second, packed = map(ledger.requests, pods)
    assert first is second
    assert first != packed
