"""NCCL's environment for a pod: as annotations, or as a ConfigMap for envFrom."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan import PodInfo
from bayplan.api import ObjectMeta
from bayplan.api.configmap import ConfigMap
from bayplan.api.meta import OwnerReference
from bayplan.naming import natural_key
from bayplan.nccl import Member, environment, needed_topology_file, plan_job

__all__ = ["annotations_of", "config_map_of"]

_ENVIRONMENT = "bayplan.dev/nccl-env"
_RING = "bayplan.dev/nccl-ring"
_TOPOLOGY = "bayplan.dev/nccl-topology"
_WHY = "bayplan.dev/nccl-why"
_FILE = "nccl-topo.xml"
_SIZE = 2**30


def annotations_of(member: Member, others: Sequence[Member], spans_nodes: bool) -> dict[str, str]:
    """Return the annotations with the variables, the ring, and why each variable is set.

    :param others: the GPUs of the job's other pods.
    :param spans_nodes: whether the job has, or will have, pods on other nodes.
    """
    variables = environment(member, others, spans_nodes)
    found = _about_ring(member, others)
    if variables:
        found[_ENVIRONMENT] = "\n".join(str(variable) for variable in variables)
        found[_WHY] = "\n".join(f"{one.name}: {one.why}" for one in variables)
    file = needed_topology_file(member.machine)
    if file:
        found[_TOPOLOGY] = file
    return found


def config_map_of(
    pod: PodInfo, member: Member, others: Sequence[Member], spans_nodes: bool
) -> ConfigMap:
    """Return the ConfigMap ``<pod>-nccl``: a key for each variable, and the topology file.

    The pod owns it, so it is deleted with the pod. Parameters as for ``annotations_of``.
    """
    variables = environment(member, others, spans_nodes)
    data = {variable.name: variable.value for variable in variables}
    file = needed_topology_file(member.machine)
    if file:
        data[_FILE] = file
    notes = _about_ring(member, others)
    if variables:
        notes[_WHY] = "\n".join(f"{one.name}: {one.why}" for one in variables)
    owner = OwnerReference("Pod", pod.name, pod.uid, "v1")
    name = f"{pod.name}-nccl"
    meta = ObjectMeta(
        name=name, namespace=pod.namespace, annotations=notes, owner_references=(owner,)
    )
    return ConfigMap(meta, data)


def _about_ring(member: Member, others: Sequence[Member]) -> dict[str, str]:
    """Describe the part of the job's ring on the node, over all GPUs that are assigned so far.

    Of the other nodes only the two neighbours are named, so that the text does not grow with the
    job.
    """
    if not others:
        return {}
    plan = plan_job(sorted((member, *others), key=lambda one: natural_key(one.node)))
    part = plan.part(member.node)
    way = " ".join(f"{member.node}/{gpu}" for gpu in part.gpus)
    if part.after != member.node:
        way = f"{part.before} > {way} > {part.after}"
    if plan.bandwidth:
        seconds = plan.all_reduce_seconds(_SIZE)
        way += f" ({plan.bandwidth:g} GB/s, 1 GiB reduced in {seconds * 1e3:.1f} ms)"
    return {_RING: way}
