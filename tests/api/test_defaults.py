"""What is left out of JSON is what an API server reads where nothing is: the zero of its type."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import msgspec
import pytest

import bayplan.api
from bayplan.api import Pod, Quantity, Toleration
from bayplan.api.dra import ResourcePool
from bayplan.api.meta import ApiStruct, explicit
from bayplan.api.pod import Container, ContainerPort, PodSpec

ZEROS: tuple[object, ...] = (None, False, 0, "", (), {}, Quantity(0))


def _all_below(type_: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for one in type_.__subclasses__():
        yield one
        yield from _all_below(one)


def _of_the_api() -> list[type[msgspec.Struct]]:
    for module in pkgutil.iter_modules(bayplan.api.__path__):
        importlib.import_module(f"{bayplan.api.__name__}.{module.name}")
    found = {one for one in _all_below(ApiStruct) if one.__module__.startswith("bayplan.api.")}
    return sorted(found, key=lambda one: (one.__module__, one.__name__))


@pytest.mark.parametrize("type_", _of_the_api(), ids=lambda type_: str(type_.__name__))
def test_a_field_that_may_be_left_out_has_the_zero_of_its_type(type_: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(type_):
        default = field.default
        if isinstance(default, msgspec.Struct):
            default = msgspec.to_builtins(default)
        if default is not msgspec.NODEFAULT:
            assert default in ZEROS, f"declare {field.name} as explicit({default!r})"


class Example(ApiStruct, frozen=True):
    """Two defaults, and the struct around them."""

    count: int = explicit(1)
    off: bool = False


class Outer(ApiStruct, frozen=True):
    """A struct whose default says something."""

    inner: Example = explicit(Example())


def test_a_default_that_is_no_zero_is_written_at_any_depth() -> None:
    assert msgspec.json.encode(Outer()) == b'{"inner":{"count":1}}'
    assert msgspec.json.decode(b"{}", type=Outer) == Outer(Example(1, False))


def test_a_pool_says_that_it_has_one_slice() -> None:
    assert msgspec.to_builtins(ResourcePool("a"))["resourceSliceCount"] == 1


def test_a_pod_says_what_it_has_by_default() -> None:
    spec = PodSpec((Container("c", ports=(ContainerPort(80),)),), tolerations=(Toleration("k"),))
    sent = msgspec.to_builtins(Pod(spec=spec))["spec"]
    assert sent["containers"][0]["ports"] == ({"containerPort": 80, "protocol": "TCP"},)
    assert sent["tolerations"] == ({"key": "k", "operator": "Equal"},)
    assert sent["restartPolicy"] == "Always"
    assert sent["terminationGracePeriodSeconds"] == 30
