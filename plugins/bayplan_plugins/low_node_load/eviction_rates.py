"""How often pods of one controller, or of one namespace, are evicted: a bucket of tokens for each.

Rules: Koordinator v1.8 (objectLimiters, pkg/descheduler/controllers/migration/controller.go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from bayplan.inputs.durations import parse_duration
from bayplan_plugins.low_node_load.args import LowNodeLoadArgs, ObjectLimiterArgs

__all__ = ["Evicted", "EvictionRates"]

_KEPT = 1.5
"""A bucket is forgotten after so many of its periods without an eviction."""


class Evicted(msgspec.Struct, frozen=True):
    """Of which namespace and controller a pod is, and how many pods the controller has.

    ``maker`` is "" where its controller does not count.
    """

    namespace: str
    maker: str
    replicas: int


class _Bucket(msgspec.Struct):
    tokens: float
    at: float

    def now(self, now: float, rate: float, burst: int) -> float:
        """Return how many tokens there are."""
        return min(float(burst), self.tokens + max(0.0, now - self.at) * rate)


class EvictionRates:
    """The buckets of all controllers and namespaces whose pods were evicted.

    :param most: returns how many pods of a controller may be away, by the number that it has.
    """

    def __init__(self, args: LowNodeLoadArgs, most: Callable[[int | str | None, int], int]) -> None:
        self._limiters: Mapping[str, ObjectLimiterArgs] = {
            name: one for name, one in args.limiters.items() if parse_duration(one.duration) > 0
        }
        self._per_workload = args.max_migrating_per_workload
        self._most = most
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def refuses(self, pod: Evicted, now: float) -> str:
        """Return which limit a pod's eviction would be beyond; "" for none."""
        for name, key, rate, burst in self._of(pod):
            bucket = self._buckets.get((name, key))
            if bucket is not None and bucket.now(now, rate, burst) < 1:
                return f"objectLimiters.{name}"
        return ""

    def take(self, pod: Evicted, now: float) -> None:
        """Count an eviction."""
        for name, key, rate, burst in self._of(pod):
            bucket = self._buckets.setdefault((name, key), _Bucket(float(burst), now))
            bucket.tokens, bucket.at = bucket.now(now, rate, burst) - 1, now

    def forget_old(self, now: float) -> None:
        """Drop the buckets of those that lost no pod for long."""
        keep = {name: parse_duration(one.duration) * _KEPT for name, one in self._limiters.items()}
        self._buckets = {
            key: bucket for key, bucket in self._buckets.items() if now - bucket.at < keep[key[0]]
        }

    def _of(self, pod: Evicted) -> Iterator[tuple[str, str, float, int]]:
        """Yield the limits of a pod: their name, whose they are, tokens a second, and the most."""
        for name, one in self._limiters.items():
            key = pod.maker if name == "workload" else pod.namespace
            count = self._count(name, one, pod.replicas)
            if key and count:
                yield name, key, count / parse_duration(one.duration), max(1, one.burst)

    def _count(self, name: str, one: ObjectLimiterArgs, replicas: int) -> int:
        if name == "namespace":
            # A percentage of a namespace is nothing.
            return one.max_migrating if isinstance(one.max_migrating, int) else 0
        stated = self._per_workload if one.max_migrating in (None, 0) else one.max_migrating
        return self._most(stated, replicas)
