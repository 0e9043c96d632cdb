"""The ConfigMap of a fabric: what is read, and what is refused."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan.api import ObjectMeta
from bayplan.api.configmap import ConfigMap
from bayplan.cluster.embedded.fabric import VirtualFabric
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.dialects.fabric import limit_of, read_double, read_models

INFO = """
- index: 1
  cdi-model-name: A100 40G
  k8s-device-name: a100
  driver-name: gpu.example.com
  dra-attributes: {productName: A100}
  cannot-coexists-with: [2]
- {index: 2, k8s-device-name: h100, driver-name: gpu.example.com}
"""


def config(info: str = INFO, **data: str) -> ConfigMap:
    return ConfigMap(ObjectMeta(name="dds", namespace="c"), {"device-info": info, **data})


def test_models_and_those_that_cannot_coexist_are_read() -> None:
    found = read_models(config(**{"label-prefix": "example.com"}))
    assert found.prefix == "example.com"
    assert [(one.name, one.driver, one.attributes) for one in found.models] == [
        ("a100", "gpu.example.com", {"productName": "A100"}),
        ("h100", "gpu.example.com", {}),
    ]
    assert found.apart() == {"a100": {"h100"}, "h100": {"a100"}}


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ("{a: 1}", "data[device-info]: expected a list of models"),
        ("[", "data[device-info]: "),
        ("- 3", "data[device-info]: models.0"),
        ("- {index: -1, k8s-device-name: a, driver-name: d}", "models.0.index"),
        ("- {index: 1, k8s-device-name: A!, driver-name: d}", "models.0.k8s-device-name"),
        ("- {index: 1, k8s-device-name: a}", "models.0.driver-name: Field required"),
        (
            "- {index: 1, k8s-device-name: a, driver-name: d}\n"
            "- {index: 1, k8s-device-name: b, driver-name: d}",
            "two models have the index 1",
        ),
    ],
)
def test_what_is_wrong_with_a_model_is_told_with_its_place(info: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read_models(config(info))


@pytest.mark.parametrize(
    ("double", "words"),
    [
        ("fabrics: 3", "data[double]: fabrics"),
        ("fabrics: [{id: 1, devices: {a100: 65}}]", "fabrics.0.devices.a100"),
        ("{fabrics: [], attachTime: soon}", 'expected a duration such as "90s"'),
        ("{fabrics: [], failures: [{times: 0}]}", "failures.0.times"),
        ("{fabrics: [], attach: 3s}", "attach: Extra inputs are not permitted"),
    ],
)
def test_what_is_wrong_with_the_double_is_told_with_its_place(double: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read_double(config(double=double))


def test_a_double_of_unknown_models_is_reported_and_does_nothing() -> None:
    cluster = MemoryCluster()
    VirtualFabric(cluster)
    cluster.create(config(double="fabrics: [{id: 1, devices: {b200: 1}}]"))
    cluster.deliver()
    (text,) = cluster.reports.values()
    assert 'model "b200" is not in device-info (a100, h100)' in text


def test_a_limit_is_a_number_or_none() -> None:
    assert limit_of({"p/a-size-max": "2"}, "p", "a", "max") == 2
    assert limit_of({"p/a-size-max": "2"}, "p", "a", "min") is None


@pytest.mark.parametrize("text", ["-1", "many", "", "٣", "1000000"])
def test_a_limit_that_is_no_number_is_told_with_its_label(text: str) -> None:
    with pytest.raises(ValueError, match="label p/a-size-max: expected a number"):
        limit_of({"p/a-size-max": text}, "p", "a", "max")


@examples(50)
@given(st.text(max_size=200), st.text(max_size=200), st.text(max_size=40))
def test_no_text_breaks_the_reader(info: str, double: str, prefix: str) -> None:
    made = config(info, double=double, **{"label-prefix": prefix})
    for read in (read_models, read_double):
        with contextlib.suppress(ValueError):
            read(made)
