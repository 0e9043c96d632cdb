"""What a job in a queue may not ask for: each problem names its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bayplan.api import Job
from bayplan.api.objects import decode_part
from bayplan.dialects.kueue import SLICE_LAYERS, SLICE_SIZE, SLICE_TOPOLOGY
from bayplan.dialects.queued_job_checks import refusals_of
from bayplan.kinds import KINDS_OF_WORKLOADS, templates_of

FIELD = f"spec.template.metadata.annotations[{SLICE_LAYERS}]"


def refused(pods: int, **annotations: str) -> list[str]:
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "c"}]}}
    spec = {"parallelism": pods, "completions": pods, "template": template}
    content = {"metadata": {"name": "j"}, "spec": spec}
    templates = tuple(templates_of(KINDS_OF_WORKLOADS["batch", "Job"], content))
    return [str(one) for one in refusals_of(decode_part(Job, content), content, templates)]


def layers(*given: tuple[Any, Any]) -> dict[str, str]:
    return {SLICE_LAYERS: json.dumps([{"topology": name, "size": size} for name, size in given])}


def test_slices_of_slices_that_divide_each_other_are_accepted() -> None:
    assert refused(16, **layers(("block", 16), ("rack", 8), ("host", 2))) == []


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        (layers(("rack", 0)), f"{FIELD}[0].size: Invalid value: expected 1 or more"),
        (layers(("a b", 4)), f"{FIELD}[0].topology: Invalid value: expected a label of nodes"),
        (
            layers(("rack", 4), ("host", 3)),
            f"{FIELD}[1].size: Invalid value: does not divide 4",
        ),
        (
            layers(("rack", 4), ("rack", 2)),
            f"{FIELD}[1].topology: Duplicate value: rack",
        ),
        (layers(("rack", 9)), f"{FIELD}: Invalid value: there are only 8 pods"),
        (layers(("rack", "4")), f"{FIELD}: Invalid value: expected"),
        ({SLICE_LAYERS: "rack"}, f"{FIELD}: Invalid value: "),
        ({SLICE_LAYERS: "[]"}, f"{FIELD}: Invalid value: expected"),
    ],
)
def test_slices_of_slices_name_what_is_wrong(annotations: dict[str, str], said: str) -> None:
    (found,) = refused(8, **annotations)
    assert found.startswith(said)


def test_slices_of_slices_exclude_plain_slices() -> None:
    found = refused(8, **layers(("rack", 4)), **{SLICE_TOPOLOGY: "rack", SLICE_SIZE: "4"})
    assert found == [f"{FIELD}: Forbidden: {one} is there" for one in (SLICE_TOPOLOGY, SLICE_SIZE)]
