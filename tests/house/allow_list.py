"""A contract for import-linter: a package may import only the listed modules of another one."""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

__all__ = ["AllowListContract"]


class AllowListContract(Contract):
    """``source`` may import of ``target`` only ``allowed`` modules, and what lies below them.

    A name ``package`` stands for the package and all its modules, ``package!`` for itself only.
    """

    source = fields.StringField()
    target = fields.StringField()
    allowed = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Return the imports outside the list."""
        outside: list[str] = []
        importers = {self.source} | graph.find_descendants(self.source)
        for importer in sorted(importers):
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                if _in(imported, self.target) and not self._allows(imported):
                    details = graph.get_import_details(importer=importer, imported=imported)
                    lines = ", ".join(str(one["line_number"]) for one in details)
                    outside.append(f"{importer} -> {imported} (l.{lines})")
        return ContractCheck(kept=not outside, metadata={"outside": outside})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the imports outside the list."""
        for line in check.metadata["outside"]:
            output.print_error(f"- {line}", bold=False)
        output.new_line()

    def _allows(self, module: str) -> bool:
        return any(
            module == name[:-1] if name.endswith("!") else _in(module, name)
            for name in self.allowed
        )


def _in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
