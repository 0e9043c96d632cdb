"""Restarts of the kubelet and of the driver: devices are offered when pods can have them."""

from __future__ import annotations

import signal
import time

import pytest
from tests.controlplane.plane import wait_until
from tests.node.real_node import SLICES, DriverProcess, RealNode, claim_template, pod, request

ONE = claim_template("one", [request("gpu", "gpu")])
HALF = claim_template("half", [request("gpu", "gpu", 4)])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_pods_get_devices_soon_after_a_restart_of_the_kubelet(
    node: RealNode, driver: DriverProcess, number: signal.Signals
) -> None:
    node.apply(ONE, pod("before", template="one"))
    node.wait_for("Running", "before")
    node.end("kubelet", number)
    started = time.monotonic()
    node.start()
    # Its devices are gone until the kubelet knows the driver, as the pod would wait for a minute.
    node.apply(pod("after", template="one"))
    node.wait_for("Running", "after", "before", seconds=30)
    print(f"\na pod runs {time.monotonic() - started:.1f} s after the kubelet's restart began")
    assert len(node.devices()) == 20
    gpus = [devices["gpu"][0] for devices in node.claims().values()]
    assert len(set(gpus)) == 2


def test_a_driver_that_is_killed_takes_up_where_it_was(
    node: RealNode, driver: DriverProcess
) -> None:
    node.apply(HALF, pod("before", template="half"))
    node.wait_for("Running", "before")
    driver.kill()
    driver.start()
    driver.wait_until_ready()
    node.apply(pod("after", template="half"), pod("waiting", template="half"))
    node.wait_for("Running", "after", seconds=30)
    wait_until(lambda: node.told("waiting"), "waiting is told why")
    node.delete_pods("before")
    node.wait_for("Running", "waiting", seconds=30)
    claims = node.claims()
    assert not set(claims["after"]["gpu"]) & set(claims["waiting"]["gpu"])
    assert len(node.prepared()) == 2


def test_a_deleted_slice_is_back_at_once(node: RealNode, driver: DriverProcess) -> None:
    (found,) = node.items(SLICES)
    node.client.delete(f"{SLICES}/{found['metadata']['name']}")
    wait_until(lambda: len(node.devices()) == 20, "the devices are offered again", 10)
