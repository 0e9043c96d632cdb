"""Units are found by the plugins that hold back their pods."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan import Args, Handle, Plugin, hookimpl
from bayplan.api import Namespace, ObjectMeta, PodGroup
from bayplan.api.podgroup import PodGroupSpec
from bayplan.scheduler.gate_index import GateIndex
from bayplan.snapshot import PodInfo
from bayplan.testing import Cluster, make_pod

PODS = st.sampled_from(["a/1", "a/2", "b/1"])
CHANGES = st.lists(st.tuples(PODS, st.none() | st.sampled_from(["Gang", "Queues"])), max_size=12)


@examples(200)
@given(CHANGES)
def test_whatever_is_held_and_freed_the_units_are_found(
    changes: list[tuple[str, str | None]],
) -> None:
    index, held = GateIndex(), dict[str, str]()
    for pod, plugin in changes:
        if plugin is None:
            index.free(pod)
            held.pop(pod, None)
        else:
            index.hold(pod.partition("/")[0], pod, plugin)
            held[pod] = plugin

    assert set(index.plugins) == set(held.values())
    for plugin in ("Gang", "Queues"):
        units = {pod.partition("/")[0] for pod, by in held.items() if by == plugin}
        assert set(index.units(plugin)) == units


class AsksNamespaces(Plugin[Args]):
    """Holds back pods until their namespace is labelled."""

    gate_reads = frozenset({Namespace})
    asked = 0

    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(args, handle)
        AsksNamespaces.asked = 0

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        AsksNamespaces.asked += 1
        found = self.handle.snapshot.objects(Namespace).get(pod.namespace)
        return None if found is not None and found.metadata.labels else "not labelled"


def test_a_gate_is_asked_again_only_after_changes_of_what_it_reads() -> None:
    cluster = Cluster([make_pod(f"p{number}") for number in range(3)], plugins=[AsksNamespaces])
    cluster.schedule()
    asked = AsksNamespaces.asked

    cluster.add(PodGroup(ObjectMeta(name="g", namespace="default"), PodGroupSpec(1)))
    cluster.schedule()
    assert AsksNamespaces.asked == asked

    cluster.add(Namespace(ObjectMeta(name="default", labels={"team": "vision"})))
    cluster.schedule()
    assert AsksNamespaces.asked > asked
