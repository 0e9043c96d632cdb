"""The manifests that install the node driver: they allow exactly what it calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from msgspec.structs import replace
from tests.dra.driver.apiserver import ApiServer
from tests.paths import ROOT

from bayplan.topology.machine.readers.machinefile import known_machine
from bayplan_dra.cel import compile_selector
from bayplan_dra.driver.command import command
from bayplan_dra.driver.kubernetes_api import KubernetesApi
from bayplan_dra.driver.publish.devices import DRIVER, inventory_of
from bayplan_dra.driver.publish.publisher import Publisher

PATH = ROOT / "configs" / "deploy" / "dra-driver.yaml"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(PATH.read_text()))
VERBS = {"GET": "get", "WATCH": "watch", "POST": "create", "PUT": "update", "DELETE": "delete"}


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [document for document in DOCUMENTS if document["kind"] == kind]
    return found


def test_the_role_allows_exactly_what_is_called(tmp_path: Path) -> None:
    with ApiServer().serving() as server:
        server.put("/api/v1/nodes/n", {"metadata": {"name": "n"}})
        api = KubernetesApi(server.write_kubeconfig(tmp_path / "kubeconfig"))
        publisher = Publisher(api, DRIVER, api.owner("n"))
        api.claim("default", "c")
        inventory = inventory_of(known_machine("dgx-1v"))
        publisher.publish(inventory, {})
        publisher.publish(replace_first(inventory), {})
        publisher.withdraw()
        next(api.follow(DRIVER, "n"))
        calls = server.calls
    called = set()
    for call in calls:
        method, path = call.split()
        resource, _, name = re.sub(
            r"^.*/(?=(resourceslices|resourceclaims|nodes))", "", path
        ).partition("/")
        called.add((resource, "list" if method == "GET" and not name else VERBS[method]))
    allowed = {
        (resource, verb)
        for rule in of_kind("ClusterRole")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert called == allowed


def replace_first(inventory: Any) -> Any:
    (name, first), *others = inventory.devices.items()
    device = replace(first.device, name=name, attributes={})
    return replace(inventory, devices={name: replace(first, device=device), **dict(others)})


def test_the_options_of_the_daemon_set_are_those_of_the_command() -> None:
    (container,) = of_kind("DaemonSet")["spec"]["template"]["spec"]["containers"]
    name, *arguments = container["args"]
    assert name == "dra-driver"
    shown = CliRunner().invoke(command, ["--help"]).output
    for argument in arguments:
        assert argument.partition("=")[0] in shown
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in security
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {
        volume["name"] for volume in of_kind("DaemonSet")["spec"]["template"]["spec"]["volumes"]
    }
    assert mounted == volumes


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_classes_compile(index: int) -> None:
    classes = [document for document in DOCUMENTS if document["kind"] == "DeviceClass"]
    for selector in classes[index]["spec"]["selectors"]:
        compile_selector(selector["cel"]["expression"])
