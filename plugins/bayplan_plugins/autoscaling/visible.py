"""Pods as autoscalers have to see them, where they would otherwise ask for the wrong nodes.

Autoscalers run the filters of kube-scheduler on resources, labels and taints. They see neither
shares of GPUs, nor the network domain that a gang needs, nor why a node with enough free was
refused by any other plugin.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import msgspec
import numpy as np
from msgspec.structs import replace

from bayplan import Handle, PodInfo, Unit
from bayplan.api.gang import Gang, Gather
from bayplan.api.gpu_shares import WHOLE
from bayplan.api.meta import LabelSelector
from bayplan.api.pod import (
    Affinity,
    Container,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    ResourceRequirements,
)
from bayplan.api.quantity import Quantity
from bayplan.dialects.autoscaling import STAND_IN_LABEL
from bayplan.snapshot.networks import Networks
from bayplan.snapshot.nvlink import NVLINK_LAYER
from bayplan.topology.network.tree import HOSTNAME, TopologyError
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.gpus.vendors.kai.requests import GpuSizes, known_share

__all__ = ["VisiblePod", "VisiblePods", "code_of"]

_SEEN = frozenset(
    (
        "DynamicResources",
        "InterPodAffinity",
        "NodeAffinity",
        "NodeName",
        "NodePorts",
        "NodeResourcesFit",
        "NodeUnschedulable",
        "NodeVolumeLimits",
        "PodTopologySpread",
        "TaintToleration",
        "VolumeBinding",
        "VolumeRestrictions",
        "VolumeZone",
    )
)
"""The plugins whose refusals autoscalers come to, too."""
_LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_PLAIN = ("cpu", "memory", "ephemeral-storage")
_MOST_EXCLUDED = 512
"""Nodes that a stand-in names; in larger clusters the others are left to chance."""
_IMAGE = "registry.k8s.io/pause:3.10"


class VisiblePod(msgspec.Struct, frozen=True):
    """What an autoscaler has to see in place of a pod.

    ``amounts`` is what it asks for, in the units of the snapshot; ``share`` is the part of one
    device that it needs, 0 for whole ones. ``apart`` are the nodes that it cannot use though they
    have enough free. ``spec`` says where it may go.
    """

    pod: PodInfo
    amounts: Mapping[str, int]
    spec: PodSpec
    share: float = 0.0
    apart: frozenset[str] = frozenset()
    together: str = ""
    """A code of the pods that have to be in one domain, which they carry as a label."""
    domains: tuple[str, ...] = ()

    def full_spec(self) -> PodSpec:
        """Return the spec of a pod that asks for this and does nothing."""
        texts = {name: Quantity(_text(name, amount)) for name, amount in self.amounts.items()}
        resources = ResourceRequirements(requests=texts, limits=_limits(texts))
        ports = tuple(port for one in self.spec.containers for port in one.ports if port.host_port)
        container = Container(name="stand-in", image=_IMAGE, resources=resources, ports=ports)
        affinity = self.spec.affinity or Affinity()
        if self.apart:
            node = _without_nodes(affinity.node_affinity, sorted(self.apart))
            affinity = replace(affinity, node_affinity=node)
        if self.together:
            selector = LabelSelector({STAND_IN_LABEL: self.together})
            terms = tuple(PodAffinityTerm(key, selector) for key in self.domains)
            known = affinity.pod_affinity.required if affinity.pod_affinity is not None else ()
            affinity = replace(affinity, pod_affinity=PodAffinity(required=(*known, *terms)))
        return PodSpec(
            containers=(container,),
            node_selector=dict(self.spec.node_selector),
            affinity=affinity if affinity != Affinity() else None,
            tolerations=self.spec.tolerations,
            priority_class_name=self.spec.priority_class_name,
            scheduler_name=self.spec.scheduler_name,
            restart_policy="Never",
            termination_grace_period_seconds=0,
        )


class VisiblePods:
    """Tells what of a unit autoscalers cannot see.

    :param gpu: the resource that whole GPUs have.
    """

    def __init__(self, handle: Handle, gpu: str) -> None:
        self._handle = handle
        self._gpu = gpu
        self._ledger = handle.snapshot.shared(GpuLedger, GpuLedger)
        self._kai = GpuSizes(handle.snapshot)
        self._networks = Networks.of(handle.snapshot)
        self._smallest: tuple[object, int] = (None, 0)
        """The memory of the smallest GPU, and what it was read from."""

    def of(self, unit: Unit, young: frozenset[str] = frozenset()) -> list[VisiblePod] | None:
        """Return what autoscalers have to see of a unit; None if its pods say it themselves.

        :param young: nodes that may serve it yet, though they refuse it now.
        :raises PluginError: when another plugin of the profile fails.
        """
        labels = self._domains(unit)
        found = [self._visible(pod, young, *labels.get(pod.key, ("", ()))) for pod in unit.pods]
        if labels or any(self._is_share(one) for one in found):
            return found
        apart = self._apart(unit.pods[0], found[0].amounts, young)
        if not apart or unit.gang is not None:
            return None
        return [msgspec.structs.replace(one, apart=apart) for one in found]

    def as_they_are(self, pods: Sequence[PodInfo]) -> list[VisiblePod]:
        """Return pods as they say themselves what they need."""
        return [self._visible(pod, frozenset(), "", ()) for pod in pods]

    @staticmethod
    def _is_share(one: VisiblePod) -> bool:
        return bool(one.share) or one.amounts != one.pod.requests

    def _visible(
        self, pod: PodInfo, young: frozenset[str], together: str, domains: tuple[str, ...]
    ) -> VisiblePod:
        gpus, share = self._gpus(pod)
        affinity = pod.spec.affinity
        if affinity is not None:
            affinity = _from_outside(affinity, pod.namespace)
        spec = replace(pod.spec, affinity=affinity)
        amounts = dict(pod.requests)
        if gpus:
            amounts = {name: n for name, n in amounts.items() if _is_plain(name)}
            amounts[self._gpu] = gpus
        found = VisiblePod(pod, amounts, spec, share, together=together, domains=domains)
        if not gpus or together:
            return found
        return msgspec.structs.replace(found, apart=self._apart(pod, amounts, young))

    def _gpus(self, pod: PodInfo) -> tuple[int, float]:
        """Return the GPUs that a pod's words mean which no autoscaler reads, and the part of each.

        (0, 0.0) for a pod without such words.
        """
        kai = known_share(pod)
        if kai is not None and not isinstance(kai, str):
            part = self._kai.gpus_of(pod) / kai.devices if kai.devices else 0.0
            return kai.devices, part if 0.0 < part < 1.0 else 0.0
        for request in self._ledger.requests(pod).values():
            if request.counted_elsewhere or request.problem or not request.gpus:
                continue
            memory = request.memory / self._memory() if request.memory and self._memory() else 0.0
            part = max(request.compute / WHOLE, request.share, memory)
            return request.gpus, part if 0.0 < part < 1.0 else 0.0
        return 0, 0.0

    def _memory(self) -> int:
        """Return the memory of the smallest GPU that any node is known to have, in bytes."""
        table = self._handle.snapshot.nodes
        at = table.epoch, table.node_version
        if self._smallest[0] != at:
            gpus = (gpu for name in table.names for gpu in self._ledger.gpus(name))
            self._smallest = at, min((gpu.memory for gpu in gpus if gpu.memory), default=0)
        return self._smallest[1]

    # Domains -----------------------------------------------------------------------------------

    def _domains(self, unit: Unit) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Return, by pod, what has to be in one domain, and the labels of such domains."""
        if unit.gang is None:
            return {}
        keys = self._label_keys(unit.gang, unit.gang.gather)
        if keys:
            return {pod.key: (code_of(unit.key), keys) for pod in unit.pods}
        found: dict[str, tuple[str, tuple[str, ...]]] = {}
        for part in unit.parts:
            rules = part.gang.gather if part.gang is not None else ()
            keys = self._label_keys(part.gang or unit.gang, rules)
            if keys:
                found |= {pod.key: (code_of(part.key), keys) for pod in part.pods}
        return found

    def _label_keys(self, gang: Gang, rules: Iterable[Gather]) -> tuple[str, ...]:
        """Return the node labels of the layers that rules require, if labels name these.

        A layer that is not in any network may be the label of nodes that are still to come.
        """
        layers = [one.layer for one in rules if one.required]
        try:
            keys = self._networks.labels_of(layers, gang.topology) if layers else {}
        except TopologyError:
            keys = {layer: layer for layer in layers if _LABEL_KEY.fullmatch(layer)}
            keys.pop(NVLINK_LAYER, None)
        return tuple(dict.fromkeys(key for key in keys.values() if key != HOSTNAME))

    # Nodes that only seem to fit -----------------------------------------------------------------

    def _apart(
        self, pod: PodInfo, amounts: Mapping[str, int], young: frozenset[str]
    ) -> frozenset[str]:
        """Return the nodes that refuse a pod though they have as much free as it seems to need.

        Those are left out that autoscalers see as refusing it, too, and the ``young`` ones.
        """
        table = self._handle.snapshot.nodes
        mask = np.zeros(len(table), dtype=bool)
        for one in self._handle.refusals(pod):
            if one.plugin not in _SEEN:
                mask |= one.mask
        for name, amount in amounts.items():
            mask &= table.allocatable(name) - table.used(name) >= amount
        names = (table.names[row] for row in np.flatnonzero(mask).tolist())
        return frozenset(islice((n for n in names if n not in young), _MOST_EXCLUDED))


def code_of(text: str) -> str:
    """Return a value of a label for what may be no such value itself."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_plain(name: str) -> bool:
    return name in _PLAIN or name.startswith("hugepages-")


def _text(name: str, amount: int) -> str:
    return f"{amount}m" if name == "cpu" else str(amount)


def _limits(requests: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """Return the limits that an API server wants beside requests of what is never overcommitted."""
    return {n: amount for n, amount in requests.items() if "/" in n or n.startswith("hugepages-")}


def _from_outside(affinity: Affinity, namespace: str) -> Affinity:
    """Return an affinity that means the same pods from another namespace."""

    def named(part: PodAffinity | None) -> PodAffinity | None:
        if part is None:
            return None
        terms = tuple(
            term
            if term.namespaces or term.namespace_selector is not None
            else replace(term, namespaces=(namespace,))
            for term in part.required
        )
        return PodAffinity(required=terms)

    return replace(
        affinity,
        pod_affinity=named(affinity.pod_affinity),
        pod_anti_affinity=named(affinity.pod_anti_affinity),
    )


def _without_nodes(known: NodeAffinity | None, names: Sequence[str]) -> NodeAffinity:
    """Return a node affinity that leaves out nodes by their names."""
    off = NodeSelectorRequirement(HOSTNAME, "NotIn", tuple(names))
    terms = known.required.node_selector_terms if known and known.required else ()
    wanted = [
        replace(term, match_expressions=(*term.match_expressions, off))
        for term in terms or (NodeSelectorTerm(),)
    ]
    return NodeAffinity(NodeSelector(tuple(wanted)))
