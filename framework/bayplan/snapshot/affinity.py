"""Pod affinity terms, compiled for one pod and compared by content."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.api import Pod
from bayplan.api.pod import PodAffinityTerm
from bayplan.api.selectors import Requirement, Selector, compile_selector

__all__ = ["AffinityTerm", "HeldTerms", "compile_affinity_term", "held_terms"]

Labels = Mapping[str, str]


class AffinityTerm(msgspec.Struct, frozen=True):
    """One (anti-)affinity term with its defaults filled in.

    ``namespaces`` are names; ``namespace_selector`` adds the namespaces whose labels it selects.
    """

    topology_key: str
    selector: Selector
    namespaces: frozenset[str]
    namespace_selector: Selector

    def matches(self, namespace: str, labels: Labels, namespace_labels: Labels) -> bool:
        """Tell whether the term selects a pod of this namespace with these labels."""
        if namespace not in self.namespaces and not self.namespace_selector.matches(
            namespace_labels
        ):
            return False
        return self.selector.matches(labels)


class HeldTerms(msgspec.Struct, frozen=True):
    """All terms of one pod; preferred ones as (term, signed weight)."""

    required_affinity: tuple[AffinityTerm, ...] = ()
    required_anti_affinity: tuple[AffinityTerm, ...] = ()
    preferred: tuple[tuple[AffinityTerm, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.required_affinity or self.required_anti_affinity or self.preferred)


NO_TERMS = HeldTerms()
_shared: dict[HeldTerms, HeldTerms] = {NO_TERMS: NO_TERMS}
_SHARED_LIMIT = 100_000


def compile_affinity_term(term: PodAffinityTerm, namespace: str, labels: Labels) -> AffinityTerm:
    """Compile a term of a pod that lives in ``namespace`` and carries ``labels``.

    ``matchLabelKeys`` and ``mismatchLabelKeys`` narrow the selector by the pod's own labels, as
    the API server does when the pod is created; doing so twice changes nothing.
    """
    selector = compile_selector(term.label_selector)
    for key in term.match_label_keys:
        if key in labels:
            selector = selector.also(Requirement(key, "In", frozenset((labels[key],))))
    for key in term.mismatch_label_keys:
        if key in labels:
            selector = selector.also(Requirement(key, "NotIn", frozenset((labels[key],))))
    names = frozenset(term.namespaces)
    if not names and term.namespace_selector is None:
        names = frozenset((namespace,))
    return AffinityTerm(
        term.topology_key, selector, names, compile_selector(term.namespace_selector)
    )


def held_terms(pod: Pod) -> HeldTerms:
    """Compile all inter-pod terms of a pod; equal terms give the same object."""
    affinity = pod.spec.affinity
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return NO_TERMS
    namespace, labels = pod.metadata.namespace, pod.metadata.labels

    def compiled(term: PodAffinityTerm) -> AffinityTerm:
        return compile_affinity_term(term, namespace, labels)

    near, far = affinity.pod_affinity, affinity.pod_anti_affinity
    preferred = [
        (compiled(item.pod_affinity_term), sign * item.weight)
        for side, sign in ((near, 1), (far, -1))
        if side
        for item in side.preferred
    ]
    terms = HeldTerms(
        tuple(compiled(term) for term in near.required) if near else (),
        tuple(compiled(term) for term in far.required) if far else (),
        tuple(preferred),
    )
    if len(_shared) >= _SHARED_LIMIT:
        _shared.clear()
    return _shared.setdefault(terms, terms)
