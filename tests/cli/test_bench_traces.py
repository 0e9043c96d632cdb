"""bayplan bench openb: a trace or a policy that is not as expected is an answer, not a crash."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bayplan.cli.bench import command
from bayplan.errors import InputError

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,8000,1024,2,T4\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np0,1000,1,1,500,\n"
ARRIVALS = '{"42": {"pods": [0], "node_rank": [0]}}'


def run(folder: Path, nodes: str, pods: str, arrivals: str, policy: str = "") -> str:
    """Return the message of the refusal; "" if the trace ran."""
    (folder / "nodes_gpu.csv").write_text(nodes)
    (folder / "pods.csv").write_text(pods)
    (folder / "arrivals.json.gz").write_bytes(gzip.compress(arrivals.encode()))
    args = ["openb", "--trace", str(folder), "--policy", policy]
    result = CliRunner().invoke(command, args)
    if isinstance(result.exception, InputError):
        return str(result.exception)
    assert result.exit_code == 0, result.output
    return ""


@pytest.mark.parametrize(
    ("nodes", "pods", "arrivals", "policy", "message"),
    [
        (NODES, "", ARRIVALS, "", "expected the columns name"),
        (NODES, PODS.replace("1000,", "1e9,"), ARRIVALS, "", "pods.csv:2: cpu_milli: expected a"),
        (NODES, PODS + PODS.split()[1], ARRIVALS, "", "pods.csv:3: name: expected a name of its"),
        (NODES.replace(",2,T4", ",0,T4"), PODS, ARRIVALS, "", "expected a node with GPUs"),
        (NODES.replace(",2,T4", ",65,T4"), PODS, ARRIVALS, "", "gpu: expected a whole number up"),
        (NODES.replace(",2,T4", ""), PODS, ARRIVALS, "", "nodes_gpu.csv:2: gpu: expected a whole"),
        (NODES, PODS, "{}", "", "expected arrivals by seed, got none"),
        (NODES, PODS, ARRIVALS.replace("[0], ", "[], "), "", "$.42.pods: expected one place"),
        (NODES, PODS, "[1]", "", "expected lists of whole numbers by seed"),
        (NODES, PODS, ARRIVALS.replace("[0], ", "[7], "), "", "$.42.pods: expected places of 1"),
        (NODES, PODS, ARRIVALS.replace("[0]}", "[1]}"), "", "$.42.node_rank: expected each of"),
        (NODES, PODS, ARRIVALS.replace("42", "43"), "", "the trace has arrivals for 43"),
        (NODES, PODS, ARRIVALS, "FDG", 'did you mean "FGD"?'),
        (NODES, PODS, ARRIVALS, "FGD", ""),
    ],
)
def test_a_bad_trace_is_told(
    tmp_path: Path, nodes: str, pods: str, arrivals: str, policy: str, message: str
) -> None:
    found = run(tmp_path, nodes, pods, arrivals, policy)
    assert message in found
    assert bool(message) == bool(found)


def test_a_damaged_archive_is_told(tmp_path: Path) -> None:
    run(tmp_path, NODES, PODS, ARRIVALS)
    path = tmp_path / "arrivals.json.gz"
    content = bytearray(path.read_bytes())
    content[10] ^= 0xFF
    path.write_bytes(content)
    result = CliRunner().invoke(command, ["openb", "--trace", str(tmp_path)])
    assert "expected lists of whole numbers by seed" in str(result.exception)


@pytest.mark.parametrize(
    "args", [("openb", "--nodes", "5"), ("mig", "--policy", "FGD"), ("mig", "--learned")]
)
def test_options_without_a_meaning_are_refused(tmp_path: Path, args: tuple[str, ...]) -> None:
    run(tmp_path, NODES, PODS, ARRIVALS)
    trace = ("--trace", str(tmp_path)) if args[0] == "openb" else ()
    result = CliRunner().invoke(command, [*args, *trace])
    assert str(result.exception) == f'{args[1]}: the benchmark "{args[0]}" has no such option'


def test_a_trace_is_repacked(tmp_path: Path) -> None:
    assert run(tmp_path, NODES, PODS, ARRIVALS) == ""
    args = ["--trace", str(tmp_path), "--repack", "4", "-o", "json"]
    result = CliRunner().invoke(command, ["openb", *args])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.output)["figures"]
    assert (figures["moves"], figures["freedGpusPerMove"]) == (0, 0.0)
    refused = CliRunner().invoke(command, ["openb-bound", *args]).exception
    assert "a bound holds for every policy" in str(refused)
