"""What a new version of an object changes for scheduling."""

from __future__ import annotations

import datetime

import pytest
from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.cluster.protocol import Bind
from bayplan.scheduler.object_changes import is_as_bound
from bayplan.testing import make_pod

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
PENDING = make_pod("p", labels={"app": "x"}, annotations={"asks": "1"})
WRITE = Bind("default/p", "", "n1", {"given": "card-0"})


def bound(**annotations: str) -> Pod:
    """Return the pod on its node, with other annotations."""
    meta = replace(PENDING.metadata, annotations=annotations)
    return replace(PENDING, metadata=meta, spec=replace(PENDING.spec, node_name="n1"))


def test_a_pod_that_is_as_its_binding_made_it_is_known_already() -> None:
    assert is_as_bound(PENDING, bound(asks="1", given="card-0"), WRITE)


@pytest.mark.parametrize(
    "annotations",
    [
        {"asks": "1"},
        {"asks": "1", "given": "card-1"},
        {"asks": "2", "given": "card-0"},
        {"asks": "1", "given": "card-0", "phase": "success"},
    ],
)
def test_a_pod_that_others_annotated_otherwise_is_read_again(annotations: dict[str, str]) -> None:
    assert not is_as_bound(PENDING, bound(**annotations), WRITE)


def test_a_pod_that_is_being_deleted_or_has_other_labels_is_read_again() -> None:
    new = bound(asks="1", given="card-0")
    for meta in (
        replace(new.metadata, deletion_timestamp=NOW),
        replace(new.metadata, labels={"app": "y"}),
    ):
        assert not is_as_bound(PENDING, replace(new, metadata=meta), WRITE)
    assert not is_as_bound(PENDING, new, replace(WRITE, labels={"group": "g"}))
