"""Helm, as a machine has it, and what it makes of the chart."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.live.deployed import Content
from tests.paths import ROOT
from tests.real_programs import HELM, RAN

CHART = ROOT / "configs" / "chart" / "bayplan"
NAMESPACE = "bayplan-system"
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Helm:
    """Runs helm with settings of its own.

    :ivar folder: for its settings and files of values.
    :ivar kubeconfig: the cluster; none for what needs none.
    :ivar namespace: of the release.
    """

    folder: Path
    kubeconfig: Path | None = None
    namespace: str = NAMESPACE

    def run(self, *arguments: str, values: Values | None = None) -> str:
        """Run a command on the chart's release and return what it says.

        :raises AssertionError: when it fails; with what it says.
        """
        done = self.attempt(*arguments, values=values)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def attempt(
        self, *arguments: str, values: Values | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, which may fail."""
        RAN.add(HELM.name)
        homes = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        environment = {**os.environ, **dict.fromkeys(homes, str(self.folder))}
        if self.kubeconfig is not None:
            environment["KUBECONFIG"] = str(self.kubeconfig)
        command = [str(HELM), *arguments, "--namespace", self.namespace]
        if values is not None:
            path = self.folder / "values.yaml"
            path.write_text(json.dumps(values))
            command += ["--values", str(path)]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    def render(self, values: Values | None = None, *options: str) -> list[Content]:
        """Return what an installation would make on a cluster that has nothing."""
        text = self.run("template", "bayplan", str(CHART), *options, values=values or {})
        found = yaml.load_all(text, yaml.CSafeLoader)
        return [content for content in found if content is not None]
