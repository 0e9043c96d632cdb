"""ProvisioningRequests for gangs: capacity for all that a gang needs at once, or for nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from bayplan import Handle, NodeRequest, PodInfo, Unit
from bayplan.api import ObjectMeta, Pod
from bayplan.api.pod import PodTemplate
from bayplan.api.provisioning import ProvisioningRequest
from bayplan.api.times import seconds_of
from bayplan.cluster.protocol import PatchFields, pointer
from bayplan.dialects.autoscaling import STAND_IN_LABEL, consumed_request, consuming
from bayplan_plugins.autoscaling.visible import VisiblePod, code_of
from bayplan_plugins.shared.provisioning import (
    MOST_POD_SETS,
    RETRY_SECONDS,
    Attempt,
    AttemptState,
    Capacity,
    CapacityOf,
    ProvisioningAttempts,
    limited_name,
    merged_sets,
    owner_of_pods,
)

__all__ = ["GangRequests"]

_UNIT = "bayplan.dev/unit"
"""On a request: the key of the unit that it is for."""
_NO_NAME = re.compile(r"[^a-z0-9.-]+")
_CODE = 5
_GRACE = 10.0
_ANSWERED = 5.0
_FIRST_WAIT, _LONGEST_WAIT = 60.0, 1800.0
_LOST = (AttemptState.FAILED, AttemptState.REVOKED, AttemptState.EXPIRED)
_SAYS = {
    AttemptState.FAILED: "failed",
    AttemptState.REVOKED: "has lost its capacity",
    AttemptState.EXPIRED: "was booked for too short",
}


class GangRequests:
    """The ProvisioningRequests of units that wait for nodes."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._attempts = ProvisioningAttempts(handle)
        self._asked: dict[str, str] = {}
        """The key of what was asked for, by unit."""
        self._annotated: dict[str, str] = {}
        """The request that is written into each pod, by the pod's uid."""
        self._began: float | None = None

    @property
    def is_served(self) -> bool:
        """Whether the cluster has such requests, as far as is known."""
        return self._attempts.is_served

    def ask(
        self,
        unit: Unit,
        pods: Callable[[], Sequence[VisiblePod]],
        class_name: str,
        parameters: Mapping[str, str],
    ) -> NodeRequest:
        """Ask for the nodes of a unit; return how far that is.

        :param pods: returns what its pods need, where something is to be asked for.
        """
        capacity = partial(self._capacity, unit, pods, class_name, parameters)
        key = f"{unit.pods[0].namespace}/{_name(unit)}"
        self._asked[unit.key] = key
        attempt = self._attempts.latest(key)
        if attempt is None:
            return self._first(capacity, key)
        if attempt.state in _LOST:
            return self._lost(capacity, attempt)
        if _differs(attempt, unit, class_name, parameters):
            return self._again(capacity(), attempt, "is for another number of pods")
        self._tell_pods(unit.pods, attempt, class_name)
        name = attempt.name
        if attempt.state is AttemptState.PROVISIONED:
            return _follow(f"ProvisioningRequest {name} is provisioned: its nodes are coming.")
        said = f": {attempt.message}" if attempt.message else "."
        return _follow(f"ProvisioningRequest {name} asks for its nodes{said}")

    def _lost(self, capacity: Callable[[], Capacity], attempt: Attempt) -> NodeRequest:
        """Try again once the backoff of an attempt that came to nothing is over."""
        wait = min(_FIRST_WAIT * 2 ** min(attempt.number - 1, 10), _LONGEST_WAIT)
        left = seconds_of(attempt.since) + wait - self._handle.unix_time
        said = f": {attempt.message}" if attempt.message else ""
        what = f"ProvisioningRequest {attempt.name} {_SAYS[attempt.state]}{said}"
        if left > 0:
            again = self._handle.now + left
            text = f"{what}; it is tried again after {wait:.0f} s."
            return NodeRequest(text, again, follows=True)
        return self._again(capacity(), attempt, what.partition(attempt.name)[2].strip())

    def _first(self, capacity: Callable[[], Capacity], key: str) -> NodeRequest:
        problem = self._attempts.problem(key)
        if problem:
            again = self._handle.now + RETRY_SECONDS
            return NodeRequest(f"No ProvisioningRequest can be made: {problem}.", again)
        wanted = capacity()
        if len(wanted.pod_sets) > MOST_POD_SETS:
            kinds = len(wanted.pod_sets)
            return NodeRequest(
                f"No ProvisioningRequest can be made: its pods are of {kinds} kinds, and a request "
                f"has at most {MOST_POD_SETS}."
            )
        self._attempts.ask(wanted, 1)
        text = f"ProvisioningRequest {wanted.name}-1 asks for its nodes."
        return NodeRequest(text, self._handle.now + _ANSWERED, follows=True)

    def _again(self, wanted: Capacity, attempt: Attempt, why: str) -> NodeRequest:
        """Ask once more, in place of an attempt that is of no use."""
        self._attempts.ask(wanted, attempt.number + 1)
        self._attempts.withdraw(attempt)
        new = f"{wanted.name}-{attempt.number + 1}"
        return _follow(f"ProvisioningRequest {attempt.name} {why}; {new} asks for its nodes.")

    @staticmethod
    def _capacity(
        unit: Unit,
        pods: Callable[[], Sequence[VisiblePod]],
        class_name: str,
        parameters: Mapping[str, str],
    ) -> Capacity:
        first = unit.pods[0]
        # What tells the members of a gang apart does not tell their needs apart.
        common = set(first.labels.items()).intersection(*(pod.labels.items() for pod in unit.pods))
        sets = [
            CapacityOf((f"set-{index}",), _template(one, dict(sorted(common))), 1)
            for index, one in enumerate(list(pods())[: unit.min_placed])
        ]
        return Capacity(
            first.namespace,
            _name(unit),
            merged_sets(sets, None),
            class_name,
            dict(parameters),
            owner_of_pods(first.pod),
            {_UNIT: unit.key},
        )

    def _tell_pods(self, pods: Sequence[PodInfo], attempt: Attempt, class_name: str) -> None:
        """Let pods say which request they use, so that they ask for no nodes themselves."""
        for pod in pods:
            if consumed_request(pod.annotations) == attempt.name:
                continue
            if self._annotated.get(pod.uid) == attempt.name:
                continue
            self._annotated[pod.uid] = attempt.name
            said = consuming(attempt.name, class_name)
            fields: dict[str, object] = {
                pointer("metadata", "annotations", key): text for key, text in said.items()
            }
            if not pod.annotations:
                fields = {"/metadata/annotations": said}
            self._handle.submit(PatchFields(Pod, pod.key, pod.uid, fields))

    def drop(self, unit: str) -> None:
        """Withdraw what was asked for a unit that needs no nodes any more."""
        key = self._asked.pop(unit, None)
        for attempt in list(self._attempts.all(key)) if key is not None else ():
            self._attempts.withdraw(attempt)

    def is_of_another(self, name: str, namespace: str) -> bool:
        """Tell whether a request, by name, is there and is none of these."""
        request = self._handle.snapshot.objects(ProvisioningRequest).get(f"{namespace}/{name}")
        return request is not None and _UNIT not in request.metadata.annotations

    def sweep(self) -> float | None:
        """Withdraw what an earlier process left; return when to look again, in seconds."""
        now = self._handle.now
        if self._began is None:
            self._began = now
        left = [
            one
            for one in self._handle.snapshot.objects(ProvisioningRequest).values()
            if self._is_left(one)
        ]
        if not left:
            return None
        if now < self._began + _GRACE:
            return self._began + _GRACE
        for one in left:
            self._attempts.withdraw(Attempt(0, one))
        return None

    def _is_left(self, request: ProvisioningRequest) -> bool:
        unit = request.metadata.annotations.get(_UNIT)
        going = request.metadata.deletion_timestamp is not None
        return unit is not None and unit not in self._asked and not going


def _name(unit: Unit) -> str:
    """Return the name of a unit's requests without the attempt.

    What is left out of the unit's key, and whether it is a gang, is in a code.
    """
    _, _, name = unit.key.partition("/")
    plain = _NO_NAME.sub("-", name.lower()).strip("-.") or "unit"
    kind = "gang" if unit.gang is not None else "pod"
    return limited_name(plain, code_of(f"{kind} {unit.key}")[:_CODE])


def _follow(text: str) -> NodeRequest:
    return NodeRequest(text, follows=True)


def _differs(attempt: Attempt, unit: Unit, class_name: str, parameters: Mapping[str, str]) -> bool:
    """Tell whether an attempt asks for something else than a unit needs now."""
    spec = attempt.request.spec
    count = sum(one.count for one in spec.pod_sets)
    return (count, spec.provisioning_class_name, dict(spec.parameters)) != (
        min(unit.min_placed, len(unit.pods)),
        class_name,
        dict(parameters),
    )


def _template(one: VisiblePod, labels: dict[str, str]) -> dict[str, object]:
    """Return a pod template that asks for what a pod needs; it has no claims of its own."""
    spec = one.full_spec()
    if one.amounts == one.pod.requests:
        claims = one.pod.spec.resource_claims
        spec = msgspec.structs.replace(spec, resource_claims=claims, volumes=one.pod.spec.volumes)
    spec = msgspec.structs.replace(spec, termination_grace_period_seconds=30)
    if one.together:
        labels = {**labels, STAND_IN_LABEL: one.together}
    template = PodTemplate(ObjectMeta(labels=labels), spec)
    return dict(msgspec.to_builtins(template, enc_hook=lambda quantity: quantity.text))
