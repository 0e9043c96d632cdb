"""What a batch script asks for: its ``#SBATCH`` lines and the options of the command line.

The options and their forms are those of Slurm's sbatch (24.05). An option that has no counterpart
is refused, unless nothing is lost without it: then it is a note.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bayplan.errors import InputError, did_you_mean

__all__ = ["OPTIONS", "Array", "Batch", "Option", "read_batch", "read_script"]

LARGEST_SCRIPT = 100 * 1024
"""The most bytes of a script: Linux passes no argument of more than 128 KiB to a program."""

_LABEL = r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_FEATURE = re.compile(rf"{_LABEL}=([A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?)?")
_TIME = re.compile(r"(?:(\d{1,4})-)?(\d{1,7})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)
_MEMORY = re.compile(r"(\d{1,9})([KMGT]?)B?", re.ASCII | re.IGNORECASE)
_POWERS = {"K": 0, "": 1, "M": 1, "G": 2, "T": 3}
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,5}))?)?", re.ASCII)
_MOST_TASKS_OF_ARRAY = 10_000
_MOST = 100_000


class Array(msgspec.Struct, frozen=True):
    """The tasks of a job array, of which ``at_once`` run at the same time at most."""

    indices: tuple[int, ...]
    at_once: int


class Batch(msgspec.Struct, frozen=True):
    """A batch job, by node: one pod runs on each.

    ``memory`` is in MiB, None for what the cluster gives; ``seconds`` is how long it may run.
    """

    name: str
    script: str
    interpreter: str
    arguments: tuple[str, ...] = ()
    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int = 1
    gpus: int = 0
    memory: int | None = None
    seconds: int | None = None
    queue: str = ""
    priority_class: str = ""
    array: Array | None = None
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    requeue: bool = True
    directory: str = ""
    notes: tuple[str, ...] = ()

    @property
    def tasks(self) -> int:
        """The tasks of all nodes."""
        return self.nodes * self.tasks_per_node


# Values ------------------------------------------------------------------------------------


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII) or not 0 < int(text) <= _MOST:
        raise ValueError(f'expected a number from 1 to {_MOST}, got "{text}"')
    return int(text)


def _gpus(text: str) -> int:
    kind, _, number = text.rpartition(":")
    if kind:
        raise ValueError(
            f'"{text}" names a type of GPU; ask for {number} and name the nodes\' label: '
            "--constraint nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3"
        )
    return _count(number)


def _gres(text: str) -> int:
    name, _, rest = text.partition(":")
    if name != "gpu":
        raise ValueError(f'expected "gpu:NUMBER", got "{text}"')
    return _gpus(rest or "1")


def _memory(text: str) -> int:
    """Return MiB. Slurm's units are powers of 1024, megabytes where there is none."""
    found = _MEMORY.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f'expected an amount such as 64G, got "{text}"')
    return math.ceil(int(found[1]) * 1024.0 ** (_POWERS[found[2].upper()] - 1))


def _seconds(text: str) -> int:
    """Return seconds: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f'expected a time such as 30, 12:00:00 or 2-12, got "{text}"')
    days, *rest = (int(part) if part is not None else None for part in found.groups())
    first, second, third = rest
    if days is not None:
        parts = (days, first or 0, second or 0, third or 0)
    elif third is not None:
        parts = (0, first or 0, second or 0, third)
    else:
        parts = (0, 0, first or 0, second or 0)
    total = ((parts[0] * 24 + parts[1]) * 60 + parts[2]) * 60 + parts[3]
    if not total:
        raise ValueError("expected more than no time; leave it out for no limit")
    return total


def _array(text: str) -> Array:
    """Return the tasks of 0-9, 1,3,7, 0-31:4, each with %2 for two at once."""
    places, _, most = text.partition("%")
    indices: dict[int, None] = {}
    for part in places.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise ValueError(f'expected tasks such as 0-9, 1,3 or 0-31:4%2, got "{text}"')
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first or not step or (last - first) // step >= _MOST_TASKS_OF_ARRAY:
            raise ValueError(f'"{part}" is no range of at most {_MOST_TASKS_OF_ARRAY} tasks')
        indices |= dict.fromkeys(range(first, last + 1, step))
        if len(indices) > _MOST_TASKS_OF_ARRAY:
            raise ValueError(f"expected at most {_MOST_TASKS_OF_ARRAY} tasks")
    return Array(tuple(indices), _count(most) if most else len(indices))


def _features(text: str) -> dict[str, str]:
    found = {}
    for part in text.split("&"):
        if not _FEATURE.fullmatch(part):
            raise ValueError(
                f'expected labels of nodes such as zone=a, joined by "&", got "{text}"'
            )
        label, _, value = part.partition("=")
        found[label] = value
    return found


def _nodes(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if not _NODE.fullmatch(name):
            raise ValueError(f'expected names of nodes, joined by ",", got "{name}"')
    return names


def _name(text: str) -> str:
    """Return a name that Kubernetes takes, as near as possible to what was said."""
    found = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:52].strip("-")
    if not found:
        raise ValueError(f'"{text}" holds no letter or digit')
    return found if found[0].isalpha() else f"j-{found}"


def _text(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", text):
        raise ValueError(f'expected letters, digits, "-", "_" and ".", got "{text}"')
    return text


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f'expected an absolute path in the container, got "{text}"')
    return text


# Options -----------------------------------------------------------------------------------


class Option(msgspec.Struct, frozen=True):
    """An option of sbatch.

    ``read`` turns its text into a value, or raises ValueError; None for a switch. ``refused`` says
    why there is no counterpart, ``note`` what becomes of what it asks for.
    """

    name: str
    short: str = ""
    help: str = ""
    read: Callable[[str], Any] | None = None
    refused: str = ""
    note: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return self.read is None


def _logs(text: str) -> str:
    return text


_LOGS = 'what it prints is in its pods\' logs ("kubectl logs")'
_MAILS = "nobody gets a mail"
OPTIONS: Mapping[str, Option] = {
    one.name: one
    for one in (
        Option("job-name", "J", "The job's name; by default the script's.", _name),
        Option("nodes", "N", "Nodes; a pod runs on each.", _count),
        Option("ntasks", "n", "Tasks that srun starts on all nodes together.", _count),
        Option("ntasks-per-node", "", "Tasks that srun starts on each node.", _count),
        Option("cpus-per-task", "c", "CPUs of each task.", _count),
        Option("gpus", "G", "GPUs of all nodes together.", _gpus),
        Option("gpus-per-node", "", "GPUs of each node.", _gpus),
        Option("gpus-per-task", "", "GPUs of each task.", _gpus),
        Option("gres", "", "GPUs of each node, as gpu:NUMBER.", _gres),
        Option("mem", "", "Memory of each node, such as 64G.", _memory),
        Option("mem-per-cpu", "", "Memory for each CPU.", _memory),
        Option("mem-per-gpu", "", "Memory for each GPU.", _memory),
        Option("time", "t", "How long it may run, such as 12:00:00 or 2-12.", _seconds),
        Option("partition", "p", "The queue.", _text),
        Option("qos", "q", "The priority class.", _text),
        Option("array", "a", "Tasks of an array, such as 0-9%2.", _array),
        Option("constraint", "C", "Labels of nodes, such as zone=a&disk=ssd.", _features),
        Option("nodelist", "w", "The nodes that it may have.", _nodes),
        Option("exclude", "x", "Nodes that it may not have.", _nodes),
        Option("chdir", "D", "The working directory in the container.", _path),
        Option("requeue", "", "Begin again where its node fails or it is preempted (default)."),
        Option("no-requeue", "", "End where its node fails or it is preempted."),
        Option("output", "o", "", _logs, note=_LOGS),
        Option("error", "e", "", _logs, note=_LOGS),
        Option("open-mode", "", "", _logs, note=_LOGS),
        Option("mail-type", "", "", _logs, note=_MAILS),
        Option("mail-user", "", "", _logs, note=_MAILS),
        Option("comment", "", "", _logs, note="it is not kept"),
        Option("account", "A", "", _logs, note="the namespace pays, see --namespace"),
        Option("export", "", "", _logs, note="the container's environment counts"),
        Option("dependency", "d", "", _logs, refused="an Argo Workflow has steps that wait"),
        Option("begin", "b", "", _logs, refused="a CronJob begins at a time"),
        Option("exclusive", "", "", None, refused="ask for all GPUs or CPUs of a node"),
        Option("nice", "", "", _logs, refused="name a priority class by --qos"),
        Option("licenses", "L", "", _logs, refused="nothing counts licenses"),
        Option("reservation", "", "", _logs, refused="see docs/koordinator.md for reservations"),
        Option("hint", "", "", _logs, refused="see docs/machines.md for CPUs and NUMA nodes"),
        Option("switches", "", "", _logs, refused="see docs/jobs.md for network domains"),
    )
}
"""The options of sbatch by name."""
_SHORT = {one.short: one for one in OPTIONS.values() if one.short}


def _split(words: list[str], where: str) -> dict[str, str]:
    """Return the texts of options by name, "" for a switch."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            option = OPTIONS.get(name)
        else:
            name, value = word[1:2], word[2:].removeprefix("=")
            equals, option = value, _SHORT.get(name) if word.startswith("-") else None
        if option is None:
            near = did_you_mean(name, OPTIONS) if word.startswith("--") else ""
            raise InputError(f'"{word}" is no option of sbatch that bayplan knows{near}', where)
        if option.is_switch:
            if equals:
                raise InputError(f"--{option.name} takes no value", where)
        elif not equals:
            if not rest:
                raise InputError(f"--{option.name} lacks its value", where)
            value = rest.pop(0)
        found[option.name] = value
    return found


def read_script(text: str, source: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return a script's interpreter, and its options: their texts, and the line of each.

    As sbatch does, options are read up to the first command.

    :raises InputError: when it is too long, has no interpreter, or a line cannot be read.
    """
    if len(text.encode()) > LARGEST_SCRIPT:
        raise InputError(f"expected a script of at most {LARGEST_SCRIPT} bytes", source)
    if "\r" in text or "\0" in text:
        raise InputError("expected lines that end as on Linux, and no bytes of zero", source)
    lines = text.splitlines()
    interpreter = _interpreter(lines[0] if lines else "", source)
    found: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(lines[1:], start=2):
        if line.strip() and not line.startswith("#"):
            break
        if not line.startswith("#SBATCH"):
            continue
        where = f"{source}:{number}"
        try:
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        except ValueError as exc:
            raise InputError(str(exc).lower(), where) from None
        found |= {name: (value, where) for name, value in _split(words, where).items()}
    return interpreter, found


def _interpreter(line: str, source: str) -> str:
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    program = words[1] if len(words) > 1 and words[0].endswith("/env") else (words or [""])[0]
    name = program.rpartition("/")[2]
    if name not in ("bash", "sh", "python", "python3"):
        raise InputError(
            f'expected a first line such as "#!/bin/bash", sh or python3, got "{line[:80]}"',
            f"{source}:1",
        )
    return "bash" if name == "sh" else name


def read_batch(
    text: str, source: str, given: Mapping[str, str], arguments: tuple[str, ...] = ()
) -> Batch:
    """Return what a script asks for.

    :param given: texts of options by name that count before those of the script, "" for a switch.
    :param arguments: for the script.
    :raises InputError: names the line or the option that cannot be used.
    """
    interpreter, lines = read_script(text, source)
    texts = lines | {name: (value, f"--{name}") for name, value in given.items()}
    values: dict[str, Any] = {}
    notes: dict[str, None] = {}
    for name, (value, where) in texts.items():
        option = OPTIONS[name]
        if option.refused:
            raise _refusal(name, f"no counterpart: {option.refused}", where)
        if option.note:
            notes[f"--{name} ({where}): {option.note}"] = None
            continue
        try:
            values[name] = True if option.read is None else option.read(value)
        except ValueError as exc:
            raise _refusal(name, str(exc), where) from None
    wheres = {name: where for name, (_, where) in texts.items()}
    base = source.rpartition("/")[2].rpartition(".")
    values.setdefault("job-name", _name(base[0] or base[2] or "job"))
    return _Sizes(values, wheres).batch(text, interpreter, arguments, tuple(notes))


def _refusal(name: str, message: str, where: str) -> InputError:
    """Return an error that names an option once, also where the option is the place."""
    option = f"--{name}"
    return InputError(message, option if where == option else f"{where}: {option}")


class _Sizes(msgspec.Struct, frozen=True):
    """How values go together."""

    values: Mapping[str, Any]
    wheres: Mapping[str, str]

    def _refuse(self, name: str, message: str) -> InputError:
        return _refusal(name, message, self.wheres[name])

    def batch(
        self, text: str, interpreter: str, arguments: tuple[str, ...], notes: tuple[str, ...]
    ) -> Batch:
        values = self.values
        nodes, per_node = self._tasks()
        array = values.get("array")
        if array is not None and nodes > 1:
            raise self._refuse("array", "each task of an array runs on one node")
        gpus = self._gpus(nodes, per_node)
        cpus = values.get("cpus-per-task", 1)
        requeue = "no-requeue" not in values
        if not requeue and "requeue" in values:
            raise self._refuse("no-requeue", "--requeue is there, too")
        return Batch(
            values["job-name"],
            text,
            interpreter,
            arguments,
            nodes,
            per_node,
            cpus,
            gpus,
            self._memory(cpus * per_node, gpus),
            values.get("time"),
            values.get("partition", ""),
            values.get("qos", ""),
            array,
            values.get("constraint", {}),
            values.get("nodelist", ()),
            values.get("exclude", ()),
            requeue,
            values.get("chdir", ""),
            notes,
        )

    def _tasks(self) -> tuple[int, int]:
        """Return the nodes, and the tasks of each."""
        nodes, tasks, each = (self.values.get(n) for n in ("nodes", "ntasks", "ntasks-per-node"))
        if tasks is None:
            return nodes or 1, each or 1
        if nodes is None and each is None and tasks > 1:
            raise self._refuse("ntasks", "say on how many --nodes, or --ntasks-per-node")
        if nodes is None:
            nodes = math.ceil(tasks / (each or 1))
        if tasks % nodes or (each is not None and tasks != nodes * each):
            raise self._refuse("ntasks", f"{tasks} tasks are not the same number on {nodes} nodes")
        return nodes, tasks // nodes

    def _gpus(self, nodes: int, per_node: int) -> int:
        """Return the GPUs of each node."""
        said: dict[str, int] = {}
        for name in ("gpus", "gpus-per-node", "gpus-per-task", "gres"):
            if name not in self.values:
                continue
            number: int = self.values[name]
            if name == "gpus":
                if number % nodes:
                    raise self._refuse(name, f"{number} GPUs are not the same on {nodes} nodes")
                number //= nodes
            said[name] = number * per_node if name == "gpus-per-task" else number
        if len(set(said.values())) > 1:
            texts = ", ".join(f"--{name} means {number}" for name, number in said.items())
            raise InputError(f"GPUs of each node: {texts}", self.wheres[next(reversed(said))])
        return next(iter(said.values()), 0)

    def _memory(self, cpus: int, gpus: int) -> int | None:
        """Return the memory of each node in MiB."""
        names = [n for n in ("mem", "mem-per-cpu", "mem-per-gpu") if n in self.values]
        if len(names) > 1:
            raise self._refuse(names[-1], f"--{names[0]} is there, too")
        if not names:
            return None
        if names == ["mem-per-gpu"] and not gpus:
            raise self._refuse("mem-per-gpu", "there are no GPUs")
        times = {"mem": 1, "mem-per-cpu": cpus, "mem-per-gpu": gpus}[names[0]]
        return int(self.values[names[0]] * times)
