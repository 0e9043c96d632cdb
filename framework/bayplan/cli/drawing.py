"""Draw a machine in SVG: the PCIe tree above, NVLinks below, selected GPUs filled."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from bayplan.errors import InputError
from bayplan.topology.machine.model import NVSWITCH, LinkKind, Machine, PartKind

__all__ = ["draw", "write_svg"]

_GAP = 14
_LEVEL = 62
_TOP = 70
_BOX = (78, 30)
"""The minimum width of a box, and its height, in pixels."""
_LETTER = 7.5
_MARGIN = 20
_COLORS = {
    PartKind.SOCKET: "#cfd8dc",
    PartKind.NUMA: "#e0e7ec",
    PartKind.ROOT: "#eceff1",
    PartKind.SWITCH: "#fff3d6",
    PartKind.GPU: "#ffffff",
    PartKind.NIC: "#f3e5f5",
}
_STYLE = """text{font:12px sans-serif;text-anchor:middle;fill:#1c2b33}
.small{font-size:10px;fill:#37474f}.title{font-size:16px;text-anchor:start}
.pcie{stroke:#90a4ae;fill:none}.nvlink,.legend{stroke:#76b900;fill:none;opacity:.75}
.box{stroke:#607d8b}.gpu{stroke:#37474f;stroke-width:1.5}.chosen{fill:#ffca28}.lost{fill:#ef9a9a}"""


def write_svg(machine: Machine, chosen: Collection[int], path: Path) -> None:
    """Write the drawing of a machine to a file; GPUs in ``chosen`` are filled.

    :raises InputError: when the file cannot be written.
    """
    try:
        path.write_text(draw(machine, chosen), encoding="utf-8")
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(path)) from None


def draw(machine: Machine, chosen: Collection[int] = ()) -> str:
    """Return the drawing of a machine as SVG text; GPUs in ``chosen`` are filled."""
    return "\n".join(_Drawing(machine, frozenset(chosen)).lines()) + "\n"


class _Drawing:
    """The positions of all parts: devices in a row, other parts centered above their children."""

    def __init__(self, machine: Machine, chosen: frozenset[int]) -> None:
        self._machine = machine
        self._chosen = chosen
        graph = machine.graph
        self._kinds = {name: graph.nodes[name]["kind"] for name in graph}
        self._below: dict[str, list[str]] = {}
        self._positions: dict[str, tuple[float, float]] = {}
        self._right = float(_MARGIN)
        roots = [name for name, kind in self._kinds.items() if kind is PartKind.SOCKET]
        depth = 0
        for name in roots:
            depth = max(depth, self._walk(name, None, 0))
        self._floor = _TOP + max(depth, 1) * _LEVEL
        for name in roots:
            self._settle(name, 0)
        for name, kind in self._kinds.items():
            if name not in self._positions and kind in (PartKind.GPU, PartKind.NIC):
                self._positions[name] = (self._column(name), self._floor)

    def _column(self, name: str) -> float:
        """Add a column as wide as the part's box, and return its center."""
        left, width = self._right, self._width(name)
        self._right += width + _GAP
        return left + width / 2

    def _width(self, name: str) -> float:
        return max(_BOX[0], _LETTER * len(self._label(name)) + 8)

    def _label(self, name: str) -> str:
        kind = self._kinds[name]
        if kind is PartKind.NUMA:
            number = self._machine.graph.nodes[name]["numa"]
            return f"NUMA {'?' if number is None else number}"
        if kind is PartKind.ROOT and not name.startswith("pci"):
            return "PCIe root"
        return "switch" if kind is PartKind.SWITCH else name

    def _walk(self, name: str, above: str | None, depth: int) -> int:
        """Collect the children of each part; return the depth of the deepest device."""
        found = []
        for other, edge in self._machine.graph[name].items():
            if other == above or edge["kind"] is LinkKind.NVLINK:
                continue
            if self._kinds[other] is not PartKind.SOCKET:
                found.append(other)
        self._below[name] = found
        return max((self._walk(other, name, depth + 1) for other in found), default=depth)

    def _settle(self, name: str, depth: int) -> float:
        below = [self._settle(other, depth + 1) for other in self._below[name]]
        x = (below[0] + below[-1]) / 2 if below else self._column(name)
        is_device = self._kinds[name] in (PartKind.GPU, PartKind.NIC)
        self._positions[name] = (x, self._floor if is_device else _TOP + depth * _LEVEL)
        return x

    # SVG ---------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """Yield the lines of the file."""
        title = _MARGIN * 2 + 10 * len(self._machine.name)
        width = max(400, title, self._right - _GAP + _MARGIN)
        arcs = [e for e in self._machine.graph.edges(data=True) if e[2]["kind"] is LinkKind.NVLINK]
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
                (x, y), (u, v) = self._positions[name], self._positions[other]
                yield f'<path class="pcie" d="M{x:g} {y:g} L{u:g} {v:g}"/>'
        yield from self._nvlinks(width)
        for name in self._positions:
            yield from self._box(name)
        yield "</svg>"

    def _nvlinks(self, width: float) -> Iterator[str]:
        bottom = self._floor + _BOX[1] / 2
        counts = set()
        for a, b, edge in self._machine.graph.edges(data=True):
            if edge["kind"] is not LinkKind.NVLINK:
                continue
            counts.add(edge["count"])
            if NVSWITCH in (a, b):
                x = self._positions[b if a == NVSWITCH else a][0]
                d = f"M{x:g} {bottom:g} L{x:g} {bottom + 70:g}"
            else:
                x, u = self._positions[a][0], self._positions[b][0]
                dip = bottom + 25 + min(110, abs(u - x) / 4)
                d = f"M{x:g} {bottom:g} Q{(x + u) / 2:g} {2 * dip - bottom:g} {u:g} {bottom:g}"
            yield f'<path class="nvlink" stroke-width="{_thickness(edge["count"]):g}" d="{d}"/>'
        if NVSWITCH in self._kinds:
            yield (
                f'<rect class="box" x="{_MARGIN}" y="{bottom + 70:g}" '
                f'width="{width - 2 * _MARGIN:g}" height="26" rx="4" fill="#e3f0cc"/>'
            )
            yield f'<text x="{width / 2:g}" y="{bottom + 87:g}">{NVSWITCH}</text>'
        for position, count in enumerate(sorted(counts)):
            x, y = _MARGIN + 90 * position, self._floor + 175
            yield (
                f'<path class="legend" stroke-width="{_thickness(count):g}" '
                f'd="M{x:g} {y:g} L{x + 30:g} {y:g}"/>'
            )
            yield f'<text x="{x + 52:g}" y="{y + 4:g}">NV{count}</text>'

    def _box(self, name: str) -> Iterator[str]:
        kind = self._kinds[name]
        x, y = self._positions[name]
        width, height = self._width(name), _BOX[1]
        fill, css = f' fill="{_COLORS[kind]}"', "box"
        small = ""
        if kind is PartKind.GPU:
            gpu = self._machine.gpus[int(name.removeprefix("GPU"))]
            if gpu.index in self._chosen or gpu.lost:
                fill = ""
            css = "gpu chosen" if gpu.index in self._chosen else "gpu lost" if gpu.lost else "gpu"
            small = "" if gpu.numa is None else f"NUMA {gpu.numa}"
        elif kind is PartKind.NIC:
            nic = next(nic for nic in self._machine.nics if nic.name == name)
            small = f"{nic.rate:g} Gb/s" if nic.rate else ""
        yield (
            f'<rect class="{css}" x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width:g}" '
            f'height="{height}" rx="4"{fill}/>'
        )
        label = escape(self._label(name))
        yield f'<text x="{x:g}" y="{y + (0 if small else 4):g}">{label}</text>'
        if small:
            yield f'<text class="small" x="{x:g}" y="{y + 11:g}">{escape(small)}</text>'


def _thickness(links: int) -> float:
    """Return a line width in which one NVLink and two look different."""
    return 0.5 + 0.75 * links
