"""Reservations are found by the pods that may own them, as a look at each of them finds them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan.api import ObjectMeta, OwnerReference, Pod, Reservation
from bayplan.dialects.koordinator.reservations import is_owner
from bayplan.testing import make_object
from bayplan_plugins.reservation.known import KnownReservations

NAMES = st.sampled_from(["a", "b"])
REFERENCES = st.fixed_dictionaries({}, optional={"name": NAMES, "uid": NAMES, "namespace": NAMES})
SELECTORS = st.fixed_dictionaries(
    {},
    optional={
        "matchLabels": st.dictionaries(NAMES, NAMES, max_size=2),
        "matchExpressions": st.just([{"key": "a", "operator": "Exists"}]),
    },
)
OWNERS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={"object": REFERENCES, "controller": REFERENCES, "labelSelector": SELECTORS},
    ),
    max_size=2,
)
PODS = st.builds(
    lambda name, uid, labels, owners: Pod(
        ObjectMeta(
            name=name,
            namespace="a",
            uid=uid,
            labels=labels,
            owner_references=tuple(OwnerReference("Job", n, u) for n, u in owners),
        )
    ),
    NAMES,
    NAMES,
    st.dictionaries(NAMES, NAMES, max_size=2),
    st.lists(st.tuples(NAMES, NAMES), max_size=1),
)


def reservation(name: str, uid: str, owners: list[Any]) -> Reservation:
    found = make_object(
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Reservation",
            "metadata": {"name": name, "uid": f"{name}-{uid}"},
            "spec": {"owners": owners},
        }
    )
    assert isinstance(found, Reservation)
    return found


CHANGES = st.lists(
    st.tuples(st.sampled_from("xyz"), st.sampled_from("12"), st.none() | OWNERS), max_size=8
)


@examples(200)
@given(CHANGES, PODS)
def test_whatever_comes_and_goes_the_owners_are_found(changes: list[Any], pod: Pod) -> None:
    known, there = KnownReservations(), dict[str, Reservation]()
    for name, uid, owners in changes:
        if owners is not None:
            there[name] = reservation(name, uid, owners)
            known.put(there[name])
        elif name in there:
            known.drop(there.pop(name))

    found = [one for one in known.may_be_owned_by(pod) if is_owner(pod, one.spec.owners)]

    assert {one.key for one in found} == {
        one.key for one in there.values() if is_owner(pod, one.spec.owners)
    }
    assert len(found) == len({one.key for one in found})
    assert all(known.of_uid(one.metadata.uid) is one for one in there.values())
    assert bool(known) is bool(there)
    assert known.name_pods is any(
        owner.object is not None for one in there.values() for owner in one.spec.owners
    )
