"""Which pods are read for a gang: those with one of the names that decide about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api.meta import OwnerReference
from bayplan.dialects.gangs import MEMBERS_BY, membership_of
from bayplan.testing.builders import make_pod

INERT = {"pod-group-name": ""}
"""Names no group, and yet makes that every system is asked."""


class Noted(Mapping[str, str]):
    """A mapping that notes what is looked up."""

    def __init__(self, content: Mapping[str, str]) -> None:
        self.content = content
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> str:
        self.asked.add(key)
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)


def test_every_name_that_decides_about_a_gang_is_known_beforehand() -> None:
    pod = make_pod("a")
    labels, annotations, inherited = Noted({}), Noted(INERT), Noted({})
    noted: Any = replace(pod.metadata, labels=labels, annotations=annotations)
    found = membership_of(replace(pod, metadata=noted), inherited)
    assert (found.gang, found.rank) == (None, None)
    asked = labels.asked | annotations.asked | inherited.asked
    assert len(asked) > len(INERT), "every system was asked"
    assert asked <= MEMBERS_BY


@pytest.mark.parametrize("name", sorted(MEMBERS_BY))
def test_a_pod_with_one_of_these_names_is_in_a_gang_or_has_a_rank(name: str) -> None:
    job = {"batch.kubernetes.io/job-name": "j", "tensor-fusion.ai/workload": "w"}
    words = {"tensor-fusion.ai/is-local-gpu": "false", "tensor-fusion.ai/component": "worker"}
    stated = {name: words.get(name, "1")}
    bare = membership_of(make_pod("a", labels=job, owner="Job/j"))
    labelled = membership_of(make_pod("a", labels=job | stated, owner="Job/j"))
    annotated = membership_of(make_pod("a", annotations=stated, labels=job, owner="Job/j"))
    assert (bare.gang, bare.rank) == (None, None)
    assert labelled != bare or annotated != bare


def test_the_pods_of_a_job_that_asks_for_a_topology_belong_to_it_by_their_owner() -> None:
    wants = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    label = {"batch.kubernetes.io/job-name": "another"}
    owner = OwnerReference("Job", "j", api_version="batch/v1", controller=True)
    for labels in ({}, label):
        pod = make_pod("a", labels=labels, annotations=wants)
        owned = replace(pod.metadata, owner_references=(owner,))
        assert membership_of(replace(pod, metadata=owned)).gang == "default/j"
    without_owner = make_pod("a", labels=label, annotations=wants)
    assert membership_of(without_owner).gang == "default/another"
