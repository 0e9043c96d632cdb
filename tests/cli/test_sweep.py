"""bayplan sweep: the same table wherever the runs run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bayplan.cli import cli
from bayplan.cli.workers import at_once
from bayplan.errors import BayplanError, InputError
from bayplan.simulation.trace import TraceJob, shuffled

SECONDS = 240
NODE = """apiVersion: v1
kind: Node
metadata: {name: n}
status: {allocatable: {cpu: 8, memory: 32Gi, pods: 110}}
"""
JOBS = "name,arrival,duration,cpu\nlong,0,1h,8\nshort,60,5m,4\nother,120,5m,4\n"
PROFILE = """kind: KubeSchedulerConfiguration
profiles: [{plugins: {multiPoint: {disabled: [{name: %s}]}}}]
"""
# Two workers in processes of their own, as on two machines.
CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
    cluster.close()
"""


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    (tmp_path / "node.yaml").write_text(NODE)
    (tmp_path / "a.csv").write_text(JOBS)
    (tmp_path / "b.csv").write_text(JOBS.replace("short,60", "short,600"))
    (tmp_path / "one.yaml").write_text(PROFILE % "ImageLocality")
    (tmp_path / "two.yaml").write_text(PROFILE % "InterPodAffinity")
    arguments = ["sweep", "-f", str(tmp_path / "node.yaml")]
    for name in ("one", "two"):
        arguments += ["--config", str(tmp_path / f"{name}.yaml")]
    arguments += ["--arrivals", str(tmp_path / "a.csv")]
    return [*arguments, "--seed", "0", "--seed", "1"]


def sweep(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_profile_runs_every_trace_in_every_order(given: list[str], tmp_path: Path) -> None:
    more = ("--arrivals", str(tmp_path / "b.csv"), "--processes", "1", "-o", "json")
    runs: list[dict[str, Any]] = json.loads(sweep(*given, *more))["runs"]
    keys = [(Path(run["policy"]).stem, Path(run["trace"]).stem, run["seed"]) for run in runs]
    assert keys == [(p, t, s) for p in ("one", "two") for t in ("a", "b") for s in (0, 1)]
    assert all(run["wait"]["started"] == 3 for run in runs)
    # In the order of the file, the others wait for the long job, which arrives first.
    assert runs[0]["wait"]["max"] == 3540
    assert runs[1]["wait"]["max"] != 3540


def test_the_table_is_the_same_with_several_processes(given: list[str]) -> None:
    alone = sweep(*given, "--processes", "1")
    assert alone.startswith("4 runs  means over 2 seeds\n")
    assert len(alone.splitlines()) == 4
    assert sweep(*given, "--processes", "2") == alone


def test_the_table_is_the_same_on_a_dask_cluster(given: list[str]) -> None:
    pytest.importorskip("distributed", reason="the extra sweep is not installed")
    command = [sys.executable, "-c", CLUSTER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as cluster:
        try:
            assert cluster.stdout is not None
            address = cluster.stdout.readline().strip()
            # A process of its own: Dask's client keeps threads.
            there = [sys.executable, "-m", "bayplan.cli", *given, "--dask", address]
            done = subprocess.run(there, capture_output=True, text=True, timeout=SECONDS)
        finally:
            cluster.kill()
    assert done.returncode == 0, done.stderr
    assert done.stdout == sweep(*given, "--processes", "1")


def test_without_dask_it_says_what_to_install(
    given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'bayplan\[sweep\]'"):
        sweep(*given, "--dask", "tcp://127.0.0.1:1")


def test_a_run_that_cannot_start_names_its_input(given: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,arrival\nx,soon\n")
    for processes in ("1", "2"):
        with pytest.raises(InputError, match=r"a\.csv:2"):
            sweep(*given, "--processes", processes)


def test_seeds_need_a_trace(given: list[str]) -> None:
    with pytest.raises(InputError, match="--seed"):
        sweep("sweep", "-f", given[2], "--seed", "1")


def test_a_shuffled_trace_has_the_same_jobs_at_the_same_times() -> None:
    jobs = [TraceJob(name=f"j{i}", arrival=i * i) for i in range(20)]
    mixed = shuffled(jobs, 3)
    assert [job.arrival for job in mixed] == [job.arrival for job in jobs]
    assert sorted(job.name for job in mixed) == sorted(job.name for job in jobs)
    assert [job.name for job in mixed] != [job.name for job in jobs]
    assert shuffled(jobs, 3) == mixed
    assert shuffled(jobs, 0) == jobs


def test_progress_is_told_and_failures_come_through() -> None:
    told: list[tuple[int, int]] = []
    assert at_once(2, abs, [-1, -2, -3], lambda *done: told.append(done)) == [1, 2, 3]
    assert sorted(told) == [(1, 3), (2, 3), (3, 3)]
    with pytest.raises(ValueError, match="'x'"):
        at_once(2, int, ["1", "x"], None)


def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(BayplanError, match="ended before its run did"):
        at_once(2, os._exit, [1, 1], None)


NAMED = PROFILE.replace("[{plugins", "[{schedulerName: research, plugins")


def test_jobs_of_a_trace_are_those_of_the_profile_that_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text(NODE)
    (tmp_path / "a.csv").write_text(JOBS)
    (tmp_path / "own.yaml").write_text(NAMED % "ImageLocality")
    (tmp_path / "usual.yaml").write_text(PROFILE % "ImageLocality")
    inputs = ["-f", str(tmp_path / "node.yaml"), "--arrivals", str(tmp_path / "a.csv")]
    configs = [str(tmp_path / f"{name}.yaml") for name in ("own", "usual")]
    runs = json.loads(
        sweep("sweep", *inputs, "--config", configs[0], "--config", configs[1], "-o", "json")
    )["runs"]
    given = ["simulate", *inputs, "--compare", configs[0], "--compare", configs[1]]
    compared = CliRunner().invoke(cli, [*given, "--fail-on-pending", "-o", "json"])
    assert (compared.exit_code, compared.stderr) == (0, "")
    for one in (*runs, *json.loads(compared.stdout)["policies"]):
        assert (one["wait"]["started"], one["pending"], one["notes"]) == (3, 0, [])


def test_pods_that_no_profile_schedules_are_noted(tmp_path: Path) -> None:
    pod = "kind: Pod\napiVersion: v1\nmetadata: {name: p}\nspec: {schedulerName: reserach, %s}\n"
    container = "containers: [{name: c, image: i}]"
    (tmp_path / "world.yaml").write_text(f"{NODE}---\n{pod % container}")
    config = tmp_path / "own.yaml"
    config.write_text(NAMED % "ImageLocality")
    inputs = ["-f", str(tmp_path / "world.yaml")]
    note = (
        'no profile schedules 1 pod of schedulerName "reserach"; there are profiles for research\n'
    )
    one = [*inputs, "--config", str(config), "--fail-on-pending"]
    simulated = CliRunner().invoke(cli, ["simulate", *one])
    assert (simulated.exit_code, simulated.stderr) == (3, f"note: {note}")
    assert 'did you mean "research"?' in simulated.stdout
    compared = CliRunner().invoke(cli, ["simulate", *one, "--compare", str(config)])
    assert (compared.exit_code, compared.stderr) == (3, f"note: {config}: {note}" * 2)
    swept = CliRunner().invoke(cli, ["sweep", *inputs, "--config", str(config)])
    assert swept.stderr == f"note: {config}: {note}"
