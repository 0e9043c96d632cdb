"""Statuses of pod groups have the fields that the systems' own definitions have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml
from tests.paths import ROOT

from bayplan.api import (
    ApiObject,
    KaiPodGroup,
    PodGroup,
    SchedulerPluginsPodGroup,
    VolcanoPodGroup,
    kind_of,
)

CRDS = ROOT.parent / "shared" / "peers" / "crds"


@pytest.mark.parametrize(
    "type_", [KaiPodGroup, PodGroup, SchedulerPluginsPodGroup, VolcanoPodGroup]
)
def test_a_status_has_no_field_that_an_api_server_would_leave_out(type_: type[ApiObject]) -> None:
    kind = kind_of(type_())
    path = CRDS / f"{kind.group}_podgroup.yaml"
    if not path.exists():
        pytest.skip("the definitions of other projects do not lie beside the project")
    crd = yaml.load(path.read_text(), yaml.CSafeLoader)
    (version,) = [one for one in crd["spec"]["versions"] if one["name"] == kind.versions[0]]
    known = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert not list(left_out(type(type_().status), known))


def left_out(struct: Any, schema: dict[str, Any]) -> Iterator[str]:
    """Yield the fields of a struct, and of structs in its tuples, that a schema lacks."""
    for one in msgspec.structs.fields(struct):
        found = schema.get("properties", {}).get(one.encode_name)
        if found is None:
            yield one.encode_name
            continue
        inner = next(iter(getattr(one.type, "__args__", ())), None)
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from left_out(inner, found.get("items", found))
