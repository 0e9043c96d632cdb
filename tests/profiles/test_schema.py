"""The JSON Schema of profile files says what the loader says, as far as a schema can."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from tests.paths import ROOT

from bayplan.cli import cli
from bayplan.profiles.finder import PluginFinder
from bayplan.profiles.schema import profile_schema

COMMITTED = ROOT / "docs" / "profile.schema.json"
KEYWORDS = {
    *("$ref", "additionalProperties", "allOf", "anyOf", "const", "default", "description"),
    *(
        "discriminator",
        "enum",
        "exclusiveMinimum",
        "format",
        "if",
        "items",
        "maxItems",
        "maxLength",
    ),
    *("maximum", "minItems", "minLength", "minimum", "oneOf", "pattern", "properties"),
    *("propertyNames", "required", "then", "type", "exclusiveMaximum", "prefixItems"),
    *("$schema", "$defs", "title", "uniqueItems"),
}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json.loads(COMMITTED.read_text())


def errors(schema: dict[str, Any], text: str) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema)
    return [error.message for error in validator.iter_errors(yaml.safe_load(text))]


def profile(body: str) -> str:
    return f"kind: KubeSchedulerConfiguration\nprofiles:\n- {body}\n"


def test_the_committed_schema_is_current() -> None:
    result = CliRunner().invoke(cli, ["profile", "schema"])
    assert result.stdout == COMMITTED.read_text(), "run make docs"


def test_it_is_a_schema_that_uses_known_words_only(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)

    def words(node: Any) -> set[str]:
        if isinstance(node, list):
            return set().union(*map(words, node))
        if not isinstance(node, dict):
            return set()
        found = set(node)
        for key, value in node.items():
            if key in ("properties", "$defs"):
                found |= words(list(value.values()))
            elif key not in ("default", "discriminator"):
                found |= words(value)
        return found

    assert words(schema) - KEYWORDS == set()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs/profiles").iterdir()), ids=lambda path: path.name
)
def test_our_profiles_conform(schema: dict[str, Any], path: Any) -> None:
    assert errors(schema, path.read_text()) == []


def test_the_profile_inside_a_config_map_conforms(schema: dict[str, Any]) -> None:
    path = ROOT / "configs/examples/koordinator-profile/configmap.yaml"
    (text,) = yaml.safe_load(path.read_text())["data"].values()
    assert errors(schema, text) == []


@pytest.mark.parametrize(
    "body",
    [
        "{plugins: {filter: {enabled: [{name: module:Class}]}}}",
        "{plugins: {multiPoint: {disabled: [{name: '*'}]}}}",
        "{pluginConfig: [{name: HeadReservation, args: {kind: HeadReservationArgs, after: 5}}]}",
        "{pluginConfig: [{name: module:Class, args: {anything: 1}}]}",
    ],
)
def test_what_the_loader_takes_conforms(schema: dict[str, Any], body: str) -> None:
    assert errors(schema, profile(body)) == []


def test_durations_are_numbers_or_texts(schema: dict[str, Any]) -> None:
    text = "kind: KubeSchedulerConfiguration\nleaderElection: {leaseDuration: %s}\n"
    assert errors(schema, text % "15s") == errors(schema, text % "15") == []
    assert errors(schema, text % "0") != []


@pytest.mark.parametrize(
    ("body", "about"),
    [
        ("{schedulrName: a}", "schedulrName"),
        ("{plugins: {filtr: {}}}", "filtr"),
        ("{plugins: {filter: {enabled: [{name: NodeResourceFit}]}}}", "NodeResourceFit"),
        ("{pluginConfig: [{name: HeadReservation, args: {aftr: 5}}]}", "aftr"),
        ("{pluginConfig: [{name: HeadReservation, args: {after: -1}}]}", "-1"),
        (
            "{pluginConfig: [{name: HeadReservation, args: {kind: GangArgs}}]}",
            "HeadReservationArgs",
        ),
        ("{pluginConfig: [{name: NodeName, args: {after: 1}}]}", "after"),
    ],
)
def test_what_the_loader_refuses_does_not_conform(
    schema: dict[str, Any], body: str, about: str
) -> None:
    assert any(about in error for error in errors(schema, profile(body)))


def test_plugins_of_a_folder_are_known(tmp_path: Any) -> None:
    (tmp_path / "mine.py").write_text(
        "from bayplan import Args, Plugin, hookimpl\n"
        "class MineArgs(Args):\n"
        "    size: int = 1\n"
        "class Mine(Plugin[MineArgs]):\n"
        '    """Mine."""\n'
        "    Args = MineArgs\n"
        "    @hookimpl\n"
        "    def filter_node(self, pod):\n"
        "        return None\n"
    )
    found = profile_schema(PluginFinder(tmp_path))
    text = profile("{pluginConfig: [{name: Mine, args: {size: %s}}]}")
    assert errors(found, text % 2) == []
    assert errors(found, text % "many") != []
