"""What cluster-autoscaler and Karpenter read and write: annotations, labels and taints.

A ProvisioningRequest asks cluster-autoscaler for the capacity of whole pod sets. Pods that use it
name it, so that they ask for no nodes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.api import Pod

__all__ = [
    "CLASS_ANNOTATION",
    "CONSUME_ANNOTATION",
    "DO_NOT_DISRUPT",
    "KARPENTER_LABEL",
    "LEAVING_TAINTS",
    "SAFE_TO_EVICT",
    "STAND_IN_LABEL",
    "STAND_IN_NAMESPACE",
    "STAND_IN_PODS",
    "consumed_request",
    "consuming",
    "is_stand_in",
]

CONSUME_ANNOTATION = "autoscaling.x-k8s.io/consume-provisioning-request"
CLASS_ANNOTATION = "autoscaling.x-k8s.io/provisioning-class-name"
_OLD_CONSUME = "cluster-autoscaler.kubernetes.io/consume-provisioning-request"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""On a pod: whether cluster-autoscaler may evict it to remove its node."""
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
"""On a pod: whether Karpenter leaves its node alone."""
KARPENTER_LABEL = "karpenter.sh/nodepool"
"""On every node of Karpenter: the pool that it comes from."""
LEAVING_TAINTS = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted")
"""On nodes that an autoscaler has decided to remove."""
STAND_IN_LABEL = "bayplan.dev/stand-in-for"
"""On a stand-in: a code of the unit whose nodes it asks for."""
STAND_IN_PODS = "bayplan.dev/stand-in-pods"
"""On a stand-in: the pods that it asks for, ``namespace/name`` with spaces between."""
STAND_IN_NAMESPACE = "bayplan-stand-ins"


def consuming(request: str, class_name: str) -> dict[str, str]:
    """Return the annotations of pods that use a ProvisioningRequest of their namespace."""
    return {CONSUME_ANNOTATION: request, CLASS_ANNOTATION: class_name}


def consumed_request(annotations: Mapping[str, str]) -> str:
    """Return the name of the ProvisioningRequest that a pod uses, "" for none."""
    return annotations.get(CONSUME_ANNOTATION) or annotations.get(_OLD_CONSUME, "")


def is_stand_in(pod: Pod) -> bool:
    """Tell whether a pod only asks autoscalers for nodes, and never gets one."""
    meta = pod.metadata
    return meta.namespace == STAND_IN_NAMESPACE and STAND_IN_LABEL in meta.labels
