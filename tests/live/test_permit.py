"""A pod that waits at Permit on a live cluster: what kubectl shows, and how the wait ends."""

from __future__ import annotations

from msgspec import structs
from msgspec.structs import replace
from tests.live.stage import Stage, stage

from bayplan import Args, ClusterEvent, Plugin, PodInfo, Wait, hookimpl
from bayplan.api import Namespace
from bayplan.profiles.loading import ProfileSet, default_profiles
from bayplan.testing import make_node, make_pod

APPROVED = "example.com/approved"


class Approval(Plugin[Args]):
    """Pods wait for the approval of their namespace."""

    requeue_on = ClusterEvent.OBJECT_CHANGED

    @hookimpl
    def permit(self, pod: PodInfo) -> Wait | None:
        namespace = self.handle.snapshot.objects(Namespace).get(pod.namespace)
        approved = namespace is not None and APPROVED in namespace.metadata.annotations
        return None if approved else Wait(600)


def profiles() -> ProfileSet:
    (first,) = default_profiles().profiles
    made = replace(
        first,
        plugins={**first.plugins, "Approval": Approval},
        args={**first.args, "Approval": Args()},
        points={**first.points, "permit": (*first.points["permit"], ("Approval", 1))},
    )
    return ProfileSet((made,), any_scheduler=True)


async def approve(on: Stage) -> None:
    """Do what kubectl annotate namespace does."""
    namespace = on.cluster.get(Namespace, "default")
    assert namespace is not None
    meta = structs.replace(namespace.metadata, annotations={APPROVED: "yes"})
    on.cluster.update(structs.replace(namespace, metadata=meta))
    await on.settle()


async def test_a_wait_is_shown_and_ends_with_the_event_that_it_waits_for() -> None:
    async with stage([make_node("n")]) as on:
        app = await on.start(profiles())
        on.create(make_pod("p"))
        await on.settle()
        (pod,) = on.pods().values()
        (condition,) = [c for c in pod.status.conditions if c.type == "PodScheduled"]
        message = 'Waiting on permit from plugin "Approval" for at most 600s'
        assert (condition.status, condition.reason) == ("False", "WaitingOnPermit")
        assert condition.message == f"{message}; assumed on node n"
        assert "WaitingOnPermit" in {event["reason"] for event in on.events()}
        assert app.live is not None
        wait = app.live.scheduler.waiting("default/p")
        assert wait is not None
        assert (wait.plugins, wait.nodes) == (("Approval",), {"default/p": "n"})
        await approve(on)
        assert on.placements() == {"default/p": "n"}
        (pod,) = on.pods().values()
        (condition,) = [c for c in pod.status.conditions if c.type == "PodScheduled"]
        assert condition.status == "True"
