"""bayplan top: one look in a pipe, and frames on a terminal."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from tests.paths import ROOT
from tests.pseudo_terminal import SECONDS, on_a_terminal, read_until

from bayplan.cli import cli
from bayplan.errors import InputError
from bayplan.explain.overview import Overview

EXAMPLES = ROOT / "configs" / "examples"


def top(*arguments: object) -> str:
    given = ["top", *map(str, arguments)]
    result = CliRunner().invoke(cli, given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def overview(*arguments: object) -> Overview:
    return msgspec.convert(json.loads(top(*arguments, "-o", "json")), Overview)


def test_one_look_has_nodes_gpus_queues_and_reasons() -> None:
    found = overview("-f", EXAMPLES / "pending")
    assert (found.node_count, found.placed, found.waiting, found.waiting_jobs) == (5, 1, 3, 1)
    gpus = found.amounts[0]
    assert (gpus.resource, gpus.used, gpus.offered) == ("nvidia.com/gpu", 2, 40)
    assert found.nodes[0].name == "node-4"
    (job,) = found.pending
    assert (job.job, job.pods, job.waits) == ("default/training", 3, 600)
    assert "topology topologyNode RackLayer/rack-a: 2" in job.why


def test_queues_are_shown_with_what_they_use(tmp_path: Path) -> None:
    found = overview("-f", EXAMPLES / "queues-plain-fair-share", "--until", "1s")
    assert found.queue_count == len(found.queues) > 0
    assert any(one.running or one.waiting for one in found.queues)


def test_devices_of_claims_are_counted() -> None:
    found = overview("-f", EXAMPLES / "gpu-nic-pcie-root")
    claimed = {one.resource: (one.used, one.offered) for one in found.amounts}
    (gpus,) = [one for name, one in claimed.items() if name.startswith("devices of gpu")]
    assert gpus[0] == 8


def test_nodes_that_cannot_be_used_come_first(tmp_path: Path) -> None:
    node = "apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nspec: {%s}\nstatus: {%s}\n---\n"
    ready = "conditions: [{type: Ready, status: '%s'}], capacity: {cpu: 1, memory: 1Gi}"
    (tmp_path / "nodes.yaml").write_text(
        node % ("a", "", ready % "True")
        + node % ("b", "", ready % "False")
        + node % ("c", "unschedulable: true", ready % "True")
    )
    text = top("-f", tmp_path)
    assert text.startswith("3 nodes, 1 cordoned, 1 not ready, 0 pods on nodes\n")
    rows = [line.split()[0] for line in text.splitlines() if line[:2] in ("a ", "b ", "c ")]
    assert rows == ["b", "c", "a"]


def test_long_tables_say_how_much_is_left_out(tmp_path: Path) -> None:
    from bayplan.explain.overview import Amount, FullNode
    from bayplan.explain.overview_text import drawn

    nodes = [FullNode(f"n{i}", "in-service", (Amount("cpu", 0, 1000),), 0) for i in range(5)]
    found = Overview(0.0, 60, 0, 0, 0, 0, 0, (), nodes, 0, (), ())
    from rich.console import Console

    console = Console(width=80)
    with console.capture() as printed:
        console.print(drawn(found, 2))
    assert "and 58 more nodes" in printed.get()


def test_names_of_the_cluster_are_no_markup() -> None:
    from rich.console import Console

    from bayplan.explain.overview import PendingJob
    from bayplan.explain.overview_text import drawn

    job = PendingJob("ns/[red]x", "ns/[red]x", 1, 5.0, "[bold]why[/nothing]")
    console = Console(width=80)
    with console.capture() as printed:
        console.print(drawn(Overview(0.0, 0, 0, 0, 0, 1, 1, (), (), 0, (), [job]), 5))
    assert "ns/[red]x" in printed.get()
    assert "[bold]why[/nothing]" in printed.get()


def test_it_needs_one_source() -> None:
    with pytest.raises(InputError, match="exclude each other"):
        top("-f", EXAMPLES / "pending", "--kubeconfig", "x")


def test_on_a_terminal_it_shows_again_what_has_changed(tmp_path: Path) -> None:
    for file in (EXAMPLES / "pending").iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    with on_a_terminal("top", "-f", str(tmp_path)) as (process, terminal):
        text = read_until(terminal, "end, at 600 s")
        assert "\x1b[" in text
        extra = "apiVersion: v1\nkind: Node\nmetadata: {name: one-more-node}\n"
        (tmp_path / "more.yaml").write_text(extra)
        read_until(terminal, "6 nodes")
        read_until(terminal, "end, at 600 s")
        process.send_signal(signal.SIGINT)
        # It leaves the other screen before it ends.
        read_until(terminal, "\x1b[?1049l")
        assert process.wait(SECONDS) == 0
