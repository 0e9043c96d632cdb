"""The device objects: what is read, what is converted, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api import ResourceClaim, ResourceClaimTemplate, ResourceSlice
from bayplan.api.objects import KINDS, DecodeError, decode_object
from bayplan.schemas.fieldcheck import check_fields

Content = dict[str, Any]
DRA = "resource.k8s.io"


def decode(kind: str, spec: Content, version: str = "v1") -> Any:
    content = {"apiVersion": f"{DRA}/{version}", "metadata": {"name": "x"}, "spec": spec}
    check_fields(KINDS[DRA, kind], content)
    return decode_object(KINDS[DRA, kind], content)


def slice_spec(*devices: Content, **spec: Any) -> Content:
    content = {
        "driver": "gpu.example.com",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "n",
        "devices": list(devices),
        **spec,
    }
    return {key: value for key, value in content.items() if value is not None}


def claim_spec(*requests: Content, **devices: Any) -> Content:
    return {"devices": {"requests": list(requests), **devices}}


def exactly(name: str = "r", **fields: Any) -> Content:
    return {"name": name, "exactly": {"deviceClassName": "gpu", **fields}}


def test_every_field_of_a_device_is_read() -> None:
    device = {
        "name": "gpu-0",
        "attributes": {
            "a": {"int": 1},
            "b": {"bool": True},
            "c": {"string": "x"},
            "d": {"version": "1.2.3"},
            "e": {"ints": [1, 2]},
            "f": {"bools": [True]},
            "g": {"strings": ["x"]},
            "example.com/h": {"versions": ["1.0.0"]},
        },
        "capacity": {
            "memory": {
                "value": "80Gi",
                "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}},
            }
        },
        "consumesCounters": [{"counterSet": "s", "counters": {"m": {"value": "1"}}}],
        "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}],
        "bindsToNode": True,
        "bindingConditions": ["ready"],
        "bindingFailureConditions": ["failed"],
        "allowMultipleAllocations": True,
    }
    found = decode("ResourceSlice", slice_spec(device))
    assert isinstance(found, ResourceSlice)
    (read,) = found.spec.devices
    assert (read.attributes["a"].integer, read.attributes["b"].boolean) == (1, True)
    assert read.attributes["example.com/h"].versions == ("1.0.0",)
    assert read.capacity["memory"].request_policy is not None
    assert read.consumes_counters[0].counters["m"].value.units == 1
    assert (read.binds_to_node, read.allow_multiple_allocations) == (True, True)
    assert (read.binding_conditions, read.binding_failure_conditions) == (("ready",), ("failed",))


def test_v1beta1_claims_and_slices_are_converted() -> None:
    old = {"name": "gpu", "deviceClassName": "gpu", "count": 2, "selectors": [CEL]}
    new = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 2, "selectors": [CEL]}}
    assert decode("ResourceClaim", claim_spec(old), "v1beta1") == (
        decode("ResourceClaim", claim_spec(new))
    )
    template = decode("ResourceClaimTemplate", {"spec": claim_spec(old)}, "v1beta1")
    assert isinstance(template, ResourceClaimTemplate)
    assert template.spec.spec.devices.requests[0].exactly is not None
    basic = {"name": "gpu-0", "basic": {"attributes": {"a": {"int": 1}}}}
    plain = {"name": "gpu-0", "attributes": {"a": {"int": 1}}}
    assert decode("ResourceSlice", slice_spec(basic), "v1beta1") == (
        decode("ResourceSlice", slice_spec(plain))
    )


def test_v1beta2_has_the_shape_of_v1() -> None:
    found = decode("ResourceClaim", claim_spec(exactly()), "v1beta2")
    assert isinstance(found, ResourceClaim)
    assert found == decode("ResourceClaim", claim_spec(exactly()))


CEL = {"cel": {"expression": "true"}}
DEVICE = {"name": "d"}


@pytest.mark.parametrize(
    ("spec", "path", "message"),
    [
        (slice_spec(DEVICE, driver="Not A Name"), "$.spec.driver", "is not a DNS subdomain"),
        (slice_spec(DEVICE, pool={"name": "a//b"}), "$.spec.pool.name", "is not a pool name"),
        (
            slice_spec(DEVICE, pool={"name": "p", "generation": -1}),
            "$.spec.pool.generation",
            "expected 0 or more, got -1",
        ),
        (
            slice_spec(DEVICE, pool={"name": "p", "resourceSliceCount": 0}),
            "$.spec.pool.resourceSliceCount",
            "expected 1 or more, got 0",
        ),
        (slice_spec(DEVICE, allNodes=True), "$.spec", "got nodeName and allNodes"),
        (slice_spec(DEVICE, nodeName=None), "$.spec", "got none of them"),
        (
            slice_spec(DEVICE, nodeName=None, nodeSelector={"nodeSelectorTerms": []}),
            "$.spec.nodeSelector.nodeSelectorTerms",
            "expected exactly 1 term, got 0",
        ),
        (
            slice_spec(DEVICE, sharedCounters=[{"name": "s", "counters": {"m": {"value": 1}}}]),
            "$.spec.sharedCounters",
            "devices or sharedCounters, not both",
        ),
        (
            slice_spec(*({"name": f"d{i}"} for i in range(129))),
            "$.spec.devices",
            "at most 128 devices, got 129",
        ),
        (
            slice_spec(
                *({"name": f"d{i}"} for i in range(64)),
                {"name": "x", "taints": [{"key": "k", "effect": "NoSchedule"}]},
            ),
            "$.spec.devices",
            "at most 64 devices, as some have taints, counters or list attributes, got 65",
        ),
        (
            slice_spec(DEVICE, DEVICE),
            "$.spec.devices[1].name",
            'two devices of this slice are named "d"',
        ),
        (slice_spec({"name": "D_1"}), "$.spec.devices[0].name", "is not a DNS label"),
        (
            slice_spec({"name": "d", "attributes": {f"a{i}": {"int": 1} for i in range(33)}}),
            "$.spec.devices[0]",
            "at most 32 attributes and capacities, got 33",
        ),
        (
            slice_spec({"name": "d", "attributes": {"a": {"ints": list(range(49))}}}),
            "$.spec.devices[0].attributes",
            "at most 48 values in all attributes, got 49",
        ),
        (
            slice_spec({"name": "d", "attributes": {"a": {"int": 1, "string": "x"}}}),
            '$.spec.devices[0].attributes["a"]',
            "got int and string",
        ),
        (
            slice_spec({"name": "d", "attributes": {"a-b": {"int": 1}}}),
            '$.spec.devices[0].attributes["a-b"]',
            "is not an identifier",
        ),
        (
            slice_spec({"name": "d", "attributes": {"a": {"version": "1.2"}}}),
            '$.spec.devices[0].attributes["a"].version',
            '"1.2" is not a semantic version',
        ),
        (
            slice_spec({"name": "d", "attributes": {"a": {"string": "x" * 65}}}),
            '$.spec.devices[0].attributes["a"].string',
            "at most 64 characters, got 65",
        ),
        (
            slice_spec({"name": "d", "capacity": {"m": {"value": "many"}}}),
            '$.spec.devices[0].capacity["m"].value',
            "expected a quantity",
        ),
        (
            slice_spec({"name": "d", "nodeName": "n"}),
            "$.spec.devices[0].nodeName",
            "is allowed with perDeviceNodeSelection: true only",
        ),
        (
            slice_spec({"name": "d", "taints": [{"key": "k", "effect": "Never"}]}),
            "$.spec.devices[0].taints[0].effect",
            "expected one of None, NoSchedule, NoExecute",
        ),
        (slice_spec(DEVICE, nodes="n"), "$.spec.nodes", "unknown field"),
    ],
)
def test_a_slice_that_the_api_server_refuses_is_refused(
    spec: Content, path: str, message: str
) -> None:
    with pytest.raises(DecodeError) as raised:
        decode("ResourceSlice", spec)
    assert raised.value.path == path
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("spec", "path", "message"),
    [
        (
            claim_spec({"name": "r"}),
            "requests[0]",
            "expected exactly one of exactly and",
        ),
        (
            claim_spec({"name": "r", "deviceClassName": "gpu"}),
            "requests[0].deviceClassName",
            'belongs under "exactly" since resource.k8s.io/v1',
        ),
        (claim_spec(exactly(), exactly()), "requests[1].name", 'two requests are named "r"'),
        (
            claim_spec(exactly(deviceClassName="")),
            "requests[0].exactly.deviceClassName",
            "is required",
        ),
        (claim_spec(exactly(count=0)), "requests[0].exactly.count", "expected 1 or more, got 0"),
        (
            claim_spec(exactly(allocationMode="All", count=1)),
            "requests[0].exactly.count",
            "is not allowed with allocationMode All",
        ),
        (
            claim_spec(exactly(allocationMode="Most")),
            "requests[0].exactly.allocationMode",
            'expected ExactCount or All, got "Most"',
        ),
        (
            claim_spec(exactly(selectors=[{"cel": {"expression": "x" * 10_241}}])),
            "requests[0].exactly.selectors[0].cel.expression",
            "at most 10240 bytes, got 10241",
        ),
        (
            claim_spec(exactly(selectors=[{}])),
            "requests[0].exactly.selectors[0].cel",
            "is required",
        ),
        (
            claim_spec(*(exactly(f"r{i}") for i in range(33))),
            "requests",
            "at most 32 requests, got 33",
        ),
        (
            claim_spec(exactly(), constraints=[{}]),
            "constraints[0]",
            "expected exactly one of matchAttribute and distinctAttribute",
        ),
        (
            claim_spec(exactly(), constraints=[{"matchAttribute": "pcieRoot"}]),
            "constraints[0].matchAttribute",
            'write "resource.kubernetes.io/pcieRoot"',
        ),
        (
            claim_spec(exactly(), constraints=[{"distinctAttribute": "rail"}]),
            "constraints[0].distinctAttribute",
            'write "<the driver\'s name>/rail"',
        ),
        (
            claim_spec(exactly(), constraints=[{"requests": ["q"], "matchAttribute": "a.b/c"}]),
            "constraints[0].requests[0]",
            'there is no request "q" in this claim (r)',
        ),
        (
            claim_spec(exactly(), config=[{"opaque": {"driver": "a.b", "parameters": 3}}]),
            "config[0].opaque.parameters",
            "expected a mapping",
        ),
        (
            claim_spec(
                {"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "g"}] * 2}
            ),
            "requests[0].firstAvailable[1].name",
            'two alternatives are named "a"',
        ),
        (
            claim_spec(exactly(tolerations=[{"operator": "Equal"}])),
            "requests[0].exactly.tolerations[0].operator",
            "must be Exists when the key is empty",
        ),
    ],
)
def test_a_claim_that_the_api_server_refuses_is_refused(
    spec: Content, path: str, message: str
) -> None:
    with pytest.raises(DecodeError) as raised:
        decode("ResourceClaim", spec)
    assert raised.value.path == f"$.spec.devices.{path}"
    assert message in raised.value.message


def test_a_pod_says_where_each_claim_comes_from() -> None:
    claims = [{"name": "a", "resourceClaimName": "x", "resourceClaimTemplateName": "y"}]
    spec = {"containers": [{"name": "c"}], "resourceClaims": claims}
    content = {"metadata": {"name": "p"}, "spec": spec}
    with pytest.raises(DecodeError, match="expected exactly one of resourceClaimName"):
        decode_object(KINDS["", "Pod"], content)


def test_a_container_uses_claims_of_its_pod_only() -> None:
    container = {"name": "c", "resources": {"claims": [{"name": "b"}]}}
    claims = [{"name": "a", "resourceClaimName": "x"}]
    spec = {"containers": [container], "resourceClaims": claims}
    content = {"metadata": {"name": "p"}, "spec": spec}
    with pytest.raises(DecodeError, match=r'"b" is not in spec.resourceClaims \(a\)'):
        decode_object(KINDS["", "Pod"], content)
