"""The objects that run a batch job: a Job and its Service, or a PyTorchJob."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from bayplan.dialects import queue_configmap
from bayplan.dialects.nvidia import GPU
from bayplan.errors import InputError
from bayplan.gangs.owned import GANG_ANNOTATION
from bayplan.submission.sbatch import Array, Batch

__all__ = ["KINDS_OF_JOBS", "objects_of"]

Content = dict[str, Any]

_PORT = "29500"
"""Where the first node of torch.distributed listens by default."""
_SHELL = """\
export SLURM_NODEID="${JOB_COMPLETION_INDEX:-${RANK:-0}}"
if [ -n "${SLURM_ARRAY_TASKS:-}" ]; then
  read -ra tasks <<< "$SLURM_ARRAY_TASKS"
  export SLURM_ARRAY_TASK_ID="${tasks[$SLURM_NODEID]}" SLURM_NODEID=0
fi
export SLURM_PROCID=$((SLURM_NODEID * SLURM_NTASKS_PER_NODE)) SLURM_LOCALID=0
scontrol() {
  if [ "${1:-} ${2:-}" != "show hostnames" ]; then
    echo "scontrol: only \\"show hostnames\\" is known here" >&2
    return 1
  fi
  local part one
  local -a parts
  IFS=, read -ra parts <<< "${3:-$SLURM_JOB_NODELIST}"
  for part in "${parts[@]}"; do
    if [[ "$part" =~ ^(.*)\\[([0-9]+)-([0-9]+)\\](.*)$ ]]; then
      for ((one = BASH_REMATCH[2]; one <= BASH_REMATCH[3]; one++)); do
        echo "${BASH_REMATCH[1]}$one${BASH_REMATCH[4]}"
      done
    else
      echo "$part"
    fi
  done
}
srun() {
  local all="$SLURM_NTASKS" failed=0 first="$SLURM_PROCID" place one
  local -a started=()
  while [ $# -gt 0 ]; do
    case "$1" in
      --ntasks=*) all="${1#*=}"; shift ;;
      -n|--ntasks) all="$2"; shift 2 ;;
      -n[0-9]*) all="${1#-n}"; shift ;;
      --*=*|-[A-Za-z]?*) shift ;;
      -[NcGtJoepw]|--nodes|--ntasks-per-node|--cpus-per-task|--gpus|--gpus-per-task|--gpus-per-node\\
      |--gres|--job-name|--output|--error|--export|--mem|--time|--partition|--nodelist) shift 2 ;;
      -*) shift ;;
      *) break ;;
    esac
  done
  for ((place = 0; place < SLURM_NTASKS_PER_NODE && first + place < all; place++)); do
    SLURM_PROCID=$((first + place)) SLURM_LOCALID="$place" "$@" &
    started+=($!)
  done
  for one in "${started[@]}"; do
    wait "$one" || failed=$?
  done
  return "$failed"
}
export -f scontrol srun
interpreter="$1" script="$2"
shift 2
case "$interpreter" in
  python*) exec "$interpreter" -c "$script" "$@" ;;
  *) exec bash -c "$script" "$0" "$@" ;;
esac
"""
"""Runs a script with Slurm's variables, and with srun and scontrol as far as scripts need them."""


def objects_of(
    batch: Batch, kind: str, image: str, namespace: str, scheduler: str
) -> list[Content]:
    """Return the manifests of a batch job, the job first, which owns the others.

    :param kind: one of ``KINDS_OF_JOBS``.
    :raises InputError: when a job of this kind cannot be what the batch job is.
    """
    if batch.array is not None and kind != "Job":
        raise InputError(f"a {kind} is no array", "--array")
    return KINDS_OF_JOBS[kind](batch, image, namespace, scheduler)


def _job(batch: Batch, image: str, namespace: str, scheduler: str) -> list[Content]:
    several = batch.nodes > 1
    template = _template(batch, image, scheduler, "main")
    count = len(batch.array.indices) if batch.array is not None else batch.nodes
    spec: Content = {"backoffLimit": 0}
    if several or batch.array is not None:
        at_once = batch.array.at_once if batch.array is not None else batch.nodes
        spec |= {"completionMode": "Indexed", "completions": count}
        spec["parallelism"] = min(at_once, count)
    if several:
        template["metadata"].setdefault("annotations", {})[GANG_ANNOTATION] = "true"
        template["spec"]["subdomain"] = batch.name
    if batch.array is not None:
        # The tasks that are left run although one has failed.
        del spec["backoffLimit"]
        spec["backoffLimitPerIndex"] = 0
    if batch.requeue:
        disrupted = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        spec["podFailurePolicy"] = {"rules": [{"action": "Ignore", **disrupted}]}
    if batch.seconds is not None:
        spec["activeDeadlineSeconds"] = batch.seconds
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": batch.name, "namespace": namespace},
        "spec": {**spec, "template": template},
    }
    return [job, _service(batch, namespace)] if several else [job]


def _service(batch: Batch, namespace: str) -> Content:
    """Return what gives each pod of a Job a name that the others find."""
    selector = {"batch.kubernetes.io/job-name": batch.name}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": batch.name, "namespace": namespace},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector},
    }


def _pytorch_job(batch: Batch, image: str, namespace: str, scheduler: str) -> list[Content]:
    replicas = {}
    for role, count in (("Master", 1), ("Worker", batch.nodes - 1)):
        if count:
            replicas[role] = {
                "replicas": count,
                "restartPolicy": "Never",
                "template": _template(batch, image, scheduler, "pytorch"),
            }
    policy: Content = {"cleanPodPolicy": "None"}
    if batch.seconds is not None:
        policy["activeDeadlineSeconds"] = batch.seconds
    spec = {"nprocPerNode": str(batch.tasks_per_node), "runPolicy": policy}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": batch.name, "namespace": namespace},
        "spec": {**spec, "pytorchReplicaSpecs": replicas},
    }
    return [job]


KINDS_OF_JOBS: Mapping[str, Callable[[Batch, str, str, str], list[Content]]] = {
    "Job": _job,
    "PyTorchJob": _pytorch_job,
}
"""By kind, what makes the objects of a batch job."""


def _template(batch: Batch, image: str, scheduler: str, container: str) -> Content:
    spec: Content = {
        "schedulerName": scheduler,
        "restartPolicy": "Never",
        "containers": [_container(batch, image, container)],
    }
    if batch.priority_class:
        spec["priorityClassName"] = batch.priority_class
    if batch.labels:
        spec["nodeSelector"] = dict(batch.labels)
    named = [("In", batch.only), ("NotIn", batch.without)]
    terms = [
        {"key": "kubernetes.io/hostname", "operator": operator, "values": list(names)}
        for operator, names in named
        if names
    ]
    if terms:
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        nodes = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        spec["affinity"] = {"nodeAffinity": nodes}
    metadata = {"labels": {queue_configmap.LABEL: batch.queue}} if batch.queue else {}
    return {"metadata": metadata, "spec": spec}


def _container(batch: Batch, image: str, name: str) -> Content:
    limits: dict[str, str] = {}
    if batch.memory is not None:
        limits["memory"] = f"{batch.memory}Mi"
    if batch.gpus:
        limits[GPU] = str(batch.gpus)
    cpus = {"cpu": str(batch.cpus_per_task * batch.tasks_per_node)}
    words = [batch.interpreter, batch.script, *batch.arguments]
    container: Content = {
        "name": name,
        "image": image,
        "command": ["/bin/bash", "-c", _literal(_SHELL), batch.name],
        "args": [_literal(word) for word in words],
        "env": _environment(batch, name),
        "resources": {"requests": cpus | limits} | ({"limits": limits} if limits else {}),
    }
    if batch.directory:
        container["workingDir"] = batch.directory
    return container


def _literal(text: str) -> str:
    """Return a text from which Kubernetes makes this one: it expands $(NAME), and $$ to $."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def _environment(batch: Batch, container: str) -> list[Content]:
    """Return Slurm's variables."""
    first, hosts = _hosts(batch, container)
    values = {
        "SLURM_JOB_ID": batch.name,
        "SLURM_JOB_NAME": batch.name,
        "SLURM_JOB_PARTITION": batch.queue,
        "SLURM_JOB_NUM_NODES": str(batch.nodes),
        "SLURM_NNODES": str(batch.nodes),
        "SLURM_NTASKS": str(batch.tasks),
        "SLURM_NTASKS_PER_NODE": str(batch.tasks_per_node),
        "SLURM_CPUS_PER_TASK": str(batch.cpus_per_task),
        "SLURM_CPUS_ON_NODE": str(batch.cpus_per_task * batch.tasks_per_node),
        "SLURM_GPUS_ON_NODE": str(batch.gpus),
        "SLURM_JOB_NODELIST": hosts,
    }
    if batch.array is not None:
        values |= _of_array(batch.array)
    if container != "pytorch":
        values |= {"MASTER_ADDR": first, "MASTER_PORT": _PORT}
    found: list[Content] = [{"name": name, "value": value} for name, value in values.items()]
    return found


def _hosts(batch: Batch, container: str) -> tuple[str, str]:
    """Return the first host, and all of them as Slurm writes a list: a-[0-3]."""
    name, last = batch.name, batch.nodes - 1
    if container == "pytorch":
        workers = f",{name}-worker-[0-{last - 1}]" if last else ""
        return f"{name}-master-0", f"{name}-master-0{workers}"
    if not last:
        return "localhost", "localhost"
    return f"{name}-0.{name}", f"{name}-[0-{last}].{name}"


def _of_array(array: Array) -> dict[str, str]:
    return {
        "SLURM_ARRAY_TASKS": " ".join(map(str, array.indices)),
        "SLURM_ARRAY_TASK_COUNT": str(len(array.indices)),
        "SLURM_ARRAY_TASK_MIN": str(min(array.indices)),
        "SLURM_ARRAY_TASK_MAX": str(max(array.indices)),
    }
