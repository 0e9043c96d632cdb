"""The API server's checks of rollout settings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bayplan.api.workloads import (
    DaemonSet,
    Deployment,
    RollingDaemonSet,
    RollingDeployment,
    StatefulSet,
)

__all__ = ["rollout_problems"]

Problem = tuple[str, str]
_STRATEGY = {Deployment: "strategy", StatefulSet: "updateStrategy", DaemonSet: "updateStrategy"}


def rollout_problems(obj: Deployment | StatefulSet | DaemonSet) -> Iterator[Problem]:
    """Yield (JSON path, message) for each invalid rollout setting of a workload."""
    spec = obj.spec
    yield from _least(spec.min_ready_seconds, "$.spec.minReadySeconds")
    yield from _least(spec.revision_history_limit, "$.spec.revisionHistoryLimit")
    if isinstance(obj, Deployment):
        yield from _deadline(obj)
    field = f"$.spec.{_STRATEGY[type(obj)]}"
    strategy = obj.spec.strategy if isinstance(obj, Deployment) else obj.spec.update_strategy
    rolling = strategy.rolling_update
    if rolling is None:
        return
    path = f"{field}.rollingUpdate"
    if strategy.type == "Recreate":
        yield path, "goes with type RollingUpdate only"
    elif isinstance(rolling, RollingDeployment | RollingDaemonSet):
        yield from _limits(rolling, path)
    else:
        yield from _least(rolling.partition, f"{path}.partition")
        if rolling.max_unavailable is not None:
            yield from _amount(rolling.max_unavailable, f"{path}.maxUnavailable", most=100)
            if _is_none(rolling.max_unavailable):
                yield f"{path}.maxUnavailable", "must not be 0"


def _deadline(obj: Deployment) -> Iterator[Problem]:
    seconds = obj.spec.progress_deadline_seconds
    if seconds is not None and seconds <= obj.spec.min_ready_seconds:
        yield (
            "$.spec.progressDeadlineSeconds",
            f"expected more than minReadySeconds ({obj.spec.min_ready_seconds}), got {seconds}",
        )


def _limits(rolling: RollingDeployment | RollingDaemonSet, path: str) -> Iterator[Problem]:
    daemon = isinstance(rolling, RollingDaemonSet)
    surge, missing = rolling.max_surge, rolling.max_unavailable
    yield from _amount(surge, f"{path}.maxSurge", most=100 if daemon else None)
    yield from _amount(missing, f"{path}.maxUnavailable", most=100)
    if _is_none(surge) and _is_none(missing):
        yield f"{path}.maxUnavailable", "must not be 0 when maxSurge is 0"
    elif daemon and not _is_none(surge) and not _is_none(missing):
        yield f"{path}.maxSurge", "must be 0 when maxUnavailable is not"


def _amount(value: int | str, path: str, most: int | None) -> Iterator[Problem]:
    if isinstance(value, int):
        yield from _least(value, path)
    elif not re.fullmatch(r"\d{1,4}%", value):
        yield path, f'expected a count or a percentage such as "25%", got "{value}"'
    elif most is not None and int(value[:-1]) > most:
        yield path, f"expected {most}% at most, got {value}"


def _is_none(value: int | str) -> bool:
    return value == 0 or (isinstance(value, str) and value.rstrip("%").strip("0") == "")


def _least(value: int, path: str) -> Iterator[Problem]:
    if value < 0:
        yield path, f"expected 0 or more, got {value}"
