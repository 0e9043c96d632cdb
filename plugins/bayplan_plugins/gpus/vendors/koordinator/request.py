"""What a pod requests of a node's devices, read from its resources and annotations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from bayplan.dialects.koordinator.hints import NO_HINTS, AllocationHints, hints_of
from bayplan.dialects.koordinator.requests import GPU, NPU_CORE, PerGpu, device_requests, per_gpu
from bayplan.dialects.koordinator.templates import Templates, matching

__all__ = ["DeviceRequest", "read_request"]

NO_TEMPLATE = "no template for shared GPUs has exactly these amounts"


class DeviceRequest(msgspec.Struct, frozen=True):
    """A pod's request for devices.

    ``amounts`` is what it requests in all by type of device, ``gpus`` that divided among GPUs.
    ``templates`` are the templates of its parts of a GPU, by model; None where it needs none.
    """

    amounts: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    gpus: PerGpu | None = None
    hints: AllocationHints = NO_HINTS
    templates: tuple[tuple[str, str], ...] | None = None

    def of(self, kind: str) -> dict[str, int]:
        """Return what is requested of one type of device in all; nothing if it is not requested."""
        return next((dict(amounts) for name, amounts in self.amounts if name == kind), {})

    @property
    def kinds(self) -> tuple[str, ...]:
        """The types of devices that are requested."""
        return tuple(name for name, _ in self.amounts)


def read_request(
    requests: Mapping[str, int],
    annotations: Mapping[str, str],
    templates: Callable[[], Templates],
    templated: Collection[str] = (NPU_CORE,),
) -> DeviceRequest | None:
    """Return a pod's request for devices; None without one.

    :param requests: the pod's effective requests, of any resources.
    :param templates: returns the templates; asked for parts of a GPU that need one.
    :param templated: resources of which parts are only given out by template.
    :raises ValueError: for a request or an annotation that cannot be read, and when there is no
        template for the amounts.
    """
    amounts = device_requests(requests)
    if not amounts:
        return None
    return _request(amounts, hints_of(annotations), templates, templated)


def _request(
    amounts: Mapping[str, Mapping[str, int]],
    hints: AllocationHints | None,
    templates: Callable[[], Templates],
    templated: Collection[str],
) -> DeviceRequest:
    gpus = per_gpu(amounts[GPU]) if GPU in amounts else None
    found = None
    if gpus is not None and gpus.shared and not {n for n, _ in gpus.amounts}.isdisjoint(templated):
        found = tuple(sorted(matching(templates(), dict(gpus.amounts)).items()))
        if not found:
            raise ValueError(NO_TEMPLATE)
    plain = tuple((kind, tuple(sorted(own.items()))) for kind, own in amounts.items())
    return DeviceRequest(plain, gpus, hints or NO_HINTS, found)
