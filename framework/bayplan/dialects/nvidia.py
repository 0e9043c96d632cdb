"""NVIDIA's device plugin: how it offers GPUs that are shared or divided.

Names as in NVIDIA/k8s-device-plugin (labels of GPU feature discovery, the plugin's configuration)
and NVIDIA/mig-parted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
import pydantic
import pydantic.alias_generators
from pydantic import Field

from bayplan.dialects.reading import is_index
from bayplan.inputs.limits import ANNOTATION
from bayplan.inputs.yamltext import parse_yaml

__all__ = [
    "GPU",
    "NVSENTINEL_STATE",
    "NVSENTINEL_WELL",
    "ONLY_ONE",
    "PLUGIN_CONFIG",
    "GpuLabels",
    "ReplicaSettings",
    "Replication",
    "gpu_labels",
    "is_offer",
    "is_shared",
    "looks_like_config",
    "mig_profile",
    "replication_of",
    "too_large",
]

GPU = "nvidia.com/gpu"
NVSENTINEL_STATE = "dgxc.nvidia.com/nvsentinel-state"
"""The label by which NVSentinel says what it does about a node that is sick."""
NVSENTINEL_WELL = "remediation-succeeded"
"""Its value once the node is well again."""
PLUGIN_CONFIG = "nvidia.com/device-plugin.config"
"""The node label that names the key of the plugin's configuration, in a ConfigMap."""
ONLY_ONE = "bayplan.dev/fail-requests-greater-than-one"
"""A node label for what the plugin's configuration says, where the scheduler cannot read that."""
_SHARED = ".shared"
_MIG = "nvidia.com/mig-"
_REPLICAS = ".replicas"
_STRATEGY = "nvidia.com/gpu.sharing-strategy"
_COUNT = "nvidia.com/gpu.count"
_MEMORY = "nvidia.com/gpu.memory"
_PRODUCT = "nvidia.com/gpu.product"
_MIG_STRATEGY = "nvidia.com/mig.strategy"
_MIG_CONFIG = "nvidia.com/mig.config"
_MIG_STATE = "nvidia.com/mig.config.state"
_STATES = ("pending", "rebooting", "success", "failed")
_TRUTH = ("", "true", "false")
_PROFILE = re.compile(r"[1-8]g\.[1-9]\d{0,3}gb(\.[a-z]+)*")
_PRODUCT_PROFILE = re.compile(r".*-MIG-([1-8]g\.[1-9]\d{0,3}gb(?:[.+][a-z.]+)?)(?:-SHARED)?")
_DIVIDED = "-MIG-"
_MOST_REPLICAS = 1024
_MOST_GPUS = 1024
_MOST_MEMORY = 1 << 22
"""MiB."""

Strategy = Literal["none", "time-slicing", "mps"]


def is_offer(resource: str) -> bool:
    """Tell whether a resource is one of the plugin's: GPUs, replicas of them, or MIG devices."""
    name = resource.removesuffix(_SHARED)
    return name == GPU or bool(mig_profile(name))


def is_shared(resource: str) -> bool:
    """Tell whether a resource's name says that it counts replicas."""
    return resource.endswith(_SHARED)


def mig_profile(resource: str) -> str:
    """Return the profile of a MIG resource, "" for any other.

    ``nvidia.com/mig-1g.10gb.me`` and ``nvidia.com/mig-1g.10gb.me.shared`` are ``1g.10gb+me``.
    """
    if not resource.startswith(_MIG):
        return ""
    name = resource.removeprefix(_MIG).removesuffix(_SHARED)
    if not _PROFILE.fullmatch(name):
        return ""
    size, found, attributes = name.partition("gb.")
    return f"{size}gb+{attributes}" if found else name


def looks_like_config(text: str) -> bool:
    """Tell whether a text of a ConfigMap may be a configuration of the plugin."""
    return "version:" in text and ("sharing:" in text or "flags:" in text)


def too_large(resource: str, count: int) -> str:
    """Return the plugin's words for more replicas than one container may have."""
    return (
        f"request for '{resource}: {count}' too large: maximum request size for shared resources "
        "is 1"
    )


# Labels ------------------------------------------------------------------------------------------


class GpuLabels(msgspec.Struct, frozen=True):
    """What a node's labels say about its GPUs; 0 or "" for what they do not say.

    ``replicas`` is by resource, without ``.shared``. ``memory`` is in MiB: of a GPU, or of a MIG
    device with the strategy "single", whose profile is ``profile``. ``mig_state`` is that of the
    configuration ``mig_config``, which the node is to have. ``only_one`` says whether the plugin
    refuses containers that request several replicas; None if no label does.
    """

    strategy: Strategy = "none"
    replicas: Mapping[str, int] = msgspec.field(default_factory=dict)
    count: int = 0
    memory: int = 0
    product: str = ""
    mig_strategy: Literal["", "none", "single", "mixed"] = ""
    profile: str = ""
    mig_config: str = ""
    mig_state: str = ""
    only_one: bool | None = None

    @property
    def counts_parts(self) -> bool:
        """Whether ``nvidia.com/gpu`` counts replicas or MIG devices, not GPUs."""
        return self.replicas.get(GPU, 0) > 1 or bool(self.profile)

    @property
    def in_change(self) -> str:
        """Why the node's MIG devices cannot be relied on; "" if they can."""
        if self.mig_state in ("", "success"):
            return ""
        named = f" {self.mig_config}" if self.mig_config else ""
        return f"the node's MIG configuration{named} is {self.mig_state}"


def gpu_labels(labels: Mapping[str, str]) -> GpuLabels:
    """Return what the labels of a node say.

    :raises ValueError: naming the label and what was expected.
    """
    strategy = _choice(labels, _STRATEGY, ("none", "time-slicing", "mps"), "none")
    mig = _choice(labels, _MIG_STRATEGY, ("", "none", "single", "mixed"), "")
    state = _choice(labels, _MIG_STATE, ("", *_STATES), "")
    product = labels.get(_PRODUCT, "")
    divided = _PRODUCT_PROFILE.fullmatch(product)
    if mig == "single" and _DIVIDED in product and not divided:
        raise ValueError(
            f"label {_PRODUCT}: expected a profile such as 1g.10gb after {_DIVIDED}, "
            f'got "{product[:60]}"'
        )
    profile = _with_plus(divided[1]) if mig == "single" and divided else ""
    return GpuLabels(
        strategy,  # type: ignore[arg-type]
        dict(_replica_labels(labels)),
        _number(labels, _COUNT, _MOST_GPUS),
        _number(labels, _MEMORY, _MOST_MEMORY),
        product,
        mig,  # type: ignore[arg-type]
        profile,
        labels.get(_MIG_CONFIG, ""),
        state,
        {"true": True, "false": False, "": None}[_choice(labels, ONLY_ONE, _TRUTH, "")],
    )


def _replica_labels(labels: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for key in labels:
        resource = key.removesuffix(_REPLICAS)
        if resource != key and is_offer(resource):
            yield resource, _number(labels, key, _MOST_REPLICAS)
        elif resource != key and resource.startswith(_MIG):
            raise ValueError(f"label {key[:60]}: expected the name of a profile such as 1g.10gb")


def _with_plus(profile: str) -> str:
    size, found, attributes = profile.partition("gb.")
    return f"{size}gb+{attributes}" if found else profile


def _choice(labels: Mapping[str, str], key: str, known: tuple[str, ...], other: str) -> str:
    text = labels.get(key, other)
    if text not in known:
        expected = ", ".join(one for one in known if one)
        raise ValueError(f'label {key}: expected one of {expected}, got "{text[:40]}"')
    return text


def _number(labels: Mapping[str, str], key: str, most: int) -> int:
    text = labels.get(key, "0")
    if not is_index(text) or int(text) > most:
        raise ValueError(f'label {key}: expected a whole number up to {most}, got "{text[:40]}"')
    return int(text)


# Configuration -----------------------------------------------------------------------------------


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="ignore", frozen=True, alias_generator=pydantic.alias_generators.to_camel
    )


class _Replicated(_Part):
    name: str
    replicas: Annotated[int, Field(strict=True, ge=2, le=_MOST_REPLICAS)]


class ReplicaSettings(_Part):
    """One way to share: which resources, by how many replicas, and whether they are renamed."""

    rename_by_default: pydantic.StrictBool = False
    fail_requests_greater_than_one: pydantic.StrictBool | None = None
    resources: tuple[_Replicated, ...] = ()


class _Sharing(_Part):
    time_slicing: ReplicaSettings | None = None
    mps: ReplicaSettings | None = None


class _Config(_Part):
    version: Literal["v1"]
    sharing: _Sharing = _Sharing()


class Replication(msgspec.Struct, frozen=True):
    """How the plugin shares a node's GPUs, by its configuration.

    ``replicas`` is by the name under which the resource is offered. ``only_one`` says that a
    container gets no more than one replica of a resource.
    """

    strategy: Strategy = "none"
    replicas: Mapping[str, int] = msgspec.field(default_factory=dict)
    only_one: bool = False


@lru_cache(256)
def replication_of(text: str) -> Replication | str:
    """Return what a configuration of the plugin says; a text says what is wrong with it."""
    try:
        content = list(parse_yaml(text, ANNOTATION))
        if len(content) != 1 or not isinstance(content[0], dict):
            return "expected one mapping with version and sharing"
        sharing = _Config.model_validate(content[0]).sharing
    except pydantic.ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        return f"{where}: {first['msg']}"
    except ValueError as exc:
        return str(exc)
    if sharing.mps is not None:
        # Without a word, MPS refuses what time slicing allows.
        only_one = sharing.mps.fail_requests_greater_than_one is not False
        return Replication("mps", _offered(sharing.mps), only_one)
    if sharing.time_slicing is not None:
        only_one = bool(sharing.time_slicing.fail_requests_greater_than_one)
        return Replication("time-slicing", _offered(sharing.time_slicing), only_one)
    return Replication()


def _offered(settings: ReplicaSettings) -> dict[str, int]:
    suffix = _SHARED if settings.rename_by_default else ""
    return {one.name + suffix: one.replicas for one in settings.resources}
