"""What the columns of GPUs show is what the ledger knows of each node, whatever happens."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.plugins.gpus.koordinator.koordinator_builders import devices, gpu, node, pod

from bayplan.api import KoordinatorDevice
from bayplan.api.gpu_shares import WHOLE, GpuUse, OfferedGpu
from bayplan.testing import Cluster
from bayplan_plugins.gpus.columns import NO_GPU, GpuArrays
from bayplan_plugins.gpus.ledger import GpuLedger

NODES = ("n0", "n1", "n2")
GPUS = 3

_STEPS = st.one_of(
    st.tuples(st.just("come"), st.integers(1, 3), st.sampled_from((20, 50, 70, 100))),
    st.tuples(st.just("go"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("try"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("fail"), st.integers(0, 2), st.integers(0, 7)),
    st.tuples(st.just("leave"), st.integers(0, 2), st.just(0)),
)


class World:
    """A cluster whose pods, devices and nodes come and go."""

    def __init__(self) -> None:
        self.cluster = Cluster([])
        for name in NODES:
            self.join(name)
        self.ledger = self.cluster.snapshot.shared(GpuLedger, GpuLedger)
        self.made = 0

    def join(self, name: str, healthy: int = 7) -> None:
        """Add or change a node; ``healthy`` has a bit for each GPU."""
        own = [gpu(place, health=bool(healthy >> place & 1)) for place in range(GPUS)]
        made = devices(name, *own)
        if self.cluster.api.get(KoordinatorDevice, name) is None:
            self.cluster.add(made, node(name, gpus=GPUS))
        else:
            self.cluster.api.update(made)

    def do(self, what: str, first: int, second: int) -> None:
        placed = sorted(self.cluster.snapshot.placed)
        if what == "come":
            amounts = {"gpu.shared": first, "gpu-core": first * second}
            amounts["gpu-memory-ratio"] = first * second
            whole = {"nvidia.com/gpu": first}
            self.made += 1
            self.cluster.add(pod(f"p{self.made}", whole if second == 100 else amounts))
        elif what == "go" and placed:
            self.cluster.remove(placed[first % len(placed)].removeprefix("default/"))
        elif what == "try" and placed:
            with self.cluster.snapshot.trial():
                self.cluster.snapshot.remove_pod(placed[first % len(placed)])
                self.check()
        elif what == "fail":
            self.join(NODES[first], healthy=second)
        elif what == "leave":
            snapshot = self.cluster.snapshot
            if NODES[first] in snapshot.nodes.row_of:
                snapshot.delete_node(NODES[first])
        self.cluster.schedule()
        self.check()

    def check(self) -> None:
        shown = self.ledger.columns.arrays()
        for name, row in self.cluster.snapshot.nodes.row_of.items():
            state = self.ledger.state(name)
            known = zip(state.gpus, state.used, strict=True) if state is not None else ()
            for place, (offered, used) in enumerate(known):
                assert _shown(shown, row, place) == _left(offered, used), (name, place)


def _shown(arrays: GpuArrays, row: int, place: int) -> tuple[Any, ...]:
    columns = (arrays.compute, arrays.memory, arrays.slots, arrays.all_compute, arrays.part)
    return tuple(column.item(row, place) for column in columns)


def _left(gpu: OfferedGpu, used: GpuUse) -> tuple[int, ...]:
    if not gpu.healthy or gpu.cordoned:
        return (*(NO_GPU for _ in range(4)), 0)
    compute, memory = gpu.compute - used.compute, gpu.memory - used.memory
    part = min(compute, memory * WHOLE // gpu.memory)
    left = (compute, memory, gpu.slots - used.slots)
    return (*(max(0, one) for one in left), gpu.compute, max(0, part))


@examples(60)
@given(st.lists(_STEPS, max_size=14))
def test_columns_show_what_is_left_of_every_gpu(steps: list[tuple[str, int, int]]) -> None:
    world = World()
    for step in steps:
        world.do(*step)
