"""The house: public modules, circles between modules, and what an ``__init__`` may hold."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import grimp
import networkx
import pytest
from importlinter import ContractCheck
from tests.house.allow_list import AllowListContract
from tests.paths import ROOT

import bayplan

SOURCES = [
    ROOT / "framework" / "bayplan",
    ROOT / "plugins" / "bayplan_plugins",
    ROOT / "dra" / "bayplan_dra",
    ROOT / "remote" / "bayplan_remote",
]
PACKAGES = [source.name for source in SOURCES]


PUBLIC = ("bayplan", "bayplan.api", "bayplan.cluster.protocol", "bayplan.testing")
"""What plugin authors may import; the names of ``bayplan`` are counted in a test."""


def modules_for_plugins() -> list[str]:
    """What in-tree plugins may import: the contract in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    (plugins,) = [one for one in contracts if one.get("source") == "bayplan_plugins"]
    return list(plugins["allowed"])


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def check(graph: grimp.ImportGraph, allowed: list[str]) -> ContractCheck:
    contract = AllowListContract(
        name="plugins",
        session_options={},
        contract_options={"source": "bayplan_plugins", "target": "bayplan", "allowed": allowed},
    )
    return contract.check(graph, verbose=False)


def test_in_tree_plugins_see_no_rooms_above_their_own(graph: grimp.ImportGraph) -> None:
    assert check(graph, modules_for_plugins()).metadata["outside"] == []


def test_a_plugin_that_steps_outside_is_named_with_its_line(graph: grimp.ImportGraph) -> None:
    without = [name for name in modules_for_plugins() if name != "bayplan.naming"]
    outside = check(graph, without).metadata["outside"]
    assert any(line.endswith(")") and "-> bayplan.naming (l." in line for line in outside)


def test_the_documentation_lists_the_public_modules() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    _, _, section = page.partition("## What a plugin may import")
    rows = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("| `")]
    documented = [row.split("`")[1] for row in rows]
    assert documented == list(PUBLIC)


@pytest.mark.parametrize("source", ["docs/hook_examples.py", "docs/plugins.md", "docs/hooks.md"])
def test_examples_for_plugin_authors_import_public_modules_only(source: str) -> None:
    text = (ROOT / source).read_text()
    imported = re.findall(r"^from (bayplan[\w.]*) import", text, re.MULTILINE)
    allowed = re.compile("|".join(f"{re.escape(one)}$" for one in PUBLIC) + r"|bayplan\.api\.")
    assert [one for one in imported if not allowed.match(one)] == []


def test_the_names_of_bayplan_are_few_and_all_of_them_exist() -> None:
    assert len(bayplan.__all__) <= 50
    assert all(hasattr(bayplan, name) for name in bayplan.__all__)


def test_no_modules_import_each_other_in_a_circle(graph: grimp.ImportGraph) -> None:
    arrows = networkx.DiGraph(
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
        # A package's face imports its modules; what they import of it is no circle of theirs.
        if not importer.startswith(f"{imported}.") and not imported.startswith(f"{importer}.")
    )
    circles = [
        sorted(one) for one in networkx.strongly_connected_components(arrows) if len(one) > 1
    ]
    assert circles == []


@pytest.mark.parametrize("source", SOURCES, ids=PACKAGES)
def test_an_init_only_re_exports(source: Path) -> None:
    for file in source.rglob("__init__.py"):
        if file == ROOT / "framework" / "bayplan" / "__init__.py":
            continue  # It imports its names when they are first used.
        for statement in ast.parse(file.read_text()).body:
            re_export = ast.Expr | ast.Import | ast.ImportFrom | ast.Assign
            assert isinstance(statement, re_export), f"{file}:{statement.lineno}"


def test_the_answers_of_contributing_are_where_it_says() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    _, _, section = page.partition("## Where is ...?")
    rows = [line for line in section.split("\n## ")[0].splitlines() if "`" in line]
    packages = {path.name for path in (ROOT / "plugins/bayplan_plugins").iterdir()}
    below = {"gpus", "device_ledger", "queues"}
    assert below <= packages
    assert all(any(f"/{one}/" in row for row in rows) for one in below), "the map goes on"
    for place, name in re.findall(r"`([\w/.]+)`(?: \(`(\w+)`\))?", "\n".join(rows)):
        homes = [*(source.parent / place for source in SOURCES), SOURCES[0] / place, ROOT / place]
        found = [home for home in homes if home.exists()]
        assert found, place
        defines = rf"(def|class) {name}\("
        assert not name or re.search(defines, found[0].read_text()), (place, name)


def test_a_rule_that_is_silenced_says_why() -> None:
    folders = [*SOURCES, ROOT / "benchmarks", ROOT / "docs"]
    lines = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"# noqa(?!.* - )", line)
    ]
    assert lines == []


_ONLY_DATACLASSES = {"compare", "hash", "init", "repr"}
"""The options of fields that no ``msgspec.Struct`` has."""


def test_data_classes_are_structs_unless_a_field_needs_more() -> None:
    """Each dataclass takes 0.7 ms of the start of every command."""
    spare = [
        f"{path.relative_to(ROOT)}:{one.lineno}"
        for folder in [*SOURCES, ROOT / "benchmarks"]
        for path in sorted(folder.rglob("*.py"))
        if "@dataclass" in (text := path.read_text())
        for one in ast.walk(ast.parse(text))
        if isinstance(one, ast.ClassDef)
        and any("dataclass" in ast.unparse(decorator) for decorator in one.decorator_list)
        and not _options_of_fields(one) & _ONLY_DATACLASSES
    ]
    assert spare == []


def _options_of_fields(cls: ast.ClassDef) -> set[str | None]:
    made = (one.value for one in cls.body if isinstance(one, ast.AnnAssign))
    calls = (one for one in made if isinstance(one, ast.Call) and ast.unparse(one.func) == "field")
    return {keyword.arg for call in calls for keyword in call.keywords}
