"""The texts of every contract for shares of GPUs, and the objects that hold them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from tests.damaged import has_shape_of

from bayplan.api import ApiObject, KoordinatorDevice, Node, Pod
from bayplan.api.configmap import ConfigMap
from bayplan.api.meta import ObjectMeta
from bayplan.api.objects import DecodeError, decode_part
from bayplan.dialects.hami.systems import HAMI, MIG_ALLOCATIONS, VOLCANO, System
from bayplan.dialects.kai.shares import GROUP_LABEL, INDEX_ANNOTATION, reservation_pod
from bayplan.testing import make_node, make_object, make_pod
from bayplan.topology.machine.readers.hami import SCORE
from bayplan.topology.machine.readers.hami_register import (
    HANDSHAKE,
    REGISTER,
    VOLCANO_HANDSHAKE,
    VOLCANO_REGISTER,
)

__all__ = ["ADAPTERS", "Contract", "Field"]

Objects = list[ApiObject]


@dataclass(frozen=True)
class Field:
    """A text of a contract.

    ``valid`` are texts as they should be. ``objects`` returns a node ``n<i>`` and whatever the text
    of case i is seen with: a pod ``r<i>`` that runs there, or ``p<i>`` that is to. ``sound``
    returns False for texts that nobody may accept without a word. ``subject`` is what messages
    name. ``literal``: amounts of GPUs and shares are numbers in the text.
    """

    subject: str
    valid: tuple[str, ...]
    objects: Callable[[str, int], Objects]
    sound: Callable[[str], bool]
    literal: bool = False

    def __str__(self) -> str:
        return self.subject


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.ASCII | re.DOTALL)
    return lambda text: compiled.fullmatch(text) is not None


def _any(text: str) -> bool:
    return True


def _amount(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _pod(i: int, name: str = "p", **more: Any) -> Pod:
    selector = {"nodeSelector": {"kubernetes.io/hostname": f"n{i}"}}
    return make_pod(f"{name}{i}", cpu=None, memory=None, spec=selector, **more)


def _running(i: int, **more: Any) -> Pod:
    return make_pod(f"r{i}", cpu=None, memory=None, node=f"n{i}", **more)


# HAMi and Volcano ----------------------------------------------------------------------------

GPU: dict[str, Any] = {
    "id": "GPU-a",
    "index": 1,
    "count": 10,
    "devmem": 81920,
    "devcore": 100,
    "type": "NVIDIA-A100",
    "numa": 1,
    "mode": "hami-core",
    "health": True,
}
MIG_GPU = {
    **GPU,
    "mode": "mig",
    "migProfiles": [
        {
            "name": "2g.20gb",
            "memoryMB": 20480,
            "core": 28,
            "sliceCount": 2,
            "placements": [{"start": 0, "size": 2}, {"start": 2, "size": 2}],
        }
    ],
}
_REGISTER = json.dumps([GPU, {**GPU, "id": "GPU-b", "index": 0}])
_MIG_REGISTER = json.dumps([MIG_GPU])
_OLDER = "GPU-a,10,32768,100,NVIDIA-A40,0,true:GPU-b,10,1,100,NVIDIA-V100,1,false,3,mig:"
_OF_VOLCANO = "GPU-a,10,8192,NVIDIA-A40,true:GPU-b,4,1126,NVIDIA-V100,false,mig:"
_DEVICES = ("GPU-a,NVIDIA,3000,30:;", "GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,1,0:;")
_ALLOCATIONS = json.dumps(
    [
        {
            "containerIndex": 0,
            "deviceIndex": 0,
            "gpuUUID": "GPU-a",
            "profile": "2g.20gb",
            "placement": {"start": 0, "size": 2},
        }
    ]
)
_ID = "[^,:;]+"
_OLD_GPU = rf"\s*{_ID},\d+,\d+,\d+,[^,:]*,-?\d+,(true|false)(,\d+,[^,:]*)?"
_VOLCANO_GPU = rf"\s*{_ID},\d+,\d+,[^,:]*,(true|false)(,[^,:]*)?"
_DEVICE = rf"{_ID},[^,:;]+,\d+,\d+:"
_register_json = has_shape_of(
    _MIG_REGISTER,
    dict.fromkeys(("count", "devmem", "devcore", "index", "memoryMB", "start", "size"), _amount),
)


def _one_of(*checks: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda text: any(check(text) for check in checks)


def _list_of(item: str) -> Callable[[str], bool]:
    return _matches(rf"[:\s]*({item})(:+({item}))*[:\s]*")


def _vgpu_node(system: System, i: int, register: str = _REGISTER, **notes: str) -> Node:
    name = REGISTER if system is HAMI else VOLCANO_REGISTER
    count: dict[str, Any] = {system.resources.count: 20}
    own = {name: register, **notes}
    return make_node(f"n{i}", cpu=64, annotations=own, **count)


def _asked(system: System, memory: str = "3000", cores: str = "30") -> dict[str, Any]:
    names = system.resources
    return {names.count: "1", names.memory: memory, names.cores: cores}


def _node_text(system: System, name: str) -> Callable[[str, int], Objects]:
    def objects(text: str, i: int) -> Objects:
        return [_vgpu_node(system, i, **{name: text})]

    return objects


def _register_text(system: System) -> Callable[[str, int], Objects]:
    return lambda text, i: [_vgpu_node(system, i, text)]


def _pod_text(system: System, name: str) -> Callable[[str, int], Objects]:
    def objects(text: str, i: int) -> Objects:
        return [_vgpu_node(system, i), _pod(i, annotations={name: text}, **_asked(system))]

    return objects


def _running_text(system: System, name: str, **others: str) -> Callable[[str, int], Objects]:
    def objects(text: str, i: int) -> Objects:
        register = _MIG_REGISTER if name == MIG_ALLOCATIONS else _REGISTER
        notes = {**others, name: text}
        return [
            _vgpu_node(system, i, register),
            _running(i, annotations=notes, **_asked(system)),
        ]

    return objects


def _resource_text(system: System, name: str) -> Callable[[str, int], Objects]:
    def objects(text: str, i: int) -> Objects:
        asked = {system.resources.count: "1", name: text}
        content = {"containers": [{"name": "c", "resources": {"limits": asked}}]}
        meta = ObjectMeta(name=f"p{i}", namespace="default", uid=f"p{i}")
        pod = decode_part(Pod, {"metadata": {"name": f"p{i}"}, "spec": content})
        own = Pod(meta, pod.spec)
        return [_vgpu_node(system, i), own]

    return objects


def _vgpu_fields(system: System) -> list[Field]:
    names, hami = system.annotations, system is HAMI
    register = REGISTER if hami else VOLCANO_REGISTER
    handshake = HANDSHAKE if hami else VOLCANO_HANDSHAKE
    texts = (_REGISTER, _MIG_REGISTER, _OLDER) if hami else (_OF_VOLCANO, _REGISTER)
    older = _list_of(_OLD_GPU if hami else _VOLCANO_GPU)
    devices = _matches(rf"(({_DEVICE})*;?)+")
    fields = [
        Field(register, texts, _register_text(system), _one_of(_register_json, older), True),
        Field(
            handshake,
            ("Requesting_2000.01.01 00:00:00", "Reported_2000.01.01 00:00:00"),
            _node_text(system, handshake),
            _matches(r"(Reported|Deleted).*|Requesting_\d{4}\.\d\d?\.\d\d? \d\d?:\d\d?:\d\d?|"),
        ),
        *(
            Field(name, _DEVICES, _running_text(system, name), devices, True)
            for name in (names.allocated, names.to_allocate)
        ),
        Field(
            names.mode,
            ("hami-core", "hami-core,mig", "mps"),
            _pod_text(system, names.mode),
            _matches(r"[\s,]*((hami-core|mig|mps)\s*(,\s*(hami-core|mig|mps|)\s*)*)?"),
        ),
        *(
            Field(name, ("1000", "30", "50"), _resource_text(system, name), _any)
            for name in system.resources.names[1:]
        ),
    ]
    return fields + (_hami_fields() if hami else [])


def _hami_fields() -> list[Field]:
    score = '[{"uuid":"GPU-a","score":{"GPU-b":100}},{"uuid":"GPU-b","score":{"GPU-a":100}}]'
    policies = "binpack|spread|topology-aware|mutex|numa"
    pods = {
        "hami.io/gpu-scheduler-policy": (("binpack,numa", "spread"), policies),
        "hami.io/node-scheduler-policy": (("binpack", "spread"), "binpack|spread"),
    }
    devices = {HAMI.annotations.allocated: _DEVICES[0]}
    return [
        *(
            Field(
                name,
                valid,
                _pod_text(HAMI, name),
                _matches(rf"[\s,]*(({words})\s*(,\s*({words}|)\s*)*)?"),
            )
            for name, (valid, words) in pods.items()
        ),
        Field(
            "nvidia.com/numa-bind",
            ("true", "false"),
            _pod_text(HAMI, "nvidia.com/numa-bind"),
            _matches("1|t|T|TRUE|true|True|0|f|F|FALSE|false|False"),
        ),
        Field(
            "hami.io/device-scoring-weights",
            ("slot=1,core=1,memory=3",),
            _pod_text(HAMI, "hami.io/device-scoring-weights"),
            _matches(r"(\s*(slot|core|memory)\s*=\s*\d+\s*,){2}\s*(slot|core|memory)\s*=\s*\d+\s*"),
        ),
        Field(SCORE, (score,), _node_text(HAMI, SCORE), has_shape_of(score, {})),
        Field(
            MIG_ALLOCATIONS,
            (_ALLOCATIONS,),
            _running_text(HAMI, MIG_ALLOCATIONS, **devices),
            has_shape_of(_ALLOCATIONS, {"start": _amount, "size": _amount}),
        ),
        Field(
            HAMI.annotations.node,
            ("n0", "n1"),
            _running_text(HAMI, HAMI.annotations.node, **devices),
            _any,
        ),
    ]


# Koordinator ---------------------------------------------------------------------------------

_DOMAIN = "scheduling.koordinator.sh/"
_HINT = f"{_DOMAIN}device-allocate-hint"
_JOINT = f"{_DOMAIN}device-joint-allocate"
_SPEC = f"{_DOMAIN}gpu-partition-spec"
_GROUPS = f"{_DOMAIN}gpu-partitions"
_ALLOCATED = f"{_DOMAIN}device-allocated"
_QUANTITIES: Mapping[str, Callable[[Any], bool]] = {
    "resources": lambda value: isinstance(value, dict),
    "ringBusBandwidth": lambda value: isinstance(value, str | int | float),
}
_POLICY = "node.koordinator.sh/gpu-partition-policy"
_OWN = "koordinator.sh/"
_GPU = {
    "type": "gpu",
    "id": "G",
    "minor": 0,
    "health": True,
    "resources": {f"{_OWN}gpu-core": "100", f"{_OWN}gpu-memory-ratio": "100"},
    "topology": {"socketID": 0, "nodeID": 0, "pcieID": "0"},
}
_NIC = {
    "type": "rdma",
    "minor": 0,
    "health": True,
    "resources": {f"{_OWN}rdma": "100"},
    "topology": {"socketID": 0, "nodeID": 0, "pcieID": "0"},
    "vfGroups": [{"labels": {"t": "x"}, "vfs": [{"minor": 1, "busID": "0:1"}]}],
}
_MACHINE = json.dumps([_GPU, {**_GPU, "minor": 1, "id": "H"}, _NIC]).replace(
    '"koordinator.sh/gpu-core"', '"koordinator.sh/gpu-memory": "80Gi", "koordinator.sh/gpu-core"'
)
_KOORDINATOR_PODS = {
    _HINT: (
        '{"rdma":{"selector":{"matchLabels":{"a":"b"}},"vfSelector":{"matchExpressions":[{"key":'
        '"t","operator":"In","values":["x"]}]},"allocateStrategy":"ApplyForAll"},'
        '"gpu":{"requiredTopologyScope":"PCIe","exclusivePolicy":"DeviceLevel"}}'
    ),
    _JOINT: '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}',
    _SPEC: '{"allocatePolicy":"Restricted","ringBusBandwidth":"400Gi"}',
}
_ALLOCATION = (
    '{"gpu":[{"minor":0,"id":"G","resources":{"koordinator.sh/gpu-core":"50",'
    '"koordinator.sh/gpu-memory":"16Gi"},"extension":{"vfs":[{"minor":1,"busID":"0:1"}]}}]}'
)
_TABLE = '{"2":[{"minors":[0,1],"gpuLinkType":"NVLink","allocationScore":1}]}'
_SHARE: dict[str, Any] = {f"{_OWN}gpu-core": 50, f"{_OWN}gpu-memory-ratio": 50}


def _koordinator_node(i: int, **labels: str) -> Node:
    offered: dict[str, Any] = {f"{_OWN}gpu-core": 200, f"{_OWN}gpu-memory-ratio": 200}
    return make_node(f"n{i}", cpu=64, labels=labels, **offered, **{f"{_OWN}rdma": 100})


def _device(i: int, text: str = _MACHINE, **annotations: str) -> KoordinatorDevice:
    """Return a Device object. :raises DecodeError: for content that the API server refuses."""
    meta = {"name": f"n{i}", "annotations": annotations}
    try:
        devices = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise DecodeError(str(exc), "$") from None
    return decode_part(KoordinatorDevice, {"metadata": meta, "spec": {"devices": devices}})


def _koordinator_pod_text(name: str) -> Callable[[str, int], Objects]:
    def objects(text: str, i: int) -> Objects:
        asked: dict[str, Any] = {**_SHARE, f"{_OWN}rdma": 10}
        return [_koordinator_node(i), _device(i), _pod(i, annotations={name: text}, **asked)]

    return objects


def _koordinator_fields() -> list[Field]:
    def groups(text: str, i: int) -> Objects:
        return [_koordinator_node(i), _device(i, **{_GROUPS: text})]

    def allocated(text: str, i: int) -> Objects:
        running = _running(i, annotations={_ALLOCATED: text}, **_SHARE)
        return [_koordinator_node(i), _device(i), running]

    def policy(text: str, i: int) -> Objects:
        return [_koordinator_node(i, **{_POLICY: text}), _device(i)]

    def machine(text: str, i: int) -> Objects:
        return [_koordinator_node(i), _device(i, text)]

    return [
        *(
            Field(name, (text,), _koordinator_pod_text(name), has_shape_of(text, _QUANTITIES))
            for name, text in _KOORDINATOR_PODS.items()
        ),
        Field(_GROUPS, (_TABLE,), groups, _one_of(has_shape_of(_TABLE, {}), _matches(""))),
        Field(
            _ALLOCATED,
            (_ALLOCATION,),
            allocated,
            _one_of(has_shape_of(_ALLOCATION, _QUANTITIES), _matches("")),
        ),
        Field(_POLICY, ("Honor", "Prefer"), policy, _matches("|Honor|Prefer")),
        Field("Device", (_MACHINE,), machine, has_shape_of(_MACHINE, _QUANTITIES)),
    ]


# KAI -----------------------------------------------------------------------------------------


def _kai_pod(name: str, **beside: str) -> Callable[[str, int], Objects]:
    def objects(text: str, i: int) -> Objects:
        own = {**{key.replace("_", "-"): value for key, value in beside.items()}, name: text}
        return [_kai_node(i), _pod(i, annotations=own)]

    return objects


def _kai_running(name: str) -> Callable[[str, int], Objects]:
    def objects(text: str, i: int) -> Objects:
        own = _running(i, annotations={name: text}, labels={GROUP_LABEL: f"g{i}"})
        held = reservation_pod(f"n{i}", f"g{i}", own)
        return [_kai_node(i), held, own]

    return objects


def _kai_node(i: int, memory: str = "81559") -> Node:
    return make_node(f"n{i}", cpu=64, labels={"nvidia.com/gpu.memory": memory}, gpu=1)


def _kai_label(text: str, i: int) -> Objects:
    return [_kai_node(i, text)]


def _kai_index(text: str, i: int) -> Objects:
    own = _running(i, annotations={"gpu-fraction": "0.5"}, labels={GROUP_LABEL: f"g{i}"})
    held = reservation_pod(f"n{i}", f"g{i}", own)
    held.metadata.annotations[INDEX_ANNOTATION] = text
    return [_kai_node(i), held, own, _pod(i, annotations={"gpu-fraction": "0.5"})]


_DECIMAL = r"\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"


def _kai_fields() -> list[Field]:
    number = _matches(r"0*[1-9]\d*")
    pods = [
        ("gpu-fraction", ("0.5", "5e-1", ".25"), _matches(_DECIMAL)),
        ("gpu-memory", ("4096", "1000"), number),
    ]
    return [
        *(Field(name, valid, _kai_pod(name), sound) for name, valid, sound in pods),
        *(Field(name, valid, _kai_running(name), sound) for name, valid, sound in pods),
        Field(
            "gpu-fraction-num-devices",
            ("1", "2"),
            _kai_pod("gpu-fraction-num-devices", gpu_fraction="0.5"),
            number,
        ),
        Field(
            "gpu-fraction-container-name",
            ("main",),
            _kai_pod("gpu-fraction-container-name", gpu_fraction="0.5"),
            _matches("main"),
        ),
        Field(
            "mps", ("true", "false"), _kai_pod("mps", gpu_fraction="0.5"), _matches("true|false")
        ),
        Field("nvidia.com/gpu.memory", ("81559", "85899345920"), _kai_label, _matches(r"\d+")),
        Field(INDEX_ANNOTATION, ("0", "7"), _kai_index, _matches(r"\d*")),
    ]


# NVIDIA --------------------------------------------------------------------------------------

_SLICED = {
    "nvidia.com/gpu.replicas": "10",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
    "nvidia.com/gpu.memory": "81920",
}
_MIXED = {"nvidia.com/mig.strategy": "mixed", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
_SINGLE = {"nvidia.com/mig.strategy": "single"}
_CONFIG = """
version: v1
sharing:
  timeSlicing:
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 10
"""
_CONFIG_LABEL = "nvidia.com/device-plugin.config"


def _label(name: str, others: Mapping[str, str], **resources: int) -> Callable[[str, int], Objects]:
    offered: dict[str, Any] = {
        "nvidia.com/" + key.replace("__", ".").replace("_", "-"): count
        for key, count in resources.items()
    }
    return lambda text, i: [make_node(f"n{i}", cpu=64, labels={**others, name: text}, **offered)]


def _nvidia_fields() -> list[Field]:
    number = _matches(r"\d{1,9}")
    return [
        Field(name, valid, _label(name, _SLICED, gpu=20), sound)
        for name, valid, sound in (
            ("nvidia.com/gpu.replicas", ("10", "2"), number),
            ("nvidia.com/gpu.memory", ("81920",), number),
            ("nvidia.com/gpu.count", ("8",), number),
            (
                "nvidia.com/gpu.sharing-strategy",
                ("mps", "time-slicing", "none"),
                _matches("mps|time-slicing|none"),
            ),
            (
                "bayplan.dev/fail-requests-greater-than-one",
                ("true", "false"),
                _matches("true|false|"),
            ),
        )
    ]


def _mig_fields() -> list[Field]:
    mixed = {"mig_1g__10gb": 7, "mig_3g__40gb": 2}
    replicas, state = "nvidia.com/mig-1g.10gb.replicas", "nvidia.com/mig.config.state"
    product = "nvidia.com/gpu.product"
    return [
        Field(
            "nvidia.com/mig.strategy",
            ("single", "mixed", "none"),
            _label("nvidia.com/mig.strategy", _MIXED, **mixed),
            _matches("|none|single|mixed"),
        ),
        Field(replicas, ("2", "4"), _label(replicas, _MIXED, **mixed), _matches(r"\d{1,9}")),
        Field(
            product,
            ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.me-SHARED"),
            _label(product, _SINGLE, gpu=56),
            lambda text: "-MIG-" not in text or bool(re.search(r"-MIG-\dg\.\d+gb", text)),
        ),
        Field(
            state,
            ("success", "pending"),
            _label(state, {**_MIXED, "nvidia.com/mig.config": "all-1g.10gb"}, **mixed),
            _matches("|success|pending|rebooting|failed"),
        ),
        Field(
            "nvidia.com/mig.config",
            ("all-1g.10gb",),
            _label("nvidia.com/mig.config", {**_MIXED, state: "pending"}, **mixed),
            _any,
        ),
    ]


def _config_fields() -> list[Field]:
    def objects(text: str, i: int) -> Objects:
        own = ConfigMap(ObjectMeta(name=f"plugin{i}", namespace="gpu-operator"), {f"key{i}": text})
        labels = {_CONFIG_LABEL: f"key{i}"}
        return [own, make_node(f"n{i}", cpu=64, labels=labels, gpu=80)]

    return [Field(f"{_CONFIG_LABEL}: configuration", (_CONFIG,), objects, _sound_config)]


class _Loader(yaml.SafeLoader):
    """Takes a lone = for a text, as everybody else does."""


_Loader.add_constructor("tag:yaml.org,2002:value", lambda loader, node: node.value)


def _sound_config(text: str) -> bool:
    """Tell whether a text is a configuration of the plugin, or looks like none at all."""
    if "version:" not in text or "sharing:" not in text:
        return True
    try:
        content = yaml.load(text, Loader=_Loader)  # noqa: S506 - it is a safe one
    except (yaml.YAMLError, ValueError):
        return False
    if not isinstance(content, dict) or content.get("version") != "v1":
        return False
    sharing = content.get("sharing", {})
    if not isinstance(sharing, dict):
        return False
    return all(_sound_sharing(sharing.get(way)) for way in ("timeSlicing", "mps"))


def _sound_sharing(way: Any) -> bool:
    if way is None:
        return True
    if not isinstance(way, dict):
        return False
    flag, resources = way.get("failRequestsGreaterThanOne"), way.get("resources", [])
    return (flag is None or isinstance(flag, bool)) and (
        isinstance(resources, list)
        and all(isinstance(one, dict) for one in resources)
        and all(isinstance(one.get("name"), str) for one in resources)
        and all(_replicas(one.get("replicas")) for one in resources)
    )


def _replicas(count: Any) -> bool:
    # What Go's YAML takes for a number, and Python's for a text: 1e3.
    text = str(count)
    number = float(text) if re.fullmatch(r"\d+(\.\d*)?([eE]\+?\d+)?", text) else 0.0
    return type(count) is not bool and number > 1 and number.is_integer()


# TensorFusion --------------------------------------------------------------------------------

_TF = "tensor-fusion.ai/"
_TF_ASKED = {f"{_TF}tflops-request": "10", f"{_TF}vram-request": "8Gi"}


def _tf_node(i: int) -> Objects:
    status = {
        "phase": "Running",
        "vendor": "NVIDIA",
        "capacity": {"tflops": "312", "vram": "80Gi"},
        "index": 0,
        "nodeSelector": {"kubernetes.io/hostname": f"n{i}"},
        "gpuModel": "A100",
    }
    meta = {"name": f"gpu-{i}"}
    gpu = {"apiVersion": "tensor-fusion.ai/v1", "kind": "GPU", "metadata": meta, "status": status}
    return [make_object(gpu), make_node(f"n{i}", cpu=64)]


def _tf_pod(name: str, **others: str) -> Callable[[str, int], Objects]:
    given = {f"{_TF}{key.replace('_', '-')}": text for key, text in others.items()}

    def objects(text: str, i: int) -> Objects:
        return [*_tf_node(i), _pod(i, annotations={**given, name: text})]

    return objects


def _tf_running(text: str, i: int) -> Objects:
    notes = {**_TF_ASKED, f"{_TF}gpu-ids": text}
    return [*_tf_node(i), _running(i, annotations=notes)]


_QUANTITY = r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3}|[KMGTPE]i|[numkMGTPE])?\s*"
"""As the API server reads quantities, which is without the blanks around them."""


def _tf_fields() -> list[Field]:
    amount = _matches(_QUANTITY)
    asking = [
        (f"{_TF}{name}", texts)
        for name, texts in (
            ("tflops-request", ("10", "1500m")),
            ("tflops-limit", ("20",)),
            ("vram-request", ("8Gi", "1000000")),
            ("vram-limit", ("16Gi",)),
            ("compute-percent-request", ("50", "12.5")),
            ("compute-percent-limit", ("50",)),
        )
    ]
    others = [
        ("gpu-count", ("1", "2"), _matches(r"\d+")),
        ("gpu-indices", ("0", "0,1"), _matches(r"(\d+(,\d+)*)?")),
        ("qos", ("low", "medium", "high", "critical"), _matches("|low|medium|high|critical")),
        ("isolation", ("shared", "soft", "hard"), _matches("|shared|soft|hard")),
        ("gpu-model", ("A100", "NVIDIA A10"), _any),
        ("gpupool", ("main",), _any),
    ]
    return [
        *(Field(name, texts, _tf_pod(name), amount) for name, texts in asking),
        *(
            Field(f"{_TF}{name}", texts, _tf_pod(f"{_TF}{name}", vram_request="1Gi"), sound)
            for name, texts, sound in others
        ),
        Field(f"{_TF}gpu-ids", ("gpu-0", "gpu-0,gpu-1"), _tf_running, _any),
    ]


@dataclass(frozen=True)
class Contract:
    """The texts of a contract, and what a pod asks for by it in sound words."""

    fields: list[Field]
    asked: Mapping[str, Any]
    annotations: Mapping[str, str] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()

    @property
    def pod(self) -> Pod:
        """Return a pod that asks for a share."""
        return make_pod("any", annotations=self.annotations, **self.asked)


ADAPTERS: Mapping[str, Contract] = {
    "hami": Contract(_vgpu_fields(HAMI), _asked(HAMI)),
    "volcano": Contract(_vgpu_fields(VOLCANO), _asked(VOLCANO)),
    "koordinator": Contract(_koordinator_fields(), _SHARE),
    "kai": Contract(_kai_fields(), {}, {"gpu-fraction": "0.5"}, ("GPUSharing",)),
    "nvidia": Contract(_nvidia_fields(), {"gpu": 1}),
    "tensor-fusion": Contract(_tf_fields(), {}, _TF_ASKED),
    "mig": Contract(_mig_fields(), {"nvidia.com/mig-1g.10gb": 1}),
    "device-plugin-config": Contract(_config_fields(), {"gpu": 1}),
}
