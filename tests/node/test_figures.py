"""How long things take on a real node: ``pytest tests/node/test_figures.py -s`` prints a table.

Nothing here depends on the figures; benchmarks/README.md has some.
"""

from __future__ import annotations

import statistics
import time

from tests.cluster.apiserver.faces import Client
from tests.controlplane.plane import wait_until
from tests.node.machine_files import MachineFiles
from tests.node.real_node import SLICES, DriverProcess, RealNode, claim_template, pod, request

ONE = claim_template("one", [request("gpu", "gpu")])


def test_time_until_the_devices_are_offered(
    node: RealNode, machine: MachineFiles, rounds: int
) -> None:
    found = []
    for _ in range(rounds):
        driver = DriverProcess(node, machine)
        for one in node.items(SLICES):
            node.client.delete(f"{SLICES}/{one['metadata']['name']}")
        started = time.monotonic()
        driver.start()
        wait_until(lambda: node.items(SLICES), "the slice")
        found.append(time.monotonic() - started)
        driver.stop()
        assert len(node.devices()) == 20
    print(f"\nprocess to slice: {_spread(found)}")


def test_time_until_a_pod_runs(node: RealNode, driver: DriverProcess, rounds: int) -> None:
    node.apply(ONE)
    spent: dict[str, list[float]] = {"without a claim": [], "with a claim": []}
    for number in range(rounds):
        for kind, template in (("without a claim", ""), ("with a claim", "one")):
            name = f"p-{number}-{len(template)}"
            started = time.monotonic()
            node.apply(pod(name, template=template))
            node.wait_for("Running", name)
            spent[kind].append(time.monotonic() - started)
            assert name in node.claims() or not template
            node.delete_pods(name)
    for kind, seconds in spent.items():
        print(f"\na pod {kind}: {_spread(seconds)}", end="")
    prepared = _mean_milliseconds(driver, "prepare")
    print(
        f"\nat the driver: prepare {prepared:.1f} ms, unprepare "
        f"{_mean_milliseconds(driver, 'unprepare'):.1f} ms"
    )


def _spread(seconds: list[float]) -> str:
    least, median, most = min(seconds), statistics.median(seconds), max(seconds)
    return f"median {median:.2f} s, {least:.2f} to {most:.2f}, {len(seconds)} times"


def _mean_milliseconds(driver: DriverProcess, operation: str) -> float:
    """Return the mean of a metric of the driver."""
    text = Client(f"http://{driver.address}").get("/metrics").body.decode()
    values = {}
    for line in text.splitlines():
        for part in ("sum", "count"):
            name = f'bayplan_driver_claim_seconds_{part}{{operation="{operation}",result="ok"}} '
            if line.startswith(name):
                values[part] = float(line.removeprefix(name))
    return 1e3 * values["sum"] / values["count"]
