"""Queues of pooled compute: a ConfigMap for each queue.

The ConfigMap has the label ``bayplan.dev/queue`` with the queue's name. Its data are the fields of
:class:`QueueFields`, as the texts that ConfigMaps hold::

    data:
      weight: "2"
      maxCapacity: "{cpu: 64, nvidia.com/gpu: 8}"
      guaranteedCapacity: "{nvidia.com/gpu: 4}"
      preemptionPolicy: reclaim
      tenants: "[team-a, team-b]"

Pods name their queue with the same label, or belong to it by their namespace, one of its tenants.
"""

from __future__ import annotations

from typing import Any, Literal

import pydantic
import pydantic.alias_generators
from pydantic import Field

from bayplan.api.configmap import ConfigMap
from bayplan.api.quantity import Quantity
from bayplan.api.queue import UNLIMITED, Order, Queue, Share
from bayplan.dialects.reading import share, timestamp
from bayplan.inputs.limits import ANNOTATION
from bayplan.inputs.yamltext import parse_yaml

__all__ = ["LABEL", "NAME", "QueueFields", "fields_of", "is_queue", "queue_of"]

NAME = "configmap"
LABEL = "bayplan.dev/queue"
"""The label of a queue's ConfigMap, and of the pods of the queue."""
_ORDERS = {"fifo": Order.FIFO, "priority": Order.PRIORITY}


class QueueFields(pydantic.BaseModel):
    """The data of a queue's ConfigMap.

    ``preemption_policy`` says whose jobs may be evicted for the queue's: nobody's (``never``), its
    own of lower priority (``lower_priority``), or also those of queues that have more than their
    share (``reclaim``). Jobs of a queue with ``fair_share`` false only get what it is guaranteed.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=pydantic.alias_generators.to_camel
    )

    name: str = ""
    parent: str = ""
    weight: float = Field(default=1.0, gt=0, le=1e6)
    priority: int = Field(default=0, ge=-(2**31), le=2**31 - 1)
    max_capacity: dict[str, str | int | float] = Field(default_factory=dict)
    guaranteed_capacity: dict[str, str | int | float] = Field(default_factory=dict)
    preemption_policy: Literal["never", "lower_priority", "reclaim"] = "reclaim"
    fair_share: bool = True
    policy: Literal["fifo", "priority", "fair_share", "capacity"] = "fair_share"
    tenants: tuple[str, ...] = ()


def is_queue(config_map: ConfigMap) -> bool:
    """Tell whether a ConfigMap defines a queue."""
    return LABEL in config_map.metadata.labels


def fields_of(config_map: ConfigMap) -> QueueFields:
    """Return the checked fields of a queue's ConfigMap.

    :raises ValueError: naming the field and what was expected.
    """
    content: dict[str, Any] = {}
    for key, text in config_map.data.items():
        try:
            content[key] = next(parse_yaml(text, ANNOTATION), None)
        except ValueError as exc:
            raise ValueError(f"data[{key}]: {exc}") from None
    try:
        return QueueFields.model_validate(content)
    except pydantic.ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"data[{where}]: {first['msg']}") from None


def queue_of(config_map: ConfigMap) -> Queue:
    """Return the queue of a ConfigMap; its ``problem`` says what is wrong with it."""
    meta = config_map.metadata
    name = meta.labels[LABEL]
    source = f"ConfigMap {config_map.key}"
    created = timestamp(meta.creation_timestamp)
    try:
        fields = fields_of(config_map)
        most = _amounts(fields.max_capacity, "maxCapacity")
        least = _amounts(fields.guaranteed_capacity, "guaranteedCapacity")
    except ValueError as exc:
        return Queue(name, source=source, created=created, uid=name, problem=str(exc))
    problem = None
    if fields.name and fields.name != name:
        problem = f'data[name]: "{fields.name}" is not the queue of the label, "{name}"'
    for resource, amount in least.amounts.items():
        if amount > most.amounts.get(resource, UNLIMITED):
            problem = f"data[guaranteedCapacity]: more {resource} than maxCapacity has"
    return Queue(
        name,
        fields.parent,
        source,
        deserved=least,
        guaranteed=least,
        limit=Share(most.amounts, UNLIMITED) if fields.fair_share else _capped(least, most),
        weight=Share(other=fields.weight),
        priority=fields.priority,
        created=created,
        uid=meta.uid or name,
        reclaimable=fields.preemption_policy != "never",
        order=_ORDERS.get(fields.policy, Order.PRIORITY),
        problem=problem,
    )


def _amounts(given: dict[str, str | int | float], field: str) -> Share:
    found = {}
    for resource, amount in given.items():
        try:
            found[resource] = Quantity(amount)
        except ValueError as exc:
            raise ValueError(f"data[{field}].{resource}: {exc}") from None
        if found[resource].amount < 0:
            raise ValueError(f"data[{field}].{resource}: expected 0 or more, got {amount}")
    return share(found)


def _capped(least: Share, most: Share) -> Share:
    """Return the limit of a queue that gets what it is guaranteed and no more."""
    names = {*least.amounts, *most.amounts}
    return Share(
        {name: min(least.of(name), most.amounts.get(name, UNLIMITED)) for name in names}, UNLIMITED
    )
