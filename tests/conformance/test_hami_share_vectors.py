"""HAMi's decisions about shares of GPUs: requests, fit, order, scores, quotas, MIG.

Every case goes through the functions that the adapter calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.conformance.fraction_cases import fraction_cases
from tests.conformance.share_format import completed

from bayplan.api import Quantity
from bayplan.api.gpu_shares import MEBIBYTE, GpuUse, OfferedGpu, Partition, PartitionProfile
from bayplan.api.pod import ResourceRequirements
from bayplan.dialects.hami.policies import GpuOptions, Weights, gpu_options_of
from bayplan.dialects.hami.requests import (
    UNSET_PERCENTAGE,
    ContainerRequest,
    RequestRules,
    admitted,
    container_request,
)
from bayplan.dialects.hami.systems import Resources
from bayplan.topology.machine.readers.hami_register import CORDON, cordoned_uuids
from bayplan_plugins.gpus.vendors.hami.containers import (
    ContainerKind,
    Wanted,
    allocate,
    fit_container,
)
from bayplan_plugins.gpus.vendors.hami.device import PERCENT, Device, device_of
from bayplan_plugins.gpus.vendors.hami.fit import Fit, Pick, fit
from bayplan_plugins.gpus.vendors.hami.mig import choose_partition, place
from bayplan_plugins.gpus.vendors.hami.order import (
    device_rank,
    device_score,
    node_score,
    preference,
)
from bayplan_plugins.gpus.vendors.hami.quota import QuotaLimits, within_quota

Case = dict[str, Any]
_NVIDIA = "NVIDIA"


def _device(plain: Mapping[str, Any], cordon: str = "") -> Device:
    """Return a device of a case, by way of the GPU that the ledger would hold."""
    profiles = [
        PartitionProfile(
            one["Name"],
            one["MemoryMB"] * MEBIBYTE,
            one["Core"] * PERCENT,
            one["SliceCount"],
            tuple(placement["Start"] for placement in one["Placements"]),
            one["Placements"][0]["Size"] if one["Placements"] else 0,
        )
        for one in plain["MigProfiles"]
    ]
    gpu = OfferedGpu(
        plain["index"],
        plain["id"],
        plain["type"],
        plain["totalcore"] * PERCENT,
        plain["totalmem"] * MEBIBYTE,
        plain["count"],
        plain["numa"],
        plain["health"],
        plain["id"] in cordoned_uuids(cordon),
        plain["mode"],
        tuple(profiles),
    )
    cores, memory = plain["usedcores"] * PERCENT, plain["usedmem"] * MEBIBYTE
    used = GpuUse(cores, memory, plain["used"])
    return device_of(gpu, used)


def _request(plain: Mapping[str, Any]) -> ContainerRequest:
    percentage = plain["memPercent"]
    if not percentage and not plain["memreq"]:
        percentage = UNSET_PERCENTAGE
    return ContainerRequest(
        plain["nums"], plain["memreq"], percentage, plain["cores"], plain["type"]
    )


def _options(case: Case, policy: str = "") -> GpuOptions:
    annotations = dict(case["podAnnotations"])
    if policy:
        annotations.setdefault("hami.io/gpu-scheduler-policy", policy)
    return gpu_options_of(annotations)


def _picked(picks: tuple[Pick, ...]) -> list[dict[str, Any]]:
    return [
        {"uuid": one.device.uuid, "usedmem": one.memory, "usedcores": one.cores} for one in picks
    ]


# Fit --------------------------------------------------------------------------------------------


def _check_fit(case: Case) -> None:
    cordon = case["nodeAnnotations"].get(CORDON, "")
    devices = [_device(one, cordon) for one in case["devices"]]
    found = fit(devices, _request(case["request"]), _options(case))
    want = case["want"]
    assert found.fits == want["fit"], found.reason
    if "uuids" in want and found.fits:
        assert [pick.device.uuid for pick in found.picks] == want["uuids"]
    if "devices" in want:
        assert _picked(found.picks) == want["devices"]
    if "reasonCounts" in want:
        assert dict(found.lacking) == want["reasonCounts"]
    _check_reason(found, want)


def _check_reason(found: Fit, want: Mapping[str, Any]) -> None:
    if want.get("reason"):
        assert sorted(found.reason.split(", ")) == sorted(want["reason"].split(", "))
    assert want.get("reasonContains", "") in found.reason


def _check_fit_in_devices(case: Case) -> None:
    devices = [_device(one) for one in case["devices"]]
    requests = [_request(one) for one in case["requests"].values()]
    answers = (fit_container(devices, request, _options(case)) for request in requests)
    reason = next((found for found in answers if isinstance(found, str)), "")
    assert (not reason) == case["want"]["fit"]
    assert reason == case["want"]["reason"]


def _wanted(case: Case) -> list[Wanted]:
    found = []
    for number, requests in enumerate(case["requests"]):
        kind = ContainerKind.INIT if number < case["initContainers"] else ContainerKind.APP
        own = [_request(one) for one in requests.values() if one["nums"]]
        found.append(Wanted(kind, own[0] if own else None))
    return found


def _check_score(case: Case) -> None:
    want = case["want"]
    _nvidia_only([one["type"] for node in case["nodes"].values() for one in node["devices"]])
    scores, failed, taken = {}, {}, {}
    for name, node in case["nodes"].items():
        devices = [_device(one) for one in node["devices"]]
        score = node_score(devices)
        found = allocate(devices, _wanted(case), _options(case, node["policy"]))
        if isinstance(found, str):
            failed[name] = found
        else:
            scores[name] = score
            taken[name] = [_picked(picks) for picks in found]
    assert failed == want["failed"]
    assert scores == pytest.approx({one["node"]: one["score"] for one in want["nodes"]}, rel=1e-6)
    for one in want["nodes"]:
        assert taken[one["node"]] == one["devices"][_NVIDIA]


def _nvidia_only(types: list[str]) -> None:
    others = sorted({one for one in types if _NVIDIA not in one})
    if others:
        pytest.skip("HAMi for GPUs of other vendors is out of scope: only NVIDIA's are read")


# Requests -------------------------------------------------------------------------------------


def _resources(case: Case) -> ResourceRequirements:
    return ResourceRequirements(
        {name: Quantity(text) for name, text in (case["requests"] or {}).items()},
        {name: Quantity(text) for name, text in (case["limits"] or {}).items()},
    )


def _check_request(case: Case) -> None:
    config = case["config"]
    rules = RequestRules(
        memory_factor=config["memoryFactor"],
        default_memory=config["defaultMemory"],
        default_cores=config["defaultCores"],
    )
    try:
        request = container_request(_resources(case), rules)
    except ValueError:
        # HAMi takes such a container for one without GPUs; the message goes to the pod instead.
        request = None
    found = {"nums": 0, "type": "", "memreq": 0, "memPercent": 0, "cores": 0}
    if request is not None:
        found = {
            "nums": request.count,
            "type": request.type,
            "memreq": request.memory,
            "memPercent": request.percentage,
            "cores": request.cores,
        }
    assert {name: found[name] for name in case["want"]} == case["want"]


def _check_admission(case: Case) -> None:
    names = case["names"]
    resources = Resources(names["count"], names["mem"], names["memPercent"], names["core"])
    rules = RequestRules(resources, default_count=names["defaultGPUNum"])
    found = admitted(_resources(case), rules)
    want = case["want"]
    limit, request = found.limits.get(names["core"]), found.requests.get(names["core"])
    assert (limit is not None) == want["coreLimitPresent"]
    assert (limit.units if limit is not None else None) == want["coreLimit"]
    assert (request.units if request is not None else None) == want["coreRequest"]


# MIG ------------------------------------------------------------------------------------------


def _profiles(case: Case) -> tuple[PartitionProfile, ...]:
    return tuple(
        PartitionProfile(
            one["name"],
            one["memoryMB"] * MEBIBYTE,
            one["core"] * PERCENT,
            one["sliceCount"],
            tuple(start for start, _ in one["placements"]),
            one["placements"][0][1] if one["placements"] else 0,
        )
        for one in case["profiles"]
    )


def _occupied(case: Case) -> list[Partition]:
    return [Partition("", start, size) for start, size in case["occupied"]]


def _check_feasible(case: Case) -> None:
    pytest.skip("out of scope: partitions are placed one after the other, not all at once")


def _check_sequence(case: Case) -> None:
    taken = _occupied(case)
    known = {profile.name: profile for profile in _profiles(case)}
    for name, start in case["sequence"]:
        partition = place(known[name], taken) if name in known else None
        assert (partition.start if partition is not None else None) == start
        taken += [partition] if partition is not None else []


def _check_filter(case: Case) -> None:
    taken = _occupied(case)
    queued = [memory for gpu, memory in case["queued"] if gpu == case["gpu"]]
    for memory in [*queued, case["memory"]]:
        found = choose_partition(_profiles(case), taken, memory)
        if found is None:
            break
        taken.append(found[1])
    assert (found is not None) == case["want"]


# Order and scores -------------------------------------------------------------------------------


def _check_device_score(case: Case) -> None:
    device = _device(case["device"])
    weights = Weights(**case["weights"])
    requests = [_request(one) for one in case["requests"] or ()]
    assert device_score(device, requests, weights) == pytest.approx(case["want"], rel=1e-6)


def _check_device_less(case: Case) -> None:
    policy = tuple(word.strip() for word in case["policy"].split(",") if word.strip())
    rank = device_rank(policy, case["numaBind"])
    one, other = (rank(_device(plain), plain["score"]) for plain in case["devices"])
    assert (one < other) == case["want"]


def _check_node_score(case: Case) -> None:
    devices = [_device(one) for one in case["devices"]]
    assert node_score(devices) == pytest.approx(case["want"], rel=1e-6)


def _check_node_less(case: Case) -> None:
    one, other = case["scores"][case["i"]], case["scores"][case["j"]]
    assert (preference(one, case["policy"]) < preference(other, case["policy"])) == case["want"]


# Quota ----------------------------------------------------------------------------------------


def _check_quota(case: Case) -> None:
    allocated = case["allocated"] or ()
    apps = max(case["numApp"], len(allocated) + 1 - case["numInit"])
    kinds = [ContainerKind.INIT] * case["numInit"] + [ContainerKind.APP] * apps
    earlier = [[_pick(one) for one in own] for own in allocated]
    more = _pick({"uuid": case["uuid"], "usedmem": case["memreq"], "usedcores": case["coresreq"]})
    hard = {name: Quantity(str(amount)) for name, amount in (case["limits"] or {}).items()}
    limits = QuotaLimits.of(hard, RequestRules())
    tmp = [_pick(one) for one in case["tmp"] or ()]
    assert within_quota(limits, (0, 0), kinds, earlier, tmp, more) == case["want"]


def _pick(plain: Mapping[str, Any]) -> Pick:
    device = Device(plain["uuid"], 0, _NVIDIA, 1, 0, 0)
    return Pick(device, plain["usedmem"], plain["usedcores"])


_CHECKS: Mapping[str, Callable[[Case], None]] = {
    "fit": _check_fit,
    "fitInDevices": _check_fit_in_devices,
    "calcScore": _check_score,
    "request": _check_request,
    "request-partial": _check_request,
    "admission-exclusive-core": _check_admission,
    "mig-feasible": _check_feasible,
    "mig-select-sequence": _check_sequence,
    "mig-filter": _check_filter,
    "device-score": _check_device_score,
    "device-less": _check_device_less,
    "node-score": _check_node_score,
    "node-less": _check_node_less,
    "quota": _check_quota,
}


def is_own(case: Case) -> bool:
    """Tell whether a case is one of HAMi's."""
    return case.get("kind") in _CHECKS and "/deviceshare/" not in case["source"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("case", fraction_cases(metafunc.config, "hami-fit.jsonl", is_own))


def test_hami_decides_as_in_this_case(case: Case) -> None:
    _CHECKS[case["kind"]](completed(case))
