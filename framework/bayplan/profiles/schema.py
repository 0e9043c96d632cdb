"""The JSON Schema of profile files, so that editors complete, explain and check them.

It follows from the models that ``load_profiles`` checks files with, so it names what is installed:
the plugins, and the arguments of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pydantic
from pydantic.json_schema import models_json_schema

from bayplan.dialects.koordinator.gangs import CoschedulingArgs
from bayplan.profiles.configuration import Configuration
from bayplan.profiles.finder import PluginFinder
from bayplan.profiles.loading import POINTS

__all__ = ["profile_schema"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFINITIONS = "#/$defs/"


def profile_schema(finder: PluginFinder) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a KubeSchedulerConfiguration.

    It knows names, types and ranges; ``load_profiles`` also checks what belongs together.

    :raises InputError: when a plugin cannot be imported.
    """
    names = sorted({*finder.entry_points, *finder.local()})
    models: dict[str, type[pydantic.BaseModel]] = {name: finder.find(name).Args for name in names}
    models["Coscheduling"] = CoschedulingArgs
    schema, arguments = _definitions(models)
    definitions = schema["$defs"]
    listed = [{"enum": names}, {"pattern": ":", "description": "A class, as MODULE:CLASS."}]
    definitions["Enabled"]["properties"]["name"] = {"anyOf": listed}
    off = [{"const": "*", "description": "All of the default profile."}, *listed]
    definitions["Disabled"]["properties"]["name"] = {"anyOf": off}
    definitions["ProfileEntry"]["properties"]["plugins"] = {
        "type": "object",
        "properties": {
            point: {"$ref": f"{_DEFINITIONS}PluginSet"} for point in ("multiPoint", *POINTS)
        },
        "additionalProperties": False,
    }
    one = definitions["PluginConfig"]
    one["properties"]["name"] = {"anyOf": [{"enum": sorted(models)}, listed[1]]}
    one["allOf"] = [
        {
            "if": {"properties": {"name": {"const": name}}},
            "then": {"properties": {"args": {"$ref": f"{_DEFINITIONS}{name}Args"}}},
        }
        for name in sorted(models)
    ]
    definitions |= arguments
    root: dict[str, Any] = definitions.pop("Configuration")
    head: dict[str, Any] = {"$schema": _DIALECT, "title": "A profile file of bayplan"}
    ordered = {"$defs": dict(sorted(definitions.items()))}
    return head | root | ordered


def _definitions(
    models: Mapping[str, type[pydantic.BaseModel]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the definitions of a configuration, and those of each plugin's arguments apart."""
    all_models: list[type[pydantic.BaseModel]] = [Configuration, *models.values()]
    asked: list[tuple[type[pydantic.BaseModel], Literal["validation"]]] = [
        (one, "validation") for one in dict.fromkeys(all_models)
    ]
    references, found = models_json_schema(asked)
    schema = _tidy(found)
    definitions = schema["$defs"]
    arguments = {}
    for name, model in models.items():
        own = definitions[_name_of(references[model, "validation"])]
        kind = {"apiVersion": {"type": "string"}, "kind": {"const": f"{name}Args"}}
        fields = own.get("properties", {})
        arguments[f"{name}Args"] = {**own, "properties": kind | fields}
        if not fields:
            arguments[f"{name}Args"]["description"] = f"{name} takes no arguments."
    for model in set(models.values()):
        del definitions[_name_of(references[model, "validation"])]
    return schema, arguments


def _name_of(reference: Any) -> str:
    return str(reference["$ref"]).removeprefix(_DEFINITIONS)


def _tidy(node: Any, named: bool = False) -> Any:
    """Return a schema without titles, which only repeat names, and with plain descriptions.

    :param named: whether the keys are names of fields or definitions.
    """
    if isinstance(node, list):
        return [_tidy(one) for one in node]
    if not isinstance(node, dict):
        return node
    tidy = {}
    for key, value in node.items():
        if named:
            tidy[key] = _tidy(value)
        elif key == "description":
            tidy[key] = " ".join(value.replace("``", "`").split())
        elif key == "default":
            tidy[key] = value
        elif key != "title":
            tidy[key] = _tidy(value, key in ("properties", "$defs"))
    return tidy
