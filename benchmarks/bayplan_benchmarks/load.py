"""Loading manifests from YAML, JSON and a snapshot into checked objects."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from bayplan.api import KINDS, Pod
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.cluster.archive import write_archive
from bayplan.cluster.manifests import load_manifests

__all__ = ["load"]

_POD = KINDS["", "Pod"]
_ROUNDS = 3


def _pod(index: int) -> dict[str, Any]:
    """Return the manifest of a typical pod."""
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    container = {"name": "main", "image": "registry.example.com/app:1.2", "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{index}", "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": [container]},
    }


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    """Measure pods per second for each format; ``nodes`` has no effect."""
    with tempfile.TemporaryDirectory() as name:
        files = _written(Path(name), pods)
        figures = {
            f"{kind}PodsPerSecond": round(pods / _best(file, pods), 1)
            for kind, file in files.items()
        }
        sizes = {"pods": pods} | {
            f"{kind}Bytes": files[kind].stat().st_size for kind in ("yaml", "json")
        }
    return BenchmarkResult(sizes, figures)


def _written(folder: Path, pods: int) -> dict[str, Path]:
    """Write the pods in every format, and free them, as files of users are not in memory either."""
    contents = [_pod(index) for index in range(pods)]
    as_list = {"apiVersion": "v1", "kind": "List", "items": contents}
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    texts = {
        "yaml": yaml.dump_all(contents, Dumper=dumper, sort_keys=False),
        "yamlList": yaml.dump(as_list, Dumper=dumper, sort_keys=False),
        "json": json.dumps(as_list, indent=4),
    }
    files = {kind: folder / f"{kind}.{'json' if kind == 'json' else 'yaml'}" for kind in texts}
    for kind, text in texts.items():
        files[kind].write_text(text)
    files["snapshot"] = folder / "pods.zip"
    loaded = load_manifests([str(files["json"])]).objects
    write_archive(files["snapshot"], {_POD: [one for one in loaded if isinstance(one, Pod)]}, {})
    return files


def _best(path: Path, pods: int) -> float:
    """Return the seconds of the fastest of a few rounds."""
    seconds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        found = len(load_manifests([str(path)]).objects)
        seconds.append(time.perf_counter() - started)
        assert found == pods, "every pod is loaded"
    return min(seconds)


load = Benchmark("manifests of plain pods: YAML, JSON and a snapshot", (0,), 10_000, _measure)
