"""Select the GPUs of a machine that a pod should get.

``select`` answers one request for the free GPUs. The policy ``ring`` is bayplan's own: it prefers
the fastest rings, then NICs near the GPUs and on the wanted rails, then few NUMA nodes, then sets
that leave large NVLink groups, NUMA nodes and PCIe switches whole. The other policies are those of
other schedulers (:mod:`bayplan.topology.machine.policies`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from bayplan.naming import counted
from bayplan.topology.machine.gpu_search import NO_CONSTRAINTS, Constraints, SetRequest, search_of
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.policies import POLICIES, PolicyRequest, by_policy
from bayplan.topology.machine.rings import ring_model

__all__ = [
    "NO_CONSTRAINTS",
    "RING",
    "Constraints",
    "NoSelection",
    "Selection",
    "SelectionRequest",
    "select",
    "select_first",
]

RING = "ring"


class SelectionRequest(msgspec.Struct, frozen=True):
    """A request for ``count`` GPUs that include the ``required`` ones.

    ``policy`` is "ring" or a name in ``policies.POLICIES``. ``rails`` are the rails that the job
    uses on other nodes. With ``multi_node``, traffic leaves the machine, so more NICs are better.
    """

    count: int
    required: frozenset[int] = frozenset()
    constraints: Constraints = NO_CONSTRAINTS
    policy: str = RING
    rails: frozenset[int] = frozenset()
    multi_node: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected GPUs, in rising order. Bandwidths are GB/s on the wire, infinite for one GPU.

    ``bottleneck`` is what all rings together carry, ``slowest_edge`` the slowest edge of the best
    single ring. ``relaxed`` names the constraints that were given up, "" if none.
    """

    gpus: tuple[int, ...]
    bottleneck: float
    slowest_edge: float
    why: tuple[str, ...] = field(default=(), compare=False)
    relaxed: str = ""


class NoSelection(msgspec.Struct, frozen=True):
    """No set was found; ``reason`` says why."""

    reason: str


def select_first(
    machine: Machine, free: Iterable[int], requests: Sequence[SelectionRequest]
) -> Selection | NoSelection:
    """Answer the first of several requests that has an answer.

    :param requests: the strictest first. If a later one is answered, ``Selection.relaxed`` names
        the constraints of the first. If none is, the reason is that of the last.
    :raises ValueError: as ``select`` does.
    """
    gpus = tuple(free)
    answer: Selection | NoSelection = NoSelection("nothing was requested")
    for index, request in enumerate(requests):
        answer = select(machine, gpus, request)
        if isinstance(answer, Selection):
            return (
                dataclasses.replace(answer, relaxed=str(requests[0].constraints))
                if index
                else answer
            )
    return answer


def select(
    machine: Machine, free: Iterable[int], request: SelectionRequest
) -> Selection | NoSelection:
    """Select GPUs, or say why that is impossible.

    :param free: the indices of the GPUs that may be taken.
    :raises ValueError: for a GPU that the machine does not have, a count below 1, or an unknown
        policy.
    """
    gpus = tuple(sorted(set(free)))
    outside = [gpu for gpu in (*gpus, *request.required) if not 0 <= gpu < len(machine)]
    if outside:
        have = counted(len(machine), "GPU")
        raise ValueError(f"GPU{outside[0]} does not exist: the machine has {have}")
    if request.count < 1:
        raise ValueError(f"expected a count of 1 or more, got {request.count}")
    refusal = _refusal(machine, gpus, request)
    if refusal:
        return NoSelection(refusal)
    if request.policy == RING:
        return _by_rings(machine, gpus, request)
    if request.policy not in POLICIES:
        raise ValueError(f'there is no policy "{request.policy}"')
    return _by_policy(machine, gpus, request)


def _set_request(request: SelectionRequest) -> SetRequest:
    return SetRequest(
        request.count,
        request.required,
        request.constraints,
        request.rails,
        request.multi_node,
    )


def _refusal(machine: Machine, free: Sequence[int], request: SelectionRequest) -> str:
    wanted = f"{request.count} {'is' if request.count == 1 else 'are'} asked for"
    if request.count > len(machine):
        return f"the machine has {counted(len(machine), 'GPU')}, {wanted}"
    if len(free) < request.count:
        verb = "is" if len(free) == 1 else "are"
        return f"{len(free)} of {counted(len(machine), 'GPU')} {verb} free, {wanted}"
    if len(request.required) > request.count:
        return f"{len(request.required)} GPUs are required, only {wanted}"
    taken = sorted(request.required - set(free))
    return f"GPU{taken[0]} is required and not free" if taken else ""


def _by_rings(
    machine: Machine, free: tuple[int, ...], request: SelectionRequest
) -> Selection | NoSelection:
    search = search_of(machine)
    wanted = _set_request(request)
    gpus = search.best(free, wanted)
    if gpus is None:
        return NoSelection(_why_none(machine, free, request))
    return _selection(machine, gpus, search.reasons(free, gpus, wanted))


def _selection(machine: Machine, gpus: tuple[int, ...], why: Iterable[str]) -> Selection:
    rings = ring_model(machine)
    return Selection(gpus, rings.bandwidth(gpus), rings.slowest(gpus), tuple(why))


def _by_policy(
    machine: Machine, free: tuple[int, ...], request: SelectionRequest
) -> Selection | NoSelection:
    search = search_of(machine)
    asked = PolicyRequest(
        free,
        request.count,
        request.required,
        lambda gpus: search.meets(gpus, request.constraints),
    )
    chosen = by_policy(machine, request.policy, asked)
    if chosen is None:
        if search.best(free, _set_request(request)) is None:
            return NoSelection(_why_none(machine, free, request))
        found = f"{request.count} GPUs with {request.constraints}"
        return NoSelection(f"policy {request.policy} does not find {found}, though they exist")
    gpus = tuple(sorted(chosen))
    why = (POLICIES[request.policy].what, *search.reasons(free, gpus, _set_request(request)))
    return _selection(machine, gpus, why)


def _why_none(machine: Machine, free: tuple[int, ...], request: SelectionRequest) -> str:
    """Say which constraint no set of the free GPUs meets."""
    search = search_of(machine)
    asked = request.constraints
    wanted = _set_request(request)
    of = f"no {request.count} of {counted(len(free), 'free GPU')}"
    tried = (
        (Constraints(same_numa=asked.same_numa), "are on one NUMA node"),
        (Constraints(nvlink=asked.nvlink), "are connected by NVLink alone"),
        (
            Constraints(worst_level=asked.worst_level),
            f"are no farther apart than {asked.worst_level.name}",
        ),
    )
    for constraints, what in tried:
        if constraints != NO_CONSTRAINTS:
            if search.best(free, replace(wanted, constraints=constraints)) is None:
                return f"{of} {what}"
    plain = search.best(free, replace(wanted, constraints=NO_CONSTRAINTS))
    assert plain is not None, "without constraints there is always a set"
    best = ring_model(machine).bandwidth(plain)
    if asked.min_bandwidth > best:
        return f"{of} reach {asked.min_bandwidth:g} GB/s; the best reach {best:g}"
    return f"{of} meet all of: {asked}"
