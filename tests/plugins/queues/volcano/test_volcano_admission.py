"""Admission of Volcano's pod groups: many that wait, asked kind by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plugins.queues.volcano.volcano_worlds import cluster_of, group, phase, pods, queue

from bayplan.api import Pod, VolcanoPodGroup
from bayplan.testing import Cluster, make_node, make_object
from bayplan_plugins.queues.volcano.admitted_amounts import AdmittedAmounts
from bayplan_plugins.queues.volcano.plugins import admission, capacity, proportion
from bayplan_plugins.queues.volcano.policy import VolcanoPolicy
from bayplan_plugins.queues.volcano.tiers import Tiers

PLUGINS = (
    ("overcommit", "capacity"),
    ("overcommit", "proportion"),
    ("resourcequota", "proportion"),
    ("sla", "capacity"),
)
VOTERS = (
    admission.Overcommit,
    admission.NamespaceQuota,
    capacity.Capacity,
    proportion.Proportion,
)
NAMES = [f"g{index}" for index in range(6)]
QUEUES = ("a", "b")


def configuration(plugins: tuple[str, ...]) -> dict[str, Any]:
    named = [{"name": name} for name in ("gang", "priority", *plugins)]
    return {"actions": "enqueue, allocate", "tiers": [{"plugins": named}]}


def begun(plugins: tuple[str, ...]) -> Cluster:
    hard = {"requests.cpu": "9"}
    meta = {"name": "q", "namespace": "default"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}}
    queues = [queue(name, capability={"cpu": 6}, deserved={"cpu": 3}) for name in QUEUES]
    nodes = [make_node(f"n{index}", cpu=4) for index in range(2)]
    return cluster_of([*nodes, *queues, make_object(quota)], configuration(plugins))


def policy_of(cluster: Cluster) -> VolcanoPolicy:
    queues = cluster.profile.runtime.plugins["Queues"]
    found = [one for one in queues.policies if one.system == "volcano"]  # type: ignore[attr-defined]
    policy: VolcanoPolicy = found[0]
    return policy


STEPS = st.one_of(
    st.tuples(
        st.just("group"),
        st.sampled_from(NAMES),
        st.sampled_from(QUEUES),
        st.integers(1, 3),
        st.sampled_from([None, 1, 2, 2, 3, 7]),
    ),
    st.tuples(st.just("pods"), st.sampled_from(NAMES), st.integers(1, 3), st.integers(1, 2)),
    st.tuples(st.just("end pod"), st.sampled_from(NAMES)),
    st.tuples(st.just("remove group"), st.sampled_from(NAMES)),
    st.tuples(st.just("resize"), st.sampled_from(QUEUES), st.integers(1, 8)),
    st.tuples(st.just("node"), st.integers(2, 4)),
    st.tuples(
        st.just("later"),
    ),
)


def carry_out(cluster: Cluster, step: tuple[Any, ...]) -> None:
    kind, name = step[0], str(step[1]) if len(step) > 1 else ""
    there = cluster.api.get(VolcanoPodGroup, f"default/{name}")
    if kind == "group" and there is None:
        least = None if step[4] is None else {"cpu": step[4]}
        cluster.add(group(name, step[2], step[3], least, phase="Pending"))
    elif kind == "pods":
        known = {pod.metadata.name for pod in cluster.api.list(Pod)}
        new = [one for one in pods(name, step[2], cpu=step[3]) if one.metadata.name not in known]
        cluster.add(*new)
    elif kind == "end pod":
        for pod in cluster.api.list(Pod):
            if pod.metadata.name.startswith(f"{name}-"):
                cluster.remove(pod.key)
                break
    elif kind == "remove group" and there is not None:
        cluster.api.delete(VolcanoPodGroup, f"default/{name}")
    elif kind == "resize":
        changed = queue(name, capability={"cpu": step[2]}, deserved={"cpu": min(3, step[2])})
        cluster.api.update(changed)
    elif kind == "node" and cluster.api.get(type(make_node("n")), f"n{step[1]}") is None:
        cluster.add(make_node(f"n{step[1]}", cpu=4))
    cluster.advance(30 if kind == "later" else 1)


def phases(cluster: Cluster) -> Mapping[str, str]:
    return {one.metadata.name: phase(cluster, one.metadata.name) for one in groups(cluster)}


def groups(cluster: Cluster) -> list[VolcanoPodGroup]:
    return cluster.api.list(VolcanoPodGroup)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PLUGINS), st.lists(STEPS, min_size=3, max_size=25))
def test_groups_are_admitted_as_if_each_was_asked_after_every_change(
    plugins: tuple[str, ...], steps: list[tuple[Any, ...]]
) -> None:
    cluster = begun(plugins)
    with pytest.MonkeyPatch.context() as patched:
        for voter in VOTERS:
            patched.setattr(voter, "admits_kinds", False)
        plain = begun(plugins)
    for step in steps:
        carry_out(cluster, step)
        with pytest.MonkeyPatch.context() as patched:
            for voter in VOTERS:
                patched.setattr(voter, "admits_kinds", False)
            carry_out(plain, step)
        assert phases(cluster) == phases(plain)
        assert cluster.placements() == plain.placements()
        amounts = policy_of(cluster)._admission._amounts
        again = AdmittedAmounts(policy_of(cluster).session, amounts._admitting)
        kept, counted = amounts.now(set()), again.now(set())
        width = min(kept.balance.shape[1], counted.balance.shape[1])
        assert np.allclose(kept.balance[:, :width], counted.balance[:, :width])


def test_of_a_thousand_groups_that_ask_for_the_same_one_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_of([make_node("n0", cpu=4), queue("a", capability={"cpu": 4})])
    cluster.add(group("first", "a", 1, {"cpu": 4}, phase="Pending"))
    cluster.advance(1)
    asked = []
    rejection = Tiers.rejection

    def counted(self: Tiers, *args: Any) -> str | None:
        asked.append(args[0].key)
        return rejection(self, *args)

    monkeypatch.setattr(Tiers, "rejection", counted)
    cluster.add(*(group(f"g{n}", "a", 1, {"cpu": 2}, phase="Pending") for n in range(1000)))
    cluster.advance(1)
    assert phase(cluster, "g999") == "Pending"
    said = [one for _, one in cluster.api.events if one.about == "PodGroup"]
    assert len({one.pod for one in said}) == len(said) == 1000
    assert len(asked) <= 3
    asked.clear()
    cluster.add(make_object({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}))
    cluster.advance(1)
    assert len(asked) <= 1
