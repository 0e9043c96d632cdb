"""Whatever comes, goes and is tried, the ledger of GPUs agrees with itself and with the pods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.plugins.gpus.hami import test_hami_shares as hami
from tests.plugins.gpus.test_gpu_topology import DRIVER, GPUS, dra_slice, gpu_node, gpu_pod

from bayplan import PodInfo
from bayplan.api import Pod
from bayplan.api.dra import DeviceId
from bayplan.snapshot import Snapshot
from bayplan.testing import make_node
from bayplan_plugins.device_ledger.ledger import DeviceLedger
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.gpus.resources import gpu_count
from bayplan_plugins.shared.stale_nodes import StaleNames, StaleNodes

PLAIN, MACHINE, SLICES, HAMI = NODES = ("plain", "machine", "slices", "hami")
GPUS_OF_A_NODE = 8

_STEPS = st.one_of(
    st.tuples(st.just("come"), st.sampled_from(NODES), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("share"), st.just(HAMI), st.integers(0, 7), st.booleans()),
    st.tuples(
        st.just("name"), st.sampled_from((MACHINE, SLICES)), st.integers(0, 7), st.just(True)
    ),
    st.tuples(st.just("go"), st.just(""), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("hold"), st.just(""), st.integers(0, 9), st.booleans()),
)
_LABELS = st.tuples(st.just("label"), st.sampled_from(NODES), st.integers(0, 9), st.booleans())
_TRIALS = st.tuples(st.just("try"), st.lists(_STEPS, max_size=4), st.booleans())


@dataclass
class Machines:
    """Nodes of every kind with a ledger, and pods that get no more GPUs than there are."""

    snapshot: Snapshot = field(default_factory=lambda: Snapshot(lambda: 1e9))
    made: int = 0

    def __post_init__(self) -> None:
        for name in NODES:
            self.snapshot.set_node(_node(name))
        offered = dra_slice(SLICES, range(4))
        self.snapshot.set_object(offered.metadata.name, offered)
        self.ledger = self.snapshot.shared(GpuLedger, GpuLedger)
        self.ledger.give_shares()
        self.snapshot.sync()

    def do(self, what: str, node: str, number: int, bound: bool) -> None:
        if what in ("come", "share", "name"):
            self.made += 1
            pod = PodInfo(_pod(f"p{self.made}", what, node, number, bound))
            if self.wanted(node) + max(1, gpu_count(pod.requests)) <= GPUS_OF_A_NODE:
                self.snapshot.add_pod(pod, node)
        elif what == "label":
            self.snapshot.set_node(_node(node, number))
            self.snapshot.sync()
        elif self.snapshot.placed:
            keys = sorted(self.snapshot.placed)
            pod, node = self.snapshot.placed[keys[number % len(keys)]]
            if what == "go":
                self.snapshot.remove_pod(pod.key)
            elif not pod.spec.node_name and (gpus := self.ledger.whole(node)) is not None:
                free, count = gpus.free(pod.uid), gpu_count(pod.requests)
                if 0 < count <= len(free):
                    self.ledger.hold_gpus(pod, node, free[-count:])

    def attempt(self, steps: list[Any], kept: bool) -> None:
        before = self.shown()
        with self.snapshot.trial() as trial:
            for step in steps:
                self.do(*step)
                self.check()
            if kept:
                trial.keep()
        if not kept:
            assert self.shown() == before

    def wanted(self, node: str) -> int:
        """Return how many GPUs the pods of a node ask for; a share may need one of its own."""
        own = (pod for pod, where in self.snapshot.placed.values() if where == node)
        return sum(max(1, gpu_count(pod.requests)) for pod in own)

    def shown(self) -> list[Any]:
        """Return all that the ledger says of pods and nodes."""
        columns = self.ledger.columns.arrays()
        left = {
            name: (columns.compute[row].tolist(), columns.memory[row].tolist())
            for name, row in self.snapshot.nodes.row_of.items()
        }
        free = {name: gpus.free() for name in NODES if (gpus := self.ledger.whole(name))}
        shares = {
            (pod.name, self.ledger.shares(pod, node), self.ledger.is_reserved(pod, node))
            for pod, node in self.snapshot.placed.values()
        }
        return [left, free, sorted(shares, key=str), self.unclaimed()]

    def unclaimed(self) -> list[DeviceId]:
        usage = self.snapshot.shared(DeviceLedger, DeviceLedger).usage
        ids = (DeviceId(DRIVER, SLICES, f"gpu-{gpu}") for gpu in range(4))
        return [one for one in ids if usage.holders_of(one)]

    def check(self) -> None:
        self.ledger.columns.arrays()
        for node in NODES:
            self.check_node(node)

    def check_node(self, node: str) -> None:
        own = [pod for pod, where in self.snapshot.placed.values() if where == node]
        state = self.ledger.state(node)
        assert state is not None
        held = {pod.name: self.ledger.shares(pod, node) for pod in own}
        for gpu, used in zip(state.gpus, state.used, strict=True):
            shares = [one for shares in held.values() for one in shares if one.gpu == gpu.index]
            assert used.compute == sum(one.compute for one in shares)
            assert used.slots == sum(one.slots for one in shares)
            assert used.compute <= gpu.compute, "no GPU is given out twice"
        whole = self.ledger.whole(node)
        assert (whole is None) == (node == PLAIN)
        for pod in own:
            count = gpu_count(pod.requests)
            assert len(held[pod.name]) == (count or 1), "every pod has what it asks for"
        if whole is not None:
            busy = {one.gpu for shares in held.values() for one in shares}
            assert set(whole.free()) == set(range(GPUS_OF_A_NODE)) - busy - whole.elsewhere
            if node == SLICES:
                held_devices = [one.device for one in self.unclaimed()]
                assert held_devices == [f"gpu-{gpu}" for gpu in range(4) if gpu in busy]


def _node(name: str, label: int = 0) -> Any:
    if name == PLAIN:
        return make_node(name, cpu=64, memory="512Gi", labels={"l": str(label)}, gpu=8)
    if name == HAMI:
        return hami.node(name, *(hami.gpu(gpu) for gpu in range(8)), l=str(label))
    return gpu_node(name, l=str(label))


def _pod(name: str, what: str, node: str, number: int, bound: bool) -> Pod:
    if what == "name":
        pod = gpu_pod(name, 1, notes={GPUS: str(number)})
    elif what == "share":
        given = f"GPU-{number},NVIDIA,8192,10:;"
        notes = {hami.KEYS.allocated: given, hami.KEYS.node: node} if bound else {}
        pod = hami.pod(name, notes, gpu=1, gpumem=8192, gpucores=10)
    elif node == HAMI:
        pod = hami.pod(name, gpu=number)
    else:
        pod = gpu_pod(name, number)
    meta = msgspec.structs.replace(pod.metadata, uid=name)
    spec = msgspec.structs.replace(pod.spec, node_name=node if bound else "")
    return msgspec.structs.replace(pod, metadata=meta, spec=spec)


@examples(150)
@given(st.lists(st.one_of(_STEPS, _LABELS, _TRIALS), max_size=16))
def test_every_pod_has_its_gpus_and_no_gpu_is_given_out_twice(steps: list[Any]) -> None:
    machines = Machines()
    for step in steps:
        if step[0] == "try":
            machines.attempt(step[1], step[2])
        else:
            machines.do(*step)
        machines.check()


def test_the_end_of_a_trial_marks_a_node_whose_gpus_it_gave_out() -> None:
    machines = Machines()
    pod = PodInfo(_pod("p", "come", MACHINE, 2, bound=False))
    machines.snapshot.add_pod(pod, MACHINE)
    reader = StaleNodes(machines.snapshot)
    with machines.snapshot.trial():
        machines.ledger.hold_gpus(pod, MACHINE, (4, 5))
        reader.take()
    # No pod moved, but whatever was computed in the trial is wrong now.
    assert reader.take() == StaleNames((MACHINE,))
