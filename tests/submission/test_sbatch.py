"""Batch scripts for Slurm: what they ask for, in all the forms that sbatch takes."""

from __future__ import annotations

import pytest

from bayplan.errors import InputError
from bayplan.submission import Batch, read_batch
from bayplan.submission.sbatch import LARGEST_SCRIPT, Array


def batch(*lines: str, first: str = "#!/bin/bash", **given: str) -> Batch:
    text = "\n".join([first, *(f"#SBATCH {line}" for line in lines), "hostname", ""])
    texts = {name.replace("_", "-"): value for name, value in given.items()}
    return read_batch(text, "jobs/train.sh", texts)


def test_a_script_without_options_is_one_task_with_a_cpu() -> None:
    found = batch()
    assert (found.name, found.nodes, found.tasks, found.cpus_per_task) == ("train", 1, 1, 1)
    assert (found.gpus, found.memory, found.seconds, found.array) == (0, None, None, None)
    assert found.requeue


@pytest.mark.parametrize(
    ("lines", "nodes", "per_node"),
    [
        (("-N 4",), 4, 1),
        (("--nodes=4 --ntasks-per-node=8",), 4, 8),
        (("-n 32", "-N4"), 4, 8),
        (("--ntasks 32", "--ntasks-per-node 8"), 4, 8),
        (("--ntasks-per-node=2",), 1, 2),
        (("-n1",), 1, 1),
    ],
)
def test_tasks_are_spread_evenly(lines: tuple[str, ...], nodes: int, per_node: int) -> None:
    found = batch(*lines)
    assert (found.nodes, found.tasks_per_node) == (nodes, per_node)


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("--gpus-per-node=8", 8),
        ("-G 16 -N 2", 8),
        ("--gres=gpu:4", 4),
        ("--gres=gpu", 1),
        ("--gpus-per-task=2 --ntasks-per-node=4", 8),
        ("--gpus=8 --gres=gpu:4 --nodes=2", 4),
    ],
)
def test_gpus_are_those_of_a_node(line: str, gpus: int) -> None:
    assert batch(line).gpus == gpus


@pytest.mark.parametrize(
    ("line", "memory"),
    [
        ("--mem=64G", 64 * 1024),
        ("--mem=4000", 4000),
        ("--mem 512K", 1),
        ("--mem=1T", 1024 * 1024),
        ("--mem-per-cpu=2G -c 4 --ntasks-per-node=2", 16 * 1024),
        ("--mem-per-gpu=100G --gres=gpu:8", 800 * 1024),
    ],
)
def test_memory_is_that_of_a_node_in_mib(line: str, memory: int) -> None:
    assert batch(line).memory == memory


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("30:15", 1815),
        ("12:00:00", 43200),
        ("2-12", 216000),
        ("1-02:30", 95400),
        ("1-02:30:05", 95405),
    ],
)
def test_times_have_the_forms_of_slurm(text: str, seconds: int) -> None:
    assert batch(f"--time={text}").seconds == seconds


@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("0-3", Array((0, 1, 2, 3), 4)),
        ("1,3,7%2", Array((1, 3, 7), 2)),
        ("0-8:4", Array((0, 4, 8), 3)),
        ("5", Array((5,), 1)),
    ],
)
def test_arrays_are_numbers_ranges_and_steps(text: str, array: Array) -> None:
    assert batch(f"-a {text}").array == array


def test_the_command_line_counts_before_the_script() -> None:
    found = batch("--nodes=4 --partition=slow", nodes="2", time="5")
    assert (found.nodes, found.queue, found.seconds) == (2, "slow", 300)


def test_options_end_with_the_first_command() -> None:
    text = "#!/bin/sh\n\n# a comment\n#SBATCH -N 2 # two\nhostname\n#SBATCH -N 8\n"
    assert read_batch(text, "a.sh", {}).nodes == 2


@pytest.mark.parametrize(
    ("first", "interpreter"),
    [
        ("#!/bin/bash -l", "bash"),
        ("#!/usr/bin/env python3", "python3"),
        ("#!/bin/sh", "bash"),
    ],
)
def test_scripts_are_for_bash_or_python(first: str, interpreter: str) -> None:
    assert batch(first=first).interpreter == interpreter


@pytest.mark.parametrize(
    ("name", "made"),
    [("Train_70b!", "train-70b"), ("70b", "j-70b"), ("x" * 80, "x" * 52)],
)
def test_names_become_names_of_kubernetes(name: str, made: str) -> None:
    assert batch(f"--job-name='{name}'").name == made


def test_nodes_and_labels_say_where() -> None:
    found = batch("-C zone=a&nvidia.com/gpu.product=H100 -w n-1,n-2", "--exclude=n-9")
    assert found.labels == {"zone": "a", "nvidia.com/gpu.product": "H100"}
    assert (found.only, found.without) == (("n-1", "n-2"), ("n-9",))


def test_what_is_not_lost_is_a_note() -> None:
    (logs, mail) = batch("--output=out-%j.log", "--mail-type=END").notes
    assert logs.startswith("--output (jobs/train.sh:2): what it prints is in its pods' logs")
    assert mail == "--mail-type (jobs/train.sh:3): nobody gets a mail"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ("-N 2", "--dependency=afterok:3"),
            "train.sh:3: --dependency: no counterpart: an Argo",
        ),
        (("--exclusive",), "train.sh:2: --exclusive: no counterpart: ask for all GPUs"),
        (("--nodez=2",), 'train.sh:2: "--nodez=2" is no option of sbatch that bayplan knows; did'),
        (("-Z 2",), 'train.sh:2: "-Z" is no option'),
        (("nodes=2",), 'train.sh:2: "nodes=2" is no option'),
        (("--nodes",), "train.sh:2: --nodes lacks its value"),
        (("--requeue=1",), "train.sh:2: --requeue takes no value"),
        (("-N 0",), 'train.sh:2: --nodes: expected a number from 1 to 100000, got "0"'),
        (("-N 2-4",), 'train.sh:2: --nodes: expected a number from 1 to 100000, got "2-4"'),
        (("--gres=gpu:a100:8",), "--constraint nvidia.com/gpu.product="),
        (("--gres=nic:1",), '--gres: expected "gpu:NUMBER", got "nic:1"'),
        (("--mem=0",), '--mem: expected an amount such as 64G, got "0"'),
        (("--mem=1e3",), "--mem: expected an amount"),
        (("--time=soon",), '--time: expected a time such as 30, 12:00:00 or 2-12, got "soon"'),
        (("--time=0",), "--time: expected more than no time"),
        (("--array=9-1",), '--array: "9-1" is no range'),
        (("--array=0-9999999",), "--array: "),
        (("--array=a",), "--array: expected tasks such as 0-9"),
        (("--array=0-3", "-N 2"), "train.sh:2: --array: each task of an array runs on one node"),
        (("-n 32",), "train.sh:2: --ntasks: say on how many --nodes"),
        (("-n 9 -N 2",), "--ntasks: 9 tasks are not the same number on 2 nodes"),
        (("-G 9 -N 2",), "--gpus: 9 GPUs are not the same on 2 nodes"),
        (
            ("--gpus-per-node=8", "--gres=gpu:4"),
            "train.sh:3: GPUs of each node: --gpus-per-node means 8, --gres means 4",
        ),
        (("--mem=4G --mem-per-cpu=1G",), "--mem-per-cpu: --mem is there, too"),
        (("--mem-per-gpu=4G",), "--mem-per-gpu: there are no GPUs"),
        (("--requeue --no-requeue",), "--no-requeue: --requeue is there, too"),
        (("--constraint=intel",), "--constraint: expected labels of nodes such as zone=a"),
        (("--nodelist=n[1-4]",), '--nodelist: expected names of nodes, joined by ","'),
        (("--partition=a,b",), "--partition: expected letters"),
        (("--chdir=work",), "--chdir: expected an absolute path"),
        (("--job-name='!'",), '--job-name: "!" holds no letter or digit'),
        (("--comment='a",), "train.sh:2: no closing quotation"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        batch(*lines)
    assert message in str(caught.value)
    assert str(caught.value).startswith("jobs/train.sh:")


@pytest.mark.parametrize("first", ["hostname", "#!/usr/bin/perl", ""])
def test_a_script_names_its_interpreter(first: str) -> None:
    with pytest.raises(InputError, match=r'train.sh:1: expected a first line such as "#!/bin/bash'):
        batch(first=first)


def test_a_script_is_not_longer_than_an_argument() -> None:
    with pytest.raises(InputError, match="expected a script of at most"):
        read_batch("#!/bin/sh\n" + "#" * LARGEST_SCRIPT, "a.sh", {})


@pytest.mark.parametrize("end", ["\r\n", "\0"])
def test_a_script_has_the_lines_of_linux(end: str) -> None:
    with pytest.raises(InputError, match=r"a\.sh: expected lines that end as on Linux"):
        read_batch(f"#!/bin/sh{end}hostname\n", "a.sh", {})
