"""Print a machine: nvidia-smi's matrix with NUMA and NICs, the PCIe tree, the selected GPUs."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from bayplan.naming import counted
from bayplan.topology.machine.model import LinkKind, Machine, PartKind
from bayplan.topology.machine.select import Selection

__all__ = ["print_machine"]


def print_machine(machine: Machine, selection: Selection | None) -> None:
    """Print all known facts about a machine, and the selected GPUs."""
    # A row of the matrix is one line, which wraps on a narrow terminal.
    console = Console(width=4096, highlight=False, emoji=False)
    chosen = set(selection.gpus) if selection is not None else set()
    console.print(_headline(machine))
    console.print(_matrix(machine, chosen))
    console.print(_tree(machine, chosen))
    if selection is not None:
        _print_selection(console, machine, selection)
    for note in machine.notes:
        console.print(f"[yellow]note: {escape(note)}[/yellow]")


def _headline(machine: Machine) -> str:
    models = list(dict.fromkeys(gpu.model for gpu in machine.gpus if gpu.model))
    parts = [counted(len(machine), "GPU") + (f" ({', '.join(models)})" if models else "")]
    parts.append(counted(len(machine.nics), "NIC"))
    if machine.link.wire:
        parts.append(f"{machine.link.wire:g} GB/s an NVLink")
    domains = sorted({gpu.nvlink_domain for gpu in machine.gpus if gpu.nvlink_domain})
    if domains:
        parts.append(f"NVLink domain {', '.join(domains)}")
    return f"[bold]{escape(machine.name)}[/bold]  {escape(', '.join(parts))}"


def _matrix(machine: Machine, chosen: set[int]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    size = len(machine)
    table.add_column("")
    for gpu in machine.gpus:
        table.add_column(gpu.name)
    for nic in machine.nics:
        table.add_column(escape(nic.name))
    for name in ("CPU Affinity", "NUMA Affinity", "NICs"):
        table.add_column(name)
    for gpu in machine.gpus:
        cells = [machine.label(gpu.index, other) for other in range(size + len(machine.nics))]
        near = ", ".join(machine.nics[nic].name for nic in machine.near_nics(gpu.index))
        level = machine.nic_distance(gpu.index).name
        name = f"[bold green]{gpu.name}[/bold green]" if gpu.index in chosen else gpu.name
        numa = "?" if gpu.numa is None else str(gpu.numa)
        table.add_row(name, *cells, gpu.cpus or "?", numa, escape(f"{near} ({level})" * bool(near)))
    return table


def _tree(machine: Machine, chosen: set[int]) -> Tree:
    graph = machine.graph
    kinds = {name: graph.nodes[name]["kind"] for name in graph}
    root = Tree("[bold]PCIe and NUMA[/bold]")
    seen: set[str] = set()

    def add(branch: Tree, name: str) -> None:
        seen.add(name)
        twig = branch.add(_described(machine, name, kinds[name], chosen))
        for other, edge in graph[name].items():
            below = edge["kind"] is not LinkKind.NVLINK and other not in seen
            if below and kinds[other] is not PartKind.SOCKET:
                add(twig, other)

    for name, kind in kinds.items():
        if kind is PartKind.SOCKET:
            add(root, name)
    lost = [name for name in kinds if name not in seen and kinds[name] is not PartKind.NVSWITCH]
    if lost:
        branch = root.add("[yellow]position not known[/yellow]")
        for name in lost:
            branch.add(_described(machine, name, kinds[name], chosen))
    return root


def _described(machine: Machine, name: str, kind: PartKind, chosen: set[int]) -> str:
    if kind is PartKind.GPU:
        gpu = machine.gpus[int(name.removeprefix("GPU"))]
        links = int(machine.nvlinks[gpu.index].max(initial=0))
        details = [
            gpu.bus_id,
            f"up to {counted(links, 'NVLink')} to a peer" if links else "",
            gpu.lost,
        ]
        style = "bold green" if gpu.index in chosen else "red" if gpu.lost else "cyan"
        text = " ".join(part for part in details if part)
        return f"[{style}]{name}[/{style}] [dim]{escape(text)}[/dim]"
    if kind is PartKind.NIC:
        nic = next(nic for nic in machine.nics if nic.name == name)
        details = [nic.bus_id, nic.link_layer, f"{nic.rate:g} Gb/s" if nic.rate else ""]
        details.append(f"rail {nic.rail}" if nic.rail is not None else "")
        details.append("" if nic.index in machine.compute_nics else "not for GPU traffic")
        text = " ".join(part for part in details if part)
        return f"[magenta]{escape(name)}[/magenta] [dim]{escape(text)}[/dim]"
    if kind is PartKind.NUMA:
        number = machine.graph.nodes[name]["numa"]
        return f"NUMA node {'not known' if number is None else number}"
    if kind is PartKind.SOCKET:
        return escape("socket not known" if name.endswith("?") else name)
    if kind is PartKind.ROOT:
        return escape(f"PCIe root {name}" if name.startswith("pci") else "PCIe root")
    return "PCIe switch"


def _print_selection(console: Console, machine: Machine, selection: Selection) -> None:
    names = ", ".join(f"GPU{gpu}" for gpu in selection.gpus)
    console.print(f"[bold]Chosen[/bold]  [bold green]{names}[/bold green]")
    for reason in selection.why:
        console.print(f"  {escape(reason)}")
    if len(selection.gpus) > 2:
        from bayplan.topology.machine.rings import ring_order

        order = ring_order(machine.bandwidth, selection.gpus)
        ring = " - ".join(str(gpu) for gpu in (*order, order[0]))
        console.print(f"  ring {ring}, slowest edge {selection.slowest_edge:g} GB/s")
