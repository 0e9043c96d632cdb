"""Claims made ready for allocation: classes looked up, requests checked."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from bayplan.api.dra import (
    CLAIM_LIMIT,
    POD_CLAIM_NAME,
    DeviceClass,
    DeviceConfiguration,
    DeviceSelector,
    DeviceTaint,
    ExactDeviceRequest,
    ResourceClaim,
)
from bayplan.api.pod import Toleration
from bayplan.api.quantity import Quantity
from bayplan_dra.allocator.model import (
    AllocationError,
    Features,
    Interrupt,
    PoolDevice,
    TimedOut,
)
from bayplan_dra.cel import (
    CelError,
    CompileError,
    EvaluationError,
    Interrupted,
    Program,
    compile_selector,
)

__all__ = [
    "BLOCKING_EFFECTS",
    "AttributeConstraint",
    "ClaimRequest",
    "ClaimToAllocate",
    "RequestSelector",
    "SelectorError",
    "Wanted",
    "prepare",
    "tolerated",
]

BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
Classes = Callable[[str], DeviceClass | None]


class RequestSelector(msgspec.Struct, frozen=True):
    """An expression and its place: the class ("" for the claim's own), request and index."""

    expression: str
    device_class: str
    request: str
    index: int

    @property
    def place(self) -> str:
        """The expression's place in its class or request."""
        owner = f"class {self.device_class}: " if self.device_class else ""
        return f"{owner}selector #{self.index}"

    def where(self, claim: str) -> str:
        """Return the expression's place for messages; ``claim`` is the claim's label."""
        return f"claim {claim}, request {self.request}: {self.place}"

    def owned(self, claim: str) -> str:
        """Return the expression's place as a phrase, as in "selector #0 of class gpu"."""
        owner = f"request {self.request} in claim {claim}"
        if self.device_class:
            owner = f"class {self.device_class}"
        return f"selector #{self.index} of {owner}"

    def program(self, features: Features, claim: str) -> Program:
        """Compile the expression.

        :raises AllocationError: when it does not compile.
        """
        try:
            return compile_selector(
                self.expression, features.consumable_capacity, features.list_attributes
            )
        except CompileError as exc:
            raise AllocationError(
                f"{self.where(claim)}: CEL compile error: compilation failed: {exc}"
            ) from None


class SelectorError(AllocationError):
    """A selector fails on a device, as for an attribute that the device does not have.

    :ivar owner: the selector, with the class or the request and claim that it is in.
    :ivar device: the name of the device. Its pool is left out, so that equal nodes have equal
        messages.
    :ivar error: what CEL says.
    :ivar detail: the message without claim and request.
    """

    def __init__(self, claim: str, selector: RequestSelector, device: str, error: str) -> None:
        at = f"CEL runtime error: {error} (on device {device})"
        self.owner = selector.owned(claim)
        self.device = device
        self.error = error
        self.detail = f"{selector.place}: {at}"
        super().__init__(f"{selector.where(claim)}: {at}")


class Wanted(msgspec.Struct, frozen=True, eq=False):
    """What one request, or one of its alternatives, asks for.

    :ivar name: "request" or "request/alternative".
    :ivar count: the number of devices; None for all that match.
    :ivar admin: whether it asks for admin access.
    """

    name: str
    device_class: DeviceClass
    selectors: tuple[RequestSelector, ...]
    count: int | None
    admin: bool
    tolerations: tuple[Toleration, ...]
    capacity: Mapping[str, Quantity]

    def tolerates(self, device: PoolDevice) -> bool:
        """Tell whether the request tolerates all taints of the device that block it."""
        return all(
            taint.effect not in BLOCKING_EFFECTS
            or any(tolerated(taint, toleration) for toleration in self.tolerations)
            for taint in device.taints
        )

    def selects(
        self,
        device: PoolDevice,
        features: Features,
        claim: str,
        interrupt: Interrupt | None = None,
    ) -> bool:
        """Tell whether the selectors of the class and of the request match the device.

        As in Kubernetes, an attribute without a value that CEL knows fails any expression, even one
        that does not read it: a newer API may have it.

        :param claim: the claim's label, for messages.
        :raises AllocationError: for an expression that does not compile.
        :raises SelectorError: for an expression that fails on the device.
        :raises TimedOut: when the interrupt says so.
        """
        for selector in self.selectors:
            program = selector.program(features, claim)
            try:
                _ = device.view.attributes
            except EvaluationError as exc:
                name = device.id.device
                raise SelectorError(claim, selector, name, str(exc)) from None
            if not _holds(selector, program, device, claim, interrupt):
                return False
        return True

    def selecting(
        self, features: Features, claim: str, interrupt: Interrupt | None = None
    ) -> tuple[Callable[[PoolDevice], bool], Callable[[PoolDevice], bool]]:
        """Return ``selects`` in two parts: the class's selectors and the request's.

        Every expression is compiled now.

        :raises AllocationError: for an expression that does not compile.
        """
        programs = [(one, one.program(features, claim)) for one in self.selectors]

        def part(of_class: bool) -> Callable[[PoolDevice], bool]:
            own = [pair for pair in programs if bool(pair[0].device_class) is of_class]
            return lambda device: all(
                _holds(one, run, device, claim, interrupt) for one, run in own
            )

        return part(True), part(False)


class ClaimRequest(msgspec.Struct, frozen=True, eq=False):
    """A request of a claim: one way to meet it, or several in order of preference."""

    name: str
    ways: tuple[Wanted, ...]
    prioritized: bool

    @property
    def least(self) -> int:
        """The fewest devices that any way takes; a way that takes all counts as 0."""
        return min(way.count if way.count is not None else 0 for way in self.ways)


class AttributeConstraint(msgspec.Struct, frozen=True):
    """matchAttribute, or with ``distinct`` distinctAttribute; without ``requests`` for all."""

    attribute: str
    distinct: bool
    requests: frozenset[str]

    def covers(self, wanted: str) -> bool:
        """Tell whether the constraint applies to a request or alternative, by its full name."""
        if not self.requests:
            return True
        return wanted in self.requests or wanted.partition("/")[0] in self.requests


class ClaimToAllocate(msgspec.Struct, frozen=True, eq=False):
    """A claim that is ready to be allocated; its status does not matter.

    ``called`` is the pod's name for the claim, where the claim does not have it itself.
    """

    claim: ResourceClaim
    requests: tuple[ClaimRequest, ...]
    constraints: tuple[AttributeConstraint, ...]
    config: tuple[DeviceConfiguration, ...] = msgspec.field(default=())
    called: str = ""

    @property
    def title(self) -> str:
        """The claim's name for messages."""
        meta = self.claim.metadata
        return f"claim {meta.namespace}/{meta.name}".replace(" /", " ")

    @property
    def label(self) -> str:
        """The pod's name for the claim, or else its own."""
        meta = self.claim.metadata
        return self.called or meta.annotations.get(POD_CLAIM_NAME, meta.name)


def _holds(
    selector: RequestSelector,
    program: Program,
    device: PoolDevice,
    claim: str,
    interrupt: Interrupt | None,
) -> bool:
    """Evaluate one selector.

    :raises SelectorError: when it fails on the device.
    :raises TimedOut: when the interrupt says so.
    """
    try:
        result = program.result(device.view, interrupt)
    except Interrupted:
        raise TimedOut(f"interrupted {selector.where(claim)}") from None
    except EvaluationError as exc:
        result = exc
    if isinstance(result, CelError):
        error = f"{result}{_suggestion(result, device)}"
        raise SelectorError(claim, selector, device.id.device, error)
    return result


def _suggestion(error: CelError, device: PoolDevice) -> str:
    """Suggest an attribute or capacity of the device for one that it does not have."""
    _, missing, name = str(error).partition("no such key: ")
    if not missing:
        return ""
    known = [key.rpartition("/")[2] for key in (*device.spec.attributes, *device.spec.capacity)]
    near = difflib.get_close_matches(name, known, n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def tolerated(taint: DeviceTaint, toleration: Toleration) -> bool:
    """Tell whether a toleration tolerates a taint; an empty key or effect matches any."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def prepare(claim: ResourceClaim, classes: Classes, features: Features) -> ClaimToAllocate:
    """Make a claim ready for allocation; nothing here depends on a node.

    :param classes: returns a device class by name, None if it does not exist.
    :raises AllocationError: naming the request that no node can meet.
    """
    title = ClaimToAllocate(claim, (), ()).title
    devices = claim.spec.devices
    requests = []
    for request in devices.requests:
        where = f"{title}, request {request.name}"
        if request.first_available:
            if not features.prioritized_list:
                raise AllocationError(
                    f"{where}: has subrequests, but the DRAPrioritizedList feature is disabled"
                )
            ways = tuple(
                _wanted(
                    sub,
                    f"{request.name}/{sub.name}",
                    f"{title}, subrequest {sub.name}",
                    classes,
                    features,
                )
                for sub in request.first_available
            )
            requests.append(ClaimRequest(request.name, ways, prioritized=True))
        else:
            exactly = request.exactly or ExactDeviceRequest()
            way = _wanted(exactly, request.name, where, classes, features)
            requests.append(ClaimRequest(request.name, (way,), prioritized=False))
    constraints = tuple(
        _constraint(index, c.match_attribute, c.distinct_attribute, c.requests, title)
        for index, c in enumerate(devices.constraints)
    )
    least = sum(request.least for request in requests)
    if least > CLAIM_LIMIT:
        raise AllocationError(
            f"{title}: number of requested devices {least} exceeds the claim limit of {CLAIM_LIMIT}"
        )
    return ClaimToAllocate(claim, tuple(requests), constraints, devices.config)


def _wanted(
    exactly: ExactDeviceRequest,
    name: str,
    where: str,
    classes: Classes,
    features: Features,
) -> Wanted:
    if not exactly.device_class_name:
        raise AllocationError(f"{where}: missing device class name (unsupported request type?)")
    found = classes(exactly.device_class_name)
    if found is None:
        raise AllocationError(
            f"{where}: could not retrieve device class {exactly.device_class_name}: not found"
        )
    if exactly.admin_access and not features.admin_access:
        raise AllocationError(f"{where}: admin access is requested, but the feature is disabled")
    capacity = exactly.capacity.requests if exactly.capacity is not None else {}
    if capacity and not features.consumable_capacity:
        raise AllocationError(
            f"{where}: has capacity requests, but the DRAConsumableCapacity feature is disabled"
        )
    mode = exactly.allocation_mode or "ExactCount"
    if mode not in ("ExactCount", "All"):
        raise AllocationError(f"{where}: unsupported count mode {mode}")
    selectors = [
        *_selectors(found.spec.selectors, found.metadata.name, name, where),
        *_selectors(exactly.selectors, "", name, where),
    ]
    return Wanted(
        name,
        found,
        tuple(selectors),
        None if mode == "All" else (1 if exactly.count is None else exactly.count),
        bool(exactly.admin_access),
        exactly.tolerations,
        capacity,
    )


def _selectors(
    selectors: Sequence[DeviceSelector], owner: str, request: str, where: str
) -> Sequence[RequestSelector]:
    found = []
    for index, selector in enumerate(selectors):
        if selector.cel is None or not selector.cel.expression:
            raise AllocationError(
                f"{where}, selector #{index}: CEL expression empty (unsupported selector type?)"
            )
        found.append(RequestSelector(selector.cel.expression, owner, request, index))
    return found


def _constraint(
    index: int,
    match: str | None,
    distinct: str | None,
    requests: Sequence[str],
    title: str,
) -> AttributeConstraint:
    if match is not None:
        return AttributeConstraint(match, False, frozenset(requests))
    if distinct is not None:
        return AttributeConstraint(distinct, True, frozenset(requests))
    raise AllocationError(
        f"{title}, constraint #{index}: empty constraint (unsupported constraint type?)"
    )
