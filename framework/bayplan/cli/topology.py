"""bayplan topology: show a machine, and the GPUs that would be selected on it."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bayplan.cli.options import output_option
from bayplan.errors import InputError
from bayplan.inputs.documents import read_stdin

if TYPE_CHECKING:
    from bayplan.topology.machine.model import Machine
    from bayplan.topology.machine.select import Selection

__all__ = ["command"]


@click.group(name="topology")
def command() -> None:
    """Show machines: GPUs, NICs, NVLink, PCIe and NUMA."""


@command.command(name="show")
@click.option(
    "--machine", metavar="FILE", help="A machine's YAML file, or the name of a known machine."
)
@click.option(
    "--smi", metavar="FILE", help="The output of nvidia-smi topo -m; - for standard input."
)
@click.option("--gpu", "model", metavar="MODEL", help="The GPUs' model for --smi, such as B200.")
@click.option("--local", is_flag=True, help="This machine, from NVML and sysfs.")
@click.option(
    "--select",
    "count",
    type=click.IntRange(min=1),
    metavar="N",
    help="Also show which N GPUs would be selected, and why.",
)
@click.option(
    "--svg",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Also write a drawing of the machine.",
)
@output_option
def show(
    machine: str | None,
    smi: str | None,
    model: str | None,
    local: bool,
    count: int | None,
    svg: str | None,
    output: str,
) -> None:
    """Print a machine: its matrix as in nvidia-smi, with NUMA and NICs, and its PCIe tree."""
    given = [machine is not None, smi is not None, local]
    if sum(given) != 1:
        raise InputError("give one of --machine, --smi and --local")
    for option, path in (("--machine", machine), ("--smi", smi), ("--svg", svg)):
        if path == "":
            raise InputError(f"{option}: expected the name of a file")
    if model is not None and smi is None:
        raise InputError("--gpu requires --smi: a machine's file names its GPUs itself")
    found = _load(machine, smi, model or "")
    selection = _select(found, count) if count is not None else None
    undrawn = _drawn(found, selection, Path(svg)) if svg is not None else None
    if output == "json":
        json.dump(_as_json(found, selection), sys.stdout, indent=2)
        print()
    else:
        from bayplan.cli.matrix import print_machine

        print_machine(found, selection)
    if undrawn is not None:
        raise undrawn


def _drawn(machine: Machine, selection: Selection | None, path: Path) -> InputError | None:
    """Draw the machine; return the error, if any, to raise after the answer is printed."""
    from bayplan.cli.drawing import write_svg

    try:
        write_svg(machine, selection.gpus if selection is not None else (), path)
    except InputError as exc:
        return exc
    return None


def _load(machine: str | None, smi: str | None, model: str) -> Machine:
    if smi is not None:
        from bayplan.topology.machine.readers.smi import parse_smi, read_smi

        if smi == "-":
            return parse_smi(read_stdin(), "machine", "standard input", model)
        return read_smi(Path(smi), model)
    if machine is not None:
        from bayplan.topology.machine.readers.machinefile import known_machine, load_machine

        if Path(machine).suffix or "/" in machine or os.path.exists(machine):
            return load_machine(Path(machine))
        return known_machine(machine)
    from bayplan.topology.machine.readers.discovery import discover

    return discover()


def _select(machine: Machine, count: int) -> Selection:
    from bayplan.topology.machine.select import NoSelection, SelectionRequest, select

    found = select(machine, machine.usable, SelectionRequest(count))
    if isinstance(found, NoSelection):
        raise InputError(f"--select {count}: {found.reason}")
    return found


def _as_json(machine: Machine, selection: Selection | None) -> dict[str, object]:
    size = len(machine)
    levels = [[machine.level(a, b) for b in range(size)] for a in range(size)]
    content: dict[str, object] = {
        "machine": machine.name,
        "gpus": [gpu.name for gpu in machine.gpus],
        "levels": [["?" if one is None else one.name for one in row] for row in levels],
        "nvlinks": machine.nvlinks.tolist(),
        "bandwidthGBps": [
            [None if a == b else float(machine.bandwidth[a, b]) for b in range(size)]
            for a in range(size)
        ],
        "numa": list(machine.numa_of),
        "nics": {
            gpu.name: [machine.nics[nic].name for nic in machine.near_nics(gpu.index)]
            for gpu in machine.gpus
        },
        "nicLevels": {
            nic.name: [machine.label(gpu, size + nic.index) for gpu in range(size)]
            for nic in machine.nics
        },
        "notes": list(machine.notes),
    }
    if selection is not None:
        content["selected"] = list(selection.gpus)
        content["bottleneckGBps"] = _number(selection.bottleneck)
        content["slowestEdgeGBps"] = _number(selection.slowest_edge)
        content["why"] = list(selection.why)
    return content


def _number(value: float) -> float | None:
    """Return a bandwidth for JSON: None if it is infinite, as for one GPU."""
    return value if math.isfinite(value) else None
