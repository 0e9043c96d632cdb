"""Bodies of requests, and the keys that stand in them more than once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from bayplan.cluster.apiserver.status import bad_request

__all__ = ["Body", "Repeated", "read_json", "read_yaml"]


class Repeated(dict[str, Any]):
    """A mapping with a key that stands in it twice or more often; ``pairs`` has all, in order."""

    pairs: list[tuple[str, Any]]


@dataclass(frozen=True)
class Body:
    """What a request carries.

    :param content: the last value of each key.
    :param tree: the same with ``Repeated`` mappings, None where no key of a JSON body repeats.
    :param lines: what the real server says of keys that repeat in a YAML body.
    """

    content: Any
    tree: Any = None
    lines: tuple[str, ...] = ()


def read_json(text: bytes) -> Body:
    """Read a body in JSON.

    :raises ApiError: 400, where it is none.
    """
    try:
        content = msgspec.json.decode(text)
        found: list[Repeated] = []

        def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            made = dict(pairs)
            if len(made) == len(pairs):
                return made
            repeated = Repeated(made)
            repeated.pairs = pairs
            found.append(repeated)
            return repeated

        tree = json.loads(text, object_pairs_hook=mapping)
    except RecursionError:
        raise bad_request("the body of the request is nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as exc:
        raise bad_request(f"couldn't get version/kind; json parse error: {exc}") from None
    return Body(content, tree if found else None)


def read_yaml(text: bytes) -> Body:
    """Read a body in YAML, of which JSON is a part.

    :raises ApiError: 400, where it is none.
    """
    lines: list[str] = []
    try:
        loader = _Loader(text)
        loader.lines = lines
        try:
            content = loader.get_single_data()
        finally:
            loader.dispose()
    except RecursionError:
        raise bad_request("the body of the request is nested too deeply") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as exc:
        raise bad_request(f"error converting YAML to JSON: {exc}") from None
    return Body(content, lines=tuple(lines))


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """The safe loader, which leaves times alone and takes down keys that repeat."""

    lines: list[str]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    line = key.start_mark.line + 1
                    self.lines.append(f'line {line}: key "{key.value}" already set in map')
                seen.add(key.value)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
