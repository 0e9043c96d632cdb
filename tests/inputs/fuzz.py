"""Mutated annotations, bodies, profiles, machines and manifests: each gets an answer, and soon.

    python -m tests.inputs.fuzz --inputs 100000 --seed 1

It prints each input that raises an unexpected error or takes longer than a second, and finally the
peak memory. The tests run a few inputs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayplan.api import Node, ObjectMeta, Pod
from bayplan.api.objects import KINDS, DecodeError, decode_object
from bayplan.cluster.api_errors import ApiError
from bayplan.cluster.apiserver.request_bodies import read_json, read_yaml
from bayplan.cluster.manifests import load_manifests
from bayplan.dialects import gpu_topology, hami
from bayplan.errors import InputError
from bayplan.inputs.durations import parse_duration
from bayplan.profiles.loading import load_profiles
from bayplan.snapshot import PodInfo, Snapshot
from bayplan.testing import make_pod
from bayplan.topology.machine.readers.hami import SCORE
from bayplan.topology.machine.readers.hami_register import CORDON, REGISTER
from bayplan.topology.machine.readers.machinefile import load_machine
from bayplan_plugins.gpus import machines

__all__ = ["Finding", "fuzz"]

_ROOT = Path(__file__).parents[2]

SLOWEST = 1.0
"""CPU seconds that one input may take."""
_TOKENS = (
    *(
        "[",
        "]",
        "{",
        "}",
        ": ",
        "- ",
        "\n",
        "\n  ",
        "'",
        '"',
        "&a ",
        "*a",
        "<<: *a",
        "? ",
        "| ",
        ">-",
    ),
    *(
        "!!str ",
        "!!binary ",
        "!x ",
        "%TAG ! x\n",
        "---\n",
        "...\n",
        "\t",
        "\x00",
        "\ufeff",
        "\u2028",
    ),
    *(
        "9" * 30,
        "1e999",
        "-0",
        ".inf",
        ".nan",
        "0x",
        "null",
        "~",
        "yes",
        "ä",
        "\U0001f600",
        "\\u",
        "#",
    ),
    *("GPU0", "NV18", "X", "SYS", "NODE", "1000000", "-1", "99999999999999999999", "default", "*"),
)
_ANNOTATIONS = (
    '{"gatherStrategy":[{"layer":"RackLayer","strategy":"MustGather","podCountMultiple":4}]}',
    '[{"topology":"rack","size":8},{"topology":"host","size":2}]',
    '[{"uuid":"GPU-0","score":{"GPU-1":100}},{"uuid":"GPU-1","score":{"GPU-0":100}}]',
    '[{"id":"GPU-0","index":0,"count":10,"devmem":81559,"devcore":100,"type":"H100","health":true}]',
    "GPU-0,10,81559,100,NVIDIA-H100,0,true,0,hami-core:",
    '["default/a","default/b"]',
    "1h30m",
    "best-effort",
)


@dataclass(frozen=True)
class Finding:
    """An input that had no answer, or a late one."""

    target: str
    text: str
    problem: str


def _annotation(text: str, folder: Path) -> None:
    """Read a text as every annotation of nodes and pods."""
    of_hami = (SCORE, REGISTER, CORDON)
    for keys in ((machines.TOPOLOGY,), (machines.MACHINE,), of_hami):
        meta = ObjectMeta(name="n", annotations=dict.fromkeys(keys, text))
        machines.NodeMachines(Snapshot()).of(Node(meta))
    annotations = dict.fromkeys(_POD_KEYS, text)
    pod = make_pod("p", annotations=annotations)
    PodInfo(pod)
    gpu_topology.gpu_request_of({f"gpu.topology/{name}": text for name in ("policy", "max-nodes")})
    hami.gpu_request_of(pod.metadata.annotations)
    with contextlib.suppress(ValueError):
        parse_duration(text)


_POD_KEYS = (
    "gang.scheduling.koordinator.sh/network-topology-spec",
    "gang.scheduling.koordinator.sh/name",
    "gang.scheduling.koordinator.sh/min-available",
    "gang.scheduling.koordinator.sh/groups",
    "gang.scheduling.koordinator.sh/waiting-time",
    "kueue.x-k8s.io/podset-required-topology",
    "kueue.x-k8s.io/podset-slice-required-topology-constraints",
    "scheduling.volcano.sh/group-name",
    "nvidia.com/use-gpuuuid",
)


def _yaml_body(text: str, folder: Path) -> None:
    _decoded(read_yaml(text.encode(errors="replace")).content)


def _json_body(text: str, folder: Path) -> None:
    _decoded(read_json(text.encode(errors="replace")).content)


def _decoded(content: Any) -> None:
    if isinstance(content, dict):
        decode_object(KINDS["", "Pod"], content)


def _file(load: Callable[[Path], Any]) -> Callable[[str, Path], None]:
    def run(text: str, folder: Path) -> None:
        path = folder / "input.yaml"
        path.write_text(text, errors="replace")
        load(path)

    return run


_TARGETS: dict[str, Callable[[str, Path], None]] = {
    "annotation": _annotation,
    "YAML body": _yaml_body,
    "JSON body": _json_body,
    "profile": _file(load_profiles),
    "machine": _file(load_machine),
    "manifests": _file(lambda path: load_manifests([str(path)])),
}


def _seeds() -> dict[str, list[str]]:
    """Return valid texts of each kind, to start from."""

    def texts(*patterns: str) -> list[str]:
        return [path.read_text() for pattern in patterns for path in sorted(_ROOT.glob(pattern))]

    machine_files = texts(
        "configs/machines/*.yaml", "framework/bayplan/topology/machine/catalog/*.yaml"
    )
    manifests = texts("configs/examples/*/*.yaml")
    pods = [json.dumps({"apiVersion": "v1", "kind": "Pod", **_plain(make_pod("p", gpu=1))})]
    return {
        "annotation": [*_ANNOTATIONS, *machine_files[:4]],
        "YAML body": manifests,
        "JSON body": pods,
        "profile": texts("configs/profiles/*.yaml"),
        "machine": machine_files,
        "manifests": manifests,
    }


def _plain(pod: Pod) -> dict[str, Any]:
    return {"metadata": {"name": pod.metadata.name}, "spec": {"containers": [{"name": "c"}]}}


def mutated(draw: random.Random, text: str) -> str:
    """Return a text with a few changes."""
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.choice((1, 4, 20, 200)))
        kind = draw.randrange(6)
        if kind == 0:
            text = text[:at] + text[end:]
        elif kind == 1:
            text = text[:at] + draw.choice(_TOKENS) + text[at:]
        elif kind == 2:
            text = text[:at] + draw.choice(_TOKENS) + text[end:]
        elif kind == 3:
            text = text[:at] + text[at:end] * draw.choice((2, 3, 50)) + text[end:]
        elif kind == 4:
            text = text[:at] + draw.choice(_TOKENS) * draw.choice((10, 1000, 20_000)) + text[at:]
        else:
            other = draw.randrange(len(text) + 1)
            text = text[:at] + text[other : other + 100] + text[at:]
        text = text[:400_000]
    return text


def fuzz(inputs: int, seed: int) -> Iterator[Finding]:
    """Try that many inputs; yield those without an answer."""
    draw = random.Random(seed)
    seeds = _seeds()
    names = list(_TARGETS)
    with tempfile.TemporaryDirectory() as name:
        for number in range(inputs):
            target = names[number % len(names)]
            text = mutated(draw, draw.choice(seeds[target]))
            started = time.process_time()
            try:
                _TARGETS[target](text, Path(name))
            except (InputError, ApiError, DecodeError):
                pass
            except Exception:
                yield Finding(target, text, traceback.format_exc())
            seconds = time.process_time() - started
            if seconds > SLOWEST:
                yield Finding(target, text, f"took {seconds:.1f} s")


def main() -> int:
    """Run it; return how many findings there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    findings = 0
    for finding in fuzz(options.inputs, options.seed):
        findings += 1
        print(f"--- {finding.target}: {finding.problem}\n{finding.text[:500]!r}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{options.inputs} inputs, {findings} findings, peak memory {peak} MiB")
    return min(findings, 1)


if __name__ == "__main__":
    sys.exit(main())
