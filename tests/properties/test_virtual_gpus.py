"""Virtual GPUs: whatever comes, no GPU is given out beyond what it has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.api import Node, ObjectMeta, Pod, PodSpec, Quantity
from bayplan.api.gpu_shares import GpuUse, OfferedGpu, Share
from bayplan.api.pod import Container, ResourceRequirements
from bayplan.snapshot import PodInfo, Snapshot
from bayplan.topology.machine.readers.hami_register import REGISTER
from bayplan_plugins.gpus.vendors.adapter import GpusInUse, ShareRequest
from bayplan_plugins.gpus.vendors.hami.adapter import VirtualGpuAdapter, hami_adapter

PROFILES = [
    {
        "name": f"{slices}g.{memory}gb",
        "memoryMB": memory * 1024,
        "core": 14 * slices,
        "sliceCount": slices,
        "placements": [{"start": start, "size": size} for start in starts],
    }
    for slices, memory, size, starts in (
        (1, 10, 1, range(7)),
        (2, 20, 2, (0, 2, 4)),
        (3, 40, 4, (0, 4)),
        (7, 80, 8, (0,)),
    )
]


@st.composite
def registers(draw: st.DrawFn) -> str:
    """Return the register of a node with up to four GPUs."""
    return json.dumps(
        [
            {
                "id": f"GPU-{index}",
                "index": index,
                "count": draw(st.integers(1, 4)),
                "devmem": draw(st.sampled_from([1001, 8192, 81920])),
                "devcore": 100,
                "type": draw(st.sampled_from(["NVIDIA-A100", "NVIDIA-H100"])),
                "numa": draw(st.integers(0, 1)),
                "mode": draw(st.sampled_from(["hami-core", "mig"])),
                "health": draw(st.integers(0, 9)) > 0,
                "migProfiles": PROFILES,
            }
            for index in range(draw(st.integers(1, 4)))
        ]
    )


AMOUNTS = st.fixed_dictionaries(
    {"gpu": st.integers(1, 3)},
    optional={
        "gpumem": st.sampled_from([0, 1, 500, 4000, 20000, 81920]),
        "gpumem-percentage": st.integers(0, 100),
        "gpucores": st.sampled_from([0, 1, 30, 50, 100]),
    },
)
NOTES = st.fixed_dictionaries(
    {},
    optional={
        "hami.io/gpu-scheduler-policy": st.sampled_from(
            ["binpack", "spread", "mutex", "numa,binpack", "topology-aware", "mutex,numa"]
        ),
        "nvidia.com/numa-bind": st.sampled_from(["true", "false"]),
        "nvidia.com/vgpu-mode": st.sampled_from(["mig", "hami-core"]),
        "nvidia.com/use-gputype": st.just("h100"),
        "nvidia.com/nouse-gpuuuid": st.just("GPU-0"),
    },
)
INIT = st.lists(st.tuples(st.booleans(), AMOUNTS), max_size=2)


@st.composite
def pods(draw: st.DrawFn, name: str) -> Pod:
    init = [_container(f"i{n}", own, stays) for n, (stays, own) in enumerate(draw(INIT))]
    own = [_container(f"c{n}", one) for n, one in enumerate(draw(st.lists(AMOUNTS, max_size=2)))]
    spec = PodSpec(containers=tuple(own), init_containers=tuple(init), node_name="n")
    return Pod(ObjectMeta(name=name, namespace="default", uid=name, annotations=draw(NOTES)), spec)


def _container(name: str, amounts: dict[str, Any], stays: bool = False) -> Container:
    limits = {f"nvidia.com/{key}": Quantity(value) for key, value in amounts.items()}
    resources = ResourceRequirements(limits=limits)
    return Container(name, resources=resources, restart_policy="Always" if stays else "")


@st.composite
def worlds(draw: st.DrawFn) -> tuple[str, list[Pod]]:
    return draw(registers()), [draw(pods(f"p{n}")) for n in range(draw(st.integers(1, 6)))]


def state_of(gpus: Sequence[OfferedGpu], held: Sequence[Share]) -> GpusInUse:
    uses = {gpu.index: GpuUse() for gpu in gpus}
    for share in held:
        uses[share.gpu] = uses[share.gpu].plus(share)
    return GpusInUse(tuple(gpus), tuple(uses.values()))


def placed(
    contract: VirtualGpuAdapter, node: Node, pod: Pod, state: GpusInUse
) -> tuple[Share, ...]:
    """Try a pod on a node; check what is written and read back, and return what it holds."""
    info = PodInfo(pod)
    request = contract.request(info)
    if request is None or request.problem:
        return ()
    choice = contract.choose(info, request, state)
    assert bool(contract.fits(info, request, state).shares) == bool(choice.shares)
    check_columns(request, state, bool(choice.shares))
    if choice.shares:
        written = contract.written(info, node, state.gpus, choice.shares, 0.0)
        annotations = {**pod.metadata.annotations, **written.annotations}
        bound = Pod(replace(pod.metadata, annotations=annotations), pod.spec)
        assert contract.held(PodInfo(bound), state.gpus) == choice.shares
    else:
        assert choice.reason
    return choice.shares


def check_columns(request: ShareRequest, state: GpusInUse, fits: bool) -> None:
    """What columns compare never refuses a pod that fits."""
    enough = sum(
        gpu.compute - use.compute >= request.compute
        and gpu.memory - use.memory >= max(request.memory, int(gpu.memory * request.share))
        for gpu, use in zip(state.gpus, state.used, strict=True)
    )
    assert enough >= request.gpus or not fits


@given(worlds())
def test_no_gpu_is_given_out_beyond_what_it_has(world: tuple[str, list[Pod]]) -> None:
    register, wanted = world
    contract = hami_adapter(Snapshot(lambda: 0.0))
    node = Node(ObjectMeta(name="n", annotations={REGISTER: register}))
    gpus = contract.gpus(node)
    assert isinstance(gpus, tuple)
    held: list[Share] = []
    for pod in wanted:
        held += placed(contract, node, pod, state_of(gpus, held))
        state = state_of(gpus, held)
        for gpu, use in zip(state.gpus, state.used, strict=True):
            assert use.compute <= gpu.compute
            assert use.memory <= gpu.memory
            assert use.slots <= gpu.slots
            check_partitions(gpu, use)


def check_partitions(gpu: OfferedGpu, use: GpuUse) -> None:
    """Partitions lie where their profiles may be, and do not overlap on either axis."""
    known = {profile.name: profile for profile in gpu.profiles}
    taken: set[int] = set()
    for partition in use.partitions:
        profile = known[partition.profile]
        assert partition.start in profile.starts
        own = set(range(partition.start, partition.start + partition.size))
        assert not own & taken
        taken |= own
    assert sum(known[one.profile].slices for one in use.partitions) <= 7
    assert gpu.mode == "mig" or not use.partitions
