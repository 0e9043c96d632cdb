"""The pods of batch jobs: they run scripts as Slurm would, with its variables and with srun."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

import pytest

from bayplan.errors import InputError
from bayplan.submission import objects_of, read_batch

Content = dict[str, Any]


def job(text: str, kind: str = "Job", *arguments: str) -> Content:
    batch = read_batch(text, "job.sh", {}, arguments)
    return objects_of(batch, kind, "image", "default", "bayplan")[0]


def templates(content: Content) -> dict[str, Content]:
    if content["kind"] == "Job":
        return {"": content["spec"]["template"]}
    return {role: one["template"] for role, one in content["spec"]["pytorchReplicaSpecs"].items()}


def expanded(text: str, environment: dict[str, str]) -> str:
    """Return an argument as the kubelet passes it on."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return environment.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


def ran(content: Content, index: int = 0, role: str = "", **more: str) -> str:
    """Run a pod's program as a kubelet would; return what it prints."""
    (container,) = templates(content)[role]["spec"]["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    if content["spec"].get("completionMode") == "Indexed":
        environment["JOB_COMPLETION_INDEX"] = str(index)
    words = [*container["command"], *container["args"]]
    done = subprocess.run(
        [expanded(word, environment) for word in words],
        env={"PATH": os.environ["PATH"], **environment, **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return f"{done.stdout}{done.stderr}exit {done.returncode}"


TASKS = """\
#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=2
echo "node $SLURM_NODEID of $SLURM_NNODES, $# arguments: $1"
srun --cpu-bind=none -c 4 bash -c 'echo "task $SLURM_PROCID at $SLURM_LOCALID of $SLURM_NTASKS"'
"""


@pytest.mark.parametrize(("node", "tasks"), [(0, (0, 1)), (1, (2, 3))])
def test_srun_starts_the_tasks_of_each_node(node: int, tasks: tuple[int, ...]) -> None:
    lines = ran(job(TASKS, "Job", "a b"), node).splitlines()
    assert lines[0] == f"node {node} of 2, 1 arguments: a b"
    assert sorted(lines[1:-1]) == [f"task {t} at {i} of 4" for i, t in enumerate(tasks)]
    assert lines[-1] == "exit 0"


def test_srun_fails_where_any_task_does_and_may_start_fewer() -> None:
    script = "#!/bin/sh\n#SBATCH -N 2 --ntasks-per-node=2\n"
    failing = job(f"{script}srun -n 3 sh -c 'exit $SLURM_PROCID'")
    assert ran(failing, 0) == "exit 1"
    assert ran(failing, 1) == "exit 2"
    only_first = job(f"{script}srun --ntasks=1 echo here")
    assert ran(only_first, 0) == "here\nexit 0"
    assert ran(only_first, 1) == "exit 0"


def test_the_shell_of_the_script_expands_what_is_its_own() -> None:
    script = (
        '#!/bin/bash\necho "$(echo $((2 * 3))) $$" | sed "s/ [0-9][0-9]*/ pid/"\necho $(X)$$$$x'
    )
    out = ran(job(script)).splitlines()
    assert out[0] == "6 pid"
    assert re.fullmatch(r"\d+x", out[1])


def test_scripts_find_the_first_node() -> None:
    script = (
        "#!/bin/bash\n#SBATCH -N 2 -J train\n"
        'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1\necho $MASTER_ADDR\n'
        "scontrol show job 1"
    )
    out = ran(job(script), 1).splitlines()
    assert out[:2] == ["train-0.train", "train-0.train"]
    assert out[2:] == ['scontrol: only "show hostnames" is known here', "exit 1"]


def test_scripts_list_all_nodes() -> None:
    script = "#!/bin/bash\n#SBATCH -N 3 -J t\nscontrol show hostnames | tr '\\n' ' '"
    assert ran(job(script)) == "t-0.t t-1.t t-2.t exit 0"
    script = script.replace("hostnames", "hostnames 'x[9-10]y,z'")
    assert ran(job(script)) == "x9y x10y z exit 0"


def test_each_pod_of_an_array_is_one_of_its_tasks() -> None:
    content = job("#!/bin/sh\n#SBATCH -a 4,8,15%2\necho $SLURM_ARRAY_TASK_ID $SLURM_NODEID")
    spec = content["spec"]
    assert (spec["completions"], spec["parallelism"]) == (3, 2)
    assert spec["backoffLimitPerIndex"] == 0
    assert [ran(content, index) for index in range(3)] == [
        f"{task} 0\nexit 0" for task in (4, 8, 15)
    ]


def test_python_runs_python() -> None:
    script = (
        "#!/usr/bin/env python3\nimport os, sys\nprint(sys.argv[1:], os.environ['SLURM_NNODES'])"
    )
    assert ran(job(script, "Job", "x")) == "['x'] 1\nexit 0"


def test_a_pytorch_job_has_a_master_and_workers_that_know_their_place() -> None:
    script = (
        "#!/bin/bash\n#SBATCH -N 3 --ntasks-per-node=2 --gres=gpu:2 -t 10 -J t\n"
        "echo $SLURM_NODEID $SLURM_JOB_NODELIST\n"
    )
    content = job(script, "PyTorchJob")
    replicas = content["spec"]["pytorchReplicaSpecs"]
    assert {role: one["replicas"] for role, one in replicas.items()} == {"Master": 1, "Worker": 2}
    assert content["spec"]["nprocPerNode"] == "2"
    assert content["spec"]["runPolicy"]["activeDeadlineSeconds"] == 600
    out = ran(content, role="Worker", RANK="2")
    assert out == "2 t-master-0,t-worker-[0-1]\nexit 0"
    with pytest.raises(InputError, match="--array: a PyTorchJob is no array"):
        job("#!/bin/sh\n#SBATCH -a 0-3\n:", "PyTorchJob")


def test_a_pod_asks_for_what_its_node_has_to_give() -> None:
    script = (
        "#!/bin/sh\n#SBATCH --ntasks-per-node=2 -c 3 --gres=gpu:4 --mem=8G -q high -p research\n"
        "#SBATCH -C zone=a -w n-1 -x n-2 --no-requeue -D /work\n:"
    )
    content = job(script)
    template = content["spec"]["template"]
    assert template["metadata"]["labels"] == {"bayplan.dev/queue": "research"}
    spec = template["spec"]
    (container,) = spec["containers"]
    given = {"memory": "8192Mi", "nvidia.com/gpu": "4"}
    assert container["resources"] == {"requests": {"cpu": "6", **given}, "limits": given}
    assert container["workingDir"] == "/work"
    assert (spec["priorityClassName"], spec["nodeSelector"]) == ("high", {"zone": "a"})
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert [(one["operator"], one["values"]) for one in term["matchExpressions"]] == [
        ("In", ["n-1"]),
        ("NotIn", ["n-2"]),
    ]
    assert "podFailurePolicy" not in content["spec"]
