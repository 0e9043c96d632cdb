"""The files that ``bayplan plugin new`` writes."""

from __future__ import annotations

from string import Template

__all__ = ["files"]

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$dist"
version = "0.1.0"
description = "A bayplan plugin"
requires-python = ">=3.11"
dependencies = ["bayplan"]

[project.entry-points."bayplan.plugins"]
$name = "$module:$name"

[tool.hatch.build.targets.wheel]
only-include = ["$module.py"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""

_MODULE = '''\
"""$name: keep small pods off the nodes that have GPUs."""

from __future__ import annotations

from bayplan import Args, NodeRow, Plugin, PodInfo, Reads, hookimpl

GPU = "nvidia.com/gpu"


class ${name}Args(Args):
    """Arguments of $name in the profile's pluginConfig (in camelCase there)."""

    min_free: int = 0


class $name(Plugin[${name}Args]):
    """Keep pods without GPUs off GPU nodes; prefer nodes with few GPUs left."""

    Args = ${name}Args
    reads = Reads.NODE | Reads.PODS
    by_spec = True  # pods of equal spec share answers; to look at more, see the hook "sign"

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> str | None:
        """Return None to accept the node, or the reason to refuse it."""
        if pod.requests.get(GPU, 0) == 0 and node.free(GPU) > self.args.min_free:
            return "node(s) keep their GPUs for pods that ask for some"
        return None

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        """Return 0 to 100; higher is better."""
        offered = node.allocatable(GPU)
        return 100.0 * node.used(GPU) / offered if offered else 0.0
'''

_TEST = """\
from bayplan.testing import Cluster, check_plugin, make_node, make_pod, refusals, scores

from $module import $name


def test_pods_without_gpus_stay_off_gpu_nodes():
    cluster = Cluster([make_node("plain"), make_node("gpu", gpu=8)])
    assert refusals($name, make_pod("web"), cluster) == {
        "gpu": "node(s) keep their GPUs for pods that ask for some"
    }


def test_pods_with_gpus_prefer_the_fuller_node():
    cluster = Cluster([make_node("empty", gpu=8), make_node("used", gpu=8)])
    cluster.add(make_pod("running", gpu=4, node="used"))
    assert scores($name, make_pod("train", gpu=2), cluster) == {"empty": 0, "used": 50}


def test_a_whole_cluster_is_scheduled_with_it():
    cluster = Cluster([make_node("plain"), make_node("gpu", gpu=8)], plugins=[$name])
    cluster.add(make_pod("web"), make_pod("train", gpu=2))
    assert cluster.schedule() == {"web": "plain", "train": "gpu"}


def test_keeps_the_contract():
    check_plugin($name)
"""

_README = """\
# $name

A plugin for [bayplan](https://pypi.org/project/bayplan/).

    python -m pytest           # its tests
    pip install -e .           # makes it available to every profile

In a profile:

    apiVersion: kubescheduler.config.k8s.io/v1
    kind: KubeSchedulerConfiguration
    profiles:
      - schedulerName: bayplan
        plugins:
          multiPoint:
            enabled:
              - name: $name
                weight: 1
        pluginConfig:
          - name: $name
            args:
              minFree: 0
"""


def files(name: str, module: str) -> dict[str, str]:
    """Return the files of a new plugin package: texts by path."""
    names = {"name": name, "module": module, "dist": f"bayplan-{module.replace('_', '-')}"}
    return {
        path: Template(text).substitute(names)
        for path, text in {
            "pyproject.toml": _PYPROJECT,
            "README.md": _README,
            f"{module}.py": _MODULE,
            f"tests/test_{module}.py": _TEST,
        }.items()
    }
