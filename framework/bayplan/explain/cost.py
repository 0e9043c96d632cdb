"""What pods cost at list price, for as long as they say they run, and what pods to come will."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction

from bayplan.api import ComputePool, Node, ObjectMeta, Pod, pod_requests
from bayplan.api.node_state import model_of
from bayplan.api.objects import kind_of
from bayplan.billing.estimate import estimate
from bayplan.billing.money import decimal_text
from bayplan.billing.prices import PriceList, thousandths_of
from bayplan.dialects.compute_pool import pool_of
from bayplan.dialects.queued_jobs import JobPods, queued_job, queued_kinds
from bayplan.inputs.durations import duration_text, stated_duration
from bayplan.snapshot import Snapshot

__all__ = ["cost_text", "pods_to_come"]

_HOUR = 3600
_Key = tuple[str, str]


def cost_text(
    pods: Sequence[Pod],
    nodes: Sequence[Node],
    pools: Iterable[ComputePool],
    prices: PriceList,
    now: float,
) -> str:
    """Return what pods cost together, such as "4 x NVIDIA-H100 for 6 h: 96.00 EUR".

    Pods that do not say how long they run cost an amount per hour. Devices of claims are left out,
    as they are only known when they are allocated.

    :param pods: one or more pods of one job.
    :param now: seconds since 1970.
    :raises InputError: when there are no prices for now.
    """
    first = pods[0]
    labels, namespace = first.metadata.labels, first.metadata.namespace
    pool = pool_of(labels, namespace, pools) or ""
    amounts: dict[_Key, int] = defaultdict(int)
    for pod in pods:
        for resource, amount in pod_requests(pod.spec).effective.items():
            thousandths = amount if resource == "cpu" else amount * 1000
            amounts[resource, _model(pod, resource, nodes)] += thousandths
    seconds = stated_duration(first.metadata.annotations, first.spec.active_deadline_seconds)
    hours = Fraction(1) if seconds is None else Fraction(seconds) / _HOUR
    cost = estimate(amounts, pool, hours, prices, int(now * 1000))
    during = "" if seconds is None else f" for {duration_text(seconds)}"
    return f"{_amounts(amounts)}{during}: {cost}{' per hour' if seconds is None else ''}"


def pods_to_come(snapshot: Snapshot, kind: str, key: str) -> list[Pod]:
    """Return the pods that a suspended job will have, as its templates say; none if it has none.

    :param kind: the kind of the job; :param key: its ``namespace/name``.
    """
    for type_ in queued_kinds():
        found = snapshot.objects(type_).get(key)
        if found is not None and kind_of(found).name == kind:
            job = queued_job(found, lambda of, at: snapshot.objects(of).get(at))
            return [pod for one in job.pods for pod in [_pod(found.metadata, one)] * one.count]
    return []


def _pod(job: ObjectMeta, of: JobPods) -> Pod:
    own = of.template.metadata
    labels = {**own.labels, **of.labels}
    meta = ObjectMeta(
        name=job.name, namespace=job.namespace, labels=labels, annotations=own.annotations
    )
    return Pod(metadata=meta, spec=of.template.spec)


def _model(pod: Pod, resource: str, nodes: Iterable[Node]) -> str:
    """Return the model that a pod gets: that of its node, or of all nodes that it may select."""
    own = pod.spec.node_name
    wanted = pod.spec.node_selector.items()
    models = {
        model_of(node, resource)
        for node in nodes
        if (node.key == own if own else wanted <= node.metadata.labels.items())
        and resource in node.status.allocatable
    }
    return models.pop() if len(models) == 1 else ""


def _amounts(amounts: dict[_Key, int]) -> str:
    """Return the devices among the amounts in words, or all amounts where there is no device."""
    devices = {key: amount for key, amount in amounts.items() if "/" in key[0]}
    return ", ".join(
        f"{decimal_text(Fraction(amount, thousandths_of(resource)), 2)} x {model or resource}"
        if "/" in resource
        else f"{resource} {decimal_text(Fraction(amount, thousandths_of(resource)), 2)}"
        for (resource, model), amount in sorted((devices or amounts).items())
    )
