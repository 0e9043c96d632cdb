"""A machine that bayplan knows, made to look real on the node: NVML, sysfs and device files.

The device files have the numbers of real ones and no driver: opening one that the container's
cgroup allows fails with ENXIO, any other with EPERM. So isolation can be tested without GPUs.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.topology.machine.readers import nvml_machine

from bayplan.topology.machine.readers.machinefile import known_machine

GPU_MAJOR, VERBS_MAJOR = 195, 231
_OF_ALL_GPUS = {
    "nvidiactl": (GPU_MAJOR, 255),
    "nvidia-uvm": (510, 0),
    "nvidia-uvm-tools": (510, 1),
}
_OF_ALL_NICS = {"infiniband/rdma_cm": (10, 122)}


@dataclass(frozen=True)
class MachineFiles:
    """What the driver needs to take the files for a machine.

    :ivar news: what happens to the machine while the driver runs.
    """

    options: Sequence[str]
    environment: dict[str, str]
    news: nvml_machine.News

    def with_environment(self, more: dict[str, str]) -> MachineFiles:
        """Return the same files with more variables for the driver."""
        return replace(self, environment={**self.environment, **more})


def make_machine(name: str, folder: Path, enter: Sequence[str]) -> MachineFiles:
    """Write a machine's files; its device files are made in the node's /dev, too.

    :param enter: the command that runs another one in the node's mounts.
    """
    root = folder / "root"
    root.mkdir(parents=True)
    nvml_machine.compile_stub(folder)
    machine = replace(nvml_machine.fake_of(known_machine(name)), driver="570.124.06")
    written = nvml_machine.write(machine, root)
    for index, nic in enumerate(machine.nics):
        verbs = written.sysfs / f"class/infiniband_verbs/uverbs{index}"
        verbs.mkdir(parents=True)
        (verbs / "ibdev").write_text(f"{nic.name}\n")
    files = dict(_numbers(len(machine.gpus), len(machine.nics)))
    for path, numbers in files.items():
        made = root / "dev" / path
        made.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(made, 0o666 | stat.S_IFCHR, os.makedev(*numbers))
    lines = [
        f"mkdir -p $(dirname /dev/{path}); mknod -m 666 /dev/{path} c {major} {minor}"
        for path, (major, minor) in files.items()
    ]
    subprocess.run([*enter, "sh", "-ec", "; ".join(lines)], check=True)
    news = folder / "news"
    news.touch()
    return MachineFiles(
        ("--sysfs-root", str(written.sysfs), "--host-root", str(root)),
        {
            "LD_LIBRARY_PATH": str(folder),
            "NVML_STUB_MACHINE": str(written.stub),
            "NVML_STUB_NEWS": str(news),
        },
        nvml_machine.News(news),
    )


def _numbers(gpus: int, nics: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the paths in /dev and the numbers of a machine's device files."""
    yield from {**_OF_ALL_GPUS, **_OF_ALL_NICS}.items()
    for index in range(gpus):
        yield f"nvidia{index}", (GPU_MAJOR, index)
    for index in range(nics):
        yield f"infiniband/uverbs{index}", (VERBS_MAJOR, 192 + index)
