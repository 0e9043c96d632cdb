"""Whatever pods come and go, no device of Koordinator's is given out beyond what it has."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan import PodInfo
from bayplan.api import KoordinatorDevice, Node, ObjectMeta, Pod
from bayplan.api.gpu_shares import GpuUse, Share
from bayplan.api.objects import decode_part
from bayplan.dialects.koordinator.allocations import ALLOCATED, Allocation
from bayplan.snapshot import Snapshot
from bayplan_plugins.gpus.vendors.adapter import GpusInUse
from bayplan_plugins.gpus.vendors.koordinator.adapter import KoordinatorAdapter
from bayplan_plugins.gpus.vendors.koordinator.devices import Device

DOMAIN = "scheduling.koordinator.sh/"
JOINT = {f"{DOMAIN}device-joint-allocate": '{"deviceTypes":["gpu","rdma"]}'}
SAME = {
    f"{DOMAIN}device-joint-allocate": '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}',
    f"{DOMAIN}device-allocate-hint": '{"rdma":{"vfSelector":{}}}',
}
NODE = Node(ObjectMeta(name="n", labels={"node.koordinator.sh/gpu-model": "H100"}))


def _device(kind: str, minor: int, pcie: int, **resources: str) -> dict[str, Any]:
    names = {f"koordinator.sh/{name.replace('_', '-')}": resources[name] for name in resources}
    functions = [{"minor": n, "busID": f"{minor}:{n}"} for n in range(2)]
    groups = [{"labels": {}, "vfs": functions}] if kind == "rdma" else []
    where = {"socketID": 0, "nodeID": pcie // 2, "pcieID": str(pcie)}
    own = {"resources": names, "topology": where, "vfGroups": groups, "health": True}
    return {"type": kind, "minor": minor, **own}


GPUS = [
    _device("gpu", n, n // 2, gpu_core="100", gpu_memory="81251", gpu_memory_ratio="100")
    for n in range(8)
]
NICS = [_device("rdma", n, n, rdma="100") for n in range(4)]
MACHINE = decode_part(
    KoordinatorDevice, {"metadata": {"name": "n"}, "spec": {"devices": [*GPUS, *NICS]}}
)

_PERCENT = st.integers(1, 100)
_REQUESTS = st.one_of(
    st.builds(lambda n: {"nvidia.com/gpu": n}, st.integers(1, 8)),
    st.builds(lambda n, m: {"gpu-core": n, "gpu-memory-ratio": m}, _PERCENT, _PERCENT),
    st.builds(lambda n: {"gpu-memory": n}, st.integers(1, 81251)),
    st.builds(lambda n, m: {"gpu.shared": n, "gpu-memory": n * m}, st.integers(1, 4), _PERCENT),
    st.builds(lambda n: {"rdma": n}, _PERCENT),
    st.builds(lambda n, m: {"nvidia.com/gpu": n, "rdma": m}, st.integers(1, 8), _PERCENT),
)
_PODS = st.lists(
    st.tuples(_REQUESTS, st.sampled_from(({}, JOINT, SAME)), st.booleans()), max_size=24
)


def _pod(requests: dict[str, int], notes: dict[str, str]) -> PodInfo:
    names = {key if "/" in key else f"koordinator.sh/{key}": requests[key] for key in requests}
    container = {"name": "c", "resources": {"requests": {key: str(names[key]) for key in names}}}
    meta = {"name": "p", "namespace": "default", "annotations": notes}
    return PodInfo(decode_part(Pod, {"metadata": meta, "spec": {"containers": [container]}}))


@examples(50)
@given(_PODS)
def test_no_device_is_given_out_beyond_what_it_has(
    pods: list[tuple[dict[str, int], dict[str, str], bool]],
) -> None:
    snapshot = Snapshot()
    snapshot.set_object("n", MACHINE)
    contract = KoordinatorAdapter(snapshot)
    gpus = contract.gpus(NODE)
    assert isinstance(gpus, tuple)
    held: list[tuple[Share, ...]] = []
    for requests, wishes, ends in pods:
        if ends and held:
            held.pop(0)
        pod = _pod(requests, wishes)
        request = contract.request(pod)
        assert request is not None
        assert not request.problem
        uses = {gpu.index: GpuUse() for gpu in gpus}
        for share in (one for own in held for one in own):
            uses[share.gpu] = uses[share.gpu].plus(share)
        choice = contract.choose(pod, request, GpusInUse(gpus, tuple(uses.values())))
        assert bool(choice.shares) != bool(choice.reason)
        if choice.shares:
            written = contract.written(pod, NODE, gpus, choice.shares, 0.0)
            text = {ALLOCATED: written.annotations[ALLOCATED]}
            assert json.loads(text[ALLOCATED])
            assert contract.held(_pod({}, text), gpus) == choice.shares
            held.append(choice.shares)
        _check(gpus, held)


def _check(gpus: Any, held: list[tuple[Share, ...]]) -> None:
    taken: Counter[tuple[str, int, str]] = Counter()
    functions: list[Any] = []
    for share in (one for own in held for one in own):
        got = share.detail
        assert isinstance(got, Allocation)
        for name, amount in got.amounts:
            taken[got.kind, got.minor, name] += amount
        functions += [(got.minor, one) for one in got.functions]
    assert len(set(functions)) == len(functions), "a virtual function has one pod"
    devices = {(one.detail.kind, one.detail.minor): one.detail for one in gpus}
    for (kind, minor, name), amount in taken.items():
        device = devices[kind, minor]
        assert isinstance(device, Device)
        assert amount <= device.total.get(name, 0), f"{kind} {minor}: {name}"
