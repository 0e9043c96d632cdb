"""A real API server accepts what ``configs`` holds, and the role there has what claims need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster.apiserver.faces import APPLY
from tests.controlplane.installation import path_of
from tests.controlplane.live_cluster import Content, LiveCluster
from tests.controlplane.story_builders import devices, nodes, with_device
from tests.live.deployed import KUSTOMIZATION, documents, only
from tests.paths import ROOT
from tests.scenarios.expected import Outcome

from bayplan.cluster.manifests import load_manifests
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation

CONFIGS = ROOT / "configs"
DEPLOYED = sorted(
    path
    for folder in ("admission", "crds", "deploy")
    for path in (CONFIGS / folder).rglob("*.yaml")
    if path.name != KUSTOMIZATION
)
NOT_INSTALLED = ("monitoring.coreos.com/v1",)

EXAMPLES = CONFIGS / "examples"
NO_CLUSTER = (
    "driver-gpu-nic",
    "first-gang",
    "kinds",
    "koordinator-profile",
    "own-kind",
    "workloads",
)
"""Examples without nodes, whose pods have no names of their own, or are made by operators."""
BY_AGENTS = (
    "fabric",
    "gpu-fractions",
    "remote-gpus",
    "shared-gpus",
    "tensor-fusion-shares",
    "virtual-gpus",
)
"""They wait for agents, which only the embedded cluster plays, or name their files."""
BY_POLICIES = ("koordinator-batch",)
"""Their pods change by policies, which the embedded cluster does without (test_koordinator.py)."""
OVER_TIME = (
    "pooled-training",
    "queues-capacity",
    "queues-drf",
    "queues-elastic-jobs",
    "queues-fair-share",
    "queues-kueue",
    "queues-plain-capacity",
    "queues-plain-fair-share",
    "queues-plain-fifo",
    "queues-plain-priority",
    "queues-proportion",
    "queues-suspended-jobs",
)
"""Examples whose jobs arrive over time, and whose queues need a profile of theirs."""
NODES_FAIL = ("node-failure", "recovery")
"""A change to a node is no object of its own."""
LARGE = ("spares",)
"""Weeks of 528 nodes, for virtual time."""
WITH_UIDS = "evict-for-gpus"
"""Its claims are in use by pods whose UIDs it says; an API server makes them."""
OTHERS = (*NO_CLUSTER, *OVER_TIME, *BY_AGENTS, *BY_POLICIES, WITH_UIDS, *NODES_FAIL, *LARGE)


@pytest.mark.parametrize("path", DEPLOYED, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_what_is_deployed_is_accepted_without_unknown_fields(path: Path, real: LiveCluster) -> None:
    params = {"dryRun": "All", "fieldManager": "test", "fieldValidation": "Strict"}
    for content in documents(path):
        if content["apiVersion"] not in NOT_INSTALLED:
            answer = real.client.patch(path_of(content), content, APPLY, **params)
            assert answer.code in (200, 201), answer


@pytest.mark.parametrize(
    "example",
    sorted(p.name for p in EXAMPLES.iterdir() if p.name not in OTHERS),
)
async def test_an_example_ends_on_the_real_control_plane_as_it_does_in_memory(
    example: str, real: LiveCluster
) -> None:
    simulation = Simulation(default_profiles())
    simulation.create(load_manifests([str(EXAMPLES / example)]).objects)
    simulation.run()
    expected = Counter(simulation.placements().values())
    real.apply(documents(*sorted((EXAMPLES / example).glob("*.yaml"))))
    async with real.scheduler() as app:

        def check(outcome: Outcome) -> None:
            assert Counter(outcome.placements.values()) == expected
            assert len(outcome.pending) == len(simulation.pending())
            assert len(outcome.evicted) == len(simulation.scheduler.evictor.evicted)

        await real.ends(app, check)


@contextmanager
def role_without(cluster: LiveCluster, rule: Content) -> Iterator[None]:
    """Take permissions out of the scheduler's role for a while."""
    path, rules = path_of(only("ClusterRole")), only("ClusterRole")["rules"]
    left = [given for given in rules if given != rule]
    assert len(left) < len(rules), "the role has this rule"
    assert cluster.client.patch(path, {"rules": left}).code == 200
    try:
        yield
    finally:
        assert cluster.client.patch(path, {"rules": rules}).code == 200


async def test_without_the_permission_for_bindings_of_claims_none_is_allocated(
    real: LiveCluster,
) -> None:
    rules = only("ClusterRole")["rules"]
    (joint,) = (rule for rule in rules if "resourceclaims/binding" in rule.get("resources", ()))
    real.apply([*nodes(1), *devices(1, gpus=1)])
    with role_without(real, joint):
        async with real.scheduler() as app:
            real.apply([with_device("p")])

            def check(outcome: Outcome) -> None:
                assert outcome.placements == {}
                assert "is forbidden" in outcome.told["p"]

            await real.ends(app, check)
