"""A machine as a drawing in SVG: the PCIe tree above, NVLinks below, chosen GPUs filled."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from bayplan.errors import InputError
from bayplan.topology.machine import Kind, Link, Machine

__all__ = ["draw", "write_svg"]

_STEP = 92
_LEVEL = 62
_TOP = 70
_BOX = (78, 30)
_COLORS = {
    Kind.SOCKET: "#cfd8dc",
    Kind.NUMA: "#e0e7ec",
    Kind.ROOT: "#eceff1",
    Kind.SWITCH: "#fff3d6",
    Kind.GPU: "#ffffff",
    Kind.NIC: "#f3e5f5",
}
_STYLE = """text{font:12px sans-serif;text-anchor:middle;fill:#1c2b33}
.small{font-size:10px;fill:#546e7a}.title{font-size:16px;text-anchor:start}
.pcie{stroke:#90a4ae;fill:none}.nvlink{stroke:#76b900;fill:none;opacity:.75}
.box{stroke:#607d8b}.gpu{stroke:#37474f;stroke-width:1.5}.chosen{fill:#76b900}.lost{fill:#ef9a9a}"""


def write_svg(machine: Machine, chosen: Collection[int], path: Path) -> None:
    """Draw a machine into a file.

    :raises InputError: when the file cannot be written.
    """
    try:
        path.write_text(draw(machine, chosen), encoding="utf-8")
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(path)) from None


def draw(machine: Machine, chosen: Collection[int] = ()) -> str:
    """Return the drawing; GPUs in ``chosen`` are filled."""
    return "\n".join(_Drawing(machine, frozenset(chosen)).lines()) + "\n"


class _Drawing:
    """Places of all parts: devices in a row, whatever is above them in its middle."""

    def __init__(self, machine: Machine, chosen: frozenset[int]) -> None:
        self._machine = machine
        self._chosen = chosen
        graph = machine.graph
        self._kinds = {name: graph.nodes[name]["kind"] for name in graph}
        self._below: dict[str, list[str]] = {}
        self._places: dict[str, tuple[float, float]] = {}
        self._columns = 0
        roots = [name for name, kind in self._kinds.items() if kind is Kind.SOCKET]
        depth = 0
        for name in roots:
            depth = max(depth, self._walk(name, None, 0))
        self._floor = _TOP + max(depth, 1) * _LEVEL
        for name in roots:
            self._settle(name, 0)
        for name, kind in self._kinds.items():
            if name not in self._places and kind in (Kind.GPU, Kind.NIC):
                self._places[name] = (self._column(), self._floor)

    def _column(self) -> float:
        self._columns += 1
        return 20 + _STEP * (self._columns - 0.5)

    def _walk(self, name: str, above: str | None, depth: int) -> int:
        """Collect what is below each part; return the depth of the deepest device."""
        found = []
        for other, edge in self._machine.graph[name].items():
            if other == above or edge["kind"] is Link.NVLINK:
                continue
            if self._kinds[other] is not Kind.SOCKET:
                found.append(other)
        self._below[name] = found
        return max((self._walk(other, name, depth + 1) for other in found), default=depth)

    def _settle(self, name: str, depth: int) -> float:
        below = [self._settle(other, depth + 1) for other in self._below[name]]
        x = (below[0] + below[-1]) / 2 if below else self._column()
        is_device = self._kinds[name] in (Kind.GPU, Kind.NIC)
        self._places[name] = (x, self._floor if is_device else _TOP + depth * _LEVEL)
        return x

    # Lines -------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """Yield the lines of the file."""
        width = 40 + _STEP * max(4, self._columns)
        arcs = [e for e in self._machine.graph.edges(data=True) if e[2]["kind"] is Link.NVLINK]
        height = self._floor + (190 if arcs else 70)
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}">'
        )
        yield f"<title>{escape(self._machine.name)}</title>"
        yield f"<style>{_STYLE}</style>"
        yield '<rect width="100%" height="100%" fill="#fafafa"/>'
        yield f'<text class="title" x="20" y="30">{escape(self._machine.name)}</text>'
        for name, others in self._below.items():
            for other in others:
                (x, y), (u, v) = self._places[name], self._places[other]
                yield f'<path class="pcie" d="M{x:g} {y:g} L{u:g} {v:g}"/>'
        yield from self._nvlinks(width)
        for name in self._places:
            yield from self._box(name)
        yield "</svg>"

    def _nvlinks(self, width: float) -> Iterator[str]:
        bottom = self._floor + _BOX[1] / 2
        switched = "NVSwitch" in self._kinds
        for a, b, edge in self._machine.graph.edges(data=True):
            if edge["kind"] is not Link.NVLINK:
                continue
            thick = min(8.0, 1 + edge["count"] / 3)
            if "NVSwitch" in (a, b):
                x = self._places[b if a == "NVSwitch" else a][0]
                d = f"M{x:g} {bottom:g} L{x:g} {bottom + 70:g}"
            else:
                x, u = self._places[a][0], self._places[b][0]
                dip = bottom + 25 + min(110, abs(u - x) / 4)
                d = f"M{x:g} {bottom:g} Q{(x + u) / 2:g} {2 * dip - bottom:g} {u:g} {bottom:g}"
            yield f'<path class="nvlink" stroke-width="{thick:g}" d="{d}"/>'
        if switched:
            yield (
                f'<rect class="box" x="20" y="{bottom + 70:g}" width="{width - 40:g}" height="26" '
                'rx="4" fill="#e3f0cc"/>'
            )
            yield f'<text x="{width / 2:g}" y="{bottom + 87:g}">NVSwitch</text>'

    def _box(self, name: str) -> Iterator[str]:
        kind = self._kinds[name]
        x, y = self._places[name]
        width, height = _BOX
        fill, css = f' fill="{_COLORS[kind]}"', "box"
        small = ""
        if kind is Kind.GPU:
            gpu = self._machine.gpus[int(name.removeprefix("GPU"))]
            if gpu.index in self._chosen or gpu.lost:
                fill = ""
            css = "gpu chosen" if gpu.index in self._chosen else "gpu lost" if gpu.lost else "gpu"
            small = "" if gpu.numa is None else f"NUMA {gpu.numa}"
        elif kind is Kind.NIC:
            nic = next(nic for nic in self._machine.nics if nic.name == name)
            small = f"{nic.rate:g} Gb/s" if nic.rate else ""
        yield (
            f'<rect class="{css}" x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width}" '
            f'height="{height}" rx="4"{fill}/>'
        )
        label = "switch" if kind is Kind.SWITCH else name
        if kind is Kind.ROOT and not name.startswith("pci"):
            label = "PCIe root"
        yield f'<text x="{x:g}" y="{y + (0 if small else 4):g}">{escape(label[:14])}</text>'
        if small:
            yield f'<text class="small" x="{x:g}" y="{y + 11:g}">{escape(small)}</text>'
