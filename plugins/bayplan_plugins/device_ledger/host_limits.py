"""What may be attached to which host, from its labels, the fabrics' slices and their ConfigMaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from bayplan.api import ResourceSlice
from bayplan.api.dra import Device, DeviceAttribute, ResourceSliceSpec
from bayplan.api.node import Node
from bayplan.dialects.fabric import FabricModels, limit_of
from bayplan_dra.allocator import HostLimits, PoolDevice

__all__ = ["FabricHosts"]

_FABRIC = "/fabric"
_MOST_MODELS = 1000
_Attributes = frozenset[tuple[str, DeviceAttribute]]


class _Model(msgspec.Struct, frozen=True):
    """How a model is recognised: by its driver and these attributes, with bare names."""

    name: str
    prefix: str
    driver: str
    attributes: _Attributes

    def fits(self, device: PoolDevice) -> bool:
        """Tell whether a device is of the model."""
        return device.id.driver == self.driver and all(
            device.attribute(f"{self.driver}/{name}" if "/" not in name else name) == value
            for name, value in self.attributes
        )


class FabricHosts:
    """The models of all fabrics, and the limits of hosts.

    Slices of a fabric's pool select its hosts by the labels ``<prefix>/fabric`` and
    ``<prefix>/<model>``: that is how models are known where no ConfigMap describes them.
    """

    def __init__(self) -> None:
        self._learned: dict[str, _Model] = {}
        self._described: dict[str, FabricModels] = {}
        self._models: dict[str, _Model] = {}
        self._apart: dict[str, set[str]] = {}
        self._stated: set[tuple[str, ...]] = set()

    # Changes ---------------------------------------------------------------------------------

    def learn(self, obj: ResourceSlice) -> bool:
        """Learn the models of a slice's devices; return whether there are new ones."""
        new = False
        for device in obj.spec.devices:
            if not device.binding_conditions or len(self._learned) >= _MOST_MODELS:
                continue
            model = _model_of(device, obj.spec)
            if model is not None and self._learned.get(model.name) != model:
                self._learned[model.name] = model
                new = True
        if new:
            self._gather()
        return new

    def describe(self, key: str, models: FabricModels | None) -> bool:
        """Take the models of a ConfigMap, by its key; return whether that changed anything."""
        if self._described.get(key) == models:
            return False
        if models is None:
            self._described.pop(key)
        else:
            self._described[key] = models
        self._gather()
        return True

    def keep_apart(self, groups: Iterable[tuple[str, ...]]) -> bool:
        """Keep the models of each group off each other's hosts; return whether that is new."""
        new = set(groups) - self._stated
        self._stated |= new
        if new:
            self._gather()
        return bool(new)

    def _gather(self) -> None:
        self._models = dict(self._learned)
        self._apart = {}
        for one in self._described.values():
            for model in one.models:
                values = {name: DeviceAttribute(string=v) for name, v in model.attributes.items()}
                self._models[model.name] = _Model(
                    model.name, one.prefix, model.driver, frozenset(values.items())
                )
            for name, others in one.apart().items():
                self._apart.setdefault(name, set()).update(others)
        for group in self._stated:
            for name in group:
                self._apart.setdefault(name, set()).update(set(group) - {name})

    # Questions -------------------------------------------------------------------------------

    def model_of(self, device: PoolDevice) -> str:
        """Return the name of a device's model, "" if no fabric has it."""
        return next((name for name, model in self._models.items() if model.fits(device)), "")

    def limits(self, node: Node) -> HostLimits | None:
        """Return the limits of a host; None if it has none."""
        if not self._models:
            return None
        labels = node.metadata.labels
        most: dict[str, int] = {}
        problems: dict[str, str] = {}
        for name, model in self._models.items():
            try:
                limit = limit_of(labels, model.prefix, name, "max")
            except ValueError as exc:
                # What may be attached is unknown, so nothing is.
                limit, problems[name] = 0, str(exc)
            if limit is not None:
                most[name] = limit
        apart: Mapping[str, frozenset[str]] = {
            name: frozenset(others) for name, others in self._apart.items() if others
        }
        return HostLimits(node.metadata.name, most, apart, problems) if most or apart else None


def _model_of(device: Device, spec: ResourceSliceSpec) -> _Model | None:
    """Return the model of a device in a fabric's pool, as its node selector names it."""
    selector = device.node_selector or spec.node_selector
    terms = selector.node_selector_terms if selector is not None else ()
    wanted = terms[0].match_expressions if len(terms) == 1 else ()
    prefixes = [one.key.removesuffix(_FABRIC) for one in wanted if one.key.endswith(_FABRIC)]
    for one in wanted:
        prefix, _, name = one.key.partition("/")
        if prefix in prefixes and name != "fabric" and one.values == ("true",):
            own = frozenset(device.attributes.items())
            return _Model(name, prefix, spec.driver, own)
    return None
