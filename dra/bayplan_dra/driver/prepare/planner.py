"""What the containers of a claim get, planned from its allocation; nothing is written here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from bayplan.api import ResourceClaim
from bayplan.api.dra import AllocatedDevice
from bayplan.errors import BayplanError
from bayplan.topology.machine.model import Machine, Mig
from bayplan_dra.driver.config import DeviceConfig, config_of
from bayplan_dra.driver.prepare.cdi import Edits, device_name, joint_name, qualified, spec_text
from bayplan_dra.driver.prepare.checkpoint import MigInstance, PreparedClaim, PreparedDevice
from bayplan_dra.driver.prepare.edits import DeviceFiles, joint_edits
from bayplan_dra.driver.prepare.sharing import GpuShare, mps_edits
from bayplan_dra.driver.publish.devices import NodeDevice, NodeInventory

__all__ = ["HandedOut", "Planner", "PrepareError", "handed_out"]

_NO_INSTANCES: Mapping[str, MigInstance] = MappingProxyType({})
WHOLE_CLAIM = "."
"""In the place of a request: no request has this name, so the kubelet gives what stands there only
to containers that name the claim without a request."""


class PrepareError(BayplanError):
    """A claim cannot be prepared."""


class HandedOut(msgspec.Struct, frozen=True):
    """What a container gets that names one of the requests, or the whole claim.

    :ivar ids: names of CDI devices; the first is the device's own, by which its health is shown.
    """

    device: PreparedDevice
    requests: tuple[str, ...]
    ids: tuple[str, ...]


def handed_out(driver: str, claim: PreparedClaim) -> list[HandedOut]:
    """Return what the kubelet gives to containers, in the order in which it is applied."""

    def handed(device: PreparedDevice, requests: Iterable[str], joint: str) -> HandedOut:
        names = [device_name(claim.uid, device.name)]
        if joint in claim.joint:
            names.append(joint_name(claim.uid, joint))
        ids = tuple(qualified(driver, name) for name in names)
        return HandedOut(device, tuple(requests), ids)

    found = [
        handed(device, [request], request)
        for device in claim.devices
        for request in device.requests
    ]
    if "" in claim.joint:
        found.append(handed(claim.devices[0], [WHOLE_CLAIM], ""))
    return found


class Planner(msgspec.Struct, frozen=True):
    """Plans what a node prepares for claims.

    :param topology_file: the host's path of NCCL's topology file, "" for none.
    :param mps_root: the folder of the MPS control daemon, "" for none.
    """

    driver: str
    node: str
    files: DeviceFiles
    topology_file: str
    mps_root: str = ""

    def results(
        self, claim: ResourceClaim | None, namespace: str, name: str, uid: str
    ) -> list[AllocatedDevice]:
        """Return the allocated devices of this driver.

        :param claim: what the API server has by the name; None for nothing.
        :param uid: the UID that the kubelet wants.
        :raises PrepareError: when there are none that this node could prepare.
        """
        if claim is None:
            raise PrepareError(f"claim {namespace}/{name} does not exist")
        if claim.metadata.uid != uid:
            raise PrepareError(
                f"claim {namespace}/{name} was recreated: its UID is now {claim.metadata.uid}"
            )
        if claim.status.allocation is None:
            raise PrepareError(f"claim {namespace}/{name} is not allocated")
        results = [
            one for one in claim.status.allocation.devices.results if one.driver == self.driver
        ]
        if not results:
            raise PrepareError(f"claim {namespace}/{name} has no device of {self.driver}")
        foreign = [one for one in results if one.pool != self.node]
        if foreign:
            raise PrepareError(
                f"device {foreign[0].device} is of pool {foreign[0].pool}, this is {self.node}"
            )
        return results

    def planned(
        self,
        claim: ResourceClaim,
        results: Sequence[AllocatedDevice],
        inventory: NodeInventory,
        instances: Mapping[str, MigInstance] = _NO_INSTANCES,
    ) -> PreparedClaim:
        """Return what is to be prepared for a claim.

        :param results: its allocated devices, of this driver.
        :param instances: what its partitions have become, by device; the others are not named.
        :raises PrepareError: for a device that is not on the node.
        :raises InputError: for a configuration that is not understood.
        """
        config = config_of(self._parameters(claim, {one.request for one in results}))
        sharing = config.sharing
        slices = sharing is not None and sharing.strategy == "TimeSlicing"
        interval = sharing.time_slicing_config.interval if sharing is not None and slices else ""
        found: list[GpuShare] = []
        devices = []
        for name, share in dict.fromkeys((one.device, one.share_id or "") for one in results):
            device = inventory.devices.get(name)
            if device is None:
                raise PrepareError(f"device {name} is not, or no longer, on this node")
            own = [one for one in results if (one.device, one.share_id or "") == (name, share)]
            requests = tuple(dict.fromkeys(one.request.partition("/")[0] for one in own))
            instance = instances.get(name)
            found.append(GpuShare(_as_instance(device, instance), own[0].consumed_capacity))
            admin = all(bool(one.admin_access) for one in own)
            time_slice = interval if device.whole and not admin else ""
            devices.append(PreparedDevice(name, requests, admin, share, instance, time_slice))
        joint = self._joint(found, devices, config, inventory.machine)
        per_device = {
            one.device.name: self.files.of(one.device, inventory.machine) for one in found
        }
        meta = claim.metadata
        text = spec_text(self.driver, meta.uid, per_device, joint)
        return PreparedClaim(
            meta.uid, meta.namespace, meta.name, self.node, tuple(devices), text, tuple(joint)
        )

    def _joint(
        self,
        devices: Sequence[GpuShare],
        prepared: Sequence[PreparedDevice],
        config: DeviceConfig,
        machine: Machine,
    ) -> dict[str, Edits]:
        """Return what each request's devices have in common, and all devices ("").

        CUDA_VISIBLE_DEVICES is set for a request only if it has all GPUs of the claim: a container
        may name several requests, and would see the GPUs of the last one only.
        """
        answering: dict[str, list[GpuShare]] = {}
        for device, answer in zip(devices, prepared, strict=True):
            for request in answer.requests:
                answering.setdefault(request, []).append(device)
        gpus = sum(one.device.gpu is not None for one in devices)
        sets = dict(answering)
        if len(answering) > 1:
            sets[""] = list(devices)
        made = {
            request: joint_edits(
                machine,
                [one.device for one in own],
                config,
                self.topology_file,
                sum(one.device.gpu is not None for one in own) == gpus,
            ).plus(
                mps_edits(
                    [one for one in own if one.device.gpu is not None],
                    config.sharing,
                    self.mps_root,
                )
            )
            for request, own in sets.items()
        }
        return {request: edits for request, edits in made.items() if edits != Edits()}

    def _parameters(self, claim: ResourceClaim, requests: set[str]) -> list[object]:
        """Return this driver's opaque parameters, those of classes before those of the claim.

        :param requests: the allocated requests, with the names of their alternatives; parameters
            of a request apply to each of its alternatives.
        """
        answered = requests | {request.partition("/")[0] for request in requests}
        assert claim.status.allocation is not None
        own = [
            one
            for one in claim.status.allocation.devices.config
            if one.opaque is not None
            and one.opaque.driver == self.driver
            and (not one.requests or not answered.isdisjoint(one.requests))
        ]
        own.sort(key=lambda one: one.source != "FromClass")
        return [one.opaque.parameters for one in own if one.opaque is not None]


def _as_instance(device: NodeDevice, instance: MigInstance | None) -> NodeDevice:
    """Return a partition as the instance that it has become."""
    if device.partition is None:
        return device
    made = instance or MigInstance("", 0, 0)
    memory = device.partition.profile.partition.memory
    mig = Mig(made.uuid, made.gpu_instance, made.compute_instance, memory)
    return replace(device, mig=mig)
